"""How many threads the numerical libraries of a rank use.

They read it from the environment when they are loaded, which for a rank may have been before its environment was known.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

_OPENBLAS = tuple(
    (f"{before}openblas_get_num_threads{after}", f"{before}openblas_set_num_threads{after}")
    for before in ("", "scipy_")
    for after in ("", "64_")
)
"""What the functions are called in OpenBLAS itself and in the copies that numpy and scipy bring along."""


def set_counts(environment: Mapping[str, str], *, forked: bool) -> None:
    """Make the counts of this environment hold in the libraries that are loaded already.

    In a forked copy of the caller, whose threads did not come along, OpenMP's are only ever made fewer: GNU OpenMP
    waits for ever for the threads of a pool that was there before the fork.
    """
    count = _number(environment, "OMP_NUM_THREADS") or available()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        now = torch.get_num_threads()
        if now > count or (now < count and not forked):
            torch.set_num_threads(count)
    if "numpy" in sys.modules and not forked:
        _set_blas(_number(environment, "OPENBLAS_NUM_THREADS") or count)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").split(",")[0].strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def available() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def look() -> None:
    """Find the libraries that are loaded now, once: what is forked from here need not look for them (5 ms)."""
    _blas.cache_clear()
    _blas()


def _set_blas(count: int) -> None:
    for now, setter in _blas():
        if now != count:
            setter(count)


@functools.cache
def _blas() -> list[tuple[int, Callable[[int], object]]]:
    """Return, for each BLAS that is loaded, its number of threads now and a function to set it."""
    if "numpy" not in sys.modules:
        return []
    try:
        import threadpoolctl
    except ImportError:
        return _openblas()
    found = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return [(library.num_threads, library.set_num_threads) for library in found.lib_controllers]


def _openblas() -> list[tuple[int, Callable[[int], object]]]:
    """Do for OpenBLAS, which numpy brings along, what threadpoolctl does for any library."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    except OSError:
        return []
    found: list[tuple[int, Callable[[int], object]]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            found += [
                (getattr(library, get)(), getattr(library, put)) for get, put in _OPENBLAS if hasattr(library, put)
            ]
    return found
