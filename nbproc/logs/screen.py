"""The rows of a log and a cursor in them: a terminal without an upper end and without a width. Pure.

Rows are numbered from the beginning of the stream; only the last `WINDOW` of them, which the cursor can reach, are held.
What changed is collected and said once, by `Screen.flush`. Used by `nbproc.logs.lines` alone.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import NamedTuple

from nbproc.logs.cells import LIMIT, Cells, simple

__all__ = ["WINDOW", "Screen", "Update"]

WINDOW = 128
"""The cursor can go up so many rows from the last one."""

_JUMP = 300
"""Columns that a cursor movement may reach in an empty row: wider than any terminal, too small to fill the memory."""
_CELLS = 4 * LIMIT
"""So many columns of styled rows are held as `Cells`, which take 20 times the memory of a string."""
_SLACK = 3
"""So many rows may follow a redrawing before it is held to be over."""
_END = -1
"""The column after the last character of a row that is a string, whatever its width."""
_PLAIN = "\x1b[0m"


class Update(NamedTuple):
    """What changed of one line: a `LineEvent` without the rank, the stream and the time."""

    number: int
    text: str
    complete: bool


_update = partial(tuple.__new__, Update)  # a quarter of the time of Update(...), which is Python code


class Screen:
    """See the module. Attributes: ``style`` (of what is written next), ``reach`` (rows above the last being redrawn)."""

    def __init__(self, top: int = 0) -> None:
        self.style = ""
        self.reach = 0
        self._top = top  # the number of the first row
        self._rows: list[str | Cells] = [""]
        self._sent: list[Update | None] = [None]  # what was last said of each row
        self._at = 0  # the cursor's row, an index into _rows
        self._column = _END
        self._tail = ""  # the style of the last character of the cursor's row, if that is a string
        self._live = top  # rows from this number on are not complete
        self._since = 0  # rows begun since the cursor last went up
        self._dirty: set[int] = set()  # numbers, as the next two
        self._rewritten: set[int] = set()  # rows where something was overwritten: blanks at their end are no text
        self._over: dict[int, int] = {}  # columns beyond LIMIT
        self._out: list[Update] = []

    @property
    def last(self) -> int:
        """The number of the last row."""
        return self._top + len(self._rows) - 1

    def note(self, text: str) -> None:
        """Add a row of our own after the last one."""
        self._at = len(self._rows) - 1
        self._column, self._tail, self.style = _END, "", ""
        if self._rows[self._at] != "":
            self.newline()
        self._write(text)
        self.newline()

    # ------------------------------------------------------------------------------------------------ text

    @property
    def appending(self) -> bool:
        """Whether plain text would just be added at the end."""
        return not self.reach and not self.style and self._column == _END and self._at == len(self._rows) - 1

    def append(self, text: str) -> list[Update]:
        """Add ``text``, which has no controls but newlines, while `appending`; return what changed."""
        out = self._merged(self._append(text))
        self._trim()
        return out

    def _append(self, text: str) -> list[Update]:
        head, *lines = text.split("\n")
        if head:
            self._write(head)
        if not lines:
            return self._changes()
        out = self._ended()
        number = self._top + len(self._rows)
        last = lines.pop()
        if len(text) > LIMIT and lines and max(map(len, lines)) > LIMIT:
            self.newline()
            self._write_lines([*lines, last])
            return out + self._changes()
        updates: list[Update] = list(map(_update, zip(range(number, number + len(lines)), lines, repeat(True))))
        out += updates
        if len(lines) < WINDOW:
            self._rows += lines
            self._sent += updates
        else:
            self._rows, self._sent = [*lines[-WINDOW:]], [*updates[-WINDOW:]]
        self._rows.append("")
        self._sent.append(None)
        self._at = len(self._rows) - 1
        self._top = number + len(lines) - self._at
        self._live = self._top + self._at
        self._column = _END
        self._tail = ""
        if last:
            self._write(last)
            out += self._changes()
        return out

    def _ended(self) -> list[Update]:
        """Return the update of the last row, whose newline has come."""
        index = self._at
        number = self._top + index
        self._dirty.discard(number)
        update = Update(number, self._render(index), True)
        self._sent[index] = update
        return [update]

    def text(self, text: str) -> None:
        """Write ``text``, which has no controls but newlines, where the cursor is."""
        lines = text.split("\n")
        if len(lines) > 4 and self.appending:
            self._out += self._changes()
            self._out += self._append(text)
        else:
            self._write_lines(lines)

    def _write_lines(self, lines: list[str]) -> None:
        for index, line in enumerate(lines):
            if index:
                self.newline()
            if line:
                self._write(line)

    def newline(self) -> None:
        """Move the cursor to the beginning of the next row, made if there is none."""
        self._dirty.add(self._top + self._at)  # a blank line is one too
        self._at += 1
        if self._at == len(self._rows):
            self._rows.append("")
            self._sent.append(None)
            self._since += 1
            if self._since > self.reach + _SLACK:
                self.reach = 0  # no redrawing any more: lines just follow each other
            if len(self._rows) > 8 * WINDOW:
                self._out += self._changes()
                self._trim()
        self._column, self._tail = (0 if self._rows[self._at] != "" else _END), ""

    def _write(self, text: str) -> None:
        number = self._top + self._at
        row = self._rows[self._at]
        self._dirty.add(number)
        if isinstance(row, str) and len(row) + len(text) <= LIMIT:
            if self._column == _END and (self.style == self._tail or simple(text)):
                self._rows[self._at] = self._joined(row, text)
                return
            if not self.style and 0 <= self._column <= LIMIT and simple(row) and simple(text):
                column = self._column
                if column < len(row):
                    self._rewritten.add(number)
                end = column + len(text)
                self._rows[self._at] = row[:column].ljust(column) + text + row[end:]
                self._column, self._tail = (end if end < len(row) else _END), ""
                return
        column = self.where()
        cells = self._cells()
        if column < len(cells):
            self._rewritten.add(number)
        self._column = cells.write(column, text, self.style)
        if self._column > LIMIT:
            self._over[number] = max(self._over.get(number, 0), self._column - LIMIT)

    def _joined(self, row: str, text: str) -> str:
        """Return ``row``, whose end has the style `_tail`, and ``text`` after it, as `Cells.render` would."""
        style, tail = self.style, self._tail
        self._tail = style
        if not style:
            return row + text
        if tail:
            return row.removesuffix(_PLAIN) + ("" if tail == style else f"\x1b[0;{style}m") + text + _PLAIN
        return f"{row}\x1b[{style}m{text}{_PLAIN}"

    # ------------------------------------------------------------------------------------------------ the cursor

    def where(self) -> int:
        """Return the cursor's column as a number."""
        if self._column == _END:
            row = self._rows[self._at]
            if isinstance(row, str) and simple(row):
                return len(row)
            return len(self._cells()) + self._over.get(self._top + self._at, 0)
        return self._column

    def go(self, column: int) -> None:
        """Move the cursor to ``column``, within reason."""
        self._column = min(max(column, 0), max(self.where(), len(self._rows[self._at]), _JUMP))

    def up(self, count: int) -> None:
        """Move the cursor up, as far as rows are held."""
        column = self.where()
        last = len(self._rows) - 1
        self._at = max(self._at - count, last - WINDOW, 0)
        self._column = column
        self.reach = max(self.reach, last - self._at)
        self._since = 0

    def down(self, count: int) -> None:
        """Move the cursor down, but not below the last row: a terminal that has scrolled is at its lower edge there."""
        column = self.where()
        self._at = min(self._at + count, len(self._rows) - 1)
        self._column = column

    def home(self) -> None:
        """Move the cursor to the beginning of its row."""
        self._column = 0 if self._rows[self._at] != "" else _END

    def _cells(self) -> Cells:
        row = self._rows[self._at]
        if isinstance(row, str):
            row = self._rows[self._at] = Cells(row)
        return row

    # ------------------------------------------------------------------------------------------------ erasing

    def erase_below(self) -> None:
        """Blank everything after the cursor."""
        self.erase(self.where(), LIMIT)
        for index in range(self._at + 1, len(self._rows)):
            self._clear(index)

    def erase(self, start: int, end: int) -> None:
        """Blank the columns of the cursor's row from ``start`` to before ``end`` (`LIMIT`: all)."""
        if end >= LIMIT:
            self._over.pop(self._top + self._at, None)
        if start == 0 and end >= LIMIT:
            self._column = self.where()
            self._clear(self._at)
        elif start < len(self._cells()):
            self._column = self.where()
            self._cells().erase(start, end)
            self._mark(self._at)

    def _clear(self, index: int) -> None:
        self._over.pop(self._top + index, None)
        if index == self._at:
            self._tail = ""
        if self._rows[index] != "":
            self._rows[index] = ""
            self._mark(index)

    def _mark(self, index: int) -> None:
        self._dirty.add(self._top + index)
        self._rewritten.add(self._top + index)

    # ------------------------------------------------------------------------------------------------ what comes out

    def flush(self, *, final: bool = False) -> list[Update]:
        """Return what changed since the last time; ``final``: no row will change again."""
        out = self._merged(self._changes(final=final))
        if self._column == 0 and self._rows[self._at] == "":
            self._column, self._tail = _END, ""
        self._trim()
        return out

    def _merged(self, new: list[Update]) -> list[Update]:
        """Return what was collected on the way and ``new``, each row once."""
        if not self._out:
            return new
        latest = {update.number: update for update in (*self._out, *new)}
        self._out = []
        return [latest[number] for number in sorted(latest)]

    def _changes(self, *, final: bool = False) -> list[Update]:
        """Return what changed since it was last said, and say no more of it."""
        last = len(self._rows) - 1
        live = self._top + (last + 1 if final else min(self._at, last - self.reach))
        live = max(live, self._top)
        changed = self._dirty.union(range(min(live, self._live), max(live, self._live)))
        self._dirty.clear()
        self._live = live
        out: list[Update] = []
        for number in sorted(changed):
            index = number - self._top
            if not 0 <= index <= last:
                continue
            update = Update(number, self._render(index), number < live)
            known = self._sent[index]
            if update != known and (update.text or known is not None or index < last):
                out.append(update)
                self._sent[index] = update
        return out

    def _render(self, index: int) -> str:
        row = self._rows[index]
        number = self._top + index
        text = row if isinstance(row, str) else row.render()
        if number in self._rewritten:
            text = text.rstrip(" ")
        if over := self._over.get(number):
            text += f"… [cut here: {over:,} more characters]"
        return text

    def _trim(self) -> None:
        """Forget rows that the cursor cannot reach any more, and hold the others in little memory."""
        extra = len(self._rows) - 1 - WINDOW
        if extra > WINDOW:
            del self._rows[:extra], self._sent[:extra]
            self._top += extra
            self._at -= extra
        if self._rewritten or self._over:
            self._rewritten = {number for number in self._rewritten if number >= self._top}
            self._over = {number: over for number, over in self._over.items() if number >= self._top}
        if sum(len(row) for row in self._rows if isinstance(row, Cells)) > _CELLS:
            for index, row in enumerate(self._rows):
                if isinstance(row, Cells) and index != self._at and self._top + index not in self._over:
                    self._rows[index] = self._render(index)
