"""Which modules a rank can import for itself, and which have to be sent.

A rank has the caller's ``sys.path`` and directory, so it can import what lies in files there. It cannot import what
exists in the caller only: a module made by ``types.ModuleType``, or loaded from a file off the path.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import types
from collections import Counter
from typing import Any

import cloudpickle

_INSTALLED = tuple({sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Where the standard library and installed packages lie."""
_OURS = __name__.partition(".")[0]
"""The package that every rank runs on."""

_lock = threading.Lock()
_users: Counter[str] = Counter()
"""How many dumps, on all threads, want a module by value that we told to cloudpickle."""


class ByValue:
    """The modules that go by value in one dump. Told to cloudpickle as they are met, and taken back afterwards."""

    def __init__(self) -> None:
        self._seen: set[str] = {"__main__", "__mp_main__", "builtins"}
        self._told: list[types.ModuleType] = []

    def look_at(self, name: Any) -> None:
        """See to it that what the module of this name defines goes by value if no rank could import it."""
        if not isinstance(name, str) or name in self._seen:
            return
        self._seen.add(name)
        module = sys.modules.get(name)
        if type(module) is not types.ModuleType or can_be_imported(module):
            return
        with _lock:
            if name in _users or name not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                _users[name] += 1
                self._told.append(module)

    def restore(self) -> None:
        """Take back what was told to cloudpickle. May be called twice."""
        self._seen -= {module.__name__ for module in self._told}
        with _lock:
            while self._told:
                module = self._told.pop()
                _users[module.__name__] -= 1
                if not _users[module.__name__]:
                    del _users[module.__name__]
                    cloudpickle.unregister_pickle_by_value(module)


def can_be_imported(module: types.ModuleType) -> bool:
    """Return whether another process with the same path could import a module that this one has."""
    name = module.__name__
    if name.partition(".")[0] == _OURS:
        return True
    parent, _, last = name.rpartition(".")
    above = sys.modules.get(parent) if parent else None
    spec = getattr(module, "__spec__", None)
    if spec is None:
        # A part of a compiled module, which comes with it; old extensions leave the spec out and name their file.
        if above is not None and getattr(above, last, None) is module:
            return can_be_imported(above)
        return hasattr(module, "__file__") or name in sys.builtin_module_names
    origin = spec.origin or ""
    if origin in ("built-in", "frozen") or origin.startswith(_INSTALLED) or spec.name != name:
        return True  # spec.name differs for an alias, such as os.path
    path = None
    if parent:
        if above is None or not can_be_imported(above):
            return False
        path = getattr(above, "__path__", None)
        if path is None:
            return True
    finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(find(name, path, None) is not None for find in finders)
