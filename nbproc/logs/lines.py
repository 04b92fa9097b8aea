"""Bytes of a log -> lines, as a terminal would show them. Pure: no files, no threads, no clock.

A log is a terminal without an upper end and without a width. Most of it is plain text, which is split at the speed of
``str.split``; what moves the cursor (progress bars) goes through a small terminal that can reach back `WINDOW` lines.
"""

from __future__ import annotations

import codecs
import enum
import re
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import NamedTuple

from nbproc.logs.cells import LIMIT, SGR, Cells, restyle, simple

__all__ = ["LineDiscipline", "LineEvent", "LineFilter", "Stream", "Update", "plain"]

WINDOW = 128
"""The cursor can go up so many lines from the last one."""

_PLAIN = "\x1b[0m"
_JUMP = 300
"""Columns that a cursor movement may reach in an empty line: wider than any terminal, too small to fill the memory."""
_CELLS = 4 * LIMIT
"""So many columns of styled lines are held as `Cells`, which take 20 times the memory of a string."""
_SLACK = 3
"""So many lines may follow a redrawing before it is held to be over."""
_END = -1
"""The column after the last character of a row that is a string, whatever its width."""

_JUNK = bytes([*range(0x07), *range(0x0E, 0x18), 0x19, *range(0x1C, 0x20), 0x7F])
_CONTROLS = ("\r", "\x1b", "\b", "\a", "\v", "\f", "\x18", "\x1a")
_C1 = re.compile("[\x80-\x9f]+")
_TOKEN = re.compile(
    r"(?P<text>[^\x07\x08\x0b-\r\x18\x1a\x1b]+)"
    r"|(?P<control>[\x07\x08\x0b-\r\x18\x1a])"
    r"|\x1b\[(?P<parameters>[0-?]{0,256})(?P<between>[ -/]{0,8})(?P<final>[@-~])"
    r"|(?P<string>\x1b[\]PX^_])"
    r"|\x1b[ -/]{0,8}(?P<escape>[0-Z\\`-~])"
    r"|(?P<broken>\x1b(?:\[[0-?]{0,256}[ -/]{0,8}|[ -/]{0,8}))"
)
_STRING_END = re.compile(r"[\x07\x18\x1a]|(?=[\n\x1b])")


class Stream(str, enum.Enum):
    """Where a line comes from."""

    OUT = "stdout"
    ERR = "stderr"
    DISPLAY = "display"
    """What a rank displayed; the text of such an event is one JSON object."""


class LineEvent(NamedTuple):
    """Line ``number`` of a rank's stream now reads ``text``.

    An upsert: a later event with the same ``(rank, stream, number)`` replaces the text, as a progress bar does.
    Numbers start at 0 and count over the whole stream. ``complete`` means that the line ended (its newline was seen,
    or the stream ended) and that the stream is not redrawing it now. ``time`` is when it was read, in seconds since
    the epoch. The only escape sequences in ``text`` are SGR (colours), and each line begins and ends without a
    style. A tuple, since there may be millions.
    """

    rank: int
    stream: Stream
    number: int
    text: str
    complete: bool
    time: float


class Update(NamedTuple):
    """What `LineDiscipline` says of one line; a `LineEvent` without the rank, the stream and the time."""

    number: int
    text: str
    complete: bool


_update = partial(tuple.__new__, Update)  # a quarter of the time of Update(...), which is Python code


def plain(text: str) -> str:
    """Return ``text`` without SGR sequences."""
    return SGR.sub("", text) if "\x1b" in text else text


class LineFilter:
    """Matches lines that contain any of ``filters``, colours left out of account; without filters, no line."""

    def __init__(self, filters: Iterable[str]) -> None:
        self.filters = tuple(filters)

    def matches(self, text: str) -> bool:
        """Return whether ``text``, which may hold SGR sequences, contains one of the strings."""
        bare = plain(text)
        return any(part in bare for part in self.filters)


class LineDiscipline:
    r"""Turns one stream's bytes into its lines; never raises, and any split of the bytes gives the same lines.

    Understood: ``\n``, ``\r``, ``\b``, cursor movement (CSI A to G, ESC M), erasing (CSI J, K, X), colours (SGR) and
    UTF-8, undecodable bytes shown as U+FFFD. Dropped: NUL and other controls, all other escape sequences. Lines are
    cut at 64 K columns and say so.

    Each call returns the lines that changed, each once, in the order of their numbers.
    """

    def __init__(self) -> None:
        self._reset(0)

    def _reset(self, top: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""  # an escape sequence whose end has not come yet
        self._in_string = False  # inside an operating system command and its like, up to their terminator
        self._style = ""
        self._tail = ""  # the style of the last character of the cursor's row, if that is a string
        self._top = top  # the number of the first row
        self._rows: list[str | Cells] = [""]
        self._sent: list[Update | None] = [None]  # what was last said of each row
        self._at = 0  # the cursor's row, an index into _rows
        self._column = _END
        self._live = top  # lines from this number on are not complete
        self._reach = 0  # so many rows above the last one are being redrawn
        self._since = 0  # rows begun since the cursor last went up
        self._dirty: set[int] = set()  # numbers, as the next two
        self._rewritten: set[int] = set()  # rows where something was overwritten: blanks at their end are no text
        self._over: dict[int, int] = {}  # columns beyond LIMIT
        self._out: list[Update] = []

    # ------------------------------------------------------------------------------------------------ what goes in

    def feed(self, data: bytes) -> list[Update]:
        """Take the next bytes of the stream."""
        text = self._decoder.decode(data.translate(None, _JUNK))
        if not text.isascii():
            text = _C1.sub("", text)
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
        if self._pending or self._in_string or not self._appending() or any(control in text for control in _CONTROLS):
            self._interpret(text)
            return self._flush()
        out = self._split(text) if text else []
        self._trim()
        return out

    def _appending(self) -> bool:
        """Return whether plain text would just be added at the end."""
        return not self._reach and not self._style and self._column == _END and self._at == len(self._rows) - 1

    def settle(self) -> list[Update]:
        """Say that the stream has been quiet for a while: lines above the cursor are held to be complete."""
        self._reach = 0
        return self._flush()

    @property
    def held(self) -> bool:
        """Whether there are lines that `settle` would complete."""
        return self._reach > 0

    def note(self, text: str) -> list[Update]:
        """Add a line of our own, after the one that is being written."""
        self._reset_input()
        self._bottom()
        if self._rows[self._at] != "":
            self._newline()
        self._write(text)
        self._newline()
        return self._flush()

    def skip(self, newlines: int, text: str) -> list[Update]:
        """Leave out a part of the stream that ends with the last of its ``newlines`` (at least 1).

        Later lines keep their numbers; ``text`` stands in the place of the last line left out.
        """
        out = self._finish()
        bottom = self._top + len(self._rows) - 1 + newlines
        self._reset(bottom)
        note = Update(bottom - 1, text, True)
        return [update for update in out if update.number != note.number] + [note]

    def close(self) -> list[Update]:
        """Take the end of the stream: every line is complete."""
        self._interpret(self._decoder.decode(b"", final=True))
        return self._finish()

    def _finish(self) -> list[Update]:
        self._reset_input()
        self._reach = 0
        return self._flush(final=True)

    def _reset_input(self) -> None:
        self._decoder.reset()
        self._pending, self._in_string, self._style = "", False, ""

    # ------------------------------------------------------------------------------------------------ plain text

    def _split(self, text: str) -> list[Update]:
        """Append ``text``, which has no controls but newlines, at the end."""
        head, *lines = text.split("\n")
        if head:
            self._write(head)
        if not lines:
            return self._changes()
        out = self._ended()
        number = self._top + len(self._rows)
        last = lines.pop()
        if len(text) > LIMIT and lines and max(map(len, lines)) > LIMIT:
            self._newline()
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
        """Return the update of the last row, whose newline has come, if there is anything new."""
        index = self._at
        number = self._top + index
        self._dirty.discard(number)
        update = Update(number, self._render(index), True)
        self._sent[index] = update
        return [update]

    # ------------------------------------------------------------------------------------------------ the terminal

    def _interpret(self, text: str) -> None:
        text, self._pending = self._pending + text, ""
        position, size = 0, len(text)
        while position < size:
            if self._in_string:
                end = _STRING_END.search(text, position)
                if end is None:
                    return
                self._in_string = False
                position = end.end()
                continue
            match = _TOKEN.match(text, position)
            if match is None:  # pragma: no cover  # the token's alternatives begin with every character there is
                return
            position = match.end()
            kind = match.lastgroup
            if kind == "text":
                self._text(match[0])
            elif kind == "control":
                self._control(match[0])
            elif kind == "final":
                if not match["between"]:
                    self._csi(match["final"], match["parameters"])
            elif kind == "string":
                self._in_string = True
            elif kind == "escape":
                if match[0] == "\x1bM":
                    self._up(1)
            elif position == size:
                self._pending = match[0]

    def _text(self, text: str) -> None:
        lines = text.split("\n")
        if len(lines) > 4 and self._appending():
            self._out += self._changes()
            self._out += self._split(text)
        else:
            self._write_lines(lines)

    def _write_lines(self, lines: list[str]) -> None:
        for index, line in enumerate(lines):
            if index:
                self._newline()
            if line:
                self._write(line)

    def _control(self, char: str) -> None:
        if char in "\v\f":
            self._newline()
        elif char == "\r":
            self._column = 0 if self._rows[self._at] != "" else _END
        elif char == "\b":
            self._column = max(self._where() - 1, 0)

    def _csi(self, final: str, parameters: str) -> None:
        if final == "m":
            if not parameters or parameters[0] not in "<=>?":
                self._style = restyle(self._style, parameters)
            return
        first = parameters.split(";", 1)[0]
        if first and not first.isdigit():
            return
        value = min(int(first or "0"), 1 << 20)
        count = value or 1
        if final in "AF":
            self._up(count)
        elif final in "BE":
            # Below the last line there is nothing: a terminal that has scrolled is at its lower edge there.
            column = self._where()
            self._at = min(self._at + count, len(self._rows) - 1)
            self._column = column
        elif final == "C":
            self._go(self._where() + count)
        elif final == "D":
            self._column = max(self._where() - count, 0)
        elif final == "G":
            self._go(count - 1)
        elif final == "K" and value <= 2:
            self._erase(0 if value else self._where(), LIMIT if value != 1 else self._where() + 1)
        elif final == "X":
            self._erase(self._where(), self._where() + count)
        elif final == "J" and value == 0:
            self._erase(self._where(), LIMIT)
            for index in range(self._at + 1, len(self._rows)):
                self._clear(index)
        if final in "EF":
            self._column = 0

    def _where(self) -> int:
        """Return the cursor's column as a number."""
        if self._column == _END:
            row = self._rows[self._at]
            if isinstance(row, str) and simple(row):
                return len(row)
            return len(self._cells()) + self._over.get(self._top + self._at, 0)
        return self._column

    def _cells(self) -> Cells:
        row = self._rows[self._at]
        if isinstance(row, str):
            row = self._rows[self._at] = Cells(row)
        return row

    def _go(self, column: int) -> None:
        self._column = min(column, max(self._where(), len(self._rows[self._at]), _JUMP))

    def _up(self, count: int) -> None:
        column = self._where()
        last = len(self._rows) - 1
        self._at = max(self._at - count, last - WINDOW, 0)
        self._column = column
        self._reach = max(self._reach, last - self._at)
        self._since = 0

    def _bottom(self) -> None:
        self._at = len(self._rows) - 1
        self._column = _END

    def _newline(self) -> None:
        self._dirty.add(self._top + self._at)  # a blank line is one too
        self._at += 1
        if self._at == len(self._rows):
            self._rows.append("")
            self._sent.append(None)
            self._since += 1
            if self._since > self._reach + _SLACK:
                self._reach = 0  # no redrawing any more: lines just follow each other
            if len(self._rows) > 8 * WINDOW:
                self._out += self._changes()
                self._trim()
        self._column, self._tail = (0 if self._rows[self._at] != "" else _END), ""

    def _write(self, text: str) -> None:
        number = self._top + self._at
        row = self._rows[self._at]
        self._dirty.add(number)
        if isinstance(row, str) and len(row) + len(text) <= LIMIT:
            if self._column == _END and (self._style == self._tail or simple(text)):
                self._rows[self._at] = self._append(row, text)
                return
            if not self._style and 0 <= self._column <= LIMIT and simple(row) and simple(text):
                column = self._column
                if column < len(row):
                    self._rewritten.add(number)
                end = column + len(text)
                self._rows[self._at] = row[:column].ljust(column) + text + row[end:]
                self._column, self._tail = (end if end < len(row) else _END), ""
                return
        column = self._where()
        cells = self._cells()
        if column < len(cells):
            self._rewritten.add(number)
        self._column = cells.write(column, text, self._style)
        if self._column > LIMIT:
            self._over[number] = max(self._over.get(number, 0), self._column - LIMIT)

    def _append(self, row: str, text: str) -> str:
        """Return ``row``, whose end has the style `_tail`, and ``text`` after it, as `Cells.render` would."""
        style, tail = self._style, self._tail
        self._tail = style
        if not style:
            return row + text
        if tail:
            return row.removesuffix(_PLAIN) + ("" if tail == style else f"\x1b[0;{style}m") + text + _PLAIN
        return f"{row}\x1b[{style}m{text}{_PLAIN}"

    def _erase(self, start: int, end: int) -> None:
        if end >= LIMIT:
            self._over.pop(self._top + self._at, None)
        if start == 0 and end >= LIMIT:
            self._column = self._where()
            self._clear(self._at)
        elif start < len(self._cells()):
            self._column = self._where()
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

    def _render(self, index: int) -> str:
        row = self._rows[index]
        number = self._top + index
        text = row if isinstance(row, str) else row.render()
        if number in self._rewritten:
            text = text.rstrip(" ")
        if over := self._over.get(number):
            text += f"… [cut here: {over:,} more characters]"
        return text

    def _changes(self, *, final: bool = False) -> list[Update]:
        """Return what changed since it was last said, and say no more of it."""
        last = len(self._rows) - 1
        live = self._top + (last + 1 if final else min(self._at, last - self._reach))
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

    def _flush(self, *, final: bool = False) -> list[Update]:
        out = self._changes(final=final)
        if self._out:
            latest = {update.number: update for update in (*self._out, *out)}
            out = [latest[number] for number in sorted(latest)]
            self._out = []
        if self._column == 0 and self._rows[self._at] == "":
            self._column, self._tail = _END, ""
        self._trim()
        return out

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
