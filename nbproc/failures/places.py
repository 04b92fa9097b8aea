"""Whose code a file is: the user's, a library's, or the machinery that starts a rank."""

from __future__ import annotations

import functools
import os
import sysconfig

_MACHINERY_PACKAGES = ("multiprocessing", "cloudpickle", "asyncio", "concurrent")
_MACHINERY_FILES = ("runpy.py", "threading.py")
_TORCH_LAUNCHERS = ("distributed/elastic/", "distributed/launcher/", "distributed/run.py", "multiprocessing/spawn.py")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@functools.lru_cache(maxsize=1)
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths.get(key, "") for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(os.path.join(root, "") for root in sorted(roots, key=len, reverse=True) if root)


def inside_library(file: str) -> str | None:
    """Return the file's path relative to the library root it lies under; None for other files."""
    if file.startswith("<frozen "):
        return file[len("<frozen ") : -1]
    for part in ("/site-packages/", "/dist-packages/"):
        if part in file:
            return file.split(part, 1)[1]
    for root in _library_roots():
        if file.startswith(root):
            return file[len(root) :]
    return None


def is_library(file: str) -> bool:
    """Return True if the file belongs to the standard library, an installed package, or nbproc."""
    return _is_own(file) or inside_library(file) is not None


def is_machinery(file: str) -> bool:
    """Return True for code that only starts other code: nbproc, multiprocessing, runpy, torch's launchers."""
    if _is_own(file):
        return True
    inside = inside_library(file)
    if inside is None:
        return False
    package, _, rest = inside.partition("/")
    if package == "torch":
        return rest.startswith(_TORCH_LAUNCHERS)
    return package in _MACHINERY_PACKAGES or inside in _MACHINERY_FILES or inside == "runpy"


def is_caller(file: str) -> bool:
    """Return True for the code that calls the function of a rank."""
    return file == os.path.join(_OWN, "ranks", "worker.py")


def _is_own(file: str) -> bool:
    return file.startswith(_OWN + os.sep)


def short_name(file: str) -> str:
    """Return what to call the file in a sentence: its last part, ``<string>`` and the like as they are."""
    return file if file.startswith("<") else os.path.basename(file) or file


def package_of(file: str) -> str:
    """Return the name of the installed package that a file belongs to; "" for the standard library and other files."""
    for part in ("/site-packages/", "/dist-packages/"):
        if part in file:
            return file.split(part, 1)[1].partition("/")[0].removesuffix(".py")
    return "nbproc" if _is_own(file) else ""
