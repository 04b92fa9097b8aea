"""How a run is shown where it was launched from: a live view in a kernel, lines of text in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from nbproc import explain
from nbproc.contexts.base import PContext
from nbproc.contexts.results import RunProcsResult
from nbproc.notebook import echo, front_ends
from nbproc.states import RankState, RunState

_VALUE_LINES = 12
_VALUE_CHARS = 2_000


class Showing:
    """What shows a run. `begin` is called when the run exists, `finish` at its end; the rest if there is need."""

    def begin(self) -> None:
        """Start to show the run."""

    def finish(self) -> None:
        """Show what is left, and how it ended."""

    @property
    def explains(self) -> bool:
        """Whether whoever ran the cell sees there why the run failed, as far as one can know."""
        return False

    def say(self, text: str) -> None:
        """Say a last line, where nothing else says it."""

    def explain(self, report: explain.Report) -> None:
        """Say why the run failed, where nothing else does."""


class Quiet(Showing):
    """Shows nothing while the run goes on, and its last line."""

    def __init__(self, context: PContext) -> None:
        self._context = context

    def say(self, text: str) -> None:
        """Print the line."""
        if text:
            sys.stdout.write(text + "\n")

    def explain(self, report: explain.Report) -> None:
        """Print the explanation."""
        self.say(explain.text(report))


class _View(Showing):
    def __init__(self, context: PContext) -> None:
        from nbproc.notebook.view import RunView

        self._view = RunView(context)

    def begin(self) -> None:
        self._view.show()

    def finish(self) -> None:
        self._view.finish()

    @property
    def explains(self) -> bool:
        return front_ends.shows_views(front_ends.current())


def show(shell: Any, context: PContext, *, detached: bool = False) -> Showing:
    """Return what shows this run: made now, shown with `Showing.begin`."""
    if hasattr(shell, "kernel"):
        return _View(context)
    from nbproc.notebook.terminal import TerminalRun, can_repaint

    live = can_repaint(sys.stdout)
    color = live and str(getattr(shell, "colors", "")).lower() != "nocolor"
    return TerminalRun(context, sys.stdout, live=live, color=color, detached=detached)


def register(shell: Any) -> None:
    """Make a context that is a cell's last expression show its view, or its state as text in a terminal.

    A result is shown by rank.
    """
    formatters = shell.display_formatter
    if hasattr(shell, "kernel"):
        formatters.ipython_display_formatter.for_type(PContext, _display)
    else:
        formatters.formatters["text/plain"].for_type(PContext, _pretty)
    formatters.formatters["text/plain"].for_type(RunProcsResult, _pretty_result)


def _display(context: PContext) -> None:
    from nbproc.notebook.view import RunView

    echo.make_way(context)
    view = RunView(context)
    view.show()
    if context.snapshot().state.ended:
        view.finish()


def _pretty(context: PContext, printer: Any, cycle: bool) -> None:
    printer.text(state_text(context))


def state_text(context: PContext) -> str:
    """Return the state of a run and of each of its ranks as text, with the explanation of a failure."""
    snapshot = context.snapshot()
    lines = [f"{snapshot.name}: {snapshot.state.value}, {explain.launch_line(snapshot)}"]
    history = context.history
    for rank in snapshot.ranks:
        last = history.last(rank.rank) if history is not None else None
        words = rank.words or (last.text.strip() if last is not None else "")
        pid = f"pid {rank.pid}" if rank.pid is not None and not rank.state.ended else ""
        state = "" if words.startswith(rank.state.value) else rank.state.value
        if rank.state is RankState.SUCCEEDED and words:
            state = ""
        lines.append("  ".join(part for part in (f"  rank {rank.rank}", state, pid, words) if part))
    if snapshot.state is RunState.FAILED:
        lines += ["", explain.text(context.report())]
    elif snapshot.headline:
        lines.append(snapshot.headline)
    return "\n".join(lines)


def _pretty_result(result: RunProcsResult, printer: Any, cycle: bool) -> None:
    printer.text(result_text(result))


def result_text(result: RunProcsResult) -> str:
    """Return a result by rank: what each returned, or how it failed. Reads the values."""
    values = result.return_values or result.partial_values
    ranks = sorted({*values, *result.failures, *result.stdouts})
    count = f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'}"
    failed = f", {explain.ranks_words(result.failures)} failed" if result.failures else ""
    lines = [f"RunProcsResult of {count}{failed}"]
    for rank in ranks:
        if rank in result.failures:
            lines.append(f"  rank {rank}: {result.failures[rank].headline}")
        elif rank in values:
            lines += _value_lines(f"  rank {rank}: ", values, rank)
        else:
            lines.append(f"  rank {rank}: no value")
    if values and values is not result.return_values:
        lines.append("what some ranks returned is in .partial_values")
    return "\n".join(lines)


def _value_lines(before: str, values: Mapping[int, Any], rank: int) -> list[str]:
    from IPython.lib.pretty import pretty

    try:
        text = pretty(values[rank], max_width=100)
    except Exception as error:  # the value's own repr, or the reading of it: neither spoils the other ranks'
        text = f"<{type(error).__name__}: {error}>"
    if len(text) > _VALUE_CHARS:
        text = f"{text[:_VALUE_CHARS]} ... ({len(text) - _VALUE_CHARS:,} more characters)"
    first, *rest = text.split("\n")
    if len(rest) >= _VALUE_LINES:
        rest = [*rest[: _VALUE_LINES - 1], f"... ({len(rest) - _VALUE_LINES + 1:,} more lines)"]
    return [before + first, *(" " * len(before) + line for line in rest)]
