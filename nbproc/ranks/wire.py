"""Messages between the launching process and a rank, over the rank's job socket.

A message is one kind byte, eight bytes of length and a body. The launching side reads without blocking and puts
messages together from pieces (`Inbox`); a rank reads and writes blocking. When all ranks have returned, the launching
side closes its half of the socket: a rank that waits for that exits.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from collections.abc import Sequence

BORN = struct.Struct("=iQ")
"""On a status pipe: the process id and start time of a rank that was forked."""
ENDED = struct.Struct("=i")
"""On a status pipe, after that: the wait status of a rank that has ended."""
REQUEST = b"r"
"""On the control socket of a fork server, with ``DESCRIPTORS`` descriptors: a rank is wanted."""
AHEAD = b"a"
"""The same, for a rank that is to stand by: there is no job yet, so it gets ready for one."""
LATER = b"l"
"""The same, but it is to be made when the server has seen to itself."""
DESCRIPTORS = 3

_HEAD = struct.Struct("!BQ")
MAX_DESCRIPTORS = 250


class Kind(enum.IntEnum):
    """What a message says."""

    JOB = 1
    """To the rank: the `Job`, pickled. What `parcel.send` writes follows."""
    READY = 2
    """From the rank: its settings hold, its output is redirected; user code comes next."""
    RETURNED = 3
    """From the rank: the entrypoint returned. What `parcel.send` writes follows."""
    RAISED = 4
    """From the rank: the entrypoint raised. The body is its exit code, and after a newline what error.json would say, if
    that could not be written."""
    INTERRUPTED = 5
    """From the rank: a KeyboardInterrupt ended it; the body says where it was."""
    TROUBLE = 6
    """From the rank: a warning for the run's notes (a preload that failed, a setting that could not be applied)."""


class Closed(ConnectionError):
    """The other side is gone."""


class Garbled(ConnectionError):
    """What arrived is no message: somebody else wrote to the socket."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that block, whatever `socket.setdefaulttimeout` was told.

    With a default timeout the descriptors themselves are set not to block, also for the process they are sent to.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(True)
    theirs.setblocking(True)
    return ours, theirs


def at(fd: int) -> socket.socket:
    """Return the socket of a descriptor that came from another process: it blocks, and is closed by exec."""
    os.set_inheritable(fd, False)
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    return sock


def send(sock: socket.socket, kind: Kind, body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send one message, descriptors with it; block until the system took it.

    Raises `OSError` if the other side is gone. At most `MAX_DESCRIPTORS` can go with one message.
    """
    head = _HEAD.pack(kind, len(body))
    if fds:
        socket.send_fds(sock, [head], fds)
        sock.sendall(body)
    elif len(body) < 1 << 16:
        sock.sendall(head + body)
    else:
        sock.sendall(head)
        sock.sendall(body)


def receive_with_descriptors(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive at most ``size`` bytes and ``most`` descriptors, blocking; the descriptors are closed by exec.

    `socket.recv_fds` leaves its flags out before Python 3.12, so each descriptor is set afterwards as well.
    """
    data, fds, _, _ = socket.recv_fds(sock, size, most, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def receive(sock: socket.socket) -> tuple[Kind, bytes, list[int]]:
    """Receive one message with its descriptors, blocking. Raises `Closed` at the end of the stream."""
    head, fds = receive_with_descriptors(sock, _HEAD.size, MAX_DESCRIPTORS)
    if not head:
        raise Closed("the other side closed the connection")
    kind, length = _unpack(head + _exactly(sock, _HEAD.size - len(head)))
    return kind, _exactly(sock, length), fds


def _unpack(head: bytes) -> tuple[Kind, int]:
    number, length = _HEAD.unpack(head)
    try:
        return Kind(number), length
    except ValueError:
        raise Garbled(f"this is no message: {head!r}") from None


def _exactly(sock: socket.socket, n: int) -> bytes:
    parts = bytearray()
    while len(parts) < n:
        piece = sock.recv(min(n - len(parts), 1 << 20))
        if not piece:
            raise Closed("the other side closed the connection")
        parts += piece
    return bytes(parts)


class Inbox:
    """Messages put together from whatever a non-blocking socket has. Reads no byte beyond the message at hand."""

    def __init__(self) -> None:
        self._head = b""
        self._body = bytearray()
        self._kind: Kind | None = None
        self._length = 0

    def read(self, sock: socket.socket) -> tuple[Kind, bytes] | None:
        """Return the next message, None if it is not whole yet. Raises `Closed` (or another `OSError`) at the end.

        `Garbled`, an `OSError` too, says that what came is no message.
        """
        while True:
            if self._kind is None:
                missing = _HEAD.size - len(self._head)
            else:
                missing = self._length - len(self._body)
                if not missing:
                    message = self._kind, bytes(self._body)
                    self._kind, self._head, self._body = None, b"", bytearray()
                    return message
            try:
                piece = sock.recv(min(missing, 1 << 16))
            except (BlockingIOError, InterruptedError):
                return None
            if not piece:
                raise Closed("the other side closed the connection")
            if self._kind is not None:
                self._body += piece
                continue
            self._head += piece
            if len(self._head) == _HEAD.size:
                self._kind, self._length = _unpack(self._head)
