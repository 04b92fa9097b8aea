"""What runs are launched from here: a kernel, where every stream is shown, or a terminal IPython."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nbproc.notebook import busy
from nbproc.surroundings import Surroundings

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

INRANK = "nbproc.notebook.inrank"
"""What a rank has of a notebook."""
AHEAD = (INRANK, "nbproc.notebook.call")
"""What the fork server imports ahead."""
_EXECUTION_COUNT = re.compile(r"\[(\d+)\]")


def _figure_formats() -> tuple[str, ...]:
    """Return the formats that the notebook's own figures have (``%config InlineBackend.figure_formats``)."""
    inline = sys.modules.get("matplotlib_inline.config")
    if inline is None or not inline.InlineBackend.initialized():
        return ("png",)
    return tuple(sorted(inline.InlineBackend.instance().figure_formats)) or ("png",)


class Terminal(Surroundings):
    """A terminal IPython: functions and variables are the shell's, streams as in a script."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def namespace(self) -> dict[str, object] | None:
        """Return the user's variables."""
        namespace: dict[str, object] = self.shell.user_ns
        return namespace

    def describe(self, filename: str) -> int | None:
        """Return the execution count of the cell with this file name."""
        described = self.shell.compile.format_code_name(filename)
        found = _EXECUTION_COUNT.search(described[1]) if described else None
        return int(found[1]) if found else None

    def setup(self) -> tuple[str, Mapping[str, object]] | None:
        """Give ranks a small `get_ipython()` and keep what they display, figures in the formats of this shell."""
        return f"{INRANK}:install", {"figure_formats": _figure_formats()}

    def interrupted(self, context: PContext, error: KeyboardInterrupt) -> None:
        """Have the Stop told in one line, where it was `start` or `wait` that was interrupted."""
        from nbproc.notebook.running import plainly, stop_words

        plainly(error, stop_words(context))

    def console(self, context: PContext) -> Mapping[str, Callable[[str], object]]:
        """Write as in a script, unless the launching magic writes the lines itself."""
        return {} if context.plan.shown else super().console(context)


class Kernel(Terminal):
    """A kernel: every stream of every rank is captured and shown."""

    captures = True

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.pump_period = busy.pump_period()

    def pump(self) -> None:
        """Handle what the browser has sent to our widgets, where the kernel has one thread for all."""
        busy.pump()

    def console(self, context: PContext) -> Mapping[str, Callable[[str], object]]:
        """Write lines into one output of the launching cell, for as long as no view of the run stands."""
        if context.plan.shown or context.layout is None or not context.layout.shown:
            return {}
        from nbproc.notebook.echo import Echo

        return Echo(context).writers()

    def waits_at_exit(self) -> bool:
        """Say no: a kernel that is shut down does not wait for training runs."""
        return False
