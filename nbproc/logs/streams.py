"""The files of one rank as one sequence of events: text, and between it what the rank displayed."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbproc.logs.follow import Follower
from nbproc.logs.lines import LineDiscipline, LineEvent, Stream, Update

__all__ = ["RankReader", "Source"]

_log = logging.getLogger(__name__)

_QUIET = 20
"""Looks without news after which a rank is looked at less often."""
_SETTLE = 12
"""Looks without news after which a redrawn region is held to be complete."""
_PATIENCE = 40
"""Looks that a display waits for the output that was written before it."""
_PIECE = 1 << 17
"""Bytes read at once: their lines still are in the processor's cache when the events are made."""
_AHEAD = 16 << 20
"""Bytes that a file may be ahead of a reader whose sinks are views only."""
_AHEAD_AT_END = 4 << 20
"""The same once all ranks have ended, since the run's end waits for the reader."""
_KEEP = 2 << 20
"""Bytes at the end of such a file that are still shown."""


@dataclass(frozen=True)
class Source:
    """A file that a rank writes; it need not exist yet."""

    rank: int
    stream: Stream
    path: Path


class _Text:
    """A stream of text: its file and its lines."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = Follower(source.path)
        self.discipline = LineDiscipline()
        self.quiet = 0


class RankReader:
    """Reads what is new in the files of one rank and adds its events to ``batch``.

    A display names how much text was written before it, and stands after exactly that text.
    """

    def __init__(self, rank: int, batch: list[LineEvent], *, lossless: bool) -> None:
        self._rank = rank
        self._batch = batch
        self._lossless = lossless
        self._texts: list[_Text] = []
        self._display: Follower | None = None
        self._rest = b""  # the beginning of a display's line
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._waited = 0
        self._displays = 0
        self._quiet = 0
        self._ended = False

    def __len__(self) -> int:
        return len(self._texts) + (self._display is not None)

    def add(self, source: Source) -> None:
        """Add a file."""
        if source.stream is Stream.DISPLAY:
            self._display = Follower(source.path)
        else:
            self._texts.append(_Text(source))

    def due(self, turn: int, stride: int) -> bool:
        """Return whether to look now: always if something came lately, else one time in ``stride``."""
        return self._quiet < _QUIET or turn % stride == 0

    @property
    def behind(self) -> bool:
        """Whether the last look left something to read."""
        return any(text.file.behind > 0 for text in self._texts)

    def end(self) -> None:
        """Find out where the files end now, since a process that outlives its rank may write for ever."""
        self._find_news()
        self._ended = True

    def look(self, budget: int) -> int:
        """Read at most about ``budget`` bytes of text and return how many it were."""
        if not self._ended:
            self._find_news()
        used = self._read_around_displays(budget)
        self._rest_a_while(used)
        return used

    def _find_news(self) -> None:
        # What was displayed is read before the text: the text that was written before it is then there already.
        self._read_displays()
        for text in self._texts:
            if trouble := text.file.look():
                _log.warning("rank %d: %s %s", self._rank, text.source.path, trouble)
                self._say(text, text.discipline.note(f"[nbproc: {text.source.path.name} {trouble}]"))

    def _read_around_displays(self, budget: int) -> int:
        used = 0
        while self._waiting and used < budget:
            line, record = self._waiting[0]
            short = False
            for text in self._texts:
                offset = record.get(text.source.stream.value)
                if isinstance(offset, int) and offset > text.file.offset:
                    used += self._read(text, min(offset - text.file.offset, budget - used))
                    short = short or text.file.offset < offset
            if short and used >= budget:
                return used
            if short and not self._ended and self._waited < _PATIENCE:
                self._waited += 1
                return used
            self._waiting.popleft()
            self._waited = 0
            self._batch.append(LineEvent(self._rank, Stream.DISPLAY, self._displays, line, True, time.time()))
            self._displays += 1
        for text in self._texts:
            used += self._read(text, max(budget - used, 0))
        return used

    def _read(self, text: _Text, limit: int) -> int:
        file = text.file
        if not self._lossless and file.behind > (_AHEAD_AT_END if self._ended else _AHEAD):
            size, lines = file.skip(_KEEP)
            if lines:
                words = f"[nbproc: {lines:,} lines ({size:,} bytes) are left out here; they are in {file.path.name}]"
                self._say(text, text.discipline.skip(lines, words))
        used = 0
        while used < limit and (data := file.read(min(limit - used, _PIECE))):
            self._say(text, text.discipline.feed(data))
            text.quiet = 0
            used += len(data)
        return used

    def _rest_a_while(self, used: int) -> None:
        self._quiet = 0 if used or self._waiting else self._quiet + 1
        for text in self._texts:
            text.quiet += 1
            if text.quiet > _SETTLE and text.discipline.held:
                self._say(text, text.discipline.settle())

    def _read_displays(self) -> None:
        if self._display is None:
            return
        if trouble := self._display.look():
            _log.warning("rank %d: %s %s", self._rank, self._display.path, trouble)
        data = self._rest + self._display.read(1 << 20)
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            try:
                text = line.decode()
                record = json.loads(text)
            except ValueError:
                record = None
            if isinstance(record, dict):
                self._waiting.append((text, record))
            elif line:
                _log.warning("rank %d: %s holds a line that is no JSON object", self._rank, self._display.path)

    def _say(self, text: _Text, updates: list[Update]) -> None:
        batch, key = self._batch, (self._rank, text.source.stream)
        if updates and batch and batch[-1][:3] == (*key, updates[0].number):
            batch.pop()  # the line at the seam of two pieces, or a bar: only its latest text counts
        rank, stream, now, new = self._rank, text.source.stream, time.time(), tuple.__new__
        batch += [new(LineEvent, (rank, stream, n, words, ended, now)) for n, words, ended in updates]

    def pause(self) -> None:
        """Tell the last lines as they are."""
        for text in self._texts:
            self._say(text, text.discipline.pause())

    def close(self) -> None:
        """Complete the last lines."""
        for text in self._texts:
            self._say(text, text.discipline.close())
