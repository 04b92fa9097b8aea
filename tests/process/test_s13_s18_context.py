"""Rows S13 to S18: the context, what it leaves, and how ranks are started."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.numa.binding as binding

import nbproc
import victims
from nbproc import RunState, Std, start_processes
from nbproc.states import RankState

METHODS = ("forkserver", "spawn", "fork")
KINDS = ("function", "executable")


def sleeper(kind: str, seconds: float) -> tuple[Any, tuple[Any, ...]]:
    return (time.sleep, (seconds,)) if kind == "function" else ("sleep", (seconds,))


# ---------------------------------------------------------------- S13


@pytest.mark.parametrize("kind", KINDS)
def test_s13_wait_polls_waits_and_waits_for_ever(kind: str) -> None:
    entrypoint, args = sleeper(kind, 0.5)
    context = start_processes("sleep", entrypoint, args, nprocs=2)
    assert context.wait(0) is None
    assert context.wait(timeout=0.05, period=0.01) is None
    assert context.wait(timeout=0.05, period=60) is None
    result = context.wait(-1, 60)
    assert result is not None
    assert result.return_values == {0: None, 1: None}
    assert context.wait(0) is result
    assert context.wait() is result
    assert context.result() is result


def test_s13_the_end_is_noticed_when_it_happens() -> None:
    start_processes("n", victims.rank, nprocs=1).result()
    began = time.monotonic()
    start_processes("n", victims.rank, nprocs=1).wait(period=60)
    assert time.monotonic() - began < 5


def test_s13_all_or_nothing() -> None:
    args = {0: ("give", 1), 1: ("hang",), 2: ("raise_value_error",)}
    context = start_processes("n", victims.either, args)
    result = context.wait()
    assert result is not None
    assert result.return_values == {}
    assert list(result.failures) == [2]
    states = [rank.state for rank in context.snapshot().ranks]
    assert states[1:] == [RankState.STOPPED, RankState.FAILED]
    assert states[0] in (RankState.SUCCEEDED, RankState.STOPPED)


def go_on_when(context: nbproc.PContext, file: Path, *ranks: int) -> None:
    """Make a file as soon as these ranks have succeeded."""

    def look(news: object) -> None:
        if isinstance(news, nbproc.Snapshot) and all(news.ranks[i].state is RankState.SUCCEEDED for i in ranks):
            file.touch()

    context.subscribe(look)
    look(context.snapshot())


def test_s13_what_some_ranks_returned_is_kept(tmp_path: Path) -> None:
    context = start_processes("n", victims.give_or_raise, {i: (i, tmp_path / "go") for i in range(3)})
    go_on_when(context, tmp_path / "go", 0, 1)
    result = context.wait()
    assert result is not None
    assert (result.return_values, result.partial_values) == ({}, {0: 0, 1: 10})
    with pytest.raises(KeyError, match=r"not all ranks succeeded; what rank 1 returned is in partial_values\[1\]"):
        result[1]


def test_s13_programs_that_succeeded_beside_one_that_failed(tmp_path: Path) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; exit 3"
    context = start_processes("n", "sh", {0: ("-c", "exit 0"), 1: ("-c", wait)})
    go_on_when(context, tmp_path / "go", 0)
    result = context.wait()
    assert result is not None
    assert (result.return_values, result.partial_values) == ({}, {0: None})


@pytest.mark.parametrize("kind", KINDS)
def test_s13_close_ends_all_ranks_and_waits_until_they_are_gone(kind: str) -> None:
    entrypoint, args = sleeper(kind, 600)
    context = start_processes("sleep", entrypoint, args, nprocs=2)
    pids = context.pids()
    assert list(pids) == [0, 1]
    assert all(victims.alive(pid) for pid in pids.values())
    context.close()
    assert not any(victims.alive(pid) for pid in pids.values())
    snapshot = context.snapshot()
    assert snapshot.state is RunState.STOPPED
    assert [rank.exitcode for rank in snapshot.ranks] == [-signal.SIGTERM] * 2
    result = context.wait()
    assert result is not None
    assert not result.is_failed()
    context.close()  # again: nothing happens


def test_s13_close_with_a_signal_and_a_timeout(tmp_path: Path) -> None:
    text = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGHUP, lambda *_: sys.exit(9))\nprint('ready', flush=True)\ntime.sleep(600)\n"
    program = victims.program(tmp_path / "p", text)
    for number, (how, code) in enumerate([({"death_sig": signal.SIGHUP}, 9), ({"timeout": 0.1}, -signal.SIGKILL)]):
        context = start_processes("n", program, nprocs=1, log_dir=tmp_path / str(number), redirects=Std.OUT)
        victims.first_line(tmp_path / str(number) / "0" / "stdout.log")
        context.close(**how)  # type: ignore[arg-type]
        assert context.snapshot().ranks[0].exitcode == code
        assert context.snapshot().state is RunState.STOPPED


@pytest.mark.parametrize("kind", KINDS)
def test_s13_contexts_are_constructed_in_the_pages_order_and_started(kind: str, tmp_path: Path) -> None:
    specs = nbproc.DefaultLogsSpecs(str(tmp_path), Std.OUT)
    context: nbproc.PContext
    if kind == "function":
        context = nbproc.MultiprocessContext("n", victims.rank, {0: (), 1: ()}, {0: {}, 1: {}}, "spawn", specs)
    else:
        context = nbproc.SubprocessContext("n", "true", {0: (), 1: ()}, {0: {}, 1: {}}, specs)
    assert context.snapshot().state is RunState.CREATED
    assert context.pids() == {}
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="was not started"):
        context.wait()
    context.close()
    context.start()
    assert context.result().return_values == ({0: 0, 1: 1} if kind == "function" else {0: None, 1: None})
    assert Path(context.stdouts[0]).name == "stdout.log"


def test_s13_pcontext_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        nbproc.PContext("n", victims.rank, {0: ()}, {0: {}}, nbproc.DefaultLogsSpecs())  # type: ignore[abstract]


def test_s13_a_context_of_the_wrong_kind_is_refused() -> None:
    specs = nbproc.DefaultLogsSpecs()
    with pytest.raises(TypeError, match="needs a function"):
        nbproc.MultiprocessContext("n", "true", {0: ()}, {0: {}}, "spawn", specs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path of an executable"):
        nbproc.SubprocessContext("n", victims.rank, {0: ()}, {0: {}}, specs)  # type: ignore[arg-type]


def test_s13_leaving_a_with_block_stops_what_still_runs() -> None:
    with start_processes("n", victims.hang, nprocs=2) as context:
        pids = context.pids()
        assert context.snapshot().state is RunState.RUNNING
    assert context.snapshot().state is RunState.STOPPED
    assert not any(victims.alive(pid) for pid in pids.values())
    with pytest.raises(KeyError, match="mine"), start_processes("n", victims.hang, nprocs=1) as context:
        raise KeyError("mine")
    assert context.snapshot().state is RunState.STOPPED


def test_s13_stop_asks_and_says_where_the_ranks_were() -> None:
    context = start_processes("n", victims.hang, nprocs=2, redirects=Std.ALL)
    context.stop()
    assert context.wait() is not None
    snapshot = context.snapshot()
    assert snapshot.state is RunState.STOPPED
    assert snapshot.headline.startswith("stopped by you in ")
    assert snapshot.headline.endswith("nothing left running")
    with pytest.raises(nbproc.SpawnError, match="stopped"):
        context.result()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_s13_a_rank_that_had_to_be_killed_says_where_it_was(how: str, tmp_path: Path) -> None:
    context = start_processes("n", victims.ignore_all, nprocs=2, log_dir=tmp_path, redirects=Std.OUT, grace=0.05)
    for rank in range(2):
        victims.first_line(tmp_path / str(rank) / "stdout.log")
    getattr(context, how)()
    assert context.wait() is not None
    for rank in context.snapshot().ranks:
        assert rank.state is RankState.STOPPED
        assert rank.exitcode == -signal.SIGKILL
        assert rank.words.startswith("stopped at hang, victims.py line ")


def test_s13_a_timeout_stops_the_run() -> None:
    context = start_processes("n", victims.hang, nprocs=1, timeout=0.2, grace=1)
    assert context.wait() is not None
    assert context.timed_out
    assert "timed out after 0.2 s, stopped in" in context.snapshot().headline


def test_s13_a_snapshot_is_a_value() -> None:
    context = start_processes("n", victims.hang, nprocs=2)
    snapshot = context.snapshot()
    assert snapshot.state is RunState.RUNNING
    assert [rank.pid for rank in snapshot.ranks] == list(context.pids().values())
    assert all(rank.started is not None and rank.ended is None and rank.exitcode is None for rank in snapshot.ranks)
    with pytest.raises(AttributeError):
        snapshot.state = RunState.FAILED  # type: ignore[misc]
    context.close()
    assert snapshot.state is RunState.RUNNING
    later = context.snapshot()
    assert all(rank.ended is not None and rank.exitcode is not None for rank in later.ranks)


def test_s13_a_listener_is_told_of_every_change_and_may_fail() -> None:
    states: list[RunState] = []

    def listen(event: Any) -> None:
        states.append(event.state)
        raise RuntimeError("a listener of the user's")

    context = nbproc.MultiprocessContext("n", victims.rank, {0: ()}, {0: {}}, "fork", nbproc.DefaultLogsSpecs())
    stop = context.subscribe(listen)
    context.start()
    context.result()
    context.close()
    assert list(dict.fromkeys(states)) == [RunState.STARTING, RunState.RUNNING, RunState.SUCCEEDED]
    stop()


@pytest.mark.slow
def test_s13_a_finished_run_holds_no_process_thread_or_descriptor() -> None:
    """200 runs, all contexts kept."""

    def count() -> tuple[int, int, int]:
        gc.collect()
        me = psutil.Process()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(me.children(recursive=True))

    def one() -> nbproc.PContext:
        context = start_processes("n", victims.rank, nprocs=1)
        context.result()
        context.close()
        return context

    kept = [one()]
    before = count()
    memory = psutil.Process().memory_info().rss
    kept += [one() for _ in range(200)]
    assert count() == before
    assert psutil.Process().memory_info().rss - memory < 40 << 20
    assert len({context.snapshot().ranks[0].pid for context in kept}) == 201


def test_s13_runs_of_executables_hold_nothing_either() -> None:
    def one() -> nbproc.PContext:
        context = start_processes("n", "true", nprocs=2, tee=Std.ALL)
        context.result()
        context.close()
        return context

    kept = [one()]
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    known = {child.pid for child in psutil.Process().children(recursive=True)}
    kept += [one() for _ in range(50)]
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= known


@pytest.mark.parametrize("kind", KINDS)
def test_s13_when_wait_returned_nobody_finds_a_process_or_a_follower(kind: str) -> None:
    entrypoint, args = sleeper(kind, 0.01)
    for _ in range(5):
        context = start_processes("n", entrypoint, args, nprocs=2, tee=Std.ALL)
        context.wait()
        assert not any(victims.alive(pid) for pid in context.pids().values())
        assert context._stderr_tail.stopped()  # type: ignore[union-attr]


# ---------------------------------------------------------------- S14


def test_s14_everything_is_in_rank_order() -> None:
    args = {3: ("give", 3), 1: ("give", 1), 0: ("give", 0), 2: ("give", 2)}
    result = start_processes("n", victims.either, args).result()
    assert list(result.return_values) == list(result.stdouts) == list(result.stderrs) == [0, 1, 2, 3]
    assert list(result.return_values.values()) == [0, 1, 2, 3]
    assert [result[rank] for rank in range(4)] == list(result) == [0, 1, 2, 3]
    failed = start_processes("n", victims.raise_value_error, nprocs=3).wait()
    assert failed is not None
    assert list(failed.failures) == sorted(failed.failures)


def test_s14_without_a_redirect_the_paths_are_empty() -> None:
    result = start_processes("n", victims.rank, nprocs=2).result()
    assert (result.stdouts, result.stderrs) == ({0: "", 1: ""}, {0: "", 1: ""})
    assert not result.is_failed()


def test_s14_return_values_are_a_dict() -> None:
    values = start_processes("n", victims.rank, nprocs=2).result().return_values
    assert isinstance(values, dict)
    assert values == {0: 0, 1: 1}
    assert dict(values) == {0: 0, 1: 1}
    assert {**values} == {0: 0, 1: 1}
    assert repr(values) == "{0: 0, 1: 1}"
    assert pickle.loads(pickle.dumps(values)) == {0: 0, 1: 1}
    assert values.pop(0) == 0
    assert values.get(0, "none") == "none"
    assert (len(values), list(values.items()), 1 in values) == (1, [(1, 1)], True)


@pytest.mark.parametrize("read", [dict, repr, lambda values: {**values}, lambda values: list(values.values())])
def test_s14_values_are_read_however_they_are_asked_for(read: Any) -> None:
    values = start_processes("n", victims.rank, nprocs=2).result().return_values
    assert str(read(values)).count("None") == 0


def test_s14_large_values_arrive() -> None:
    result = start_processes("n", victims.large, (200_000,), nprocs=4).result()
    assert [len(value) for value in result.return_values.values()] == [200_000] * 4


def test_s14_a_value_that_does_not_unpickle_leaves_the_run_succeeded() -> None:
    args = {0: ("give_at_unpickle", "raise_value_error"), 1: ("give", "fine")}
    context = start_processes("n", victims.either, args)
    result = context.wait()
    assert result is not None
    assert context.snapshot().state is RunState.SUCCEEDED
    with pytest.raises(
        nbproc.ResultError, match=r"rank 0, a victims.AtUnpickle, cannot be read: .*ValueError: bad batch"
    ) as raised:
        result.return_values[0]
    assert (raised.value.rank, raised.value.type_name) == (0, "victims.AtUnpickle")
    assert result.return_values[1] == "fine"
    assert "1: 'fine'" in repr(result)


# ---------------------------------------------------------------- S15


def test_s15_all_failed_ranks_with_all_that_is_known() -> None:
    args = {0: ("raise_value_error",), 1: ("os_exit", 7), 2: ("kill_myself", signal.SIGKILL)}
    context = start_processes("n", victims.either, args, grace=5, redirects=Std.ALL)
    result = context.wait()
    assert result is not None
    failures = result.failures
    if set(failures) != {0, 1, 2}:  # one of them was stopped before it came to its own end
        stopped = [rank.rank for rank in context.snapshot().ranks if rank.state is RankState.STOPPED]
        assert set(failures) | set(stopped) == {0, 1, 2}
    for rank, failure in failures.items():
        assert failure.local_rank == rank
        assert failure.pid == context.pids()[rank]
        assert failure.exitcode == (1, 7, -9)[rank]
        assert failure.signal_name() == ("<N/A>", "<N/A>", "SIGKILL")[rank]
        assert abs(failure.timestamp - time.time()) < 60
        assert failure.timestamp_isoformat()[:2] == "20"
    assert context.snapshot().first_failed in failures
    with pytest.raises(nbproc.SpawnError) as raised:
        context.result()
    assert raised.value.failures == failures
    assert raised.value.result is result


def test_s15_stderrs_last_lines_are_in_the_explanation() -> None:
    context = start_processes("n", victims.os_exit, (3,), nprocs=1, redirects=Std.ERR)
    with pytest.raises(nbproc.SpawnError, match=r"(?s)exited with code 3 before returning.*leaving"):
        context.result()
    assert context.failures[0].stderr_tail == ("leaving",)


def test_s15_child_failed_error_names_the_first(tmp_path: Path) -> None:
    result = start_processes("n", victims.rank_1, ("raise_value_error",), nprocs=2).wait()
    assert result is not None
    error = nbproc.ChildFailedError("trainer", result.failures)
    assert error.get_first_failure() == (1, result.failures[1])
    assert "trainer FAILED" in str(error)


# ---------------------------------------------------------------- S16


@pytest.mark.parametrize("method", METHODS)
def test_s16_functions_of_all_kinds(method: str) -> None:
    import functools

    number = 20

    def closure(add: int) -> int:
        return number + add

    class Callable:
        def __init__(self, base: int) -> None:
            self.base = base

        def __call__(self, add: int) -> int:
            return self.base + add

        def method(self, add: int) -> int:
            return self.base + add

    for function in (closure, lambda add: 20 + add, functools.partial(closure), Callable(20), Callable(20).method):
        context = start_processes("n", function, {0: (1,), 1: (2,)}, start_method=method)
        assert context.result().return_values == {0: 21, 1: 22}
        assert context.start_method == method  # type: ignore[attr-defined]


SCRIPT = """
import nbproc, os, sys

FACTOR = 3

class Thing:
    def __init__(self, n):
        self.n = n

def work(n):
    return Thing(n * FACTOR)

ctx = nbproc.start_processes("main", work, {0: (1,), 1: (2,)}, start_method=sys.argv[1])
values = ctx.result().return_values
print([type(value) is Thing for value in values.values()], [value.n for value in values.values()])
"""


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_s16_functions_of_a_script(method: str, guarded: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = (
        SCRIPT.replace("\nctx", "\nif __name__ == '__main__':\n    ctx")
        .replace("\nvalues", "\n    values")
        .replace("\nprint", "\n    print")
        if guarded
        else SCRIPT
    )
    script.write_text(text)
    done = subprocess.run([sys.executable, script, method], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[True, True] [3, 6]\n", "")


def test_s16_the_default_is_forkserver_at_every_door() -> None:
    import inspect

    for door in (start_processes, nbproc.spawn):
        assert inspect.signature(door).parameters["start_method"].default == "forkserver"
    context = start_processes("n", victims.rank, nprocs=1)
    assert context.start_method == "forkserver"  # type: ignore[attr-defined]
    context.result()


def test_s16_an_explicit_method_is_honoured() -> None:
    me = os.getpid()
    parents = {m: start_processes("n", os.getppid, nprocs=1, start_method=m).result()[0] for m in METHODS}
    assert parents["fork"] == parents["spawn"] == me
    assert parents["forkserver"] != me
    modules = {m: start_processes("n", victims.has_modules, nprocs=1, start_method=m).result()[0] for m in METHODS}
    assert "pytest" in modules["fork"]
    assert "pytest" not in modules["spawn"]


# ---------------------------------------------------------------- S17


def numactl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "numactl"
    program.parent.mkdir()
    victims.program(program, "import os, sys\nprint(sys.argv[1], flush=True)\nos.execvp(sys.argv[2], sys.argv[2:])\n")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_s17_torch_still_has_what_it_applies_the_options_with() -> None:
    assert callable(binding._maybe_apply_numa_binding_to_current_process)
    assert callable(binding._maybe_wrap_command_args_with_numa_binding)


def test_s17_functions_are_bound_as_torch_binds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numactl(tmp_path, monkeypatch)
    available = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(
        binding, "_get_logical_cpus_to_bind_to", lambda gpu_index, numa_options: {available[gpu_index % len(available)]}
    )
    options = binding.NumaOptions(binding.AffinityMode.NODE)
    context = start_processes("n", os.sched_getaffinity, {0: (0,), 1: (0,)}, start_method="fork", numa_options=options)
    assert context.result().return_values == {rank: {available[rank % len(available)]} for rank in range(2)}


def test_s17_executables_are_bound_as_torch_binds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numactl(tmp_path, monkeypatch)
    monkeypatch.setattr(binding, "_get_logical_cpus_to_bind_to", lambda gpu_index, numa_options: {gpu_index})
    options = binding.NumaOptions(binding.AffinityMode.SOCKET)
    result = start_processes("n", "echo", {0: "a", 1: "b"}, numa_options=options, redirects=Std.OUT).result()
    texts = [Path(path).read_text() for path in result.stdouts.values()]
    assert texts == ["--physcpubind=0\na\n", "--physcpubind=1\nb\n"]


@pytest.mark.parametrize("kind", KINDS)
def test_s17_where_it_cannot_be_the_error_says_why(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binding, "_get_logical_cpus_to_bind_to", lambda gpu_index, numa_options: {gpu_index})
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "numactl" else which(name, **more))
    options = binding.NumaOptions(binding.AffinityMode.NODE)
    entrypoint = victims.rank if kind == "function" else "true"
    with pytest.raises(nbproc.NbprocError, match="numactl CLI is required for NUMA binding"):
        start_processes("n", entrypoint, nprocs=2, numa_options=options, start_method="fork").result()


def test_s17_torchs_own_fallback_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    options = binding.NumaOptions(binding.AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    context = start_processes("n", victims.rank, nprocs=2, numa_options=options, redirects=Std.ALL)
    assert context.result().return_values == {0: 0, 1: 1}


# ---------------------------------------------------------------- S18


@pytest.mark.parametrize("kind", KINDS)
def test_s18_off_the_main_thread_it_works_the_same_without_a_warning(
    kind: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    results: list[nbproc.RunProcsResult] = []

    def launch() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            entrypoint, args = sleeper(kind, 0.01)
            results.append(start_processes("n", entrypoint, args, nprocs=2).result())

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert [result.return_values for result in results] == [{0: None, 1: None}]
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_s18_a_run_outlives_the_thread_that_started_it() -> None:
    contexts: list[nbproc.PContext] = []
    thread = threading.Thread(target=lambda: contexts.append(start_processes("n", victims.after, (0.3, 5), nprocs=2)))
    thread.start()
    thread.join()
    assert contexts[0].result().return_values == {0: 5, 1: 5}


@pytest.mark.parametrize("method", METHODS)
def test_s18_start_twice_is_an_error(method: str) -> None:
    context = start_processes("n", victims.rank, nprocs=1, start_method=method)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="was started before; make a new context"):
            context.start()
    assert context.result().return_values == {0: 0}
    with pytest.raises(ValueError, match="was started before"):  # the class that torch raises
        context.start()


def test_s18_two_runs_at_once_and_a_run_inside_a_run() -> None:
    contexts = [start_processes(f"n{n}", victims.after, (0.1, n), nprocs=2) for n in range(3)]
    assert [context.result()[1] for context in contexts] == [0, 1, 2]
    inner = start_processes("outer", victims.launch_inside, (2,), nprocs=2).result()
    assert inner.return_values == {0: [0, 1], 1: [0, 1]}


def test_s18_from_asyncio() -> None:
    import asyncio

    async def launch() -> Any:
        context = start_processes("n", victims.rank, nprocs=2)
        return await asyncio.to_thread(context.result)

    assert asyncio.run(launch()).return_values == {0: 0, 1: 1}
