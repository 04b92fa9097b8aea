"""One line of a terminal: characters in columns, each with its style. Pure; used by `nbproc.logs.lines` alone.

A row that nobody styled and whose characters are one column wide stays a plain string (`simple`), since nearly all are;
`Cells` is for the others. A style is the parameters of the SGR sequence that sets it: "" (none), "1;38;5;4".
"""

from __future__ import annotations

import functools
import re
import unicodedata
from itertools import groupby

__all__ = ["LIMIT", "SGR", "Cells", "restyle", "simple"]

LIMIT = 64 * 1024
"""Columns kept of a line; what is beyond is counted, not kept."""

SGR = re.compile(r"\x1b\[([0-9:;]*)m")

_CLUSTER = 16
"""Characters in one cell: a base and its combining marks; more marks than that are dropped."""

# Blocks whose characters are one column each and do not combine: Latin, Greek, Cyrillic, punctuation that bars and
# spinners are drawn with, arrows, box drawing, blocks, Braille. Anything else is looked up one by one.
_NARROW = re.compile("[\t -~\u00a0-\u00ac\u00ae-\u02ff\u0370-\u0377\u0384-\u03ff\u0400-\u0482\u2010-\u2027\u2190-\u2319"
                     "\u2500-\u25fc\u2800-\u28ff]*")  # fmt: skip

# What each SGR parameter sets; the "off" parameters remove the group.
_SETS = {
    **{1: "bold", 2: "dim", 3: "italic", 4: "underline", 21: "underline", 5: "blink", 6: "blink", 7: "reverse"},
    **{8: "hidden", 9: "strike", 53: "overline"},
    **dict.fromkeys([*range(30, 38), *range(90, 98)], "fg"),
    **dict.fromkeys([*range(40, 48), *range(100, 108)], "bg"),
}
_UNSETS = {
    **{22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 25: ("blink",), 27: ("reverse",), 28: ("hidden",)},
    **{29: ("strike",), 39: ("fg",), 49: ("bg",), 55: ("overline",), 59: ("line",)},
}
_COLOURS = {38: "fg", 48: "bg", 58: "line"}


def simple(text: str) -> bool:
    """Return whether each character of ``text`` takes one column and none is an escape."""
    if text.isascii():
        return "\x1b" not in text
    return _NARROW.fullmatch(text) is not None


@functools.lru_cache(maxsize=4096)
def restyle(style: str, parameters: str) -> str:
    """Return the style that an SGR sequence with ``parameters`` makes of ``style``."""
    state: dict[str, str] = {}
    for source in (style, parameters) if style else (parameters,):
        _apply(state, source.split(";"))
    return ";".join(state[group] for group in sorted(state))


def _apply(state: dict[str, str], words: list[str]) -> None:
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        head = word.split(":", 1)[0]
        code = int(head or "0") if len(head) < 4 else -1
        if code in _COLOURS:
            size = 1
            if ":" not in word:  # 38;5;n or 38;2;r;g;b: the parameters that follow belong to it
                size = {"5": 3, "2": 5}.get(words[position] if position < len(words) else "", 0)
            if size == 0 or position - 1 + size > len(words):
                return  # broken: what follows cannot be told apart
            state[_COLOURS[code]] = ";".join(words[position - 1 : position - 1 + size])
            position += size - 1
        elif code == 0:
            state.clear()
        elif word == "4:0":
            state.pop("underline", None)
        elif code in _SETS:
            state[_SETS[code]] = word if code == 4 else str(code)
        else:
            for group in _UNSETS.get(code, ()):
                state.pop(group, None)


@functools.lru_cache(maxsize=4096)
def _width(char: str) -> int:
    if char == "\t":
        return 1
    if unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Cells:
    """The columns of one line: a character each ("" is the right half of a wide one), and their styles."""

    __slots__ = ("chars", "styles")

    def __init__(self, text: str = "") -> None:
        self.chars: list[str] = []
        self.styles: list[str] = []
        style, start = "", 0
        for match in SGR.finditer(text):
            self.write(len(self.chars), text[start : match.start()], style)
            style, start = restyle(style, match[1]), match.end()
        self.write(len(self.chars), text[start:], style)

    def __len__(self) -> int:
        return len(self.chars)

    def write(self, column: int, text: str, style: str) -> int:
        """Write ``text`` from ``column`` on and return the column after it; what is beyond `LIMIT` is not kept."""
        room = LIMIT - column
        if room <= 0:
            return column + len(text)
        if simple(text):
            new, end = list(text[:room]), column + len(text)
        else:
            new, left = self._cluster(column, text, room)
            end = column + len(new) + left
        chars = self.chars
        if column > len(chars):
            self.styles += [""] * (column - len(chars))
            chars += " " * (column - len(chars))
        self._free(column)
        self._free(column + len(new))
        chars[column : column + len(new)] = new
        self.styles[column : column + len(new)] = [style] * len(new)
        return end

    def _free(self, column: int) -> None:
        """Replace the wide character that ``column`` would cut in two by spaces."""
        if 0 < column < len(self.chars) and self.chars[column] == "":
            self.chars[column - 1 : column + 1] = "  "

    def _cluster(self, column: int, text: str, room: int) -> tuple[list[str], int]:
        """Return ``text`` in cells, at most ``room``, and how many characters had no room.

        Marks at its start are added to the cell before ``column``.
        """
        new: list[str] = []
        for index, char in enumerate(text):
            if len(new) >= room:
                return new, len(text) - index
            width = _width(char)
            if width:
                new += [char, ""] if width == 2 else [char]
                continue
            cells, last = (new, len(new) - 1) if new else (self.chars, min(column, len(self.chars)) - 1)
            if last > 0 and cells[last] == "":
                last -= 1
            if last < 0:
                new.append(char)
            elif len(cells[last]) < _CLUSTER:
                cells[last] += char
        return new, 0

    def erase(self, start: int, end: int) -> None:
        """Blank the columns from ``start`` to before ``end``; cut the line if that is its end."""
        self._free(start)
        if end >= len(self.chars):
            del self.chars[start:], self.styles[start:]
            return
        self._free(end)
        self.chars[start:end] = " " * (end - start)
        self.styles[start:end] = [""] * (end - start)

    def render(self) -> str:
        """Return the line as text with SGR sequences, without a style at its end."""
        if not any(self.styles):
            return "".join(self.chars)
        parts: list[str] = []
        previous, column = "", 0
        for style, group in groupby(self.styles):
            size = sum(1 for _ in group)
            if style != previous:
                parts.append("\x1b[0m" if not style else f"\x1b[0;{style}m" if previous else f"\x1b[{style}m")
            parts += self.chars[column : column + size]
            previous, column = style, column + size
        if previous:
            parts.append("\x1b[0m")
        return "".join(parts)
