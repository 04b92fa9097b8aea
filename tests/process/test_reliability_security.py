"""Nobody else reads what ranks write, reaches their processes, or makes this library run what they print."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
import states

import nbproc
import victims
from nbproc import explain
from nbproc.logs.lines import LineEvent, Stream
from nbproc.notebook import html
from nbproc.ranks import client, standby, warden

SECRET = "correct-horse-battery-staple"
METHODS = ("forkserver", "spawn", "fork")


@pytest.fixture(autouse=True)
def no_ranks_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(standby.VARIABLE, "0")
    standby.close()


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Return the permissions of everything that lies there, links and sockets included."""
    return {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in root.rglob("*")}


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("logs", ["ours", "given"])
def test_run_directories_are_0700_and_logs_0600(logs: str, method: str, tmp_path: Path) -> None:
    given = {"log_dir": tmp_path / "logs"} if logs == "given" else {}
    context = nbproc.start_processes(
        "mode",
        victims.rank_1,
        ("raise_value_error",),
        nprocs=2,
        start_method=method,
        tee=nbproc.Std.ALL,
        duplicate_stderr_filters=["ValueError"],
        **given,  # type: ignore[arg-type]
    )
    context.wait()
    context.close()
    assert context.files is not None
    root = context.files.root
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for place in {root, context.run_dir}:
        for name, mode in modes(place).items():
            wanted = 0o600 if (place / name).is_file() else 0o700
            if place == root or wanted == 0o600:
                assert mode == wanted, name
    written = modes(context.run_dir)
    assert {"0/stdout.log", "1/stderr.log", "1/error.json", "filtered_stderr.log"} <= set(written)


@pytest.mark.usefixtures("open_umask")
def test_logs_of_executables_are_0600_too(tmp_path: Path) -> None:
    program = victims.program(tmp_path / "program", "print('here')")
    context = nbproc.start_processes("mode", program, (), nprocs=1, log_dir=tmp_path / "logs", redirects=nbproc.Std.ALL)
    context.result()
    context.close()
    assert set(modes(tmp_path / "logs").values()) - {0o600} <= {0o777}  # the directory is the user's own to open
    assert modes(tmp_path / "logs")["0/stdout.log"] == 0o600


# ---------------------------------------------------------------- sockets


def listening(pids: set[int]) -> list[tuple[str, int]]:
    """Return where these processes listen on the network."""
    open_ones = [one for pid in pids for one in psutil.Process(pid).net_connections(kind="inet")]
    return [
        (one.laddr.ip, one.laddr.port)
        for one in open_ones
        if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM
    ]


@pytest.mark.parametrize("state", ["asleep", "with DataLoader workers"])
def test_nothing_listens_on_the_network(state: str, tmp_path: Path) -> None:
    before = listening({os.getpid()})  # what runs the tests may listen itself
    with nbproc.start_processes("net", states.enter, (state, str(tmp_path)), nprocs=2, grace=0.3):
        told = states.told(tmp_path, 2)
        server, guardian = client.current().pid, warden.current().pid
        assert server is not None
        assert guardian is not None
        assert listening({*told.pids, server, guardian}) == []
        assert listening({os.getpid()}) == before


def test_only_torch_listens_where_a_process_group_is(tmp_path: Path) -> None:
    """Its store at the port that was kept for it (on every interface: torch cannot be told otherwise), and gloo."""
    before = listening({os.getpid()})
    with nbproc.start_processes("net", states.enter, ("in a barrier", str(tmp_path)), nprocs=2, grace=0.3):
        told = states.told(tmp_path, 2)
        server, guardian = client.current().pid, warden.current().pid
        assert server is not None
        assert guardian is not None
        first, second = (listening({told[rank]["pid"]}) for rank in ("0", "1"))
        assert int(told["0"]["port"]) in [port for _, port in first]
        assert len(first) == 2
        assert len(second) == 1
        assert listening({server, guardian}) == []
        assert listening({os.getpid()}) == before


def test_a_foreign_user_finds_no_socket_to_connect_to(tmp_path: Path) -> None:
    """Jobs, pipes and payloads go over socket pairs, which have no name that anybody could connect to."""
    context = nbproc.start_processes("names", states.enter, ("asleep", str(tmp_path)), nprocs=2, grace=0.3)
    told = states.told(tmp_path, 2)
    server, guardian = client.current().pid, warden.current().pid
    ours = {os.getpid(), server, guardian, *told.pids}
    named = [
        connection.laddr
        for pid in ours
        if pid is not None
        for connection in psutil.Process(pid).net_connections(kind="unix")
        if connection.laddr and "nbproc" in str(connection.laddr)
    ]
    context.close()
    assert named == []


NOBODY = """
import os, signal, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
path, *pids = sys.argv[1:]
for what in (lambda: os.listdir(path), lambda: open(os.path.join(path, "0", "stdout.log"))):
    try:
        what()
        print("could read")
    except PermissionError:
        pass
for pid in pids:
    for what in (
        lambda: os.kill(int(pid), signal.SIGKILL),
        lambda: os.listdir(f"/proc/{pid}/fd"),
        lambda: open(f"/proc/{pid}/environ").read(),
        lambda: open(f"/proc/{pid}/mem", "rb"),
    ):
        try:
            what()
            print("could reach", pid)
        except PermissionError:
            pass
print("tried")
"""


def test_a_foreign_user_reads_no_logs_and_reaches_no_process(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root that may become somebody else")
    context = nbproc.start_processes(
        "foreign", states.enter, ("asleep", str(tmp_path)), nprocs=2, grace=0.3, redirects=nbproc.Std.ALL
    )
    told = states.told(tmp_path, 2)
    pids = [client.current().pid, warden.current().pid, *told.pids]
    assert context.run_dir is not None
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-S", "-c", NOBODY, str(context.run_dir), *map(str, pids)],
        capture_output=True,
        text=True,
        check=False,
    )
    context.close()
    assert done.stdout == "tried\n", done.stderr


def inherited() -> list[tuple[str, str]]:
    """Return the descriptors that a program started by this rank has, if nobody closes any for it."""
    done = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False)
    return re.findall(r" (\d+) -> (.*)", done.stdout)


def inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # it was that of the listing


@pytest.mark.leaves("the resource tracker of multiprocessing lives as long as its process")
@pytest.mark.parametrize("method", METHODS)
def test_programs_started_by_a_rank_inherit_no_descriptor_of_ours(method: str) -> None:
    resource_tracker.ensure_running()  # its pipe is handed down
    theirs = [os.readlink(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd")) if inheritable(fd)]
    context = nbproc.start_processes("fds", inherited, (), nprocs=2, start_method=method)
    for found in context.result().return_values.values():
        beyond = [target for number, target in found if int(number) > 2 and not target.startswith("/proc/")]
        assert [target for target in beyond if method != "fork" or target not in theirs] == []


# ---------------------------------------------------------------- what ranks print

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;title\x07\x1b[2J\x1b]8;;http://evil\x1b\\&amp;"


def print_nasty() -> None:
    print(NASTY)
    print(NASTY, file=sys.stderr)
    raise ValueError(NASTY)


def test_what_ranks_print_is_shown_escaped() -> None:
    context = nbproc.start_processes(NASTY[:8], print_nasty, (), nprocs=1, redirects=nbproc.Std.ALL)
    context.wait()
    context.close()
    report = context.report()
    log = [LineEvent(0, Stream.OUT, 0, NASTY, True, 0.0)]
    page = html.report_html(report) + html.lines_html(log) + html.summary_html(context.snapshot())
    assert "<script" not in page
    assert "<img" not in page
    for text in (explain.text(report), report.headline, context.failures[0].words):
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
        assert "\x07" not in text
    assert NASTY.encode() in Path(context.stderrs[0]).read_bytes()  # the file holds what was written


# ---------------------------------------------------------------- secrets


@pytest.mark.parametrize("method", METHODS)
def test_no_secret_of_the_environment_is_written_to_disk(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    base = Path(tempfile.gettempdir())
    context = nbproc.start_processes(
        "secret",
        victims.rank_1,
        ("raise_value_error",),
        nprocs=2,
        envs={0: {"OWN": SECRET}, 1: {"OWN": SECRET}},
        start_method=method,
        redirects=nbproc.Std.ALL,
    )
    context.wait()
    context.send_signal(0, signal.SIGKILL)
    context.close()
    files = [path for path in base.rglob("*") if path.is_file()]
    assert any(path.name == "error.json" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in explain.text(context.report())
    assert SECRET not in repr(context.snapshot())
