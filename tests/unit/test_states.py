"""The states of ranks and runs: one table each, and every end is an end."""

from __future__ import annotations

import itertools

import pytest

from nbproc.contexts.board import Board, Stage
from nbproc.contexts.rank import Rank
from nbproc.failures import ProcessFailure
from nbproc.states import RANK_TRANSITIONS, RUN_TRANSITIONS, RankState, RunState, Snapshot


def board(nprocs: int = 2) -> tuple[Board, list[Rank], list[Snapshot]]:
    told: list[Snapshot] = []
    ranks = [Rank(number) for number in range(nprocs)]
    return Board("n", ranks, told.append, lambda: (None, ("a note",))), ranks, told


def failure(rank: int, time: float) -> ProcessFailure:
    made = ProcessFailure(rank, 100 + rank, 1, "")
    made.time = time
    return made


def test_every_state_is_in_its_table() -> None:
    assert set(RANK_TRANSITIONS) == set(RankState)
    assert set(RUN_TRANSITIONS) == set(RunState)


def test_what_has_ended_stays_so_and_everything_else_can_end() -> None:
    for table in (RANK_TRANSITIONS, RUN_TRANSITIONS):
        for state, following in table.items():
            assert state.ended == (not following)
            assert state not in following
    assert all(any(state in after for after in RANK_TRANSITIONS.values()) for state in RankState if state.ended)
    for state in RankState:
        if not state.ended:
            assert {RankState.FAILED, RankState.STOPPED} <= RANK_TRANSITIONS[state]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(RankState, RankState)))
def test_a_rank_takes_only_steps_of_the_table(before: RankState, after: RankState) -> None:
    rank = Rank(0, state=before)
    if after in RANK_TRANSITIONS[before]:
        rank.become(after, "words")
        assert (rank.state, rank.words, rank.ended is not None) == (after, "words", after.ended)
    else:
        with pytest.raises(AssertionError):
            rank.become(after)
        assert rank.state is before


def test_a_run_takes_only_steps_of_the_table() -> None:
    run, _, told = board()
    with pytest.raises(AssertionError):
        run.move(RunState.RUNNING)
    for state in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING, RunState.FAILED):
        run.move(state)
        assert told[-1].state is run.snapshot.state is state
    assert told[0].started is not None
    assert told[-1].ended is not None
    with pytest.raises(AssertionError):
        run.move(RunState.SUCCEEDED)


def test_a_snapshot_shares_what_did_not_change() -> None:
    run, ranks, told = board()
    first = run.snapshot
    run.set(ranks[1], RankState.STARTING)
    assert told == [run.snapshot]
    assert run.snapshot.ranks[0] is first.ranks[0]
    assert [rank.state for rank in first.ranks] == [RankState.WAITING] * 2
    assert [rank.state for rank in run.snapshot.ranks] == [RankState.WAITING, RankState.STARTING]
    assert run.snapshot.nprocs == 2


def test_the_first_failure_is_the_earliest_by_the_ranks_clocks() -> None:
    run, ranks, told = board(3)
    for rank in ranks:
        run.set(rank, RankState.STARTING)
    for number, time in ((2, 30.0), (0, 10.0), (1, 20.0)):
        run.fail(ranks[number], failure(number, time))
    assert [snapshot.first_failed for snapshot in told[-3:]] == [2, 0, 0]
    assert set(run.failures) == {0, 1, 2}


def test_notes_are_said_once() -> None:
    run, _, _ = board()
    run.note("trouble")
    run.note("trouble")
    run.publish()
    assert run.snapshot.notes == ("a note", "trouble")


def test_stages_are_waited_for_and_never_go_back() -> None:
    run, _, _ = board()
    assert not run.wait_for(Stage.ANSWERED, 0)
    run.reach(Stage.FINISHED)
    run.reach(Stage.ANSWERED)
    assert run.wait_for(Stage.ANSWERED, 0)
    assert run.wait_for(Stage.FINISHED, 0)
    assert not run.wait_for(Stage.CLOSED, 0)


def test_a_listener_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def listen(snapshot: Snapshot) -> None:
        raise ValueError("mine")

    run = Board("n", [Rank(0)], listen, lambda: (None, ()))
    run.move(RunState.STARTING)
    assert "a listener of n failed" in caplog.text
