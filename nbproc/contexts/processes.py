"""ProcessContext: what `spawn(join=False)` returns, in the shape of torch.multiprocessing."""

from __future__ import annotations

import time
from typing import NoReturn

from nbproc import explain
from nbproc.contexts.base import PContext
from nbproc.errors import ProcessExitedException, ProcessRaisedException
from nbproc.states import RankState, RunState


class ProcessContext:
    """The ranks of a `spawn`, in `torch's shape <https://docs.pytorch.org/docs/stable/multiprocessing.html>`_.

    ``context`` is the run behind it, with everything that a `MultiprocessContext` offers.
    """

    def __init__(self, context: PContext) -> None:
        self.context = context

    def pids(self) -> list[int]:
        """Return the process ids, in rank order."""
        return list(self.context.pids().values())

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for ranks to end, at most ``timeout`` seconds (None: until all have).

        Returns True when all have returned, False if some are left. If a rank has failed, the others are stopped
        (``grace_period`` is the time in seconds between asking them and SIGTERM), and `ProcessRaisedException` or
        `ProcessExitedException` is raised for the first that failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if self.context.wait(left) is None:
            if not self.context.failures:
                return False
            if grace_period is not None:
                self.context.stop(grace_period)
            self.context.wait()
        snapshot = self.context.snapshot()
        if snapshot.first_failed is not None:
            self._raise(snapshot.first_failed)
        if snapshot.state is RunState.STOPPED:
            stopped = next(rank for rank in snapshot.ranks if rank.state is RankState.STOPPED)
            raise ProcessExitedException(
                f"process {stopped.rank} was stopped", stopped.rank, stopped.pid or 0, stopped.exitcode or 1
            )
        return True

    def _raise(self, rank: int) -> NoReturn:
        failure = self.context.failures[rank]
        others = explain.text(self.context.report())
        if failure.trace is not None and failure.trace.type_name != "SystemExit":
            message = f"\n\n-- Process {rank} terminated with the following error:\n{others}"
            if isinstance(failure.message, dict):
                message += f"\n\n{failure.message.get('extraInfo', {}).get('py_callstack', '')}"
            raise ProcessRaisedException(message, rank, failure.pid)
        if failure.exitcode < 0:
            name = failure.signal_name()
            text = f"process {rank} terminated with signal {name}\n{others}"
            raise ProcessExitedException(text, rank, failure.pid, failure.exitcode, name)
        text = f"process {rank} terminated with exit code {failure.exitcode}\n{others}"
        raise ProcessExitedException(text, rank, failure.pid, failure.exitcode)


SpawnContext = ProcessContext
