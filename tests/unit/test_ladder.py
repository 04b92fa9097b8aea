"""The stop ladder: which step is due when, without processes or clocks."""

from __future__ import annotations

import signal

import pytest

from nbproc.contexts.ladder import FAILURE_GRACE, GRACE, LAST_WORDS, SETTLE, TERM_GRACE, Ladder

INT, TERM, KILL = int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGKILL)


def steps(ladder: Ladder) -> list[tuple[float, list[int]]]:
    """Climb the whole ladder: each moment at which something is due, and what is due then."""
    now, found = 0.0, [(0.0, ladder.due(0.0))]
    while (at := ladder.next_due(now)) is not None:
        now = at
        found.append((round(now, 6), ladder.due(now)))
    return found


def test_a_stop_asks_at_once_and_kills_at_last() -> None:
    assert steps(Ladder.stop(0.0, None)) == [
        (0.0, [INT]),
        (GRACE - LAST_WORDS, [INT]),
        (GRACE, [INT, TERM]),
        (GRACE + TERM_GRACE, [KILL]),
    ]


def test_a_grace_period_of_ones_own() -> None:
    assert [at for at, _ in steps(Ladder.stop(0.0, 3.0))] == [0.0, 3.0 - LAST_WORDS, 3.0, 3.0 + TERM_GRACE]
    assert steps(Ladder.stop(0.0, 0.0)) == [(0.0, [INT, TERM]), (TERM_GRACE, [KILL])]


def test_after_a_failure_the_others_have_a_moment_to_fail_by_themselves() -> None:
    ladder = Ladder.failure(0.0, None)
    assert ladder.due(0.0) == []
    assert steps(ladder)[1:3] == [(SETTLE, [INT]), (round(SETTLE + FAILURE_GRACE - LAST_WORDS, 6), [INT])]
    assert ladder.kill_at == pytest.approx(SETTLE + FAILURE_GRACE + TERM_GRACE)


def test_close_sends_its_signal_and_kills_after_its_timeout() -> None:
    assert steps(Ladder.close(0.0, signal.SIGHUP, 30)) == [
        (0.0, [int(signal.SIGHUP)]),
        (30 - LAST_WORDS, [int(signal.SIGHUP)]),
        (30.0, [KILL]),
    ]


def test_a_kill_leaves_a_moment_for_last_words() -> None:
    ladder = Ladder.kill(0.0)
    assert ladder.last_words_at <= 0.0
    assert steps(ladder) == [(0.0, []), (LAST_WORDS, [KILL])]


def test_the_ladder_that_ends_sooner_counts() -> None:
    slow, quick = Ladder.stop(0.0, None), Ladder.failure(0.0, None)
    assert slow.sooner(quick) is quick
    assert quick.sooner(slow) is quick
    assert quick.sooner(Ladder.kill(1.0)).kill_at == 1.0 + LAST_WORDS
    assert slow.sooner(Ladder.stop(1.0, None)) is slow
