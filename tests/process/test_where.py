"""Where a rank is while it runs: asked without harm, at most for half a second, and "" where it cannot be known."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from states import until

import nbproc
from nbproc import start_processes
from nbproc.contexts import whereabouts
from nbproc.ranks import worker


def doze(go: str) -> int:
    """Sleep until a file is there. Returns what was written before."""
    path = Path(go)
    turns = 0
    while not path.exists():
        time.sleep(0.01)  # here
        turns += 1
    return turns


def meet(go: str) -> int:
    """Rank 1 waits in a barrier for rank 0, which waits for a file."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        doze(go)
    dist.barrier()
    dist.destroy_process_group()
    return 7


def read_forever(go: str) -> str:
    """Block in a read, which a signal interrupts."""
    with open(go, encoding="utf-8") as file:
        return file.read()


def become_another_program(go: str) -> None:
    """Be a shell: a handler of signals does not outlive that."""
    os.execv("/bin/sh", ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.1; done"])


def close_what_is_not_its_own(go: str) -> int:
    """Close every descriptor but the standard ones, and have a file of its own under each number."""
    os.closerange(3, 64)
    own = os.open(f"{go}.own", os.O_RDWR | os.O_CREAT)
    for _ in range(60):
        os.dup(own)
    Path(f"{go}.ready").touch()
    return doze(go)


HERE = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# here"))
BARRIER = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line == "    dist.barrier()")


@contextmanager
def running(function: Any, tmp_path: Path, nprocs: int = 1, **options: Any) -> Iterator[nbproc.PContext]:
    context = start_processes("where", function, (str(tmp_path / "go"),), nprocs=nprocs, **options)
    try:
        yield context
    finally:
        context.kill()
        context.gone()


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_rank_that_sleeps_says_where_and_goes_on(method: str, tmp_path: Path) -> None:
    with running(doze, tmp_path, start_method=method) as context:
        wanted = f"in doze, test_where.py line {HERE}"
        until(lambda: context.where(0) == wanted, "the rank says where it is")
        (tmp_path / "go").touch()
        assert context.result()[0] > 0
        assert context.where(0) == ""


def test_a_rank_in_a_barrier_says_so_and_goes_on(tmp_path: Path) -> None:
    with running(meet, tmp_path, nprocs=2) as context:
        wanted = f"in barrier, meet, test_where.py line {BARRIER}"
        until(lambda: context.where(1) == wanted, "rank 1 is in the barrier", timeout=60)
        assert "doze" in context.where(0)
        (tmp_path / "go").touch()
        assert dict(context.result().return_values) == {0: 7, 1: 7}


def test_a_call_that_a_signal_interrupts_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    with running(read_forever, tmp_path) as context:
        until(lambda: "read_forever" in context.where(0), "the rank waits for somebody who writes")
        (tmp_path / "go").write_text("written")
        assert context.result()[0] == "written"


def test_a_rank_that_is_stopped_does_not_answer_and_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "FRESH", 0.0)
    with running(doze, tmp_path) as context:
        until(lambda: "doze" in context.where(0), "the rank answers")
        pid = context.pids()[0]
        assert context.files is not None
        stack = context.files.stack(0)
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        assert [context.where(0) for _ in range(4)] == [""] * 4
        assert time.monotonic() - begun < 3 * whereabouts.PATIENCE
        size = stack.stat().st_size
        os.kill(pid, signal.SIGCONT)
        until(lambda: stack.stat().st_size > size, "the late answer has come")
        until(lambda: "doze" in context.where(0), "the rank answers again")


def test_a_rank_that_became_another_program_is_left_alone(tmp_path: Path) -> None:
    with running(become_another_program, tmp_path) as context:
        pid = context.pids()[0]
        until(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == "sh", "the rank is a shell")
        assert context.where(0) == ""
        assert context.snapshot().ranks[0].state is nbproc.RankState.RUNNING
        assert Path(f"/proc/{pid}").exists()


def test_a_rank_that_closed_the_file_is_left_alone(tmp_path: Path) -> None:
    with running(close_what_is_not_its_own, tmp_path) as context:
        until((tmp_path / "go.ready").exists, "the rank has closed its descriptors")
        assert context.where(0) == ""
        assert (tmp_path / "go.own").read_text() == ""


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whereabouts, "FRESH", 0.0)
    monkeypatch.setattr(whereabouts, "_LARGE", 1)
    with running(doze, tmp_path) as context:
        until(lambda: "doze" in context.where(0), "the rank answers")
        assert context.files is not None
        size = context.files.stack(0).stat().st_size
        assert all("doze" in context.where(0) for _ in range(3))
        assert context.files.stack(0).stat().st_size < 2 * size


def test_views_that_ask_at_the_same_time_share_an_answer(tmp_path: Path) -> None:
    with running(doze, tmp_path) as context:
        until(lambda: "doze" in context.where(0), "the rank answers")
        said: list[str] = []
        threads = [threading.Thread(target=lambda: said.append(context.where(0))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(said)) == 1
        assert "doze" in said[0]


def test_nothing_is_known_of_an_executable(tmp_path: Path) -> None:
    context = start_processes("sleep", "sleep", ("60",), nprocs=1)
    try:
        assert context.where(0) == ""
    finally:
        context.kill()
        context.gone()


def test_nothing_is_known_where_there_is_no_signal_or_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(doze, tmp_path) as context:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "SAMPLE_SIGNAL", None)
            assert context.where(0) == ""
        monkeypatch.setenv("NBPROC_PORTABLE", "1")
        monkeypatch.setattr(whereabouts, "FRESH", 0.0)
        assert context.where(0) == ""
