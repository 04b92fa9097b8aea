"""S21, S22 on a GPU: a CUDA tensor is the same memory in caller and ranks, and the caller's stays alive for the run."""

from __future__ import annotations

import weakref
from pathlib import Path

import jobs
import plain
import pytest
import torch

import nbproc

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS = ("forkserver", "spawn")


@pytest.mark.parametrize("start_method", METHODS)
def test_a_write_to_a_cuda_tensor_is_seen_by_all(start_method: str, tmp_path: Path) -> None:
    tensor = torch.zeros(4, device="cuda")
    context = nbproc.spawn(jobs.write_in_turn, (tensor, tmp_path), 2, join=False, start_method=start_method)
    assert context is not None
    jobs.appear(tmp_path / "1")
    (tmp_path / "go").write_text("")
    assert context.join()
    assert tensor.tolist() == [1, 2, 0, 10]


@pytest.mark.parametrize("start_method", METHODS)
def test_the_callers_tensor_lives_until_the_run_has_ended(start_method: str, tmp_path: Path) -> None:
    tensor = torch.arange(1000.0, device="cuda")
    alive = weakref.ref(tensor)
    context = nbproc.start_processes(
        "t", jobs.sum_when_told, dict.fromkeys(range(2), (tensor, tmp_path)), start_method=start_method
    )
    del tensor
    assert alive() is not None
    (tmp_path / "go").write_text("")
    assert context.result().return_values == {0: 499500.0, 1: 499500.0}
    context.close()


@pytest.mark.parametrize("start_method", METHODS)
def test_a_cuda_tensor_comes_back_on_its_device(start_method: str) -> None:
    result = nbproc.start_processes("t", jobs.on_the_gpu, {0: (0,), 1: (1,)}, start_method=start_method).result()
    for rank, value in result.return_values.items():
        assert value.is_cuda
        assert value.tolist() == [rank] * 3


def test_cuda_in_the_caller_does_not_matter(tmp_path: Path) -> None:
    """The fork server is a program of its own, so a context made in the caller is none in the ranks."""
    script = """
        import nbproc, torch

        def device_of(i):
            return torch.ones(2, device="cuda").sum().item()

        torch.ones(1, device="cuda")
        print(nbproc.start_processes("t", device_of, {0: (0,), 1: (1,)}).result().return_values)
    """
    assert plain.lines(tmp_path, script) == ["{0: 2.0, 1: 2.0}"]


def test_a_rank_for_each_gpu_reduces_over_nccl(tmp_path: Path) -> None:
    script = """
        import os
        import nbproc, torch
        import torch.distributed as dist

        def reduce(i):
            torch.cuda.set_device(i)
            dist.init_process_group("nccl")
            number = torch.tensor(float(i), device="cuda")
            dist.all_reduce(number)
            dist.destroy_process_group()
            return number.item()

        n = torch.cuda.device_count()
        values = nbproc.start_processes("t", reduce, {i: (i,) for i in range(n)}).result().return_values
        print(values == dict.fromkeys(range(n), float(n * (n - 1) // 2)))
    """
    assert plain.lines(tmp_path, script) == ["True"]
