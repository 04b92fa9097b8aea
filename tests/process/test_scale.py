"""256 ranks of a trivial function start, finish and leave nothing, also where few files may be open."""

from __future__ import annotations

from pathlib import Path

import plain
import pytest

_MANY = """
import os, threading
import nbproc, psutil
def square(rank):
    print("rank", rank)
    return rank * rank
if __name__ == "__main__":
    one = nbproc.start_processes("one", square, {0: (0,)}, redirects=nbproc.Std.ALL)
    one.wait(), one.pids()
    before = len(os.listdir("/proc/self/fd"))
    ctx = nbproc.start_processes("many", square, {rank: (rank,) for rank in range(256)}, redirects=nbproc.Std.ALL)
    values = ctx.wait().return_values
    pids = ctx.pids()
    print(len(values), sum(values.values()) == sum(rank * rank for rank in range(256)), len(set(pids.values())))
    print(sum(open(path).read() == f"rank {rank}\\n" for rank, path in ctx.stdouts.items()))
    print(sum(psutil.pid_exists(pid) for pid in pids.values()), threading.active_count())
    del ctx, values
    print(len(os.listdir("/proc/self/fd")) <= before)
"""


@pytest.mark.slow
def test_256_ranks(tmp_path: Path) -> None:
    assert plain.lines(tmp_path, _MANY) == ["256 True 256", "256", "0 1", "True"]


@pytest.mark.slow
def test_256_ranks_where_1024_files_may_be_open(tmp_path: Path) -> None:
    assert plain.lines(tmp_path, _MANY, limits="-n 1024")[0] == "256 True 256"
