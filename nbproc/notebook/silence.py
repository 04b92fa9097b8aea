"""Ranks that have said nothing for a while, and where they are: information, never a reason to end one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbproc.states import RankState

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext
    from nbproc.logs.lines import LineEvent
    from nbproc.states import Snapshot

log = logging.getLogger(__name__)

AFTER = 60.0
"""Seconds without a line."""
PERIOD = 10.0
"""Seconds between two looks at the same rank's stack."""


class Silence:
    """Knows when each rank wrote last, and finds out where those are that do not: on a thread of its own, now and then."""

    def __init__(self, ctx: PContext) -> None:
        self._ctx = ctx
        self._heard: dict[int, float] = {}
        self._known: dict[int, tuple[float, str]] = {}
        self._asking: threading.Thread | None = None

    def heard(self, events: Iterable[LineEvent]) -> None:
        """Take note of lines."""
        now = time.time()
        for rank in {event.rank for event in events}:
            self._heard[rank] = now
            self._known.pop(rank, None)

    def where(self, snapshot: Snapshot) -> list[list[Any]]:
        """Return ``[rank, where it is]`` for the ranks that are silent, "" where that is not known. Does not block."""
        now = time.time()
        silent = [
            rank.rank
            for rank in snapshot.ranks
            if rank.state is RankState.RUNNING
            and rank.started is not None
            and now - max(rank.started, self._heard.get(rank.rank, 0.0)) >= AFTER
        ]
        due = [rank for rank in silent if now - self._known.get(rank, (0.0, ""))[0] >= PERIOD]
        if due and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(due,), name="nbproc-where", daemon=True)
            self._asking.start()
        return [[rank, self._known.get(rank, (0.0, ""))[1]] for rank in silent]

    def _ask(self, ranks: Iterable[int]) -> None:
        try:
            for rank in ranks:
                self._known[rank] = time.time(), self._ctx.where(rank)
        except Exception:  # it is information only
            log.exception("where a silent rank is could not be found out")
