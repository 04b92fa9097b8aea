"""Faults between every two steps of a launch: none leaves anything, hangs, or harms the next launch (section 5)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs
import plain
import psutil
import pytest

import nbproc
from nbproc.contexts.ends import Ends
from nbproc.contexts.multiprocess import Functions
from nbproc.contexts.supervisor import Supervisor
from nbproc.errors import LaunchError
from nbproc.ranks import client, process, standby
from victims import alive

METHODS = ("forkserver", "spawn", "fork")
method = pytest.mark.parametrize("start_method", METHODS)


@pytest.fixture(autouse=True)
def no_ranks_ahead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(standby.VARIABLE, "0")
        standby.close()
        yield


def run(start_method: str) -> nbproc.RunProcsResult | None:
    context = nbproc.start_processes("t", abs, {0: (-1,), 1: (-2,)}, start_method=start_method)
    return context.wait()


def works(start_method: str) -> None:
    result = run(start_method)
    assert result is not None
    assert result.return_values == {0: 1, 1: 2}, result.failures


STEPS: dict[str, tuple[Any, str]] = {
    "pack": (Functions, "_pack"),
    "begin": (Supervisor, "start"),
    "request": (Functions, "start"),
    "born": (Supervisor, "_meet"),
    "hand over": (Functions, "hand_over"),
    "hear": (Ends, "hear"),
    "result": (Functions, "result"),
    "exit": (Supervisor, "_exited"),
    "settle": (Supervisor, "_settle"),
    "clean up": (Functions, "close"),
}


def inject(patch: pytest.MonkeyPatch, step: str, when: str, fault: Callable[[tuple[Any, ...]], object]) -> list[str]:
    """Let a fault happen once, before or after a step. Returns a list that then has an entry."""
    where, name = STEPS[step]
    original = getattr(where, name)
    happened: list[str] = []

    def faulty(*args: Any) -> Any:
        if when == "before" and not happened:
            happened.append(step)
            fault(args)
        value = original(*args)
        if when == "after" and not happened:
            happened.append(step)
            fault(args)
        return value

    patch.setattr(where, name, faulty)
    return happened


@pytest.mark.parametrize(
    ("start_method", "when"),
    [("forkserver", "before"), ("forkserver", "after"), ("spawn", "after"), ("fork", "before"), ("fork", "after")],
)
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_between_two_steps(
    step: str, when: str, start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = threading.Event()

    def interrupt(args: tuple[Any, ...]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        if threading.current_thread() is not threading.main_thread():
            landed.wait(0.2)  # the main thread has it now

    happened = inject(monkeypatch, step, when, interrupt)
    if step == "pack" and start_method == "fork":
        works(start_method)
        return
    late = step in ("exit", "settle", "clean up", "result", "hear")  # the result may be known before it lands
    try:
        run(start_method)
        gone()
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
        landed.set()
    assert happened
    assert interrupted or late
    monkeypatch.undo()
    works(start_method)


def gone() -> None:
    """Wait until the supervision of a run has ended, and let an Interrupt of a late step land here."""
    for thread in threading.enumerate():
        if thread.name.startswith("nbproc-t"):
            thread.join(10)


@pytest.mark.parametrize(
    ("step", "when"),
    [
        *[("request", "before"), ("request", "after"), ("born", "after"), ("hand over", "after")],
        *[("hear", "after"), ("result", "before"), ("result", "after"), ("exit", "after"), ("clean up", "before")],
    ],
)
def test_a_server_that_is_killed_between_two_steps(step: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    works("forkserver")

    def kill(args: tuple[Any, ...]) -> None:
        pid = client.current().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    happened = inject(monkeypatch, step, when, kill)
    try:
        result = run("forkserver")
        gone()
    except LaunchError as error:
        assert "fork server" in str(error)  # noqa: PT017 - whether it is raised depends on the step
    else:
        assert result is not None
        words = {failure.words for failure in result.failures.values()}
        assert words <= {"the fork server has ended"}, words
    assert happened
    monkeypatch.undo()
    works("forkserver")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["born", "hand over", "hear", "result", "exit"])
@method
def test_a_rank_that_is_killed_between_two_steps(
    step: str, when: str, start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(args: tuple[Any, ...]) -> None:
        for one in args:
            made = getattr(one, "process", one)
            if isinstance(made, process.RankProcess):
                made.signal(signal.SIGKILL)
                if made.identity is not None:
                    jobs.vanish([made.identity.pid])

    happened = inject(monkeypatch, step, when, kill)
    try:
        result = run(start_method)
        gone()
    except LaunchError as error:
        assert "could not be started" in str(error)  # noqa: PT017
    else:
        assert result is not None
        assert len(result.failures) + len(result.return_values) in (1, 2)
        for one in result.failures.values():
            # one that finds nobody at its socket leaves before it is killed
            assert any(word in one.words for word in ("SIGKILL", "could not", "did not", "before returning")), one.words
    assert happened
    monkeypatch.undo()
    works(start_method)


@pytest.mark.parametrize("step", ["pack", "begin", "request", "hand over", "result"])
@method
def test_a_step_that_fails(step: str, start_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: tuple[Any, ...]) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    happened = inject(monkeypatch, step, "before", fail)
    try:
        result = run(start_method)
    except (OSError, LaunchError) as error:
        assert "Broken pipe" in str(error)  # noqa: PT017
    else:
        assert result is not None
        if happened:
            assert any("Broken pipe" in failure.words for failure in result.failures.values())
    monkeypatch.undo()
    works(start_method)


@method
def test_no_descriptors_left_at_any_step(start_method: str, tmp_path: Path) -> None:
    script = f"""
        import gc, os, resource
        import nbproc
        from nbproc.ranks import client, warden

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        data = bytes(300_000)

        def work(i, data):
            return data

        def run():
            context = nbproc.start_processes("t", work, {{i: (i, data) for i in range(3)}}, start_method="{start_method}")
            try:
                result = context.wait()
                return len(result.return_values), [failure.words for failure in result.failures.values()]
            finally:
                context.pids()

        def count():
            gc.collect()
            return len(os.listdir("/proc/self/fd"))

        assert run() == (3, [])
        server, guardian = client.current().pid, warden.current().pid
        before = count()
        refused = whole = 0
        for more in range(0, 32, {2 if start_method == "spawn" else 1}):
            # the lowest numbers that are free, so many of them
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + more - 1, hard))
            try:
                done, words = run()
            except (nbproc.NbprocError, OSError) as error:
                assert "Too many open files" in str(error) or "open files" in str(error), repr(error)
                refused += 1
            else:
                if done == 3:
                    whole += 1
                else:
                    assert words and all("open files" in word for word in words[:1]), words
                    refused += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            assert count() <= before, (more, count(), before)
        assert run() == (3, [])
        assert refused > 3 and whole > 3, (refused, whole)
        assert (server, guardian) == (client.current().pid, warden.current().pid)
        print("ok")
    """
    done = plain.run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_an_interrupt_at_any_line(tmp_path: Path) -> None:
    """Whatever line of ours the main thread is at when an Interrupt lands, nothing stays behind."""
    script = """
        import dis, functools, gc, os, sys, threading, time
        import nbproc
        from nbproc.ranks import client

        FOLDER = os.path.dirname(nbproc.__file__)

        def run():
            context = nbproc.start_processes("t", abs, {0: (-1,), 1: (-2,)})
            return list(context.wait())

        @functools.cache
        def leaving(code):
            # Where a with block is left: three Nones are loaded for __exit__. A signal is not dealt with there.
            steps = list(dis.get_instructions(code))
            found = set()
            for at, three in enumerate(zip(steps, steps[1:], steps[2:])):
                if all((step.opname, step.argval) == ("LOAD_CONST", None) for step in three):
                    found.add(steps[at].offset)
                    while steps[at := at - 1].opname in ("SWAP", "NOP", "ROT_TWO", "POP_BLOCK"):
                        found.add(steps[at].offset)
            return found

        class Lines:
            def __init__(self, at):
                self.at = at
                self.seen = 0

            def __call__(self, frame, event, arg):
                if not frame.f_code.co_filename.startswith(FOLDER):
                    return None
                if event == "line" and frame.f_lasti not in leaving(frame.f_code):
                    self.seen += 1
                    if self.seen == self.at:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return self

        def state():
            for thread in set(threading.enumerate()) - {threading.current_thread()}:
                thread.join(20)
                assert not thread.is_alive(), thread
            gc.collect()
            server = client.current().pid
            deadline = time.monotonic() + 10
            # a rank that was asked for, and not born when the Interrupt landed, ends as soon as it finds nobody there
            while children := open(f"/proc/{server}/task/{server}/children").read().split():
                assert time.monotonic() < deadline, children
                os.sched_yield()
            return len(os.listdir("/proc/self/fd"))

        assert run() == [1, 2]
        lines = Lines(-1)
        sys.settrace(lines)
        run()
        sys.settrace(None)
        before = state()
        interrupted = 0
        for at in range(1, lines.seen, max(1, lines.seen // 60)):
            sys.settrace(Lines(at))
            try:
                run()
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            now = state()
            assert now == before, (at, now, before)
        assert run() == [1, 2]
        assert interrupted > 40, interrupted
        print("ok")
    """
    done = plain.run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr[-3000:]


@pytest.mark.slow
def test_256_ranks_with_1024_descriptors(tmp_path: Path) -> None:
    script = """
        import nbproc

        def work(i):
            return i

        context = nbproc.start_processes("t", work, {i: (i,) for i in range(256)}, grace=60)
        assert list(context.wait()) == list(range(256))
        print("ok")
    """
    assert plain.lines(tmp_path, script, limits="-n 1024") == ["ok"]


@method
def test_many_runs_leave_nothing(start_method: str, tmp_path: Path) -> None:
    script = f"""
        import gc, os, threading
        import psutil
        import nbproc

        def state():
            gc.collect()
            children = [one for one in psutil.Process().children(recursive=True) if one.status() != "zombie"]
            return len(os.listdir("/proc/self/fd")), len(children), len(threading.enumerate())

        def run():
            context = nbproc.start_processes("t", abs, {{0: (-1,)}}, start_method="{start_method}")
            assert context.wait()[0] == 1
            context.pids()

        run()
        before = state()
        for _ in range({50 if start_method != "spawn" else 5}):
            run()
        assert state() == before, (state(), before)
        print("ok")
    """
    assert plain.lines(tmp_path, script) == ["ok"]


def test_a_stopped_server_does_not_hold_up_a_stop() -> None:
    """As while it imports from a slow disk: nobody knows the ranks yet, and they are not waited for."""
    works("forkserver")
    pid = client.current().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        context = nbproc.MultiprocessContext("t", abs, {0: (-1,)}, {0: {}}, "forkserver", nbproc.DefaultLogsSpecs())
        threading.Timer(0.3, context.kill).start()
        context.start()
        result = context.wait()
        assert result is not None
        assert not result.failures
        assert context.snapshot().state is nbproc.RunState.STOPPED
    finally:
        os.kill(pid, signal.SIGCONT)
    works("forkserver")
    jobs.vanish([child.pid for child in psutil.Process(pid).children()])  # born too late, and nobody is there for them
    assert not [child for child in psutil.Process(pid).children() if alive(child.pid)]
