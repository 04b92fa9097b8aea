"""The resource tracker of multiprocessing: all processes of a notebook should have one and the same.

A rank that starts its own would, at its end, remove shared memory that the notebook still uses.
"""

from __future__ import annotations

import os
from multiprocessing import resource_tracker


def current() -> int | None:
    """Return the descriptor of this process's tracker, or None if it has not started one."""
    # Private: the public getfd() starts a tracker where there is none, 10 ms and a process for nothing.
    descriptor = getattr(resource_tracker._resource_tracker, "_fd", None)
    return descriptor if isinstance(descriptor, int) else None


def adopt(descriptor: int) -> None:
    """Use the sender's tracker, as multiprocessing's own children do. Takes the descriptor."""
    if current() is not None:
        os.close(descriptor)
        return
    # Private: what multiprocessing.spawn does in a child; there is no public way.
    resource_tracker._resource_tracker._fd = descriptor  # type: ignore[attr-defined]
