"""Ranks that are started ahead: forked, with nothing to do yet, waiting on their job sockets.

A launch takes what is there and only sends jobs. After a run, and after ``%load_ext nbproc``, as many as the last run
had are asked for again, at most `limit`. A standby rank has done nothing that a job could see; one that is never used
exits when its job socket closes, with this process at the latest. Set ``NBPROC_STANDBY=0`` to have none.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Mapping

from nbproc.errors import LaunchError
from nbproc.ranks import client, warden, wire
from nbproc.ranks.process import Forked, Lost

DEFAULT_LIMIT = 8
VARIABLE = "NBPROC_STANDBY"
LATER_VARIABLE = "NBPROC_PRELOAD"
_RENEWAL = 60.0
"""Seconds in which the server sees to itself, or the ranks that stand by are not replaced."""


def limit() -> int:
    """Return how many ranks may stand by: the number in NBPROC_STANDBY, 8 if it says nothing, 0 in a rank."""
    if warden.MARK_VARIABLE in os.environ:
        return 0
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdigit() else DEFAULT_LIMIT


def later() -> list[str]:
    """Return the modules that a notebook's server imports when it has nothing else to do: those in NBPROC_PRELOAD.

    None if it says nothing; why not ``torch._dynamo`` is in docs/explanation/benchmarks.md.
    """
    named = os.environ.get(LATER_VARIABLE, "")
    return [f"+{name.strip()}" for name in named.split(",") if name.strip()]


class _Pool:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.ranks: list[Forked] = []
        self.open = True

    def take(self, environment: Mapping[str, str]) -> Forked | None:
        server = client.current(environment)
        warden.before_the_end(_end)  # the server is let go of after that: it waits for its ranks
        while True:
            with self.lock:
                rank = next((one for one in self.ranks if one.server is server), None)
                if rank is None:
                    return None
                self.ranks.remove(rank)
            if _waits(rank):
                return rank
            rank.close()

    def fill(self, wanted: int) -> None:
        server = client.current()
        warden.before_the_end(_end)
        with self.lock:
            if not self.open:
                return
            for other in [one for one in self.ranks if one.server is not server]:
                self.ranks.remove(other)
                other.close()
            missing = min(wanted, limit()) - len(self.ranks)
            for _ in range(missing):
                try:
                    self.ranks.append(Forked(server=server, word=wire.AHEAD))
                except (OSError, LaunchError):
                    return  # short of something now: the next launch starts its ranks itself

    def renew(self, count: int) -> None:
        """Replace what stands by when the server has seen to itself; wait for that."""
        server = client.current()
        fresh: list[Forked] = []
        with contextlib.suppress(OSError, LaunchError, Lost):
            for _ in range(min(count, limit())):
                fresh.append(Forked(server=server, word=wire.LATER))  # noqa: PERF401 - those that were asked for are kept if one fails
            deadline = time.monotonic() + _RENEWAL
            for rank in fresh:
                _meet(rank, deadline)
        with self.lock:
            ready = [rank for rank in fresh if self.open and rank.identity is not None and _waits(rank)]
            old = self.ranks[: len(ready)]
            self.ranks = [*self.ranks[len(ready) :], *ready]
        for rank in [*old, *(rank for rank in fresh if rank not in ready)]:
            rank.close()

    def close(self) -> None:
        if self.owner != os.getpid():
            return
        with self.lock:
            ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.close()


def _meet(rank: Forked, deadline: float) -> None:
    """Wait until the rank is there. Raises `Lost` if it never will be."""
    poll = select.poll()
    poll.register(rank, select.POLLIN | select.POLLHUP)
    while rank.identity is None and (left := deadline - time.monotonic()) > 0:
        poll.poll(1000 * left)
        rank.news()


def _waits(rank: Forked) -> bool:
    """Return whether the rank is there, or on its way; False if it has ended or its server has."""
    try:
        if rank.news() is not None:
            return False
    except Lost:
        return False
    if rank.job is None:
        return False
    poll = select.poll()
    poll.register(rank.job, select.POLLIN | select.POLLHUP)
    return not poll.poll(0)


_pool: _Pool | None = None
_pool_lock = threading.Lock()
_hooked = False


def _current() -> _Pool:
    global _pool, _hooked
    with _pool_lock:
        if not _hooked:
            _hooked = True
            os.register_at_fork(after_in_child=forget)
        if _pool is None or _pool.owner != os.getpid():
            _pool = _Pool()
        return _pool


def take(environment: Mapping[str, str]) -> Forked:
    """Return a rank that stands by and fits this environment, or ask for one. Raises what `Forked` raises."""
    if limit() == 0:
        return Forked(environment)
    return _current().take(environment) or Forked(environment)


def fill(wanted: int) -> None:
    """Ask for ranks until ``wanted`` stand by (at most `limit`). Does not wait for them; never raises."""
    with contextlib.suppress(LaunchError):
        if limit():
            _current().fill(wanted)
        else:
            client.current()


def forget() -> None:
    """In a copy of this process made by fork: let go of what stands by, it is the original's."""
    global _pool, _pool_lock
    _pool_lock = threading.Lock()
    pool, _pool = _pool, None
    for rank in pool.ranks if pool is not None else ():
        rank.close()


def count() -> int:
    """Return how many stand by now."""
    return len(_pool.ranks) if _pool is not None and _pool.owner == os.getpid() else 0


def close() -> None:
    """Let all that stand by go."""
    if _pool is not None:
        _pool.close()


def _end() -> None:
    """At the end of the process: let all go, and start no more of them when runs end now."""
    if _pool is not None:
        with _pool.lock:
            _pool.open = False
        _pool.close()


def warm_up(ranks: int = 4) -> None:
    """Start the fork server, and ranks from it, ahead of the first launch; a failure is told by that launch.

    Returns at once: it happens on a thread of its own.
    """
    threading.Thread(target=_warm_up, args=(ranks,), name="nbproc-warm-up", daemon=True).start()


def _warm_up(ranks: int) -> None:
    fill(ranks)
    with contextlib.suppress(LaunchError):
        if limit():
            _current().renew(ranks)
