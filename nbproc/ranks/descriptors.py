"""File descriptors inside a pickle: open connections, sockets, queues and shared memory on their way to a rank.

The standard library's and torch's own reducers ask "the process being spawned" to take a descriptor along. `Outgoing`
answers in its place while an object is pickled, `Incoming` while it is unpickled.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import context

from nbproc.ranks.wire import receive_with_descriptors

_AT_ONCE = 200
"""Descriptors in one message; the system's limit is 253."""
_here = threading.local()


class Descriptor:
    """Stands in a pickle for a descriptor that travels beside it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return Descriptor, (self.index,)

    def detach(self) -> int:
        """Return the descriptor that arrived; it is the caller's to close. Only while unpickling."""
        incoming: Incoming = _here.incoming
        return incoming.take(self.index)


class Outgoing:
    """Collects the descriptors that the objects being pickled want to take along.

    With ``trial`` nothing is to be sent, so no copies are made.
    """

    def __init__(self, *, trial: bool = False) -> None:
        self.descriptors: list[int] = []
        self._owned: list[int] = []
        self._borrowing = trial

    @contextlib.contextmanager
    def pickling(self) -> Iterator[None]:
        """Answer, on this thread, for the process that multiprocessing thinks it is spawning."""
        before = context.get_spawning_popen()
        context.set_spawning_popen(self)  # type: ignore[arg-type]  # what it asks of a Popen is here
        try:
            yield
        finally:
            context.set_spawning_popen(before)

    @contextlib.contextmanager
    def borrowing(self) -> Iterator[None]:
        """Take descriptors without a copy of our own: their owner is kept alive by other means."""
        before, self._borrowing = self._borrowing, True
        try:
            yield
        finally:
            self._borrowing = before

    def add(self, descriptor: int) -> int:
        """Take a descriptor along and return its index. A copy is made: the caller may close its own at once."""
        if not self._borrowing:
            descriptor = os.dup(descriptor)
            self._owned.append(descriptor)
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    def duplicate_for_child(self, fd: int) -> int:
        """Do what multiprocessing's ``Popen`` does under this name."""
        return self.add(fd)

    def DupFd(self, fd: int) -> Descriptor:  # noqa: N802  # multiprocessing's name
        """Do what multiprocessing's ``Popen`` does under this name; ``fd`` is an index."""
        return Descriptor(fd)

    def close(self) -> None:
        """Close the copies. May be called twice."""
        while self._owned:
            os.close(self._owned.pop())

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # an Interrupt can land before it has any attributes
            self.close()


class Incoming:
    """The descriptors that came with a pickle; those that nobody takes are closed."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors: dict[int, int] = dict(enumerate(descriptors))

    def take(self, index: int) -> int:
        """Return a descriptor and forget it; it is the caller's to close."""
        return self._descriptors.pop(index)

    @contextlib.contextmanager
    def unpickling(self) -> Iterator[None]:
        """Answer, on this thread, for what `Descriptor` objects ask."""
        before = getattr(_here, "incoming", None)
        _here.incoming = self
        try:
            yield
        finally:
            _here.incoming = before

    def close(self) -> None:
        """Close what nobody took. May be called twice."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def send_descriptors(sock: socket.socket, descriptors: Sequence[int]) -> None:
    """Send descriptors over a Unix stream socket, any number of them. Blocks while the socket is full."""
    for start in range(0, len(descriptors), _AT_ONCE):
        socket.send_fds(sock, [b"d"], list(descriptors[start : start + _AT_ONCE]))


def receive_descriptors(sock: socket.socket, count: int) -> list[int]:
    """Receive that many descriptors, close-on-exec. Raises EOFError if the other side is gone, and OSError when this
    process may not have so many open files.
    """
    received: list[int] = []
    try:
        while len(received) < count:
            wanted = min(_AT_ONCE, count - len(received))
            data, descriptors = receive_with_descriptors(sock, 1, wanted)
            received += descriptors
            if not data:
                raise EOFError("the other side closed the connection")
            if len(descriptors) != wanted:
                raise OSError(f"only {len(received)} of {count} file descriptors arrived: too many open files here")
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise
    return received
