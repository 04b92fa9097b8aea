"""How a run is shown where it was launched from: a live view in a kernel, lines of text in a terminal."""

from __future__ import annotations

import sys
from typing import Any

from nbproc import explain
from nbproc.contexts.base import PContext
from nbproc.states import RunState


class Showing:
    """Shows nothing. `begin` is called when the run exists, `finish` at its end."""

    def begin(self) -> None:
        """Start to show the run."""

    def finish(self) -> None:
        """Show what is left, and how it ended."""

    def say(self, text: str) -> None:
        """Say a last line, where the view does not."""


class _View(Showing):
    def __init__(self, context: PContext) -> None:
        from nbproc.notebook.view import RunView

        self._view = RunView(context)

    def begin(self) -> None:
        self._view.show()

    def finish(self) -> None:
        self._view.finish()


class _Text(Showing):
    def __init__(self, context: PContext) -> None:
        self._context = context

    def begin(self) -> None:
        for note in self._context.notes:
            self.say(note)

    def say(self, text: str) -> None:
        if text:
            sys.stdout.write(text + "\n")


def show(shell: Any, context: PContext) -> Showing:
    """Return what shows this run: made now, shown with `Showing.begin`."""
    return _View(context) if hasattr(shell, "kernel") else _Text(context)


def register(shell: Any) -> None:
    """Make a context that is a cell's last expression show its view, or its state as text in a terminal."""
    formatters = shell.display_formatter
    if hasattr(shell, "kernel"):
        formatters.ipython_display_formatter.for_type(PContext, _display)
    else:
        formatters.formatters["text/plain"].for_type(PContext, _pretty)


def _display(context: PContext) -> None:
    from nbproc.notebook.view import RunView

    view = RunView(context)
    view.show()
    if context.snapshot().state.ended:
        view.finish()


def _pretty(context: PContext, printer: Any, cycle: bool) -> None:
    printer.text(state_text(context))


def state_text(context: PContext) -> str:
    """Return the state of a run and of each of its ranks as text, with the explanation of a failure."""
    snapshot = context.snapshot()
    lines = [f"{snapshot.name}: {snapshot.state.value}, {snapshot.nprocs} ranks"]
    history = context.history
    for rank in snapshot.ranks:
        last = history.last(rank.rank) if history is not None else None
        words = rank.words or (last.text.strip() if last is not None else "")
        pid = f"pid {rank.pid}" if rank.pid is not None else ""
        lines.append("  ".join(part for part in (f"rank {rank.rank}", rank.state.value, pid, words) if part))
    if snapshot.state is RunState.FAILED:
        lines += ["", explain.text(context.report())]
    elif snapshot.headline:
        lines.append(snapshot.headline)
    return "\n".join(lines)
