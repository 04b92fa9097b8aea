"""A cell's source -> what it reads, what it returns, and a value that runs it in a rank.

Nothing here knows the shell: it is told what IPython's input transformers do (``transform``), so this part is tested
without a kernel.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import difflib
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FunctionType
from typing import Any

from nbproc.errors import PlanError
from nbproc.notebook import magic_lines, names, timing
from nbproc.notebook.call import CellCall
from nbproc.notebook.lines import LineMap

__all__ = ["RANK_MAGICS", "Cell", "analyse", "first_line"]

RANK_MAGICS = ("cd", "env", "time", "timeit")
"""The `%` lines that work in a rank; `!` does too."""

_RANK_NAMES = ("rank", "world_size")
_NEVER_SENT = frozenset({*_RANK_NAMES, "__builtin__", "__builtins__", "__name__", "__doc__", "__package__", "__loader__", "__spec__"})  # fmt: skip
_SHELL_NAMES = frozenset({"get_ipython", "exit", "quit", "open", "display"})
_FUTURES = {name: getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_PROGRAMS = ("bash", "sh", "python", "python3", "perl", "ruby")
"""The cell magics that give the cell to a program of their name."""
_CELL_MAGIC = re.compile(r"%%(\w+)[ \t]*([^\n]*)(?:\n|$)")
_HELP = frozenset({"pinfo", "pinfo2", "psearch"})


@dataclass(frozen=True)
class Cell:
    """What is known of a cell before it runs.

    ``hard``: names of the notebook that it reads. ``soft``: names that it may read; leave out what cannot be sent.
    ``notes``: sentences for the launch line. ``call``: the cell itself, to be sent.
    """

    hard: tuple[str, ...]
    soft: tuple[str, ...]
    notes: tuple[str, ...]
    call: CellCall

    def roots(self, namespace: Mapping[str, object]) -> dict[str, object]:
        """Return what travels, by name: the hard names first."""
        return {name: namespace[name] for name in (*self.hard, *self.soft) if name in namespace}

    def without(self, missing: Mapping[str, str]) -> Cell:
        """Return the same cell without some soft names; ``missing`` says why of each, should the cell miss it."""
        soft = tuple(name for name in self.soft if name not in missing)
        return replace(self, soft=soft, call=replace(self.call, missing={**self.call.missing, **missing}))


def first_line(text: str, body: str) -> int:
    """Return on which line of the cell ``text`` its last part, ``body``, begins (1 is the first)."""
    text, body = text.rstrip("\n"), body.rstrip("\n")
    return text[: len(text) - len(body)].count("\n") + 1 if text.endswith(body) else 2


def analyse(
    source: str,
    namespace: Mapping[str, object],
    *,
    transform: Callable[[str], str] | None = None,
    transform_tree: Callable[[ast.Module], ast.Module] | None = None,
    text: str | None = None,
    line: int = 2,
    filename: str = "<cell>",
    execution_count: int | None = None,
    flags: int = 0,
) -> Cell:
    """Find out what a cell reads from ``namespace``, and compile it.

    ``source`` is the cell without the magic's line and begins on line ``line`` of ``text``, the whole cell.
    ``transform`` is the shell's `transform_cell`, ``transform_tree`` its `transform_ast`, ``flags`` its compiler's
    flags. Raises `PlanError` for a magic that a rank does not have, and SyntaxError with the cell's own lines.
    """
    text = "\n" * (line - 1) + source if text is None else text
    flags &= _mask(_FUTURES.values())
    source, line = _without_blank_lines(source, line)
    source, line, timed = _without_cell_magic(source, line)
    code = transform(source) if transform else source
    where = LineMap(source, code, line)
    padded = "\n" * (line - 1) + code
    try:
        tree = compile(padded, filename, "exec", flags | _AWAIT | ast.PyCF_ONLY_AST, dont_inherit=True)
        flags |= _mask(_FUTURES[name] for name in _future_imports(tree))
        _check_magics(tree, where, transform)
        if transform_tree is not None:
            tree = transform_tree(tree)
        lazy = bool(flags & _FUTURES["annotations"])
        reads = names.reads(tree, padded, lazy_annotations=lazy)
    except SyntaxError as error:
        raise where.relocated(error, filename) from None
    try:
        body, value = _compile(where.relocate(tree), filename, flags, quiet=_quiet(source, code))
    except SyntaxError as error:
        raise where.completed(error, filename) from None
    hard = _sent(reads.hard, namespace)
    soft = _sent(reads.soft, namespace)
    call = CellCall(
        filename=filename,
        text=text,
        execution_count=execution_count,
        body=body,
        value=value,
        timed=timed,
        near=_near(reads, namespace),
    )
    return Cell(hard, soft, _notes(reads, (*hard, *soft), namespace), call)


def _mask(flags: Iterable[int]) -> int:
    mask = 0
    for flag in flags:
        mask |= flag
    return mask


def _future_imports(tree: ast.Module) -> list[str]:
    return [
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
        if alias.name in _FUTURES
    ]


def _without_blank_lines(source: str, line: int) -> tuple[str, int]:
    """Drop blank lines at the beginning, as IPython's transformers do, and count them."""
    lines = source.splitlines(keepends=True)
    blank = next((number for number, text in enumerate(lines) if text.strip()), 0)
    return "".join(lines[blank:]), line + blank


def _without_cell_magic(source: str, line: int) -> tuple[str, int, bool]:
    found = _CELL_MAGIC.match(source)
    if found is None:
        return source, line, False
    if found[1] in _PROGRAMS:
        raise PlanError(
            f"not run: line {line}: write --exec {found[1]} in the line of %%spawn, in place of %%{found[1]}"
        )
    if found[1] != "time":
        raise PlanError(f"not run: line {line}: {_no_magic('%%' + found[1])}")
    if found[2].strip():
        raise PlanError(f"not run: line {line}: %%time takes no code on its own line")
    rest, number = _without_blank_lines(source[found.end() :], line + 1)
    return rest, number, True


def _no_magic(name: str) -> str:
    works = ", ".join(f"%{magic}" for magic in RANK_MAGICS)
    return f"{name} does not work in a rank (these do: !, {works}, %%time); run it in a cell of its own"


def _check_magics(tree: ast.Module, where: LineMap, transform: Callable[[str], str] | None) -> None:
    """Refuse unknown `%` lines; transform the code that `%time` and `%timeit` run."""
    for call in magic_lines.magic_calls(tree):
        if call.name in ("system", "getoutput"):
            continue
        if call.name not in RANK_MAGICS:
            what = "help (?)" if call.name in _HELP else f"%{call.name}"
            raise PlanError(f"not run: line {where.line(call.line)}: {_no_magic(what)}")
        if call.name in ("time", "timeit"):
            _, inner = timing.split_options(call.text)
            options = call.text[: len(call.text.rstrip()) - len(inner)] if inner else call.text
            inner = transform(inner).rstrip("\n") if transform else inner
            argument = call.node.args[-1]
            try:
                ast.parse(inner)
            except SyntaxError as error:
                # the line of the magic; a column within it means nothing
                raise SyntaxError(error.msg, ("", call.line, None, None)) from None
            if isinstance(argument, ast.Constant) and len(call.node.args) > 1:
                argument.value = options + inner


def _quiet(source: str, code: str) -> bool:
    """Whether the cell ends with a semicolon, comments aside."""
    last = source.rstrip().rpartition("\n")[2].strip()
    if last.startswith("%"):
        return last.endswith(";")
    skip = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.DEDENT)
    try:
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type not in skip]
    except (tokenize.TokenError, IndentationError):
        return False
    return bool(tokens) and tokens[-1].string == ";"


def _compile(tree: ast.Module, filename: str, flags: int, *, quiet: bool) -> tuple[CodeType, CodeType | None]:
    statements = list(tree.body)
    last = statements[-1] if statements else None
    value: CodeType | None = None
    if isinstance(last, ast.Expr) and not quiet:
        statements.pop()
        expression = ast.Expression(last.value)
        value = compile(expression, filename, "eval", flags | _AWAIT, dont_inherit=True)
    body = compile(ast.Module(statements, tree.type_ignores), filename, "exec", flags | _AWAIT, dont_inherit=True)
    return body, value


def _sent(wanted: Iterable[str], namespace: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted(wanted)
        if name in namespace and name not in _NEVER_SENT and not (name in _SHELL_NAMES and _of_shell(namespace[name]))
    )


def _near(reads: names.Reads, namespace: Mapping[str, object]) -> dict[str, str]:
    """Return, for names that nobody has, the name of the notebook or the rank that may be meant, where there is one."""
    found: dict[str, str] = {}
    known = [*_RANK_NAMES, *(name for name in namespace if not name.startswith("_"))]
    for name in sorted(reads.hard | reads.soft):
        if not (name in namespace or name in reads.assigned or name in _NEVER_SENT or hasattr(builtins, name)):
            close = difflib.get_close_matches(name, known, 1, 0.75)
            found.update(zip([name], close, strict=False))
    return found


def _of_shell(value: object) -> bool:
    """Whether it is the shell's own, which a rank has another of."""
    variables = getattr(value, "__globals__", {})  # `open` is a function of IPython that says it is io's
    module = variables.get("__name__") or getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in ("IPython", "ipykernel")


def _notes(reads: names.Reads, sent: Iterable[str], namespace: Mapping[str, object]) -> tuple[str, ...]:
    read = reads.hard | reads.soft | _global_names([namespace[name] for name in sent], namespace)
    hidden = [name for name in _RANK_NAMES if name in namespace and name in read]
    if not hidden:
        return ()
    return (f"{' and '.join(hidden)} of the notebook: hidden (in the ranks it is the rank's own)",)


def _global_names(values: Iterable[object], namespace: Mapping[str, object]) -> set[str]:
    """The names that the notebook's functions among ``values`` read, and those that these call."""
    found: set[str] = set()
    todo: list[Any] = [value for value in values if isinstance(value, FunctionType)]
    while todo:
        function = todo.pop()
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            fresh = set(code.co_names) - found
            found |= fresh
            todo += [namespace[n] for n in fresh if isinstance(namespace.get(n), FunctionType)]
    return found
