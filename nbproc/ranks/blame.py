"""Which variable cannot be sent: the deepest part that fails alone, as one would write it.

Only for when pickling has failed, so that it may take its time: each candidate is pickled anew, within a deadline.
"""

from __future__ import annotations

import dis
import functools
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import cloudpickle

from nbproc.ranks import unsendable

_SECONDS = 3.0
_MOST = 5
"""Guilty parts that are named for one root."""
_DEPTH = 60


class Dumps(Protocol):
    """A pickler."""

    def dump(self, obj: Any) -> None:
        """Pickle an object or raise."""


@dataclass(frozen=True)
class Part:
    """A part of a root: how one would write it, and the function that uses it ("" if none is between)."""

    path: str
    value: Any
    user: str = ""


def find(
    roots: Mapping[str, Any], make: Callable[[], Dumps], labels: Mapping[str, str], *, where: str = unsendable.RANKS
) -> dict[str, str]:
    """Return the roots that cannot be pickled by ``make()``, each with a sentence a line for its guilty parts."""
    search = _Search(make)
    found: dict[str, str] = {}
    for name, value in roots.items():
        if search.fails(value) is None:
            continue
        label = labels.get(name) or (value.__qualname__ if isinstance(value, types.FunctionType) else name)
        root = Part(label, value)
        lines: dict[str, None] = {}
        for part in search.guilty(root, [value]) or [root]:
            error = search.fails(part.value) or ValueError("no reason given")
            user = f", used by `{part.user}`" if part.user else ""
            lines[f"`{part.path}`{user}: {unsendable.sentence(part.value, error, where)}"] = None
        found[name] = "\n".join(lines)
    return found


class _Search:
    def __init__(self, make: Callable[[], Dumps]) -> None:
        self._make = make
        self._deadline = time.monotonic() + _SECONDS
        self._known: dict[int, tuple[Any, Exception | None]] = {}

    def fails(self, value: Any) -> Exception | None:
        """Return the error that pickling a value alone raises, or None."""
        known = self._known.get(id(value))
        if known is None:
            error = None
            try:
                self._make().dump(value)
            except Exception as raised:
                error = raised.with_traceback(None)
            known = self._known[id(value)] = (value, error)  # holds the value, so that its id stays its own
        return known[1]

    def guilty(self, part: Part, above: list[Any]) -> list[Part]:
        """Return the deepest parts that fail alone. Empty if only what lies above fails in it (a cycle)."""
        if unsendable.kind_of(part.value) is not None or len(above) > _DEPTH:
            return [part]
        found: list[Part] = []
        deeper = False
        for child in _children(part):
            if time.monotonic() > self._deadline:
                break
            if self.fails(child.value) is None:
                continue
            deeper = True
            if any(child.value is one for one in above):
                continue
            found += self.guilty(child, [*above, child.value])
            if found and (len(found) >= _MOST or not isinstance(part.value, types.FunctionType)):
                break
        return found[:_MOST] if deeper and time.monotonic() <= self._deadline else found or [part]


def _children(part: Part) -> Iterator[Part]:
    value, path, user = part.value, part.path, part.user
    if isinstance(value, types.FunctionType):
        yield from _of_function(value, path)
    elif isinstance(value, types.MethodType):
        yield Part(f"{path}.__self__" if path.endswith(")") else path.rpartition(".")[0] or path, value.__self__, user)
        yield Part(value.__func__.__qualname__, value.__func__, user)
    elif isinstance(value, functools.partial):
        yield Part(f"{path}.func", value.func, user)
        yield from (Part(f"{path}.args[{i}]", one, user) for i, one in enumerate(value.args))
        yield from (Part(f"{path}.keywords[{key!r}]", one, user) for key, one in value.keywords.items())
    elif isinstance(value, type):
        yield from (Part(f"{path}.{name}", one, user) for name, one in vars(value).items())
        yield from (Part(base.__qualname__, base, user) for base in value.__bases__)
    elif isinstance(value, (staticmethod, classmethod)):
        yield Part(path, value.__func__, user)
    elif isinstance(value, property):
        yield from (Part(path, one, user) for one in (value.fget, value.fset, value.fdel) if one is not None)
    elif isinstance(value, types.ModuleType):
        yield from (Part(f"{path}.{name}", one, user) for name, one in vars(value).items())
    elif type(value) is dict:
        yield from _of_dict(value.items(), path, user)
    elif type(value) in (list, tuple, set, frozenset):
        yield from (Part(f"{path}[{i}]", one, user) for i, one in enumerate(value))
    else:
        yield from _of_object(part)


def _of_function(function: types.FunctionType, path: str) -> Iterator[Part]:
    name = function.__qualname__
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Part(variable, cell.cell_contents, name)
        except ValueError:  # not assigned yet
            continue
    for variable in _globals_read(function.__code__):
        if variable in function.__globals__:
            yield Part(variable, function.__globals__[variable], name)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield Part(f"a default value of {path}", default)
    yield from (Part(f"{path}.{key}", one) for key, one in vars(function).items())
    yield from (Part(f"the annotation of {key}", one, name) for key, one in function.__annotations__.items())


def _globals_read(code: types.CodeType) -> dict[str, None]:
    names = {step.argval: None for step in dis.get_instructions(code) if step.opname.endswith("_GLOBAL")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals_read(constant)
    return names


def _of_dict(items: Iterable[tuple[Any, Any]], path: str, user: str) -> Iterator[Part]:
    for key, one in items:
        yield Part(f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[...]", one, user)
        yield Part(f"a key of {path}", key, user)


def _of_object(part: Part) -> Iterator[Part]:
    """Yield what an object's own reducer would send; nothing if it has none."""
    value, path, user = part.value, part.path, part.user
    try:
        reducer = cloudpickle.Pickler.dispatch_table.get(type(value))
        reduced: Any = value.__reduce_ex__(5) if reducer is None else reducer(value)
    except Exception:
        return
    if not isinstance(reduced, tuple):
        return
    whole: tuple[Any, ...] = (*reduced, None, None, None, None)
    args, state, items, pairs = whole[1:5]
    states: tuple[Any, ...] = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for one in states:
        if isinstance(one, dict):
            for name, held in one.items():
                yield Part(f"{path}.{name}" if isinstance(name, str) else f"{path}[{name!r}]", held, user)
        elif one is not None:
            yield Part(f"the state of {path}", one, user)
    yield from (Part(f"{path}[{i}]", held, user) for i, held in enumerate(items or ()))
    yield from _of_dict(pairs or (), path, user)
    yield from (Part(f"a part of {path}", held, user) for held in args or () if held is not value)
    if not isinstance(value, type):
        yield Part(type(value).__qualname__, type(value), user)
