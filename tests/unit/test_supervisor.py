"""The supervisor with ranks that are made up: what no real process does on demand."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nbproc.contexts import deadlines, guarded, stopping
from nbproc.contexts.board import Board, Stage
from nbproc.contexts.crew import Crew
from nbproc.contexts.ladder import Ladder
from nbproc.contexts.rank import Rank
from nbproc.contexts.supervisor import Supervisor
from nbproc.failures import ProcessFailure, failure_of
from nbproc.ranks import reap, wire
from nbproc.ranks.process import Lost, RankProcess
from nbproc.states import RankState, RunState, Snapshot

NOBODY = reap.Process(2**22 + 7, 1)
"""A process that does not exist."""


_made: list[Made] = []


class Made(RankProcess):
    """A rank's process that does what a test says: ``end`` with a code, ``lose`` it, ``say`` something."""

    def __init__(self, *, known: bool = True, mortal: bool = True, polite: bool = False) -> None:
        self.job, self.rank_side = socket.socketpair()
        _made.append(self)
        self._read, self._write = os.pipe()
        self._code: int | None = None
        self._lost = False
        self._mortal = mortal
        self._polite = polite
        self.closed = False
        self.heard: list[int] = []
        self.identity = NOBODY if known else None

    def fileno(self) -> int:
        return self._read

    def news(self) -> int | None:
        if self._lost:
            raise Lost("nobody knows")
        return self._code

    def signal(self, signum: int) -> bool:
        self.heard.append(signum)
        if (signum == signal.SIGKILL and self._mortal) or (signum == signal.SIGINT and self._polite):
            self.end(-signum)
        return self.identity is not None

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for fd in (self._read, self._write):
            os.close(fd)
        assert self.job is not None
        self.job.close()

    def end(self, code: int) -> None:
        self._code = code
        os.write(self._write, b"x")

    def lose(self) -> None:
        self._lost = True
        os.write(self._write, b"x")

    def say(self, kind: wire.Kind, body: bytes = b"") -> None:
        wire.send(self.rank_side, kind, body)


class Cast(Crew):
    """Hands out processes that were made up."""

    answers = True

    def __init__(self, *made: Made | Exception) -> None:
        self.made = made
        self.closed = False
        self.handed: list[int] = []

    def start(self, rank: int) -> RankProcess:
        made = self.made[rank]
        if isinstance(made, Exception):
            raise made
        return made

    def hand_over(self, rank: int, process: RankProcess) -> None:
        self.handed.append(rank)

    def result(self, rank: int, process: RankProcess) -> Callable[[], Any]:
        return lambda: rank

    def failure(self, rank: int, pid: int | None, exitcode: int | None, **more: Any) -> ProcessFailure:
        return failure_of(rank, pid, exitcode, None, None, **more)

    def where(self, rank: int, told: bool) -> str:
        return ""

    def catch_up(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Run:
    """A run of made up ranks."""

    def __init__(self, *made: Made | Exception, **given: Any) -> None:
        self.crew = Cast(*made)
        self.ranks = [Rank(number) for number in range(len(made))]
        self.told: list[Snapshot] = []
        self.listeners: list[Callable[[Snapshot], None]] = [self.told.append]
        self.board = Board("n", self.ranks, self._tell, lambda: (None, ()))
        self.released: list[bool] = []
        self.supervisor = Supervisor(
            "n", self.board, self.ranks, self.crew, mark="m", on_close=lambda: self.released.append(True), **given
        )

    def _tell(self, snapshot: Snapshot) -> None:
        for listener in self.listeners:
            listener(snapshot)

    def wait(self, stage: Stage = Stage.CLOSED) -> None:
        assert self.board.wait_for(stage, 30), self.board.snapshot
        if stage is Stage.CLOSED:
            self.supervisor.join()
            assert self.crew.closed
            assert self.released == [True]

    def words(self) -> list[str]:
        return [rank.words for rank in self.board.snapshot.ranks]

    def states(self) -> list[str]:
        return [rank.state.value for rank in self.board.snapshot.ranks]


@pytest.fixture(autouse=True)
def nobody_is_guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Nobody:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args: None

    monkeypatch.setattr(guarded.warden, "current", Nobody)
    yield
    while _made:
        made = _made.pop()
        made.close()
        made.rank_side.close()


def test_a_run_that_goes_well() -> None:
    made = Made(), Made()
    run = Run(*made, done_words="results are in _")
    run.supervisor.start()
    for one in made:
        one.say(wire.Kind.READY)
    run.wait(Stage.ANSWERED)
    for one in made:
        one.say(wire.Kind.RETURNED)
    run.wait(Stage.FINISHED)
    assert run.board.snapshot.state is RunState.SUCCEEDED
    assert run.board.snapshot.headline == "results are in _"
    assert all(one.rank_side.recv(1) == b"" for one in made)  # both may go now
    for one in made:
        one.end(0)
    run.wait()
    assert {rank: read() for rank, read in run.supervisor.ends.readers.items()} == {0: 0, 1: 1}
    assert [snapshot.state.value for snapshot in run.told][-1] == "succeeded"
    assert run.crew.handed == [0, 1]


def test_ranks_that_returned_exit_when_somebody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept for a moment, so that who waits for the result goes first, and not from who waits for their end."""
    monkeypatch.setattr(deadlines, "LINGER", 3600.0)
    made = Made(), Made()
    run = Run(*made, grace=7200.0)
    run.supervisor.start()
    for one in made:
        one.say(wire.Kind.RETURNED)
    run.wait(Stage.FINISHED)
    with pytest.raises(BlockingIOError):
        made[0].rank_side.recv(1, socket.MSG_DONTWAIT)
    run.supervisor.hurry()
    assert all(one.rank_side.recv(1) == b"" for one in made)
    for one in made:
        one.end(0)
    run.wait()


def test_a_timeout_counts_from_when_all_ranks_have_started() -> None:
    first, second = Made(polite=True), Made(polite=True)
    run = Run(first, second, timeout=0)

    def once_the_first_runs(snapshot: Snapshot) -> None:
        if snapshot.ranks[0].state is RankState.RUNNING and snapshot.ranks[1].state is RankState.STARTING:
            second.say(wire.Kind.READY)

    run.listeners.append(once_the_first_runs)
    first.say(wire.Kind.READY)
    run.supervisor.start()
    run.wait()
    assert RunState.RUNNING in [snapshot.state for snapshot in run.told]
    assert run.board.snapshot.state is RunState.STOPPED
    assert run.board.snapshot.headline == "timed out after 0 s, stopped in 0.0 s; nothing left running"


def test_a_timeout_counts_for_ranks_that_do_not_answer() -> None:
    run = Run(Made(polite=True), timeout=0)
    run.crew.answers = False
    run.supervisor.start()
    run.wait()
    assert run.supervisor.timed_out


def test_a_rank_that_the_server_never_makes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "START_TIMEOUT", 0.01)
    never = Made(known=False)
    run = Run(never)
    run.supervisor.start()
    run.wait()
    assert run.board.snapshot.state is RunState.FAILED
    assert run.words() == ["did not answer within 0.01 s"]
    assert "rank 0 of 1 could not be started" in run.supervisor.ends.launch_error
    assert never.closed  # which ends it, should it be made after all


def test_a_stop_before_the_server_has_made_a_rank_does_not_wait_for_it() -> None:
    run = Run(Made(known=False), Made(known=False))
    run.supervisor.start()
    run.supervisor.ask_stop(lambda now: Ladder.stop(now, None), "stopped by you")
    run.wait()
    assert run.states() == ["stopped", "stopped"]
    assert run.supervisor.ends.launch_error == ""


def test_a_process_that_the_system_does_not_let_go_of_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "UNKILLABLE", 0.01)
    monkeypatch.setattr(reap, "end", lambda leaders, mark="", timeout=5.0: list(leaders))
    stuck = Made(mortal=False)
    run = Run(stuck)
    run.supervisor.start()
    stuck.say(wire.Kind.READY)
    run.wait(Stage.ANSWERED)
    run.supervisor.ask_stop(Ladder.kill, "killed by you")
    run.wait()
    assert signal.SIGKILL in stuck.heard
    assert run.states() == ["stopped"]
    assert f"the system does not let go of process {NOBODY.pid}" in run.board.snapshot.headline


def test_each_rank_gets_each_signal_once_and_in_order() -> None:
    made = Made(mortal=True)
    run = Run(made, grace=0.05)
    run.supervisor.start()
    made.say(wire.Kind.READY)
    run.wait(Stage.ANSWERED)
    run.supervisor.ask_stop(lambda now: Ladder.stop(now, 0.02), "stopped by you")
    run.supervisor.ask_stop(lambda now: Ladder.stop(now, 0.03), "stopped by you")
    run.wait()
    assert made.heard == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]


def test_when_the_end_of_a_process_is_lost_its_rank_has_failed() -> None:
    made = Made(), Made(polite=True)
    run = Run(*made)
    run.supervisor.start()
    for one in made:
        one.say(wire.Kind.READY)
    run.wait(Stage.ANSWERED)
    made[0].lose()
    run.wait()
    assert run.board.snapshot.state is RunState.FAILED
    assert run.words() == ["nobody knows", "stopped"]


def test_what_the_server_says_in_a_ranks_place_is_the_reason() -> None:
    made = Made(known=False)
    made.say(wire.Kind.TROUBLE, b"fork failed: no memory")
    made.lose()
    run = Run(made)
    run.supervisor.start()
    run.wait()
    assert run.supervisor.ends.launch_error == "rank 0 of 1 could not be started: fork failed: no memory"
    assert run.words() == ["could not be started: fork failed: no memory"]


def test_a_rank_that_cannot_be_asked_for_ends_the_others() -> None:
    made = Made()
    run = Run(made, OSError(24, "Too many open files"), Made())
    run.supervisor.start()
    run.wait()
    assert run.states() == ["stopped", "failed", "stopped"]
    assert "rank 1 of 3 could not be started" in run.supervisor.ends.launch_error
    assert made.closed


def test_nonsense_from_a_rank_is_not_believed() -> None:
    made = Made()
    run = Run(made)
    run.supervisor.start()
    made.say(wire.Kind.READY)
    run.wait(Stage.ANSWERED)
    made.rank_side.sendall(b"\xff" * 100)
    made.end(0)
    run.wait()
    assert run.words() == ["exited with code 0 before returning"]


def test_a_fault_of_the_supervisor_itself_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made()
    run = Run(made)

    def fault(self: Any) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(Supervisor, "_keep_deadlines", fault)
    run.supervisor.start()
    made.say(wire.Kind.READY)
    run.wait()
    assert run.board.snapshot.state is RunState.FAILED
    assert "nbproc itself failed" in run.words()[0]
    assert made.closed
    assert "the supervision of n failed" in caplog.text


def test_a_run_that_never_began_is_abandoned() -> None:
    run = Run(Made())
    assert run.supervisor.abandon()
    assert run.board.stage is Stage.CLOSED
    assert run.crew.closed
    run.supervisor.start()  # as if an Interrupt had landed between the two
    run.supervisor.join()
    assert run.board.snapshot.state is RunState.CREATED
    assert not run.supervisor.abandon()
    run.supervisor.ask_stop(Ladder.kill, "")


def test_a_rank_that_returns_while_the_run_stops_is_let_go() -> None:
    made = Made(), Made()
    run = Run(*made, grace=5)
    run.supervisor.start()
    for one in made:
        one.say(wire.Kind.READY)
    run.wait(Stage.ANSWERED)
    made[0].say(wire.Kind.RAISED, b"1")
    made[1].say(wire.Kind.RETURNED)
    assert made[1].rank_side.recv(1) == b""
    for one in made:
        one.end(0)
    run.wait()
    assert run.states() == ["failed", "succeeded"]
    assert signal.SIGINT not in made[1].heard
    assert run.board.snapshot.ranks[1].state is RankState.SUCCEEDED
