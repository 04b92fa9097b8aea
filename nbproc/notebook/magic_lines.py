"""`%` and `!` lines in the syntax tree of a cell, after IPython made them calls of `get_ipython()`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from nbproc.notebook import expand
from nbproc.notebook.timing import split_options

__all__ = ["MagicCall", "line_names", "magic_call", "magic_calls", "parsed", "query_names", "text_names"]

_SHELL_CALLS = frozenset({"run_line_magic", "run_cell_magic", "system", "getoutput"})
_QUERY_NAME = re.compile(r"@([^\W\d]\w*)")


@dataclass(frozen=True)
class MagicCall:
    """A `%` or `!` line of the cell: ``name`` is "system" or "getoutput" for `!`, ``text`` what follows it."""

    name: str
    text: str
    line: int
    node: ast.Call = field(compare=False, repr=False)


def magic_calls(tree: ast.AST) -> list[MagicCall]:
    """Return the `%` and `!` lines under ``tree``, after IPython made them calls of `get_ipython()`, in their order."""
    found = [call for node in ast.walk(tree) if isinstance(node, ast.Call) and (call := magic_call(node))]
    return sorted(found, key=lambda call: (call.line, call.node.col_offset))


def magic_call(node: ast.Call) -> MagicCall | None:
    """Return the line that the call was made of, None for any other call."""
    method = node.func
    if not (
        isinstance(method, ast.Attribute)
        and method.attr in _SHELL_CALLS
        and isinstance(method.value, ast.Call)
        and isinstance(method.value.func, ast.Name)
        and method.value.func.id == "get_ipython"
    ):
        return None
    texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if len(texts) != len(node.args) or not texts:
        return None
    if method.attr.startswith("run_"):
        return MagicCall(texts[0], texts[1] if len(texts) > 1 else "", node.lineno, node)
    return MagicCall(method.attr, texts[0], node.lineno, node)


def parsed(text: str) -> ast.Module | None:
    """Return the code that stands after the options of `%time` and `%timeit`, None if it is none."""
    try:
        return ast.parse(split_options(text)[1])
    except (SyntaxError, ValueError):
        return None


def line_names(call: MagicCall) -> set[str]:
    """Return the names that a magic's text reads, wherever they are bound."""
    if call.name in ("time", "timeit"):
        code = parsed(call.text)
        return {node.id for node in ast.walk(code) if isinstance(node, ast.Name)} if code else set()
    return {name for each in expand.fields(call.text) for name in expand.names_in(each.expression)}


def query_names(node: ast.Call) -> list[str]:
    """Return `@name` in the text of pandas' `query` and `eval`, which look into the frame of their caller."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in ("query", "eval")):
        return []
    texts = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return [name for text in texts for name in _QUERY_NAME.findall(text)]


def text_names(body: ast.AST) -> set[str]:
    """Return the names that stand in texts within a function's body: `%` and `!` lines, queries."""
    names: set[str] = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Call):
            call = magic_call(node)
            names |= line_names(call) if call else set(query_names(node))
    return names
