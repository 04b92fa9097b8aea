"""Numbers and what is said of them: runs of several contenders in turn, medians with their spread, rows of a table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS = "nbproc"
MARK = "BENCHMARK "


@dataclass(frozen=True)
class Table:
    """One comparison. ``results`` maps a contender to its numbers, or to the reason why it has none; ours is first.

    ``goal`` is what is to be reached, ``facts`` are numbers that stand beside.
    """

    what: str
    goal: str
    results: Mapping[str, Sequence[float] | str]
    unit: str = "ms"
    facts: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return it as Markdown."""
        ours = next((values for values in self.results.values() if not isinstance(values, str)), None)
        rows = [f"**{self.what}** (to reach: {self.goal})", "", "| | median | quartiles | runs | of ours |"]
        rows.append("|---|---:|---:|---:|---:|")
        for name, values in self.results.items():
            if isinstance(values, str):
                rows.append(f"| {name} | | | | {values} |")
                continue
            low, middle, high = quartiles(values)
            ratio = (
                ""
                if values is ours or not ours or not statistics.median(ours)
                else _ratio(middle / statistics.median(ours))
            )
            rows.append(
                f"| {name} | {_number(middle)} {self.unit} | {_number(low)} to {_number(high)} | {len(values)} | {ratio} |"
            )
        return [*rows, "", *(f"- {name}: {value}" for name, value in self.facts.items()), *([""] if self.facts else [])]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def in_turn(contenders: Mapping[str, Callable[[], float] | str], times: int) -> dict[str, list[float] | str]:
    """Run each contender once, again and again; a contender that is a string, or that fails, is not there."""
    results: dict[str, list[float] | str] = {name: [] if callable(one) else one for name, one in contenders.items()}
    for _ in range(times):
        for name, one in contenders.items():
            values = results[name]
            if callable(one) and isinstance(values, list):
                try:
                    values.append(one())
                except Exception as error:
                    results[name] = (
                        f"failed: {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
                    )
    return results


def script(code: str, *arguments: object, timeout: float = 600) -> Any:
    """Run Python code in a process of its own; return what it gave to ``tell``."""
    prelude = (
        "import json, sys, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        f"def tell(value): sys.__stdout__.write('\\n' + {MARK!r} + json.dumps(value) + '\\n')\n"
        "from work import *\n"
        f"A = {arguments!r}\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", f"{prelude}if __name__ == '__main__':\n" + _indented(code)],
        capture_output=True,
        text=True,
        env=env,
        timeout=timeout,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not told:
        raise RuntimeError(f"it told nothing (exit code {done.returncode}): {done.stderr[-1500:]}")
    return json.loads(told[-1].removeprefix(MARK))


def missing(module: str) -> str | None:
    """Return a row's text if a peer is not installed."""
    import importlib.util

    return None if importlib.util.find_spec(module) else "not installed (make bench PEERS=1)"


def memory(pid: int) -> float:
    """Return a process's share of memory (PSS) in MB."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) / 1000


def _indented(code: str) -> str:
    return "\n".join("    " + line for line in code.splitlines())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"
