"""A run in a terminal: the ranks' lines as they come, and under them the lines that still change (bars), in place."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from nbproc import explain
from nbproc.logs.lines import LineEvent, Stream, plain
from nbproc.notebook.shown import Showing
from nbproc.states import RankState, RunState, Snapshot

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

_COLORS = (36, 33, 35, 32, 34, 91)
"""One for each rank, from the start again after the last: cyan, yellow, magenta, green, blue, light red."""
_WINDOW = 50
"""Lines after which a line that was redrawn is taken to stay as it is."""
_ROWS = 16
"""The most lines that are kept changing in place."""
_HEIGHT_LEFT = 4

Key = tuple[int, Stream, int]


class Painter:
    """Line events -> text for a terminal. Pure: it is told the size and returns what to write.

    ``live`` keeps incomplete lines, and complete ones that are redrawn, at the bottom and paints them anew; without
    it each line is written once, when it is complete.
    """

    def __init__(self, *, live: bool, color: bool) -> None:
        self._live = live
        self.color = color
        self._written: dict[Key, str] = {}
        self._changing: dict[Key, str] = {}
        self._rows = 0

    def paint(self, events: Iterable[LineEvent], columns: int, rows: int, said: str = "") -> str:
        """Return what to write so that the terminal shows these events, then ``said``, then what still changes."""
        done: list[str] = []
        for event in events:
            key = (event.rank, event.stream, event.number)
            if event.stream is Stream.DISPLAY:
                done.append(self._line(event.rank, _displayed(event.text)))
            elif key in self._written:
                if self._written[key] != event.text:
                    self._changing[key] = event.text
            elif event.complete:
                self._changing.pop(key, None)
                self._written[key] = event.text
                done.append(self._line(event.rank, event.text))
            elif event.text:
                self._changing[key] = event.text
        self._forget()
        if not self._live:
            return "".join(line + "\n" for line in done) + said
        shown = [self._line(rank, text, columns) for (rank, _, _), text in sorted(self._changing.items(), key=_order)]
        shown = shown[: min(_ROWS, max(1, rows - _HEIGHT_LEFT))]
        text = self._back() + "".join(line + "\n" for line in done) + said + "".join(line + "\n" for line in shown)
        self._rows = len(shown)
        return text

    def end(self) -> str:
        """Return what to write at the end: the lines that changed last, as they stay."""
        back = self._back() if self._live else ""
        self._rows = 0
        left = sorted(self._changing.items(), key=_order)
        self._changing.clear()
        return back + "".join(self._line(rank, text) + "\n" for (rank, _, _), text in left)

    def _back(self) -> str:
        return f"\x1b[{self._rows}A\r\x1b[J" if self._rows else ""

    def _line(self, rank: int, text: str, columns: int | None = None) -> str:
        before = f"rank {rank}: "
        if columns is not None and len(before) + len(plain(text)) >= columns:
            text = plain(text)[: columns - len(before) - 1]
        if not self.color:
            return before + plain(text)
        reset = "\x1b[0m" if "\x1b" in text else ""
        return f"\x1b[{_COLORS[rank % len(_COLORS)]}m{before}\x1b[0m{text}{reset}"

    def _forget(self) -> None:
        if len(self._written) > 50 * _WINDOW:
            newest: dict[tuple[int, Stream], int] = {}
            for rank, stream, number in self._written:
                newest[rank, stream] = max(number, newest.get((rank, stream), 0))
            self._written = {
                key: text for key, text in self._written.items() if key[2] > newest[key[0], key[1]] - _WINDOW
            }


def _order(item: tuple[Key, str]) -> tuple[int, str, int]:
    (rank, stream, number), _ = item
    return rank, stream.value, number


def _displayed(record: str) -> str:
    """Say what was displayed and where it is kept, from a line of `display.jsonl`."""
    try:
        found = json.loads(record)
        return f"{found['text']} ({found['file']} in its directory)"
    except (ValueError, KeyError, TypeError):
        return "(something was displayed)"


class TerminalRun(Showing):
    """Writes a run to a stream while it goes on. The run's threads call it; one writes at a time.

    ``detached``: the prompt is back, so nothing is painted in place, and the end is told here too.
    """

    def __init__(self, context: PContext, stream: TextIO, *, live: bool, color: bool, detached: bool = False) -> None:
        self._context = context
        self._stream = stream
        self._painter = Painter(live=live and not detached, color=color)
        self._detached = detached
        self._lock = threading.Lock()
        self._ended = False
        self._said_failure = False
        self._said_end = False
        self._unsubscribe: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Say what was launched, and write the lines from now on."""
        self.say(explain.launch_line(self._context.snapshot()))
        self._unsubscribe = self._context.subscribe(self._listen)
        history = self._context.history
        if history is not None:  # a short run may have said all by now
            said = [event for rank in range(self._context.nprocs) for event in history.rows(rank)]
            self._paint(sorted(said, key=lambda event: event.time))
        if self._detached:
            self._tell_end(self._context.snapshot())

    def finish(self) -> None:
        """Leave the last lines as they are, and write no more of them."""
        self._unsubscribe()
        with self._lock:
            if not self._ended:
                self._write(self._painter.end())
            self._ended = True

    def say(self, text: str) -> None:
        """Write a line."""
        with self._lock:
            self._write(f"{text}\n" if text else "")

    def explain(self, report: explain.Report) -> None:
        """Write why the run failed."""
        self.say(explain.text(report, color=self._painter.color))

    def _listen(self, event: Sequence[LineEvent] | Snapshot) -> None:
        if not isinstance(event, Snapshot):
            self._paint(event)
        elif self._detached and event.state.ended:
            self._tell_end(event)
        elif event.first_failed is not None and not self._said_failure and _others_run(event):
            self._said_failure = True
            self._paint((), f"{explain.headline(self._context.report())}; stopping the other ranks\n")

    def _tell_end(self, snapshot: Snapshot) -> None:
        """Tell the end of a detached run, once; nothing of one that goes on."""
        with self._lock:
            if not snapshot.state.ended or self._said_end:
                return
            self._said_end = True
        self.finish()
        self.say(f"{snapshot.name}: {snapshot.headline}")
        if snapshot.state is RunState.FAILED:
            self.explain(self._context.report())

    def _paint(self, events: Sequence[LineEvent], said: str = "") -> None:
        layout = self._context.layout
        wanted = layout.shown if layout is not None else frozenset()
        mine = [event for event in events if event.stream is Stream.DISPLAY or (event.rank, event.stream) in wanted]
        size = shutil.get_terminal_size()
        with self._lock:
            if not self._ended and (mine or said):
                self._write(self._painter.paint(mine, size.columns, size.lines, said))

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()


def _others_run(snapshot: Snapshot) -> bool:
    return any(rank.state is RankState.RUNNING for rank in snapshot.ranks)


def can_repaint(stream: TextIO) -> bool:
    """Return whether lines can be painted anew there."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False
