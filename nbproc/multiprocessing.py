"""Stands in for `torch.multiprocessing`: change the import line, and `spawn` works from a notebook too.

    import nbproc.multiprocessing as mp          # was: import torch.multiprocessing as mp

`spawn`, `start_processes`, the contexts and the exceptions are nbproc's; every other name is torch's, and torch is
imported when one of these is first asked for. Where torch is not installed, that raises an ImportError which says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nbproc import launch
from nbproc.contexts.processes import ProcessContext
from nbproc.contexts.processes import SpawnContext as SpawnContext
from nbproc.errors import DependencyError
from nbproc.errors import ProcessException as ProcessException
from nbproc.errors import ProcessExitedException as ProcessExitedException
from nbproc.errors import ProcessRaisedException as ProcessRaisedException
from nbproc.launch import spawn as spawn
from nbproc.needs import torch_module
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
    try:
        torchs = torch_module("torch.multiprocessing", f"{__name__}.{name}")
    except DependencyError:
        if name.startswith("__") and name != "__all__":  # somebody looks at the module: inspect, doctest, a debugger
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        raise
    if name == "__all__":
        return sorted({*torchs.__all__, *_OURS})
    try:
        return getattr(torchs, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    try:
        return sorted({*_OURS, *dir(torch_module("torch.multiprocessing", f"dir({__name__})"))})
    except DependencyError:
        return sorted(_OURS)
