"""Memory that several processes read and each may write for itself: one file, mapped privately.

A writer puts its pieces into one `Layout`, then into one unnamed file (`nbproc.ranks.platform.memfd`). Readers map the
file with MAP_PRIVATE: they share the pages until they write to them, and what one writes no other sees.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nbproc.ranks import platform

ALIGNMENT = 64
"""Every piece starts at a multiple of this, as vector instructions and torch's own allocator have it."""
_MOST_AT_ONCE = 64 << 20
"""Bytes of one write call: less than the system's limit, and so much that a thread is worth it."""

Span = tuple[int, int]
"""Position and length, in bytes."""


def _identity(piece: bytes | memoryview) -> tuple[int, int]:
    """Return what is equal for two pieces that are the same memory, as far as that can be told."""
    if isinstance(piece, bytes):
        return id(piece), len(piece)
    if not piece.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(piece)), piece.nbytes
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "frombuffer"):
        return id(piece), piece.nbytes
    return numpy.frombuffer(piece, dtype="u1").__array_interface__["data"][0], piece.nbytes


@dataclass
class Layout:
    """Where each piece will lie. The same memory added twice lies there once."""

    size: int = 0
    pieces: list[tuple[int, bytes | memoryview]] = field(default_factory=list)
    _known: dict[tuple[int, int], Span] = field(default_factory=dict)

    def add(self, piece: bytes | memoryview) -> Span:
        """Give a piece its place. The piece (its memory, too) must live until it was written."""
        length = piece.nbytes if isinstance(piece, memoryview) else len(piece)
        if not length:
            return 0, 0
        key = _identity(piece)
        span = self._known.get(key)
        if span is None:
            span = self._known[key] = (-(-self.size // ALIGNMENT) * ALIGNMENT, length)
            self.pieces.append((span[0], piece))
            self.size = span[0] + length
        return span

    def inline(self) -> bytes:
        """Return all pieces as one bytes object, for what is too small to be worth a file."""
        whole = bytearray(self.size)
        for position, piece in self.pieces:
            whole[position : position + len(piece)] = piece
        return bytes(whole)

    def write(self, name: str) -> int:
        """Write all pieces into a new unnamed file and return its descriptor, which is the caller's to close.

        Blocks for about 0.3 s a gigabyte. Raises OSError when there is not that much memory, or disk.
        """
        descriptor = platform.memfd(name)
        try:
            os.ftruncate(descriptor, max(self.size, 1))
            _write_all(descriptor, self.pieces)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _write_all(descriptor: int, pieces: Iterable[tuple[int, bytes | memoryview]]) -> None:
    large: list[tuple[int, memoryview]] = []
    for position, piece in pieces:
        view = memoryview(piece)
        if view.nbytes <= _MOST_AT_ONCE:
            _write_piece(descriptor, position, view)
        else:
            large += [(position + at, view[at : at + _MOST_AT_ONCE]) for at in range(0, view.nbytes, _MOST_AT_ONCE)]
    if large:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "nbproc-write") as pool:
            list(pool.map(lambda item: _write_piece(descriptor, *item), large))


def _write_piece(descriptor: int, position: int, view: memoryview) -> None:
    while view.nbytes:
        written = os.pwrite(descriptor, view, position)
        position, view = position + written, view[written:]


@functools.cache
def _system() -> ctypes.CDLL:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return system


def _map(descriptor: int, position: int, length: int) -> memoryview:
    """Map a part of a file privately, without holding a descriptor: there may be thousands of results in a notebook.

    Python's own mmap holds a copy of the descriptor up to Python 3.12, so there the system is called directly.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):
        flags = mmap.MAP_PRIVATE
        return memoryview(mmap.mmap(descriptor, length, flags, protection, offset=position, trackfd=False))
    system = _system()
    address = system.mmap(None, length, protection, mmap.MAP_PRIVATE, descriptor, position)
    if address == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    memory = (ctypes.c_ubyte * length).from_address(address)
    weakref.finalize(memory, system.munmap, address, length).atexit = False
    return memoryview(memory).cast("B")


class Mapping:
    """The wanted spans of a file, mapped privately; the memory lives as long as a view of it does."""

    def __init__(self, descriptor: int, spans: Sequence[Span]) -> None:
        """Map all that lies between the first and the last span. The descriptor may be closed afterwards."""
        used = [span for span in spans if span[1]]
        self._start = self._stop = 0
        self._memory: memoryview = memoryview(b"")
        if used:
            page = mmap.ALLOCATIONGRANULARITY
            self._start = min(position for position, _ in used) // page * page
            self._stop = max(position + length for position, length in used)
            self._memory = _map(descriptor, self._start, self._stop - self._start)

    def view(self, span: Span) -> memoryview:
        """Return one span's memory, writable; nobody else sees what is written."""
        position, length = span
        if not length:
            return memoryview(bytearray())
        return self._memory[position - self._start : position - self._start + length]
