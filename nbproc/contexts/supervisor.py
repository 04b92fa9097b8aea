"""The thread that owns the processes of one run, from the first request to the last one reaped.

    ask (any thread) -> commands -> [ one loop: job sockets, exits, deadlines ] -> Snapshot, events -> watchers

Only this thread touches a rank's process, so every rank gets exactly one end, whatever happens to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nbproc.contexts.ladder import GRACE, Ladder
from nbproc.failures import OomWatch, ProcessFailure, first_cause
from nbproc.ranks import reap, warden
from nbproc.ranks.process import Lost, RankProcess
from nbproc.ranks.wire import Inbox, Kind
from nbproc.states import RANK_TRANSITIONS, RUN_TRANSITIONS, RankSnapshot, RankState, RunState, Snapshot

_log = logging.getLogger(__name__)

_PATIENCE = 30.0
"""Seconds in which a rank must take or give a message that was begun."""
START_TIMEOUT = 300.0
"""Seconds in which a rank must answer after it was asked for; a first import of torch from a cold disk is in it."""


class Crew(ABC):
    """How the ranks of one kind of run are made and understood: of functions, of executables."""

    answers: bool
    """True if a rank says itself that it runs, and returns a value."""

    @abstractmethod
    def start(self, rank: int) -> RankProcess:
        """Ask for the process of a rank. Raises `OSError` or `LaunchError`; nothing is left then."""

    @abstractmethod
    def hand_over(self, rank: int, process: RankProcess) -> None:
        """Send the rank its job. Called once its pid is known."""

    @abstractmethod
    def result(self, rank: int, process: RankProcess) -> Callable[[], Any]:
        """Receive what a rank returned; the reader that is returned unpickles it."""

    @abstractmethod
    def failure(self, rank: int, pid: int | None, exitcode: int | None, **more: Any) -> ProcessFailure:
        """Say why a rank ended badly, from what it left."""

    @abstractmethod
    def where(self, rank: int) -> str:
        """Say where a rank was when it was stopped, "" if that is not known."""

    @abstractmethod
    def catch_up(self) -> None:
        """Return when everything that the ranks wrote so far was seen by whoever reads it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that the run held: files, sockets, the reader thread."""


@dataclass
class _Rank:
    number: int
    state: RankState = RankState.WAITING
    process: RankProcess | None = None
    inbox: Inbox = field(default_factory=Inbox)
    handed_over: bool = False
    listening: bool = False
    exited: bool = True
    exitcode: int | None = None
    started: float | None = None
    ended: float | None = None
    words: str = ""
    told: Kind | None = None
    """RAISED or INTERRUPTED, once it said so."""
    signals: set[int] = field(default_factory=set)
    released: bool = False

    @property
    def pid(self) -> int | None:
        return self.process.identity.pid if self.process and self.process.identity else None


@dataclass(frozen=True)
class _Stop:
    """A command: end the run."""

    ladder: Callable[[float], Ladder]
    why: str


class Supervisor:
    """Runs one run. `start` returns at once; `wait_for` tells of its stages. Safe from any thread."""

    def __init__(
        self,
        name: str,
        nprocs: int,
        crew: Crew,
        *,
        mark: str,
        grace: float | None = None,
        timeout: float | None = None,
        listener: Callable[[Snapshot], object],
        facts: Callable[[], dict[str, Any]],
        done_words: str = "",
        on_close: Callable[[], object],
    ) -> None:
        self._name = name
        self._crew = crew
        self._mark = mark
        self._grace = grace
        self._timeout = timeout
        self._listener = listener
        self._facts = facts
        self._done_words = done_words
        self._on_close = on_close
        self._ranks = [_Rank(number) for number in range(nprocs)]
        self._identities: list[reap.Process] = []
        self._state = RunState.CREATED
        self._started: float | None = None
        self._ended: float | None = None
        self._headline = ""
        self._notes: tuple[str, ...] = ()
        self._stopping_since = 0.0
        self._stop_why = ""
        self._ladder: Ladder | None = None
        self._exits_by: float | None = None
        self._commands: deque[_Stop] = deque()
        self._oom = OomWatch.now()
        self.failures: dict[int, ProcessFailure] = {}
        self.readers: dict[int, Callable[[], Any]] = {}
        self.launch_error: str = ""
        self.left: list[reap.Process] = []
        self.timed_out = False
        self._condition = threading.Condition()
        self._answered = False
        self._finished = False
        self._closed = False
        self._snapshot = self._take_snapshot()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name=f"nbproc-{name}", daemon=True)

    # ---------------------------------------------------------------- any thread

    def start(self) -> None:
        """Start the thread, and with it the run."""
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """Return the run's state now."""
        return self._snapshot

    def ask_stop(self, ladder: Callable[[float], Ladder], why: str) -> None:
        """Ask for the end of the run; does not wait. A second ladder counts if it ends sooner."""
        with self._condition:
            if self._closed:
                return
            self._commands.append(_Stop(ladder, why))
            self._wake()

    def wait_for(self, stage: str, timeout: float | None) -> bool:
        """Wait until the ranks have ``answered``, the run is ``finished``, or it is ``closed``; False if time is up."""
        with self._condition:
            return self._condition.wait_for(lambda: bool(getattr(self, f"_{stage}")), timeout)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"w")

    # ---------------------------------------------------------------- the supervising thread

    def _run(self) -> None:
        try:
            self._move(RunState.STARTING)
            self._started = time.time()
            self._selector.register(self._wake_read, selectors.EVENT_READ, None)
            self._launch()
            while not all(rank.exited and rank.state.ended for rank in self._ranks):
                self._step()
        except BaseException as error:  # a fault of ours: nothing may stay behind, and nobody may wait for ever
            _log.exception("the supervision of %s failed", self._name)
            self._give_up(f"nbproc itself failed: {error!r}")
        finally:
            self._clean_up()

    def _launch(self) -> None:
        now = time.monotonic()
        self._start_by = now + START_TIMEOUT
        self._run_until = None if self._timeout is None else now + self._timeout
        for rank in self._ranks:
            self._take_commands()
            if self._state is not RunState.STARTING:
                break
            rank.started = time.time()
            try:
                rank.process = self._crew.start(rank.number)
            except Exception as error:
                rank.started = None
                self.launch_error = f"rank {rank.number} of {len(self._ranks)} could not be started: {_reason(error)}"
                self._fail(rank, reason=f"could not be started: {_reason(error)}")
                self._begin_stop(Ladder.kill, "the launch failed")
                break
            rank.exited = False
            self._set(rank, RankState.STARTING)
            self._selector.register(rank.process.fileno(), selectors.EVENT_READ, (rank, "exit"))
            if rank.process.job is not None:
                rank.process.job.settimeout(_PATIENCE)
                self._selector.register(rank.process.job, selectors.EVENT_READ, (rank, "job"))
                rank.listening = True
            self._meet(rank)
        for rank in self._ranks:
            if rank.state is RankState.WAITING:
                self._set(rank, RankState.STOPPED, "was not started")
        self._publish()

    def _step(self) -> None:
        deadline = self._next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                continue
            rank, what = key.data
            if what == "exit" and not rank.exited:
                self._news(rank)
            elif what == "job" and rank.listening:
                self._listen(rank)
        self._take_commands()
        self._keep_deadlines()
        self._settle()

    def _meet(self, rank: _Rank) -> None:
        """Once the pid is known: tell the guardian, then hand over the job."""
        assert rank.process is not None
        if rank.handed_over or rank.process.identity is None:
            return
        rank.handed_over = True
        self._identities.append(rank.process.identity)
        warden.current().rank(rank.process.identity.pid)
        if self._state is RunState.STOPPING:
            rank.process.signal(signal.SIGKILL)
            rank.signals.add(signal.SIGKILL)
            return
        try:
            self._crew.hand_over(rank.number, rank.process)
        except Exception as error:
            # it is gone already, which its exit tells, or what it needs cannot be sent, which ends it
            _log.debug("rank %s: the job could not be handed over", rank.number, exc_info=True)
            rank.words = f"its job could not be sent: {_reason(error)}"
            rank.process.signal(signal.SIGKILL)
            return
        if not self._crew.answers:
            self._set(rank, RankState.RUNNING)
            self._all_answered()

    def _news(self, rank: _Rank) -> None:
        assert rank.process is not None
        known = rank.process.identity
        try:
            code = rank.process.news()
        except Lost as lost:
            self._listen(rank)
            self._exited(rank, None, str(lost))
            return
        if known is None:
            self._meet(rank)
        if code is not None:
            self._listen(rank)
            self._exited(rank, code, rank.words)

    def _exited(self, rank: _Rank, code: int | None, reason: str) -> None:
        assert rank.process is not None
        self._forget(rank.process.fileno())
        if rank.listening and rank.process.job is not None:
            self._forget(rank.process.job)
            rank.listening = False
        rank.exited = True
        rank.exitcode = 0 if rank.state is RankState.SUCCEEDED and code is None else code
        identity = rank.process.identity
        rank.process.close()
        if identity is not None and code is None:
            reap.end([identity])  # nobody will ever report it
        if rank.state.ended:
            self._publish()
        elif code == 0 and not self._crew.answers:
            self._set(rank, RankState.SUCCEEDED, "exited with code 0")
        elif rank.signals:
            self._stopped(rank)
        else:
            started = rank.state is RankState.RUNNING
            if not started and code is None and not self._answered:
                self.launch_error = f"rank {rank.number} of {len(self._ranks)} could not be started: {reason}"
            self._fail(rank, reason=reason if code is None or not started else "")
            self._on_failure()

    def _listen(self, rank: _Rank) -> None:
        """Take in what a rank says."""
        if not rank.listening or rank.process is None or rank.process.job is None:
            return
        job = rank.process.job
        while rank.listening:
            job.setblocking(False)
            try:
                message = rank.inbox.read(job)
            except OSError:
                self._forget(job)
                rank.listening = False
                return
            finally:
                job.settimeout(_PATIENCE)
            if message is None:
                return
            self._hear(rank, rank.process, *message)

    def _hear(self, rank: _Rank, process: RankProcess, kind: Kind, body: bytes) -> None:
        if kind is Kind.READY and rank.state is RankState.STARTING:
            self._set(rank, RankState.RUNNING)
            self._all_answered()
        elif kind is Kind.TROUBLE:
            self._note(f"rank {rank.number}: {body.decode(errors='replace')}")
            rank.words = rank.words or body.decode(errors="replace")
        elif kind is Kind.RETURNED and not rank.state.ended:
            try:
                self.readers[rank.number] = self._crew.result(rank.number, process)
            except (OSError, EOFError) as error:
                self._fail(rank, reason=f"its return value did not arrive: {_reason(error)}")
                self._on_failure()
            else:
                self._set(rank, RankState.SUCCEEDED, "returned")
        elif kind in (Kind.RAISED, Kind.INTERRUPTED) and not rank.state.ended:
            rank.told = kind
            rank.exitcode = int(body or b"1")
            if kind is Kind.INTERRUPTED and rank.signals:
                self._stopped(rank)
            elif self._stop_why and not self._failed and rank.signals:
                self._stopped(rank)
            else:
                self._fail(rank)
                self._on_failure()

    # ---------------------------------------------------------------- ends

    @property
    def _failed(self) -> bool:
        return bool(self.failures)

    def _fail(self, rank: _Rank, reason: str = "") -> None:
        failure = self._crew.failure(rank.number, rank.pid, rank.exitcode, reason=reason, oom=self._oom.since())
        self.failures[rank.number] = failure
        self._set(rank, RankState.FAILED, failure.words)

    def _stopped(self, rank: _Rank) -> None:
        where = self._crew.where(rank.number) if rank.told is not None else ""
        self._set(rank, RankState.STOPPED, where or "stopped")

    def _on_failure(self) -> None:
        if self._state in (RunState.STARTING, RunState.RUNNING):
            self._begin_stop(lambda now: Ladder.failure(now, self._grace), "")

    def _begin_stop(self, ladder: Callable[[float], Ladder], why: str) -> None:
        now = time.monotonic()
        wanted = ladder(now)
        if self._ladder is None:
            self._ladder = wanted
            self._stopping_since = time.time()
        else:
            self._ladder = self._ladder.sooner(wanted)
        self._stop_why = self._stop_why or why
        if self._state in (RunState.STARTING, RunState.RUNNING):
            self._move(RunState.STOPPING)
        self._climb()

    def _climb(self) -> None:
        """Send every rank the signals that are due."""
        if self._ladder is None:
            return
        for rank in self._ranks:
            if rank.exited or rank.process is None:
                continue
            for signum in self._ladder.due(time.monotonic()):
                if signum in rank.signals:
                    continue
                in_user_code = rank.state is RankState.RUNNING
                if signum != signal.SIGKILL and not in_user_code:
                    if rank.state is RankState.STARTING:
                        signum = signal.SIGKILL  # nothing of the user's has run
                    elif rank.state is RankState.SUCCEEDED:
                        self._release(rank)
                        if signum == self._ladder.first:
                            continue
                    elif signum == self._ladder.first:
                        continue  # it is on its way out
                if signum == signal.SIGKILL and rank.process.identity is not None:
                    for process in reap.members([rank.process.identity]):
                        reap.send_signal(process, signum)
                if rank.process.signal(signum):
                    rank.signals.add(signum)

    def _settle(self) -> None:
        """When all ranks have ended: let those that returned go, and tell the result as soon as it is known."""
        if not all(rank.state.ended for rank in self._ranks):
            return
        for rank in self._ranks:
            self._release(rank)
        if self._exits_by is None:
            self._exits_by = time.monotonic() + (GRACE if self._grace is None else self._grace)
        if not self._finished and all(rank.state is RankState.SUCCEEDED for rank in self._ranks):
            try:
                self._crew.catch_up()
            except Exception:  # the run has succeeded whatever becomes of its text
                _log.exception("the logs of %s could not be read to their end", self._name)
            self._headline = self._done_words
            self._finish(RunState.SUCCEEDED)

    def _release(self, rank: _Rank) -> None:
        """Let a rank that has returned exit: its job socket is closed for writing."""
        if rank.released or rank.process is None or rank.process.job is None or rank.exited:
            return
        rank.released = True
        with contextlib.suppress(OSError):
            rank.process.job.shutdown(1)  # SHUT_WR

    # ---------------------------------------------------------------- time

    def _next_deadline(self) -> float | None:
        now = time.monotonic()
        due = [self._exits_by if self._ladder is None else self._ladder.next_due(now)]
        if self._state is RunState.STARTING:
            due.append(self._start_by)
        if self._run_until is not None and self._state in (RunState.STARTING, RunState.RUNNING):
            due.append(self._run_until)
        return min((at for at in due if at is not None), default=None)

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        if self._state is RunState.STARTING and now >= self._start_by:
            for rank in self._ranks:
                if rank.state is RankState.STARTING:
                    self._fail(rank, reason=f"did not answer within {START_TIMEOUT:.0f} s")
            self._begin_stop(Ladder.kill, "")
        if self._run_until is not None and now >= self._run_until and self._ladder is None and not self._finished:
            self.timed_out = True
            self._begin_stop(
                lambda now: Ladder.stop(now, self._grace), f"it ran longer than its timeout of {self._timeout:g} s"
            )
        if self._exits_by is not None and now >= self._exits_by and self._ladder is None:
            self._ladder = Ladder(signal.SIGTERM, now, now, now + 2.0)
        self._climb()

    def _take_commands(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            if not self._finished:
                self._begin_stop(command.ladder, command.why)
            elif self._ladder is None or command.ladder(time.monotonic()).kill_at < self._ladder.kill_at:
                self._ladder = command.ladder(time.monotonic())
                self._climb()

    # ---------------------------------------------------------------- telling

    def _set(self, rank: _Rank, state: RankState, words: str = "") -> None:
        if state not in RANK_TRANSITIONS[rank.state]:
            raise AssertionError(f"rank {rank.number}: {rank.state} -> {state}")
        rank.state = state
        rank.words = words
        if state.ended:
            rank.ended = time.time()
            if state is RankState.SUCCEEDED:
                rank.exitcode = 0
        self._publish()

    def _move(self, state: RunState) -> None:
        if state not in RUN_TRANSITIONS[self._state]:
            raise AssertionError(f"run: {self._state} -> {state}")
        self._state = state
        self._publish()

    def _all_answered(self) -> None:
        if self._state is RunState.STARTING and not any(
            rank.state in (RankState.WAITING, RankState.STARTING) for rank in self._ranks
        ):
            self._move(RunState.RUNNING)
        if self._state is not RunState.STARTING:
            self._reach("answered")

    def _finish(self, state: RunState) -> None:
        self._ended = time.time()
        self._move(state)
        self._reach("finished")

    def _reach(self, stage: str) -> None:
        with self._condition:
            self._answered = True
            self._finished = self._finished or stage in ("finished", "closed")
            self._closed = self._closed or stage == "closed"
            self._condition.notify_all()

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes += (text,)

    def _publish(self) -> None:
        self._snapshot = self._take_snapshot()
        try:
            self._listener(self._snapshot)
        except Exception:
            _log.exception("a listener of %s failed", self._name)

    def _take_snapshot(self) -> Snapshot:
        facts = self._facts()
        return Snapshot(
            name=self._name,
            state=self._state,
            ranks=tuple(
                RankSnapshot(r.number, r.state, r.pid, r.started, r.ended, r.exitcode, r.words) for r in self._ranks
            ),
            run_dir=facts["run_dir"],
            started=self._started,
            ended=self._ended,
            first_failed=first_cause(self.failures.values()).local_rank if self.failures else None,
            headline=self._headline,
            notes=(*facts["notes"], *self._notes),
        )

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
                    self._fail(rank, reason=why)

    def _clean_up(self) -> None:
        try:
            self.left = reap.end(self._identities, self._mark)
            guard = warden.current()
            for identity in self._identities:
                if identity not in self.left:
                    guard.gone(identity.pid)
            guard.unmark(self._mark)
            self._crew.close()
            self._on_close()
        except Exception:
            _log.exception("cleaning up after %s failed", self._name)
        finally:
            if not self._finished:
                took = time.time() - self._stopping_since if self._stopping_since else 0.0
                self._headline = self._last_words(took)
                self._finish(RunState.FAILED if self.failures else RunState.STOPPED)
            self._selector.close()
            with self._condition:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_read = self._wake_write = -1
            self._reach("closed")

    def _last_words(self, took: float) -> str:
        if self.left:
            pids = ", ".join(str(process.pid) for process in self.left)
            return f"stopped in {took:.1f} s; the system does not let go of process {pids}"
        why = f" ({self._stop_why})" if self._stop_why.startswith("it ran") else ""
        return f"stopped in {took:.1f} s{why}; nothing left running"


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
