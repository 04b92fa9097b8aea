"""Which end each rank comes to: from what it says, from how its process ends, from what it leaves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from nbproc.contexts.board import Board, Stage
from nbproc.contexts.crew import Crew
from nbproc.contexts.rank import Rank
from nbproc.failures import OomWatch
from nbproc.ranks.process import RankProcess
from nbproc.ranks.wire import Kind
from nbproc.states import RankState, RunState


class Ends:
    """Puts ranks into their states, each into one end exactly. Used by the supervisor's thread.

    ``failed`` is called after each rank that has failed. ``readers`` unpickle what ranks returned; ``launch_error``
    says which rank could not be started, and why.
    """

    def __init__(self, board: Board, ranks: Sequence[Rank], crew: Crew, failed: Callable[[], object]) -> None:
        self._board = board
        self._ranks = ranks
        self._crew = crew
        self._failed = failed
        self._oom = OomWatch.now()
        self.readers: dict[int, Callable[[], Any]] = {}
        self.launch_error = ""

    def hear(self, rank: Rank, process: RankProcess, kind: Kind, body: bytes) -> None:
        """Take in what a rank says."""
        if kind is Kind.READY and rank.state is RankState.STARTING:
            self.runs(rank)
        elif kind is Kind.TROUBLE:
            rank.trouble = body.decode(errors="replace")
            self._board.note(f"rank {rank.number}: {rank.trouble}")
        elif kind is Kind.RETURNED and not rank.state.ended:
            try:
                self.readers[rank.number] = self._crew.result(rank.number, process)
            except (OSError, EOFError) as error:
                self.fail(rank, f"its return value did not arrive: {reason(error)}")
                self._failed()
            else:
                self._board.set(rank, RankState.SUCCEEDED, "returned")
        elif kind in (Kind.RAISED, Kind.INTERRUPTED) and not rank.state.ended:
            self._raised(rank, kind, body)

    def _raised(self, rank: Rank, kind: Kind, body: bytes) -> None:
        rank.told = kind
        code, _, unwritten = body.partition(b"\n")
        rank.exitcode = int(code or b"1")
        with contextlib.suppress(ValueError):
            rank.unwritten = json.loads(unwritten) if unwritten else None
        if rank.signals and (kind is Kind.INTERRUPTED or not self._board.failures):
            self.stopped(rank)
        else:
            self.fail(rank)
            self._failed()

    def gone(self, rank: Rank, code: int | None, why: str, *, stopping: bool) -> None:
        """Its process is gone, or nothing more can be known of it (``code`` is None then)."""
        if rank.state.ended:
            self._board.publish(rank)
        elif code == 0 and not self._crew.answers:
            self._board.set(rank, RankState.SUCCEEDED, "exited with code 0")
        elif rank.signals or (stopping and rank.state is RankState.STARTING):
            self.stopped(rank)
        else:
            started = rank.state is RankState.RUNNING
            if not started:
                self.not_started(rank, why or f"it ended with {_code(code)} before it answered")
                why = f"could not be started: {why}" if why else ""
            self.fail(rank, why if code is None or not started else "")
            self.answered()
            self._failed()

    def runs(self, rank: Rank) -> None:
        """The rank has answered."""
        self._board.set(rank, RankState.RUNNING)
        self.answered()

    def fail(self, rank: Rank, why: str = "") -> None:
        """The rank has failed; ``why`` is a sentence that stands in for an exception, where there was none."""
        more = {"reason": why, "oom": self._oom.since(), "data": rank.unwritten}
        self._board.fail(rank, self._crew.failure(rank.number, rank.pid, rank.exitcode, **more))

    def stopped(self, rank: Rank) -> None:
        """This library has ended the rank."""
        where = self._crew.where(rank.number, rank.told is not None)
        self._board.set(rank, RankState.STOPPED, where or "stopped")

    def not_started(self, rank: Rank, why: str) -> None:
        """Note why a rank could not be started; the first one is told."""
        self.launch_error = self.launch_error or f"rank {rank.number} of {len(self._ranks)} could not be started: {why}"

    def answered(self) -> None:
        """See whether every rank has answered, or is known never to."""
        waiting = any(rank.state in (RankState.WAITING, RankState.STARTING) for rank in self._ranks)
        if self._board.state is RunState.STARTING and not waiting:
            self._board.move(RunState.RUNNING)
        if self._board.state is not RunState.STARTING:
            self._board.reach(Stage.ANSWERED)


def reason(error: BaseException) -> str:
    """Return what an error says, or what it is."""
    return str(error) or type(error).__name__


def _code(code: int | None) -> str:
    return "an unknown exit code" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
