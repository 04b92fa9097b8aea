"""S25: ``daemon=True`` is honoured; by default ranks may have children, and launch ranks, of their own."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

import nbproc
from victims import alive

METHODS = ("forkserver", "spawn", "fork")
method = pytest.mark.parametrize("start_method", METHODS)


@method
def test_by_default_a_rank_may_have_children(start_method: str, tmp_path: Path) -> None:
    nbproc.spawn(jobs.start_child, (tmp_path,), 2, start_method=start_method)
    assert (tmp_path / "1").read_text() == "child"


@method
def test_a_daemon_may_have_none(start_method: str, tmp_path: Path) -> None:
    with pytest.raises(nbproc.ProcessRaisedException, match="daemonic processes are not allowed to have children"):
        nbproc.spawn(jobs.start_child, (tmp_path,), 1, daemon=True, start_method=start_method)


@method
def test_a_daemon_may_launch_no_ranks(start_method: str) -> None:
    with pytest.raises(nbproc.ProcessRaisedException, match="daemonic processes are not allowed to have children"):
        nbproc.spawn(jobs.launch_as_daemon, nprocs=1, daemon=True, start_method=start_method)


@method
def test_data_loaders_with_workers_run_in_ranks(start_method: str, tmp_path: Path) -> None:
    nbproc.spawn(jobs.load_data, (tmp_path,), 1, start_method=start_method)
    assert (tmp_path / "0").read_text() == "28"


@method
def test_a_run_inside_a_run(start_method: str, tmp_path: Path) -> None:
    nbproc.spawn(jobs.launch, (tmp_path, start_method), 1, start_method=start_method)
    assert {path.name: path.read_text().split()[0] for path in tmp_path.iterdir()} == {"0": "0", "1": "0"}


@method
def test_ranks_of_a_rank_that_is_killed_go_with_it(start_method: str, tmp_path: Path) -> None:
    with pytest.raises(nbproc.ProcessExitedException, match="SIGTERM"):
        nbproc.spawn(jobs.launch_and_die, (tmp_path, start_method), 1, start_method=start_method)
    pids = (tmp_path / "pids").read_text().split()
    jobs.vanish(pids)
    assert not any(alive(pid) for pid in pids)
