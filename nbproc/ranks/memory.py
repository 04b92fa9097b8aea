"""Memory that several processes read and each may write for itself: unnamed files, mapped privately.

A writer puts its pieces into one `Layout`, then into files (`nbproc.ranks.platform.memfd`): one, or where it is worth it
one for each core, since the system lets only one thread at a time write to a file. Readers map the files with
MAP_PRIVATE, one behind the other: they share the pages until they write to them, and what one writes no other sees.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nbproc.ranks import platform, threads

ALIGNMENT = 64
"""Every piece starts at a multiple of this, as vector instructions and torch's own allocator have it."""
_PART = 64 << 20
"""Bytes that are worth a file, and a thread that writes it. Also the most of one write call, below the system's limit."""
_MOST_FILES = 8
_PAGE = mmap.ALLOCATIONGRANULARITY
_PROT_NONE, _MAP_FIXED = 0, 0x10
"""On Linux and on macOS; Python's `mmap` has no names for them."""

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

    def write(self, name: str) -> Files:
        """Write all pieces into new unnamed files, which are the caller's to close.

        Blocks for about 0.4 s a gigabyte, divided by the number of cores that are free. Raises OSError when there is
        not that much memory, or disk.
        """
        count = max(1, min(threads.available(), _MOST_FILES, self.size // _PART))
        part = -(-self.size // (count * _PAGE)) * _PAGE
        descriptors: list[int] = []
        try:
            for start in range(0, max(self.size, 1), max(part, 1)):
                descriptors.append(platform.memfd(name))
                os.ftruncate(descriptors[-1], max(min(part, self.size - start), 1))
            files = Files(tuple(descriptors), part)
            if count == 1:
                self._write_file(files, 0)
            else:
                with ThreadPoolExecutor(count, "nbproc-write") as pool:
                    list(pool.map(lambda index: self._write_file(files, index), range(len(descriptors))))
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return files

    def _write_file(self, files: Files, index: int) -> None:
        begin, end = index * files.part, (index + 1) * files.part
        for position, piece in self.pieces:
            first, last = max(position, begin), min(position + len(piece), end)
            if first < last:
                _write(files.descriptors[index], first - begin, memoryview(piece)[first - position : last - position])


@dataclass(frozen=True)
class Files:
    """Where the contents of a `Layout` lie: ``part`` bytes (whole pages) in each file, the rest in the last."""

    descriptors: tuple[int, ...]
    part: int

    def extents(self, start: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield where a part of the contents lies: descriptor, position in that file, length."""
        end = start + length
        while start < end:
            index, position = divmod(start, self.part)
            size = min(end - start, self.part - position)
            yield self.descriptors[index], position, size
            start += size

    def close(self) -> None:
        """Close the descriptors; what is mapped stays."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def _write(descriptor: int, position: int, view: memoryview) -> None:
    while view.nbytes:
        written = os.pwrite(descriptor, view[:_PART], position)
        position, view = position + written, view[written:]


@functools.cache
def _system() -> ctypes.CDLL:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return system


def _mmap(address: int | None, length: int, protection: int, flags: int, descriptor: int, position: int) -> int:
    mapped = _system().mmap(address, length, protection, flags, descriptor, position)
    if mapped == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(mapped)


def _owned(address: int, length: int) -> memoryview:
    """Return memory that was mapped, which is given back with its last view."""
    memory = (ctypes.c_ubyte * length).from_address(address)
    weakref.finalize(memory, _system().munmap, address, length).atexit = False
    return memoryview(memory).cast("B")


def _map(files: Files, start: int, length: int) -> memoryview:
    """Map a part of the contents privately, without holding a descriptor: a notebook may have thousands of results.

    Python's own mmap holds a copy of the descriptor up to Python 3.12, and cannot put one file behind another. There
    the system is called directly.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    extents = list(files.extents(start, length))
    if len(extents) == 1:
        [(descriptor, position, _)] = extents
        if sys.version_info >= (3, 13):
            flags = mmap.MAP_PRIVATE
            return memoryview(mmap.mmap(descriptor, length, flags, protection, offset=position, trackfd=False))
        return _owned(_mmap(None, length, protection, mmap.MAP_PRIVATE, descriptor, position), length)
    address = _mmap(None, length, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANON, -1, 0)
    memory = _owned(address, length)
    for descriptor, position, size in extents:
        _mmap(address, size, protection, mmap.MAP_PRIVATE | _MAP_FIXED, descriptor, position)
        address += size
    return memory


class Mapping:
    """The wanted spans of some contents, mapped privately; the memory lives as long as a view of it does."""

    def __init__(self, files: Files, spans: Sequence[Span]) -> None:
        """Map all that lies between the first and the last span. The files may be closed afterwards."""
        used = [span for span in spans if span[1]]
        self._start = self._stop = 0
        self._memory: memoryview = memoryview(b"")
        if used:
            self._start = min(position for position, _ in used) // _PAGE * _PAGE
            self._stop = max(position + length for position, length in used)
            self._memory = _map(files, self._start, self._stop - self._start)

    def view(self, span: Span) -> memoryview:
        """Return one span's memory, writable; nobody else sees what is written."""
        position, length = span
        if not length:
            return memoryview(bytearray())
        return self._memory[position - self._start : position - self._start + length]
