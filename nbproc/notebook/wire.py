"""What a view and its kernel say to each other: values of a run -> messages. Pure.

The kernel sends ticks, numbered by ``seq`` and bounded in size and rate; each holds what is new::

    {"t": "tick", "seq": 7, "now": 1712.5, "snap": {...}, "usage": [...], "failure": {...}, "runs": [...]}  + one buffer

``snap`` is the run's snapshot with those ranks only that are others than in the tick before; a replay has all.
``runs`` describes the buffer, which is UTF-8 text, one line of it a line of a log::

    [rank, stream, number of the first line, lines, 1 if the last one is not complete, time]

An event is an upsert, so a line that is sent twice does no harm, and a lost message is made good by a replay.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from nbproc.explain import consequence_words
from nbproc.notebook import failed

if TYPE_CHECKING:
    from nbproc.explain import Report
    from nbproc.failures import ProcessFailure
    from nbproc.logs.lines import LineEvent
    from nbproc.states import Snapshot

STREAMS = ("stdout", "stderr", "display")
MESSAGE_BYTES = 256_000
MESSAGES_PER_SECOND = 20
BACKLOG_BYTES = 2_000_000
WORDS = 2_000

Run = list[Any]


class Backlog:
    """Line events that wait to be sent: the latest text of each line, in order of first arrival, bounded.

    When lines come faster than they may be sent, the oldest ones are left out; the view sees the gap in the
    numbers and offers to load it from the log. Not thread-safe: its owner holds a lock.
    """

    def __init__(self, limit: int = BACKLOG_BYTES) -> None:
        self._events: OrderedDict[tuple[int, str, int], LineEvent] = OrderedDict()
        self._limit = limit
        self._size = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Iterable[LineEvent]) -> None:
        """Take events in; a newer text of a line replaces the one that waits."""
        waiting = self._events
        for event in events:
            key = (event.rank, event.stream, event.number)
            older = waiting.get(key)
            self._size += len(event.text) + 1 - (len(older.text) + 1 if older is not None else 0)
            waiting[key] = event
        while self._size > self._limit and len(waiting) > 1:
            _, event = waiting.popitem(last=False)
            self._size -= len(event.text) + 1

    def take(self, limit: int = MESSAGE_BYTES) -> list[LineEvent]:
        """Take out the oldest events whose text is together at most about `limit` bytes, at least one."""
        taken: list[LineEvent] = []
        size = 0
        while self._events:
            event = self._events[next(iter(self._events))]
            length = len(event.text) + 1 if event.text.isascii() else len(event.text.encode(errors="replace")) + 1
            if taken and size + length > limit:
                break
            self._events.popitem(last=False)
            self._size -= len(event.text) + 1
            size += length
            taken.append(event)
        return taken


def encode_lines(events: Sequence[LineEvent]) -> tuple[list[Run], bytes]:
    """Return the ``runs`` of a message and its buffer."""
    runs: list[Run] = []
    last: Run | None = None
    for event in events:
        stream = STREAMS.index(event.stream)
        if (
            last is not None
            and last[0] == event.rank
            and last[1] == stream
            and last[2] + last[3] == event.number
            and not last[4]
            and last[5] == event.time
        ):
            last[3] += 1
            last[4] = int(not event.complete)
        else:
            last = [event.rank, stream, event.number, 1, int(not event.complete), event.time]
            runs.append(last)
    return runs, "\n".join(event.text.replace("\n", " ") for event in events).encode(errors="replace")


def batches(events: Iterable[LineEvent], limit: int = MESSAGE_BYTES) -> list[list[LineEvent]]:
    """Cut events into lists that each fit in one message."""
    cut: list[list[LineEvent]] = []
    size = limit
    for event in events:
        length = len(event.text.encode(errors="replace")) + 1
        if size + length > limit:
            cut.append([])
            size = 0
        cut[-1].append(event)
        size += length
    return cut


def encode_snapshot(snapshot: Snapshot, told: Snapshot | None = None) -> dict[str, Any]:
    """Return a snapshot as JSON; of its ranks those that have changed since ``told``, which the view has."""
    known = told.ranks if told is not None else ()
    changed = [rank for rank, before in zip_longest(snapshot.ranks, known) if rank != before and rank is not None]
    return {
        "name": snapshot.name,
        "state": snapshot.state.value,
        "started": snapshot.started,
        "ended": snapshot.ended,
        "dir": str(snapshot.run_dir) if snapshot.run_dir is not None else "",
        "headline": snapshot.headline[:WORDS],
        "notes": [note[:WORDS] for note in snapshot.notes[:20]],
        "size": snapshot.nprocs,
        "ranks": [
            [r.rank, r.state.value, r.pid, r.started, r.ended, r.exitcode, r.words[:WORDS], r.node] for r in changed
        ],
        "now": time.time(),
    }


def encode_report(report: Report, failures: Mapping[int, ProcessFailure]) -> dict[str, Any] | None:
    """Return the explanation of a failed run, as elements; None if no rank failed."""
    if report.first is None:
        return None
    return {
        "cause": failed.cause(report, report.first),
        "errors": failed.errors(report, failures),
        "after": [[lost.local_rank, consequence_words(lost)[:WORDS]] for lost in report.consequences],
    }
