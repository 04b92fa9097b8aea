"""One reader thread per run: growing files -> line events -> sinks.

      files (size, 20 times a second) -> Follower -> LineDiscipline -> LineEvents, a batch a look -> every sink

The thread belongs to its `Tail`: it is started by `Tail.start` and joined by `Tail.finish`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from nbproc.errors import StateError
from nbproc.logs.lines import LineEvent
from nbproc.logs.streams import RankReader, Source

__all__ = ["Sink", "Source", "Tail"]

Sink = Callable[[Sequence[LineEvent]], object]
"""Takes the events of one look, on the reader thread; it must not wait for anything."""

_log = logging.getLogger(__name__)

_INTERVAL = 0.05
"""Seconds between two looks while something is written."""
_IDLE_INTERVAL = 0.1
_IDLE_AFTER = 2.0
_BEGINNING = 5.0
"""Seconds in which a thread that was started begins."""
_FEW = 64
"""Up to so many files, each is looked at each time; of more, the quiet ones every third time."""


class Tail:
    """Reads ``sources`` and gives what is new to ``sinks``, at most 20 times a second.

    With ``lossless`` every line reaches the sinks, however far behind they are. Without it (only views listen), the
    reader skips to the last 2 MB of a file that is more than 16 MB ahead of it (4 MB at the end of the run); a line in
    their place says how much.
    A file that is removed, replaced, cut or unreadable is noted once, in a line of its stream. A sink that raises is
    logged and hears no more. Holds no descriptor between two looks.
    """

    def __init__(self, name: str, sources: Iterable[Source], sinks: Sequence[Sink], *, lossless: bool) -> None:
        self._name = name
        self._sinks = list(sinks)
        self._budget = (8 if lossless else 1) << 19  # bytes a look, which bounds a batch and the time it takes
        self._batch: list[LineEvent] = []
        by_rank: dict[int, RankReader] = {}
        for source in sources:
            rank = by_rank.setdefault(source.rank, RankReader(source.rank, self._batch, lossless=lossless))
            rank.add(source)
        self._ranks = list(by_rank.values())
        self._stride = 1 if sum(map(len, self._ranks)) <= _FEW else 3
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._turn = threading.Condition()
        self._hurry = threading.Event()
        self._pausing = threading.Event()
        self._looks = 0
        self._caught_up = 0

    def start(self) -> None:
        """Start the reader thread. Raises `StateError` if it was started before."""
        if self._thread is not None:
            raise StateError(f"the reader of run {self._name!r} was started before")
        self._thread = threading.Thread(target=self._run, name=f"nbproc-tail-{self._name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system has none to give
            self._thread = None
            raise

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
        if not self._begun.wait(_BEGINNING):  # an Interrupt came while it was started
            return False
        thread.join(timeout)
        if thread.is_alive():
            self._abandoned.set()
            thread.join(1.0)
        return not self._abandoned.is_set()

    def catch_up(self, timeout: float | None = None) -> bool:
        """Return when all that the files held at this call was given to the sinks; from any other thread.

        To be called when nobody writes for now: last lines without a newline are given as they are.
        Blocks for at most ``timeout`` seconds; returns whether the reader has caught up by then.
        """
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return False
        with self._turn:
            wanted = self._looks + 1
            self._pausing.set()
            self._hurry.set()
            return self._turn.wait_for(lambda: self._caught_up >= wanted or not thread.is_alive(), timeout)

    # ------------------------------------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        self._begun.set()
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
            pausing = self._pausing.is_set()
            more = self._look(look, ended=False, everything=hurry)
            if pausing and not more:
                self._pausing.clear()
                for rank in self._ranks:
                    rank.pause()
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
