"""A matplotlib backend: agg, whose `plt.show()` displays all open figures and closes them, as in a notebook.

Named to matplotlib as "module://nbproc.notebook.figures".
"""

from __future__ import annotations

import sys
from typing import Any

from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from nbproc.notebook import show as showing

__all__ = ["FigureCanvas", "FigureManager", "show", "show_open"]

FigureManager = FigureManagerBase


class FigureCanvas(FigureCanvasAgg):
    """Agg's canvas, which draws when a figure is shown and not after every call of pyplot."""

    def draw_idle(self, *args: Any, **kwargs: Any) -> None:
        """Leave it for later."""


def show(*_args: Any, **_keywords: Any) -> None:
    """Display the open figures and close them; `block` means nothing here."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    try:
        for number in pyplot.get_fignums():
            showing.display(pyplot.figure(number))
    finally:
        pyplot.close("all")


def show_open() -> None:
    """Do at a cell's end what the inline backend does: show what is open, unless `plt.ioff()` was called."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and pyplot.get_backend().endswith(__name__) and pyplot.isinteractive():
        show()
