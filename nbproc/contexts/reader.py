"""Who reads the logs of a run: the one reader thread and what it feeds.

Files are read only where somebody needs their lines: a place that shows every stream, teed streams, filtered files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbproc.logs.history import History
from nbproc.logs.lines import LineEvent, Stream
from nbproc.logs.sinks import ConsoleTee, FilterFile, prefixes
from nbproc.logs.tail import Sink, Source, Tail

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext
    from nbproc.surroundings import Surroundings


class Reader:
    """The reader thread of one run, None if nobody needs it."""

    def __init__(self, context: PContext, around: Surroundings, tell: Callable[[Sequence[LineEvent]], None]) -> None:
        plan, layout = context.plan, context.layout
        captures = around.captures or plan.capture
        assert layout is not None
        before = prefixes(plan.name, plan.nprocs, plan.prefixes)
        sinks: list[Sink] = []
        self.history: History | None = None
        watched = set(layout.teed)
        filtered = {
            Stream.OUT: (plan.stdout_filters, layout.dest.filtered_stdout),
            Stream.ERR: (plan.stderr_filters, layout.dest.filtered_stderr),
        }
        for stream, (filters, path) in filtered.items():
            if filters and path:
                chosen = {(rank, stream) for rank in range(plan.nprocs)} if plan.filter_all else set(layout.teed)
                matched = {key for key in chosen if key[1] is stream}
                sinks.append(FilterFile(path, filters, before, matched, private=True))
                watched |= matched
        lossless = bool(watched)
        if captures:
            self.history = History(plan.nprocs)
            watched |= {key for key in layout.paths if layout.log_file(*key) is not None}
            sinks.append(self.history)
            sinks.append(tell)
        console = around.console(context)
        shown = layout.shown if captures else layout.teed
        for stream in (Stream.OUT, Stream.ERR):
            echoed = {key for key in shown if key[1] is stream}
            write = console.get(stream.value)
            if echoed and write is not None:
                sinks.append(ConsoleTee(write, before, echoed))
        self._ended = False
        self._tail: Tail | None = None
        if sinks and watched:
            # Of what came between two looks stdout goes first: an error stands below the lines that led to it.
            sources = [
                Source(rank, stream, file)
                for rank, stream in sorted(watched, key=lambda of: (of[0], of[1] is Stream.ERR))
                if (file := layout.log_file(rank, stream)) is not None
            ]
            if captures:
                sources += [Source(rank, Stream.DISPLAY, layout.files.display(rank)) for rank in range(plan.nprocs)]
            self._tail = Tail(plan.name, sources, sinks, lossless=lossless)

    def start(self) -> None:
        """Start the thread, if there is one."""
        if self._tail is not None:
            self._tail.start()

    def catch_up(self, timeout: float = 5.0) -> None:
        """Return when what was written so far has been read, or after ``timeout`` seconds."""
        if self._tail is not None:
            self._tail.catch_up(timeout)

    def stopped(self) -> bool:
        """Return whether nothing is read any more."""
        return self._ended

    def finish(self, timeout: float = 30.0) -> None:
        """Read to the end and end the thread."""
        self._ended = True
        if self._tail is not None:
            self._tail.finish(timeout)
