"""The first cause is found among victims; memory counters; stacks that crashes leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbproc.failures import (
    Oom,
    OomWatch,
    ProcessFailure,
    Trace,
    failure_of,
    first_cause,
    follows,
    frames_in_dump,
    lost_connection,
    same,
    where_in_dump,
)
from nbproc.failures.frames import Frame
from nbproc.failures.stacks import exception_in, fatal_in, last_lines, read_tail, where_of

GLOO = Frame("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 4811, "barrier")
CLOSED = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9121"


def raised(rank: int, time: float, words: str, frame: Frame | None = None) -> ProcessFailure:
    """A failure of an exception, made without a process."""
    name, _, message = words.partition(": ")
    trace = Trace(name, message, frames=(frame or Frame("train.py", 3, "train", ((3, "train()"),)),))
    data = {
        "message": {"message": words, "extraInfo": {"py_callstack": "", "timestamp": str(int(time))}},
        "nbproc": {"version": 1, "time": time, "trace": trace.to_json()},
    }
    return failure_of(rank, 1, 1, None, None, data=data)


def killed(rank: int, time: float, signal: int = 9) -> ProcessFailure:
    return failure_of(rank, 1, -signal, None, None, noticed=time)


def test_the_earliest_by_the_ranks_own_clocks():
    late, early = raised(0, 20.2, "ValueError: a"), raised(3, 20.1, "ValueError: b")
    assert first_cause({0: late, 3: early}) is early
    assert first_cause([early, late]) is early


def test_nothing_to_choose_from():
    with pytest.raises(ValueError, match="no failure"):
        first_cause({})


@pytest.mark.parametrize(
    "victim",
    [
        f"RuntimeError: {CLOSED}",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "EOFError",
        "DistNetworkError: The client socket has timed out after 60000ms",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
    ],
)
def test_a_victim_that_noticed_before_the_death_was_noticed_is_no_cause(victim: str):
    peer, cause = raised(0, 100.0, victim, GLOO), killed(2, 100.3)
    assert lost_connection(peer)
    assert first_cause({0: peer, 2: cause}) is cause
    assert follows(peer, cause)
    assert not follows(cause, cause)


def test_lost_connections_alone_are_a_cause():
    first, second = raised(1, 5.0, f"RuntimeError: {CLOSED}", GLOO), raised(0, 6.0, f"RuntimeError: {CLOSED}", GLOO)
    assert first_cause([second, first]) is first


def test_a_lost_connection_long_before_is_the_cause():
    network, later = raised(0, 5.0, f"RuntimeError: {CLOSED}", GLOO), raised(1, 500.0, "ValueError: x")
    assert first_cause([network, later]) is network


@pytest.mark.parametrize("words", ["RuntimeError: the pipeline timed out", "ConnectionError: connection lost"])
def test_what_the_users_own_line_raises_is_no_victims_error(words: str):
    own = raised(0, 5.0, words, Frame("train.py", 3, "train", ((3, "    raise Problem(words)"),)))
    assert not lost_connection(own)


def test_a_general_error_that_has_nothing_to_do_with_communication():
    assert not lost_connection(raised(0, 5.0, "RuntimeError: read failed", Frame("data.py", 3, "load")))
    assert not lost_connection(raised(0, 5.0, "ValueError: connection closed by peer", GLOO))


def test_torchs_own_error_file_of_a_victim():
    data = {"message": {"message": f"RuntimeError: {CLOSED}", "extraInfo": {"timestamp": "100"}}}
    victim = failure_of(0, 1, 1, None, None, data=data)
    assert first_cause([victim, killed(1, 101.0)]).local_rank == 1


def test_equal_failures_may_name_their_ranks():
    assert same(raised(0, 1.0, "ValueError: no file for rank 0"), raised(13, 2.0, "ValueError: no file for rank 13"))
    assert same(raised(0, 1.0, "ValueError: bad 1"), raised(1, 1.0, "ValueError: bad 1"))
    assert not same(raised(0, 1.0, "ValueError: a"), raised(1, 1.0, "ValueError: b"))
    assert not same(killed(0, 1.0, 9), killed(1, 1.0, 11))


# ---------------------------------------------------------------------------------------------------------- out of memory


def counter(root: Path, kind: str, kills: int) -> None:
    """Write the counter files of a machine under ``root``."""
    groups = {"v2": "0::/job/7\n", "v2 own namespace": "0::/\n", "v1": "5:cpu,memory:/job/7\n0::/x\n", "none": ""}
    files = {
        "v2": ("sys/fs/cgroup/job/7/memory.events", f"low 0\noom 4\noom_kill {kills}\noom_group_kill 0\n"),
        "v2 own namespace": ("sys/fs/cgroup/memory.events", f"oom 4\noom_kill {kills}\n"),
        "v1": ("sys/fs/cgroup/memory/job/7/memory.oom_control", f"under_oom 0\noom_kill {kills}\n"),
        "none": ("proc/vmstat", f"nr_free_pages 1\noom_kill {kills}\n"),
    }
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(groups[kind])
    path = root / files[kind][0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(files[kind][1])


@pytest.mark.parametrize("kind", ["v2", "v2 own namespace", "v1", "none"])
def test_out_of_memory_is_said_only_if_the_counter_moved(tmp_path: Path, kind: str):
    counter(tmp_path, kind, 2)
    watch = OomWatch.now(tmp_path)
    assert watch.count == 2
    assert watch.since() is Oom.MAYBE
    counter(tmp_path, kind, 3)
    assert watch.since() is Oom.YES


def test_no_counter_at_all(tmp_path: Path):
    watch = OomWatch.now(tmp_path)
    assert watch.count is None
    assert watch.since() is Oom.MAYBE


def test_a_counter_that_goes_away(tmp_path: Path):
    counter(tmp_path, "v2", 2)
    watch = OomWatch.now(tmp_path)
    (tmp_path / "sys/fs/cgroup/job/7/memory.events").write_text("oom_kill soon\n")
    assert watch.since() is Oom.MAYBE


# ------------------------------------------------------------------------------------------------------------- stacks

DUMP = """\
Thread 0x00007f3d3bfff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f3d4a3fc740 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/tmp/ipykernel_1/9.py", line 19 in train
  File "/tmp/ipykernel_1/10.py", line 2 in <module>
"""
CELLS = {"/tmp/ipykernel_1/9.py": 3, "/tmp/ipykernel_1/10.py": 4}


def test_where_a_rank_is():
    where = where_in_dump(DUMP, CELLS)
    assert where is not None
    assert where.waiting
    assert where.words == "train, cell [3] line 19, in all_reduce"
    assert where.stopped == "stopped at train, cell [3] line 19, waiting in all_reduce"


def test_an_interrupt_that_comes_when_the_library_has_failed_already():
    cell = Frame("/tmp/ipykernel_1/9.py", 19, "train", cell=3)
    wrapper = Frame("/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper")
    lost = Trace("RuntimeError", "Connection closed by peer", frames=(wrapper, GLOO))
    where = where_of(Trace("KeyboardInterrupt", "", frames=(cell, wrapper), context=lost))
    assert where is not None
    assert where.stopped == "stopped at train, cell [3] line 19, waiting in barrier"


def test_the_newest_dump_counts():
    newer = DUMP.replace("line 19 in train", "line 21 in train")
    assert [frame.line for frame in frames_in_dump(DUMP + "some output\n" + newer, CELLS)][:2] == [2, 21]


def test_dumps_without_frames_or_with_damage():
    assert where_in_dump("") is None
    assert where_in_dump("Current thread 0x00007f (most recent call first):\n  <no Python frame>\n") is None
    other = "Current thread 0x00007f (most recent call first):\n  <no Python frame>\n\n" + DUMP.split("\n\n")[
        1
    ].replace("Current thread", "Thread")
    where = where_in_dump(other, CELLS)
    assert where is not None
    assert where.frame.function == "train"
    unknown = 'Current thread 0x7f (most recent call first):\n  File "???", line ??? in f\n  ...\n'
    assert frames_in_dump(unknown)[0].line == 0


def test_a_crash_report_is_separated_from_the_log(tmp_path: Path):
    log = tmp_path / "stderr.log"
    log.write_text(f"loading\nFatal Python error: Segmentation fault\n\n{DUMP}\nExtension modules: numpy (total: 1)\n")
    failure = failure_of(1, 5, -11, None, log, cells=CELLS)
    assert failure.stderr_tail == ("loading",)
    assert failure.fatal.startswith("Fatal Python error: Segmentation fault")
    assert "Extension modules" not in failure.fatal
    assert failure.headline.endswith(", in train, cell [3] line 19")
    assert fatal_in("nothing of the kind") == ""


def test_the_tail_is_what_a_terminal_shows(tmp_path: Path):
    log = tmp_path / "stderr.log"
    log.write_bytes(b"\xff\n\n 10%\r 50%\r100%\r\n\x1b[31mred\x1b[0m\x1b]8;;http://x\x07link\x00\n\n\n")
    assert last_lines(read_tail(log)) == ("\ufffd", "", "100%", "redlink\\x00")
    log.write_text("x" * 200_000 + "\nlast")
    assert last_lines(read_tail(log)) == ("last",)
    log.write_text("x" * 200_000)
    assert last_lines(read_tail(log))[0].endswith(" more)")
    assert read_tail(tmp_path / "gone") == ""
    assert last_lines("") == ()


def test_an_executable_without_record_is_known_by_its_traceback(tmp_path: Path):
    log = tmp_path / "stderr.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nValueError: boom\nbye\n'
    )
    failure = failure_of(0, 5, 1, None, log, is_function=False)
    assert failure.words == "exited with code 1: ValueError: boom"
    assert exception_in(["ValueError: boom"]) == ""
