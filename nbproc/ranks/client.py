"""The launching side of the fork server: start it once per process, ask it for ranks.

All functions may be called from any thread. A process that was forked from one that had a server starts its own; a
rank uses the server that made it (`adopt`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from nbproc.errors import LaunchError
from nbproc.ranks import server, warden

PRELOAD = ("torch", "nbproc.ranks.worker")
_BOOT = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
if sys.argv[2] not in sys.path:
    sys.path.append(sys.argv[2])
from nbproc.ranks.server import main
main(int(sys.argv[1]), sys.argv[3:])
"""


@dataclass(frozen=True)
class Requested:
    """What a request for a rank leaves in the caller's hands: two descriptors, to be closed by the caller."""

    job: socket.socket
    status: int


class Server:
    """A fork server and this process's end of its control socket."""

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self._control = control
        self._process = process
        self.owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """The server's process id, None if another process started it."""
        return self._process.pid if self._process else None

    @property
    def usable(self) -> bool:
        """False if the server is seen to have ended, or belongs to the process this one was forked from."""
        if self.owner != os.getpid():
            return False
        if self._process is not None:
            return self._process.poll() is None
        try:
            self._control.setblocking(False)
            return self._control.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self._control.setblocking(True)

    def request(self) -> Requested:
        """Ask for one rank. Does not wait for it: its pid comes on the status pipe.

        Raises `OSError` when this process has no descriptors left or the server is gone; nothing is left then.
        """
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                status_read, status_write = os.pipe()
                undo.callback(os.close, status_read)
                try:
                    descriptors = [theirs.fileno(), status_write, self._control.fileno()]
                    socket.send_fds(self._control, [server.REQUEST], descriptors, socket.MSG_NOSIGNAL)
                finally:
                    os.close(status_write)
            undo.pop_all()
        return Requested(ours, status_read)

    def close(self, timeout: float = 1.0) -> None:
        """Let go of the server; wait a moment for its end if this process started it."""
        self._control.close()
        if self._process is not None and self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
                warden.current().gone(self._process.pid)


_lock = threading.Lock()
_server: Server | None = None


def current() -> Server:
    """Return this process's server, starting one if there is none (returns before it has imported anything).

    Raises `LaunchError` if it cannot be started.
    """
    global _server
    with _lock:
        if _server is None or not _server.usable:
            if _server is not None and _server.owner == os.getpid():
                _server.close(timeout=0)
            _server = _start()
        return _server


def adopt(control_fd: int) -> None:
    """In a rank: use the server that forked it."""
    global _server, _lock
    _lock = threading.Lock()
    _server = Server(socket.socket(fileno=control_fd), None)


def _start() -> Server:
    ours, theirs = socket.socketpair()
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _BOOT, str(theirs.fileno()), root, *PRELOAD]
    environment = {name: value for name, value in os.environ.items() if name != warden.MARK_VARIABLE}
    with theirs:
        try:
            process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
                cwd="/",
            )
        except OSError as error:
            ours.close()
            raise LaunchError(f"the fork server could not be started ({sys.executable}): {error}") from error
    warden.current().server(process.pid)
    started = Server(ours, process)
    atexit.register(_at_exit, started)
    return started


def _at_exit(started: Server) -> None:
    if started.owner == os.getpid():
        started.close()


def forget_lock() -> None:
    """In a copy of this process made by fork: another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
