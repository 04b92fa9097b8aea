"""D3: ranks that stand by are for their job as new processes are, few, small, and gone with what they were made for."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plain
import psutil
import pytest

import nbproc
from leftovers import GRACE
from nbproc.ranks import client, pages, process, standby, wire


@pytest.fixture(autouse=True)
def standing_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ranks stand by, whatever the environment says, and none of an earlier test."""
    monkeypatch.delenv(standby.VARIABLE, raising=False)
    standby.close()
    yield
    standby.close()


def stand(count: int) -> list[psutil.Process]:
    """Have so many ranks stand by, and return when they are there."""
    standby.fill(count)
    assert standby._pool is not None
    found = []
    for rank in standby._pool.ranks:
        while rank.identity is None:
            select.select([rank], [], [], 60)
            rank.news()
        found.append(psutil.Process(rank.identity.pid))
    return found


def run(function: Any, count: int = 2) -> tuple[dict[int, Any], set[int]]:
    """Run a function in some ranks; return their values and their process ids."""
    ctx = nbproc.start_processes("standby", function, args=(), nprocs=count)
    result = ctx.wait()
    assert result is not None
    assert not result.is_failed(), result.failures
    return dict(result.return_values), set(ctx.pids().values())


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=GRACE)[1]


def test_a_run_takes_the_ranks_that_stand_by_and_the_next_has_others() -> None:
    waiting = {process.pid for process in stand(2)}
    _, first = run(os.getpid)
    _, second = run(os.getpid)
    assert first == waiting
    assert not first & second


def test_after_a_run_as_many_stand_by_as_it_had() -> None:
    stand(1)
    run(os.getpid, 3)
    assert standby.count() == 3


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(standby.VARIABLE, "2")
    assert len(stand(50)) == 2
    monkeypatch.delenv(standby.VARIABLE)
    assert len(stand(50)) == standby.DEFAULT_LIMIT


def test_one_setting_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(standby.VARIABLE, "0")
    run(os.getpid)
    standby.fill(4)
    assert standby.count() == 0


def test_none_stand_by_inside_a_rank() -> None:
    def inside() -> tuple[int, int]:
        run(os.getpid, 2)
        return standby.limit(), standby.count()

    values, _ = run(inside)
    assert set(values.values()) == {(0, 0)}


def test_they_take_little_memory() -> None:
    ranks = stand(1)
    server = psutil.Process(client.current().pid)
    run(os.getpid, 1)  # not the ones that were made before the server had seen to its memory
    ranks = stand(6)
    run(os.getpid, 1)

    def memory() -> int:
        return sum(one.memory_full_info().pss for one in [server, *server.children()])

    with_them = memory()
    ranks = server.children()
    standby.close()
    assert gone(ranks)
    assert (with_them - memory()) / len(ranks) < 20e6  # about 8 MB; this does not judge megabytes


_PROBE = """
def probe():
    import atexit, ctypes, faulthandler, gc, json, locale, logging, multiprocessing, os, resource, signal, sys, tempfile
    import threading, time, types, warnings, weakref
    import torch, threadpoolctl
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
    kinds = sorted(os.path.basename(target.partition(":")[0]) for target in descriptors.values())
    return {
        "environment": {k: v for k, v in os.environ.items()
                        if not k.startswith(("NBPROC_RUN", "MASTER_PORT", "TORCHELASTIC_", "KMP_"))},
        "cwd": os.getcwd(), "path": sys.path, "argv": sys.argv, "umask": oct(os.umask(0)),
        "limits": [resource.getrlimit(w) for w in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC)],
        "affinity": sorted(os.sched_getaffinity(0)), "nice": os.nice(0),
        "time zone": time.tzname, "locale": locale.setlocale(locale.LC_ALL),
        "threads": torch.get_num_threads(),
        "blas": [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"],
        "start method": multiprocessing.get_start_method(allow_none=True),
        "process": [multiprocessing.current_process().daemon, multiprocessing.parent_process() is None],
        "modules": sorted(sys.modules), "main": sorted(vars(sys.modules["__main__"])),
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "session": os.getsid(0) == os.getpid(), "python threads": threading.active_count(),
        "system threads": len(os.listdir("/proc/self/task")),
        "garbage": [gc.isenabled(), gc.get_threshold()], "faults": faulthandler.is_enabled(),
        "warnings": [str(one) for one in warnings.filters], "logging": [str(one) for one in logging.getLogger().handlers],
        "descriptors": kinds, "temporary": tempfile.gettempdir(), "hooks": atexit._ncallbacks(),
        "children": len(multiprocessing.active_children()),
        "recursion": sys.getrecursionlimit(), "finders": [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
        "dtype": str(torch.get_default_dtype()), "seeded": torch.initial_seed() != 0,
    }
"""

_COMPARE = (
    """
import json, os, resource, sys
os.environ.pop("NBPROC_STANDBY", None)
import nbproc
from nbproc.ranks import client, standby
"""
    + _PROBE
    + """
def run():
    ctx = nbproc.start_processes("p", probe, args=(), nprocs=2, redirects=nbproc.Std.ALL)
    values = ctx.wait().return_values
    return [values[i] for i in range(2)], sorted(ctx.pids().values())

if __name__ == "__main__":
    standby.fill(2)
    ranks = standby._pool.ranks
    import select
    for rank in ranks:
        while rank.identity is None:
            select.select([rank], [], [])
            rank.news()
    waiting = sorted(rank.identity.pid for rank in ranks)
    # all of this after they were made
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    os.environ.update(TZ="Asia/Tokyo", SOMETHING="new", OMP_NUM_THREADS="2")
    os.environ.pop("LANGUAGE", None)
    sys.path.insert(0, os.getcwd())
    sys.argv[:] = ["another", "command"]
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (777, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.nice(3)
    stood, pids = run()
    standby.close()
    os.environ["NBPROC_STANDBY"] = "0"
    client.close()
    new, _ = run()
    for one in [*stood, *new]:
        one["environment"].pop("NBPROC_STANDBY", None)
    print(json.dumps([waiting == pids, stood, new]))
"""
)


def test_for_the_job_it_is_as_a_new_process_is(tmp_path: Path) -> None:
    told = json.loads(plain.lines(tmp_path, _COMPARE)[-1])
    took_them, stood, new = told
    assert took_them
    for ours, fresh in zip(stood, new, strict=True):
        for name, value in fresh.items():
            assert ours[name] == value, name
    assert stood[0]["time zone"] == ["JST", "JST"]
    assert stood[0]["umask"] == "0o27"
    assert stood[0]["nice"] == os.nice(0) + 3
    assert stood[0]["limits"][0][0] == 777
    assert stood[0]["environment"]["SOMETHING"] == "new"
    assert stood[0]["threads"] == 2


def test_what_was_imported_ahead_left_nothing_but_modules(tmp_path: Path) -> None:
    """A fresh interpreter that imports the same modules has the same state in them, as far as it shows."""
    source = (
        _PROBE
        + """
import json, nbproc, os
def both():
    import sys
    return probe(), sorted(name for name in sys.modules if not name.startswith("nbproc"))
if __name__ == "__main__":
    found = {}
    for method in ("forkserver", "spawn"):
        ctx = nbproc.start_processes("p", both, args=(), nprocs=1, start_method=method, redirects=nbproc.Std.ALL)
        found[method] = ctx.wait().return_values[0]
    print(json.dumps([found["forkserver"][0], found["spawn"][0]]))
"""
    )
    forked, spawned = json.loads(plain.lines(tmp_path, source)[-1])
    # a new interpreter has imported less, and a library starts its threads when it is loaded; the rest is the same
    for name in set(forked) - {"modules", "hooks", "main", "descriptors", "finders", "system threads"}:
        assert forked[name] == spawned[name], name


def test_random_numbers_are_new_in_each_rank_and_run() -> None:
    def draw() -> tuple[float, float, float]:
        import random

        import numpy
        import torch

        return random.random(), float(numpy.random.rand()), float(torch.rand(1, dtype=torch.float64))

    drawn = []
    for _ in range(2):
        stand(2)
        drawn += list(run(draw)[0].values())
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == 4


def test_one_that_was_killed_is_noticed() -> None:
    first, second = stand(2)
    first.kill()
    assert gone([first])
    _, pids = run(os.getpid)
    assert first.pid not in pids
    assert second.pid in pids


def test_when_the_server_was_killed_its_ranks_are_not_used() -> None:
    ranks = stand(2)
    server = client.current().pid
    assert server is not None
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    _, pids = run(os.getpid)
    assert not pids & {rank.pid for rank in ranks}
    assert client.current().pid != server
    assert gone(ranks)


def test_when_the_server_is_renewed_the_old_ones_go() -> None:
    ranks = stand(2)
    client.close()
    run(os.getpid)
    assert gone(ranks)


def test_a_launch_that_is_interrupted_leaves_none_behind() -> None:
    from nbproc.launch import context_of
    from nbproc.plan import make_plan

    ranks = stand(2)

    def press_stop(_: object) -> None:
        raise KeyboardInterrupt

    ctx = context_of(make_plan("interrupted", os.getpid, (), nprocs=2))
    with pytest.raises(KeyboardInterrupt):
        ctx.start(begun=press_stop)
    assert standby._pool is not None
    kept = {rank.identity.pid for rank in standby._pool.ranks if rank.identity is not None}
    assert gone([rank for rank in ranks if rank.pid not in kept])
    assert standby.count() <= 2


def test_a_launch_that_fails_leaves_what_it_did_not_take() -> None:
    ranks = stand(2)
    with open(os.devnull) as cannot_be_sent, pytest.raises(nbproc.PayloadError):
        run(cannot_be_sent.read)
    assert all(rank.is_running() for rank in ranks)
    assert {rank.pid for rank in ranks} == run(os.getpid)[1]


def test_they_are_renewed_when_the_server_has_seen_to_itself() -> None:
    client.close()
    first = stand(2)
    assert standby._pool is not None
    standby._pool.renew(2)
    second = [psutil.Process(rank.identity.pid) for rank in standby._pool.ranks if rank.identity is not None]
    assert len(second) == 2
    assert gone(first)
    assert run(os.getpid)[1] == {rank.pid for rank in second}


def test_what_is_asked_for_later_goes_with_the_server() -> None:
    client.close()
    rank = process.Forked(server=client.current(), word=wire.LATER)
    os.kill(client.current().pid or 0, signal.SIGKILL)
    select.select([rank], [], [], 60)
    with pytest.raises(process.Lost):
        rank.news()
    rank.close()
    client.close()


def test_modules_that_a_notebooks_server_imports_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(standby.LATER_VARIABLE, raising=False)
    assert standby.later() == []
    monkeypatch.setenv(standby.LATER_VARIABLE, " pandas, scipy.stats,")
    assert standby.later() == ["+pandas", "+scipy.stats"]


def test_they_die_with_their_owner(tmp_path: Path) -> None:
    source = """
import os, signal
os.environ.pop("NBPROC_STANDBY", None)
import nbproc
from nbproc.ranks import client, standby
if __name__ == "__main__":
    nbproc.start_processes("p", os.getpid, args=(), nprocs=3).wait()
    standby.fill(3)
    import select
    for rank in standby._pool.ranks:
        while rank.identity is None:
            select.select([rank], [], [])
            rank.news()
    print(client.current().pid, *(rank.identity.pid for rank in standby._pool.ranks), flush=True)
    signal.pause()
"""
    with plain.started(tmp_path, source) as owner:
        assert owner.stdout is not None
        ranks = [psutil.Process(int(word)) for word in owner.stdout.readline().split()]
        assert len(ranks) == 4
        owner.kill()
        assert gone(ranks)


def test_large_pages_are_made_where_there_are_any_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    value = bytes(range(256)) * (16 << 12)
    for _ in zip(pages.enlarge(), range(20), strict=False):
        pass
    assert value == bytes(range(256)) * (16 << 12)
    monkeypatch.setenv("NBPROC_PORTABLE", "1")
    assert list(pages.enlarge()) == []
