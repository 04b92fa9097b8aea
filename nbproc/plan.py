"""What a run will do, as a value: broadcast over the ranks, checked, environments resolved. Nothing here starts."""

from __future__ import annotations

import inspect
import numbers
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from nbproc.errors import ArgumentError, OptionError, PlanError
from nbproc.logs.std import Std

START_METHODS = ("forkserver", "spawn", "fork")
DEFAULT_START_METHOD = "forkserver"
Entrypoint = Callable[..., object] | str


@dataclass(frozen=True)
class RankPlan:
    """What one rank gets: its arguments, and the environment variables that the user set for it."""

    rank: int
    args: tuple[object, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class FlatLogs:
    """``log_dir=, redirects=, tee=``: the files lie in ``log_dir/<rank>/``. Without a directory, in one of ours."""

    log_dir: Path | None = None
    redirects: Std | Mapping[int, Std] = Std.NONE
    tee: Std | Mapping[int, Std] = Std.NONE
    local_ranks_filter: frozenset[int] | None = None


@dataclass(frozen=True)
class Plan:
    """A run before it is started.

    ``logs`` is `FlatLogs`, or an object with ``reify(envs) -> LogsDest`` (ours, torch's or the user's). ``grace`` is
    the time in seconds between asking a rank to stop and ending it, None for the defaults of the stop ladder;
    ``timeout`` ends the run when its ranks have run for so many seconds. ``shared_args`` says that all ranks have the
    same arguments, which are then sent once.
    """

    name: str
    entrypoint: Entrypoint
    ranks: tuple[RankPlan, ...]
    start_method: str = DEFAULT_START_METHOD
    logs: object = field(default_factory=FlatLogs)
    prefixes: Mapping[int, str] | None = None
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    filter_all: bool = False
    """True if the filters take the lines of all ranks, not only of teed ones."""
    shared_args: bool = False
    daemon: bool = False
    grace: float | None = None
    timeout: float | None = None
    numa: object | None = None
    roots: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """What the entrypoint needs by name besides itself; the worker puts these into its ``__main__`` first."""
    soft: frozenset[str] = frozenset()
    """The names among ``roots`` that are left out when they cannot be sent."""
    setup: tuple[str, Mapping[str, object]] | None = None
    capture: bool = False
    """True if every stream goes to a file, because somebody shows it (always so in a notebook)."""
    shown: bool = False
    """True if the caller shows the run itself: then no text of it is echoed."""
    without: Callable[[Mapping[str, str]], Entrypoint] | None = None
    """Makes the entrypoint that knows why some of the ``soft`` names are missing."""
    done_words: str = ""
    """What the run says of itself when all ranks have succeeded: where the results are."""
    notes: tuple[str, ...] = ()

    @property
    def nprocs(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def executable(self) -> bool:
        """True if the entrypoint is a path to an executable."""
        return isinstance(self.entrypoint, str)


def make_plan(
    name: str,
    entrypoint: Entrypoint,
    args: Mapping[int, object] | Sequence[object] = (),
    envs: Mapping[int, Mapping[str, object]] | None = None,
    *,
    nprocs: int | None = None,
    logs: object | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str | None = None,
    duplicate_stdout_filters: Iterable[str] | None = None,
    duplicate_stderr_filters: Iterable[str] | None = None,
    **more: object,
) -> Plan:
    """Broadcast and check what a caller gave.

    ``args`` is a mapping rank -> arguments, or one tuple for all ranks with ``nprocs``. ``envs`` is a mapping
    rank -> variables, left out for none. ``more`` are further fields of `Plan`, as they are.

    Raises `PlanError` (a RuntimeError) for missing or extra ranks, `ArgumentError` (a TypeError) for values of a
    wrong type, `OptionError` (a ValueError) for an unknown start method.
    """
    if not callable(entrypoint) and not isinstance(entrypoint, str):
        raise ArgumentError(f"entrypoint must be a function or the path of an executable, not {_kind(entrypoint)}")
    if inspect.iscoroutinefunction(entrypoint):
        raise ArgumentError("entrypoint is an async function; give a function that calls asyncio.run on it")
    executable = isinstance(entrypoint, str)
    shared = not isinstance(args, Mapping)
    if isinstance(args, Mapping):
        by_rank = _by_rank("args", args, nprocs, None)
        n = len(by_rank)
    else:
        n = _count(nprocs, envs)
        by_rank = dict.fromkeys(range(n), args)
    env_by_rank = _by_rank("envs", envs, n, {}) if envs is not None else {rank: {} for rank in range(n)}
    ranks = tuple(
        RankPlan(rank, _arguments(by_rank[rank], rank, executable), _environment(env_by_rank[rank], rank))
        for rank in range(n)
    )
    for rank in log_line_prefixes or ():
        if rank not in range(n):
            raise PlanError(f"log_line_prefixes names rank {rank!r}, but the ranks are 0 to {n - 1}")
    for what in ("grace", "timeout"):
        _check_seconds(what, more.get(what))
    method = start_method or DEFAULT_START_METHOD
    if method not in START_METHODS:
        raise OptionError(f"start_method {method!r} is not one of {', '.join(START_METHODS)}")
    return Plan(
        name=str(name),
        entrypoint=entrypoint,
        ranks=ranks,
        start_method=method,
        logs=FlatLogs() if logs is None else logs,
        prefixes=dict(log_line_prefixes) if log_line_prefixes else None,
        stdout_filters=_filters("duplicate_stdout_filters", duplicate_stdout_filters),
        stderr_filters=_filters("duplicate_stderr_filters", duplicate_stderr_filters),
        shared_args=shared,
        **more,  # type: ignore[arg-type]  # checked by Plan's own signature
    )


def flat_logs(
    log_dir: object = None, redirects: object = None, tee: object = None, local_ranks_filter: object = None
) -> FlatLogs:
    """Make `FlatLogs` of what a caller gave; masks may be torch's, strings as on a command line, or maps by rank."""
    return FlatLogs(
        log_dir=Path(str(log_dir)) if log_dir not in (None, "") else None,
        redirects=_mask("redirects", redirects),
        tee=_mask("tee", tee),
        local_ranks_filter=None if local_ranks_filter is None else frozenset(_ranks(local_ranks_filter)),
    )


def rank_variables(rank: int, world_size: int, port: int, run_id: str) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank of a run on one node.

    https://docs.pytorch.org/docs/stable/elastic/run.html (environment variables)
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def environment(
    base: Mapping[str, str], plan: RankPlan, world_size: int, port: int, run_id: str, mark: str
) -> dict[str, str]:
    """Return a rank's whole environment: the user's ``envs`` over our variables over the caller's.

    OMP_NUM_THREADS is 1 for several ranks if nobody set it, as under torchrun.
    """
    ours = rank_variables(plan.rank, world_size, port, run_id)
    ours["NBPROC_RUN"] = mark
    ours["PYTHONUNBUFFERED"] = base.get("PYTHONUNBUFFERED", "1")
    if world_size > 1 and "OMP_NUM_THREADS" not in base:
        ours["OMP_NUM_THREADS"] = "1"
    if base.get("MPLBACKEND", "").startswith("module://"):
        ours["MPLBACKEND"] = "agg"
    inherited = {name: value for name, value in base.items() if name != "TORCHELASTIC_ERROR_FILE"}
    return {**inherited, **ours, **plan.env}


def new_run_id() -> str:
    """Return an id that no other run has."""
    return uuid.uuid4().hex[:12]


def _count(nprocs: int | None, envs: Mapping[int, object] | None) -> int:
    if nprocs is None:
        if envs is None:
            raise PlanError("the number of ranks is not known: give nprocs, or args={0: (...), 1: (...)}")
        return len(_by_rank("envs", envs, None, {}))
    if isinstance(nprocs, bool) or not isinstance(nprocs, int):
        raise ArgumentError(f"nprocs must be a whole number, not {_kind(nprocs)}")
    if nprocs < 1:
        raise PlanError(f"nprocs must be at least 1, not {nprocs}")
    return nprocs


def _by_rank(what: str, given: Mapping[int, object], n: int | None, missing: object) -> dict[int, object]:
    """Check that the keys are exactly 0..n-1 and return them in rank order."""
    expected = set(range(len(given) if n is None else n))
    keys = set(given)
    if keys != expected:
        parts = []
        if lacking := sorted(expected - keys):
            parts.append(f"{_list(lacking)} missing")
        if extra := sorted(keys - expected, key=repr):
            parts.append(f"{_list(extra)} not expected")
        wanted = f"exactly the keys 0 to {len(expected) - 1}, one for each rank" if expected else "no key"
        raise PlanError(f"{what} must have {wanted}: {'; '.join(parts)}. Nothing was started.")
    return {rank: given[rank] for rank in range(len(expected))}


def _arguments(args: object, rank: int, executable: bool) -> tuple[object, ...]:
    if executable:
        return (str(args),) if not isinstance(args, tuple | list) else tuple(str(arg) for arg in args)
    if isinstance(args, tuple | list):
        return tuple(args)
    raise ArgumentError(
        f"args of rank {rank} must be a tuple of arguments, not {_kind(args)}; did you mean ({args!r},)?"
    )


def _environment(env: object, rank: int) -> Mapping[str, str]:
    if not isinstance(env, Mapping):
        raise ArgumentError(f"envs of rank {rank} must be a mapping of names to values, not {_kind(env)}")
    resolved = {}
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ArgumentError(f"envs of rank {rank}: {name!r} cannot be the name of an environment variable")
        if "\0" in (text := str(value)):
            raise ArgumentError(f"envs of rank {rank}: the value of {name} contains a NUL character")
        resolved[name] = text
    return MappingProxyType(resolved)


def _filters(what: str, filters: Iterable[str] | None) -> tuple[str, ...]:
    if filters is None:
        return ()
    found = (filters,) if isinstance(filters, str) else tuple(filters)
    for text in found:
        if not isinstance(text, str):
            raise ArgumentError(f"{what} must be strings, not {_kind(text)}")
    return tuple(text for text in found if text)


def _mask(what: str, mask: object) -> Std | Mapping[int, Std]:
    if mask is None:
        return Std.NONE
    try:
        if isinstance(mask, str):
            return Std.from_str(mask)
        if isinstance(mask, Mapping):
            return {int(rank): _std(value) for rank, value in mask.items()}
        return _std(mask)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{what} must be a Std or a map of ranks to Std, not {mask!r}") from error


def _std(value: object) -> Std:
    number = int(value)  # type: ignore[call-overload]  # anything that is a number, torch's Std too
    if number not in range(4):
        raise ValueError(number)  # IntFlag would keep it
    return Std(number)


def _ranks(given: object) -> Iterable[int]:
    if isinstance(given, int):
        return (given,)
    if isinstance(given, str):
        try:
            return tuple(int(part) for part in given.split(",") if part.strip())
        except ValueError as error:
            raise OptionError(f"local_ranks_filter must be ranks separated by commas, not {given!r}") from error
    return tuple(int(rank) for rank in given)  # type: ignore[attr-defined]  # an iterable, or its TypeError


def _list(ranks: Sequence[object]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(repr(rank) for rank in ranks)


def _check_seconds(what: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"{what} must be a number of seconds, not {_kind(value)}")
    if not float(value) >= 0:
        raise PlanError(f"{what} must be a number of seconds, or None for the default, not {value}")


def _kind(value: object) -> str:
    return f"{value!r} ({type(value).__name__})" if len(repr(value)) < 60 else f"a {type(value).__name__}"


__all__ = [
    "DEFAULT_START_METHOD",
    "START_METHODS",
    "FlatLogs",
    "Plan",
    "RankPlan",
    "environment",
    "flat_logs",
    "make_plan",
    "new_run_id",
    "rank_variables",
]
