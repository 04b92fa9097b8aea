"""S20: torch's sharing strategies, reachable from nbproc; the caller's holds in the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest
import torch.multiprocessing

import nbproc
import nbproc.multiprocessing


@pytest.fixture
def strategy() -> Iterator[str]:
    before = torch.multiprocessing.get_sharing_strategy()
    yield before
    torch.multiprocessing.set_sharing_strategy(before)


def test_they_are_torchs(strategy: str) -> None:
    assert nbproc.get_all_sharing_strategies() == torch.multiprocessing.get_all_sharing_strategies()
    assert nbproc.get_sharing_strategy() == strategy
    nbproc.set_sharing_strategy("file_system")
    assert torch.multiprocessing.get_sharing_strategy() == nbproc.get_sharing_strategy() == "file_system"
    assert nbproc.multiprocessing.get_sharing_strategy() == "file_system"


def test_one_that_does_not_exist_is_refused_as_torch_refuses_it(strategy: str) -> None:
    with pytest.raises(AssertionError, match="invalid sharing strategy"):
        nbproc.set_sharing_strategy("smoke signals")
    assert nbproc.get_sharing_strategy() == strategy


@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_the_callers_holds_in_the_ranks(start_method: str, strategy: str, tmp_path: Path) -> None:
    for number, wanted in enumerate(("file_system", "file_descriptor")):
        folder = tmp_path / str(number)
        folder.mkdir()
        nbproc.set_sharing_strategy(wanted)
        nbproc.spawn(jobs.note_strategy, (folder,), 1, start_method=start_method)
        assert (folder / "0").read_text() == wanted
