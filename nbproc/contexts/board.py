"""What is known of a run: written by its supervisor, read and waited for by anybody."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nbproc.contexts.rank import Rank
from nbproc.failures import ProcessFailure, first_cause
from nbproc.states import RUN_TRANSITIONS, RankState, RunState, Snapshot

_log = logging.getLogger(__name__)

Facts = Callable[[], tuple[Path | None, tuple[str, ...]]]
"""Says the run directory and the launch's notes."""


class Stage(enum.IntEnum):
    """How far a run is, for those who wait for it."""

    BEGUN = 0
    ASKED = 1
    """Every rank was asked for; those that stood by have their jobs."""
    ANSWERED = 2
    """Every rank runs, or it is known that one never will."""
    FINISHED = 3
    """The result is known; processes may still be on their way out."""
    CLOSED = 4
    """No process, file or thread of the run is left."""


class Board:
    """The state of a run, its failures and its last snapshot. Written by one thread; read from any."""

    def __init__(self, name: str, ranks: Sequence[Rank], listener: Callable[[Snapshot], object], facts: Facts) -> None:
        self._name = name
        self._ranks = ranks
        self._seen = {rank.number: rank.snapshot() for rank in ranks}
        self._listener = listener
        self._facts = facts
        self._notes: tuple[str, ...] = ()
        self._started: float | None = None
        self._ended: float | None = None
        self._first_failed: int | None = None
        self._condition = threading.Condition()
        self._stage = Stage.BEGUN
        self.state = RunState.CREATED
        self.headline = ""
        self.failures: dict[int, ProcessFailure] = {}
        self.snapshot = self._take()

    # ---------------------------------------------------------------- any thread

    @property
    def stage(self) -> Stage:
        """How far the run is."""
        return self._stage

    def wait_for(self, stage: Stage, timeout: float | None) -> bool:
        """Wait until the run is at ``stage`` or further, at most ``timeout`` seconds (None: for ever)."""
        with self._condition:
            return self._condition.wait_for(lambda: self._stage >= stage, timeout)

    # ---------------------------------------------------------------- the supervisor

    def reach(self, stage: Stage) -> None:
        """Wake those who wait for a stage."""
        with self._condition:
            self._stage = max(self._stage, stage)
            self._condition.notify_all()

    def move(self, state: RunState) -> None:
        """Enter a state. Raises AssertionError if that is no transition."""
        if state not in RUN_TRANSITIONS[self.state]:
            raise AssertionError(f"run: {self.state} -> {state}")
        self.state = state
        if state is RunState.STARTING:
            self._started = time.time()
        if state.ended:
            self._ended = time.time()
        self.publish()

    def set(self, rank: Rank, state: RankState, words: str = "") -> None:
        """Put a rank into a state, and tell."""
        rank.become(state, words)
        self.publish(rank)

    def fail(self, rank: Rank, failure: ProcessFailure) -> None:
        """Note the failure of a rank, and tell."""
        rank.become(RankState.FAILED, failure.words)
        self.failures[rank.number] = failure
        self._first_failed = first_cause(self.failures).local_rank
        self.publish(rank)

    def note(self, text: str) -> None:
        """Add a line to what is said of the run beside its end, and tell."""
        if text not in self._notes:
            self._notes += (text,)
            self.publish()

    def see(self, rank: Rank) -> None:
        """Take note of what has changed of a rank; it is told with the next change."""
        self._seen[rank.number] = rank.snapshot()

    def publish(self, *changed: Rank) -> None:
        """Make what is known now the snapshot, and tell the listener, whose errors are logged.

        Only the ranks that have changed are looked at, all if none is named: each change of each rank comes here.
        """
        for rank in changed or self._ranks:
            self.see(rank)
        self.snapshot = self._take()
        try:
            self._listener(self.snapshot)
        except Exception:
            _log.exception("a listener of %s failed", self._name)

    def _take(self) -> Snapshot:
        run_dir, notes = self._facts()
        return Snapshot(
            name=self._name,
            state=self.state,
            ranks=tuple(self._seen.values()),
            run_dir=run_dir,
            started=self._started,
            ended=self._ended,
            first_failed=self._first_failed,
            headline=self.headline,
            notes=(*notes, *self._notes),
        )
