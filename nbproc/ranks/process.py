"""The process of one rank as its launcher sees it, however it was made: by the fork server, by fork, by exec.

Each has a descriptor that becomes readable when there is news of its end, so that one wait serves all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nbproc.ranks import client, platform, reap, server, warden

_SPAWN = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
if sys.argv[2] not in sys.path:
    sys.path.append(sys.argv[2])
from nbproc.ranks.worker import spawned
spawned(int(sys.argv[1]))
"""


class Lost(Exception):
    """How the process ended cannot be known any more."""


class RankProcess(ABC):
    """A process that was asked for. Not thread-safe: one thread owns it."""

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

    def __init__(self) -> None:
        requested = client.current().request()
        self.job = requested.job
        self._status = requested.status
        self._words = b""
        os.set_blocking(self._status, False)

    def fileno(self) -> int:
        return self._status

    def news(self) -> int | None:
        try:
            piece = os.read(self._status, 2 * server.WORD.size)
        except BlockingIOError:
            return None
        self._words += piece
        if self.identity is None and len(self._words) >= server.WORD.size:
            pid = server.WORD.unpack_from(self._words)[0]
            self.identity = reap.Process(pid, reap.start_time(pid))
        if len(self._words) == 2 * server.WORD.size:
            return os.waitstatus_to_exitcode(server.WORD.unpack_from(self._words, server.WORD.size)[0])
        if not piece:
            raise Lost("the fork server has ended" if self._words else "the fork server did not start it")
        return None

    def close(self) -> None:
        _close(self._status)
        self._status = -1
        if self.job is not None:
            self.job.close()


class Child(RankProcess):
    """A child of this process. ``reap`` polls it: the exit code, or None while it runs."""

    def __init__(self, pid: int, poll: Callable[[], int | None], wait: Callable[[], object]) -> None:
        self.identity = reap.Process(pid, reap.start_time(pid))
        self._poll = poll
        self._fd = -1
        pidfd = None
        with contextlib.suppress(ProcessLookupError):
            pidfd = platform.pidfd_open(pid)
        if pidfd is not None:
            self._fd = pidfd
        else:
            self._fd, write = os.pipe()
            threading.Thread(target=_announce, args=(wait, write), name=f"nbproc-wait-{pid}", daemon=True).start()

    def fileno(self) -> int:
        return self._fd

    def news(self) -> int | None:
        return self._poll()

    def close(self) -> None:
        _close(self._fd)
        self._fd = -1
        if self.job is not None:
            self.job.close()


def spawned(environment: Mapping[str, str]) -> RankProcess:
    """Start a rank as a fresh interpreter (start method "spawn"), with its own environment from the first moment."""
    ours, theirs = socket.socketpair()
    with theirs:
        root = str(Path(__file__).parents[2])
        warnings = [f"-W{option}" for option in sys.warnoptions]
        try:
            process = subprocess.Popen(
                [sys.executable, *warnings, "-c", _SPAWN, str(theirs.fileno()), root],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return _child_of(process, ours)


def forked(run: Callable[[socket.socket], int], close: Sequence[int]) -> RankProcess:
    """Start a rank as a copy of this process (start method "fork"); the copy calls ``run`` and exits with its code.

    ``close`` are descriptors that the copy must not keep.
    """
    ours, theirs = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        code = 1
        try:
            ours.close()
            for fd in close:
                with contextlib.suppress(OSError):
                    os.close(fd)
            os.setsid()
            warden.forget_lock()
            client.forget_lock()
            code = run(theirs)
        finally:
            os._exit(code)
    theirs.close()
    waiter = _Waiter(pid)
    rank = Child(pid, waiter.poll, waiter.wait)
    rank.job = ours
    return rank


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
    return _child_of(process, None)


def _child_of(process: subprocess.Popen[bytes], job: socket.socket | None) -> RankProcess:
    rank = Child(process.pid, process.poll, process.wait)
    rank.job = job
    return rank


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
