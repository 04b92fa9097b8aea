"""The process that launched a run ends, in any way, with ranks in every state: nothing outlives it.

Each ending happens once, to a program with a rank in each state; the tests look at what became of each.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import owner
import psutil
import pytest
import states

ROOT = Path(__file__).parents[2]
SOON = 2.0
"""Seconds after its owner's death in which everything of a run is gone."""


@dataclass
class End:
    """What became of the ranks in each state, when their owner had ended."""

    told: dict[str, states.Told] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    logs: dict[str, list[Path]] = field(default_factory=dict)
    temporary: list[str] = field(default_factory=list)
    exitcode: int = 0
    said: str = ""


def die(signum: int) -> Callable[[psutil.Process], None]:
    return lambda process: process.send_signal(signum)


def lose_the_guardian_first(process: psutil.Process) -> None:
    """Kill the guardian; when the run has started another, kill the owner."""
    [guardian] = guardians(process)
    guardian.kill()
    states.until(lambda: guardians(process) not in ([], [guardian]), "there is a new guardian")
    process.kill()


def lose_the_server_at_once(process: psutil.Process) -> None:
    """Kill the fork server and the owner before either can notice."""
    servers = [child for child in process.children() if any("server_main" in word for word in child.cmdline())]
    process.suspend()
    for server in servers:
        server.kill()
    process.kill()


def guardians(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children():
        try:
            if any(word.endswith("guardian.py") for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


ENDINGS: dict[str, Callable[[psutil.Process], None]] = {
    "SIGKILL": die(signal.SIGKILL),
    "SIGTERM": die(signal.SIGTERM),
    "SIGHUP, its terminal was closed": die(signal.SIGHUP),
    "SIGSEGV": die(signal.SIGSEGV),
    "SIGKILL after its guardian": lose_the_guardian_first,
    "SIGKILL with its fork server": lose_the_server_at_once,
    "Ctrl-C": die(signal.SIGINT),
}


@functools.cache
def ended(ending: str) -> End:
    """Start a program that owns runs, end it, and see what is left."""
    folder = Path(tempfile.mkdtemp(prefix="owner-"))
    temporary = folder / "t"
    temporary.mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    with open(folder / "said", "w") as said:
        program = subprocess.Popen(
            [sys.executable, owner.__file__, str(folder)],
            env=environment,
            cwd=folder,
            stderr=said,
            stdout=said,
            start_new_session=True,
        )
    try:
        each = states.told(folder / "each", len(owner.ALONE))
        barrier = states.told(folder / "barrier", 2)
        forking = states.told(folder / "forking", 1)
        end = End()
        for number, state in enumerate(owner.ALONE):
            end.told[state] = states.Told({str(number): each[str(number)]})
            end.logs[state] = [folder / "logs-each" / str(number)]
        end.told["in a barrier"] = barrier
        end.logs["in a barrier"] = [folder / "logs-barrier" / rank for rank in barrier]
        process = psutil.Process(program.pid)
        around = [child.pid for child in process.children(recursive=True)]
        ENDINGS[ending](process)
        end.exitcode = program.wait()
        died = time.monotonic()
        waiting = {state: told.pids for state, told in end.told.items()}
        waiting["its fork server and its guardian"] = around
        waiting["between fork and exec"] = forking.pids
        while waiting and time.monotonic() - died < 3 * SOON:
            for state in [state for state, pids in waiting.items() if not states.living(pids)]:
                end.seconds[state] = time.monotonic() - died
                del waiting[state]
            time.sleep(0.005)
        end.left = [process for pids in waiting.values() for process in states.living(pids)]
    finally:
        program.kill()
        program.wait()
        for pid in [pid for pids in waiting.values() for pid in pids if states.living([pid])]:
            os.kill(pid, signal.SIGKILL)
    end.temporary = sorted(os.listdir(temporary))
    end.said = (folder / "said").read_text()
    return end


@pytest.mark.leaves(
    "the folder of an ending is looked at by the other tests; it lies in the tests' own temporary folder"
)
@pytest.mark.parametrize("state", [*states.STATES, "between fork and exec", "its fork server and its guardian"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_outlives_its_owner(ending: str, state: str) -> None:
    end = ended(ending)
    assert end.left == []
    assert end.seconds[state] < SOON
    if state not in states.STATES:
        return
    told = end.told[state]
    assert states.in_shared_memory(told.pids, told.names) == []
    assert all(states.port_is_free(one["port"]) for one in told.values())
    for folder in end.logs[state]:
        for stream in ("stdout", "stderr"):
            assert states.LAST_WORDS in (folder / f"{stream}.log").read_bytes()


@pytest.mark.leaves("see above")
@pytest.mark.parametrize("ending", ENDINGS)
def test_only_run_directories_are_left_of_it(ending: str) -> None:
    end = ended(ending)
    assert end.temporary == [f"nbproc-{os.getuid()}"]
    if ending == "Ctrl-C":
        assert end.said.rstrip().endswith("KeyboardInterrupt")
        assert end.exitcode == -signal.SIGINT
    else:
        assert end.said == ""
        name = re.match(r"SIG\w+", ending)
        assert name is not None
        assert end.exitcode == -signal.Signals[name[0]]


@pytest.mark.leaves("see above")
def test_the_next_launch_works() -> None:
    ended("SIGKILL")
    done = subprocess.run(
        [sys.executable, "-c", "import nbproc; print(nbproc.start_processes('n', abs, {0: (-1,)}).result()[0])"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
