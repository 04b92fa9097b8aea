"""Messages between the launching process and a rank, over the rank's job socket.

A message is one kind byte, eight bytes of length and a body. The launching side reads without blocking and puts
messages together from pieces (`Inbox`); a rank reads and writes blocking.
"""

from __future__ import annotations

import enum
import socket
import struct

_HEAD = struct.Struct("!BQ")
MAX_INLINE = 1 << 26


class Kind(enum.IntEnum):
    """What a message says."""

    JOB = 1
    """To the rank: the `Job`, pickled. The payload follows, as `payload.send` writes it."""
    READY = 2
    """From the rank: its settings hold, its output is redirected; user code comes next."""
    RETURNED = 3
    """From the rank: the entrypoint returned. The body is what `payload.send_result` made of the value."""
    RAISED = 4
    """From the rank: the entrypoint raised and error.json is written (the body is its headline)."""
    INTERRUPTED = 5
    """From the rank: a KeyboardInterrupt ended it; the body says where it was."""
    RELEASE = 6
    """To the rank: all ranks have returned, exit now."""
    TROUBLE = 7
    """From the rank: a warning for the run's notes (a preload that failed, a setting that could not be applied)."""


class Closed(ConnectionError):
    """The other side is gone."""


def send(sock: socket.socket, kind: Kind, body: bytes = b"") -> None:
    """Send one message; block until the kernel took it. Raises `OSError` if the other side is gone."""
    head = _HEAD.pack(kind, len(body))
    if len(body) < 1 << 16:
        sock.sendall(head + body)
    else:
        sock.sendall(head)
        sock.sendall(body)


def receive(sock: socket.socket) -> tuple[Kind, bytes]:
    """Receive one message, blocking. Raises `Closed` at the end of the stream."""
    kind, length = _HEAD.unpack(_exactly(sock, _HEAD.size))
    return Kind(kind), _exactly(sock, length)


def _exactly(sock: socket.socket, n: int) -> bytes:
    parts = bytearray()
    while len(parts) < n:
        piece = sock.recv(min(n - len(parts), 1 << 20))
        if not piece:
            raise Closed("the other side closed the connection")
        parts += piece
    return bytes(parts)


class Inbox:
    """Messages put together from whatever a non-blocking socket has, with the descriptors that came along."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self.fds: list[int] = []

    def read(self, sock: socket.socket) -> tuple[list[tuple[Kind, bytes]], bool]:
        """Read what is there now. Returns the whole messages and whether the stream is still open."""
        is_open = True
        while True:
            try:
                piece, fds, _, _ = socket.recv_fds(sock, 1 << 16, 16)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                is_open = False
                break
            self.fds += fds
            if not piece:
                is_open = False
                break
            self._pending += piece
        return self._messages(), is_open

    def _messages(self) -> list[tuple[Kind, bytes]]:
        found = []
        while len(self._pending) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._pending)
            if len(self._pending) < _HEAD.size + length:
                break
            found.append((Kind(kind), bytes(self._pending[_HEAD.size : _HEAD.size + length])))
            del self._pending[: _HEAD.size + length]
        return found
