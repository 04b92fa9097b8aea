"""What a run says of its ranks, and that telling it costs as much for each rank however many there are."""

from __future__ import annotations

import pytest

from nbproc.contexts.board import Board
from nbproc.contexts.rank import Rank
from nbproc.states import RankSnapshot, RankState, RunState, Snapshot


def board_of(count: int) -> tuple[Board, list[Rank], list[Snapshot]]:
    ranks = [Rank(number) for number in range(count)]
    told: list[Snapshot] = []
    return Board("n", ranks, told.append, lambda: (None, ())), ranks, told


def test_each_change_is_told_and_changes_no_earlier_snapshot() -> None:
    board, ranks, told = board_of(2)
    board.move(RunState.STARTING)
    board.set(ranks[1], RankState.STARTING)
    board.set(ranks[0], RankState.STARTING)
    assert [[rank.state.value for rank in one.ranks] for one in told] == [
        ["waiting", "waiting"],
        ["waiting", "starting"],
        ["starting", "starting"],
    ]
    assert told[1].ranks[1] is told[2].ranks[1]


def test_what_is_seen_of_a_rank_is_told_with_the_next_change() -> None:
    board, ranks, told = board_of(2)
    ranks[0].started = 1.0
    board.see(ranks[0])
    assert told == []
    board.note("something")
    ranks[1].exitcode = 3
    board.publish(ranks[1])
    assert [one.ranks[0].started for one in told] == [1.0, 1.0]
    assert [one.ranks[1].exitcode for one in told] == [None, 3]


def test_a_change_of_one_rank_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    board, ranks, _ = board_of(300)
    looked: list[int] = []
    snapshot = Rank.snapshot

    def look(self: Rank) -> RankSnapshot:
        looked.append(self.number)
        return snapshot(self)

    monkeypatch.setattr(Rank, "snapshot", look)
    for rank in ranks:
        board.set(rank, RankState.STARTING)
    assert looked == list(range(300))
