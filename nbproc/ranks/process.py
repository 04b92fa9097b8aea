"""The process of one rank as its launcher sees it, however it was made: by the fork server, by fork, by exec.

Each has a descriptor that becomes readable when there is news of its end, so that one wait serves all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from nbproc.errors import LaunchError
from nbproc.ranks import client, platform, reap, streams, wire

_PROGRAM = Path(__file__).with_name("rank_main.py")
_ROOT = str(Path(__file__).parents[2])
_making = threading.Lock()
"""Held while a process is made: a copy made by fork must not get descriptors that are on their way to another."""
_known: weakref.WeakSet[RankProcess] = weakref.WeakSet()
_hooked = False


class Lost(Exception):
    """How the process ended cannot be known any more."""


class RankProcess(ABC):
    """A process that was asked for. Not thread-safe: one thread owns it.

    In a copy of this process made by fork it is closed.
    """

    job: socket.socket | None = None
    """Our end of the job socket; None for an executable."""
    identity: reap.Process | None = None
    """The process, once it is known."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `news` has something."""

    @abstractmethod
    def news(self) -> int | None:
        """Take in what is there. Returns the exit code once it is known (negative for a signal), else None.

        Raises `Lost` if it never will be.
        """

    @abstractmethod
    def close(self) -> None:
        """Close this side's descriptors. The process is not touched."""

    def signal(self, signum: int) -> bool:
        """Send a signal to exactly this process. Returns False if it is gone or not known yet."""
        return self.identity is not None and reap.send_signal(self.identity, signum)


class Forked(RankProcess):
    """A child of the fork server."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        server: client.Server | None = None,
        word: bytes = wire.REQUEST,
    ) -> None:
        """Ask ``server`` for one, or (default) the server that fits this environment or this process's own.

        With ``word=wire.LATER`` a server that is named makes it when it has seen to itself.

        Raises `LaunchError` if there can be no server, `OSError` if this process has no descriptors left.
        """
        with _making_one():
            self.server, requested = client.request(environment) if server is None else (server, server.request(word))
            self.job = requested.job
            self._said = requested.said
            self._status = requested.status
            self._words = b""
            os.set_blocking(self._status, False)
            _known.add(self)

    def fileno(self) -> int:
        """Return the status pipe."""
        return self._status

    def news(self) -> int | None:
        """Read what the fork server says."""
        born, ended = wire.BORN.size, wire.ENDED.size
        try:
            piece = os.read(self._status, born + ended)
        except BlockingIOError:
            return None
        self._words += piece
        if self.identity is None and len(self._words) >= born:
            self.identity = reap.Process(*wire.BORN.unpack_from(self._words))
        if len(self._words) == born + ended:
            return os.waitstatus_to_exitcode(wire.ENDED.unpack_from(self._words, born)[0])
        if not piece:
            why = "the fork server has ended" if self._words else "the fork server did not start it"
            said = self.server.last_words(self._said)
            raise Lost(f"{why}: {said}" if said else why)
        return None

    def close(self) -> None:
        """Close the status pipe and the job socket."""
        # The number is forgotten first: a process that is forked at this moment closes those that are known, and this
        # one may be another's by then.
        status, self._status = self._status, -1
        _close(status)
        if self.job is not None:
            self.job.close()


class Child(RankProcess):
    """A child of this process. ``poll`` gives the exit code, or None while it runs; ``wait`` waits for it."""

    def __init__(
        self, pid: int, poll: Callable[[], int | None], wait: Callable[[], object], job: socket.socket | None = None
    ) -> None:
        """Take over a child that was just started. If that fails it is killed."""
        self.identity = reap.Process(pid, reap.start_time(pid))
        self.job = job
        self._poll = poll
        self._fd = -1
        try:
            self._fd = self._watch(pid, wait)
        except BaseException:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            wait()
            with contextlib.suppress(Lost):
                poll()
            self.close()
            raise
        _known.add(self)

    def _watch(self, pid: int, wait: Callable[[], object]) -> int:
        pidfd = None
        with contextlib.suppress(ProcessLookupError):
            pidfd = platform.pidfd_open(pid)
        if pidfd is not None:
            return pidfd
        read, write = os.pipe()
        try:
            thread = threading.Thread(target=_announce, args=(wait, write), name=f"nbproc-wait-{pid}", daemon=True)
            thread.start()
        except BaseException:
            os.close(read)
            os.close(write)
            raise
        return read

    def fileno(self) -> int:
        """Return the process descriptor, or the pipe that stands in for it."""
        return self._fd

    def news(self) -> int | None:
        """Poll the child."""
        return self._poll()

    def close(self) -> None:
        """Close the descriptor and the job socket."""
        fd, self._fd = self._fd, -1  # as in `Forked.close`
        _close(fd)
        if self.job is not None:
            self.job.close()


def spawned(environment: Mapping[str, str]) -> RankProcess:
    """Start a rank as a fresh interpreter (start method "spawn"), with its own environment from the first moment."""
    with _making_one():
        ours, theirs = wire.pair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [*client.interpreter(), str(_PROGRAM), str(theirs.fileno()), _ROOT],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env=dict(environment),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        return Child(process.pid, process.poll, process.wait, ours)


def forked(run: Callable[[socket.socket], int]) -> RankProcess:
    """Start a rank as a copy of this process (start method "fork"); the copy calls ``run`` and exits with its code."""
    streams.flush()  # what this process has printed must not be written by its copies too
    # made here, so that it knows its parent
    process = multiprocessing.get_context("fork").Process(target=lambda: None)
    with _making_one():
        ours, theirs = wire.pair()
        outcome: list[int | OSError] = []

        def fork() -> None:
            try:
                pid = os.fork()
            except OSError as error:
                outcome.append(error)
                return
            if pid == 0:
                code = 1
                try:
                    ours.close()
                    os.setsid()
                    code = _as_multiprocessing_does(process, lambda: run(theirs))
                finally:
                    os._exit(code)
            outcome.append(pid)

        # The thread that forks is the copy's main thread, and threads that are started in it take after it.
        try:
            thread = threading.Thread(target=fork, name="MainThread", daemon=False)
            thread.start()
            thread.join()
            if isinstance(outcome[0], OSError):
                raise outcome[0]
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        waiter = _Waiter(outcome[0])
        return Child(outcome[0], waiter.poll, waiter.wait, ours)


def _as_multiprocessing_does(process: multiprocessing.process.BaseProcess, run: Callable[[], int]) -> int:
    """Run in a forked copy, with what multiprocessing keeps of the original's children and queues put right."""
    # Private: what multiprocessing calls in its own forked children. Its after-fork hooks (queues, locks) have no other
    # door. Where it is gone, queues that the original has used do not work in the copy.
    bootstrap = getattr(process, "_bootstrap", None)
    if bootstrap is None:
        return run()
    process.run = lambda: sys.exit(run())  # type: ignore[method-assign]
    return int(bootstrap())


def executed(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | None,
    stdin: int | None,
    stdout: int | None,
    stderr: int | None,
) -> RankProcess:
    """Start an executable as a rank, without a shell. Streams are descriptors, None for the caller's own."""
    process = subprocess.Popen(
        list(command),
        env=dict(environment),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    return Child(process.pid, process.poll, process.wait)


@contextlib.contextmanager
def _making_one() -> Iterator[None]:
    """Make one process at a time. Raises `LaunchError` in a daemonic process, as multiprocessing's does."""
    global _hooked
    if multiprocessing.current_process().daemon:
        raise LaunchError("daemonic processes are not allowed to have children; launch this process with daemon=False")
    with _making:
        if not _hooked:
            _hooked = True
            os.register_at_fork(after_in_child=_let_go)
        yield


def _let_go() -> None:
    """In a copy of this process made by fork: the ranks are the original's."""
    global _making
    _making = threading.Lock()
    for one in list(_known):
        with contextlib.suppress(OSError):
            one.close()


class _Waiter:
    """`waitpid` for a forked child, once; polled and waited for from different threads."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self._code is None:
                try:
                    pid, status = os.waitpid(self._pid, os.WNOHANG)
                except ChildProcessError:
                    raise Lost("somebody else waited for it") from None
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code

    def wait(self) -> None:
        with contextlib.suppress(ChildProcessError):
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)


def _announce(wait: Callable[[], object], write: int) -> None:
    try:
        wait()
    finally:
        os.close(write)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
