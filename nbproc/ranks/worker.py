"""What runs inside a rank that calls a function: wait for the job, take it on, run it, report its end.

A rank is forked from the server, exec'ed (start method "spawn") or forked from the caller ("fork"); from `run` on it
is all the same. A rank reports exactly one end: its value, its exception, or, by its exit code, neither.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import locale
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbproc.failures import error_data, exit_status, write_error
from nbproc.ranks import identity, parcel, payload, platform, results, streams, threads, wire
from nbproc.ranks.job import Job
from nbproc.ranks.wire import Kind

SAMPLE_SIGNAL: int | None = getattr(signal, "SIGRTMAX", None) and int(signal.SIGRTMAX) - 3
"""Makes a rank write where it is into its stack file, whatever it is doing; None where there is no free signal."""

ENTRYPOINT = "the entrypoint"
ARGUMENTS = "the arguments"

Inherited = tuple[Callable[..., object], tuple[object, ...]]


def run(
    sock: socket.socket,
    *,
    troubles: Sequence[str] = (),
    inherited: Inherited | None = None,
    cells: Mapping[str, int] | None = None,
) -> int:
    """Be a rank: from waiting for the job to the exit code. Returns once everything that a process does at its end
    is done. ``inherited`` is the function with its arguments where they came by fork, ``cells`` the execution counts of
    the notebook's cells by their file names.
    """
    signal.set_wakeup_fd(-1)  # a copy of the caller must not tell the caller's event loop of its own signals
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if inherited is not None:
        atexit._clear()  # private, and documented by its use in multiprocessing: the caller's hooks are not ours to run
        identity.inherit()
    with sock:
        try:
            kind, body, fds = wire.receive(sock)
        except OSError:
            return 0  # never used: the launch was given up, or its process is gone
        if kind is not Kind.JOB:
            return 0
        job: Job = pickle.loads(body)
        rank = _Rank(sock, job, cells or {})
        code = rank.work(fds, troubles, inherited)
        return rank.finish(code)


def spawned(job_fd: int) -> None:
    """Be a rank in a fresh interpreter. Does not return."""
    code = 1
    try:
        code = run(wire.at(job_fd))
    finally:
        os._exit(code)


class _Rank:
    def __init__(self, sock: socket.socket, job: Job, cells: Mapping[str, int]) -> None:
        self._sock = sock
        self._job = job
        self._cells = cells

    def work(self, fds: list[int], troubles: Sequence[str], inherited: Inherited | None) -> int:
        """Take on the job, run it and report. Returns the exit code."""
        try:
            return self._attempt(fds, troubles, inherited)
        except KeyboardInterrupt as error:  # it landed between the end of user code and the handlers around it
            _interruptible(False)
            return self._raised(error, Kind.INTERRUPTED)

    def _attempt(self, fds: list[int], troubles: Sequence[str], inherited: Inherited | None) -> int:
        try:
            for trouble in [*troubles, *take_on(self._job, fds, fresh=inherited is None)]:
                wire.send(self._sock, Kind.TROUBLE, trouble.encode())
            _interruptible(True)  # before anybody is told: a Stop that comes at once must not be lost
            wire.send(self._sock, Kind.READY)
            ending = _call_setup(self._job)
            function, args = inherited or self._unpack()
            try:
                value = function(*args)
            finally:
                if ending is not None:
                    ending()
            _interruptible(False)
            return self._returned(value)
        except SystemExit as error:
            _interruptible(False)
            code, text = exit_status(error)
            if code == 0:
                return self._returned(None)
            if text:
                with contextlib.suppress(Exception):
                    print(text, file=sys.stderr)  # noqa: T201 - what an interpreter does with the text of a SystemExit
            return self._raised(error, Kind.RAISED, code, show=False)
        except BaseException as error:
            _interruptible(False)
            return self._raised(error, Kind.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Kind.RAISED)

    def _unpack(self) -> Inherited:
        arrival = payload.receive(self._sock)
        self._cells = {name: source.cell for name, source in arrival.sources.items() if source.cell is not None}
        roots = arrival.load()
        return roots[ENTRYPOINT], roots[ARGUMENTS]

    def _returned(self, value: object) -> int:
        streams.flush()
        try:
            with results.pack_result(value) as packed:
                wire.send(self._sock, Kind.RETURNED)
                parcel.send(self._sock, packed.parcel)
            with contextlib.suppress(wire.Closed):
                wire.receive(self._sock)  # until all ranks have returned: rank 0 hosts the store
        except OSError:
            pass  # nobody waits for it any more
        return 0

    def _raised(self, error: BaseException, kind: Kind, code: int = 1, show: bool = True) -> int:
        words = str(code).encode()
        if not write_error(self._job.error_file, error, self._cells, self._job.rank):
            words += b"\n" + json.dumps(error_data(error, self._cells, self._job.rank)).encode()
        if show and kind is Kind.RAISED:
            _print_traceback(error)
        streams.flush()
        with contextlib.suppress(OSError):
            wire.send(self._sock, kind, words)
        return code

    def finish(self, code: int) -> int:
        """Do what an interpreter does at its end: join threads, run atexit hooks, flush. Changes no result."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for hook in (getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None)):
            # private, but what every interpreter runs at its end; one that goes is noticed by a test
            if hook is not None:
                try:
                    hook()
                except BaseException:
                    with contextlib.suppress(Exception):
                        traceback.print_exc()
        streams.flush()
        return code


def take_on(job: Job, fds: list[int], *, fresh: bool) -> list[str]:
    """Make the job's settings hold in this process and point its output where it belongs.

    ``fresh`` says that ``__main__`` is to be new, not the caller's. Returns sentences on what the system refused.
    """
    change_environment(job.environment)
    troubles = job.settings.apply()
    time.tzset()
    if job.settings.locale is not None:
        try:
            locale.setlocale(locale.LC_ALL, job.settings.locale)
        except locale.Error as error:
            troubles.append(f"the locale could not be set: {error}")
    streams.redirect(job.stdout, job.stderr, fds)
    platform.name_process(f"nbproc rank {job.rank}")
    process = multiprocessing.current_process()
    process.name = job.process_name
    process.daemon = job.daemon
    if fresh:
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
    importlib.invalidate_caches()
    tempfile.tempdir = None  # TMPDIR may have changed
    if job.sockets is not None:
        # Private: where multiprocessing puts its sockets, a new temporary directory otherwise. The launching side removes
        # this one, also when the rank was killed.
        getattr(process, "_config", {})["tempdir"] = job.sockets
    seed()
    threads.set_counts(job.environment, forked=not fresh)
    _share(job.settings.sharing_strategy)
    faulthandler.enable(file=2)
    if SAMPLE_SIGNAL is not None:
        signal.signal(SAMPLE_SIGNAL, signal.SIG_IGN)  # it comes also to a rank that cannot write its file
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            stack = os.open(job.stack_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            faulthandler.register(SAMPLE_SIGNAL, file=stack, all_threads=True)
    gc.enable()
    return troubles


def _interruptible(yes: bool) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler if yes else signal.SIG_IGN)


def _call_setup(job: Job) -> Callable[[], object] | None:
    if job.setup is None:
        return None
    path, given = job.setup
    module, _, name = path.partition(":")
    ending: Callable[[], object] | None = getattr(importlib.import_module(module), name)(
        directory=job.directory, **given
    )
    return ending


def change_environment(wanted: Mapping[str, str]) -> None:
    """Make this process's environment exactly that."""
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def seed() -> None:
    """Draw new seeds, as a new process does."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _share(strategy: str | None) -> None:
    """Use the caller's way to share tensors. Where that is torch's own default, torch need not be loaded for it."""
    default = "file_descriptor" if sys.platform == "linux" else "file_system"
    if strategy is not None and ("torch" in sys.modules or strategy != default):
        importlib.import_module("torch.multiprocessing").set_sharing_strategy(strategy)


def _print_traceback(error: BaseException) -> None:
    """Print it to stderr, as an interpreter would at its end, without the frames of this library above it."""
    inner = error.__traceback__
    while inner is not None and str(inner.tb_frame.f_globals.get("__name__", "")).startswith("nbproc."):
        inner = inner.tb_next
    with contextlib.suppress(Exception):
        traceback.print_exception(type(error), error, inner)
