"""The fork server: a process of ours that imported what ranks need and forks each rank from there.

It runs as a program (`server_main`), in a session of its own (see `client`). A request is one byte on its control
socket with three descriptors: the rank's end of its job socket, the write end of a status pipe, and a client's end of
the control socket, so that a run inside a rank uses this server too.

    status pipe:  BORN (the rank's pid and start time), and when it has ended ENDED (its wait status), then closed

When nothing was asked of it for a moment the server sees to itself, once: it imports more, and sees to its memory.
No request ends the server; it ends when its last client has closed the control socket.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from nbproc.ranks import ahead, client, pages, platform, reap, wire
from nbproc.ranks.wire import AHEAD, BORN, DESCRIPTORS, ENDED, LATER, REQUEST

_QUIET = 4.0
"""Seconds without a request after which the server goes on with what it does for itself.

An import cannot be put aside when a request comes, so it does not begin while somebody is likely to launch.
"""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main(control_fd: int, preload: list[str]) -> NoReturn:
    """Import the modules named, then fork ranks on request until all clients are gone. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    platform.name_process("nbproc server")
    gc.disable()  # importing is faster without, by an eighth; a rank has it on
    control = wire.at(control_fd)
    kind = client.kind_of(os.environ)  # before libraries add to the environment
    later = [name[1:] for name in preload if name.startswith("+")]
    troubles = _preload([name for name in preload if not name.startswith("+")])
    ahead.freeze()
    _Server(control, kind, troubles, later).serve()
    os._exit(0)  # an orderly end of an interpreter with torch in it takes a tenth of a second, for nothing


def _preload(modules: list[str]) -> list[str]:
    """Import ahead with one thread only: a process that forks must not have threads."""
    saved = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    troubles = []
    for name in modules:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                troubles.append(f"importing {name} ahead of the ranks failed: {error!r}")
        except BaseException as error:
            troubles.append(f"importing {name} ahead of the ranks failed: {error!r}")
    for name, value in saved.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return troubles


class _Server:
    def __init__(self, control: socket.socket, kind: client.Kind, troubles: list[str], later: list[str]) -> None:
        self._control = control
        self._kind = kind
        self._troubles = troubles
        self._ranks: dict[int, int] = {}
        self._selector = selectors.PollSelector()  # it has no descriptor that a rank would have to close
        self._wake_read, self._wake_write = os.pipe()
        self._chores: Iterator[None] | None = self._see_to_itself(later)
        self._chores_at = time.monotonic() + _QUIET
        self._later: list[list[int]] = []

    def serve(self) -> None:
        """Fork on request, report each exit; return when no client is left and no rank either."""
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, _note)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        listening = True
        while listening or self._ranks:
            events = self._selector.select(self._until_chores())
            for key, _ in events:
                if key.fileobj == self._wake_read:
                    self._drain()
                    self._reap()
                elif not self._answer():
                    self._selector.unregister(self._control)
                    listening = False
                    self._chores = None
                    self._give_up()
            if not events:
                self._do_a_chore()

    def _until_chores(self) -> float | None:
        return None if self._chores is None else max(0.0, self._chores_at - time.monotonic())

    def _do_a_chore(self) -> None:
        if self._chores is not None and next(self._chores, self) is self:
            self._chores = None
            while self._later:
                self._fork(*self._later.pop(0), waits=True)  # a rank closes what is left in the list

    def _see_to_itself(self, later: list[str]) -> Iterator[None]:
        for name in later:
            self._troubles += _preload([name])
            yield
        ahead.clean()
        yield
        yield from pages.enlarge()

    def _give_up(self) -> None:
        while self._later:
            for fd in self._later.pop():
                os.close(fd)

    def _answer(self) -> bool:
        """Take one request. False at the end of the control socket."""
        try:
            data, fds = wire.receive_with_descriptors(self._control, 1, DESCRIPTORS + 1)
        except ConnectionError:
            return False
        except OSError as error:
            # out of memory for this one: its client sees its pipe close
            _say(f"a request could not be received: {error}")
            return True
        if not data and not fds:
            return False
        if data == LATER and len(fds) == DESCRIPTORS and self._chores is not None:
            self._later.append(fds)
        elif data in (REQUEST, AHEAD, LATER) and len(fds) == DESCRIPTORS:
            self._chores_at = time.monotonic() + _QUIET
            self._fork(*fds, waits=data != REQUEST)
        else:
            _say(f"this is no request: {data!r} with {len(fds)} descriptors (a limit on open files cuts them off)")
            for fd in fds:
                os.close(fd)
        return True

    def _fork(self, job_fd: int, status_fd: int, client_fd: int, *, waits: bool = False) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            # the status pipe closes without a pid; the reason goes to the client on the job socket
            refuse(job_fd, f"fork failed: {error}")
            for fd in (job_fd, status_fd, client_fd):
                os.close(fd)
            return
        if pid == 0:
            self._become_rank(job_fd, status_fd, client_fd, waits=waits)
        os.close(job_fd)
        os.close(client_fd)
        self._ranks[pid] = status_fd
        # here nobody else can have got its number yet: it is reaped by this thread only
        _tell(status_fd, BORN.pack(pid, reap.start_time(pid)))

    def _become_rank(self, job_fd: int, status_fd: int, client_fd: int, *, waits: bool) -> NoReturn:
        """In the child: let go of everything that is the server's and become a rank."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._control.detach(), self._wake_read, self._wake_write, status_fd, *self._ranks.values()):
                os.close(fd)
            self._chores = None
            self._give_up()
            os.setsid()
            from nbproc.ranks import worker

            client.adopt(client_fd, self._kind)
            sock = wire.at(job_fd)
            if waits:
                platform.name_process("nbproc standby")
                ahead.rehearse(sock)
            code = worker.run(sock, troubles=self._troubles)
        except BaseException as error:
            _say(f"a rank failed outside of its job: {error!r}")
        finally:
            os._exit(code)

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            status_fd = self._ranks.pop(pid, None)
            if status_fd is not None:
                _tell(status_fd, ENDED.pack(status))
                os.close(status_fd)


def refuse(job_fd: int, why: str) -> None:
    """Say on a rank's job socket, in the rank's place, why it does not exist."""
    try:
        with socket.socket(fileno=os.dup(job_fd)) as sock:
            sock.setblocking(False)
            wire.send(sock, wire.Kind.TROUBLE, why.encode())
    except OSError:
        pass


def _tell(status_fd: int, word: bytes) -> None:
    try:
        os.write(status_fd, word)
    except OSError:
        pass  # the client is gone; the guardian sees to the rank


def _say(text: str) -> None:
    """Leave a line for the client, which reads it when a rank is not born."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _note(signum: int, frame: object) -> None:
    """Wake the loop: the signal's number is written to the wake-up pipe."""
