"""D10: the guardian ends what a killed process leaves, is told again when it was killed, and touches nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import plain
import psutil
import pytest
from jobs import vanish

from nbproc.ranks import guardian, reap, warden
from victims import alive

SLEEPER = """
import os, signal, subprocess, sys
from nbproc.ranks import warden

def sleeper(**more):
    return subprocess.Popen(["sleep", "600"], start_new_session=True, **more)
"""


def test_one_that_was_killed_is_started_again_and_told_everything(tmp_path: Path) -> None:
    script = (
        SLEEPER
        + """
ranks = [sleeper(), sleeper(), sleeper(env={"NBPROC_RUN": "abc/def"}), sleeper(env={"NBPROC_RUN": "abcdef"})]
guard = warden.current()
guard.rank(ranks[0].pid)
guard.mark("abc")
first = guard.pid
os.kill(first, signal.SIGKILL)
os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
guard.rank(ranks[1].pid)
assert guard.pid not in (None, first)
print(guard.pid, *(rank.pid for rank in ranks), flush=True)
signal.pause()
"""
    )
    with plain.started(tmp_path, script) as process:
        assert process.stdout is not None
        pids = process.stdout.readline().split()
        process.kill()
        vanish(pids[:4])
        assert [alive(pid) for pid in pids] == [False, False, False, False, True]
        os.kill(int(pids[4]), signal.SIGKILL)
        vanish(pids)


def test_a_number_that_was_given_to_another_process_is_not_touched(tmp_path: Path) -> None:
    script = (
        SLEEPER
        + """
rank, other = sleeper(), sleeper()
guard = warden.current()
guard.rank(rank.pid)
guard._tell("pid 0", f"rank {other.pid} 12345")
guard._tell("pid 1", f"server {other.pid} 12345")
print(rank.pid, other.pid, guard.pid, flush=True)
signal.pause()
"""
    )
    with plain.started(tmp_path, script) as process:
        assert process.stdout is not None
        rank, other, guard = process.stdout.readline().split()
        process.kill()
        vanish([rank, guard])
        assert (alive(rank), alive(other)) == (False, True)
        os.kill(int(other), signal.SIGKILL)
        vanish([other])


def test_it_hears_of_the_end_also_by_a_descriptor_with_a_high_number(tmp_path: Path) -> None:
    script = (
        SLEEPER
        + """
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
rank = sleeper()
guard = warden.current()
guard.rank(rank.pid)
print(rank.pid, guard.pid, flush=True)
signal.pause()
"""
    )
    with plain.started(tmp_path, script) as process:
        assert process.stdout is not None
        rank, guard = process.stdout.readline().split()
        process.kill()
        vanish([rank, guard])
        assert not alive(rank)
        assert not alive(guard)


def test_one_that_does_not_listen_blocks_nobody_and_is_told_again(tmp_path: Path) -> None:
    script = (
        SLEEPER
        + """
guard = warden.current()
guard.mark("first")
os.kill(guard.pid, signal.SIGSTOP)
for number in range(500):
    guard.mark("a-mark-of-a-run-" * 12 + str(number))
rank = sleeper()
guard.rank(rank.pid)  # its pipe is full
os.kill(guard.pid, signal.SIGCONT)
for number in range(500):
    guard.unmark("a-mark-of-a-run-" * 12 + str(number))
while guard._behind:
    guard.mark("again")
print(rank.pid, guard.pid, flush=True)
signal.pause()
"""
    )
    with plain.started(tmp_path, script) as process:
        assert process.stdout is not None
        rank, guard = process.stdout.readline().split()
        process.kill()
        vanish([rank, guard])
        assert not alive(rank)


def test_without_one_a_run_goes_on_and_says_so(tmp_path: Path) -> None:
    script = """
        import sys
        import nbproc

        sys.executable = "/nowhere/python"
        context = nbproc.start_processes("t", abs, {0: (-1,)}, start_method="fork")
        assert context.wait()[0] == 1
        print(context.snapshot().notes)
    """
    done = plain.run(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert "the guardian could not be started" in done.stdout
    assert "the guardian could not be started" in done.stderr


def test_it_goes_when_a_process_ends_in_order(tmp_path: Path) -> None:
    script = """
        import nbproc
        from nbproc.ranks import client, warden

        nbproc.spawn(abs, nprocs=2)
        print(warden.current().pid, client.current().pid)
    """
    pids = plain.lines(tmp_path, script, "-X", "dev", "-W", "error")[0].split()
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("line", [b"", b"rank", b"rank x 1", b"\xff\xfe", b"server 1", b"mark", b"what is this"])
def test_a_line_that_is_not_understood_is_left_out(line: bytes) -> None:
    watch = guardian.Watch()
    watch.hear(line)
    assert (watch.ranks, watch.servers, watch.marks) == ({}, {}, set())


def test_it_has_no_more_than_it_needs() -> None:
    """No site, no user's modules; its command line says what it is."""
    guard = warden.current()
    guard.ensure()
    process = psutil.Process(guard.pid)
    assert process.cmdline()[1:4] == ["-I", "-S", str(Path(guardian.__file__))]
    assert process.cwd() == "/"
    assert os.getsid(process.pid) == process.pid
    assert warden.MARK_VARIABLE not in process.environ()


def test_a_guardian_whose_owner_is_gone_before_it_looks_ends(tmp_path: Path) -> None:
    program = [sys.executable, "-I", "-S", guardian.__file__]
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as bystander:
        line = f"rank {bystander.pid} {reap.start_time(bystander.pid)}\n".encode()
        # without process descriptors it looks at its parent, which is not the owner
        done = subprocess.run([*program, "1", "-1"], input=line, timeout=20, check=False)
        assert done.returncode == 0
        assert bystander.wait(10) == -signal.SIGKILL
