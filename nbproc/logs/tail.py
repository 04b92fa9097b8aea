"""One reader thread per run: growing files -> line events -> sinks.

      files (size, 20 times a second) -> Follower -> bytes -> LineDiscipline -> LineEvents -> every sink, in one batch

The thread belongs to its `Tail`: it is started by `Tail.start` and joined by `Tail.finish`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbproc.errors import StateError
from nbproc.logs.follow import Follower
from nbproc.logs.lines import LineDiscipline, LineEvent, Stream, Update

__all__ = ["Sink", "Source", "Tail"]

Sink = Callable[[Sequence[LineEvent]], None]
"""Takes the events of one look, on the reader thread; it must not wait for anything."""

_log = logging.getLogger(__name__)

_INTERVAL = 0.05
"""Seconds between two looks while something is written."""
_IDLE_INTERVAL = 0.1
_IDLE_AFTER = 2.0
_SETTLE = 12
"""Looks without news after which a redrawn region is held to be complete."""
_FEW = 64
"""Up to so many files, each is looked at each time; of more, the quiet ones every third time."""
_PIECE = 1 << 17
"""Bytes read at once: their lines still are in the processor's cache when the events are made."""
_AHEAD = 16 << 20
"""Bytes that a file may be ahead of a reader whose sinks are views only."""
_KEEP = 2 << 20
"""Bytes at the end of such a file that are still shown."""
_PATIENCE = 40
"""Looks that a display waits for the output that was written before it."""


@dataclass(frozen=True)
class Source:
    """A file that a rank writes; it need not exist yet."""

    rank: int
    stream: Stream
    path: Path


class Tail:
    """Reads ``sources`` and gives what is new to ``sinks``, at most 20 times a second.

    With ``lossless`` every line reaches the sinks, however far behind they are. Without it (only views listen), the
    reader skips to the last 2 MB of a file that is more than 16 MB ahead of it; a line in their place says how much.
    A file that is removed, replaced, cut or unreadable is noted once, in a line of its stream. A sink that raises is
    logged and hears no more. Holds no descriptor between two looks.
    """

    def __init__(self, name: str, sources: Iterable[Source], sinks: Sequence[Sink], *, lossless: bool) -> None:
        self._name = name
        self._sinks = list(sinks)
        self._budget = (4 if lossless else 1) << 20  # bytes a look, which bounds the events of one batch
        self._batch: list[LineEvent] = []
        by_rank: dict[int, _Rank] = {}
        for source in sources:
            rank = by_rank.setdefault(source.rank, _Rank(source.rank, self._batch, lossless=lossless))
            rank.add(source)
        self._ranks = list(by_rank.values())
        self._stride = 1 if sum(map(len, self._ranks)) <= _FEW else 3
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition()
        self._hurry = threading.Event()
        self._looks = 0
        self._caught_up = 0

    def start(self) -> None:
        """Start the reader thread. Raises `StateError` if it was started before."""
        if self._thread is not None:
            raise StateError(f"the reader of run {self._name!r} was started before")
        self._thread = threading.Thread(target=self._run, name=f"nbproc-tail-{self._name}", daemon=True)
        self._thread.start()

    def finish(self, timeout: float | None = None) -> bool:
        """Read to the end of all files, give the last lines to the sinks, end the thread; call when all ranks ended.

        Blocks for at most ``timeout`` seconds (None: until all is read), and then leaves the rest unread. Returns
        whether everything was read. May be called again, and from any thread.
        """
        self._finishing.set()
        self._hurry.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout)
        if thread.is_alive():
            self._abandoned.set()
            thread.join(1.0)
        return not self._abandoned.is_set()

    def catch_up(self, timeout: float | None = None) -> bool:
        """Return when all that the files held at this call was given to the sinks; from any other thread.

        Blocks for at most ``timeout`` seconds; returns whether the reader has caught up by then.
        """
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return False
        with self._turn:
            wanted = self._looks + 1
            self._hurry.set()
            return self._turn.wait_for(lambda: self._caught_up >= wanted or not thread.is_alive(), timeout)

    # ------------------------------------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        try:
            self._read()
        except Exception:
            self._abandoned.set()
            with self._turn:
                self._turn.notify_all()
            _log.exception("run %r: its logs are read no more; they are complete in its directory", self._name)

    def _read(self) -> None:
        look, last_news = 0, time.monotonic()
        while not self._finishing.is_set():
            began = time.monotonic()
            hurry = self._hurry.is_set()
            self._hurry.clear()
            with self._turn:
                self._looks += 1
            more = self._look(look, ended=False, everything=hurry)
            if self._deliver():
                last_news = began
            if not more:
                with self._turn:
                    self._caught_up = self._looks
                    self._turn.notify_all()
            elif hurry:
                self._hurry.set()
            look += 1
            busy = began - last_news < _IDLE_AFTER or self._stride > 1
            interval = _INTERVAL if busy else _IDLE_INTERVAL
            self._hurry.wait(interval - min(time.monotonic() - began, interval))
        for rank in self._ranks:
            rank.end()
        more = True
        while more and not self._abandoned.is_set():
            more = self._look(look, ended=True)
            self._deliver()
            look += 1
        for rank in self._ranks:
            rank.close()
        self._deliver()

    def _look(self, look: int, *, ended: bool, everything: bool = False) -> bool:
        """Read what is new, within the budget; return whether there is more to read."""
        due = [
            rank
            for index, rank in enumerate(self._ranks)
            if ended or everything or rank.due(look + index, self._stride)
        ]
        left, more = self._budget, False
        for position in range(len(due)):
            rank = due[(position + look) % len(due)]  # with another first each time, so that none starves
            share = max(left // (len(due) - position), 1 << 14)
            left -= rank.look(share)
            more = more or rank.behind
        return more

    def _deliver(self) -> bool:
        if not self._batch:
            return False
        events = tuple(self._batch)
        self._batch.clear()
        for sink in tuple(self._sinks):
            try:
                sink(events)
            except Exception:
                _log.exception("run %r: %r takes no more lines", self._name, sink)
                self._sinks.remove(sink)
        return True


class _Text:
    """A stream of text: its file and its lines."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = Follower(source.path)
        self.discipline = LineDiscipline()
        self.quiet = 0


class _Rank:
    """The files of one rank, whose displays stand between the lines around them."""

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
        if source.stream is Stream.DISPLAY:
            self._display = Follower(source.path)
        else:
            self._texts.append(_Text(source))

    def due(self, turn: int, stride: int) -> bool:
        return self._quiet < 20 or turn % stride == 0

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
        if not self._lossless and file.behind > _AHEAD:
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

    def close(self) -> None:
        for text in self._texts:
            self._say(text, text.discipline.close())
