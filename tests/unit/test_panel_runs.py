"""The launch panel's list of runs: newest first, one line each, the last twenty."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes import FakeContext

from nbproc.contexts.results import ReturnValues
from nbproc.notebook.panel_runs import KEPT, PanelRun, PanelRuns
from nbproc.notebook.panel_values import Values
from nbproc.states import RunState


class View:
    closed = False

    def close(self) -> None:
        self.closed = True


class Runs:
    """A list, and a run for each call of `add`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changes = 0
        self.ready = threading.Event()
        self.list = PanelRuns(self._changed)

    def _changed(self) -> None:
        self.changes += 1
        if self.list.rows() and self.list.rows()[0]["said"]:
            self.ready.set()

    def add(self, *values: object, executable: bool = False) -> PanelRun:
        context: Any = FakeContext(2, self.root / str(len(list(self.root.iterdir()))), name="train")
        context.plan = SimpleNamespace(executable=executable)
        context.partial_values = ReturnValues({rank: (lambda value=value: value) for rank, value in enumerate(values)})
        view: Any = View()
        run = PanelRun(
            Values(function="train", arguments="cfg", variable="kept"), context, view, f"model{len(self.list.rows())}"
        )
        context.tell(state=RunState.STARTING, started=1.0)
        self.list.add(run)
        return run


def end(run: PanelRun, state: RunState, headline: str = "") -> None:
    context = cast("Any", run.context)
    context.tell(state=RunState.RUNNING)
    context.tell(state=state, ended=3.5, headline=headline)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_the_newest_is_first_and_its_line_changes_with_it(runs: Runs) -> None:
    """Given two runs, when the newer ends, then its line says how, and the older one is below."""
    first, second = runs.add(), runs.add(16, 17)
    assert [row["id"] for row in runs.list.rows()] == [second.id, first.id]
    assert runs.list.rows()[0]["call"] == "train(cfg)"
    before = runs.changes
    end(second, RunState.SUCCEEDED, "results in kept.result()")
    assert runs.ready.wait(10)
    assert runs.changes > before
    row = runs.list.rows()[0]
    assert (row["state"], row["said"], row["started"], row["ended"]) == ("succeeded", "0: 16, 1: 17", 1.0, 3.5)


def test_a_notebook_without_widgets_has_the_list_with_how_each_run_ended(runs: Runs) -> None:
    """Given a run that succeeded and one that was stopped, then what is saved says both, newest first."""
    assert runs.list.saved() == {"text/plain": "", "text/html": ""}
    good, stopped = runs.add(16, 17), runs.add()
    end(good, RunState.SUCCEEDED)
    assert runs.ready.wait(10) or good.result
    good.read_result()
    end(stopped, RunState.STOPPED, "stopped by you in 0.1 s; nothing left <running>")
    saved = runs.list.saved()
    assert saved["text/plain"].splitlines() == [
        "train(cfg): stopped, 2 ranks, 0:02; stopped by you in 0.1 s; nothing left <running>",
        "train(cfg): succeeded, 2 ranks, 0:02; 0: 16, 1: 17",
    ]
    assert 'class="nbproc-panel-runs"' in saved["text/html"]
    assert "nothing left &lt;running&gt;" in saved["text/html"]


def test_equal_results_are_said_once_and_none_is_not_said(runs: Runs) -> None:
    same = runs.add("x", "x")
    end(same, RunState.SUCCEEDED)
    assert runs.ready.wait(10)
    assert runs.list.rows()[0]["said"] == "all ranks: 'x'"
    nothing = runs.add(None, None)
    nothing.context.tell(state=RunState.SUCCEEDED)  # type: ignore[attr-defined]  # a fake
    nothing.read_result()
    assert runs.list.rows()[0]["said"] == ""


def test_a_result_that_cannot_be_shown_is_told(runs: Runs) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    end(runs.add(Odd(), 1), RunState.SUCCEEDED)
    assert runs.ready.wait(10)
    assert runs.list.rows()[0]["said"] == "0: a value that cannot be shown (RuntimeError), 1: 1"


def test_a_stopped_run_says_what_was_done(runs: Runs) -> None:
    end(runs.add(), RunState.STOPPED, "stopped by you in 0.4 s; nothing left running")
    assert runs.list.rows()[0]["said"] == "stopped by you in 0.4 s; nothing left running"


def test_a_program_has_no_result(runs: Runs) -> None:
    run = runs.add(executable=True)
    end(run, RunState.SUCCEEDED, "")
    run.read_result()
    assert runs.list.rows()[0]["said"] == ""


def test_the_last_twenty_are_kept_and_those_that_run(runs: Runs) -> None:
    """Given a long list, when runs are added, then the oldest that is over leaves, never one that goes on."""
    going = runs.add()
    over = [runs.add() for _ in range(KEPT - 1)]
    for run in over:
        end(run, RunState.STOPPED)
    assert len(runs.list.rows()) == KEPT
    runs.add()
    assert len(runs.list.rows()) == KEPT
    assert runs.list.find(over[0].id) is None
    assert over[0].view.closed  # type: ignore[attr-defined]  # a fake
    assert runs.list.find(going.id) is going


def test_a_run_may_be_taken_off_when_it_is_over(runs: Runs) -> None:
    run = runs.add()
    runs.list.remove(run.id)
    assert runs.list.find(run.id) is run
    end(run, RunState.STOPPED)
    runs.list.remove(run.id)
    assert runs.list.rows() == []


def test_another_panel_takes_the_runs_over(runs: Runs, tmp_path: Path) -> None:
    run = runs.add()
    other = PanelRuns(lambda: None)
    for taken in reversed(runs.list.take_all()):
        other.add(taken)
    before = runs.changes
    end(run, RunState.STOPPED, "stopped")
    assert runs.changes == before
    assert other.rows()[0]["said"] == "stopped"
