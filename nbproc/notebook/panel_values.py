"""What stands in the fields of the launch panel: texts, as they were typed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any

MASKS = ("0", "1", "2", "3")
"""The choices of redirects and tee: nothing, stdout, stderr, both."""


@dataclass(frozen=True)
class RankValues:
    """One row of the table by rank; "" is "as for all ranks"."""

    arguments: str = ""
    environment: str = ""
    redirects: str = ""
    tee: str = ""

    @property
    def blank(self) -> bool:
        """Whether nothing is said for this rank."""
        return not any(value.strip() for value in asdict(self).values())


_NO_RANKS: Mapping[int, RankValues] = MappingProxyType({})


@dataclass(frozen=True)
class Values:
    """All fields. ``program``: an executable is launched, not a function."""

    program: bool = False
    function: str = ""
    executable: str = ""
    nprocs: str = "2"
    arguments: str = ""
    environment: str = ""
    name: str = ""
    variable: str = "run"
    start_method: str = ""
    redirects: str = ""
    tee: str = ""
    filters: str = ""
    log_dir: str = ""
    timeout: str = ""
    ranks: Mapping[int, RankValues] = field(default_factory=lambda: _NO_RANKS)

    @property
    def count(self) -> int:
        """The number of ranks, 0 if that is no number."""
        text = self.nprocs.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0

    def of_rank(self, rank: int) -> RankValues:
        """Return a rank's row."""
        return self.ranks.get(rank, RankValues())

    def by_rank(self, column: str) -> bool:
        """Return whether any rank says something of its own in a column."""
        return any(getattr(self.of_rank(rank), column).strip() for rank in range(self.count))

    def to_json(self) -> dict[str, Any]:
        """Return the fields for the browser."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["ranks"] = {str(rank): asdict(row) for rank, row in self.ranks.items() if not row.blank}
        return plain

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Values:
        """Read what the browser sent; what it does not say is as at first."""
        found: dict[str, Any] = {}
        for each in fields(cls):
            value = given.get(each.name)
            if each.name == "program":
                found["program"] = bool(value)
            elif each.name == "ranks":
                found["ranks"] = _rows(value if isinstance(value, Mapping) else {})
            elif value is not None:
                found[each.name] = str(value)
        return cls(**found)


def _rows(given: Mapping[str, Any]) -> dict[int, RankValues]:
    columns = [each.name for each in fields(RankValues)]
    rows = {
        int(rank): RankValues(**{column: str(row.get(column) or "") for column in columns})
        for rank, row in given.items()
        if str(rank).isdigit() and isinstance(row, Mapping)
    }
    return {rank: row for rank, row in sorted(rows.items()) if not row.blank}
