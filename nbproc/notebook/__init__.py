"""Everything that knows Jupyter: magics, the cell, the live view, the panel, and what a rank has of a notebook."""

from __future__ import annotations

from typing import Any


def meet() -> None:
    """Let runs that are launched in this process know the shell they are launched from. Cheap; call it any time."""
    from IPython import get_ipython

    from nbproc import surroundings
    from nbproc.notebook.around import AHEAD, Kernel, Terminal
    from nbproc.ranks import client, standby

    shell = get_ipython()
    if shell is None or isinstance(surroundings.current(), Terminal):
        return
    client.preload(*AHEAD, *standby.later())
    surroundings.install(Kernel(shell) if hasattr(shell, "kernel") else Terminal(shell))
    from nbproc.notebook import mistakes, shown

    shown.register(shell)
    mistakes.register(shell)


def load(shell: Any) -> None:
    """Register the magics with a shell, and start the fork server ahead of the first launch."""
    meet()
    from nbproc.notebook import magic
    from nbproc.ranks import standby

    magic.register(shell)
    standby.warm_up()
