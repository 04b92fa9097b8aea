"""What is used while nothing happens: B11."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
from cells import _run, kernel
from measure import Table, memory


def b11(quick: bool) -> list[Table]:
    """Memory and processor time of ranks that stand by, of a view whose run has ended, of a run that says nothing."""
    seconds = 1.0 if quick else 5.0
    count = 4
    with kernel("%load_ext nbproc") as made:
        time.sleep(1 if quick else 15)
        me = psutil.Process(made.pid)
        bare = _use([me], seconds)
        _run(made, f"%%spawn -n {count}\n1")
        time.sleep(1 if quick else 3)
        panel = _use([me], seconds)
        with_them = sum(memory(one.pid) for one in me.children(recursive=True))
        ranks = [one for one in me.children(recursive=True) if one.ppid() != me.pid]
        standing = _use(ranks, seconds)
        _run(made, "from nbproc.ranks import standby; standby.close()")
        psutil.wait_procs(ranks, 10)
        without = sum(memory(one.pid) for one in me.children(recursive=True))
        _run(made, f"%%spawn -n {count} --detach\nimport time; time.sleep({seconds + 3})")
        time.sleep(1)
        quiet = _use([me], seconds)
    each = (with_them - without) / max(1, len(ranks))
    wakes = {
        "a finished run's view, with ranks that stand by": [panel[0]],
        "a kernel with nothing": [bare[0]],
        "a run that says nothing": [quiet[0]],
        f"{len(ranks)} ranks that stand by, together": [standing[0]],
    }
    cpu: dict[str, Any] = {
        name: [value] for name, value in zip(wakes, (panel[1], bare[1], quiet[1], standing[1]), strict=True)
    }
    facts = {"fork server, guardian and ranks together": f"{with_them:.0f} MB; without ranks {without:.0f} MB"}
    return [
        Table("Memory of a rank that stands by", "under 10 MB", {"nbproc": [each]}, "MB", facts),
        Table("Wake-ups of the kernel", "at most 20 a second more than nothing", wakes, "/s"),
        Table("Processor time", "nothing", cpu, "ms a second"),
    ]


def _use(processes: list[psutil.Process], seconds: float) -> tuple[float, float]:
    """Return wake-ups and milliseconds of CPU time, a second."""

    def now() -> tuple[int, float]:
        wakes = sum(_wakes(one.pid) for one in processes)
        return wakes, sum(sum(one.cpu_times()[:2]) for one in processes)

    before = now()
    time.sleep(seconds)
    after = now()
    return (after[0] - before[0]) / seconds, 1000 * (after[1] - before[1]) / seconds


def _wakes(pid: int) -> int:
    """Return the voluntary context switches of all threads of a process."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/status") as status:
                total += next(int(line.split()[1]) for line in status if line.startswith("voluntary"))
        except OSError:
            continue
    return total
