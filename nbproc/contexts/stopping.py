"""How the ranks of a run are ended: each is brought up the ladder, signal by signal, until its process is gone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from nbproc.contexts.ladder import Ladder
from nbproc.contexts.rank import Rank
from nbproc.ranks import reap
from nbproc.ranks.process import RankProcess
from nbproc.states import RankState

UNKILLABLE = 10.0
"""Seconds after SIGKILL in which the system may let go of a process; after that it is not waited for."""


class Stopping:
    """The ladder of one run, once it has one, and why. ``sample`` makes a process write where it is."""

    def __init__(self, sample: Callable[[RankProcess], object]) -> None:
        self._sample = sample
        self._climbed_at = 0.0
        self.ladder: Ladder | None = None
        self.why = ""
        self.since = 0.0
        """When it began, by the clock; 0 if it did not."""

    def begin(self, wanted: Callable[[float], Ladder], why: str) -> None:
        """Begin, or climb faster if that ladder ends sooner."""
        ladder = wanted(time.monotonic())
        self.why = self.why or why
        self.since = self.since or time.time()
        self.ladder = ladder if self.ladder is None else self.ladder.sooner(ladder)

    def hurry(self, ladder: Ladder) -> None:
        """Take this ladder if there is none, or it ends sooner, for processes that are on their way out."""
        self.ladder = ladder if self.ladder is None else self.ladder.sooner(ladder)

    def next_due(self) -> float | None:
        """Return when the next step is due that `climb` has not seen, None if there is none."""
        if self.ladder is None:
            return None
        due = self.ladder.next_due(self._climbed_at)
        give_up = self.ladder.kill_at + UNKILLABLE
        return due if due is not None else give_up if give_up > self._climbed_at else None

    def climb(self, ranks: Sequence[Rank]) -> list[Rank]:
        """Send every rank the signals that are due. Returns those to be killed that cannot be waited for any longer.

        Their process is not known (the fork server never said), or the system does not let go of it.
        """
        if self.ladder is None:
            return []
        now = self._climbed_at = time.monotonic()
        due = self.ladder.due(now)
        doomed = []
        for rank in ranks:
            if rank.exited or rank.process is None:
                continue
            if now >= self.ladder.last_words_at and not rank.sampled and rank.state is RankState.RUNNING:
                rank.sampled = True
                self._sample(rank.process)
            for signum in due:
                fitting = self._fitting(rank, signum)
                if fitting == signal.SIGKILL:
                    doomed.append(rank)
                    break
                if fitting is not None:
                    rank.send(fitting)
        self._kill([rank for rank in doomed if signal.SIGKILL not in rank.signals])
        out_of_reach = now >= self.ladder.kill_at + UNKILLABLE
        return [rank for rank in doomed if out_of_reach or rank.pid is None]

    def _fitting(self, rank: Rank, signum: int) -> int | None:
        """Return the signal to send to a rank where ``signum`` is due, None for none."""
        assert self.ladder is not None
        if signum == signal.SIGKILL or rank.state is RankState.RUNNING:
            return signum
        if rank.state is RankState.STARTING:
            return signal.SIGKILL  # nothing of the user's has run
        rank.release()
        return None if signum == self.ladder.first else signum  # it has ended, its process is on its way out

    def _kill(self, doomed: Sequence[Rank]) -> None:
        leaders = [rank.process.identity for rank in doomed if rank.process and rank.process.identity]
        members = reap.killable(reap.members(leaders)) if leaders else []
        for rank in doomed:
            rank.send(signal.SIGKILL)  # first, so that it is known for certain whether this is what ended it
        for process in members:
            reap.send_signal(process, signal.SIGKILL)
