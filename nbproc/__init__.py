"""Run a function or a cell of a notebook on n processes, watch every rank, and get results or an explanation.

`start_processes` and `spawn` are the calls, ``%%spawn`` the cell magic (``%load_ext nbproc``), `panel` the form. The
names are those of torch.distributed.elastic.multiprocessing and torch.multiprocessing. Importing this imports neither
torch nor IPython; names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext
    from nbproc.contexts.multiprocess import MultiprocessContext
    from nbproc.contexts.popen import SubprocessContext
    from nbproc.contexts.processes import ProcessContext, SpawnContext
    from nbproc.contexts.results import RunProcsResult
    from nbproc.errors import (
        LaunchError,
        NbprocError,
        PayloadError,
        PlanError,
        ProcessExitedException,
        ProcessRaisedException,
        ResultError,
        SignalException,
        SpawnError,
    )
    from nbproc.failures import ChildFailedError, ErrorHandler, ProcessFailure, record
    from nbproc.launch import spawn, start_processes
    from nbproc.logs.specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from nbproc.logs.std import Std, to_map
    from nbproc.notebook.panel import panel
    from nbproc.sharing import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy
    from nbproc.states import RankState, RunState, Snapshot

_HOMES = {
    "nbproc.contexts.base": ("PContext",),
    "nbproc.contexts.multiprocess": ("MultiprocessContext",),
    "nbproc.contexts.popen": ("SubprocessContext",),
    "nbproc.contexts.processes": ("ProcessContext", "SpawnContext"),
    "nbproc.contexts.results": ("RunProcsResult",),
    "nbproc.errors": (
        "LaunchError",
        "NbprocError",
        "PayloadError",
        "PlanError",
        "ProcessExitedException",
        "ProcessRaisedException",
        "ResultError",
        "SignalException",
        "SpawnError",
    ),
    "nbproc.failures": ("ChildFailedError", "ErrorHandler", "ProcessFailure", "record"),
    "nbproc.launch": ("spawn", "start_processes"),
    "nbproc.logs.specs": ("DefaultLogsSpecs", "LogsDest", "LogsSpecs"),
    "nbproc.logs.std": ("Std", "to_map"),
    "nbproc.notebook.panel": ("panel",),
    "nbproc.sharing": ("get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy"),
    "nbproc.states": ("RankState", "RunState", "Snapshot"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ErrorHandler",
    "LaunchError",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "NbprocError",
    "PContext",
    "PayloadError",
    "PlanError",
    "ProcessContext",
    "ProcessExitedException",
    "ProcessFailure",
    "ProcessRaisedException",
    "RankState",
    "ResultError",
    "RunProcsResult",
    "RunState",
    "SignalException",
    "Snapshot",
    "SpawnContext",
    "SpawnError",
    "Std",
    "SubprocessContext",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "panel",
    "record",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
    "to_map",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if name == "multiprocessing":
        return importlib.import_module("nbproc.multiprocessing")
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _meet_notebook()
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _meet_notebook() -> None:
    """In a kernel or a terminal IPython, let the notebook wing know of runs that are started by a call."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython, "get_ipython", lambda: None)() is not None:
        importlib.import_module("nbproc.notebook").meet()


def load_ipython_extension(shell: Any) -> None:
    """Add ``%%spawn`` and ``%spawn`` to IPython (``%load_ext nbproc``)."""
    importlib.import_module("nbproc.notebook").load(shell)
