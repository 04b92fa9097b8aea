"""Which class or function of the notebook is which, across processes.

A class of the notebook travels by value, so a rank has a copy. When an instance comes back, its class must be the
notebook's own, not a copy of the copy. So each gets a key when it is sent, and comes back as that key.
"""

from __future__ import annotations

import functools
import sys
import types
import uuid
import weakref
from typing import Any

_keys: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_objects: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_received: weakref.WeakSet[Any] = weakref.WeakSet()


def key_of(thing: Any) -> str:
    """Return the key of a class or function, a new one at the first call."""
    key = _keys.get(thing)
    if key is None:
        key = _keys[thing] = uuid.uuid4().hex
        _objects[key] = thing
    return key


def came_from_parent(thing: Any) -> bool:
    """Return whether the process that started this one has the original of this class or function."""
    return thing in _received


def arrived(thing: Any, key: str) -> None:
    """Note that a class or function came from the process that started this one."""
    _keys[thing] = key
    _objects[key] = thing
    _received.add(thing)


def inherit() -> None:
    """Take all that there is now for the parent's. To be called once in a rank that was forked from the notebook."""
    for thing in list(_keys):
        _received.add(thing)
    for thing in list(main_namespace().values()):
        if isinstance(thing, (type, types.FunctionType)) and thing.__module__ == "__main__":
            key_of(thing)
            _received.add(thing)


def main_namespace() -> dict[str, Any]:
    """Return the dict of this process's ``__main__``: the notebook's variables, or their likeness in a rank."""
    return vars(sys.modules["__main__"])


def find(key: str, qualname: str) -> Any:
    """Return this process's own class or function with the key.

    If it is gone (its cell was run again, and nothing holds the old one), what now has its name. Raises LookupError
    if there is nothing of that name.
    """
    found = _objects.get(key)
    if found is not None:
        return found
    try:
        first, *rest = qualname.split(".")
        return functools.reduce(getattr, rest, main_namespace()[first])
    except (KeyError, AttributeError):
        raise LookupError(f"{qualname} is no longer defined in the notebook") from None
