"""All benchmarks, one after another: a table on the screen and in docs/explanation/benchmarks.md.

    python tests/benchmarks/run.py [--quick] [--write FILE] [B1 B2 ...]

Each runs nbproc and what it is compared with in turn, in one run. Times are judged by nobody here. With names and
``--write``, only these sections of the page are replaced.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import importlib.metadata
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import calls
import cells
import idle
import lines
from measure import HERE, Table
from remarks import DECISIONS, LIMITS

Benchmark = Callable[[bool], list[Table]]
ALL: dict[str, Benchmark] = {
    "B1": cells.b1,
    "B2": calls.b2,
    "B3": cells.b3,
    "B4": cells.b4,
    "B5": calls.b5,
    "B6": calls.b6,
    "B7": calls.b7,
    "B8": lines.b8,
    "B9": lines.b9,
    "B10": calls.b10,
    "B11": idle.b11,
    "DDP": cells.ddp,
}
PAGE = HERE.parents[1] / "docs/explanation/benchmarks.md"
PACKAGES = ("torch", "ipykernel", "ipywidgets", "cloudpickle", "accelerate", "ipyparallel", "loky")


def main() -> int:
    """Run what was asked for. Returns 1 if a benchmark did not come to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="B1", help="run only these; the page is not written then")
    parser.add_argument("--quick", action="store_true", help="do each once, to see that it still works")
    parser.add_argument("--write", type=Path, help=f"the page to write (default: {PAGE.relative_to(HERE.parents[1])})")
    asked = parser.parse_args()
    for folder in (HERE.parents[1] / "nbproc", HERE):  # as an installation, or the first import, does; not each process
        compileall.compile_dir(folder, quiet=2)
    chosen = {name: ALL[name] for name in (asked.names or ALL)}
    page = asked.write or (None if asked.quick or asked.names else PAGE)
    text, failed = [], []
    for name, benchmark in chosen.items():
        print(f"## {name}: {benchmark.__doc__}", flush=True)
        began = time.monotonic()
        section, well = _section(name, benchmark, asked.quick)
        if not well:
            failed.append(name)
        print("\n".join(section[4:]), f"({time.monotonic() - began:.0f} s)\n", flush=True)
        text += section
    if page is not None:
        old = _sections(page.read_text(encoding="utf-8")) if asked.names and page.exists() else {}
        new = {**old, **_sections("\n".join(text))}
        body = [new[name].rstrip() + "\n" for name in ALL if name in new]
        page.write_text("\n".join([*_head(asked.names), *body, *DECISIONS]) + "\n", encoding="utf-8")
    if failed:
        print(f"did not come to their end: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _sections(page: str) -> dict[str, str]:
    """Take a page apart: the text of each benchmark, by its name."""
    parts = [part.partition("\n") for part in page.split("\n## ")[0 if page.startswith("## ") else 1 :]]
    return {head.removeprefix("## "): f"## {head.removeprefix('## ')}\n{rest}" for head, _, rest in parts}


def _section(name: str, benchmark: Benchmark, quick: bool) -> tuple[list[str], bool]:
    text, well = [f"## {name}", "", str(benchmark.__doc__), ""], True
    try:
        for table in benchmark(quick):
            text += table.lines()
    except Exception as error:
        traceback.print_exc()
        text += [f"Not measured: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", ""]
        well = False
    if name in LIMITS:
        text += ["What it is made of:", "", LIMITS[name].strip(), ""]
    return text, well


def _head(names: Sequence[str]) -> list[str]:
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    load = os.getloadavg()[0]
    return [
        "<!-- Written by tests/benchmarks/run.py; what is said of limits and decisions is in tests/benchmarks/remarks.py. -->",
        "",
        "# How fast it is",
        "",
        "Each benchmark runs nbproc and what it is compared with in turn, in one run. A line gives the median, the",
        "quartiles, and the ratio to nbproc's median. A cell is measured from the moment it is sent to the moment its",
        "kernel is idle again, all output received.",
        "",
        (
            f"- Machine: {_processor()}, {os.cpu_count()} cores, {_memory():.0f} GB; {platform.system()} {platform.release()}; "
            f"load at the end of the run {load:.1f}"
        ),
        f"- Python {platform.python_version()}, {', '.join(versions)}",
        f"- {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, `python tests/benchmarks/run.py`, which `make bench` calls"
        + (f"; last measured again: {', '.join(names)}" if names else ""),
        "",
    ]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.partition(":")[2].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


if __name__ == "__main__":
    sys.exit(main())
