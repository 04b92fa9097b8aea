"""ProcessContext: what `spawn(join=False)` returns, in the shape of torch.multiprocessing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM
from typing import NoReturn

from nbproc import explain
from nbproc.contexts.base import PContext
from nbproc.errors import ProcessExitedException, ProcessRaisedException
from nbproc.failures import ProcessFailure
from nbproc.states import RankSnapshot, RankState, RunState


@dataclass(frozen=True)
class RankHandle:
    """One rank, as far as it can be looked at like a `multiprocessing.Process`."""

    _context: PContext
    rank: int

    def _now(self) -> RankSnapshot:
        return self._context.snapshot().ranks[self.rank]

    @property
    def name(self) -> str:
        """The name of its process."""
        return f"{self._context.name}-{self.rank}"

    @property
    def pid(self) -> int | None:
        """Its process id, None if it was not started."""
        return self._now().pid

    @property
    def exitcode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._now().exitcode

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return not self._now().state.ended

    def terminate(self) -> None:
        """Send it SIGTERM, if it still runs."""
        self._context.send_signal(self.rank, SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL, if it still runs."""
        self._context.send_signal(self.rank, SIGKILL)


class ProcessContext:
    """The ranks of a `spawn`, in `torch's shape <https://docs.pytorch.org/docs/stable/multiprocessing.html>`_.

    ``context`` is the run behind it, with everything that a `MultiprocessContext` offers.
    """

    def __init__(self, context: PContext) -> None:
        self.context = context
        self.processes = [RankHandle(context, rank) for rank in range(context.nprocs)]

    @property
    def error_files(self) -> list[str]:
        """Where each rank that fails writes why, in rank order."""
        return list(self.context.error_files.values())

    def pids(self) -> list[int]:
        """Return the process ids, in rank order."""
        return list(self.context.pids().values())

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for ranks to end, at most ``timeout`` seconds (None: until all have).

        Returns True when all have returned, False if some are left. If a rank has failed, the others are stopped, and
        `ProcessRaisedException` or `ProcessExitedException` is raised for the first that failed. ``grace_period`` is
        the time in seconds that the others then have to end by themselves before SIGTERM, and again before SIGKILL;
        without it they are asked at once (SIGINT), told after 2 s and killed after 4 s.

        An Interrupt stops the ranks and raises KeyboardInterrupt when they are gone.
        """
        if grace_period is not None:
            self.context.spare(grace_period)
        deadline = None if timeout is None else time.monotonic() + timeout
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if self.context.wait(left) is None:
            if not self.context.failures:
                return False
            self.context.wait()
        snapshot = self.context.snapshot()
        if snapshot.first_failed is not None:
            _raise(self.context.failures[snapshot.first_failed], self.context.report())
        if snapshot.state is RunState.STOPPED:
            stopped = next(rank for rank in snapshot.ranks if rank.state is RankState.STOPPED)
            raise ProcessExitedException(
                f"process {stopped.rank} was stopped", stopped.rank, stopped.pid or 0, stopped.exitcode or 1
            )
        return True


SpawnContext = ProcessContext


def _raise(failure: ProcessFailure, report: explain.Report) -> NoReturn:
    rank = failure.local_rank
    if failure.trace is not None and failure.trace.type_name != "SystemExit" and isinstance(failure.message, dict):
        callstack = failure.message.get("extraInfo", {}).get("py_callstack", "")
        message = f"{report.headline}\n\n-- Process {rank} terminated with the following error:\n{callstack}"
        if failure.trace.type_name == "TypeError" and not failure.trace.frames:
            message += "spawn calls the function with the rank first, then args: fn(rank, *args)"
        raise ProcessRaisedException(message, rank, failure.pid)
    explanation = explain.text(report)
    if failure.exitcode < 0:
        name = failure.signal_name()
        text = f"process {rank} terminated with signal {name}\n{explanation}"
        raise ProcessExitedException(text, rank, failure.pid, failure.exitcode, name)
    text = f"process {rank} terminated with exit code {failure.exitcode}\n{explanation}"
    raise ProcessExitedException(text, rank, failure.pid, failure.exitcode)
