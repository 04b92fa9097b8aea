"""What the ranks of the benchmarks do. A module, because some of the peers cannot take functions of a notebook."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path


def hello(rank: int = 0) -> int:
    """Print a line and return."""
    print("hello from", rank)
    return rank


def hold(rank: int, folder: str) -> int:
    """Say that it runs, and return when the gate is opened."""
    Path(folder, str(rank)).touch()
    os.close(os.open(Path(folder, "gate"), os.O_RDONLY))
    return rank


def first(rank: int, value: object) -> float:
    """Look at a large value."""
    value = value.iloc[:, 0].to_numpy() if hasattr(value, "iloc") else value
    return float(value.reshape(-1)[-1])  # type: ignore[attr-defined]


def large(rank: int, size: int) -> object:
    """Return a tensor of so many bytes."""
    import torch

    return torch.full((size // 4,), float(rank))


def fail(rank: int) -> None:
    """Raise in rank 1; all others would take a minute."""
    if rank == 1:
        raise ValueError("bad batch")
    time.sleep(60)


def flood(rank: int, lines: int) -> float:
    """Write lines at full speed; return the seconds that took."""
    began = time.perf_counter()
    for number in range(lines):
        sys.stdout.write(f"rank step {number} loss 0.123456 lr 0.001 and some more words to fill it\n")
    sys.stdout.flush()
    return time.perf_counter() - began


def pour(rank: int, rate: int, seconds: float) -> None:
    """Write lines at a steady rate, each beginning with the time."""
    began, per_tick = time.perf_counter(), rate // 40
    for tick in range(int(seconds * 40)):
        for number in range(per_tick):
            sys.stdout.write(f"{time.time():.6f} step {tick}.{number} loss 0.123456 and words to fill the line\n")
        time.sleep(max(0.0, began + (tick + 1) / 40 - time.perf_counter()))


def rest(rank: int, seconds: float) -> None:
    """Do nothing for a while."""
    time.sleep(seconds)


def ddp_first_step(rank: int) -> list[float]:
    """Return seconds of CPU: for wrapping a small model in DDP, for its first and for its second step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    marks = [time.process_time()]
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    marks.append(time.process_time())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(4, 10)).sum().backward()
        optimizer.step()
        marks.append(time.process_time())
    dist.destroy_process_group()
    return [after - before for before, after in itertools.pairwise(marks)]
