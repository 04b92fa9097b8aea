"""What the system refuses: memory, disk, processes, descriptors. The user is told, nothing is left, the next launch works."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import states

import nbproc
import victims
from nbproc import explain
from nbproc.ranks import standby
from nbproc.states import RankState, RunState

ROOT = Path(__file__).parents[2]
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(autouse=True)
def no_ranks_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(standby.VARIABLE, "0")
    standby.close()


def works() -> None:
    assert nbproc.start_processes("next", victims.rank, (), nprocs=2).result().return_values == {0: 0, 1: 1}


# ---------------------------------------------------------------- disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Make a disk of 1 MB."""
    mounted: list[Path] = []

    def mount(*options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join(["size=1m", *options]), "nbproc-test", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs root that may mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with open(disk / "fill", "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - it is raised at some write, and only then we are done


def print_much() -> None:
    for _ in range(3000):
        print("x" * 1000)


def write_much() -> None:
    while os.write(1, b"x" * 1000 + b"\n"):
        pass


def ignore_the_full_disk() -> str:
    for _ in range(2000):
        try:
            os.write(1, b"x" * 1000 + b"\n")
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - in a rank
    return "done"


@pytest.mark.parametrize("tee", [False, True], ids=["redirected", "teed"])
@pytest.mark.parametrize("fill_it", [print_much, write_much], ids=["print", "write"])
def test_a_rank_that_fills_the_disk_is_told_so(
    fill_it: Callable[[], None], tee: bool, disk: Callable[..., Path]
) -> None:
    logs = disk() / "logs"
    streams = {"tee" if tee else "redirects": nbproc.Std.ALL}
    filters = ["y"] if tee else None
    context = nbproc.start_processes(
        "full", fill_it, (), nprocs=1, log_dir=logs, duplicate_stdout_filters=filters, **streams
    )
    context.wait()
    words = rf"rank 0 failed: OSError: \[Errno 28\] No space left on device, in {fill_it.__name__}, .*py line \d+"
    assert re.fullmatch(words, context.report().headline)
    context.close()
    assert not (logs / "0" / "error.json").exists()  # it did not fit either: the rank told in words
    assert (logs / "0" / "stdout.log").read_bytes().startswith(b"x" * 1000 + b"\n")
    works()


def test_a_rank_that_does_not_mind_a_full_disk_succeeds(disk: Callable[..., Path]) -> None:
    context = nbproc.start_processes(
        "full", ignore_the_full_disk, (), nprocs=2, log_dir=disk() / "logs", redirects=nbproc.Std.ALL
    )
    assert context.result().return_values == {0: "done", 1: "done"}
    context.close()


def test_why_a_rank_failed_is_known_though_the_disk_is_full(disk: Callable[..., Path]) -> None:
    place = disk()
    (place / "logs").mkdir()
    for folder in ("0", "1"):
        (place / "logs" / folder).mkdir()
    specs = Into(place / "logs")
    fill(place)
    context = nbproc.start_processes("full", victims.rank_1, ("raise_chain",), nprocs=2, logs_specs=specs)
    context.wait()
    assert context.report().headline.startswith(
        "rank 1 failed first: RuntimeError: outer, in raise_chain, victims.py line"
    )
    assert "KeyError: 'inner'" in explain.text(context.report())  # the whole chain
    works()


class Into(nbproc.LogsSpecs):
    """Logs in a directory that is there already."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), redirects=nbproc.Std.ALL)
        self.root = root

    @property
    def root_log_dir(self) -> str:
        return str(self.root)

    def reify(self, envs: dict[int, dict[str, str]]) -> nbproc.LogsDest:
        def files(name: str) -> dict[int, str]:
            return {rank: str(self.root / str(rank) / name) for rank in envs}

        return nbproc.LogsDest(files("stdout.log"), files("stderr.log"), {}, {}, files("error.json"))


@pytest.mark.parametrize("state", ["asleep", "in C, holding the GIL", "with DataLoader workers"])
def test_stop_works_on_a_full_disk(state: str, disk: Callable[..., Path], tmp_path: Path) -> None:
    logs = disk() / "logs"
    context = nbproc.start_processes(
        "full", states.enter, (state, str(tmp_path)), nprocs=2, log_dir=logs, redirects=nbproc.Std.ALL, grace=0.3
    )
    told = states.told(tmp_path, 2)
    fill(logs.parent)
    context.stop()
    context.wait()
    context.close()
    assert re.fullmatch(r"stopped by you in \d+\.\d s; nothing left running", context.report().headline)
    assert states.living(told.pids) == []
    assert (logs / "0" / "stdout.log").read_bytes().endswith(states.LAST_WORDS)


def test_a_read_only_log_directory_is_told_before_anything_starts(disk: Callable[..., Path]) -> None:
    logs = disk("ro") / "logs"
    with pytest.raises(
        nbproc.LaunchError, match=r"log directory cannot be made: .*Read-only .*logs'. Nothing was started"
    ):
        nbproc.start_processes("ro", victims.rank, (), nprocs=2, log_dir=logs)
    works()


@pytest.mark.parametrize("options", ["ro", "full"])
def test_no_place_for_the_runs_files_is_told_before_anything_starts(
    options: str, disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    works()
    place = disk(*(["ro"] if options == "ro" else ["nr_inodes=1"]))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    words = "Read-only file system" if options == "ro" else "No space left on device"
    with pytest.raises(nbproc.LaunchError, match=f"no directory .* {words}.*Nothing was started. TMPDIR says where"):
        nbproc.start_processes("nowhere", victims.rank, (), nprocs=2)
    monkeypatch.undo()
    works()


def test_a_launch_that_is_refused_leaves_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    base = Path(tempfile.gettempdir(), f"nbproc-{os.getuid()}")
    before = set(base.iterdir()) if base.exists() else set()
    with pytest.raises(NotADirectoryError):
        nbproc.start_processes("file", victims.rank, (), nprocs=2, log_dir=tmp_path / "file")
    with pytest.raises(nbproc.PlanError):
        nbproc.start_processes("full", victims.rank, (), nprocs=2, log_dir=tmp_path)
    assert set(base.iterdir()) == before


# ---------------------------------------------------------------- cgroups


@pytest.fixture
def cgroup() -> Iterator[Callable[..., Path]]:
    """Make a cgroup with a limit: version 1, or 2 where the controller is there."""
    made: list[Path] = []

    def make(controller: str, limits: dict[str, str]) -> Path:
        places = [CGROUPS / controller, CGROUPS]
        for place in places:
            if place == CGROUPS and not (place / "cgroup.controllers").exists():
                continue
            group = place / f"nbproc-test-{os.getpid()}"
            try:
                group.mkdir()
                made.append(group)
                for file, value in limits.items():
                    if (group / file).exists():
                        (group / file).write_text(value)
                        return group
            except OSError:
                continue
        pytest.skip(f"needs root that may make {controller} cgroups")

    yield make
    for group in made:
        states.until(lambda group=group: not (group / "cgroup.procs").read_text(), "the cgroup is empty")  # type: ignore[misc]
        group.rmdir()


PROGRAM = """
import json, os, sys
import nbproc
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
"""


def program(text: str, *arguments: object, timeout: float = 90) -> dict[str, object]:
    """Run a program in a session of its own, and return the last line that it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + text, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("where", ["in the rank", "in a DataLoader worker", "in a child"])
def test_out_of_memory_is_named(where: str, cgroup: Callable[..., Path]) -> None:
    """The system kills the largest process of a group that may use 800 MB."""
    group = cgroup("memory", {"memory.limit_in_bytes": "800M", "memory.max": "800M"})
    told = program(
        """
import states, victims
context = nbproc.start_processes("oom", victims.either, {0: ("hang",), 1: (sys.argv[2],)}, redirects=nbproc.Std.ALL)
result = context.wait()
context.close()
after = nbproc.start_processes("next", victims.rank, (), nprocs=2).result()
print("\\n" + json.dumps({
    "headline": context.report().headline, "words": result.failures[1].words, "next": after[1],
    "first": context.snapshot().first_failed, "left": states.living(list(context.pids().values())),
}))
""",
        group / "cgroup.procs",
        {"in the rank": "eat_memory", "in a DataLoader worker": "eat_in_worker", "in a child": "eat_in_child"}[where],
    )
    assert told["first"] == 1
    assert told["left"] == []
    assert told["next"] == 1
    if where == "in the rank":
        assert told["words"] == "was killed by SIGKILL (out of memory)"
        assert told["headline"] == "rank 1 was killed by SIGKILL (out of memory)"
    elif where == "in a DataLoader worker":
        killed = r"RuntimeError: DataLoader worker \(pid.*\) (is killed by signal: Killed|exited unexpectedly)"
        assert re.match(killed, str(told["words"]))  # torch's own words
    else:
        assert told["words"] == "CalledProcessError: Command 'eat' died with <Signals.SIGKILL: 9>."


def test_processes_that_cannot_be_made_are_told(cgroup: Callable[..., Path]) -> None:
    """With room for 0, 1, 2, ... processes and threads more, a launch works or says that it cannot; nothing hangs."""
    group = cgroup("pids", {"pids.max": "200"})
    told = program(
        """
import pathlib
import states, victims
limit = pathlib.Path(sys.argv[1]).with_name("pids.max")
now = pathlib.Path(sys.argv[1]).with_name("pids.current")
first = nbproc.start_processes("first", victims.rank, (), nprocs=2)
first.result(), first.close()
said = {}
for room in range(6):
    limit.write_text(str(int(now.read_text()) + room))
    try:
        context = nbproc.start_processes("r", victims.rank, (), nprocs=2)
        result = context.wait()
        said[room] = "worked" if not result.is_failed() else context.report().headline
        context.close()
    except Exception as error:
        said[room] = f"{type(error).__name__}: {error}"
    limit.write_text("200")
    after = nbproc.start_processes("next", victims.rank, (), nprocs=2)
    assert after.result().return_values == {0: 0, 1: 1}
    after.close()
print("\\n" + json.dumps(said))
""",
        group / "cgroup.procs",
    )
    assert told["5"] == "worked", told
    refused = {room: words for room, words in told.items() if words != "worked"}
    assert refused
    for words in refused.values():
        assert re.match(
            r"LaunchError: (the system gives this process no thread|rank \d of 2 could not be started: (fork failed: )?.*Resource temporarily unavail)",
            str(words),
        ), told


def test_a_guardian_that_cannot_be_started_is_a_note_of_the_run(cgroup: Callable[..., Path], tmp_path: Path) -> None:
    """See tests/process/test_guardian.py; here the system refuses, in the middle of a run."""
    group = cgroup("pids", {"pids.max": "200"})
    told = program(
        """
import pathlib
import states, victims
from nbproc.ranks import warden
limit = pathlib.Path(sys.argv[1]).with_name("pids.max")
folder = pathlib.Path(sys.argv[2])
context = nbproc.start_processes("r", states.enter, ("asleep", str(folder)), nprocs=2)
states.told(folder, 2)
limit.write_text("1")
os.kill(warden.current().pid, 9)
states.until(lambda: context.snapshot().notes and "guardian" in context.snapshot().notes[-1], "it is told")
context.stop()
context.wait()
context.close()
limit.write_text("200")
nbproc.start_processes("next", victims.rank, (), nprocs=2).result()
print("\\n" + json.dumps({"notes": context.snapshot().notes, "headline": context.report().headline,
                  "trouble": warden.current().trouble}))
""",
        group / "cgroup.procs",
        tmp_path,
    )
    assert re.search(
        r"guardian could not be started \(.*Resource temporarily unavailable.*\): if this process is killed, ranks may",
        str(told["notes"]),
    )
    assert re.fullmatch(r"stopped by you in \d+\.\d s; nothing left running", str(told["headline"]))
    assert told["trouble"] == ""


# ---------------------------------------------------------------- descriptors: see test_faults.py for each step


def test_a_rank_without_descriptors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))  # ranks have the limits of now
    try:
        context = nbproc.start_processes(
            "few", victims.rank_1, ("eat_descriptors",), nprocs=2, redirects=nbproc.Std.ALL
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    context.wait()
    words = r"rank 1 failed first: OSError: \[Errno 24\] Too many open files: '/dev/null', in eat_descriptors, .*"
    assert re.fullmatch(words, context.report().headline)
    assert not context.failures[1].error_file.endswith("error.json")  # no descriptor for it either: told in words
    assert context.failures[1].trace is not None
    works()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU, signal.SIGBUS])
def test_a_signal_from_outside_is_named(signum: signal.Signals, tmp_path: Path) -> None:
    context = nbproc.start_processes("hit", states.enter, ("in C, holding the GIL", str(tmp_path)), nprocs=2, grace=0.3)
    states.told(tmp_path, 2)
    assert context.send_signal(0, signum)
    context.wait()
    context.close()
    assert re.match(rf"rank 0 was killed by {signum.name}\b", context.report().headline)
    assert [rank.state for rank in context.snapshot().ranks] == [RankState.FAILED, RankState.STOPPED]
    assert context.snapshot().state is RunState.FAILED


def test_a_run_directory_that_is_removed_harms_only_what_is_in_it(tmp_path: Path) -> None:
    context = nbproc.start_processes("gone", states.enter, ("asleep", str(tmp_path)), nprocs=2, grace=0.3)
    states.told(tmp_path, 2)
    assert context.files is not None
    shutil.rmtree(context.files.root)
    context.send_signal(0, signal.SIGKILL)
    context.wait()
    context.close()
    assert re.match("rank 0 was killed by SIGKILL", context.report().headline)
    works()
