"""Which front ends show live views: those from which one has answered."""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython

__all__ = ["current", "note", "shows_views"]

_seen: set[str] = set()


def current() -> str:
    """Return the front end that sent the running cell, by its session; "" if that is not known."""
    kernel: Any = getattr(get_ipython(), "kernel", None)
    header = (kernel.get_parent("shell") or {}).get("header") if kernel is not None else None
    return str((header or {}).get("session") or "")


def note(front_end: str) -> None:
    """Note that a view that was shown there has said hello."""
    if front_end:
        _seen.add(front_end)


def shows_views(front_end: str) -> bool:
    """Return whether views are seen there, as far as one can know: False until one has said hello.

    Programs that run notebooks, and front ends without widgets, never show one.
    """
    return front_end in _seen
