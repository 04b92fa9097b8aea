"""Bytes of a log -> lines, as a terminal would show them. Pure: no files, no threads, no clock.

Most of a log is plain text, which is split at the speed of ``str.split``; what moves the cursor (progress bars) is
interpreted, on a small terminal: `nbproc.logs.screen`.
"""

from __future__ import annotations

import codecs
import enum
import re
from collections.abc import Iterable
from typing import NamedTuple

from nbproc.logs.cells import LIMIT, SGR, restyle
from nbproc.logs.screen import Screen, Update

__all__ = ["LineDiscipline", "LineEvent", "LineFilter", "Stream", "Update", "plain"]

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
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""  # an escape sequence whose end has not come yet
        self._in_string = False  # inside an operating system command and its like, up to their terminator
        self._screen = Screen()

    def feed(self, data: bytes) -> list[Update]:
        """Take the next bytes of the stream."""
        text = self._decoder.decode(data.translate(None, _JUNK))
        if not text.isascii():
            text = _C1.sub("", text)
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
        screen = self._screen
        if self._pending or self._in_string or not screen.appending or any(char in text for char in _CONTROLS):
            self._interpret(text)
            return screen.flush()
        return screen.append(text)

    def settle(self) -> list[Update]:
        """Say that the stream has been quiet for a while: lines above the cursor are held to be complete."""
        self._screen.reach = 0
        return self._screen.flush()

    def pause(self) -> list[Update]:
        """Say that nobody writes for now: the last line is told as complete though its newline has not come.

        If it is continued after all, it is told again.
        """
        self._screen.reach = 0
        return self._screen.flush(final=True)

    @property
    def held(self) -> bool:
        """Whether there are lines that `settle` would complete."""
        return self._screen.reach > 0

    def note(self, text: str) -> list[Update]:
        """Add a line of our own, after the one that is being written."""
        self._forget()
        self._screen.note(text)
        return self._screen.flush()

    def skip(self, newlines: int, text: str) -> list[Update]:
        """Leave out a part of the stream that ends with the last of its ``newlines`` (at least 1).

        Later lines keep their numbers; ``text`` stands in the place of the last line left out.
        """
        out = self._finish()
        number = self._screen.last + newlines
        self._screen = Screen(number)
        return [*(update for update in out if update.number != number - 1), Update(number - 1, text, True)]

    def close(self) -> list[Update]:
        """Take the end of the stream: every line is complete."""
        self._interpret(self._decoder.decode(b"", final=True))
        return self._finish()

    def _finish(self) -> list[Update]:
        self._forget()
        self._screen.reach = 0
        return self._screen.flush(final=True)

    def _forget(self) -> None:
        """Forget what was begun: a character, an escape sequence."""
        self._decoder.reset()
        self._pending, self._in_string = "", False

    def _interpret(self, text: str) -> None:
        text, self._pending = self._pending + text, ""
        screen, position, size = self._screen, 0, len(text)
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
                screen.text(match[0])
            elif kind == "control":
                self._control(match[0])
            elif kind == "final":
                if not match["between"]:
                    self._csi(match["final"], match["parameters"])
            elif kind == "string":
                self._in_string = True
            elif kind == "escape":
                if match[0] == "\x1bM":
                    screen.up(1)
            elif position == size:
                self._pending = match[0]

    def _control(self, char: str) -> None:
        if char == "\r":
            self._screen.home()
        elif char in "\v\f":
            self._screen.newline()
        elif char == "\b":
            self._screen.go(self._screen.where() - 1)

    def _csi(self, final: str, parameters: str) -> None:
        screen = self._screen
        if final == "m":
            if not parameters or parameters[0] not in "<=>?":
                screen.style = restyle(screen.style, parameters)
            return
        first = parameters.split(";", 1)[0]
        if first and not first.isdigit():
            return
        value = min(int(first or "0"), 1 << 20)
        count = value or 1
        if final in "AF":
            screen.up(count)
        elif final in "BE":
            screen.down(count)
        elif final == "C":
            screen.go(screen.where() + count)
        elif final == "D":
            screen.go(screen.where() - count)
        elif final == "G":
            screen.go(count - 1)
        elif final == "K" and value <= 2:
            screen.erase(0 if value else screen.where(), LIMIT if value != 1 else screen.where() + 1)
        elif final == "X":
            screen.erase(screen.where(), screen.where() + count)
        elif final == "J" and value == 0:
            screen.erase_below()
        if final in "EF":
            screen.home()
