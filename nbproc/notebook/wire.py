"""What a view and its kernel say to each other: values of a run -> messages. Pure.

The kernel sends ticks, numbered by ``seq`` and bounded in size and rate; each holds what is new::

    {"t": "tick", "seq": 7, "now": 1712.5, "snap": {...}, "usage": [...], "failure": {...}, "runs": [...]}  + one buffer

``runs`` describes the buffer, which is UTF-8 text, one line of it a line of a log::

    [rank, stream, number of the first line, lines, 1 if the last one is not complete, time]

An event is an upsert, so a line that is sent twice does no harm, and a lost message is made good by a replay.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbproc.explain import Report
    from nbproc.failures import Frame, ProcessFailure, Trace
    from nbproc.logs.lines import LineEvent
    from nbproc.states import Snapshot

STREAMS = ("stdout", "stderr", "display")
MESSAGE_BYTES = 256_000
MESSAGES_PER_SECOND = 20
BACKLOG_BYTES = 2_000_000
FRAMES = 40
DEPTH = 8
GROUPS = 32
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


def encode_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON."""
    return {
        "name": snapshot.name,
        "state": snapshot.state.value,
        "started": snapshot.started,
        "ended": snapshot.ended,
        "dir": str(snapshot.run_dir) if snapshot.run_dir is not None else "",
        "first": snapshot.first_failed,
        "headline": snapshot.headline[:WORDS],
        "notes": [note[:WORDS] for note in snapshot.notes[:20]],
        "ranks": [
            [r.state.value, r.pid, r.started, r.ended, r.exitcode, r.words[:WORDS], r.node] for r in snapshot.ranks
        ],
        "now": time.time(),
    }


def encode_report(report: Report, failures: Mapping[int, ProcessFailure]) -> dict[str, Any] | None:
    """Return the explanation of a failed run as JSON, the first cause first; None if no rank failed."""
    first = report.first
    if first is None:
        return None
    groups = [_group("first", report.first_ranks, first)]
    groups += [
        _group("failed", other.ranks, failures[other.ranks[0]]) for other in report.others if other.ranks[0] in failures
    ]
    groups += [_group("consequence", (failure.local_rank,), failure) for failure in report.consequences]
    return {
        "headline": report.headline[:WORDS],
        "groups": groups[:GROUPS],
        "more": max(0, len(groups) - GROUPS),
        "rest": [group.sentence[:WORDS] for group in report.groups[:GROUPS]],
    }


def _group(kind: str, ranks: Sequence[int], failure: ProcessFailure) -> dict[str, Any]:
    return {"kind": kind, "ranks": list(ranks), "failure": _failure(failure)}


def _failure(failure: ProcessFailure) -> dict[str, Any]:
    trace, at = failure.trace, failure.where
    frames = list(trace.frames) if trace is not None else list(failure.stack)
    caller = next((f for f in reversed(frames[: frames.index(at)]) if not f.is_library), None) if at in frames else None
    where = "" if at is None else f"{'at' if at.function in ('', '<module>') else 'in'} {at.words}"
    told = trace is None and not failure.stack and isinstance(failure.message, str) and failure.raised
    return {
        "words": failure.words[:WORDS],
        "raised": failure.raised,
        "where": where + (f"; called from {caller.words}" if caller is not None else ""),
        "at": frames.index(at) if at in frames else -1,
        "trace": _trace(trace, DEPTH) if trace is not None else None,
        "stack": [_frame(frame) for frame in failure.stack[-FRAMES:]],
        # what an error file of somebody else's says; a trace says more
        "message": failure.message[:20_000] if told else "",
        "stderr": [line[:WORDS] for line in failure.stderr_tail[-40:]] if trace is None else [],
    }


def _frame(frame: Frame) -> dict[str, Any]:
    return {
        "place": frame.place,
        "file": frame.file,
        "function": "" if frame.function == "<module>" else frame.function,
        "line": frame.line,
        "source": [[number, text[:500]] for number, text in frame.source],
        "columns": list(frame.columns) if frame.columns else None,
        "skipped": frame.skipped,
        "library": frame.is_library,
    }


def _trace(trace: Trace, depth: int) -> dict[str, Any]:
    linked = [("cause", trace.cause), ("context", trace.context if trace.cause is None else None)]
    frames = [*trace.frames, *([trace.syntax] if trace.syntax is not None else [])]
    return {
        "type": trace.full_name,
        "message": trace.message[:20_000],
        "notes": [note[:WORDS] for note in trace.notes],
        "frames": [_frame(frame) for frame in frames[-FRAMES:]],
        "linked": [[kind, _trace(other, depth - 1)] for kind, other in linked if other is not None and depth > 0],
        "group": [_trace(member, depth - 1) for member in trace.group[:8]] if depth > 0 else [],
    }
