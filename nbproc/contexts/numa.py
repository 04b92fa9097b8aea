"""NUMA binding: torch's ``NumaOptions``, applied by torch itself in each rank, or an error that says why not.

https://docs.pytorch.org/docs/stable/elastic/numa.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from nbproc.errors import ArgumentError, LaunchError
from nbproc.needs import torch_module
from nbproc.plan import Plan, RankPlan


def check(options: object) -> None:
    """Raise `ArgumentError` if these are no ``NumaOptions``."""
    if options is not None and not hasattr(options, "affinity_mode"):
        raise ArgumentError(f"numa_options must be torch.numa.binding.NumaOptions, not {options!r}")


def bind(plan: Plan) -> Plan:
    """Return a plan of functions whose ranks bind themselves before they call the entrypoint."""
    if plan.numa is None:
        return plan
    ranks = tuple(
        RankPlan(rank.rank, (rank.rank, plan.numa, plan.entrypoint, rank.args), rank.env) for rank in plan.ranks
    )
    return dataclasses.replace(plan, entrypoint=call, ranks=ranks, shared_args=False, numa=None)


def call(rank: int, options: object, function: Callable[..., object], args: Sequence[object]) -> object:
    """In a rank: bind this process to the processors near the GPU of this index, then call the function."""
    _torchs("_maybe_apply_numa_binding_to_current_process")(gpu_index=rank, numa_options=options)
    return function(*args)


def command(rank: int, options: object, words: Sequence[str]) -> list[str]:
    """Return the command of an executable with numactl before it. Raises what torch raises where it cannot bind."""
    if options is None:
        return list(words)
    wrap = _torchs("_maybe_wrap_command_args_with_numa_binding")
    return list(wrap(tuple(words), gpu_index=rank, numa_options=options))


def _torchs(name: str) -> Callable[..., Any]:
    # Private: torch applies the options in its own launchers only, and offers no public way.
    found: Callable[..., Any] | None = getattr(torch_module("torch.numa.binding", "numa_options"), name, None)
    if found is None:
        raise LaunchError(f"numa_options: this version of torch has no {name}; leave numa_options out")
    return found
