"""D6: data is shared between the notebook and its ranks until somebody writes; what one writes no other sees."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import nbproc
from nbproc.ranks import memory

COUNT = 1 << 17
"""Elements: so many bytes that they do not travel in the message."""
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(
        dtype
        for name in ("float8_e4m3fn", "float8_e5m2", "uint16")
        if (dtype := getattr(torch, name, None)) is not None
    ),
]


def _module() -> Any:
    module = torch.nn.Linear(COUNT // 8, 8, bias=False)
    torch.nn.init.ones_(module.weight)
    return module


def _frame() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(numpy.ones((COUNT // 4, 4)), columns=list("abcd"))


MAKE: dict[str, Callable[[], Any]] = {
    **{str(dtype): (lambda dtype=dtype: torch.ones(COUNT).to(dtype)) for dtype in DTYPES},
    "a strided view": lambda: torch.ones(4, COUNT).t()[:, 1:3],
    "a parameter": lambda: torch.nn.Parameter(torch.ones(COUNT)),
    "a module": _module,
    "an array": lambda: numpy.ones(COUNT),
    "an array in Fortran's order": lambda: numpy.asfortranarray(numpy.ones((COUNT // 8, 8))),
    "an array with gaps": lambda: numpy.ones((COUNT, 2))[:, 0],
    "an array of objects": lambda: numpy.array([1] * 100, dtype=object),
    "a frame": _frame,
}


def write(value: Any) -> None:
    """Make every element zero, in place."""
    if isinstance(value, torch.nn.Module):
        value = value.weight
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(torch.zeros(1).to(value.dtype).expand(value.shape))
    elif isinstance(value, numpy.ndarray):
        value[...] = 0
    else:
        value.iloc[:, :] = 0.0


def total(value: Any) -> float:
    """Return the sum of all elements."""
    if isinstance(value, torch.nn.Module):
        value = value.weight.detach()
    if isinstance(value, torch.Tensor):
        return float(value.detach().to(torch.complex64).real.sum())
    return float(numpy.asarray(value).sum())


def start(function: Callable[..., object], *args: object) -> nbproc.PContext:
    return nbproc.start_processes("cow", function, args={0: args, 1: args})


def values_of(ctx: nbproc.PContext) -> Any:
    result = ctx.wait()
    assert result is not None
    assert not result.is_failed(), result.failures
    ctx.pids()
    return result.return_values


def maps() -> list[str]:
    """Return what of our unnamed files is mapped here."""
    gc.collect()
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "nbproc-" in line]


def test_what_a_rank_writes_reaches_neither_the_notebook_nor_the_other_rank() -> None:
    ours = {name: make() for name, make in MAKE.items()}
    before = {name: total(value) for name, value in ours.items()}

    def work(given: dict[str, Any]) -> dict[str, tuple[float, float]]:
        seen = {}
        for name, value in given.items():
            first = total(value)
            write(value)
            seen[name] = first, total(value)
        return seen

    seen = values_of(start(work, ours))
    for name, value in ours.items():
        assert total(value) == before[name], name
        assert seen[0][name] == seen[1][name] == (before[name], 0.0), name


def test_what_the_notebook_writes_later_does_not_reach_a_rank(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    ours = {name: make() for name, make in MAKE.items()}
    before = {name: total(value) for name, value in ours.items()}

    def work(given: dict[str, Any]) -> dict[str, float]:
        os.close(os.open(gate, os.O_RDONLY))
        return {name: total(value) for name, value in given.items()}

    ctx = start(work, ours)
    for value in ours.values():
        write(value)
    opened = os.open(gate, os.O_WRONLY)  # returns when a rank waits
    try:
        assert dict(values_of(ctx)) == {0: before, 1: before}
    finally:
        os.close(opened)
    assert {total(value) for value in ours.values()} == {0.0}


def test_what_is_written_to_a_result_stays_in_that_result() -> None:
    made = {name: make() for name, make in MAKE.items()}
    before = {name: total(value) for name, value in made.items()}
    results = values_of(start(lambda: made))
    for name in MAKE:
        write(results[0][name])
        assert total(results[0][name]) == 0.0, name
        assert total(results[1][name]) == before[name], name
        assert total(made[name]) == before[name], name


def test_arrow_tables_go_both_ways_without_a_copy() -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": numpy.arange(COUNT), "y": numpy.ones(COUNT)})
    results = values_of(start(lambda given: (given["x"][-1].as_py(), given), table))
    for rank in (0, 1):
        last, back = results[rank]
        assert last == COUNT - 1
        assert back.equals(table)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at /proc")
def test_memory_is_given_back(tmp_path: Path) -> None:
    before = maps()
    results = values_of(start(lambda given: given + 1, torch.ones(COUNT)))
    kept = results[1]
    assert float(kept[-1]) == 2.0
    assert len(maps()) > len(before)  # the result lies in memory that came from the rank
    del kept, results
    assert maps() == before


def test_what_is_so_large_that_several_cores_write_it_is_whole() -> None:
    count = 5 * memory._PART // 2 // 8  # two files and a half, where there are as many cores
    sent = torch.arange(count)

    def add_one(rank: int, value: torch.Tensor) -> torch.Tensor:
        value += 1
        return value

    context = nbproc.start_processes("large", add_one, {i: (i, sent) for i in range(2)})
    values = context.result().return_values
    for value in (values[0], values[1]):
        assert torch.equal(value, torch.arange(1, count + 1))
    assert torch.equal(sent, torch.arange(count))
