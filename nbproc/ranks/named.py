"""Things that pickle as their name only, and so cannot be found in a rank when a cell made them.

Functions under ``functools.lru_cache``, and the names that a cell gives to types (``NewType``, ``ParamSpec``, ...).
Each is taken apart into what it was made of; those of a module that a rank can import keep going by name.
"""

from __future__ import annotations

import functools
import operator
import sys
import typing
from collections.abc import Callable
from typing import Any

import cloudpickle


def cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Put a function under an empty cache again."""
    return functools.lru_cache(**parameters)(function)


def _cached(thing: Any) -> tuple[Any, ...]:
    return cached, (thing.__wrapped__, thing.cache_parameters())


def _new_type(thing: Any) -> tuple[Any, ...]:
    return typing.NewType, (thing.__name__, thing.__supertype__)


def _by_name(thing: Any) -> tuple[Any, ...]:
    return type(thing), (thing.__name__,)


def _alias(thing: Any) -> tuple[Any, ...]:
    return type(thing), (thing.__name__, thing.__value__)


_BY_TYPE: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    type(functools.lru_cache(lambda: None)): _cached,
    typing.NewType: _new_type,
    typing.ParamSpec: _by_name,
}
for _name, _reduce in (("TypeVarTuple", _by_name), ("TypeAliasType", _alias)):  # Python 3.11, Python 3.12
    if hasattr(typing, _name):
        _BY_TYPE[getattr(typing, _name)] = _reduce


def reducers(look_at: Callable[[Any], None]) -> dict[type, Callable[[Any], Any]]:
    """Return the types with their reducers. ``look_at`` is told the name of each module, before it is judged."""

    def reduce(thing: Any) -> Any:
        look_at(thing.__module__)
        return NotImplemented if _can_be_named(thing) else _BY_TYPE[type(thing)](thing)

    return dict.fromkeys(_BY_TYPE, reduce)


def _can_be_named(thing: Any) -> bool:
    module = thing.__module__
    if module == "__main__" or module in cloudpickle.list_registry_pickle_by_value():
        return False
    try:
        return operator.attrgetter(getattr(thing, "__qualname__", thing.__name__))(sys.modules[module]) is thing
    except (KeyError, AttributeError):
        return False
