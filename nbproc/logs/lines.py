"""Bytes of a log -> lines, as a terminal would show them. Pure: no files, no threads, no clock."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["LineEvent", "Stream", "Update"]


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
