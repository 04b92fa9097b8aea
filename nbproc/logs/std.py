"""Which streams of which ranks: `Std`, and maps of it."""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Mapping
from typing import SupportsIndex

from nbproc.errors import OptionError

__all__ = ["Std", "StdLike", "as_std", "to_map"]

_ONE = re.compile(r"[0-3]")
_MANY = re.compile(r"[0-9]+:[0-3](?:,[0-9]+:[0-3])*")


class Std(enum.IntFlag):
    """The standard streams of a rank, as a bit mask.

    Torch's `Std` has the same values; wherever nbproc takes one it takes the other.
    """

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Read a mask for all ranks (``"1"``) or one by rank (``"0:3,1:0,12:1"``).

        Raises `OptionError` (a ValueError) for anything else, a rank named twice included.
        """
        if _ONE.fullmatch(vm):
            return cls(int(vm))
        if not _MANY.fullmatch(vm):
            raise OptionError(
                f"streams {vm!r}: expected a mask from 0 to 3 for all ranks, or RANK:MASK pairs such as '0:3,1:0,12:1'"
            )
        masks: dict[int, Std] = {}
        for pair in vm.split(","):
            rank, mask = pair.split(":")
            if int(rank) in masks:
                raise OptionError(f"streams {vm!r}: rank {int(rank)} is named twice")
            masks[int(rank)] = cls(int(mask))
        return masks


StdLike = SupportsIndex
"""A `Std`, torch's `Std`, or an int from 0 to 3."""


def as_std(value: StdLike) -> Std:
    """Return ``value`` (ours, torch's, an int) as our `Std`; raise `OptionError` if it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        raise OptionError(f"streams {value!r}: expected a Std or a dict of them by rank") from None
    if not 0 <= number <= 3:
        raise OptionError(f"streams {value!r}: expected Std.NONE, OUT, ERR or ALL (0 to 3)")
    return Std(number)


def to_map(val_or_map: StdLike | Mapping[int, StdLike], local_world_size: int) -> dict[int, Std]:
    """Return the mask of each rank from 0 to ``local_world_size - 1``.

    One mask holds for all ranks. In a map, ranks that are not named get `Std.NONE`, and ranks that do not exist
    are left out, as in torch.
    """
    if isinstance(val_or_map, Mapping):
        return {rank: as_std(val_or_map.get(rank, Std.NONE)) for rank in range(local_world_size)}
    return dict.fromkeys(range(local_world_size), as_std(val_or_map))
