"""S6: masks of streams."""

from __future__ import annotations

import enum

import pytest

from nbproc.errors import NbprocError
from nbproc.logs.std import Std, as_std, to_map


class TorchStd(enum.IntFlag):
    """What torch's is, without importing torch."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


def test_values_are_torchs() -> None:
    assert [int(std) for std in (Std.NONE, Std.OUT, Std.ERR, Std.ALL)] == [0, 1, 2, 3]
    assert Std.OUT | Std.ERR == Std.ALL


def test_from_str() -> None:
    assert Std.from_str("1") is Std.OUT
    assert Std.from_str("0:3,1:0,12:1") == {0: Std.ALL, 1: Std.NONE, 12: Std.OUT}
    assert Std.from_str("123:2") == {123: Std.ERR}


@pytest.mark.parametrize(
    "text", ["", "4", "1\n", "0:4", "0:1,", ",0:1", "a", "0:1;1:1", "-1:1", "0:1,0:2", "0:1, 1:1", "²:1"]
)
def test_from_str_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="streams") as caught:
        Std.from_str(text)
    assert isinstance(caught.value, NbprocError)


def test_to_map() -> None:
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert to_map({1: Std.OUT}, 2) == {0: Std.NONE, 1: Std.OUT}
    assert to_map({7: Std.OUT}, 1) == {0: Std.NONE}


def test_torchs_masks_are_taken_by_value() -> None:
    maps = [to_map(TorchStd.ALL, 2), to_map({0: TorchStd.ERR}, 1), to_map(3, 1)]
    assert maps == [{0: Std.ALL, 1: Std.ALL}, {0: Std.ERR}, {0: Std.ALL}]
    assert all(type(std) is Std for masks in maps for std in masks.values())


@pytest.mark.parametrize("value", [4, -1, "1", None, 1.0])
def test_what_is_no_mask_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="streams"):
        as_std(value)  # type: ignore[arg-type]
