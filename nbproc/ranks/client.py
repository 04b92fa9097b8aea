"""The launching side of the fork server: start it when it is needed, ask it for ranks.

All functions may be called from any thread. A rank uses the server that made it (`adopt`); any other process that was
forked goes on with its parent's.

A server was started with the environment of that moment. Most variables can be set in a rank afterwards; some are read
when a program or a library is loaded. A rank that needs these to be different gets a server of its own kind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nbproc.errors import LaunchError
from nbproc.ranks import platform, warden, wire

PRELOAD = ("torch", "threadpoolctl", "nbproc.ranks.worker", "nbproc.ranks.client")
_more: list[str] = []
MOST_SERVERS = 3
"""Kinds of servers that are kept; the one that was not used for longest goes."""
_PROGRAM = Path(__file__).with_name("server_main.py")
_ROOT = str(Path(__file__).parents[2])

_LOADED: tuple[str, ...] = (
    *("LD_", "DYLD_", "GLIBC_", "MALLOC_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH", "ATEN_", "NPY_", "NUMPY_"),
)
"""Beginnings of the names of variables that are read when a program or a library is loaded."""
_LOADED_NAMES = frozenset({"PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONOPTIMIZE"})
_LATER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_MP_")
_LATER_NAMES = frozenset(
    {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"}
    | {"TORCH_CUDA_ARCH_LIST", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
)
"""Exceptions: these are read later, or a rank sees to them itself, or a library sets them when it is imported."""

Kind = frozenset[tuple[str, str]]


def kind_of(environment: Mapping[str, str]) -> Kind:
    """Return the variables that a server must have been started with to serve a rank with this environment."""
    return frozenset(
        (name, environment[name])
        for name in environment
        if (name.startswith(_LOADED) and name not in _LATER_NAMES and not name.startswith(_LATER))
        or name in _LOADED_NAMES
    )


@dataclass(frozen=True)
class Requested:
    """What a request for a rank leaves in the caller's hands: two descriptors, to be closed by the caller.

    ``said`` is what the server had said before of its troubles.
    """

    job: socket.socket
    status: int
    said: int


class Server:
    """A fork server and this process's end of its control socket."""

    def __init__(
        self, control: socket.socket, process: subprocess.Popen[bytes] | None = None, errors: IO[bytes] | None = None
    ) -> None:
        self._control = control
        self._process = process
        self._errors = errors
        self._starter = os.getpid()

    @property
    def pid(self) -> int | None:
        """The server's process id, None if another process started it."""
        return self._process.pid if self._process else None

    @property
    def usable(self) -> bool:
        """False if the server is seen to have ended."""
        if self._process is not None and self._starter == os.getpid() and self._process.poll() is not None:
            return False
        try:  # its end of the socket is closed a moment before the process can be waited for
            # without touching the socket's mode: it is shared with the processes that use this server too
            return self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def request(self, word: bytes = wire.REQUEST) -> Requested:
        """Ask for one rank. Does not wait for it: its pid comes on the status pipe.

        With ``word=wire.LATER`` the server sees to itself first: such a rank has more in it, and costs less.

        Raises `OSError` when this process has no descriptors left or the server is gone; nothing is left then.
        """
        said = self.said()
        with contextlib.ExitStack() as undo:
            ours, theirs = wire.pair()
            undo.callback(ours.close)
            with theirs:
                status_read, status_write = os.pipe()
                undo.callback(os.close, status_read)
                try:
                    self._send(word, [theirs.fileno(), status_write, self._control.fileno()])
                finally:
                    os.close(status_write)
            undo.pop_all()
        return Requested(ours, status_read, said)

    def _send(self, word: bytes, descriptors: list[int]) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.send_fds(self._control, [word], descriptors, socket.MSG_NOSIGNAL)
                return
            except OSError as error:
                # the system counts the descriptors that a server, still busy importing, has not taken yet
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def said(self) -> int:
        """Return how many bytes the server has written of its troubles."""
        return 0 if self._errors is None or self._errors.closed else os.fstat(self._errors.fileno()).st_size

    def last_words(self, since: int = 0) -> str:
        """Return the last lines that the server wrote of its troubles, "" for none; ``since`` is what it `said` then."""
        size = self.said()
        if self._errors is None or size <= since:
            return ""
        start = max(since, size - 2000)
        text = os.pread(self._errors.fileno(), size - start, start).decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-4:])

    def let_go(self) -> None:
        """Ask nothing of it any more: it ends when nobody else uses it and its ranks have ended."""
        self._control.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def ended(self, timeout: float = 0.0) -> bool:
        """Return whether it has ended, once it was let go of; wait a moment for it."""
        if self._process is not None and self._starter == os.getpid():
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                return False
            warden.current().gone(self._process.pid)
        return True


class _Servers:
    """The servers of this process, the last used one at the end, and those that were let go of and still run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_kind: dict[Kind, Server] = {}
        self.adopted: dict[Kind, int] = {}
        self.leaving: list[Server] = []
        self.hooked = False

    def use(self, environment: Mapping[str, str]) -> Server:
        kind = kind_of(environment)
        with self.lock:
            self._hook()
            self.take_up()
            self.leaving = [one for one in self.leaving if not one.ended()]
            found = self.by_kind.pop(kind, None)
            if found is not None and not found.usable:
                self._drop(found)
                found = None
            if found is None:
                found = _start({**_without_kind(os.environ), **dict(kind)})
            self.by_kind[kind] = found
            while len(self.by_kind) > MOST_SERVERS:
                self._drop(self.by_kind.pop(next(iter(self.by_kind))))
            return found

    def take_up(self) -> None:
        """Make a `Server` of what was adopted: few ranks launch anything."""
        while self.adopted:
            kind, control_fd = self.adopted.popitem()
            with contextlib.suppress(OSError):  # the user's code has closed it
                self.by_kind[kind] = Server(wire.at(control_fd))

    def _drop(self, one: Server) -> None:
        one.let_go()
        if not one.ended():
            self.leaving.append(one)

    def _hook(self) -> None:
        if not self.hooked:
            self.hooked = True
            os.register_at_fork(after_in_child=_forked)
            warden.before_the_end(close)


_servers = _Servers()


def preload(*modules: str) -> None:
    """Have servers that are started from now on import these modules ahead, too.

    What begins with "+" is imported when the server has nothing else to do.
    """
    _more.extend(module for module in modules if module not in _more)


def current(environment: Mapping[str, str] | None = None) -> Server:
    """Return the server for ranks with this environment (default: the caller's), starting one if there is none.

    Returns before a new one has imported anything. Raises `LaunchError` if it cannot be started.
    """
    return _servers.use(os.environ if environment is None else environment)


def request(environment: Mapping[str, str] | None = None) -> tuple[Server, Requested]:
    """Ask the right server for a rank; one that ended at this very moment is replaced once. Raises as `current` and
    `Server.request` do.
    """
    try:
        asked = current(environment)
        return asked, asked.request()
    except ConnectionError:
        asked = current(environment)
        return asked, asked.request()


def adopt(control_fd: int, kind: Kind) -> None:
    """In a rank: use the server that forked it, which is of this kind."""
    _servers.adopted[kind] = control_fd


def close(timeout: float = 1.0) -> None:
    """Let go of all servers and wait a moment for their end."""
    with _servers.lock:
        _servers.take_up()
        leaving = [*_servers.leaving, *_servers.by_kind.values()]
        for one in _servers.by_kind.values():
            one.let_go()
        _servers.by_kind.clear()
        deadline = time.monotonic() + timeout
        _servers.leaving = [one for one in leaving if not one.ended(max(0.0, deadline - time.monotonic()))]


def _forked() -> None:
    """In a copy of this process made by fork: go on with the servers, without a lock that another thread had."""
    _servers.lock = threading.Lock()


def _without_kind(environment: Mapping[str, str]) -> dict[str, str]:
    kept = dict(environment)
    for name, _ in kind_of(environment):
        del kept[name]
    kept.pop(warden.MARK_VARIABLE, None)
    return kept


def _start(environment: Mapping[str, str]) -> Server:
    ours, theirs = wire.pair()
    with contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        with theirs:
            try:
                errors = os.fdopen(platform.memfd("server-errors"), "rb")
                undo.callback(errors.close)
                process = subprocess.Popen(
                    [*interpreter(), str(_PROGRAM), str(theirs.fileno()), _ROOT, *PRELOAD, *_more],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                    env=dict(environment),
                    cwd="/",
                )
            except OSError as error:
                raise LaunchError(f"the fork server could not be started ({sys.executable}): {error}") from error
        undo.pop_all()
    warden.current().server(process.pid)
    return Server(ours, process, errors)


def interpreter() -> list[str]:
    """Return the command of this interpreter, with the options it was started with itself."""
    # Private, and what multiprocessing gives to its own children; without it only -W is known.
    options = getattr(subprocess, "_args_from_interpreter_flags", None)
    return [sys.executable, *(options() if options is not None else (f"-W{one}" for one in sys.warnoptions))]
