"""The stop ladder: how a rank is asked, told and made to end. A policy, without processes or clocks."""

from __future__ import annotations

import signal
from dataclasses import dataclass

GRACE = 10.0
"""Seconds between the first signal and SIGTERM after a Stop."""
FAILURE_GRACE = 2.0
"""The same when another rank failed."""
TERM_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
SETTLE = 0.1
"""Seconds after a failure in which other ranks may fail by themselves, before they are asked to stop."""
LAST_WORDS = 0.1
"""Seconds before a rank is told, or killed, in which it may still write where it is, also while others use its core."""


@dataclass(frozen=True)
class Ladder:
    """When each step is due, on the clock of `time.monotonic`. ``first`` is the signal of the first step."""

    first: int
    first_at: float
    term_at: float
    kill_at: float

    @staticmethod
    def stop(now: float, grace: float | None, first: int = signal.SIGINT) -> Ladder:
        """Somebody stops the run: SIGINT now, so that ``finally`` and checkpoint code runs."""
        term = now + (GRACE if grace is None else grace)
        return Ladder(first, now, term, term + TERM_GRACE)

    @staticmethod
    def failure(now: float, grace: float | None) -> Ladder:
        """A rank failed: the others have a moment to fail by themselves, then the same with less patience."""
        first = now + SETTLE
        term = first + (FAILURE_GRACE if grace is None else grace)
        return Ladder(signal.SIGINT, first, term, term + TERM_GRACE)

    @staticmethod
    def spare(now: float, grace: float) -> Ladder:
        """A rank failed, and the others are to end by themselves: nothing is asked of them for ``grace`` seconds."""
        return Ladder(signal.SIGTERM, now + grace, now + grace, now + 2 * grace)

    @staticmethod
    def close(now: float, death_sig: int, timeout: float) -> Ladder:
        """``close(death_sig, timeout)`` as torch's: that signal now, SIGKILL after the timeout."""
        return Ladder(death_sig, now, now + timeout, now + timeout)

    @staticmethod
    def kill(now: float) -> Ladder:
        """No patience left."""
        at = now + LAST_WORDS
        return Ladder(signal.SIGKILL, at, at, at)

    @property
    def last_words_at(self) -> float:
        """When a rank should write where it is: shortly before the step after which it cannot say so itself.

        Not with the first step: a signal that comes while another one is dealt with can be lost on a sleeping process.
        """
        return min(self.term_at, self.kill_at) - LAST_WORDS

    def sooner(self, other: Ladder) -> Ladder:
        """Return the ladder that ends sooner; a second Stop does not give more time."""
        return other if other.kill_at < self.kill_at else self

    def due(self, now: float) -> list[int]:
        """Return the signals whose time has come, in order; of SIGKILL and others, SIGKILL alone."""
        if self.kill_at <= now:
            return [int(signal.SIGKILL)]
        steps = ((self.first, self.first_at), (signal.SIGTERM, self.term_at))
        return [int(signum) for signum, at in steps if at <= now]

    def next_due(self, now: float) -> float | None:
        """Return when the next step is due, None if all were."""
        steps = (self.first_at, self.last_words_at, self.term_at, self.kill_at)
        return min((at for at in steps if at > now), default=None)
