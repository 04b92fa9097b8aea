"""The thread that owns the processes of one run, from the first request to the last one reaped.

    ask (any thread) -> commands -> [ one loop: job sockets, exits, deadlines ] -> Board: state, failures, Snapshot

Only this thread touches a rank's process, so every rank gets exactly one end, whatever happens to it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nbproc.contexts import deadlines
from nbproc.contexts.board import Board, Stage
from nbproc.contexts.crew import Crew
from nbproc.contexts.deadlines import Deadlines
from nbproc.contexts.ends import Ends, reason
from nbproc.contexts.guarded import Guarded
from nbproc.contexts.ladder import TERM_GRACE, Ladder
from nbproc.contexts.rank import Rank
from nbproc.contexts.stopping import Stopping
from nbproc.ranks import reap
from nbproc.ranks.process import Lost, RankProcess
from nbproc.states import RankState, RunState

_log = logging.getLogger(__name__)

_PATIENCE = 30.0
"""Seconds in which a rank must take or give a message that was begun."""


class _Stop(NamedTuple):
    """A command: end the run."""

    ladder: Callable[[float], Ladder]
    why: str


class Supervisor:
    """Runs one run. `start` returns at once; `Board.wait_for` tells of its stages.

    ``on_close`` lets go of what the launch held for the run. `start`, `ask_stop`, `spare`, `abandon` and `join`
    may be called from any thread. ``ends`` knows what each rank came to.
    """

    def __init__(
        self,
        name: str,
        board: Board,
        ranks: Sequence[Rank],
        crew: Crew,
        *,
        mark: str,
        grace: float | None = None,
        timeout: float | None = None,
        done_words: str = "",
        on_close: Callable[[], object],
    ) -> None:
        self._name = name
        self._board = board
        self._ranks = ranks
        self._crew = crew
        self._grace = grace
        self._spared: float | None = None
        self._timeout = timeout
        self._done_words = done_words
        self._on_close = on_close
        self._guarded = Guarded(mark)
        self._stopping = Stopping(crew.sample)
        self._deadlines = Deadlines(grace, timeout)
        self._lingers = True
        self._commands: deque[_Stop] = deque()
        self.ends = Ends(board, ranks, crew, self._on_failure)
        self.timed_out = False
        self._claim = threading.Lock()
        self._wakes = threading.Lock()
        self._wake_read = self._wake_write = -1  # nothing is opened before `start`: an Interrupt could land here
        self._selector = selectors.PollSelector()  # it needs no descriptor of its own
        self._thread = threading.Thread(target=self._run, name=f"nbproc-{name}", daemon=True)

    # ---------------------------------------------------------------- any thread

    def start(self) -> None:
        """Start the thread, and with it the run.

        Raises RuntimeError if the system has no thread to give, OSError if it has no descriptor.
        """
        if self._claim.locked():
            return  # abandoned
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread.start()

    def abandon(self) -> bool:
        """Let go of a run whose thread never began. Returns False if it did: then the run has to be stopped."""
        if not self._claim.acquire(blocking=False):
            return False
        self._clean_up()
        return True

    def ask_stop(self, ladder: Callable[[float], Ladder], why: str) -> None:
        """Ask for the end of the run; does not wait. A second ladder counts if it ends sooner."""
        with self._wakes:
            if self._wake_write >= 0:
                self._commands.append(_Stop(ladder, why))
                with contextlib.suppress(OSError):
                    os.write(self._wake_write, b"w")

    def hurry(self) -> None:
        """Let ranks that have returned exit now: somebody waits for that."""
        with self._wakes:
            if self._wake_write >= 0:
                self._lingers = False
                with contextlib.suppress(OSError):
                    os.write(self._wake_write, b"w")

    def spare(self, grace: float) -> None:
        """When a rank fails, ask nothing of the others for ``grace`` seconds."""
        self._spared = grace

    def join(self) -> None:
        """Wait for the end of the thread, once the run is closed."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # ---------------------------------------------------------------- the supervising thread

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return  # abandoned
        try:
            self._board.move(RunState.STARTING)
            self._selector.register(self._wake_read, selectors.EVENT_READ, None)
            self._guarded.watch()
            self._watch_guardian()
            self._launch()
            while not all(rank.exited and rank.state.ended for rank in self._ranks):
                self._step()
        except BaseException as error:  # a fault of ours: nothing may stay behind, and nobody may wait for ever
            _log.exception("the supervision of %s failed", self._name)
            self._give_up(f"nbproc itself failed: {error!r}")
        finally:
            self._clean_up()

    def _launch(self) -> None:
        self._deadlines.see(self._board.state, time.monotonic())
        for rank in self._ranks:
            self._take_commands()
            if self._board.state is not RunState.STARTING:
                break
            rank.started = time.time()
            try:
                rank.process = self._crew.start(rank.number)
            except Exception as error:
                rank.started = None
                self.ends.not_started(rank, reason(error))
                self.ends.fail(rank, f"could not be started: {reason(error)}")
                self._begin_stop(Ladder.kill, "the launch failed")
                break
            rank.exited = False
            self._board.set(rank, RankState.STARTING)
            self._selector.register(rank.process.fileno(), selectors.EVENT_READ, (rank, "exit"))
            if rank.process.job is not None:
                rank.process.job.settimeout(_PATIENCE)
                self._selector.register(rank.process.job, selectors.EVENT_READ, (rank, "job"))
                rank.listening = True
            self._meet(rank, rank.process)
        self._board.reach(Stage.ASKED)
        for rank in self._ranks:
            if rank.state is RankState.WAITING:
                self._board.set(rank, RankState.STOPPED, "was not started")
        self.ends.answered()
        self._settle()

    def _watch_guardian(self) -> None:
        if self._guarded.guardian >= 0:
            self._selector.register(self._guarded.guardian, selectors.EVENT_READ, (None, "guardian"))

    def _step(self) -> None:
        self._deadlines.see(self._board.state, time.monotonic())
        deadline = self._next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                continue
            rank, what = key.data
            if what == "guardian":
                self._forget(self._guarded.guardian)
                self._guarded.renew(self._board.note)
                self._watch_guardian()
            elif what == "exit" and not rank.exited:
                self._news(rank, rank.process)
            elif what == "job" and rank.listening:
                self._listen(rank)
        self._take_commands()
        self._keep_deadlines()
        self._settle()

    def _meet(self, rank: Rank, process: RankProcess) -> None:
        """Once the pid is known: tell the guardian, then hand over the job."""
        if rank.handed_over or process.identity is None:
            return
        rank.handed_over = True
        self._guarded.add(process.identity)
        if self._board.state is RunState.STOPPING:
            rank.send(signal.SIGKILL)
            return
        try:
            self._crew.hand_over(rank.number, process)
        except Exception as error:
            # it is gone already, which its exit tells, or what it needs cannot be sent, which ends it
            _log.debug("rank %s: the job could not be handed over", rank.number, exc_info=True)
            rank.trouble = rank.trouble or f"its job could not be sent: {reason(error)}"
            process.signal(signal.SIGKILL)
            return
        if not self._crew.answers:
            self.ends.runs(rank)

    def _news(self, rank: Rank, process: RankProcess) -> None:
        known = process.identity
        try:
            code = process.news()
        except Lost as lost:
            self._listen(rank)
            self._exited(rank, process, None, rank.trouble or str(lost))
            return
        if known is None:
            self._meet(rank, process)
        if code is not None:
            self._listen(rank)
            self._exited(rank, process, code, rank.trouble)

    def _exited(self, rank: Rank, process: RankProcess, code: int | None, why: str) -> None:
        """A process is gone, or nothing more can be known of it (``code`` is None then)."""
        self._forget(process.fileno())
        if rank.listening and process.job is not None:
            self._forget(process.job)
            rank.listening = False
        rank.exited = True
        rank.exitcode = 0 if rank.state is RankState.SUCCEEDED and code is None else code
        process.close()
        if process.identity is not None and code is None and not rank.signals:
            reap.end([process.identity, *reap.below([process.identity])])  # nobody will ever report it
        self.ends.gone(rank, code, why, stopping=self._stopping.ladder is not None)

    def _listen(self, rank: Rank) -> None:
        """Take in what a rank says."""
        if not rank.listening or rank.process is None or rank.process.job is None:
            return
        job = rank.process.job
        while rank.listening:
            job.setblocking(False)
            try:
                message = rank.inbox.read(job)
            except (OSError, ValueError):  # it is gone, or what arrived is not a message
                self._forget(job)
                rank.listening = False
                return
            finally:
                job.settimeout(_PATIENCE)
            if message is None:
                return
            self.ends.hear(rank, rank.process, *message)

    # ---------------------------------------------------------------- stopping

    def _on_failure(self) -> None:
        if self._board.state in (RunState.STARTING, RunState.RUNNING):
            spared = self._spared
            if spared is None:
                self._begin_stop(lambda now: Ladder.failure(now, self._grace), "")
            else:
                self._begin_stop(lambda now: Ladder.spare(now, spared), "")

    def _begin_stop(self, ladder: Callable[[float], Ladder], why: str) -> None:
        if self._stopping.ladder is None:
            self._guarded.add_below()
        self._stopping.begin(ladder, why)
        if self._board.state in (RunState.STARTING, RunState.RUNNING):
            self._board.move(RunState.STOPPING)
            self.ends.answered()
        self._climb()

    def _climb(self) -> None:
        for rank in self._stopping.climb(self._ranks):
            # the fork server never said who it is, or the system does not let go of it: not waited for any longer
            if rank.process is not None:
                rank.signals.add(signal.SIGKILL)
                self._exited(rank, rank.process, None, "")

    def _settle(self) -> None:
        """When all ranks have ended: let those that returned go, and tell the result as soon as it is known."""
        if not all(rank.state.ended for rank in self._ranks):
            return
        succeeded = all(rank.state is RankState.SUCCEEDED for rank in self._ranks)
        if self._board.stage < Stage.FINISHED and succeeded:
            try:
                self._crew.catch_up()
            except Exception:  # the run has succeeded whatever becomes of its text
                _log.exception("the logs of %s could not be read to their end", self._name)
            self._board.headline = self._done_words
            self._finish(RunState.SUCCEEDED)
        now = time.monotonic()
        self._deadlines.returned(now, linger=succeeded)
        if now >= self._deadlines.release_at or not self._lingers:
            self._deadlines.release_at = math.inf
            for rank in self._ranks:
                rank.release()

    def _finish(self, state: RunState) -> None:
        self._board.move(state)
        self._board.reach(Stage.FINISHED)

    # ---------------------------------------------------------------- time

    def _next_deadline(self) -> float | None:
        ladder = self._stopping.next_due()
        due = self._deadlines.next_due() if ladder is None else min(ladder, self._deadlines.next_due())
        return due if due < math.inf else None

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        self._deadlines.see(self._board.state, now)
        if now >= self._deadlines.start_by:
            for rank in self._ranks:
                if rank.state is RankState.STARTING:
                    self.ends.not_started(rank, f"it did not answer within {deadlines.START_TIMEOUT:g} s")
                    self.ends.fail(rank, f"did not answer within {deadlines.START_TIMEOUT:g} s")
            self._begin_stop(Ladder.kill, "the launch failed")
        elif now >= self._deadlines.run_until:
            self.timed_out = True
            self._begin_stop(lambda now: Ladder.stop(now, self._grace), f"timed out after {self._timeout:g} s")
        if now >= self._deadlines.exits_by:
            self._deadlines.exits_by = math.inf
            self._stopping.hurry(Ladder(signal.SIGINT, now, now, now + TERM_GRACE))
        self._climb()

    def _take_commands(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            if self._board.stage < Stage.FINISHED:
                self._begin_stop(command.ladder, command.why)
            else:
                self._lingers = False
                self._stopping.hurry(command.ladder(time.monotonic()))
                self._climb()

    # ---------------------------------------------------------------- the end

    def _forget(self, fileobj: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fileobj)

    def _give_up(self, why: str) -> None:
        for rank in self._ranks:
            if rank.process is not None and not rank.exited:
                with contextlib.suppress(Exception):
                    rank.process.signal(signal.SIGKILL)
                with contextlib.suppress(Exception):
                    rank.process.close()
                rank.exited = True
            if not rank.state.ended:
                with contextlib.suppress(Exception):
                    self.ends.fail(rank, why)

    def _clean_up(self) -> None:
        left: list[reap.Process] = []
        for step in (lambda: left.extend(self._guarded.end()), self._crew.close, self._on_close):
            try:
                step()
            except Exception:
                _log.exception("cleaning up after %s failed", self._name)
        if self._board.stage < Stage.FINISHED and self._board.state is not RunState.CREATED:
            self._board.headline = self._last_words(left)
            self._finish(RunState.FAILED if self._board.failures else RunState.STOPPED)
        self._selector.close()
        self._guarded.release()
        with self._wakes:
            if self._wake_write >= 0:
                os.close(self._wake_read)
                os.close(self._wake_write)
            self._wake_read = self._wake_write = -1
        self._board.reach(Stage.CLOSED)

    def _last_words(self, left: Sequence[reap.Process]) -> str:
        took = time.time() - self._stopping.since if self._stopping.since else 0.0
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            return f"stopped in {took:.1f} s; the system does not let go of process {pids}"
        why = f"{self._stopping.why}, " if self.timed_out else ""
        who = self._stopping.why if self._stopping.why.endswith("by you") and not self._board.failures else "stopped"
        return f"{why}{who} in {took:.1f} s; nothing left running"
