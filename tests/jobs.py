"""Functions for `nbproc.spawn` to call, importable in a rank: the first argument is the rank."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nbproc.ranks import reap


def hang() -> None:
    """Wait until somebody ends it."""
    while True:
        signal.pause()


def appear(path: Path) -> None:
    """Wait for a file."""
    while not path.exists():
        time.sleep(0.002)


def vanish(pids: Iterable[int | str], timeout: float = 10) -> None:
    """Wait until these processes have ended; those that are children are left to their parent to wait for."""
    reap.wait_for([reap.Process(int(pid), 0) for pid in pids], timeout)


def nothing(i: int) -> None:
    """Return."""


def note(i: int, folder: Path, *words: object) -> None:
    """Write a file that is named after the rank."""
    (folder / str(i)).write_text(" ".join(map(str, words)))


def put(i: int, queue: Any, *more: object) -> None:
    queue.put((i, *more))


def raise_in(i: int, guilty: int) -> None:
    """Raise in one rank, wait in the others."""
    if i == guilty:
        raise ValueError(f"legitimate exception from process {i}")
    hang()


def raise_in_all(i: int) -> None:
    raise ValueError(f"legitimate exception from process {i}")


def abort_first(i: int) -> None:
    if i == 0:
        os.kill(os.getpid(), signal.SIGABRT)
    hang()


def exit_first(i: int, code: Any) -> None:
    if i == 0:
        sys.exit(code)
    hang()


def leave_first(i: int, code: int) -> None:
    """Exit without the interpreter's knowledge."""
    if i == 0:
        os._exit(code)
    hang()


def return_first_then_raise(i: int, folder: Path) -> None:
    """Rank 0 returns; rank 1 raises when it is told to."""
    if i == 0:
        return
    appear(folder / "go")
    raise ValueError("legitimate exception")


def end_in_turn(i: int, folder: Path) -> None:
    """End when told to, each by a file of its own."""
    note(i, folder / "started")
    appear(folder / f"end-{i}")


def hang_all(i: int, folder: Path) -> None:
    note(i, folder)
    hang()


def fail_then_finish(i: int, folder: Path) -> None:
    """Rank 0 fails once rank 1 has begun and it may; rank 1 takes a moment longer and is not asked to stop."""
    if i == 0:
        appear(folder / "1")
        appear(folder / "may fail")
        sys.exit(3)
    note(i, folder)
    time.sleep(0.5)
    (folder / "finished").write_text("")


def fail_then_ignore(i: int, folder: Path) -> None:
    """Rank 0 fails once rank 1 ignores SIGTERM."""
    if i == 0:
        appear(folder / "1")
        sys.exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(i, folder, os.getpid())
    hang()


def start_child(i: int, folder: Path) -> None:
    """Have a child of its own."""
    child = multiprocessing.get_context("fork").Process(target=note, args=(i, folder, "child"))
    child.start()
    child.join()
    if child.exitcode != 0:
        raise RuntimeError(f"the child ended with {child.exitcode}")


def launch(i: int, folder: Path, start_method: str) -> None:
    """Launch ranks of its own."""
    import nbproc

    nbproc.spawn(note, (folder, i, os.getppid()), 2, start_method=start_method)


def launch_and_die(i: int, folder: Path, start_method: str) -> None:
    """Launch ranks that hang, then be killed."""
    import nbproc

    inner = nbproc.spawn(hang_all, (folder,), 2, join=False, start_method=start_method)
    assert inner is not None
    for rank in range(2):
        appear(folder / str(rank))
    (folder / "pids").write_text(" ".join(map(str, inner.pids())))
    os.kill(os.getpid(), signal.SIGTERM)


def launch_as_daemon(i: int) -> None:
    import nbproc

    nbproc.spawn(nothing, (), 1)


def multiply(i: int, folder: Path) -> None:
    """Train a little, as a user of autograd does."""
    import torch

    x = torch.ones(200, 200, requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad is not None
    note(i, folder, float(x.grad.sum()))


def load_data(i: int, folder: Path) -> None:
    """Read through a DataLoader with workers."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=2)
    note(i, folder, sum(int(batch.sum()) for (batch,) in data))


def note_strategy(i: int, folder: Path) -> None:
    """Write which way of sharing tensors is in use."""
    import torch.multiprocessing

    note(i, folder, torch.multiprocessing.get_sharing_strategy())


def write_in_turn(i: int, shared: Any, folder: Path) -> None:
    """Write to a tensor, wait for the caller to have written, write again."""
    if i == 1:
        appear(folder / "0")
    shared[i] = i + 1
    note(i, folder)
    appear(folder / "go")
    if i == 1:
        shared[3] = shared[2] * 2


def sum_when_told(tensor: Any, folder: Path) -> float:
    """Wait for the caller, then return a tensor's sum."""
    appear(folder / "go")
    return float(tensor.sum())


def on_the_gpu(i: int) -> Any:
    """Return a tensor that lies on a GPU."""
    import torch

    return torch.full((3,), float(i), device="cuda")


def add_to_weight(i: int, model: Any) -> None:
    """Add to a model's weight, each rank at a place of its own: adding is no single step."""
    import torch

    with torch.no_grad():
        model.weight[0, i] += i + 1


def write_and_note(i: int, tensor: Any, folder: Path) -> None:
    tensor += 1
    note(i, folder, float(tensor.sum()))


def put_tensor(i: int, queue: Any, folder: Path) -> None:
    """Put a tensor into a queue, and live until it was taken out."""
    import torch

    queue.put(torch.arange(3))
    appear(folder / "got")


def use_all(i: int, event: Any, lock: Any, value: Any, pipe: Any) -> None:
    """Use what multiprocessing has to synchronise."""
    with lock:
        value.value += 1
        pipe.send(i)
    event.set()
