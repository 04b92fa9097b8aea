"""Benchmarks in real kernels: B1, B3, B4."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from measure import HERE, OURS, Table, in_turn, missing, script

sys.path.insert(0, str(HERE.parent))
from kernels import Kernel

CELL = "%%spawn -n 4\nprint('hello from', rank)\nrank"
TORCH = """\
ctx = start_processes("work", work.hello, {i: (i,) for i in range(4)}, {i: {} for i in range(4)},
                      DefaultLogsSpecs(tempfile.mkdtemp(), Std.ALL), start_method="spawn")
ctx.wait(period=0.01)"""
TORCH_SETUP = """\
import sys, tempfile; sys.path.insert(0, %r); import work, torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
"""
ACCELERATE_SETUP = "from accelerate import notebook_launcher\ndef hello(): print('hello'); return 1"
ACCELERATE = "notebook_launcher(hello, num_processes=4)"
PX_SETUP = """\
import ipyparallel as ipp, logging
cluster = ipp.Cluster(n=4, log_level=logging.ERROR)
client = cluster.start_and_connect_sync(activate=True)
"""
PX = "%%px\nprint('hello')\n1"


@contextlib.contextmanager
def kernel(*setup: str) -> Iterator[Kernel]:
    """Start a kernel and run some cells in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Kernel(Path(folder))
        try:
            for cell in setup:
                _run(made, cell)
            yield made
        finally:
            made.close()


def _run(made: Kernel, cell: str) -> float:
    ran = made.run(cell, timeout=180)
    if not ran.ok:
        raise RuntimeError(ran.error[-300:] or ran.text[-300:])
    return ran.seconds * 1000


def b1(quick: bool) -> list[Table]:
    """The second ``%%spawn -n 4`` of a kernel, from sending the cell to its end."""
    fast, slow = (2, 1) if quick else (25, 5)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(kernel("%load_ext nbproc", CELL))
        contenders: dict[str, Callable[[], float] | str] = {OURS: lambda: _run(ours, CELL)}

        def peer(name: str, module: str, setup: str, cell: str) -> None:
            absent = missing(module)
            if absent is None and not quick:
                try:
                    other = stack.enter_context(kernel(setup, cell))
                    if name.startswith("ipyparallel"):
                        stack.callback(other.run, "client.shutdown(hub=True)")
                except Exception as error:
                    absent = f"failed: {str(error).splitlines()[-1][:120]}"
                else:
                    contenders[name] = lambda: _run(other, cell)
            contenders.setdefault(name, absent or "left out")

        peer("ipyparallel %%px, engines that run", "ipyparallel", PX_SETUP, PX)
        peer("accelerate notebook_launcher", "accelerate", ACCELERATE_SETUP, ACCELERATE)
        contenders["an empty cell"] = lambda: _run(ours, "pass")
        paused = {name: _after(0.25, one) for name, one in contenders.items()}
        results = in_turn(paused, fast)
        pids = ours.run("%%spawn -n 4 --as one\nimport os; os.getpid()").ok and ours.ask(
            "sorted(one.return_values.values())"
        )
        again = ours.run("%%spawn -n 4 --as two\nimport os; os.getpid()").ok and ours.ask(
            "sorted(two.return_values.values())"
        )
        process = psutil.Process(ours.pid)
        before, began = process.cpu_times(), 10 if not quick else 2
        for _ in range(began):
            _run(ours, CELL)
        after = process.cpu_times()
        cpu = 1000 * (after.user + after.system - before.user - before.system) / began
        facts = {
            "process ids of two runs": "all different" if not set(pids) & set(again) else f"{pids}, {again}",
            "CPU time of the kernel": f"{cpu:.0f} ms a run",
        }
        one_by_one = {name: [one() for _ in range(fast)] for name, one in contenders.items() if callable(one)}
        if not quick:
            absent = missing("torch")
            if absent is None:
                other = stack.enter_context(kernel(TORCH_SETUP % str(HERE), TORCH))
                results["torch start_processes, spawn"] = [_run(other, TORCH) for _ in range(slow)]
        return [
            Table(
                "A cell, a quarter of a second between two",
                "50x of torch spawn, 3x of accelerate, no slower than %%px",
                results,
                facts=facts,
            ),
            Table("A cell, back to back", "under 2x of %%px", one_by_one),
        ]


def _after(pause: float, one: Callable[[], float] | str) -> Callable[[], float] | str:
    def run() -> float:
        time.sleep(pause)
        return one()  # type: ignore[operator]

    return run if callable(one) else one


def b3(quick: bool) -> list[Table]:
    """The first launch of a kernel. Kernels have not imported torch."""

    def first(pause: float) -> float:
        with kernel() as made:
            began = time.perf_counter()
            _run(made, "%load_ext nbproc")
            time.sleep(pause)
            took = _run(made, CELL)
            return took if pause else (time.perf_counter() - began) * 1000

    contenders: dict[str, Callable[[], float] | str] = {
        "nbproc, %load_ext and the first cell at once": lambda: first(0.0),
        "nbproc, the first cell 4 s after %load_ext": lambda: first(4.0),
        "python -c 'import torch'": lambda: 1000 * _command("import torch"),
    }
    return [Table("To the end of the first cell", "1.2x of importing torch", in_turn(contenders, 1 if quick else 7))]


def _command(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - began


def b4(quick: bool) -> list[Table]:
    """What importing costs, in new processes, and what loading the extension costs in a new kernel."""

    def importing(name: str) -> float:
        return 1000 * script(f"t = time.perf_counter(); import {name}; tell(time.perf_counter() - t)")

    def in_kernel(cell: str) -> float:
        with kernel() as made:
            return _run(made, cell)

    times = 2 if quick else 9
    imports = {"import nbproc": lambda: importing("nbproc"), "import ipywidgets": lambda: importing("ipywidgets")}
    cells = {
        "%load_ext nbproc": lambda: in_kernel("%load_ext nbproc"),
        "import ipywidgets": lambda: in_kernel("import ipywidgets"),
    }
    return [
        Table("import", "not slower than ipywidgets", in_turn(imports, times)),
        Table("The cell %load_ext nbproc", "under 200 ms", in_turn(cells, 1 if quick else 7)),
        Table(
            "The next cells after %load_ext nbproc, while the server imports torch",
            "no slower than before",
            _next_cells(quick),
        ),
    ]


def _next_cells(quick: bool) -> dict[str, list[float] | str]:
    work = "sum(range(3_000_000))"
    with kernel() as made:
        before = [_run(made, work) for _ in range(2 if quick else 15)]
        _run(made, "%load_ext nbproc")
        return {"after": [_run(made, work) for _ in range(2 if quick else 10)], "before": before}


_DDP = f"""%%spawn -n 4 --as steps
import sys; sys.path.insert(0, {str(HERE)!r})
import work
work.ddp_first_step(rank)"""


def ddp(quick: bool) -> list[Table]:
    """What DistributedDataParallel costs a rank before its first step is done: CPU time, with four ranks."""
    with kernel("%load_ext nbproc", CELL) as made:
        _run(made, _DDP)
        steps = made.ask("list(steps.return_values.values())")
    names = ("wrapping the model", "the first step", "the second step")
    results = {name: [1000 * one[number] for one in steps] for number, name in enumerate(names)}
    return [Table("CPU time of a rank", "known, and decided what to do about it", results)]
