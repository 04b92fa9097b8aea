"""`%time` and `%timeit` as a rank runs them."""

from __future__ import annotations

import ast
import gc
import itertools
import os
import re
import time
import timeit as _timeit
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, TypeVar

__all__ = ["TimeitResult", "run_time", "run_timeit", "split_options", "timed"]

T = TypeVar("T")
_OPTION = re.compile(r"\s*(?:-([nrp])\s*(\d+)|-([tcqovi]+)|--(no-raise-error))(?=\s|$)")


def split_options(text: str) -> tuple[Mapping[str, int], str]:
    """Cut the options of `%time` and `%timeit` off their code; a switch counts as 1."""
    options: dict[str, int] = {}
    while found := _OPTION.match(text):
        if found[1]:
            options[found[1]] = int(found[2])
        else:
            options.update(dict.fromkeys(found[3] or [found[4]], 1))
        text = text[found.end() :]
    return options, text.strip()


def _seconds(value: float, precision: int = 3) -> str:
    for unit, size in (("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.{precision}g} {unit}"
    return f"{value / 1e-9:.{precision}g} ns"


def timed(call: Callable[[], T]) -> T:
    """Call it, and print how long it took, also if it raises."""
    before, started = os.times(), time.perf_counter()
    try:
        return call()
    finally:
        wall, after = time.perf_counter() - started, os.times()
        user, system = after.user - before.user, after.system - before.system
        print(f"CPU times: user {_seconds(user)}, sys: {_seconds(system)}, total: {_seconds(user + system)}")  # noqa: T201
        print(f"Wall time: {_seconds(wall)}", flush=True)  # noqa: T201


def _compiled(text: str, name: str) -> tuple[CodeType | None, CodeType | None]:
    """Compile statements and the expression at their end, as two code objects."""
    tree = ast.parse(text, name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    body = compile(tree, name, "exec", dont_inherit=True) if tree.body else None
    value = compile(ast.Expression(last.value), name, "eval", dont_inherit=True) if isinstance(last, ast.Expr) else None
    return body, value


def run_time(text: str, variables: dict[str, Any], local: dict[str, Any] | None = None) -> Any:
    """Run `%time`'s code; return the value of the expression at its end."""
    options, code = split_options(text)
    body, value = _compiled(code, "<timed code>")

    def run() -> Any:
        if body is not None:
            exec(body, variables, local)
        return eval(value, variables, local) if value is not None else None

    try:
        return timed(run)
    except Exception as error:
        if "no-raise-error" not in options:
            raise
        print(f"{type(error).__name__}: {error}")  # noqa: T201
        return None


class TimeitResult:
    """What `%timeit -o` returns: ``average``, ``best``, ``worst``, ``stdev`` in seconds, ``loops``, ``all_runs``."""

    def __init__(self, loops: int, all_runs: list[float], precision: int = 3) -> None:
        self.loops = loops
        self.repeat = len(all_runs)
        self.all_runs = all_runs
        self.timings = [run / loops for run in all_runs]
        self.best, self.worst = min(self.timings), max(self.timings)
        self.average = sum(self.timings) / len(self.timings)
        self.stdev = (sum((t - self.average) ** 2 for t in self.timings) / len(self.timings)) ** 0.5
        self._precision = precision

    def __str__(self) -> str:
        average, stdev = _seconds(self.average, self._precision), _seconds(self.stdev, self._precision)
        return (
            f"{average} +- {stdev} per loop (mean +- std. dev. of {self.repeat} run{'s' * (self.repeat != 1)}, "
            f"{self.loops:,} loop{'s' * (self.loops != 1)} each)"
        )

    def __repr__(self) -> str:
        return f"<TimeitResult : {self}>"


def run_timeit(
    text: str, variables: dict[str, Any], local: dict[str, Any] | None = None
) -> TimeitResult | float | None:
    """Run `%timeit`'s code as often as takes 0.2 s, seven times over, or as its options say."""
    options, code = split_options(text)
    timer = _timeit.Timer(
        code or "pass",
        globals={**variables, **(local or {})},
        timer=time.process_time if "c" in options else time.perf_counter,
    )
    loops = options.get("n", 0)
    if not loops:
        loops = next(10**power for power in itertools.count() if power == 9 or timer.timeit(10**power) >= 0.2)
    gc.collect()
    result = TimeitResult(loops, timer.repeat(max(options.get("r", 7), 1), loops), options.get("p", 3))
    if "q" not in options:
        print(result, flush=True)  # noqa: T201
    if "v" in options:
        return result.average
    return result if "o" in options else None
