"""When a run is looked at although nothing happens."""

from __future__ import annotations

import math

from nbproc.contexts.deadlines import LINGER, START_TIMEOUT, Deadlines
from nbproc.states import RunState


def test_ranks_have_a_time_to_answer_which_does_not_begin_anew() -> None:
    due = Deadlines(None, None)
    due.see(RunState.STARTING, 100.0)
    due.see(RunState.STARTING, 200.0)
    assert due.next_due() == due.start_by == 100.0 + START_TIMEOUT
    due.see(RunState.RUNNING, 250.0)
    assert due.next_due() == math.inf


def test_a_timeout_begins_when_the_run_does_and_ends_with_a_stop() -> None:
    due = Deadlines(None, 5.0)
    due.see(RunState.STARTING, 100.0)
    due.see(RunState.RUNNING, 200.0)
    due.see(RunState.RUNNING, 203.0)
    assert due.next_due() == due.run_until == 205.0
    due.see(RunState.STOPPING, 204.0)
    assert due.next_due() == math.inf


def test_ranks_that_returned_are_released_then_expected_to_exit() -> None:
    due = Deadlines(3.0, None)
    due.returned(100.0, linger=True)
    due.returned(200.0, linger=False)
    assert (due.release_at, due.exits_by, due.next_due()) == (100.0 + LINGER, 103.0, 100.0 + LINGER)
    at_once = Deadlines(3.0, None)
    at_once.returned(100.0, linger=False)
    assert at_once.release_at == 100.0
