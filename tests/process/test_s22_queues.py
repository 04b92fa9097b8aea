"""S22: queues that the caller made work in ranks, as arguments and captured, of the contexts that can."""

from __future__ import annotations

import multiprocessing
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch

import nbproc
from nbproc.errors import PayloadError


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """Start what multiprocessing starts once in a process and keeps: it is not a test's to end."""
    resource_tracker.ensure_running()


QUEUES = pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])


def close(queue: Any) -> None:
    if hasattr(queue, "join_thread"):
        queue.close()
        queue.join_thread()
    else:
        queue.close()


@QUEUES
@pytest.mark.parametrize("made_by", ["forkserver", "spawn"])
@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_a_queue_as_an_argument(start_method: str, made_by: str, kind: str) -> None:
    queue = getattr(multiprocessing.get_context(made_by), kind)()
    nbproc.spawn(jobs.put, (queue, "word"), 2, start_method=start_method)
    assert sorted(queue.get() for _ in range(2)) == [(0, "word"), (1, "word")]
    close(queue)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_a_captured_queue_between_ranks(start_method: str) -> None:
    context = multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()

    def talk(i: int) -> None:
        if i == 0:
            there.put("ping")
        else:
            back.put(there.get() + " pong")

    nbproc.spawn(talk, nprocs=2, start_method=start_method)
    assert back.get() == "ping pong"
    for queue in (there, back):
        close(queue)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_one_of_the_fork_context_cannot_be_sent_and_is_named(start_method: str) -> None:
    queue = multiprocessing.get_context("fork").Queue()
    with pytest.raises(PayloadError, match="fork"):
        nbproc.spawn(jobs.put, (queue,), 1, start_method=start_method)
    close(queue)


@QUEUES
def test_ranks_made_by_fork_inherit_it_also_after_it_was_used(kind: str) -> None:
    queue = getattr(multiprocessing.get_context("fork"), kind)()
    queue.put("before")
    assert queue.get() == "before"
    nbproc.spawn(jobs.put, (queue,), 2, start_method="fork")
    assert sorted(queue.get() for _ in range(2)) == [(0,), (1,)]
    close(queue)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_tensors_go_through_torchs_queues(start_method: str, tmp_path: Path) -> None:
    queue = torch.multiprocessing.get_context("spawn").Queue()
    context = nbproc.spawn(jobs.put_tensor, (queue, tmp_path), 1, join=False, start_method=start_method)
    assert context is not None
    assert queue.get().tolist() == [0, 1, 2]
    (tmp_path / "got").write_text("")  # the sender lives until then, as torch asks
    assert context.join()
    close(queue)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_locks_events_and_pipes_of_such_a_context(start_method: str) -> None:
    context = multiprocessing.get_context("spawn")
    event, lock, value = context.Event(), context.Lock(), context.Value("i", 0)
    ours, theirs = context.Pipe()
    nbproc.spawn(jobs.use_all, (event, lock, value, theirs), 2, start_method=start_method)
    assert event.is_set()
    assert value.value == 2
    assert sorted(ours.recv() for _ in range(2)) == [0, 1]
    ours.close()
    theirs.close()
