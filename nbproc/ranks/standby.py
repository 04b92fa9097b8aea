"""Ranks that are started ahead: forked, with nothing to do yet, waiting on their job sockets.

A launch takes what is there and only sends jobs. After a run, and after ``%load_ext nbproc``, as many as the last run
had are asked for again, at most `limit`. A standby rank has done nothing that a job could see; one that is never used
exits when its job socket closes, with this process at the latest. Set ``NBPROC_STANDBY=0`` to have none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading

from nbproc.errors import LaunchError
from nbproc.ranks import client, warden
from nbproc.ranks.process import Forked, Lost

DEFAULT_LIMIT = 8
VARIABLE = "NBPROC_STANDBY"


def limit() -> int:
    """Return how many ranks may stand by: the number in NBPROC_STANDBY, 8 if it says nothing, 0 in a rank."""
    if warden.MARK_VARIABLE in os.environ:
        return 0
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdigit() else DEFAULT_LIMIT


class _Pool:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.ranks: list[tuple[client.Server, Forked]] = []
        atexit.register(self.close)

    def take(self) -> Forked | None:
        server = client.current()
        while True:
            with self.lock:
                if not self.ranks:
                    return None
                of, rank = self.ranks.pop(0)
            if of is server and _waits(rank):
                return rank
            rank.close()

    def fill(self, wanted: int) -> None:
        server = client.current()
        with self.lock:
            missing = min(wanted, limit()) - len(self.ranks)
            for _ in range(missing):
                try:
                    self.ranks.append((server, Forked()))
                except (OSError, LaunchError):
                    return  # short of something now: the next launch starts its ranks itself

    def close(self) -> None:
        if self.owner != os.getpid():
            return
        with self.lock:
            ranks, self.ranks = self.ranks, []
        for _, rank in ranks:
            rank.close()


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


def _current() -> _Pool:
    global _pool
    with _pool_lock:
        if _pool is None or _pool.owner != os.getpid():
            _pool = _Pool()
        return _pool


def take() -> Forked:
    """Return a rank that stands by, or ask for a new one. Raises `OSError` or `LaunchError` as `Forked` does."""
    if limit() == 0:
        return Forked()
    return _current().take() or Forked()


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
    for _, rank in pool.ranks if pool is not None else ():
        rank.close()


def count() -> int:
    """Return how many stand by now."""
    return len(_pool.ranks) if _pool is not None and _pool.owner == os.getpid() else 0


def close() -> None:
    """Let all that stand by go."""
    if _pool is not None:
        _pool.close()


def warm_up(ranks: int = 4) -> None:
    """Start the fork server, and ranks from it, ahead of the first launch; a failure is told by that launch.

    Returns at once: it happens on a thread of its own.
    """
    threading.Thread(target=fill, args=(ranks,), name="nbproc-warm-up", daemon=True).start()
