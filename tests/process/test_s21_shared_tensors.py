"""S21: a tensor in shared memory is the same memory in caller and ranks; any other is each rank's own copy."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import jobs
import pytest
import torch

import nbproc

METHODS = ("forkserver", "spawn", "fork")


@pytest.fixture(scope="module", autouse=True)
def helpers() -> Iterator[object]:
    """Start what multiprocessing and torch start once in a process and keep: it is not a test's to end."""
    before = nbproc.get_sharing_strategy()
    resource_tracker.ensure_running()
    nbproc.set_sharing_strategy("file_system")
    kept = torch.zeros(1).share_memory_()
    nbproc.set_sharing_strategy(before)
    yield kept  # until the module's tests are over: its manager ends with its last tensor
    del kept


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = nbproc.get_sharing_strategy()
    nbproc.set_sharing_strategy(request.param)
    yield request.param
    nbproc.set_sharing_strategy(before)


@pytest.mark.parametrize("start_method", METHODS)
def test_a_write_to_a_shared_tensor_is_seen_by_all(start_method: str, strategy: str, tmp_path: Path) -> None:
    shared = torch.zeros(4).share_memory_()
    context = nbproc.spawn(jobs.write_in_turn, (shared, tmp_path), 2, join=False, start_method=start_method)
    assert context is not None
    jobs.appear(tmp_path / "1")
    assert shared.tolist() == [1, 2, 0, 0]
    shared[2] = 5
    (tmp_path / "go").write_text("")
    assert context.join()
    assert shared.tolist() == [1, 2, 5, 10]


@pytest.mark.parametrize("start_method", METHODS)
def test_a_model_is_trained_by_all_together(start_method: str) -> None:
    """Hogwild, as in torch's notes: each rank steps on the one model."""
    model = torch.nn.Linear(3, 1, bias=False)
    model.share_memory()
    with torch.no_grad():
        model.weight.zero_()
    nbproc.spawn(jobs.add_to_weight, (model,), 3, start_method=start_method)
    assert model.weight.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("start_method", METHODS)
def test_any_other_tensor_is_a_copy(start_method: str, tmp_path: Path) -> None:
    own = torch.zeros(100_000)
    nbproc.spawn(jobs.write_and_note, (own, tmp_path), 2, start_method=start_method)
    assert float(own.sum()) == 0
    assert {path.read_text() for path in tmp_path.iterdir()} == {"100000.0"}
