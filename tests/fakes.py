"""A scripted run: the surface of a context that views read, without processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbproc import explain
from nbproc.failures import ProcessFailure
from nbproc.failures.process import failure_of
from nbproc.logs.history import History
from nbproc.logs.lines import LineDiscipline, LineEvent, Stream
from nbproc.logs.specs import RunFiles
from nbproc.states import RankSnapshot, RankState, RunState, Snapshot


class _Layout:
    def __init__(self, files: RunFiles) -> None:
        self.files = files


class FakeContext:
    """Says what a test tells it to say, on the thread that tells it."""

    def __init__(self, nprocs: int, root: Path, name: str = "trainer", headline: str = "") -> None:
        self.name, self.nprocs, self.run_dir = name, nprocs, Path(root)
        self.layout = _Layout(RunFiles(self.run_dir))
        self.layout.files.make(nprocs)
        self.history = History(nprocs)
        self.failures: dict[int, ProcessFailure] = {}
        self.asked: list[str] = []
        self.asked_to_stop = threading.Event()
        self._listeners: list[Callable[[Any], object]] = []
        self._disciplines: dict[tuple[int, Stream], LineDiscipline] = {}
        ranks = tuple(RankSnapshot(rank) for rank in range(nprocs))
        self._snapshot = Snapshot(name, RunState.CREATED, ranks, run_dir=self.run_dir, headline=headline)
        self._wheres: dict[int, str] = {}

    # what views read

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def subscribe(self, listener: Callable[[Any], object]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def report(self) -> explain.Report:
        return explain.report(self._snapshot, self.failures)

    def log_file(self, rank: int, stream: str) -> Path:
        files = self.layout.files
        return files.stderr(rank) if stream == "stderr" else files.stdout(rank)

    def where(self, rank: int) -> str:
        return self._wheres.get(rank, "")

    def stop(self, grace: float | None = None) -> None:
        self.asked.append("stop")
        self.asked_to_stop.set()
        self.tell(state=RunState.STOPPING)

    def kill(self) -> None:
        self.asked.append("kill")

    # what tests say

    def tell(self, *, ranks: Iterable[RankSnapshot] | None = None, **changes: Any) -> None:
        """Change the snapshot and tell the listeners."""
        if ranks is not None:
            changes["ranks"] = tuple(ranks)
        self._snapshot = replace(self._snapshot, **changes)
        for listener in list(self._listeners):
            listener(self._snapshot)

    def start(self, pids: Sequence[int] | None = None, since: float = 0.0) -> FakeContext:
        """All ranks answer."""
        now = time.time() - since
        pids = pids or [os.getpid()] * self.nprocs
        self.tell(
            state=RunState.RUNNING,
            started=now,
            ranks=[RankSnapshot(r, RankState.RUNNING, pids[r], started=now) for r in range(self.nprocs)],
        )
        return self

    def write(self, rank: int, data: str | bytes, stream: Stream = Stream.OUT) -> None:
        """A rank writes: into its log and, as lines, to the listeners."""
        raw = data.encode() if isinstance(data, str) else data
        if stream is not Stream.DISPLAY:
            with open(self.log_file(rank, stream.value), "ab") as file:
                file.write(raw)
        discipline = self._disciplines.setdefault((rank, stream), LineDiscipline())
        now = time.time()
        self.say([LineEvent(rank, stream, u.number, u.text, u.complete, now) for u in discipline.feed(raw)])

    def say(self, events: Sequence[LineEvent]) -> None:
        """Line events arrive."""
        self.history(events)
        for listener in list(self._listeners):
            listener(events)

    def end(self, rank: int, state: RankState = RankState.SUCCEEDED, words: str = "returned", code: int = 0) -> None:
        """One rank ends."""
        ranks = list(self._snapshot.ranks)
        ranks[rank] = replace(ranks[rank], state=state, ended=time.time(), words=words, exitcode=code)
        self.tell(ranks=ranks)

    def fail(self, rank: int, error_file: Path | None = None, code: int = 1) -> ProcessFailure:
        """One rank fails, with an error file if it wrote one."""
        failure = failure_of(rank, 1, code, error_file, self.log_file(rank, "stderr"))
        self.failures[rank] = failure
        self.end(rank, RankState.FAILED, failure.words, code)
        self.tell(first_failed=explain.report(self._snapshot, self.failures).first.local_rank)
        return failure

    def finish(self, state: RunState = RunState.SUCCEEDED, headline: str | None = None) -> None:
        """The run is over."""
        if state is RunState.SUCCEEDED:
            for rank in self._snapshot.ranks:
                if not rank.state.ended:
                    self.end(rank.rank)
        self.tell(state=state, ended=time.time(), headline=self._snapshot.headline if headline is None else headline)
