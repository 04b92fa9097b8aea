"""An error of ours as IPython shows it: the user's own lines and our sentence; `%tb` prints our calls too."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from nbproc.errors import NbprocError, SpawnError
from nbproc.failures.places import is_library, package_of

__all__ = ["register"]

_TOLD = "_told"
_explained = SpawnError._render_traceback_


def register(shell: Any) -> None:
    """Have this shell show every `NbprocError` so, and a `SpawnError` with colours only where there are some."""

    def explain(error: SpawnError) -> list[str]:
        from nbproc.notebook.running import has_colors

        if not has_colors(shell):
            error.colored = ""
        return _explained(error)

    SpawnError._render_traceback_ = explain  # type: ignore[assignment]  # IPython's protocol
    NbprocError._render_traceback_ = lambda error: _render(error, shell)  # type: ignore[attr-defined]


def _render(error: NbprocError, shell: Any) -> list[str]:
    """Leave out our calls the first time, as `SpawnError` is brief the first time."""
    whole = error.__traceback__
    mine = None if _TOLD in vars(error) else _without_our_calls(whole)
    vars(error)[_TOLD] = True
    if mine is None:
        return list(shell.InteractiveTB.structured_traceback(type(error), error, whole))
    before, hidden = error.__context__, error.__suppress_context__
    cause = error.__cause__
    if _is_ours(cause or before):
        error.__cause__ = None  # which hides the context as well
    try:
        return list(shell.InteractiveTB.structured_traceback(type(error), error, mine, 0))
    finally:
        error.__cause__, error.__suppress_context__ = cause, hidden


def _without_our_calls(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the user's first line to where our code was called; None if it has none."""
    levels = []
    while trace is not None:
        levels.append(trace)
        trace = trace.tb_next
    own = [number for number, level in enumerate(levels) if not is_library(_file(level))]
    if not own:
        return None
    end = own[-1] + 1
    while end < len(levels) and package_of(_file(levels[end])) != "nbproc":
        end += 1
    kept: TracebackType | None = None
    for level in reversed(levels[own[0] : end]):
        kept = TracebackType(kept, level.tb_frame, level.tb_lasti, level.tb_lineno)
    return kept


def _is_ours(error: BaseException | None) -> bool:
    """Whether an exception was caught by our code: it has no line of the user's that is not in this one's too."""
    return error is not None and error.__traceback__ is not None and package_of(_file(error.__traceback__)) == "nbproc"


def _file(level: TracebackType) -> str:
    return level.tb_frame.f_code.co_filename
