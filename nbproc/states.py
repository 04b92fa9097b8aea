"""The states of a rank and of a run, the transitions between them, and a run's snapshot."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path


class RankState(enum.Enum):
    """What one rank is doing."""

    WAITING = "waiting"
    """Planned; its process was not asked for yet."""
    STARTING = "starting"
    """Its process was asked for and has not answered yet."""
    RUNNING = "running"
    """It answered: the entrypoint runs."""
    SUCCEEDED = "succeeded"
    """It returned (a function) or exited with code 0 (an executable)."""
    FAILED = "failed"
    """It raised, exited badly, was killed by somebody else, or never started."""
    STOPPED = "stopped"
    """This library ended it: a Stop, a timeout, or because another rank failed."""

    @property
    def ended(self) -> bool:
        """True if the rank leaves this state no more."""
        return self in _ENDS


class RunState(enum.Enum):
    """What a whole run is doing."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """Ranks are being ended: a Stop, a timeout, or because a rank failed."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """True if the run leaves this state no more and none of its processes is left."""
        return self in _RUN_ENDS


_ENDS = frozenset({RankState.SUCCEEDED, RankState.FAILED, RankState.STOPPED})
_RUN_ENDS = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})

RANK_TRANSITIONS: dict[RankState, frozenset[RankState]] = {
    RankState.WAITING: frozenset({RankState.STARTING, RankState.FAILED, RankState.STOPPED}),
    RankState.STARTING: frozenset({RankState.RUNNING} | _ENDS),
    RankState.RUNNING: _ENDS,
    RankState.SUCCEEDED: frozenset(),
    RankState.FAILED: frozenset(),
    RankState.STOPPED: frozenset(),
}

RUN_TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.CREATED: frozenset({RunState.STARTING}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.STOPPING} | _RUN_ENDS),
    RunState.RUNNING: frozenset({RunState.STOPPING} | _RUN_ENDS),
    RunState.STOPPING: _RUN_ENDS,
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.STOPPED: frozenset(),
}


@dataclass(frozen=True)
class RankSnapshot:
    """One rank at one moment.

    Times are seconds since the epoch. ``exitcode`` is negative for a signal, as in ``subprocess``; it is None
    until the process was seen to end. ``words`` says in one short line how the rank ended ("returned",
    "ValueError: bad batch 17", "was killed by SIGKILL (out of memory)", "stopped at train, cell [3] line 19").
    ``node`` is "" on this machine.
    """

    rank: int
    state: RankState = RankState.WAITING
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    exitcode: int | None = None
    words: str = ""
    node: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment, as a value: nothing in it changes later.

    ``headline`` is what the run says of itself in one line: at the launch what was sent, at the end where the
    results are or what was stopped. ``first_failed`` is the rank whose failure came first, None if none failed.
    """

    name: str
    state: RunState
    ranks: tuple[RankSnapshot, ...]
    run_dir: Path | None = None
    started: float | None = None
    ended: float | None = None
    first_failed: int | None = None
    headline: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def nprocs(self) -> int:
        """The number of ranks."""
        return len(self.ranks)
