"""Ranks of which the same can be said: many ranks are told together, and the logs of some stand for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from nbproc.explain import consequence_words, ranks_words
from nbproc.states import RankSnapshot, RankState, Snapshot

if TYPE_CHECKING:
    from nbproc.explain import Report

EACH = 16
"""Up to so many ranks, each one is told by itself, with its log."""
GROUPS = 32
"""At most about so many groups are told; what is left is told by state."""

# What is rare and bad comes first, as in the live view.
_ORDER = (
    RankState.FAILED,
    RankState.WAITING,
    RankState.STARTING,
    RankState.RUNNING,
    RankState.STOPPED,
    RankState.SUCCEEDED,
)


class Alike(NamedTuple):
    """Ranks in one state of which the same is to be said; ``words`` is "" if there is nothing."""

    ranks: tuple[RankSnapshot, ...]
    words: str = ""

    @property
    def state(self) -> RankState:
        """Their state."""
        return self.ranks[0].state

    @property
    def name(self) -> str:
        """Who they are, every one: ``rank 2``, ``ranks 0-3, 7``."""
        return ranks_words((rank.rank for rank in self.ranks), most=None)


def said_of(rank: RankSnapshot, said: Mapping[int, str]) -> str:
    """Return what is to be said of a rank beside its state; ``said`` replaces what its snapshot says of its end."""
    words = said.get(rank.rank, rank.words)
    return "" if words in ("returned", rank.state.value) else words


def alike(snapshot: Snapshot, said: Mapping[int, str] | None = None) -> list[Alike]:
    """Return all ranks in groups: the first failure's before all, then by state, each by its lowest rank."""
    found: dict[tuple[RankState, str], list[RankSnapshot]] = {}
    for rank in snapshot.ranks:
        found.setdefault((rank.state, said_of(rank, said or {})), []).append(rank)
    groups = [Alike(tuple(ranks), words) for (_, words), ranks in found.items()]
    groups.sort(
        key=lambda group: (all(rank.rank != snapshot.first_failed for rank in group.ranks), _ORDER.index(group.state))
    )
    if len(groups) <= GROUPS:
        return groups
    return [*groups[:GROUPS], *_by_state(groups[GROUPS:])]


def _number(rank: RankSnapshot) -> int:
    return rank.rank


def _by_state(groups: list[Alike]) -> Iterator[Alike]:
    for state in _ORDER:
        same = [group for group in groups if group.state is state]
        if same:
            ranks = sorted((rank for group in same for rank in group.ranks), key=_number)
            yield Alike(tuple(ranks), same[0].words if len(same) == 1 else f"in {len(same):,} different ways")


def consequences(report: Report | None) -> dict[int, str]:
    """Return what is to be said of the ranks whose failure follows from another."""
    return {lost.local_rank: consequence_words(lost) for lost in (report.consequences if report else ())}


def told(snapshot: Snapshot, report: Report | None) -> list[int]:
    """Return the ranks whose logs are to be kept, in the order in which they stand: the first failure's, then by rank.

    Of many ranks these are `EACH`: one for each group, then what failed first, then the lowest.
    """
    first = report.first_ranks if report is not None else ()
    everyone = [rank.rank for rank in snapshot.ranks]
    chosen = everyone
    if len(everyone) > EACH:
        ahead = [group.ranks[0].rank for group in alike(snapshot, consequences(report))]
        chosen = list(dict.fromkeys([*ahead, *first, *everyone]))[:EACH]
    return sorted(chosen, key=lambda rank: (rank not in first, rank))
