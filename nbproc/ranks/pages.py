"""Fewer, larger pages for a process that forks: a fork copies, and an exit frees, an entry for each page.

A process with torch in it has 37,000 pages of 4 kB that are its own. With most of them in pages of 2 MB, a fork and the
end of its child cost a third. Nothing else changes: memory is shared after a fork as before, and what a child writes to
is copied in small pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import struct
from collections.abc import Callable, Iterator

from nbproc.ranks import platform

LARGE = 2 << 20
_SMALL = 4096
_ENTRIES = struct.Struct(f"={LARGE // _SMALL}Q")
_PRESENT = 1 << 63
_ENOUGH = LARGE // _SMALL // 2
"""A piece with fewer pages in use than this stays as it is: it would grow."""
_MADV_COLLAPSE = 25
"""Linux 6.1: make a large page of this memory, now. The `mmap` module has no name for it."""


def enlarge() -> Iterator[None]:
    """Make large pages of this process's own memory, one at each step, so that the caller can do something in between.

    A step takes about a millisecond. Ends at once where the system has no such thing.
    """
    advise = _advise() if platform.use_linux_features() else None
    if advise is None:
        return
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, end in _own_memory():
            for address in range(-(-start // LARGE) * LARGE, end - LARGE + 1, LARGE):
                pagemap.seek(address // _SMALL * 8)
                entries = _ENTRIES.unpack(pagemap.read(_ENTRIES.size))
                if sum(entry >= _PRESENT for entry in entries) < _ENOUGH:
                    continue
                refused = advise(address)
                if refused in (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOMEM):
                    return  # the system does not know how, or does not want to
                yield


def _advise() -> Callable[[int], int] | None:
    """Return what enlarges the piece at an address and returns 0 or an error number."""
    try:
        madvise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def advise(address: int) -> int:
        return 0 if madvise(address, LARGE, _MADV_COLLAPSE) == 0 else ctypes.get_errno()

    return advise


def _own_memory() -> list[tuple[int, int]]:
    """Return where the heap and other memory without a file lies."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            if fields[1] == "rw-p" and (len(fields) == 5 or fields[5] == "[heap]"):
                start, _, end = fields[0].partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found
