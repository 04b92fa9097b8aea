"""The levels of a stack as values, with their source."""

from __future__ import annotations

import itertools
import linecache
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nbproc.failures.places import is_caller, is_library, is_machinery, short_name

LINE_CHARS = 500
CONTEXT = 2
"""Lines of source kept before and after the one that counts."""
_FRAMES_HEAD = 12
_FRAMES_TAIL = 24
_CONTROL = dict.fromkeys([*range(9), *range(10, 32), 127], "?")  # as many bytes as before: columns are counted in them


@dataclass(frozen=True)
class Frame:
    """One level of a stack.

    ``source`` holds numbered lines around ``line`` (only that line for library code, nothing if unknown).
    ``cell`` is the execution count of the notebook cell that ``file`` stands for. ``columns`` are the 0-based
    character columns of the failing expression in the line's source. ``skipped`` is the number of frames left out
    just before this one.
    """

    file: str
    line: int
    function: str
    source: tuple[tuple[int, str], ...] = ()
    cell: int | None = None
    columns: tuple[int, int] | None = None
    skipped: int = 0

    @property
    def place(self) -> str:
        """Where this is, in few words: ``cell [3] line 30`` or ``train.py line 12``."""
        if self.cell is not None:
            return f"cell [{self.cell}] line {self.line}"
        return f"{short_name(self.file)} line {self.line}"

    @property
    def location(self) -> str:
        """Where this is, in full: ``Cell In[3], line 30`` or ``File "/home/me/train.py", line 12``."""
        if self.cell is not None:
            return f"Cell In[{self.cell}], line {self.line}"
        return f'File "{self.file}", line {self.line}'

    @property
    def words(self) -> str:
        """Function and place: ``train, cell [3] line 30``; the place alone at a module's or cell's top level."""
        return self.place if self.function in ("", "<module>") else f"{self.function}, {self.place}"

    @property
    def text(self) -> str:
        """The source of the line itself, "" if unknown."""
        return next((text for number, text in self.source if number == self.line), "")

    @property
    def is_library(self) -> bool:
        """True for code of the standard library or an installed package."""
        return self.cell is None and is_library(self.file)


def frame_from_json(data: Mapping[str, Any]) -> Frame:
    """Read one frame of what `Trace.to_json` returned."""
    cell, columns = data.get("cell"), data.get("columns")
    return Frame(
        file=str(data["file"]),
        line=int(data["line"]),
        function=str(data["function"]),
        source=tuple((int(number), str(text)) for number, text in data.get("source", ())),
        cell=None if cell is None else int(cell),
        columns=None if columns is None else (int(columns[0]), int(columns[1])),
        skipped=int(data.get("skipped", 0)),
    )


def frames_of(traceback: types.TracebackType | None, cells: Mapping[str, int]) -> tuple[Frame, ...]:
    """Return the frames of a traceback, outermost first, without the machinery on the outside."""
    levels: list[types.TracebackType] = []
    while traceback is not None:
        levels.append(traceback)
        traceback = traceback.tb_next
    outside = len(list(itertools.takewhile(_is_outside(cells), levels)))
    if outside < len(levels):
        levels = levels[outside:]
    elif levels and is_caller(levels[-1].tb_frame.f_code.co_filename):
        levels = []  # the call itself failed: wrong arguments
    return tuple(
        _frame(level, skipped, cells)
        for level, skipped in thin_out(levels, lambda level: (level.tb_frame.f_code, level.tb_lineno))
    )


def _is_outside(cells: Mapping[str, int]) -> Any:
    def outside(level: types.TracebackType) -> bool:
        file = level.tb_frame.f_code.co_filename
        return file not in cells and is_machinery(file)

    return outside


def thin_out(levels: Iterable[Any], key: Any) -> list[tuple[Any, int]]:
    """Drop frames that repeat the one before (recursion), then the middle of a very long stack.

    Returns each kept level with the number of levels left out before it.
    """
    kept: list[tuple[Any, int]] = []
    for _, run in itertools.groupby(levels, key):
        same = list(run)
        if len(same) <= 3:
            kept.extend((level, 0) for level in same)
        else:
            kept.extend([(same[0], 0), (same[-1], len(same) - 2)])
    if len(kept) > _FRAMES_HEAD + _FRAMES_TAIL:
        tail = kept[-_FRAMES_TAIL:]
        gone = sum(1 + skipped for _, skipped in kept[_FRAMES_HEAD:-_FRAMES_TAIL]) + tail[0][1]
        kept = [*kept[:_FRAMES_HEAD], (tail[0][0], gone), *tail[1:]]
    return kept


def _frame(level: types.TracebackType, skipped: int, cells: Mapping[str, int]) -> Frame:
    code = level.tb_frame.f_code
    file = code.co_filename
    function = str(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")  # co_qualname: Python 3.11
    context = 0 if file not in cells and is_library(file) else CONTEXT
    source = source_lines(file, level.tb_lineno, level.tb_frame.f_globals, context=context)
    line = next((text for number, text in source if number == level.tb_lineno), "")
    return Frame(file, level.tb_lineno, function, source, cells.get(file), _columns(level, line), skipped)


def source_lines(
    file: str, line: int, module: Mapping[str, Any] | None = None, *, context: int
) -> tuple[tuple[int, str], ...]:
    """Return the numbered source lines around ``line``, () if the source cannot be read."""
    try:
        lines = linecache.getlines(file, dict(module) if module and "__loader__" in module else None)
    except Exception:
        return ()
    if not 1 <= line <= len(lines):
        return ()
    first = max(1, line - context)
    shown = [(number, _cut_line(text)) for number, text in enumerate(lines[first - 1 : line + context], start=first)]
    while shown and not shown[0][1].strip() and shown[0][0] < line:
        shown.pop(0)
    while shown and not shown[-1][1].strip() and shown[-1][0] > line:
        shown.pop()
    return tuple(shown)


def _cut_line(text: str) -> str:
    """Return one line of source without its end, encodable, no control character in it, at most 500 characters."""
    text = text.rstrip("\r\n").translate(_CONTROL)
    text = text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 3] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def _columns(level: types.TracebackType, line: str) -> tuple[int, int] | None:
    positions = getattr(level.tb_frame.f_code, "co_positions", None)  # Python 3.11
    if positions is None or level.tb_lasti < 0 or not line:
        return None
    found = next(itertools.islice(positions(), level.tb_lasti // 2, None), (None,) * 4)
    first, last, start_byte, end_byte = found
    if first != level.tb_lineno or start_byte is None or end_byte is None:
        return None
    encoded = line.encode()
    start = len(encoded[:start_byte].decode("utf-8", "replace"))
    end = len(encoded[:end_byte].decode("utf-8", "replace")) if last == first else len(line.rstrip())
    indent = len(line) - len(line.lstrip())
    if not start < end <= len(line) or (start <= indent and end >= len(line.rstrip())):
        return None
    return start, end
