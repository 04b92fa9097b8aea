"""PContext: a run that has been started, whatever its ranks are.

Plan -> start() -> [Supervisor thread] -> Snapshot     any time, any thread
                   [Tail thread]       -> LineEvent    to subscribers, console, filter files
                -> wait() -> RunProcsResult
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from nbproc import explain, surroundings
from nbproc.contexts import at_exit, numa
from nbproc.contexts.board import Stage
from nbproc.contexts.crew import Crew
from nbproc.contexts.ladder import GRACE, Ladder
from nbproc.contexts.layout import Layout, lay_out
from nbproc.contexts.looking import Looking
from nbproc.contexts.reader import Reader
from nbproc.contexts.results import RunProcsResult
from nbproc.contexts.supervisor import Supervisor
from nbproc.errors import LaunchError, SpawnError, StateError
from nbproc.logs.specs import release_run_dir
from nbproc.plan import Plan, environment, make_plan, new_run_id
from nbproc.ranks import warden
from nbproc.states import RunState

_log = logging.getLogger(__name__)
_ASKING = 0.1
"""Seconds that a launch may take before the run is shown: what shows it would keep the interpreter busy meanwhile."""


class PContext(Looking, ABC):
    """All ranks of one launch. Made by `start_processes`; may also be constructed, in torch's order, and started.

    The API is `torch's <https://docs.pytorch.org/docs/stable/elastic/multiprocessing.html>`_. Beyond it: `result`,
    `snapshot`, `stop`, `subscribe`, and use with ``with`` (leaving the block stops what still runs). Every method may
    be called from any thread. No signal handler is ever installed in this process.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., object] | str,
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: object,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
    ) -> None:
        self._adopt(
            make_plan(
                name,
                entrypoint,
                args,
                envs,
                logs=logs_specs,
                log_line_prefixes=log_line_prefixes,
                duplicate_stdout_filters=duplicate_stdout_filters,
                duplicate_stderr_filters=duplicate_stderr_filters,
            )
        )

    @classmethod
    def of(cls, plan: Plan) -> PContext:
        """Make a context, not started, of a plan."""
        context = cls.__new__(cls)
        context._adopt(plan)
        return context

    def _adopt(self, plan: Plan) -> None:
        numa.check(plan.numa)
        super()._adopt(plan)
        self._result: RunProcsResult | None = None
        self._start_asked = False

    # ---------------------------------------------------------------- launching

    @abstractmethod
    def _crew(self, layout: Layout, envs: Mapping[int, Mapping[str, str]], reader: Reader) -> Crew:
        """Prepare the ranks: everything that can fail before a process starts fails here."""

    def start(self, *, begun: Callable[[PContext], object] | None = None) -> None:
        """Start the ranks and return when all have answered.

        ``begun`` is called in this thread when the ranks were asked for, or after a moment, whatever they answer.

        Blocks for milliseconds; at the first launch of a process, until the fork server has imported torch. Raises
        `StateError` if it was started before, `PayloadError` if something cannot be sent (nothing was started),
        `LaunchError` if a rank cannot be started (the others are gone then). An Interrupt stops what was started.
        """
        with self._lock:
            if self._start_asked:
                raise StateError(f"{self.name} was started before; make a new context to run it again")
            self._start_asked = True
        undo = contextlib.ExitStack()
        try:
            supervisor = self._prepare(undo)
            supervisor.start()
            self._await(Stage.ASKED, _ASKING)
            if begun is not None:
                begun(self)
            else:
                surroundings.current().started(self)
            self._await(Stage.ANSWERED, None)
        except BaseException as error:
            if self._supervisor is None:
                undo.close()
            elif not self._supervisor.abandon():
                self._interrupted()
            if type(error) is RuntimeError and "thread" in str(error):  # as threading says it
                raise LaunchError(f"the system gives this process no thread ({error}). Nothing was started") from error
            if isinstance(error, KeyboardInterrupt):
                surroundings.current().interrupted(self, error)
            raise
        if supervisor.ends.launch_error:
            self.gone()
            raise LaunchError(f"{supervisor.ends.launch_error}; the ranks that were started are gone")

    def _prepare(self, undo: contextlib.ExitStack) -> Supervisor:
        """Make everything that the run needs. ``undo`` lets go of it, and is the supervisor's once there is one."""
        plan = self.plan
        around = surroundings.current()
        run_id = new_run_id()
        mark = "/".join(part for part in (os.environ.get(warden.MARK_VARIABLE, ""), run_id) if part)
        port = undo.enter_context(_hold_port())
        base = dict(os.environ)
        wanted = {
            rank.rank: environment(base, rank, plan.nprocs, port.getsockname()[1], run_id, mark) for rank in plan.ranks
        }
        self.layout, envs = lay_out(plan, wanted, capture=around.captures or plan.capture)
        undo.callback(release_run_dir, self.layout.files.root)
        reader = self._reader = Reader(self, around, self._tell)
        crew = self._crew(self.layout, envs, reader)
        if plan.nprocs > 1 and not any("OMP_NUM_THREADS" in {**base, **rank.env} for rank in plan.ranks):
            where = "--env" if plan.shown else "envs"
            self.notes += (f"OMP_NUM_THREADS=1 (unset; change with {where})",)
        with contextlib.ExitStack() as until_supervised:  # which closes it from then on
            until_supervised.callback(crew.close)
            warden.current().ensure()
            warden.current().mark(mark)
            if trouble := warden.current().trouble:
                self.notes += (trouble,)
                _log.warning("%s", trouble)
            reader.start()
            at_exit.see_to(self)
            self._supervisor = Supervisor(
                self.name,
                self._board,
                self._ranks,
                crew,
                mark=mark,
                grace=plan.grace,
                timeout=plan.timeout,
                done_words=plan.done_words,
                on_close=undo.close,
            )
            until_supervised.pop_all()
        return self._supervisor

    # ---------------------------------------------------------------- waiting

    def wait(self, timeout: float | None = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all ranks have succeeded or any has failed; the others are stopped then.

        ``timeout`` is in seconds: 0 looks once, a negative one waits for ever. ``period`` is torch's and has no
        effect: the end is noticed when it happens. Returns None while ranks run. An Interrupt stops the run as `stop`
        does, and KeyboardInterrupt is raised when its processes are gone; a second one kills at once.
        """
        self._started()
        try:
            done = self._await(Stage.FINISHED, None if timeout is None or timeout < 0 else timeout)
        except BaseException as error:
            self._interrupted()
            if isinstance(error, KeyboardInterrupt):
                surroundings.current().interrupted(self, error)
            raise
        return self._outcome() if done else None

    def result(self) -> RunProcsResult:
        """Wait for the end. Returns the result, or raises `SpawnError` with the first cause.

        Also raised if the run was stopped. `wait` returns a result in all cases.
        """
        outcome = self.wait()
        assert outcome is not None
        snapshot = self.snapshot()
        if snapshot.state is not RunState.SUCCEEDED:
            raise self.error()
        return outcome

    @property
    def timed_out(self) -> bool:
        """True if the run was stopped because it took longer than its timeout."""
        return self._supervisor is not None and self._supervisor.timed_out

    def error(self) -> SpawnError:
        """Return the error of a run that has failed or was stopped; its text is the whole explanation."""
        report = self.report()
        return SpawnError(explain.text(report), self.failures, self._outcome(), explain.text(report, color=True))

    def _await(self, stage: Stage, timeout: float | None) -> bool:
        pump = surroundings.current().pump_period
        if pump is None or threading.current_thread() is not threading.main_thread():
            return self._board.wait_for(stage, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = pump if deadline is None else min(pump, deadline - time.monotonic())
            if self._board.wait_for(stage, max(0.0, left)):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            surroundings.current().pump()

    def _interrupted(self) -> None:
        """Stop the run and wait until it is gone; a further Interrupt kills at once."""
        ask: Callable[[], object] = self.stop
        while True:
            try:
                ask()
                self.gone()
                return
            except KeyboardInterrupt:
                ask = self.kill

    def gone(self, timeout: float | None = None) -> None:
        """Wait until no process, thread or descriptor of the run is left."""
        if self._supervisor is None:
            return
        self._supervisor.hurry()
        if self._board.wait_for(Stage.CLOSED, timeout):
            self._supervisor.join()

    # ---------------------------------------------------------------- stopping

    def stop(self, grace: float | None = None) -> None:
        """Ask the ranks to stop; does not wait.

        Each gets SIGINT (so that ``finally`` runs), SIGTERM after ``grace`` seconds (10 if neither this nor the plan
        says), SIGKILL 2 s later, with all that is left of its session. Does nothing for a run that has ended.
        """
        if self._supervisor is not None:
            patience = self.plan.grace if grace is None else grace
            self._supervisor.ask_stop(lambda now: Ladder.stop(now, patience), "stopped by you")

    def kill(self) -> None:
        """Ask for SIGKILL for all processes of the run, now; does not wait."""
        if self._supervisor is not None:
            self._supervisor.ask_stop(Ladder.kill, "killed by you")

    def send_signal(self, rank: int, signum: int) -> bool:
        """Send a signal to exactly the process of this rank. Returns False if it is gone or was not started.

        What becomes of it is the rank's own end: a rank that is killed by it has failed.
        """
        process = self._ranks[rank].process
        return process is not None and not self._ranks[rank].exited and process.signal(signum)

    def spare(self, grace: float) -> None:
        """When a rank fails, leave the others alone for ``grace`` seconds; SIGTERM then, SIGKILL as long after it.

        For the rest of this run, in place of asking them to stop at once. Does nothing before the start.
        """
        if self._supervisor is not None:
            self._supervisor.spare(grace)

    def close(self, death_sig: int | None = None, timeout: float = 30) -> None:
        """End all ranks and wait until they are gone: ``death_sig`` (SIGTERM), after ``timeout`` seconds SIGKILL."""
        if self._supervisor is None:
            return
        signum = int(signal.SIGTERM if death_sig is None else death_sig)
        self._supervisor.ask_stop(lambda now: Ladder.close(now, signum, timeout), "closed")
        self.gone()

    def __enter__(self) -> PContext:
        if not self._start_asked:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self.gone()

    # ---------------------------------------------------------------- looking

    def pids(self) -> dict[int, int]:
        """Return rank -> process id, for the ranks that were started.

        When the result is known this waits until the processes are gone (milliseconds), so that nobody finds them.
        """
        if self._board.stage is Stage.FINISHED:
            self.gone(GRACE)
        return {rank.rank: rank.pid for rank in self.snapshot().ranks if rank.pid is not None}

    # ---------------------------------------------------------------- inside

    @property
    def _stdout_tail(self) -> Reader | None:
        """What follows the logs, by the name that torch 1.13 had for it: programs ask it whether it has ``stopped``."""
        if self._board.stage is Stage.FINISHED:
            self.gone(GRACE)
        return self._reader

    _stderr_tail = _stdout_tail

    def _started(self) -> None:
        if self._supervisor is None:
            raise StateError(f"{self.name} was not started; call start() first")

    def _outcome(self) -> RunProcsResult:
        with self._lock:
            if self._result is None:
                values = self._values()
                self._result = RunProcsResult(
                    return_values=values if self._board.state is RunState.SUCCEEDED else {},
                    failures=self.failures,
                    stdouts=self.stdouts,
                    stderrs=self.stderrs,
                )
                self._result.partial_values = values
            return self._result

    def _values(self) -> dict[int, Any]:
        return self.partial_values


def _hold_port() -> socket.socket:
    """Bind a free port on loopback and hold it, not listening, so that only rank 0's store can listen on it.

    Both binds have SO_REUSEADDR; nobody else is given the port while it is bound.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
