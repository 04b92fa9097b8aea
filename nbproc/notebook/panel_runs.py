"""The runs that a launch panel has started: newest first, each as one line and, opened, as its live view."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from nbproc.notebook.html import title_html, title_text
from nbproc.notebook.panel_code import default_name
from nbproc.notebook.panel_values import Values
from nbproc.states import RunState, Snapshot

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext
    from nbproc.contexts.results import ReturnValues
    from nbproc.notebook.view import RunView

KEPT = 20
"""So many runs stay in the list; of older ones the logs stay where they are."""
SMALL = 64_000
"""A return value of so many bytes is read to be shown in a line."""
_WIDTH = 200
_SCALARS = ("NoneType", "bool", "int", "float", "str")

_ids = itertools.count(1)


@dataclass(eq=False)
class PanelRun:
    """One run: the fields as they were at its launch, its context, its view."""

    values: Values
    context: PContext
    view: RunView
    model_id: str
    id: int = field(default_factory=lambda: next(_ids))
    result: str | None = None
    unsubscribe: Callable[[], None] = lambda: None

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.context.snapshot().state.ended

    def unhook(self) -> None:
        """Listen to the run no more."""
        unsubscribe, self.unsubscribe = self.unsubscribe, lambda: None
        unsubscribe()

    def row(self) -> dict[str, Any]:
        """Return the run's line for the browser."""
        snapshot = self.context.snapshot()
        return {
            "id": self.id,
            "model": f"anywidget:{self.model_id}",
            "state": snapshot.state.value,
            "name": snapshot.name,
            "call": call_words(self.values),
            "nprocs": snapshot.nprocs,
            "started": snapshot.started,
            "ended": snapshot.ended,
            "said": self.said(),
        }

    def said(self) -> str:
        """Return what the run says of its end: what it returned, why it failed, how it was stopped."""
        snapshot = self.context.snapshot()
        if snapshot.state is RunState.FAILED or (snapshot.state is RunState.STOPPING and self.context.failures):
            return self.context.report().headline
        if snapshot.state is RunState.SUCCEEDED:
            return self.result or ""
        return snapshot.headline if snapshot.state.ended else ""

    def read_result(self) -> None:
        """Put the return values into one line: what they are if they are small, else of which type. Takes a moment."""
        context = self.context
        if context.snapshot().state is not RunState.SUCCEEDED or context.plan.executable:
            return
        values = context.partial_values
        shown = [_one_value(values, rank) for rank in values]
        if len(shown) > 1 and len(set(shown)) == 1:
            self.result = f"all ranks: {shown[0]}" if shown[0] != "None" else ""
        elif len(shown) == 1:
            self.result = shown[0] if shown[0] != "None" else ""
        else:
            self.result = _clipped(
                ", ".join(f"{rank}: {text}" for rank, text in zip(values, shown, strict=True)), _WIDTH
            )


class PanelRuns:
    """The list. ``changed`` is called, on any thread, when a line is another one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self._lock = threading.Lock()
        self._runs: list[PanelRun] = []

    def add(self, run: PanelRun) -> None:
        """Put a run at the top; the oldest that is over leaves the list if it is too long."""
        with self._lock:
            self._runs.insert(0, run)
            over = [old for old in reversed(self._runs) if old.ended]
            dropped = over[: max(0, len(self._runs) - KEPT)]
            self._runs = [kept for kept in self._runs if kept not in dropped]
        for old in dropped:
            _let_go(old)
        if not run.ended:
            run.unsubscribe = run.context.subscribe(lambda event: self._hear(run, event))
        self._hear(run, run.context.snapshot())

    def find(self, number: int) -> PanelRun | None:
        """Return a run by its number."""
        return next((run for run in self._runs if run.id == number), None)

    def rows(self) -> list[dict[str, Any]]:
        """Return all lines, newest first."""
        return [run.row() for run in list(self._runs)]

    def saved(self) -> dict[str, str]:
        """Return the list as it stands in a notebook without its widgets: how each run ended, in text and in HTML.

        The form's style sheet hides it where the form stands.
        """
        lines, rows = [], []
        for run in list(self._runs):
            snapshot, call, said = run.context.snapshot(), call_words(run.values), run.said()
            lines.append(title_text(snapshot, call) + (f"; {said}" if said else ""))
            rows.append(title_html(snapshot, call) + _said_html(said))
        return {
            "text/plain": "\n".join(lines),
            "text/html": f'<div class="nbproc-panel-runs">{"".join(rows)}</div>' if rows else "",
        }

    def take_all(self) -> list[PanelRun]:
        """Give all runs to somebody else."""
        with self._lock:
            taken, self._runs = self._runs, []
        for run in taken:
            run.unhook()
        return taken

    def remove(self, number: int) -> None:
        """Take a run that is over off the list."""
        run = self.find(number)
        if run is not None and run.ended:
            with self._lock:
                self._runs.remove(run)
            _let_go(run)
            self.changed()

    def _hear(self, run: PanelRun, event: object) -> None:
        if not isinstance(event, Snapshot):
            return
        self.changed()
        if run.ended and run.result is None:
            run.result = ""
            threading.Thread(target=self._read, args=(run,), name="nbproc-panel-result", daemon=True).start()

    def _read(self, run: PanelRun) -> None:
        run.unhook()
        run.read_result()
        self.changed()


def _one_value(values: ReturnValues, rank: int) -> str:
    """What a rank returned; a large value, or one that would import torch here, is told by its type and size."""
    known = values.peek(rank)
    if known is not None:
        kind, size = known
        if size > SMALL or (kind not in _SCALARS and "torch" not in sys.modules):
            return f"{kind} ({size:,} bytes)"
    try:
        return _clipped(repr(values[rank]))
    except Exception as error:
        return f"a value that cannot be shown ({type(error).__name__})"


def _said_html(said: str) -> str:
    return f'<p style="margin:0 0 4px 16px">{escape(said, quote=False)}</p>' if said else ""


def _let_go(run: PanelRun) -> None:
    run.unhook()
    run.view.close()


def call_words(values: Values) -> str:
    """Return what was launched, as one would say it: ``train(cfg, lr=0.1)``, ``python train.py``."""
    by_rank = values.by_rank("arguments")
    if values.program:
        rest = "(by rank)" if by_rank else values.arguments.strip()
        return _clipped(f"{values.executable.strip()} {rest}".strip(), _WIDTH)
    return _clipped(f"{values.function.strip()}({'by rank' if by_rank else values.arguments.strip()})", _WIDTH)


def name_of(values: Values) -> str:
    """Return the name that a run of these fields gets."""
    return values.name.strip() or default_name(values)


def _clipped(text: str, width: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
