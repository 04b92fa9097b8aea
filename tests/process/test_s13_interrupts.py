"""An Interrupt, at any moment of a launch or of a run, leaves nothing running and is told to the caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nbproc
import victims
from nbproc import RunState, Std, start_processes
from nbproc.contexts import base, multiprocess, reader
from nbproc.ranks import payload, warden

METHODS = ("forkserver", "spawn", "fork")

STEPS: dict[str, tuple[Any, str, bool]] = {
    # where an Interrupt lands: before the step, or after it where the step itself keeps what it made
    "before the port is held": (base, "_hold_port", False),
    "before the directories are made": (base, "lay_out", False),
    "after the directories were made": (base, "lay_out", True),
    "before the reader is made": (base, "Reader", False),
    "before it is packed": (multiprocess.Functions, "_pack", False),
    "while it is packed": (payload.Packer, "pack_each", False),
    "before it is written": (payload, "store", False),
    "before the guardian is told": (warden.Warden, "mark", False),
    "after the guardian was told": (warden.Warden, "mark", True),
    "before the reader starts": (reader.Reader, "start", False),
    "after the reader has started": (reader.Reader, "start", True),
    "before there is a supervisor": (base, "Supervisor", False),
    "before the supervisor starts": (base.Supervisor, "start", False),
    "after the supervisor has started": (base.Supervisor, "start", True),
    "before the answers": (nbproc.PContext, "_await", False),
    "after the answers": (nbproc.PContext, "_await", True),
}
NOT_FORKED = (payload, payload.Packer, multiprocess.Functions)
"""Nothing is packed for ranks that are forked."""


@pytest.mark.parametrize(
    ("step", "method"),
    [(step, method) for step in STEPS for method in METHODS if method != "fork" or STEPS[step][0] not in NOT_FORKED],
)
def test_an_interrupt_between_two_steps_of_a_launch(step: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, after = STEPS[step]
    original, hits = getattr(owner, name), []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if hits:
            return original(*args, **kwargs)
        hits.append(step)
        if after:
            original(*args, **kwargs)
        raise KeyboardInterrupt

    start_processes("warm", victims.rank, nprocs=1, start_method=method).result()
    specs = nbproc.DefaultLogsSpecs(None, tee=Std.OUT)
    context = nbproc.MultiprocessContext("n", victims.hang, {0: (), 1: ()}, {0: {}, 1: {}}, method, specs)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            context.start()
    assert hits == [step]
    assert not any(victims.alive(pid) for pid in context.pids().values())
    assert context.snapshot().state in (RunState.CREATED, RunState.STOPPED)
    assert start_processes("next", victims.rank, nprocs=2, start_method=method).result().return_values == {0: 0, 1: 1}


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_during_wait_lets_finally_run(method: str, tmp_path: Path) -> None:
    context = start_processes("n", victims.checkpoint, (str(tmp_path),), nprocs=2, start_method=method)
    interrupt_when(lambda: len(list(tmp_path.glob("begun*"))) == 2)
    with pytest.raises(KeyboardInterrupt):
        context.wait()
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]
    snapshot = context.snapshot()
    assert snapshot.state is RunState.STOPPED
    assert snapshot.first_failed is None
    assert not any(victims.alive(rank.pid) for rank in snapshot.ranks if rank.pid)
    assert all("checkpoint, victims.py line" in rank.words for rank in snapshot.ranks)


def test_a_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    context = start_processes("n", victims.ignore_all, nprocs=2, log_dir=tmp_path, redirects=Std.OUT, grace=600)
    for rank in range(2):
        victims.first_line(tmp_path / str(rank) / "stdout.log")
    began = time.monotonic()
    interrupt_when(lambda: True)
    interrupt_when(lambda: context.snapshot().state is RunState.STOPPING)
    with pytest.raises(KeyboardInterrupt):
        context.wait()
    assert time.monotonic() - began < 60
    assert [rank.exitcode for rank in context.snapshot().ranks] == [-signal.SIGKILL] * 2


def test_an_interrupt_of_the_first_launch_does_not_wait_for_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import nbproc, os, signal, sys, time\n"
        "ctx = nbproc.MultiprocessContext('n', time.sleep, {0: (600,)}, {0: {}}, 'forkserver', nbproc.DefaultLogsSpecs())\n"
        "try:\n"
        "    ctx.start(begun=lambda ctx: signal.raise_signal(signal.SIGINT))\n"
        "except KeyboardInterrupt:\n"
        "    print(ctx.snapshot().state.value, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("stopped False\n", "")


def test_the_callers_signal_handlers_are_never_touched() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: seen.append(signum))
    try:
        context = start_processes("n", victims.after, (0.2, 1), nprocs=2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert context.result().return_values == {0: 1, 1: 1}
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_exception_in_the_callers_handler_stops_the_run_and_comes_through() -> None:
    def handler(signum: int, frame: object) -> None:
        raise nbproc.SignalException("told to end", signal.Signals(signum))

    before = signal.signal(signal.SIGTERM, handler)
    try:
        context = start_processes("n", victims.hang, nprocs=2)
        interrupt_when(lambda: True, signal.SIGTERM)
        with pytest.raises(nbproc.SignalException) as raised:
            context.wait()
        context.close(raised.value.sigval)  # type: ignore[arg-type]  # as torch's page shows it
        assert context.snapshot().state is RunState.STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt_when(ready: Callable[[], bool], signum: int = signal.SIGINT) -> None:
    """Send this process's main thread a signal as soon as ``ready()``, and the main thread waits in a lock."""
    main = threading.main_thread()

    def watch() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (ready() and _waits(main)):
            time.sleep(0.01)
        assert main.ident is not None
        signal.pthread_kill(main.ident, signum)

    threading.Thread(target=watch, name="interrupter").start()


def _waits(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return "wait_for" in names
