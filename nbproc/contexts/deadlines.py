"""When a run has to be looked at although nothing happens. A policy, without processes or clocks."""

from __future__ import annotations

import math

from nbproc.contexts.ladder import GRACE
from nbproc.states import RunState

START_TIMEOUT = 300.0
"""Seconds in which a rank must answer after it was asked for; a first import of torch from a cold disk is in it."""
LINGER = 0.02
"""Seconds for which ranks that have returned are kept from exiting, so that who waits for the result has the processor.

An exit with torch in memory takes the system milliseconds, four of them as long as a whole cell.
"""


class Deadlines:
    """Times on the clock of `time.monotonic`, infinite for those that are not due.

    Attributes: ``start_by`` (ranks that have not answered have failed), ``run_until`` (the run's own timeout),
    ``release_at`` (ranks that have returned may exit), ``exits_by`` (they should have exited).
    """

    def __init__(self, grace: float | None, timeout: float | None) -> None:
        self._exit_time = GRACE if grace is None else grace
        self._timeout = timeout
        self.start_by = self.run_until = self.release_at = self.exits_by = math.inf
        self._running = self._returned = False

    def see(self, state: RunState, now: float) -> None:
        """Take note of the run's state, at each step."""
        if state is RunState.STARTING:
            self.start_by = min(self.start_by, now + START_TIMEOUT)
            return
        self.start_by = math.inf
        if state is not RunState.RUNNING:
            self.run_until = math.inf
        elif not self._running and self._timeout is not None:
            self.run_until = now + self._timeout  # what it took to start the ranks is not their time
        self._running = True

    def returned(self, now: float, *, linger: bool) -> None:
        """Every rank has come to its end, but its process may not have. Only the first call counts."""
        if not self._returned:
            self._returned = True
            self.exits_by = now + self._exit_time
            self.release_at = now + LINGER if linger else now

    def next_due(self) -> float:
        """Return the earliest of them."""
        return min(self.start_by, self.run_until, self.release_at, self.exits_by)
