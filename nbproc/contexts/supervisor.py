"""The thread that owns the processes of one run, from the first request to the last one reaped.

    ask (any thread) -> [ one loop: Wires (job sockets, exits, what was asked), deadlines ] -> Ends -> Board: Snapshot

Only this thread touches a rank's process, so every rank gets exactly one end, whatever happens to it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence

from nbproc.contexts import deadlines
from nbproc.contexts.board import Board, Stage
from nbproc.contexts.crew import Crew
from nbproc.contexts.deadlines import Deadlines
from nbproc.contexts.ends import Ends, reason
from nbproc.contexts.guarded import Guarded
from nbproc.contexts.ladder import TERM_GRACE, Ladder
from nbproc.contexts.rank import Rank
from nbproc.contexts.stopping import Stopping
from nbproc.contexts.wires import News, Wires
from nbproc.ranks import reap
from nbproc.ranks.process import Lost, RankProcess
from nbproc.states import RankState, RunState

_log = logging.getLogger(__name__)


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
        self.ends = Ends(board, ranks, crew, self._on_failure)
        self.timed_out = False
        self._claim = threading.Lock()
        self._wires = Wires()
        self._thread = threading.Thread(target=self._run, name=f"nbproc-{name}", daemon=True)

    # ---------------------------------------------------------------- any thread

    def start(self) -> None:
        """Start the thread, and with it the run.

        Raises RuntimeError if the system has no thread to give, OSError if it has no descriptor.
        """
        if self._claim.locked():
            return  # abandoned
        self._wires.open()
        self._thread.start()

    def abandon(self) -> bool:
        """Let go of a run whose thread never began. Returns False if it did: then the run has to be stopped."""
        if not self._claim.acquire(blocking=False):
            return False
        self._clean_up()
        return True

    def ask_stop(self, ladder: Callable[[float], Ladder], why: str) -> None:
        """Ask for the end of the run; does not wait. A second ladder counts if it ends sooner."""
        self._wires.post(lambda: self._stop(ladder, why))

    def hurry(self) -> None:
        """Let ranks that have returned exit now: somebody waits for that."""
        self._wires.post(self._linger_no_more)

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
            self._guarded.watch()
            self._wires.watch_guardian(self._guarded.guardian)
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
            self._wires.do_what_was_posted()
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
            self._wires.watch(rank, rank.process)
            self._meet(rank, rank.process)
        self._board.reach(Stage.ASKED)
        for rank in self._ranks:
            if rank.state is RankState.WAITING:
                self._board.set(rank, RankState.STOPPED, "was not started")
        self.ends.answered()
        self._settle()

    def _step(self) -> None:
        self._deadlines.see(self._board.state, time.monotonic())
        deadline = self._next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        for news, rank in self._wires.wait(timeout):
            if news is News.GUARDIAN:
                self._wires.watch_guardian(-1)
                self._guarded.renew(self._board.note)
                self._wires.watch_guardian(self._guarded.guardian)
            elif news is News.EXIT:
                self._news(rank, rank.process)
            else:
                self._listen(rank)
        self._wires.do_what_was_posted()
        self._keep_deadlines()
        self._settle()

    def _meet(self, rank: Rank, process: RankProcess) -> None:
        """Once the pid is known: tell the guardian, then hand over the job."""
        if rank.handed_over or process.identity is None:
            return
        rank.handed_over = True
        self._board.see(rank)
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
        self._wires.forget(rank, process)
        rank.exited = True
        rank.exitcode = 0 if rank.state is RankState.SUCCEEDED and code is None else code
        process.close()
        if process.identity is not None and code is None and not rank.signals:
            reap.end([process.identity, *reap.below([process.identity])])  # nobody will ever report it
        self.ends.gone(rank, code, why, stopping=self._stopping.ladder is not None)

    def _listen(self, rank: Rank) -> None:
        """Take in what a rank says."""
        for kind, body in self._wires.hear(rank):
            assert rank.process is not None
            self.ends.hear(rank, rank.process, kind, body)

    # ---------------------------------------------------------------- stopping

    def _stop(self, ladder: Callable[[float], Ladder], why: str) -> None:
        """Somebody asked for it."""
        if self._board.stage < Stage.FINISHED:
            self._begin_stop(ladder, why)
        else:
            self._lingers = False
            self._stopping.hurry(ladder(time.monotonic()))
            self._climb()

    def _linger_no_more(self) -> None:
        self._lingers = False

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

    # ---------------------------------------------------------------- the end

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
        self._wires.close()
        self._guarded.release()
        self._board.reach(Stage.CLOSED)

    def _last_words(self, left: Sequence[reap.Process]) -> str:
        took = time.time() - self._stopping.since if self._stopping.since else 0.0
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            return f"stopped in {took:.1f} s; the system does not let go of process {pids}"
        why = f"{self._stopping.why}, " if self.timed_out else ""
        who = self._stopping.why if self._stopping.why.endswith("by you") and not self._board.failures else "stopped"
        return f"{why}{who} in {took:.1f} s; nothing left running"
