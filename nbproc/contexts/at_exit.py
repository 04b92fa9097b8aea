"""What becomes of runs that go on when this process ends."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import TYPE_CHECKING

from nbproc import surroundings

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

_running: weakref.WeakSet[PContext] = weakref.WeakSet()
_registered = False
_PATIENCE = 15.0
"""Seconds in which the processes of a run must be gone."""


def see_to(context: PContext) -> None:
    """See to the end of this run, should it go on until the process ends."""
    global _registered
    _running.add(context)
    if not _registered:
        _registered = True
        atexit.register(_end_runs, os.getpid())


def _end_runs(owner: int) -> None:
    """Wait for runs that go on, as multiprocessing does; daemons, executables and captured ones end.

    If an Interrupt is what ends the process, it was meant for all of them.
    """
    if owner != os.getpid():
        return
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    wait = surroundings.current().waits_at_exit()
    if interrupted:
        for context in list(_running):
            context.stop()
    for context in list(_running):
        try:
            if interrupted or (wait and not context.plan.daemon and not context.plan.executable):
                context.wait()
            else:
                context.kill()
            context.gone(_PATIENCE)
        except KeyboardInterrupt:
            context.kill()
            context.gone(_PATIENCE)
