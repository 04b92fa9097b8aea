"""One rank as its supervisor knows it: its process, what it said, which end it came to."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

from nbproc.ranks import reap
from nbproc.ranks.process import RankProcess
from nbproc.ranks.wire import Inbox, Kind
from nbproc.states import RANK_TRANSITIONS, RankSnapshot, RankState


@dataclass(eq=False)
class Rank:
    """One rank. Touched by the supervisor's thread only.

    ``exited`` is True while there is no process to wait for. ``told`` is RAISED or INTERRUPTED once the rank said so.
    ``unwritten`` is what its error.json would say if it could have been written.
    ``trouble`` is what it, or the fork server in its place, said of trouble.
    """

    number: int
    state: RankState = RankState.WAITING
    process: RankProcess | None = None
    inbox: Inbox = field(default_factory=Inbox)
    handed_over: bool = False
    listening: bool = False
    exited: bool = True
    exitcode: int | None = None
    started: float | None = None
    ended: float | None = None
    words: str = ""
    trouble: str = ""
    told: Kind | None = None
    unwritten: dict[str, object] | None = None
    signals: set[int] = field(default_factory=set)
    sampled: bool = False
    released: bool = False
    _snapshot: RankSnapshot | None = None
    _shown: tuple[object, ...] = ()

    @property
    def pid(self) -> int | None:
        """Its process id, None before that is known."""
        return self.process.identity.pid if self.process and self.process.identity else None

    def become(self, state: RankState, words: str = "") -> None:
        """Enter a state. Raises AssertionError if that is no transition: each rank has exactly one end."""
        if state not in RANK_TRANSITIONS[self.state]:
            raise AssertionError(f"rank {self.number}: {self.state} -> {state}")
        self.state = state
        self.words = words
        if state.ended:
            self.ended = time.time()
            if state is RankState.SUCCEEDED:
                self.exitcode = 0

    def snapshot(self) -> RankSnapshot:
        """Return it as a value; the same object as long as nothing changed."""
        now = (self.state, self.pid, self.started, self.ended, self.exitcode, self.words)
        if self._snapshot is None or now != self._shown:
            self._shown = now
            self._snapshot = RankSnapshot(self.number, *now)
        return self._snapshot

    def send(self, signum: int) -> None:
        """Send its process a signal, once. A process that was stopped (SIGSTOP) goes on, to hear it."""
        if signum not in self.signals and self.process is not None and self.process.signal(signum):
            self.signals.add(signum)
            if self.process.identity is not None:
                reap.resume(self.process.identity)

    def release(self) -> None:
        """Let a rank that has returned exit: its job socket is closed for writing."""
        if self.released or self.exited or self.process is None or self.process.job is None:
            return
        self.released = True
        with contextlib.suppress(OSError):
            self.process.job.shutdown(1)  # SHUT_WR
