"""`$name` and `{expression}` in a line of text, as IPython expands them in its `!` and `%` lines. Pure."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Field", "evaluate", "expand", "field_at", "fields", "names_in", "render", "split"]

_DOLLAR = re.compile(r"\$([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_DOLLAR_BRACE = re.compile(r"\$\{([^\W\d]\w*)\}")
_CONVERSIONS: dict[str, Callable[[object], str]] = {"r": repr, "s": str, "a": ascii}


@dataclass(frozen=True)
class Field:
    """A place in a text where a value goes. ``raw`` is the place as it was written."""

    expression: str
    raw: str
    conversion: str = ""
    spec: str = ""

    @property
    def dollar(self) -> bool:
        """True if it was written as `$name`."""
        return self.raw.startswith("$")


def field_at(text: str, start: int, *, shell_braces: bool = False) -> tuple[Field, int] | None:
    """Return the field that begins at ``text[start]`` and where it ends, or None if none does.

    ``shell_braces`` reads `${name}` as `$name`. Raises ValueError for a brace without its partner.
    """
    if text[start] == "$":
        found = (shell_braces and _DOLLAR_BRACE.match(text, start)) or _DOLLAR.match(text, start)
        return (Field(found[1], found[0]), found.end()) if found else None
    if text[start] != "{":
        return None
    end = _partner(text, start)
    raw = text[start:end]
    _, name, spec, conversion = next(iter(string.Formatter().parse(raw)))
    if not name or not name.strip():
        raise ValueError(f"{raw} is empty")
    return Field(name.strip(), raw, conversion or "", spec or ""), end


def _partner(text: str, start: int) -> int:
    """Where the brace that opens at ``start`` is closed; quotes within it are Python's."""
    depth, quote, at = 0, "", start
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "{}":
            depth += 1 if char == "{" else -1
            if not depth:
                return at + 1
        at += 1
    raise ValueError(f"the brace of {text[start:]!r} is not closed")


def split(text: str) -> tuple[str | Field, ...]:
    """Cut ``text`` into literal parts and fields, by IPython's rules for `!` lines.

    `{{`, `}}` and `$$` stand for one character; `$name` between single quotes is left alone. Raises ValueError for
    braces that do not match.
    """
    pieces: list[str | Field] = []
    literal: list[str] = []
    at, single = 0, False
    while at < len(text):
        char = text[at]
        if char in "{}$" and text[at : at + 2] == char * 2:
            literal.append(char)
            at += 2
            continue
        if char == "'":
            single = not single
        if char == "}":
            raise ValueError("a brace is closed that was not opened")
        if char in "{$" and not (single and char == "$") and (found := field_at(text, at)):
            pieces += ["".join(literal), found[0]]
            literal, at = [], found[1]
            continue
        literal.append(char)
        at += 1
    pieces.append("".join(literal))
    return tuple(piece for piece in pieces if piece != "")


def fields(text: str) -> tuple[Field, ...]:
    """Return the fields of ``text``; none if it cannot be expanded."""
    try:
        return tuple(piece for piece in split(text) if isinstance(piece, Field))
    except ValueError:
        return ()


def names_in(expression: str) -> frozenset[str]:
    """Return the names that a Python expression reads; none if it is no expression."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def evaluate(field: Field, namespace: Mapping[str, object]) -> object:
    """Evaluate the field's expression in ``namespace``; raises whatever it raises."""
    return eval(field.expression, {}, namespace)


def render(field: Field, value: object) -> str:
    """Return ``value`` as text, by the field's conversion and format."""
    if field.conversion:
        value = _CONVERSIONS[field.conversion](value)
    return format(value, field.spec)


def expand(text: str, namespace: Mapping[str, object]) -> str:
    """Return ``text`` with its fields filled in.

    `$name` that is no variable is left to the shell; if a `{field}` cannot be filled in, all stays as it was written,
    as in IPython.
    """
    try:
        return "".join(piece if isinstance(piece, str) else _filled(piece, namespace) for piece in split(text))
    except Exception:
        return text


def _filled(field: Field, namespace: Mapping[str, object]) -> str:
    try:
        return render(field, evaluate(field, namespace))
    except Exception:
        if field.dollar:
            return field.raw
        raise
