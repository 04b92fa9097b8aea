"""Stands in for `torch.multiprocessing`: change the import line, and `spawn` works from a notebook too.

    import nbproc.multiprocessing as mp          # was: import torch.multiprocessing as mp

`spawn`, `start_processes`, the contexts and the exceptions are nbproc's; every other name is torch's, and torch is
imported when one of these is first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from nbproc import launch
from nbproc.contexts.processes import ProcessContext
from nbproc.contexts.processes import SpawnContext as SpawnContext
from nbproc.errors import ProcessException as ProcessException
from nbproc.errors import ProcessExitedException as ProcessExitedException
from nbproc.errors import ProcessRaisedException as ProcessRaisedException
from nbproc.launch import spawn as spawn
from nbproc.sharing import get_all_sharing_strategies as get_all_sharing_strategies
from nbproc.sharing import get_sharing_strategy as get_sharing_strategy
from nbproc.sharing import set_sharing_strategy as set_sharing_strategy

_OURS = (
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
)


def start_processes(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "forkserver",
) -> ProcessContext | None:
    """Call ``fn(i, *args)`` in ``nprocs`` ranks: `nbproc.spawn` under torch.multiprocessing's other name.

    Not to be confused with `nbproc.start_processes`, which has the signature of torch.distributed.elastic.
    """
    return launch.spawn(fn, args, nprocs, join, daemon, start_method)


def __getattr__(name: str) -> Any:
    torch_multiprocessing = importlib.import_module("torch.multiprocessing")
    if name == "__all__":
        return sorted({*torch_multiprocessing.__all__, *_OURS})
    try:
        return getattr(torch_multiprocessing, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*_OURS, *dir(importlib.import_module("torch.multiprocessing"))})
