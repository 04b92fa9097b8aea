"""`nbproc.panel`: the door to the launch panel. Imports nothing of Jupyter until it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbproc.errors import StateError
from nbproc.logs.std import StdLike


def panel(
    fn: object = None,
    nprocs: int | None = None,
    *,
    args: str | tuple[Any, ...] | Mapping[int, Any] | None = None,
    envs: str | Mapping[Any, Any] | None = None,
    name: str | None = None,
    variable: str | None = None,
    start_method: str | None = None,
    redirects: StdLike | Mapping[int, StdLike] | None = None,
    tee: StdLike | Mapping[int, StdLike] | None = None,
    filters: str | Iterable[str] | None = None,
    log_dir: str | Path | None = None,
    timeout: float | None = None,
) -> None:
    """Show a form that launches runs, and below it the runs that it has launched, each with its live view.

    Launching does not block the kernel. What is given here stands in the form's fields at first; whoever uses the form
    may change it, and running the cell again keeps what he has typed.

    Args:
        fn: a function of the notebook or of a module imported there, or the name of a program.
        nprocs: the number of ranks.
        args: the arguments as one writes them in a call, ``"cfg, lr=0.1"``, or a tuple of plain values; or one of
            these by rank. They are evaluated in the notebook at each launch.
        envs: environment variables, as a dict or as ``"NAME=value OTHER=value"``; or one of these by rank.
        name: what a run is called.
        variable: the variable that holds the context of the last run; "" for none.
        start_method: ``"forkserver"``, ``"spawn"`` or ``"fork"``.
        redirects: streams that go to files only, for all or by rank.
        tee: streams that go to files and to the console, for all or by rank.
        filters: texts whose lines are collected in filtered_stdout.log and filtered_stderr.log.
        log_dir: where each run makes a directory of its own.
        timeout: seconds after which a run is stopped.

    Raises:
        StateError: this is no notebook, or a module that the form needs is missing.
        ArgumentError: something given cannot stand in the form.
    """
    given = {
        "args": args,
        "envs": envs,
        "name": name,
        "variable": variable,
        "start_method": start_method,
        "redirects": redirects,
        "tee": tee,
        "filters": filters,
        "log_dir": log_dir,
        "timeout": timeout,
    }
    try:
        from nbproc.notebook.panel_widget import show_panel
    except ModuleNotFoundError as error:
        raise StateError(
            f"nbproc.panel() is a form in a notebook and needs {error.name}, which is not installed; "
            f"install it, or call nbproc.start_processes instead"
        ) from error
    show_panel(fn, nprocs, given)
