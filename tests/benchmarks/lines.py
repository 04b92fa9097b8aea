"""Benchmarks of output: B8, B9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from cells import _run, kernel
from measure import HERE, Table, script

_FILE = """
import nbproc
def seconds():
    done = nbproc.start_processes("work", flood, {i: (i, A[1]) for i in range(A[0])}, redirects=nbproc.Std.ALL).wait()
    return max(done.return_values.values())
tell([1000 * seconds() for _ in range(A[2])])
"""
_TORCH_TEE = """
import tempfile
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
def seconds():
    ctx = start_processes("work", flood, {i: (i, A[1]) for i in range(A[0])}, {i: {} for i in range(A[0])},
                          DefaultLogsSpecs(tempfile.mkdtemp(), tee=Std.ALL), start_method="fork")
    return max(ctx.wait(period=0.01).return_values.values())
tell([1000 * seconds() for _ in range(A[2])])
"""
_SETUP = f"import sys, nbproc, time, psutil; sys.path.insert(0, {str(HERE)!r}); import work; me = psutil.Process()"
_FLOOD = """\
cpu, rss = sum(me.cpu_times()[:2]), me.memory_info().rss
ctx = nbproc.start_processes("work", work.flood, {{i: (i, {lines}) for i in range({ranks})}}, nprocs={ranks})
done = ctx.wait()
flooded = [1000 * max(done.return_values.values()), sum(me.cpu_times()[:2]) - cpu, (me.memory_info().rss - rss) / 1e6]"""
_POUR = """\
lags = []
def look(events):
    if not hasattr(events, "ranks"):
        now = time.time()
        lags.extend(now - float(e.text.split()[0]) for e in events if e.complete and e.text[:1].isdigit())
ctx = nbproc.start_processes("work", work.pour, {{i: (i, {rate}, {seconds}) for i in range({ranks})}}, nprocs={ranks})
stop = ctx.subscribe(look); ctx.wait(); stop()"""


def b8(quick: bool) -> list[Table]:
    """Ranks that write lines at full speed, in a kernel that shows them; and how far behind what is shown is."""
    lines, times = (20_000, 1) if quick else (1_000_000, 3)
    tables = []
    with kernel("%load_ext nbproc", _SETUP, "%%spawn -n 1\n1") as made:
        for ranks in (1, 4):
            ours, cpu, rss = [], [], []
            for _ in range(times):
                _run(made, _FLOOD.format(lines=lines, ranks=ranks))
                for values, one in zip((ours, cpu, rss), made.ask("flooded"), strict=True):
                    values.append(one)
            results: dict[str, Any] = {"nbproc, shown in a kernel": ours}
            results["the same, to files that nobody reads"] = script(_FILE, ranks, lines, times)
            if not quick:
                results["torch, tee"] = script(_TORCH_TEE, ranks, lines, 1)
            facts = {
                "CPU time of the kernel": f"{max(cpu):.2f} s at most",
                "memory of the kernel": f"{max(rss):.0f} MB more at most",
            }
            goal = "1.05x of nobody reading" if ranks < (os.cpu_count() or 1) else "reported"
            tables.append(
                Table(f"{ranks} x {lines:,} lines: until the ranks have written them", goal, results, facts=facts)
            )
        _run(made, _POUR.format(rate=5_000, seconds=1 if quick else 5, ranks=4))
        lags = made.ask("[lags[i] for i in range(0, len(lags), 1 + len(lags) // 1000)]")
    lag = [1000 * one for one in lags]
    tables.append(
        Table(
            "4 x 5,000 lines a second: behind", "under 200 ms", {"nbproc": lag}, facts={"worst": f"{max(lag):.0f} ms"}
        )
    )
    return tables


def b9(quick: bool) -> list[Table]:
    """100,000 lines at 20,000 a second, in JupyterLab in headless Chromium."""
    if quick:
        return []
    done = subprocess.run(
        [sys.executable, str(HERE / "view.py")], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1][:150] if done.stderr.strip() else f"exit code {done.returncode}"
        return [Table("The view", "lag under 200 ms", {"nbproc": f"not measured: {why}"})]
    seen, _ = json.JSONDecoder().raw_decode(done.stdout)
    facts = {name: str(value) for name, value in seen.items() if name not in ("lines", "rate", "ranks", "tab")}
    goal = "lag under 200 ms, the page blocked for less than 100 ms, bounded memory"
    return [Table("The last line, seen", goal, {"nbproc": [1000 * seen["lag of the last line, s"]]}, facts=facts)]
