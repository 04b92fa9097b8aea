"""S24: ``join=False`` gives a `ProcessContext`, which is joined as torch's is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest

import nbproc
from victims import alive

METHODS = ("forkserver", "spawn", "fork")
method = pytest.mark.parametrize("start_method", METHODS)
Launch = Callable[..., nbproc.ProcessContext]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Launch without joining; what a test leaves is killed."""
    launched: list[nbproc.ProcessContext] = []

    def launch(fn: Any, *args: Any, nprocs: int = 2, start_method: str = "forkserver") -> nbproc.ProcessContext:
        context = nbproc.spawn(fn, args, nprocs, join=False, start_method=start_method)
        assert context is not None
        launched.append(context)
        return context

    yield launch
    for context in launched:
        context.context.kill()
        context.context.close()


@method
def test_joining_again_and_again_is_true(launch: Launch, start_method: str) -> None:
    context = launch(jobs.nothing, start_method=start_method)
    while not context.join(timeout=30):
        pass
    assert context.join() is True
    assert context.join(timeout=0) is True


@method
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_ranks_may_end_in_any_order(launch: Launch, tmp_path: Path, order: tuple[int, ...], start_method: str) -> None:
    (tmp_path / "started").mkdir()
    context = launch(jobs.end_in_turn, tmp_path, nprocs=3, start_method=start_method)
    for rank in order:
        assert context.join(timeout=0) is False
        (tmp_path / f"end-{rank}").write_text("")
    assert context.join() is True


@method
def test_one_returns_first_another_raises_later(launch: Launch, tmp_path: Path, start_method: str) -> None:
    context = launch(jobs.return_first_then_raise, tmp_path, start_method=start_method)
    assert context.join(timeout=0) is False
    (tmp_path / "go").write_text("")
    with pytest.raises(nbproc.ProcessRaisedException, match=r"\nValueError: legitimate exception$"):
        context.join()
    with pytest.raises(nbproc.ProcessRaisedException, match=r"\nValueError: legitimate exception$"):
        context.join(timeout=0)


@method
def test_pids_are_those_of_the_ranks(launch: Launch, tmp_path: Path, start_method: str) -> None:
    context = launch(jobs.hang_all, tmp_path, start_method=start_method)
    pids = context.pids()
    assert len(set(pids)) == 2
    assert all(alive(pid) for pid in pids)
    assert [process.pid for process in context.processes] == pids
    assert all(process.is_alive() and process.exitcode is None for process in context.processes)


@method
def test_a_rank_that_somebody_kills_is_told(launch: Launch, tmp_path: Path, start_method: str) -> None:
    context = launch(jobs.hang_all, tmp_path, start_method=start_method)
    os.kill(context.pids()[1], signal.SIGTERM)
    with pytest.raises(nbproc.ProcessExitedException, match="process 1 terminated with signal SIGTERM") as caught:
        context.join()
    assert caught.value.error_index == 1
    assert not any(alive(pid) for pid in context.pids())


def test_ranks_can_be_ended_as_processes_are(launch: Launch, tmp_path: Path) -> None:
    context = launch(jobs.hang_all, tmp_path)
    context.processes[0].terminate()
    with pytest.raises(nbproc.ProcessExitedException, match="process 0 terminated with signal SIGTERM"):
        context.join()
    assert context.processes[0].exitcode == -signal.SIGTERM
    assert not any(process.is_alive() for process in context.processes)
    context.processes[0].kill()  # too late, and no error


def test_a_run_that_was_stopped_is_no_success(launch: Launch, tmp_path: Path) -> None:
    context = launch(jobs.hang_all, tmp_path)
    context.context.stop()
    with pytest.raises(nbproc.ProcessExitedException, match="process 0 was stopped"):
        context.join()


@method
def test_in_a_grace_period_the_others_may_finish(launch: Launch, tmp_path: Path, start_method: str) -> None:
    context = launch(jobs.fail_then_finish, tmp_path, start_method=start_method)
    threading.Thread(target=(tmp_path / "may fail").touch).start()  # not before join says what it wants
    with pytest.raises(nbproc.ProcessExitedException, match="process 0 terminated with exit code 3"):
        context.join(grace_period=30)
    assert (tmp_path / "finished").exists()


def test_without_one_they_are_asked_at_once(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "may fail").touch()
    context = launch(jobs.fail_then_finish, tmp_path)
    with pytest.raises(nbproc.ProcessExitedException, match="process 0 terminated with exit code 3"):
        context.join()
    assert not (tmp_path / "finished").exists()


def test_after_the_grace_period_they_are_told_and_then_killed(launch: Launch, tmp_path: Path) -> None:
    began = time.monotonic()
    context = launch(jobs.fail_then_ignore, tmp_path)
    with pytest.raises(nbproc.ProcessExitedException, match="process 0 terminated with exit code 3"):
        context.join(grace_period=0.2)
    assert time.monotonic() - began < 30
    assert not alive(context.pids()[1])


def test_what_was_not_redirected_leaves_only_error_files(launch: Launch) -> None:
    context = launch(jobs.raise_in_all, nprocs=1)
    with pytest.raises(nbproc.ProcessRaisedException):
        context.join()
    assert Path(context.error_files[0]).exists()


def test_spawn_context_is_its_other_name() -> None:
    assert nbproc.SpawnContext is nbproc.ProcessContext
