"""D2: no bad request ends the fork server; a server that was killed is replaced."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jobs
import plain
import psutil
import pytest

import nbproc
from nbproc.errors import LaunchError
from nbproc.ranks import client, server, standby, wire
from victims import alive


@pytest.fixture(autouse=True)
def no_ranks_ahead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(standby.VARIABLE, "0")
        standby.close()
        yield


def server_pid() -> int:
    pid = client.current().pid
    assert pid is not None
    return pid


def run() -> None:
    assert nbproc.start_processes("t", abs, {0: (-1,), 1: (-2,)}).wait().return_values == {0: 1, 1: 2}


def kill(pid: int) -> None:
    """Kill a child of this process, and return when it is seen to be gone; it can still be waited for."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def send(words: bytes, descriptors: list[int]) -> None:
    socket.send_fds(client.current()._control, [words], descriptors)


def test_no_bad_request_ends_it() -> None:
    run()
    before = server_pid()
    read, write = os.pipe()
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    with ours, theirs:
        client.current()._control.sendall(b"?!x\0")
        send(b"q", [null] * 3)
        for count in (1, 2, 4, 8):
            send(wire.REQUEST, [null] * count)
            send(wire.AHEAD, [null] * count)
        send(wire.REQUEST, [null, null, null])  # nothing of it is what it should be
        send(wire.REQUEST, [theirs.fileno(), read, null])  # cannot be written to
        send(wire.REQUEST, [theirs.fileno(), write, theirs.fileno()])
    for fd in (read, write, null):
        os.close(fd)
    os.kill(before, signal.SIGINT)
    os.kill(before, signal.SIGCHLD)
    run()
    assert server_pid() == before


def test_one_that_was_killed_is_replaced() -> None:
    run()
    before = server_pid()
    kill(before)
    run()
    assert server_pid() != before


def test_one_that_is_killed_while_ranks_run_takes_them_along(tmp_path: Path) -> None:
    context = nbproc.start_processes("t", jobs.hang_all, {i: (i, tmp_path) for i in range(2)})
    pids = context.pids()
    os.kill(server_pid(), signal.SIGKILL)
    result = context.wait()
    assert result is not None
    assert {rank: failure.words for rank, failure in result.failures.items()} == {
        0: "the fork server has ended",
        1: "the fork server has ended",
    }
    context.close()
    assert not any(alive(pid) for pid in pids.values())
    run()


def test_one_that_is_killed_before_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    pid = server_pid()
    os.kill(pid, signal.SIGSTOP)
    request = client.Server.request

    def kill_after(self: client.Server, *args: Any) -> client.Requested:
        requested = request(self, *args)
        if self.pid == pid and alive(pid):
            os.kill(pid, signal.SIGKILL)
        return requested

    monkeypatch.setattr(client.Server, "request", kill_after)
    with pytest.raises(LaunchError, match=r"rank \d of 2 could not be started: the fork server did not start it;"):
        run()
    run()


def test_one_that_is_gone_at_the_moment_of_the_request_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    pid = server_pid()
    monkeypatch.setattr(client.Server, "usable", True)
    kill(pid)

    def usable(self: client.Server) -> bool:
        return self.pid != pid

    monkeypatch.setattr(client.Server, "_send", _refuse_once(client.Server._send, usable, monkeypatch))
    run()
    assert server_pid() != pid


def _refuse_once(send: Any, usable: Any, patch: pytest.MonkeyPatch) -> Any:
    def sent(self: client.Server, *args: Any) -> None:
        patch.setattr(client.Server, "usable", property(usable))
        send(self, *args)

    return sent


def test_one_that_is_short_of_descriptors_refuses_and_goes_on() -> None:
    run()
    pid = server_pid()
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    psutil.wait_procs(psutil.Process(pid).children(), 30)  # it holds a descriptor for each rank that is on its way out
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, limits[1]))
    try:
        with pytest.raises(LaunchError, match=r"the fork server did not start it: .*limit on open files"):
            run()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    run()
    assert server_pid() == pid


def test_a_fork_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    control, _ = pair = socket.socketpair()
    ours, theirs = wire.pair()
    read, write = os.pipe()
    made = server._Server(control, frozenset(), [], [])

    def fork() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    made._fork(theirs.detach(), write, os.dup(0))
    assert os.read(read, 10) == b""
    assert wire.receive(ours)[:2] == (wire.Kind.TROUBLE, b"fork failed: [Errno 11] Resource temporarily unavailable")
    for one in (*pair, ours):
        one.close()
    made._selector.close()
    for fd in (read, made._wake_read, made._wake_write):
        os.close(fd)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os; os.write(2, b'torch is broken here\\n'); os._exit(3)", "did not start it: torch is broken here"),
        ("raise SystemExit(3)", "importing torch ahead of the ranks failed: SystemExit(3)"),
        ("import nowhere", "importing torch ahead of the ranks failed: ModuleNotFoundError"),
    ],
)
def test_a_module_that_cannot_be_imported_ahead_is_told(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text(source)
    script = f"""
        import os
        os.environ["PYTHONPATH"] = {str(tmp_path / "broken")!r} + os.pathsep + os.environ["PYTHONPATH"]
        import nbproc
        try:
            context = nbproc.start_processes("t", abs, {{0: (-1,)}})
            assert context.wait()[0] == 1
            print(context.snapshot().notes)
        except nbproc.LaunchError as error:
            print(error)
    """
    assert words in "\n".join(plain.lines(tmp_path, script))


def test_it_is_named_in_a_list_of_processes_as_are_ranks(tmp_path: Path) -> None:
    run()
    assert "nbproc/ranks/server_main.py" in " ".join(psutil.Process(server_pid()).cmdline())
    context = nbproc.start_processes("t", jobs.hang_all, {0: (0, tmp_path)}, start_method="spawn")
    assert "nbproc/ranks/rank_main.py" in " ".join(psutil.Process(context.pids()[0]).cmdline())
    context.kill()
    context.close()


def test_few_kinds_of_servers_are_kept(tmp_path: Path) -> None:
    script = """
        import os
        import psutil
        import nbproc
        from nbproc.ranks import client

        def parent(i):
            return os.getppid()

        def of(level):
            return nbproc.start_processes("t", parent, {0: (0,)}, {0: {"PYTHONHASHSEED": level}}).wait()[0]

        client.PRELOAD = ("nbproc.ranks.worker",)
        pids = [of(level) for level in range(client.MOST_SERVERS + 1)]
        assert len(set(pids)) == len(pids) and len(client._servers.by_kind) == client.MOST_SERVERS
        if psutil.pid_exists(pids[0]):
            psutil.Process(pids[0]).wait(10)
        assert of(client.MOST_SERVERS) == pids[-1]
        print("ok")
    """
    assert plain.lines(tmp_path, script, "-X", "dev") == ["ok"]
