"""The functions that a notebook has: their names, signatures and first lines; and what a dotted name means there.

Nothing here runs the user's code: attributes are looked up where they are stored, never asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

LIMIT = 200
"""So many functions are listed."""
_WIDTH = 120

_MISSING: Any = object()


@dataclass(frozen=True)
class Function:
    """One function as it is shown in a list. ``own``: the notebook defined it, it did not import it."""

    name: str
    signature: str
    doc: str
    own: bool


def functions(namespace: Mapping[str, object], hidden: Collection[str] = ()) -> tuple[Function, ...]:
    """Return the functions of a notebook: its own in the order of their cells, then those it imported by name.

    ``hidden`` are names that the shell has put there.
    """
    found = [
        describe(name, value, own=_is_own(value))
        for name, value in list(namespace.items())
        if not name.startswith("_") and name not in hidden and is_function(value)
    ]
    return tuple(sorted(found, key=lambda function: not function.own))[:LIMIT]


def members(text: str, namespace: Mapping[str, object]) -> tuple[Function, ...]:
    """Return the public functions of a module (or class) whose dotted names may be meant by what was typed so far."""
    prefix, _, start = text.strip().rpartition(".")
    try:
        holder = look_up(prefix, namespace)
    except LookupError:
        return ()
    found: list[Function] = []
    for name, value in sorted(_stored(holder).items()):
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if start.lower() in name.lower() and not name.startswith("_") and is_function(value):
            found.append(describe(f"{prefix}.{name}", value, own=False))
            if len(found) == LIMIT:
                break
    return tuple(found)


def look_up(name: str, namespace: Mapping[str, object]) -> Any:
    """Return what a dotted name means in the notebook, as far as it can be seen without running code.

    Raises LookupError with a sentence if there is no such thing.
    """
    first, *rest = name.split(".")
    if not all(part.isidentifier() for part in (first, *rest)):
        raise LookupError(f"{name} is not the name of a function; write train, or module.train")
    value = namespace.get(first, _MISSING)
    if value is _MISSING:
        more = f"; run import {first} in a cell first" if rest else ""
        raise LookupError(f"{first} is not defined in the notebook{more}")
    at = first
    for part in rest:
        found = _stored(value).get(part, _MISSING)
        if found is _MISSING:
            if isinstance(value, ModuleType) and "__getattr__" not in vars(value):
                raise LookupError(f"the module {at} has no {part}")
            found = _static(value, part, at)
        value = found.__func__ if isinstance(found, staticmethod) else found
        at = f"{at}.{part}"
    return value


def name_of(wanted: object, namespace: Mapping[str, object]) -> str | None:
    """Return a name by which the notebook can call this function, None if it has none."""
    own = getattr(wanted, "__name__", "")
    if own and namespace.get(own) is wanted:
        return str(own)
    for name, value in namespace.items():
        if value is wanted and not name.startswith("_"):
            return name
    for name, value in namespace.items():
        if isinstance(value, ModuleType) and own and vars(value).get(own) is wanted:
            return f"{name}.{own}"
    return None


def is_function(value: object) -> bool:
    """Return whether a value is a function, for a list: no class, no object that can be called as well."""
    return inspect.isroutine(value) or isinstance(value, functools.partial) or _wraps(value)


def signature_of(value: Any) -> inspect.Signature | None:
    """Return a function's signature, None if it cannot be told."""
    try:
        return inspect.signature(value)
    except (ValueError, TypeError):
        return None


def describe(name: str, value: object, *, own: bool) -> Function:
    """Return a function as it is shown."""
    signature = signature_of(value)
    shown = "(...)" if signature is None else _short(signature)
    return Function(name, shown, _first_line(value), own)


def _short(signature: inspect.Signature) -> str:
    """The signature without types; if it is long, without defaults as well."""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_Default.of(parameter))
        for parameter in signature.parameters.values()
    ]
    shown = str(inspect.Signature(bare))
    if len(shown) <= _WIDTH:
        return shown
    names = str(inspect.Signature([p.replace(default=inspect.Parameter.empty) for p in bare]))
    return names if len(names) <= _WIDTH else f"{names[: _WIDTH - 4]}...)"


class _Default:
    """A default value whose ``repr`` is one short line."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Any:
        if parameter.default is inspect.Parameter.empty:
            return parameter.default
        value = parameter.default
        if isinstance(value, str | int | float | bool | bytes | None | tuple) and len(text := repr(value)) <= 30:
            return cls(text)
        return cls("...")


def _first_line(value: object) -> str:
    doc = inspect.getdoc(value) if not isinstance(value, functools.partial) else inspect.getdoc(value.func)
    lines = (doc or "").strip().splitlines()
    return lines[0].strip()[:_WIDTH] if lines else ""


def _wraps(value: object) -> bool:
    return not isinstance(value, type) and "__wrapped__" in _stored(value) and callable(value)


def _is_own(value: object) -> bool:
    function = value.func if isinstance(value, functools.partial) else value
    return getattr(function, "__module__", None) == "__main__"


def _stored(value: object) -> Mapping[str, Any]:
    try:
        return vars(value)
    except TypeError:
        return {}


def _static(value: object, part: str, at: str) -> Any:
    try:
        found = inspect.getattr_static(value, part)
    except AttributeError:
        raise LookupError(f"{at} has no {part}") from None
    if isinstance(found, property):
        raise LookupError(f"{at}.{part} is a property, not a function")
    if inspect.isfunction(found) and not isinstance(value, type):
        return found.__get__(value)
    return found
