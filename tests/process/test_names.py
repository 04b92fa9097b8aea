"""What a list of processes shows: each process of a run is named for what it is."""

from __future__ import annotations

from pathlib import Path

import plain
import pytest

SCRIPT = """
    import os, sys, time
    import nbproc
    from nbproc.ranks import warden

    def comm(pid):
        return open(f"/proc/{pid}/comm").read().strip()

    def mine(rank):
        return comm(os.getpid()), comm(os.getppid())

    values = nbproc.start_processes("t", mine, {0: (0,), 1: (1,)}, start_method=sys.argv[1]).result().return_values
    print([name for name, _ in values.values()])
    if sys.argv[1] == "forkserver":
        print(values[0][1])
    deadline = time.monotonic() + 30
    while comm(warden.current().pid) != "nbproc guardian":
        assert time.monotonic() < deadline, comm(warden.current().pid)
        time.sleep(0.01)
    print("ok")
"""


@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_processes_are_named(start_method: str, tmp_path: Path) -> None:
    done = plain.run(tmp_path, SCRIPT, args=[start_method])
    server = ["nbproc server"] if start_method == "forkserver" else []
    assert done.stdout.splitlines() == [str(["nbproc rank 0", "nbproc rank 1"]), *server, "ok"], done.stderr


def test_one_that_stands_by_is_named(tmp_path: Path) -> None:
    script = """
        import psutil, time
        import nbproc
        from nbproc.ranks import client, standby

        nbproc.start_processes("t", abs, {0: (-1,)}).result()
        deadline = time.monotonic() + 30
        while not (waiting := psutil.Process(client.current().pid).children()) or {
            child.name() for child in waiting
        } != {"nbproc standby"}:
            assert time.monotonic() < deadline, waiting
            time.sleep(0.01)
        print("ok")
    """
    done = plain.run(tmp_path, script, env={"NBPROC_STANDBY": "2"})
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_where_there_is_no_proc_nothing_is_named(tmp_path: Path) -> None:
    script = """
        import nbproc

        def mine(rank):
            return open("/proc/self/comm").read().strip()

        print(nbproc.start_processes("t", mine, {0: (0,)}).result().return_values[0].startswith("nbproc"))
    """
    assert plain.lines(tmp_path, script, env={"NBPROC_PORTABLE": "1"}) == ["False"]
