"""Where runs are launched from: a plain script, or a place that shows them (a notebook).

The runtime asks `current()`; the notebook wing installs its own. Nothing here knows Jupyter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext


class Surroundings:
    """A plain script: streams that are not redirected are the caller's own, teed lines go to its console."""

    captures = False
    """True if every stream of every rank goes to a file, because somebody shows it."""

    def namespace(self) -> dict[str, object] | None:
        """Return the namespace whose functions and variables share ``__main__`` in the ranks, None for no such."""
        return None

    def describe(self, filename: str) -> int | None:
        """Return the execution count of the notebook cell with this file name, None if it is no cell."""
        return None

    def setup(self) -> tuple[str, Mapping[str, object]] | None:
        """Return a function to be called in each rank before user code, as "module:function" and its arguments."""
        return None

    def console(self, context: PContext) -> Mapping[str, Callable[[str], object]]:
        """Return where teed lines of a run are written: a writer each for "stdout" and "stderr"."""
        return {"stdout": _Writer("stdout"), "stderr": _Writer("stderr")}

    def started(self, context: PContext) -> None:
        """Be told of a run that was started."""

    def interrupted(self, context: PContext, error: KeyboardInterrupt) -> None:
        """Be told that an Interrupt has stopped a run, or its start; ``error`` is about to be raised."""

    pump_period: float | None = None
    """Seconds between calls of `pump` while the main thread waits for a run; None for no such calls."""

    def pump(self) -> None:
        """Be called by the main thread while it waits for a run."""

    def waits_at_exit(self) -> bool:
        """Say whether the end of the process waits for runs that still go on (as multiprocessing does)."""
        return True


class _Writer:
    """Writes to the caller's stream of that name, whichever it is at the moment."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, text: str) -> None:
        stream: TextIO | None = getattr(sys, self._name)
        if stream is not None:
            stream.write(text)
            stream.flush()


_current = Surroundings()


def current() -> Surroundings:
    """Return the surroundings of this process."""
    return _current


def install(surroundings: Surroundings) -> None:
    """Make these the surroundings of this process."""
    global _current
    _current = surroundings
