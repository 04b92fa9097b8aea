"""A plan that is run by a cell: shown while it runs, waited for, its result or its explanation left behind."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, cast

from nbproc import explain
from nbproc.contexts.base import PContext
from nbproc.errors import NbprocError, PlanError, SpawnError
from nbproc.launch import context_of
from nbproc.notebook.options import Options
from nbproc.notebook.shown import Quiet, show
from nbproc.plan import Plan
from nbproc.states import RunState

_BEFORE_THE_START = "stopped by you before anything was started"
_WHERE_THE_WHOLE_IS = "The view above explains it; %tb prints the whole here."


def run(shell: Any, plan: Plan, options: Options) -> None:
    """Run a plan for a cell; blocks until its end, or with ``--detach`` until it has started.

    Raises `SpawnError` with the whole explanation if a rank failed, KeyboardInterrupt if the run was stopped.
    """
    __tracebackhide__ = True  # of %debug
    context = context_of(plan)
    try:
        showing = Quiet(context) if options.quiet else show(shell, context, detached=options.detach)
    except KeyboardInterrupt:
        raise _stopped(_BEFORE_THE_START) from None
    try:
        context.start(begun=lambda _: showing.begin())
        if options.detach:
            keep(shell, context, options.result_name)
            return
        context.wait()
    except KeyboardInterrupt:
        if not context.snapshot().state.ended:
            raise _stopped(_BEFORE_THE_START) from None
    finally:
        if not options.detach:
            showing.finish()
    keep(shell, context.wait(), options.result_name)
    state = context.snapshot().state
    if state is RunState.STOPPED and not context.timed_out:
        raise _stopped(stop_words(context))
    if state is RunState.SUCCEEDED:
        showing.say(context.snapshot().headline)
        for words in _lost_values(context):
            print(words)  # noqa: T201 - a succeeded run, and yet something is missing
    elif options.check:
        _raise(_failed(context, shell, brief=showing.explains))
    else:
        showing.explain(context.report())


def keep(shell: Any, value: object, name: str | None) -> None:
    """Put a value into ``_`` (as if it had been the cell's value, without showing it) and into a variable."""
    shell.displayhook.update_user_ns(value)
    if name is not None:
        shell.user_ns[name] = value


def _lost_values(context: PContext) -> list[str]:
    """Say which return values did not come back, and why; ranks of which the same is to be said share a line."""
    values = context.partial_values
    said: dict[str, list[int]] = {}
    for rank in values:
        if words := values.trouble(rank):
            said.setdefault(words.replace(f"value of rank {rank},", "{},", 1), []).append(rank)
    return [
        words.replace("{}", f"value{'s' * (len(ranks) > 1)} of {explain.ranks_words(ranks)}", 1)
        for words, ranks in said.items()
    ]


def _failed(context: PContext, shell: Any, *, brief: bool) -> NbprocError:
    error = context.error()
    colors = has_colors(shell)
    if not colors:
        error.colored = ""
    if brief:  # twice the same on one screen is hard to read
        error.brief = f"{explain.first_line(context.report(), color=colors)}\n{_WHERE_THE_WHOLE_IS}"
    return error


def _raise(error: NbprocError) -> NoReturn:
    # %debug shows these lines: the process of the rank has ended, so there is nothing of it to look at.
    # %tb prints the rank's traceback.
    raise error


def has_colors(shell: Any) -> bool:
    """Return whether the shell was told to show colours."""
    return str(getattr(shell, "colors", "")).lower() != "nocolor"


def stop_words(context: PContext) -> str:
    """Tell a Stop as a Stop, in one line: how long it took, and where the ranks were."""
    snapshot = context.snapshot()
    if not snapshot.state.ended:
        return _BEFORE_THE_START
    where = "; ".join(group.sentence for group in context.report().stopped)
    return "; ".join(part for part in (snapshot.headline, where) if part)


def _stopped(words: str) -> KeyboardInterrupt:
    return plainly(KeyboardInterrupt(words), words)


E = TypeVar("E", bound=BaseException)


def plainly(error: E, words: str = "") -> E:
    """Make IPython show this exception in one line, without the stack of our own calls. Returns it."""
    text = words or f"{type(error).__name__}: {error}"
    error._render_traceback_ = text.splitlines  # type: ignore[attr-defined]  # IPython's protocol
    return error


def in_cell(error: SyntaxError, shell: Any) -> PlanError:
    """Show a SyntaxError of the cell as IPython shows one of its own cells: the line, and no stack."""
    shown = shell.SyntaxTB.structured_traceback(SyntaxError, error, [])
    found: Any = type("SyntaxError", (PlanError,), {})(str(error))
    found._render_traceback_ = lambda: list(shown)
    return cast(PlanError, found)


def is_plain(error: BaseException) -> bool:
    """Return whether an exception is a message to the user, not a fault in somebody's code."""
    told = isinstance(error, SpawnError) or "_render_traceback_" in vars(error)  # it has a way to be shown
    return isinstance(error, NbprocError) and not told
