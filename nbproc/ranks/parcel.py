"""One message with memory and descriptors beside it: laid out, sent and received over a Unix stream socket.

    header | table | contents                      small: everything in the message
    header | table, and descriptors of files       large: contents (and a long table) in files, shared by all ranks

The table says where in the contents the pickle and the buffers lie; any other descriptors follow the message.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbproc.ranks import memory
from nbproc.ranks.descriptors import receive_descriptors, send_descriptors
from nbproc.ranks.memory import Files, Layout, Mapping, Span

INLINE = 32 << 10
"""Bytes that travel in the message. Less than any socket's buffer, so that sending them does not block."""
_LARGE = 64 << 10
"""From this size on the pickler hands over a bytes object as it is. Smaller pieces are joined."""
_HEADER = struct.Struct("<4sB?HIQQQ")
"""Magic, number of files, whether the table is in them, number of descriptors (theirs first), size of the table, size of
a file, position of the table, size of what is inline."""
_MAGIC = b"nbp1"


@dataclass(frozen=True)
class Contents:
    """What one message is to carry: a note (plain values), the pieces of a pickle, buffers, descriptors."""

    note: Any
    chunks: Sequence[Any] = ()
    buffers: Sequence[memoryview] = ()
    descriptors: Sequence[int] = ()


@dataclass(frozen=True)
class Parcel:
    """A message ready to be sent, to any number of receivers. ``files``, if any, are shared by all of one `lay_out`."""

    message: bytes
    descriptors: tuple[int, ...]
    files: Files | None = None


@dataclass(frozen=True)
class Opened:
    """A message that was received: its note, a file-like object with the pickle, writable buffers, descriptors.

    The descriptors are the receiver's to close. ``size`` is the number of bytes of pickle and buffers.
    """

    note: Any
    pickle: PieceReader
    buffers: list[memoryview]
    descriptors: list[int]
    size: int = 0


def lay_out(contents: Sequence[Contents], name: str) -> list[Parcel]:
    """Make the messages. What is large goes into files named ``name``, the same memory once.

    The caller closes the files when all messages were sent. Raises OSError if there is not enough memory.
    """
    layout = Layout()
    tables = []
    for one in contents:
        pieces = [layout.add(chunk) for chunk in _joined(one.chunks)]
        buffers = [layout.add(buffer) for buffer in one.buffers]
        tables.append(pickle.dumps((one.note, pieces, buffers), protocol=5))
    if len(contents) == 1 and layout.size + len(tables[0]) <= INLINE:
        return [_parcel(contents[0], tables[0], inline=layout.inline())]
    if all(_inline_size(one) + len(table) <= INLINE for one, table in zip(contents, tables, strict=True)):
        return [parcel for one in contents for parcel in lay_out([one], name)]
    spans = [layout.add(table) if len(table) > INLINE else None for table in tables]
    files = layout.write(name)
    return [_parcel(one, table, files, span) for one, table, span in zip(contents, tables, spans, strict=True)]


def _parcel(
    one: Contents, table: bytes, files: Files | None = None, span: Span | None = None, inline: bytes = b""
) -> Parcel:
    """Make a message. ``span`` is where its table lies in the files, None if that is in the message."""
    descriptors = (*(files.descriptors if files else ()), *one.descriptors)
    count, part = (len(files.descriptors), files.part) if files else (0, 0)
    position = span[0] if span else 0
    header = _HEADER.pack(_MAGIC, count, span is not None, len(descriptors), len(table), part, position, len(inline))
    return Parcel(header + (b"" if span else table) + inline, descriptors, files)


def _inline_size(one: Contents) -> int:
    pieces = [*one.chunks, *one.buffers]
    return sum(len(piece) for piece in pieces) + memory.ALIGNMENT * len(pieces)


def _joined(chunks: Sequence[Any]) -> Iterator[bytes | memoryview]:
    small: list[Any] = []
    for chunk in chunks:
        if len(chunk) < _LARGE:
            small.append(chunk)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield chunk if isinstance(chunk, bytes) else memoryview(chunk).cast("B")
    if small:
        yield b"".join(small)


def send(sock: socket.socket, parcel: Parcel) -> None:
    """Send a message. Blocks while the socket's buffer is full, which an empty one is not after one message.

    Raises OSError (BrokenPipeError) if the receiver is gone.
    """
    sock.sendall(parcel.message)
    send_descriptors(sock, parcel.descriptors)


def receive(sock: socket.socket) -> Opened:
    """Receive a message. Blocks until it is there.

    Raises EOFError if the sender is gone, and OSError if memory or descriptors are short.
    """
    magic, files_count, table_in_files, count, table_size, part, position, inline_size = _HEADER.unpack(
        _read(sock, _HEADER.size)
    )
    if magic != _MAGIC:
        raise EOFError("what arrived is not a message of nbproc")
    table = b"" if table_in_files else bytes(_read(sock, table_size))
    inline = _read(sock, inline_size)
    descriptors = receive_descriptors(sock, count)
    files = Files(tuple(descriptors[:files_count]), part)
    del descriptors[:files_count]
    try:
        if table_in_files:
            table = bytes(Mapping(files, [(position, table_size)]).view((position, table_size)))
        note, pieces, buffers = pickle.loads(table)
        view = Mapping(files, [*pieces, *buffers]).view if files_count else _slicer(inline)
        size = sum(length for _, length in [*pieces, *buffers])
        return Opened(note, PieceReader([view(p) for p in pieces]), [view(b) for b in buffers], descriptors, size)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    finally:
        files.close()


def _slicer(whole: bytearray) -> Callable[[Span], memoryview]:
    view = memoryview(whole)
    return lambda span: view[span[0] : span[0] + span[1]]


def _read(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = sock.recv_into(view[done:])
        if not got:
            raise EOFError("the other side closed the connection")
        done += got
    return data


@dataclass
class PieceReader:
    """Pieces of memory, read in order as if they were one file. For an unpickler."""

    pieces: list[memoryview]
    _piece: int = field(default=0)
    _at: int = field(default=0)

    def readinto(self, target: Any) -> int:
        """Fill the target, or what of it the rest suffices for; return the number of bytes."""
        goal = memoryview(target).cast("B")
        done = 0
        while done < len(goal) and self._piece < len(self.pieces):
            piece = self.pieces[self._piece]
            count = min(len(goal) - done, len(piece) - self._at)
            goal[done : done + count] = piece[self._at : self._at + count]
            done += count
            self._at += count
            if self._at == len(piece):
                self._piece, self._at = self._piece + 1, 0
        return done

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        if size < 0:
            size = sum(map(len, self.pieces[self._piece :])) - self._at
        if self._piece < len(self.pieces):
            piece = self.pieces[self._piece]
            if len(piece) - self._at > size:
                self._at += size
                return bytes(piece[self._at - size : self._at])
        data = bytearray(size)
        return bytes(data[: self.readinto(data)])

    def readline(self) -> bytes:
        """Return the next line. Only pickles of an old protocol ask for one."""
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self.read(1)
            if not byte:
                break
            line += byte
        return bytes(line)
