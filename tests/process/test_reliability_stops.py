"""Every way to end a run from its own process x every state that a rank can be in.

Each pair: the user is told what happened, the wait ends, no process is left, nothing else was touched, shared memory,
temporary files and ports are as before, the logs are whole, and the next launch works.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import plain
import pytest
import states

import nbproc
import victims
from nbproc.contexts import base, ladder, supervisor
from nbproc.contexts.board import Board
from nbproc.ranks import client, reap, standby, tracker, warden
from nbproc.states import RankState, RunState

RUN_ID = "reliability"
ALONE = [state for state in states.STATES if state != "in a barrier"]


@pytest.fixture(scope="module", autouse=True)
def bystander() -> Iterator[None]:
    """A process that looks like a rank and carries a mark that begins like the run's."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)", "nbproc/ranks/rank_main.py", "hang-0"],
        env={"NBPROC_RUN": f"{RUN_ID}0"},
        start_new_session=True,
    )
    yield
    assert process.poll() is None, "a process that is not the run's was ended"
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def no_tracker_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have a tracker of their own; with one of this process, what a killed rank leaves goes with this process."""
    monkeypatch.setattr(tracker, "current", lambda: None)


@pytest.fixture(autouse=True)
def nothing_for_the_next() -> Iterator[None]:
    """What a failing test found to be left is not the next one's trouble."""
    yield
    reap.end([], RUN_ID)


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Climb the ladder faster, and give each run the same mark."""
    monkeypatch.setattr(ladder, "TERM_GRACE", 0.3)
    monkeypatch.setattr(supervisor, "TERM_GRACE", 0.3)
    monkeypatch.setattr(base, "new_run_id", lambda: RUN_ID)
    monkeypatch.setenv(standby.VARIABLE, "0")
    standby.close()


def launch(state: str, folder: Path, **more: float) -> tuple[nbproc.PContext, states.Told]:
    """Start a run whose rank 0 is in this state; return when it is."""
    context = nbproc.start_processes(
        "hang",
        states.enter,
        (state, str(folder)),
        nprocs=2,
        log_dir=folder / "logs",
        redirects=nbproc.Std.ALL,
        **{"grace": 0.3, **more},  # type: ignore[arg-type]
    )
    return context, states.told(folder, 2)


def nothing_left(told: states.Told, folder: Path) -> None:
    """Look at what a run left behind, at the moment when it says that nothing is left."""
    assert states.living(told.pids) == []
    assert states.in_shared_memory(told.pids, told.names) == []
    assert states.port_is_free(told["0"]["port"])
    for rank in told:
        for stream in ("stdout", "stderr"):
            assert states.LAST_WORDS in (folder / "logs" / rank / f"{stream}.log").read_bytes()
        assert (folder / "logs" / rank / "stdout.log").read_bytes().endswith(states.LAST_WORDS)
    the_next_launch_works()


def the_next_launch_works() -> None:
    assert nbproc.start_processes("next", victims.rank, (), nprocs=2).result().return_values == {0: 0, 1: 1}


# ---------------------------------------------------------------- ways to end a run


def interrupt(context: nbproc.PContext) -> None:
    """Press Ctrl-C while the main thread waits."""
    with pytest.raises(KeyboardInterrupt):
        press_when(context, waits)


def interrupt_twice(context: nbproc.PContext) -> None:
    """Press it again as soon as the ranks were asked to stop: no patience is left then."""
    with pytest.raises(KeyboardInterrupt):
        press_when(context, waits, lambda context: waits(context) and context.snapshot().state is not RunState.RUNNING)


def waits(context: nbproc.PContext) -> bool:
    """Say whether the main thread waits for the run."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main or 0)
    while frame is not None and frame.f_code is not Board.wait_for.__code__:
        frame = frame.f_back
    return frame is not None


def press_when(context: nbproc.PContext, *moments: Callable[[nbproc.PContext], bool]) -> None:
    """Wait for a run, and press Ctrl-C at each of these moments, if the wait is not over by then."""
    over = threading.Event()

    def press() -> None:
        for moment in moments:
            states.until(lambda moment=moment: over.is_set() or moment(context), "it is the moment")  # type: ignore[misc]
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    try:
        thread.start()
        context.wait()
    finally:
        over.set()
        thread.join()


def stop(context: nbproc.PContext) -> None:
    """Press Stop in the view."""
    context.stop()
    context.wait()


def kill(context: nbproc.PContext) -> None:
    """Press it twice."""
    context.kill()
    context.wait()


def close(context: nbproc.PContext) -> None:
    """Close it, as torch's contexts are closed."""
    context.close(timeout=0.3)


def leave(context: nbproc.PContext) -> None:
    """Leave the block of a ``with`` by an exception."""
    with pytest.raises(ZeroDivisionError), context:
        raise ZeroDivisionError


def lose_the_guardian(context: nbproc.PContext) -> None:
    """Kill the guardian, which a run starts anew, then press Stop."""
    guardian = warden.current().pid
    assert guardian is not None
    os.kill(guardian, signal.SIGKILL)
    states.until(lambda: warden.current().pid not in (None, guardian), "there is a new guardian")
    assert context.snapshot().state is RunState.RUNNING
    stop(context)


def rank_1_dies(context: nbproc.PContext) -> None:
    """Kill another rank, as the system does when memory runs out."""
    assert context.send_signal(1, signal.SIGKILL)
    context.wait()


def it_dies(context: nbproc.PContext) -> None:
    """Kill the rank itself."""
    assert context.send_signal(0, signal.SIGKILL)
    context.wait()


@dataclass(frozen=True)
class Ending:
    """A way to end a run: what is done, what the run says of it, who failed, the grace it was given."""

    name: str
    do: Callable[[nbproc.PContext], None]
    headline: str
    failed: int | None = None
    grace: float = 0.3


TOOK = r"in \d+\.\d s; nothing left running"
KILLED = r"rank {} was killed by SIGKILL \((may have run )?out of memory\)"
ENDINGS = [
    Ending("Interrupt", interrupt, f"stopped by you {TOOK}"),
    Ending("Interrupt twice", interrupt_twice, f"stopped by you {TOOK}", grace=600),
    Ending("Stop", stop, f"stopped by you {TOOK}"),
    Ending("kill", kill, f"killed by you {TOOK}"),
    Ending("close", close, f"stopped {TOOK}"),
    Ending("leaving with", leave, f"stopped by you {TOOK}"),
    Ending("guardian killed, then Stop", lose_the_guardian, f"stopped by you {TOOK}"),
    Ending("another rank killed", rank_1_dies, KILLED.format(1), failed=1),
    Ending("the rank killed", it_dies, KILLED.format(0), failed=0),
]


PAIRS = [
    pytest.param(ending, state, id=f"{ending.name}-{state}")
    for ending in ENDINGS
    for state in states.STATES
    if (ending.do, state) != (it_dies, "with a child that hides")  # test_what_hides_is_not_found_...
]


@pytest.mark.parametrize(("ending", "state"), PAIRS)
def test_a_run_ends_and_nothing_is_left(ending: Ending, state: str, tmp_path: Path) -> None:
    context, told = launch(state, tmp_path, grace=ending.grace)
    ending.do(context)
    context.close()
    assert re.fullmatch(ending.headline, context.report().headline), context.report().headline
    nothing_left(told, tmp_path)
    snapshot = context.snapshot()
    assert snapshot.state is (RunState.STOPPED if ending.failed is None else RunState.FAILED)
    assert snapshot.first_failed == ending.failed
    if ending.failed != 0 and not (state == "in a barrier" and ending.failed == 1):
        assert snapshot.ranks[0].state is RankState.STOPPED
        place = rf"stopped at {states.PLACES.get(state, 'asleep')}, states\.py line \d+(, waiting in barrier)?"
        unknown = state in ("stopped", "with DataLoader workers") or ending.do in (close, kill)
        assert re.fullmatch(f"({place})|stopped.*" if unknown else place, snapshot.ranks[0].words)


# ---------------------------------------------------------------- ways that end all states at once


def launch_all(folder: Path, **more: float) -> tuple[nbproc.PContext, states.Told]:
    """Start a run with a rank in each state."""
    context = nbproc.start_processes(
        "all",
        states.enter_each,
        (ALONE, str(folder)),
        nprocs=len(ALONE),
        log_dir=folder / "logs",
        redirects=nbproc.Std.ALL,
        **more,  # type: ignore[arg-type]
    )
    return context, states.told(folder, len(ALONE))


def test_a_timeout_ends_ranks_in_every_state(tmp_path: Path) -> None:
    context, told = launch_all(tmp_path, grace=0.3, timeout=5)
    context.wait()
    context.close()
    assert re.fullmatch(
        r"timed out after 5 s, stopped in \d\.\d s; nothing left running",
        context.report().headline,
    )
    assert context.timed_out
    assert {rank.state for rank in context.snapshot().ranks} == {RankState.STOPPED}
    nothing_left(told, tmp_path)


def test_the_fork_servers_end_ends_ranks_in_every_state(tmp_path: Path) -> None:
    context, told = launch_all(tmp_path, grace=0.3)
    server = client.current().pid
    assert server is not None
    os.kill(server, signal.SIGKILL)
    result = context.wait()
    context.close()
    assert result is not None
    assert {failure.words for failure in result.failures.values()} == {"the fork server has ended"}
    assert re.fullmatch(r"ranks? [\d, -]+ failed: the fork server has ended", context.report().headline)
    nothing_left(told, tmp_path)


@pytest.mark.parametrize("state", ["asleep", "in C, holding the GIL", "with DataLoader workers", "in a barrier"])
def test_logs_that_are_removed_hide_nothing(state: str, tmp_path: Path) -> None:
    context, told = launch(state, tmp_path)
    shutil.rmtree(tmp_path / "logs")
    assert context.run_dir == tmp_path / "logs"
    stop(context)
    context.close()
    assert re.fullmatch(f"stopped by you {TOOK}", context.report().headline)
    assert states.living(told.pids) == []
    the_next_launch_works()


@pytest.mark.parametrize("ending", [stop, it_dies], ids=["Stop", "the rank killed"])
def test_tensors_that_are_shared_by_name_go_two_seconds_later(
    ending: Callable[[nbproc.PContext], None], tmp_path: Path
) -> None:
    """Torch's own manager removes them, two seconds after the last of its clients has ended; it is given that time."""
    context = nbproc.start_processes("named", states.enter_each, (["with named tensors"], str(tmp_path)), nprocs=1)
    told = states.told(tmp_path, 1)
    ending(context)
    context.close()
    assert states.living(told.pids) == []
    assert states.in_shared_memory(told.pids, []) == []


@pytest.mark.parametrize("ending", [kill, it_dies], ids=["kill", "the rank killed"])
def test_a_child_that_is_born_while_its_rank_is_killed_goes_too(
    ending: Callable[[nbproc.PContext], None], tmp_path: Path
) -> None:
    context = nbproc.start_processes("forks", states.enter_each, (["forking"], str(tmp_path)), nprocs=1)
    told = states.told(tmp_path, 1)
    ending(context)
    context.close()
    assert states.living(told["0"]["children"]) == []


def test_one_that_is_born_late_goes_too_where_orphans_do_not_go_to_the_first_process(tmp_path: Path) -> None:
    """On a desktop the session's own process takes them in."""
    script = """
        import ctypes, os, subprocess, sys

        PR_SET_CHILD_SUBREAPER = 36
        if "inside" not in sys.argv:
            assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
            sys.exit(subprocess.run([sys.executable, __file__, "inside"]).returncode)

        import pathlib, signal
        import nbproc, states

        folder = pathlib.Path(__file__).parent
        context = nbproc.start_processes(
            "forks", states.enter_each, (["forking"], str(folder)), nprocs=1, redirects=nbproc.Std.ALL
        )
        [told] = states.told(folder, 1).values()
        assert context.send_signal(0, signal.SIGKILL)
        context.wait()
        context.close()
        print(states.living(told["children"]))
    """
    done = plain.run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stdout + done.stderr


@pytest.mark.parametrize(("state", "ending"), [("with a daemon", stop), ("with a child that hides", it_dies)])
def test_what_hides_is_not_found_once_its_parent_is_gone(
    state: str, ending: Callable[[nbproc.PContext], None], tmp_path: Path
) -> None:
    """As the documentation says: a session of its own, a clean environment and no parent leave nothing to tell by."""
    context = nbproc.start_processes("hides", states.enter_each, ([state], str(tmp_path)), nprocs=1, grace=0.3)
    [told] = states.told(tmp_path, 1).values()
    ending(context)
    context.close()
    [hidden] = [told["daemon"]] if "daemon" in told else told["children"]
    assert len(states.living([hidden])) == 1
    os.kill(hidden, signal.SIGKILL)
    states.until(lambda: not states.living([hidden]), "it is gone")
