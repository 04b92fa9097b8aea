"""Whatever happens to a rank, the run ends, and the user is told what it was: one table for all start methods."""

from __future__ import annotations

import os
import re
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nbproc
import victims
from nbproc.contexts import deadlines, multiprocess
from nbproc.ranks import client, process
from nbproc.states import RankState, RunState

METHODS = ("forkserver", "spawn", "fork")


@dataclass(frozen=True)
class Crash:
    """What a rank does, and what the user is told of it. ``words`` is a pattern for the whole line."""

    name: str
    how: tuple[Any, ...]
    words: str
    exitcode: int = 1
    shown: str = ""
    """What the explanation shows besides: the stack, the source line, the last lines of stderr."""


CRASHES = [
    Crash("raises", ("raise_value_error",), "ValueError: bad batch 17", shown='raise ValueError("bad batch 17")'),
    Crash("raises a class with an odd constructor", ("raise_odd_constructor",), "OddConstructor: code 7 at step 3"),
    Crash("raises what cannot be pickled", ("raise_unpicklable",), "Unpicklable: holds a lock"),
    Crash("raises what has no words", ("raise_str_raises",), "StrRaises: <no message: its str.. raised .*no words>"),
    Crash("raises a BaseException", ("raise_base_exception",), "Quiet: not an Exception"),
    Crash("raises 50 MB", ("raise_50_mb",), r"ValueError: begin x+ \.\.\."),
    Crash("raises from another", ("raise_chain",), "RuntimeError: outer", shown="KeyError: 'inner'"),
    Crash("recurses for ever", ("raise_deep",), "RecursionError: maximum recursion depth exceeded"),
    Crash("raises StopIteration", ("raise_stop_iteration",), "StopIteration"),
    Crash("raises KeyboardInterrupt", ("raise_keyboard_interrupt",), r"was interrupted \(KeyboardInterrupt\)"),
    Crash("sys.exit(3)", ("sys_exit", 3), "exited with code 3 before returning", 3),
    Crash("sys.exit(text)", ("sys_exit", "no data"), "exited with code 1 before returning: no data"),
    Crash("sys.exit(4) with threads", ("exit_while_threads_run", 4), "exited with code 4 before returning", 4),
    Crash("os._exit(0)", ("os_exit", 0), "exited with code 0 before returning", 0, shown="leaving"),
    Crash("os._exit(7)", ("os_exit", 7), "exited with code 7 before returning", 7, shown="leaving"),
    Crash("SIGKILL", ("kill_myself", 9), r"was killed by SIGKILL \((may have run )?out of memory\)", -9),
    Crash("SIGTERM", ("kill_myself", 15), r"was killed by SIGTERM \(from outside this run\)", -15),
    Crash("SIGINT", ("kill_myself", 2), r"was interrupted \(KeyboardInterrupt\)"),
    Crash("SIGSEGV", ("segfault",), r"was killed by SIGSEGV \(invalid memory .*\)", -11, shown="in segfault"),
    Crash("SIGSEGV in a thread", ("segfault_in_thread",), r"was killed by SIGSEGV \(.*\)", -11, shown="in segfault"),
    Crash("abort()", ("abort_in_c",), r"was killed by SIGABRT \(native code called abort\(\)\)", -6, "abort_in_c"),
    Crash("exits in pickling its result", ("give_at_pickle", "os_exit", 5), "exited with code 5 before returning", 5),
    Crash(
        "sys.exit in pickling its result", ("give_at_pickle", "sys_exit", 3), "exited with code 3 before returning", 3
    ),
    Crash("crashes in pickling its result", ("give_at_pickle", "segfault"), r"was killed by SIGSEGV \(.*\)", -11),
]

AT_UNPICKLE = [
    Crash("raises at unpickling", ("raise_value_error",), "ValueError: bad batch 17"),
    Crash("os._exit(6) at unpickling", ("os_exit", 6), "exited with code 6 before returning", 6),
    Crash("sys.exit(5) at unpickling", ("sys_exit", 5), "exited with code 5 before returning", 5),
    Crash("SIGSEGV at unpickling", ("segfault",), r"was killed by SIGSEGV \(.*\)", -11, "in segfault"),
    Crash("SIGKILL at unpickling", ("kill_myself", 9), r"was killed by SIGKILL \(.*\)", -9),
]


def check(context: nbproc.PContext, crash: Crash) -> None:
    """Rank 1 has crashed as told, rank 0 was stopped, and nothing else is claimed."""
    result = context.wait()
    assert result is not None
    assert result.is_failed()
    assert list(result.failures) == [1]
    failure = result.failures[1]
    assert result.first_failure is failure
    assert re.fullmatch(crash.words, failure.words), failure.words
    assert failure.exitcode == crash.exitcode
    assert failure.signal_name() == (signal.Signals(-crash.exitcode).name if crash.exitcode < 0 else "<N/A>")
    assert failure.pid == context.pids()[1]
    assert not result.return_values
    snapshot = context.snapshot()
    assert snapshot.state is RunState.FAILED
    assert snapshot.first_failed == 1
    assert [rank.state for rank in snapshot.ranks] == [RankState.STOPPED, RankState.FAILED]
    assert snapshot.ranks[1].exitcode == crash.exitcode
    with pytest.raises(nbproc.SpawnError) as raised:
        context.result()
    told = str(raised.value)
    assert told.startswith("rank 1 ")
    assert re.search(crash.words.removesuffix(r" \.\.\."), told.partition("\n")[0]), told
    assert crash.shown in told
    assert len(told) < 100_000


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("crash", CRASHES, ids=lambda crash: crash.name)
def test_a_crash_is_explained(crash: Crash, method: str, tmp_path: Path) -> None:
    context = nbproc.start_processes(
        "crash",
        victims.rank_1,
        args=crash.how,
        nprocs=2,
        start_method=method,
        log_dir=tmp_path,
        redirects=nbproc.Std.ALL,
    )
    check(context, crash)
    assert (tmp_path / "1" / "error.json").exists() == (crash.exitcode > 0 and "os_exit" not in crash.how)
    assert not (tmp_path / "0" / "error.json").exists()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("crash", AT_UNPICKLE, ids=lambda crash: crash.name)
def test_a_crash_at_unpickling_is_explained(crash: Crash, method: str) -> None:
    args = {0: ("hang",), 1: ("take", victims.AtUnpickle(*crash.how))}
    entrypoint = victims.either
    context = nbproc.start_processes("crash", entrypoint, args, start_method=method, redirects=nbproc.Std.ALL)
    check(context, crash)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", [("sys_exit", 0), ("sys_exit", None)], ids=str)
def test_exit_with_0_is_a_return_of_none(how: tuple[Any, ...], method: str) -> None:
    context = nbproc.start_processes("exit", victims.either, {0: how, 1: ("give", 1)}, start_method=method)
    assert context.result().return_values == {0: None, 1: 1}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "how", [("raise_value_error",), ("os_exit", 9), ("kill_myself", 9), ("segfault",), ("sys_exit", 3)], ids=str
)
def test_a_crash_after_the_result_changes_nothing(how: tuple[Any, ...], method: str) -> None:
    args = ("then_at_exit", *how)
    context = nbproc.start_processes(
        "late", victims.either, args, nprocs=2, start_method=method, redirects=nbproc.Std.ALL
    )
    result = context.wait()
    assert result is not None
    assert result.return_values == {0: "result", 1: "result"}
    context.close()
    assert context.snapshot().state is RunState.SUCCEEDED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (("give_lock",), "cannot be pickled|a lock cannot be"),
        (("give_at_pickle", "raise_value_error"), "ValueError: bad batch 17"),
        (("give_at_unpickle", "raise_value_error"), "does not unpickle here: ValueError: bad batch 17"),
    ],
    ids=["lock", "raises when pickled", "raises when unpickled"],
)
def test_a_result_that_cannot_be_read_fails_nobody(how: tuple[Any, ...], words: str, method: str) -> None:
    context = nbproc.start_processes("give", victims.either, {0: how, 1: ("give", 1)}, start_method=method)
    result = context.result()
    assert not result.is_failed()
    assert result[1] == 1
    for _ in range(2):
        with pytest.raises(nbproc.ResultError, match=words) as raised:
            result.return_values[0]
        assert raised.value.rank == 0
    assert "return value of rank 0" in str(raised.value)


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_that_ignores_signals_is_killed(method: str, tmp_path: Path) -> None:
    context = nbproc.start_processes(
        "deaf", victims.either, {0: ("ignore_all",), 1: ("raise_value_error",)}, start_method=method, grace=0.1
    )
    result = context.wait()
    assert result is not None
    assert list(result.failures) == [1]
    deaf = context.snapshot().ranks[0]
    assert deaf.state is RankState.STOPPED
    assert deaf.exitcode == -signal.SIGKILL
    assert re.fullmatch(r"stopped at hang, victims.py line \d+|stopped at .*", deaf.words)


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_that_hangs_after_its_result_is_ended(method: str) -> None:
    context = nbproc.start_processes("late", victims.then_thread_hangs, (), nprocs=2, start_method=method, grace=0.1)
    assert context.result().return_values == {0: "result", 1: "result"}
    context.close(timeout=0.2)
    assert context.snapshot().state is RunState.SUCCEEDED


@pytest.mark.parametrize("method", METHODS)
def test_what_a_rank_started_dies_with_it(method: str) -> None:
    context = nbproc.start_processes("parent", victims.then_child_stays, (), nprocs=2, start_method=method, grace=0.1)
    children = context.result().return_values
    context.close()
    assert not any(victims.alive(pid) for pid in children.values())


def test_a_rank_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = victims.program(tmp_path / "python", "import time\ntime.sleep(600)\n")
    monkeypatch.setattr(deadlines, "START_TIMEOUT", 0.5)
    monkeypatch.setattr(process.sys, "executable", mute)
    with pytest.raises(nbproc.LaunchError, match=r"rank 0 of 2 could not be started: it did not answer within 0.5 s"):
        nbproc.start_processes("mute", victims.hang, (), nprocs=2, start_method="spawn")


def test_a_rank_that_ends_before_it_answers_is_a_launch_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.sys, "executable", victims.program(tmp_path / "python", "raise SystemExit(5)\n"))
    with pytest.raises(nbproc.LaunchError, match=r"rank \d of 2 could not be started: it ended with exit code 5"):
        nbproc.start_processes("gone", victims.hang, (), nprocs=2, start_method="spawn")


@pytest.mark.parametrize("method", METHODS)
def test_a_launch_that_fails_half_way_leaves_no_rank(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = [], multiprocess.Functions.start

    def third_fails(self: Any, rank: int) -> Any:
        if rank == 2:
            raise OSError(24, "Too many open files")
        started.append(start(self, rank))
        return started[-1]

    monkeypatch.setattr(multiprocess.Functions, "start", third_fails)
    with pytest.raises(nbproc.LaunchError, match=r"rank 2 of 4 could not be started: .*Too many open files.* are gone"):
        nbproc.start_processes("half", victims.hang, (), nprocs=4, start_method=method)
    assert len(started) == 2
    pids = [rank.identity.pid for rank in started if rank.identity]
    assert not any(victims.alive(pid) for pid in pids)


def test_the_end_of_the_fork_server_ends_the_run() -> None:
    context = nbproc.start_processes("orphans", victims.hang, (), nprocs=2)
    server = client.current().pid
    assert server is not None
    os.kill(server, signal.SIGKILL)
    result = context.wait()
    assert result is not None
    assert next(iter(result.failures.values())).words == "the fork server has ended"
    assert nbproc.start_processes("next", victims.rank, (), nprocs=2).result().return_values == {0: 0, 1: 1}


@pytest.mark.parametrize("method", METHODS)
def test_a_log_directory_that_is_removed_does_not_hide_the_end(method: str, tmp_path: Path) -> None:
    logs, gate = tmp_path / "logs", tmp_path / "gate.fifo"
    os.mkfifo(gate)
    context = nbproc.start_processes(
        "gone",
        victims.either,
        {0: ("let_go_and_hang", str(gate)), 1: ("remove_and_raise", str(logs), str(gate))},
        start_method=method,
        log_dir=logs,
        tee=nbproc.Std.ALL,
    )
    result = context.wait()
    assert result is not None
    assert list(result.failures) == [1]
    assert result.failures[1].words == "ValueError: bad batch 17"


@pytest.mark.parametrize("method", METHODS)
def test_every_crash_happens_off_the_main_thread_too(method: str) -> None:
    told: list[str] = []

    def launch() -> None:
        context = nbproc.start_processes("thread", victims.rank_1, ("os_exit", 7), nprocs=2, start_method=method)
        told.append(context.wait().failures[1].words)  # type: ignore[union-attr]  # it waits for ever

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert told == ["exited with code 7 before returning"]


# ---------------------------------------------------------------- executables

PROGRAMS = [
    Crash("raises", ("raise ValueError('bad batch 17')",), "exited with code 1: ValueError: bad batch 17"),
    Crash("exits", ("sys.exit(7)",), "exited with code 7", 7),
    Crash("exits with text", ("sys.exit('no data')",), "exited with code 1", shown="no data"),
    Crash("SIGKILL", ("os.kill(os.getpid(), 9)",), r"was killed by SIGKILL \((may have run )?out of memory\)", -9),
    Crash("SIGSEGV", ("import ctypes; ctypes.string_at(0)",), r"was killed by SIGSEGV \(invalid memory .*\)", -11),
    Crash("abort()", ("os.abort()",), r"was killed by SIGABRT \(.*\)", -6),
    Crash(
        "SIGINT", ("os.kill(os.getpid(), 2); time.sleep(600)",), r"was killed by SIGINT \(from outside this run\)", -2
    ),
]


@pytest.mark.parametrize("crash", PROGRAMS, ids=lambda crash: crash.name)
def test_a_crash_of_an_executable_is_explained(crash: Crash, tmp_path: Path) -> None:
    text = f"import os, resource, sys, time\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nif os.environ['RANK'] == '1':\n    {crash.how[0]}\ntime.sleep(600)\n"
    program = victims.program(tmp_path / "program", text)
    context = nbproc.start_processes("crash", program, (), nprocs=2, redirects=nbproc.Std.ALL)
    check(context, crash)


@pytest.mark.parametrize("ours", [True, False], ids=["our record", "torch's record"])
def test_a_recorded_executable_shows_its_traceback(ours: bool, tmp_path: Path) -> None:
    home = "nbproc" if ours else "torch.distributed.elastic.multiprocessing.errors"
    text = f"""
from {home} import record
@record
def main():
    raise ValueError("bad batch 17")
main()
"""
    program = victims.program(tmp_path / "program", text)
    context = nbproc.start_processes("main", program, {0: ()}, log_dir=tmp_path / "logs", redirects=nbproc.Std.ALL)
    with pytest.raises(nbproc.SpawnError) as raised:
        context.result()
    failure = raised.value.failures[0]
    assert failure.error_file == str(tmp_path / "logs" / "0" / "error.json")
    assert failure.message["message"] == "ValueError: bad batch 17"
    assert 'raise ValueError("bad batch 17")' in str(raised.value)


def test_an_executable_that_ignores_signals_is_killed_with_its_children(tmp_path: Path) -> None:
    text = """
import os, signal, subprocess, sys, time
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
    program = victims.program(tmp_path / "program", text)
    context = nbproc.start_processes("deaf", program, {0: ()}, log_dir=tmp_path / "logs", redirects=nbproc.Std.OUT)
    child = victims.first_line(tmp_path / "logs" / "0" / "stdout.log")
    context.stop(grace=0.1)
    assert context.wait() is not None
    assert context.snapshot().state is RunState.STOPPED
    assert context.snapshot().ranks[0].exitcode == -signal.SIGKILL
    assert not victims.alive(child)


def test_an_executable_that_fails_to_start_leaves_no_rank(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o755)
    with pytest.raises(nbproc.LaunchError, match=r"rank 0 of 2 could not be started: .*broken"):
        nbproc.start_processes("broken", str(broken), (), nprocs=2)


# ---------------------------------------------------------------- files that cannot be written


class Nowhere(nbproc.LogsSpecs):
    """Logs on a full disk, and an error file where none can be made."""

    root_log_dir = "/dev"

    def __init__(self, stream: str, tmp_path: Path) -> None:
        super().__init__()
        self._stream = stream
        self._beside = tmp_path

    def reify(self, envs: dict[int, dict[str, str]]) -> nbproc.LogsDest:
        kept = {rank: str(self._beside / f"stderr{rank}.log") for rank in envs}
        return nbproc.LogsDest(
            stdouts=dict.fromkeys(envs, "/dev/full" if self._stream == "stdout" else ""),
            stderrs=dict.fromkeys(envs, "/dev/full") if self._stream == "stderr" else kept,
            tee_stderrs=kept if self._stream == "filtered" else {},
            error_files=dict.fromkeys(envs, "/dev/full" if self._stream == "error" else ""),
            filtered_stderr="/dev/full",
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("stdout", "ValueError: bad batch 17|OSError: .*No space left on device"),
        ("stderr", "ValueError: bad batch 17"),
        ("error", "ValueError: bad batch 17"),
        ("filtered", "ValueError: bad batch 17"),
    ],
)
def test_a_full_disk_does_not_hide_the_end(
    stream: str, words: str, method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    specs = Nowhere(stream, tmp_path)
    context = nbproc.start_processes(
        "full",
        victims.print_and_raise,
        nprocs=2,
        logs_specs=specs,
        start_method=method,
        duplicate_stderr_filters=["Error"],
    )
    result = context.wait()
    assert result is not None
    assert result.is_failed()
    for failure in result.failures.values():
        assert re.fullmatch(words, failure.words), failure.words
        assert failure.trace is not None
    with pytest.raises(nbproc.SpawnError, match=words):
        context.result()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_no_rank_receives_the_arguments_of_another(method: str, tmp_path: Path) -> None:
    args = {rank: (victims.Trace(str(tmp_path / f"args{rank}")),) for rank in range(3)}
    nbproc.start_processes("own", victims.take_and_forget, args, start_method=method).result()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        f"args{rank}": f"{rank}\n" for rank in range(3)
    }
