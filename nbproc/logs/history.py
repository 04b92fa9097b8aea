"""The last lines of each rank, in memory, for views that come late; older ones are read from the log again."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from nbproc.logs.lines import LineDiscipline, LineEvent, Stream, Update, plain

__all__ = ["History", "page"]

_BLOCK = 1 << 20
_SOURCE, _KEY, _TEXT = itemgetter(0, 1), itemgetter(1, 2), itemgetter(3)


class History:
    """A sink that keeps the last lines of each rank; every method may be called from any thread.

    Per rank at most ``lines`` lines and ``bytes`` characters, of all its streams together. Order is that of arrival:
    a line keeps the place where it first came, with its latest text.
    """

    def __init__(self, nranks: int, *, lines: int = 5000, bytes: int = 1_000_000) -> None:
        self._lock = threading.Lock()
        self._ranks = [_RankHistory(lines, bytes) for _ in range(nranks)]

    def __call__(self, events: Sequence[LineEvent]) -> None:
        """Take events; those of ranks that do not exist are left out."""
        with self._lock:
            for (rank, _), group in groupby(events, _SOURCE):
                if 0 <= rank < len(self._ranks):
                    self._ranks[rank].add(list(group))

    def rows(self, rank: int) -> tuple[LineEvent, ...]:
        """Return the lines that are held of ``rank``, in order of arrival."""
        with self._lock:
            return tuple(self._ranks[rank].held.values())

    def last(self, rank: int) -> LineEvent | None:
        """Return the line of ``rank`` that changed last and is not blank, None if there is none."""
        with self._lock:
            return self._ranks[rank].last()

    def dropped(self, rank: int, stream: Stream) -> int:
        """Return how many lines of a stream there were that are not held any more."""
        with self._lock:
            history = self._ranks[rank]
            return history.seen.get(stream, 0) - history.counts.get(stream, 0)


class _RankHistory:
    """One rank's lines. Not locked."""

    def __init__(self, lines: int, size: int) -> None:
        self.held: OrderedDict[tuple[Stream, int], LineEvent] = OrderedDict()
        self.counts: dict[Stream, int] = {}
        self.seen: dict[Stream, int] = {}  # lines that there were: the highest number, and one
        self._lines = lines
        self._limit = size
        self._size = 0
        self._last: LineEvent | None = None

    def add(self, events: list[LineEvent]) -> None:
        """Take events of one stream."""
        stream = events[0].stream
        if events[0].number < self.seen.get(stream, 0):  # the line that was being written at the last look
            self._put(events[0])
            events = events[1:]
        if len(events) > 16 and self._new_in_a_row(events):
            # New lines in a row, as nearly always when there are many: those that cannot stay are only counted.
            self.seen[stream] = events[-1].number + 1
            events = events[-self._lines :]
            before = len(self.held)
            self.held.update(zip(map(_KEY, events), events, strict=True))
            self.counts[stream] = self.counts.get(stream, 0) + len(self.held) - before
            self._size += sum(map(len, map(_TEXT, events)))
            if stream is not Stream.DISPLAY:
                self._last = next((event for event in reversed(events) if not _blank(event.text)), self._last)
        else:
            for event in events:
                self._put(event)
        while len(self.held) > self._lines or (self._size > self._limit and len(self.held) > 1):
            (old, _), dropped = self.held.popitem(last=False)
            self._size -= len(dropped.text)
            self.counts[old] -= 1

    def _new_in_a_row(self, events: list[LineEvent]) -> bool:
        first, last = events[0], events[-1]
        return first.number >= self.seen.get(first.stream, 0) and last.number - first.number == len(events) - 1

    def _put(self, event: LineEvent) -> None:
        stream, number = key = event[1:3]
        known = self.held.get(key)
        if known is not None:
            self._size += len(event.text) - len(known.text)
        elif number < self.seen.get(stream, 0):
            return  # redrawn after it was dropped: it has no place any more
        else:
            self._size += len(event.text)
            self.counts[stream] = self.counts.get(stream, 0) + 1
            self.seen[stream] = number + 1
        self.held[key] = event
        self._note_last(event)

    def _note_last(self, event: LineEvent) -> None:
        if event.stream is Stream.DISPLAY:
            return
        if _blank(event.text):
            if self._last is not None and self._last[1:3] == event[1:3]:
                self._last = None  # it was blanked: found again when asked for
        else:
            self._last = event

    def last(self) -> LineEvent | None:
        if self._last is None:
            texts = (event for event in reversed(self.held.values()) if event.stream is not Stream.DISPLAY)
            self._last = next((event for event in texts if not _blank(event.text)), None)
        return self._last


def _blank(text: str) -> bool:
    return not text or text.isspace() or ("\x1b" in text and not plain(text).strip())


def page(path: str | os.PathLike[str], rank: int, stream: Stream, start: int, count: int) -> tuple[LineEvent, ...]:
    """Read the lines ``start`` to before ``start + count`` of a stream from its log, as its events said them.

    Reads the file from its beginning, at about 200 MB/s for plain text. Lines that do not exist are left out; a file
    that cannot be read has none. ``time`` is when the file was last written.
    """
    discipline = LineDiscipline()
    lines: dict[int, Update] = {}
    end = start + count

    def take(updates: list[Update]) -> bool:
        lines.update((update.number, update) for update in updates if start <= update.number < end)
        return bool(updates) and updates[0].number > end + 2 * 128

    try:
        with open(Path(path), "rb", buffering=0) as file:
            time = os.fstat(file.fileno()).st_mtime
            while data := file.read(_BLOCK):
                if take(discipline.feed(data)):
                    break
            else:
                take(discipline.close())
    except OSError:
        return ()
    return tuple(LineEvent(rank, stream, *lines[number], time) for number in sorted(lines))
