"""Tab on a line of the magics: options and their values, names of the notebook, attributes after a dot."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Sequence
from typing import Any

from nbproc.notebook.option_help import complete
from nbproc.notebook.option_table import KINDS, Kind

__all__ = ["register"]

_DOTTED = re.compile(r"(?<![\w.])[^\W\d](?:\w|\.|\[[^\[\]\s]*\])*\.\w*\Z")
"""An expression whose attribute is being typed: ``model.layers[0].we``."""


def register(shell: Any) -> None:
    """Complete the lines of the magics in this shell."""
    for kind in KINDS:
        shell.set_hook("complete_command", _completer(shell, kind), str_key=kind)


def _completer(shell: Any, kind: Kind) -> Callable[[object, Any], Sequence[str]]:
    def candidates(_: object, event: Any) -> Sequence[str]:
        typed = getattr(event, "text_until_cursor", event.line)
        names = [name for name in shell.user_ns if not name.startswith("_")]
        line = typed.partition(" ")[2]
        known = len(line.rpartition(" ")[2]) - len(event.symbol)  # of the word, what IPython takes as it stands
        found = [word[known:] for word in complete(line, kind, names)]
        if found:
            return found
        in_call = kind == "%spawn" and " -- " not in line
        if (in_call or _in_braces(line)) and (dotted := _DOTTED.search(line)):
            return _attributes(shell, dotted[0], event.symbol)
        if in_call and event.symbol.isidentifier():
            known_here = {*names, *vars(builtins), "rank", "world_size"}
            return sorted(name for name in known_here if name.startswith(event.symbol))
        return []

    return candidates


def _in_braces(line: str) -> bool:
    return line.rfind("{") > line.rfind("}")


def _attributes(shell: Any, dotted: str, symbol: str) -> list[str]:
    """Return what the attribute may be, each with what ``symbol`` has before it. IPython decides what is evaluated.

    With jedi IPython completes attributes on any line by itself; without, only where it knows that Python stands.
    """
    if shell.Completer.use_jedi:
        return []
    start = dotted.rpartition(".")[2]
    before = symbol[: len(symbol) - len(start)]
    names = (match.rpartition(".")[2] for match in shell.Completer.attr_matches(dotted))
    return [before + name for name in names if start.startswith("_") or not name.startswith("_")]
