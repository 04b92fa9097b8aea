"""Ranks that have said nothing for a while, and where they are: information, never a reason to end one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbproc.states import RankState

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext
    from nbproc.logs.lines import LineEvent
    from nbproc.states import Snapshot

AFTER = 60.0
"""Seconds without a line."""
PERIOD = 10.0
"""Seconds between two looks at the same rank's stack."""


class Silence:
    """Knows when each rank wrote last. A context that can tell where a rank is has a method ``where(rank) -> str``."""

    def __init__(self, ctx: PContext) -> None:
        self._where: Any = getattr(ctx, "where", None)
        self._heard: dict[int, float] = {}
        self._known: dict[int, tuple[float, str]] = {}

    def heard(self, events: Iterable[LineEvent]) -> None:
        """Take note of lines."""
        now = time.time()
        self._heard.update(dict.fromkeys({event.rank for event in events}, now))

    def where(self, snapshot: Snapshot) -> list[list[Any]]:
        """Return ``[rank, where it is]`` for the ranks that are silent, as far as it is known."""
        if self._where is None:
            return []
        now = time.time()
        found: list[list[Any]] = []
        for rank in snapshot.ranks:
            if rank.state is not RankState.RUNNING or rank.started is None:
                continue
            if now - max(rank.started, self._heard.get(rank.rank, 0.0)) < AFTER:
                continue
            looked, words = self._known.get(rank.rank, (0.0, ""))
            if now - looked >= PERIOD:
                words = self._where(rank.rank) or ""
                self._known[rank.rank] = (now, words)
            if words:
                found.append([rank.rank, words])
        return found
