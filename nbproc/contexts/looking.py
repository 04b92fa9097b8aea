"""What can be seen of a run, at any time and from any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from nbproc import explain
from nbproc.contexts.board import Board
from nbproc.contexts.layout import Layout
from nbproc.contexts.rank import Rank
from nbproc.contexts.reader import Reader
from nbproc.contexts.results import ReturnValues
from nbproc.contexts.supervisor import Supervisor
from nbproc.failures import ProcessFailure
from nbproc.logs.history import History
from nbproc.logs.lines import LineEvent, Stream
from nbproc.logs.specs import RunFiles
from nbproc.plan import Plan
from nbproc.states import Snapshot

_log = logging.getLogger(__name__)
Event = Sequence[LineEvent] | Snapshot
Listener = Callable[[Event], object]


class Looking:
    """The state of a run, its files, lines and failures, and who is told of them. Nothing here changes the run."""

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.name
        self.entrypoint = plan.entrypoint
        self.args = {rank.rank: rank.args for rank in plan.ranks}
        self.envs = {rank.rank: dict(rank.env) for rank in plan.ranks}
        self.nprocs = plan.nprocs
        self.layout: Layout | None = None
        self.notes: tuple[str, ...] = plan.notes
        self._ranks = [Rank(rank.rank) for rank in plan.ranks]
        self._board = Board(plan.name, self._ranks, self._tell, lambda: (self.run_dir, self.notes))
        self._supervisor: Supervisor | None = None
        self._reader: Reader | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()

    def snapshot(self) -> Snapshot:
        """Return the state of the run and of each rank at this moment, as a value. Never blocks."""
        return self._board.snapshot

    @property
    def run_dir(self) -> Path | None:
        """Where the run's files are: ``log_dir`` if one was given; None before the start."""
        return self.layout.run_dir if self.layout else None

    @property
    def stdouts(self) -> dict[int, str]:
        """The path of each rank's stdout, "" if it is the console's; empty before the start."""
        return self.layout.reported(Stream.OUT) if self.layout else {}

    @property
    def stderrs(self) -> dict[int, str]:
        """The path of each rank's stderr, "" if it is the console's; empty before the start."""
        return self.layout.reported(Stream.ERR) if self.layout else {}

    @property
    def error_files(self) -> dict[int, str]:
        """Where each rank that fails writes why; empty before the start."""
        return {rank: str(path) for rank, path in self.layout.error_files.items()} if self.layout else {}

    @property
    def files(self) -> RunFiles | None:
        """The private run directory: what ranks displayed, streams that were not redirected; None before the start."""
        return self.layout.files if self.layout else None

    @property
    def history(self) -> History | None:
        """The last lines of each rank, as far as its streams go to files that somebody reads; else None."""
        return self._reader.history if self._reader else None

    @property
    def failures(self) -> dict[int, ProcessFailure]:
        """The failures known so far, by rank."""
        return dict(sorted(self._board.failures.items()))

    @property
    def partial_values(self) -> ReturnValues:
        """The values of the ranks that have returned so far, also when others failed."""
        readers = dict(sorted(self._supervisor.ends.readers.items())) if self._supervisor else {}
        return ReturnValues(readers)

    def log_file(self, rank: int, stream: str) -> Path | None:
        """Return the file of a rank's ``"stdout"`` or ``"stderr"``, None if it goes to none."""
        return self.layout.log_file(rank, Stream(stream)) if self.layout else None

    def where(self, rank: int) -> str:
        """Say where a running rank is now, "" if that is not known. An executable cannot be asked."""
        return ""

    def report(self) -> explain.Report:
        """Explain the run as far as it is known: the first cause, what followed, where the files are."""
        return explain.report(self.snapshot(), self.failures)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each batch of `LineEvent` and each new `Snapshot`, from threads of this library.

        It must not block. Returns a function that ends the subscription.
        """
        with self._lock:
            self._listeners += (listener,)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(known for known in self._listeners if known is not listener)

        return unsubscribe

    def __repr__(self) -> str:
        snapshot = self.snapshot()
        count = f"{self.nprocs} rank{'s' if self.nprocs != 1 else ''}"
        line = f"<{type(self).__name__} {self.name}: {snapshot.state.value}, {count}>"
        return line if not self.failures else f"{line}\n{self.report().headline}"

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("a listener of %s failed", self.name)
