"""The launching side of the guardian: start it once per process, tell it what to end when this process is gone.

Telling never blocks a launch for long and never fails it: a guardian that cannot be started or was killed is told of
in `trouble` and started again, with all it has to know, the next time somebody asks for `current`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from nbproc.ranks import platform, reap

MARK_VARIABLE = "NBPROC_RUN"
_PROGRAM = Path(__file__).with_name("guardian.py")


class Warden:
    """One guardian process and what it was told, so that a new one can be told again."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.trouble = ""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._facts: dict[str, str] = {}

    @property
    def pid(self) -> int | None:
        """The guardian's process id, None if it is not running."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def server(self, pid: int) -> None:
        """Its children, and itself, end with this process."""
        self._tell(f"pid {pid}", f"server {pid} {reap.start_time(pid)}")

    def rank(self, pid: int) -> None:
        """The session that this process leads ends with this process."""
        self._tell(f"pid {pid}", f"rank {pid} {reap.start_time(pid)}")

    def gone(self, pid: int) -> None:
        """It has ended and nothing of its session is left."""
        self._forget(f"pid {pid}", f"gone {pid}")

    def mark(self, text: str) -> None:
        """Processes whose environment says NBPROC_RUN=text end with this process."""
        self._tell(f"mark {text}", f"mark {text}")

    def unmark(self, text: str) -> None:
        """Nothing with this mark is left."""
        self._forget(f"mark {text}", f"unmark {text}")

    def ensure(self) -> None:
        """Start the guardian if it does not run, and tell it everything. Sets ``trouble`` if that fails."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()

    def close(self, timeout: float = 1.0) -> None:
        """Let the guardian go if it has nothing left to watch."""
        with self._lock:
            if self._process is None or self._facts:
                return
            self._write("bye")
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            self._process = None

    def _tell(self, key: str, line: str) -> None:
        with self._lock:
            self._facts[key] = line
            if self._process is None or self._process.poll() is not None:
                self._start()
            else:
                self._write(line)

    def _forget(self, key: str, line: str) -> None:
        with self._lock:
            if self._facts.pop(key, None) is not None:
                self._write(line)

    def _start(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.ExitStack() as stack:
            pidfd = platform.pidfd_open(self.owner)
            if pidfd is not None:
                stack.callback(os.close, pidfd)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_PROGRAM), str(self.owner), str(-1 if pidfd is None else pidfd)],
                    pass_fds=() if pidfd is None else (pidfd,),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    start_new_session=True,
                    cwd="/",
                    env={name: value for name, value in os.environ.items() if name != MARK_VARIABLE},
                )
            except OSError as error:
                self._process = None
                self.trouble = (
                    f"the guardian could not be started ({error}): if this process is killed, ranks may be left running"
                )
                return
        self.trouble = ""
        atexit.register(_at_exit, self)
        for line in self._facts.values():
            self._write(line)

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")


_lock = threading.Lock()
_warden: Warden | None = None


def current() -> Warden:
    """Return this process's warden; a process that was forked gets a new one."""
    global _warden
    with _lock:
        if _warden is None or _warden.owner != os.getpid():
            _warden = Warden()
        return _warden


def _at_exit(warden: Warden) -> None:
    if warden.owner == os.getpid():
        warden.close()


def forget_lock() -> None:
    """In a copy of this process made by fork: another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
