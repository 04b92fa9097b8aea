"""The processes of a run as the system knows them, so that none stays: told to the guardian, ended at the end."""

from __future__ import annotations

import os
from collections.abc import Callable

from nbproc.ranks import reap, warden

_RENEWALS = 3
"""So often a run starts the guardian anew when it was killed."""


class Guarded:
    """The processes of one run, and the guardian that ends them should this process be gone."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._processes: list[reap.Process] = []
        self._renewals = 0
        self.guardian = -1
        """Becomes readable when the guardian ends; -1 if there is none to watch."""

    def add(self, process: reap.Process) -> None:
        """Guard a rank's process and the session that it leads."""
        self._processes.append(process)
        warden.current().rank(process.pid, process.start)

    def add_below(self) -> None:
        """Note what hangs below the ranks now: once they are gone, nobody could tell."""
        self._processes += reap.below(self._processes)

    def watch(self) -> None:
        """Hear of the guardian's end: only a run needs it all the time, so a run starts it anew."""
        guardian = warden.current().watch()
        if guardian is not None:
            self.guardian = guardian

    def renew(self, note: Callable[[str], object]) -> None:
        """The guardian has ended: start it anew, and watch that one."""
        self.release()
        self._renewals += 1
        warden.current().ensure()
        if trouble := warden.current().trouble:
            note(trouble)
        elif self._renewals < _RENEWALS:
            self.watch()

    def end(self) -> list[reap.Process]:
        """End what is left of the ranks' sessions and of marked processes. Returns what does not go."""
        left = reap.end(self._processes, self._mark) if self._processes else []
        guard = warden.current()
        for process in self._processes:
            if process not in left:
                guard.gone(process.pid)
        guard.unmark(self._mark)
        return left

    def release(self) -> None:
        """Watch the guardian no more."""
        if self.guardian >= 0:
            os.close(self.guardian)
            self.guardian = -1
