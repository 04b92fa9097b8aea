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
from collections.abc import Callable
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
        self._behind = False

    @property
    def pid(self) -> int | None:
        """The guardian's process id, None if it is not running."""
        with self._lock:  # of two that poll at once, one is told that it runs
            return self._process.pid if self._process and self._process.poll() is None else None

    def watch(self) -> int | None:
        """Return a new descriptor that becomes readable when the guardian ends, None where there is no such thing."""
        pid = self.pid
        with contextlib.suppress(ProcessLookupError):
            return None if pid is None else platform.pidfd_open(pid)
        return None

    def server(self, pid: int) -> None:
        """Its children, and itself, end with this process."""
        self._tell(f"pid {pid}", f"server {pid} {reap.start_time(pid)}")

    def rank(self, pid: int, start: int | None = None) -> None:
        """The session that this process leads ends with this process. ``start`` is its start time, if it is known."""
        self._tell(f"pid {pid}", f"rank {pid} {reap.start_time(pid) if start is None else start}")

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
        if self.pid is not None:
            return
        if threading.current_thread() is not threading.main_thread():
            self._ensure()
            return
        # An Interrupt lands in the main thread. There it would leave a guardian that nobody knows of.
        thread = threading.Thread(target=self._ensure, name="nbproc-guardian-start", daemon=True)
        thread.start()
        thread.join()

    def _ensure(self) -> None:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()

    def close(self, timeout: float = 1.0) -> None:
        """Let the guardian go if it has nothing left to watch."""
        with self._lock:
            if self._process is None or self._facts:
                return
            self._write("bye")
            self._hang_up()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            self._process = None

    def _tell(self, key: str, line: str) -> None:
        with self._lock:
            self._facts[key] = line
            if self._process is None or self._process.poll() is not None:
                self._start()
            else:
                lines = list(self._facts.values()) if self._behind else [line]
                self._behind = False
                for one in lines:
                    self._write(one)

    def _forget(self, key: str, line: str) -> None:
        with self._lock:
            if self._facts.pop(key, None) is not None:
                self._write(line)

    def _start(self) -> None:
        self._hang_up()
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
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.trouble = ""
        self._behind = False
        for line in self._facts.values():
            self._write(line)

    def _hang_up(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _write(self, line: str) -> None:
        """Write a line without blocking; a guardian that does not listen is told again when it does."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                # None: its pipe is full. A line is shorter than PIPE_BUF, so it is taken whole or not at all.
                self._behind = self._process.stdin.write(line.encode() + b"\n") is None or self._behind


_lock = threading.Lock()
_warden: Warden | None = None
_inherited: list[Warden] = []
_hooked = False
_closers: list[Callable[[], object]] = []


def current() -> Warden:
    """Return this process's warden; a process that was forked gets a new one."""
    global _warden, _hooked
    with _lock:
        if not _hooked:
            _hooked = True
            os.register_at_fork(after_in_child=_forked)
        if _warden is None or _warden.owner != os.getpid():
            if _warden is not None:
                _inherited.append(_warden)  # its guardian is no child of this process: not to be waited for
            _warden = Warden()
            atexit.register(_at_exit, _warden)
        return _warden


def before_the_end(closer: Callable[[], object]) -> None:
    """Call this at the end of the process, after runs were waited for and before the guardian is let go of.

    What was given last is called first.
    """
    if closer not in _closers:
        _closers.append(closer)


def _at_exit(warden: Warden) -> None:
    if warden.owner == os.getpid():
        for closer in reversed(_closers):
            closer()
        warden.close()


def _forked() -> None:
    """In a copy of this process made by fork: another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
