"""What a call of `nbproc.panel` gives -> the texts that stand in the form's fields. Pure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from nbproc.errors import ArgumentError
from nbproc.logs.std import Std, as_std
from nbproc.notebook import functions
from nbproc.notebook.panel_values import RankValues

_PLAIN = ("name", "variable", "start_method", "log_dir", "timeout")


def given_values(
    fn: object, nprocs: int | str | None, given: Mapping[str, Any], namespace: Mapping[str, object]
) -> dict[str, Any]:
    """Return the fields of `Values` that were given. Raises `ArgumentError` for what no field can hold."""
    found: dict[str, Any] = _entrypoint(fn, namespace)
    if nprocs is not None:
        found["nprocs"] = str(nprocs)
    present = {name: value for name, value in given.items() if value is not None}
    for name in _PLAIN:
        if name in present:
            found[name] = str(present[name])
    if "filters" in present:
        filters = present["filters"]
        found["filters"] = " ".join(_word(each) for each in ([filters] if isinstance(filters, str) else filters))
    rows: dict[int, dict[str, str]] = {}
    program = bool(found.get("program"))
    for name, column, write in (
        ("args", "arguments", _words if program else _arguments),
        ("envs", "environment", _settings),
        ("redirects", "redirects", _mask),
        ("tee", "tee", _mask),
    ):
        if name in present:
            found.update(_by_rank(name, present[name], column, write, rows))
    if rows:
        found["ranks"] = {rank: RankValues(**row) for rank, row in sorted(rows.items())}
    return found


def _entrypoint(fn: object, namespace: Mapping[str, object]) -> dict[str, Any]:
    if fn is None:
        return {}
    if isinstance(fn, str):
        try:
            functions.look_up(fn, namespace)
        except LookupError:
            program, _, arguments = fn.strip().partition(" ")
            return {"program": True, "executable": program, **({"arguments": arguments.strip()} if arguments else {})}
        return {"function": fn}
    if not callable(fn):
        raise ArgumentError(f"panel({fn!r}): give a function, or the name of a program")
    name = functions.name_of(fn, namespace)
    if name is None:
        shown = getattr(fn, "__name__", type(fn).__name__)
        raise ArgumentError(
            f"panel({shown}): the notebook has no name for this function; give it one first: work = ..."
        )
    return {"function": name}


def _by_rank(
    name: str, value: Any, column: str, write: Callable[[Any], str], rows: dict[int, dict[str, str]]
) -> dict[str, str]:
    ranks = isinstance(value, Mapping) and all(isinstance(rank, int) for rank in value) and bool(value)
    try:
        if not ranks:
            return {column: write(value)}
        for rank, own in value.items():
            rows.setdefault(int(rank), {})[column] = write(own)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"panel({name}={value!r}): {error}") from None
    return {}


def _arguments(value: Any) -> str:
    """A text stands as it is; a tuple is written out, if its parts can be."""
    if isinstance(value, str):
        return value
    if not isinstance(value, tuple | list):
        raise TypeError("write the arguments as in a call, in quotes: 'cfg, lr=0.1'")
    parts = [repr(each) for each in value]
    for part in parts:
        try:
            ast.literal_eval(part)
        except (ValueError, SyntaxError):
            raise TypeError(f"write the arguments as in a call, in quotes, such as 'cfg, lr=0.1', not {part}") from None
    return ", ".join(parts)


def _words(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(_word(str(each)) for each in value)


def _settings(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError("give the environment as a dict of names and values")
    return " ".join(_word(f"{key}={each}") for key, each in value.items())


def _mask(value: Any) -> str:
    if isinstance(value, str):
        mask = Std.from_str(value)
        if isinstance(mask, dict):
            raise TypeError("give a dict for masks by rank")
        return str(int(mask))
    return str(int(as_std(value)))


def _word(text: str) -> str:
    """A word that is nothing but this text."""
    if text and not set(text) & set(" \t\n'\"\\{}$"):
        return text
    return "'" + text.replace("'", "'\\''") + "'"
