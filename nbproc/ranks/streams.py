"""The standard streams of a rank: its descriptors 0, 1 and 2, Python's objects over them, the C library's buffers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

_BY_LINE = 1  # the C library's _IOLBF
_replaced: list[object] = []
"""What the streams were before: kept, so that what they still hold is not written a second time by a forked copy."""
_ready = False
"""Whether C's stdout writes by line already, since this process is a child of the fork server."""


def redirect(stdout: str | None, stderr: str | None, given: Sequence[int]) -> None:
    """Point descriptors 1 and 2 at these files, where there is none at the next descriptor of ``given``; 0 at nothing.

    Takes the descriptors. Python's and C's streams write each line when it is whole.
    """
    global _ready
    left = list(given)
    for number, path in ((1, stdout), (2, stderr)):
        if path is not None:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        elif left:
            fd = left.pop(0)
        else:
            raise OSError("the caller's streams did not arrive: a limit on open files cuts them off")
        _move(fd, number)
    _move(os.open(os.devnull, os.O_RDONLY), 0)
    _replaced.extend((sys.stdin, sys.__stdin__, sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__))
    python: Any = sys
    python.stdin = python.__stdin__ = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    python.stdout = python.__stdout__ = _writer(1)
    python.stderr = python.__stderr__ = _writer(2)
    if not _ready:
        _write_by_line_in_c()
    _ready = False  # what is forked from here may find it changed


def own(stdout: str | None, stderr: str | None) -> list[int]:
    """Return, for the streams without a file, copies of this process's own descriptors; they are the caller's to close.

    A stream that this process has closed is replaced by one to nowhere.
    """
    copies: list[int] = []
    try:
        for number, path in ((1, stdout), (2, stderr)):
            if path is None:
                try:
                    copies.append(os.dup(number))
                except OSError:
                    copies.append(os.open(os.devnull, os.O_WRONLY))
    except BaseException:
        for fd in copies:
            os.close(fd)
        raise
    return copies


def look() -> None:
    """Have C's stdout write by line from now on, in the fork server: its ranks need not see to it (0.1 ms each)."""
    global _ready
    _write_by_line_in_c()
    flush()
    _ready = True


def flush() -> None:
    """Write out what this process has printed, in Python and in C; nobody's fault if a stream is broken."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    library = _c_library()
    if library is not None:
        library.fflush(None)


def _move(fd: int, number: int) -> None:
    if fd != number:
        os.dup2(fd, number)
        os.close(fd)
    else:  # it was closed before, so that the file got its number
        os.set_inheritable(fd, True)


def _writer(fd: int) -> io.TextIOWrapper:
    return open(fd, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:  # a statically linked interpreter
        return None


def _write_by_line_in_c() -> None:
    library = _c_library()
    if library is not None:
        with contextlib.suppress(ValueError):  # the stream has another name outside of Linux
            library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, _BY_LINE, ctypes.c_size_t(0))
