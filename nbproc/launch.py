"""The doors of the runtime: a call, or a plan, becomes a run that has been started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nbproc.contexts.base import PContext
from nbproc.contexts.multiprocess import MultiprocessContext
from nbproc.contexts.popen import SubprocessContext
from nbproc.contexts.processes import ProcessContext
from nbproc.errors import ArgumentError, PlanError
from nbproc.plan import Plan, flat_logs, make_plan


def context_of(plan: Plan) -> PContext:
    """Make the context of a plan, not started: a `SubprocessContext` for an executable, else `MultiprocessContext`."""
    return SubprocessContext.of(plan) if plan.executable else MultiprocessContext.of(plan)


def start(plan: Plan) -> PContext:
    """Start a plan. Blocks until all ranks have answered; raises what `PContext.start` raises."""
    context = context_of(plan)
    context.start()
    return context


def start_processes(
    name: str,
    entrypoint: Callable[..., object] | str,
    args: Mapping[int, Any] | Sequence[Any] = (),
    envs: Mapping[int, Mapping[str, Any]] | None = None,
    logs_specs: object | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "forkserver",
    numa_options: object | None = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    log_dir: Any = None,
    redirects: Any = None,
    tee: Any = None,
    local_ranks_filter: Iterable[int] | None = None,
    nprocs: int | None = None,
    grace: float | None = None,
    timeout: float | None = None,
    daemon: bool = False,
) -> PContext:
    """Start n ranks of a function or of an executable and return their context.

    Semantics are
    `torch's <https://docs.pytorch.org/docs/stable/elastic/multiprocessing.html>`_; changing the import line alone
    keeps a program working.

    Args:
        name: a short name of the run; it is the prefix of teed lines.
        entrypoint: a function (also of the notebook, a lambda, a partial, ...) or the path of an executable.
        args: rank -> tuple of arguments, for the ranks 0 to n-1; or one tuple for all ranks, with ``nprocs``.
        envs: rank -> environment variables (values of any type become str), over the caller's; may be left out.
        logs_specs: where logs go (`DefaultLogsSpecs`, torch's, your own). Instead of it ``log_dir`` (a new or empty
            directory), ``redirects`` and ``tee`` (`Std`, or a map by rank) and ``local_ranks_filter`` (the ranks that
            reach the console) can be given.
        log_line_prefixes: rank -> prefix of its teed lines, instead of ``[name<rank>]:``.
        start_method: ``"forkserver"`` (ours, with torch imported ahead), ``"spawn"`` or ``"fork"``.
        numa_options: torch's ``NumaOptions``, applied in each rank.
        duplicate_stdout_filters: lines of teed stdout that contain any of these go to ``filtered_stdout.log`` too.
        duplicate_stderr_filters: the same for stderr.
        log_dir: see ``logs_specs``.
        redirects: see ``logs_specs``.
        tee: see ``logs_specs``.
        local_ranks_filter: see ``logs_specs``.
        nprocs: the number of ranks, where ``args`` does not tell.
        grace: seconds between asking a rank to stop and SIGTERM (10; 2 when another rank failed).
        timeout: seconds after which the run is stopped, counted from when all ranks have started; None for never.
        daemon: True makes the ranks daemonic: they may not have children of their own.

    Returns:
        A `MultiprocessContext` or a `SubprocessContext`, started; all ranks have answered.

    Raises:
        PlanError: ranks are missing in ``args`` or ``envs``, or the log directory is not empty (a RuntimeError).
        ArgumentError: the call itself is wrong (a TypeError).
        PayloadError: something cannot be sent to the ranks; it is named, and nothing was started.
        LaunchError: a rank could not be started; the others are gone.
    """
    flat = {"log_dir": log_dir, "redirects": redirects, "tee": tee, "local_ranks_filter": local_ranks_filter}
    given = [key for key, value in flat.items() if value is not None]
    if logs_specs is not None and given:
        raise ArgumentError(f"give either logs_specs or {', '.join(given)}, not both")
    plan = make_plan(
        name,
        entrypoint,
        args,
        envs,
        nprocs=nprocs,
        logs=flat_logs(**flat) if logs_specs is None else logs_specs,
        log_line_prefixes=log_line_prefixes,
        start_method=start_method,
        duplicate_stdout_filters=duplicate_stdout_filters,
        duplicate_stderr_filters=duplicate_stderr_filters,
        numa=numa_options,
        grace=grace,
        timeout=timeout,
        daemon=daemon,
    )
    return start(plan)


def spawn(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "forkserver",
) -> ProcessContext | None:
    """Call ``fn(i, *args)`` in ``nprocs`` ranks; ``i`` is the rank.

    `torch's <https://docs.pytorch.org/docs/stable/multiprocessing.html>`_, but ``start_method`` is honoured and ``fn``
    may be a function of the notebook.

    Args:
        fn: the function.
        args: further arguments, the same for all ranks.
        nprocs: the number of ranks.
        join: True waits for all ranks; False returns at once.
        daemon: True makes the ranks daemonic: they may not have children of their own.
        start_method: ``"forkserver"``, ``"spawn"`` or ``"fork"``.

    Returns:
        None when all ranks have returned; with ``join=False`` a `ProcessContext`.

    Raises:
        ProcessRaisedException: a rank raised; its traceback is in the message. The others were ended.
        ProcessExitedException: a rank exited badly or was killed; exit code and signal name are attributes.
    """
    if not isinstance(args, tuple | list):
        raise ArgumentError(f"args must be a tuple of arguments, not {args!r}; did you mean ({args!r},)?")
    if isinstance(nprocs, bool) or not isinstance(nprocs, int):
        raise ArgumentError(f"nprocs must be a whole number, not {nprocs!r}")
    if nprocs < 1:
        raise PlanError(f"nprocs must be at least 1, not {nprocs}")
    plan = make_plan(
        getattr(fn, "__name__", "spawn").strip("<>") or "spawn",
        fn,
        {rank: (rank, *args) for rank in range(nprocs)},
        start_method=start_method,
        daemon=daemon,
    )
    context = ProcessContext(start(plan))
    if not join:
        return context
    while not context.join():
        pass
    return None
