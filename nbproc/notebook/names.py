"""What a cell reads: a walk over its syntax tree in the order in which it runs.

The answer may name too much, never too little, as far as a cell's text can tell: what is sent and then assigned in the
cell costs time, what is missing is a NameError. So every join of two ways keeps only what both of them assigned.
"""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nbproc.notebook import magic_lines
from nbproc.notebook.scopes import Scopes

__all__ = ["Reads", "reads"]

_LAZY_ANNOTATIONS = sys.version_info >= (3, 14)


@dataclass(frozen=True)
class Reads:
    """The names that a cell reads from outside.

    ``hard``: read by the cell itself. ``soft``: it may never come to that, since the name is read only in the body of
    a function, or may be assigned by then. ``assigned``: what the cell assigns, perhaps.
    """

    hard: frozenset[str]
    soft: frozenset[str]
    assigned: frozenset[str]


def reads(tree: ast.Module, source: str, *, lazy_annotations: bool = False) -> Reads:
    """Return what ``tree``, the syntax tree of ``source``, reads and assigns. Raises SyntaxError as `symtable` does.

    ``lazy_annotations`` says that annotations are not evaluated (`from __future__ import annotations`).
    """
    walk = _Walk(_body_reads(source), lazy_annotations or _LAZY_ANNOTATIONS)
    walk.statements(tree.body)
    found = walk.scopes
    found.finish()
    return Reads(frozenset(found.hard), frozenset(found.soft - found.hard), frozenset(found.assigned))


def _body_reads(source: str) -> dict[tuple[int, str], set[str]]:
    """(line, name) of each function of the source -> the globals that its body and what is in it read.

    Two functions of one name on one line (lambdas) share an entry.
    """
    found: dict[tuple[int, str], set[str]] = {}

    def collect(table: symtable.SymbolTable) -> set[str]:
        mine = {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_global() and (symbol.is_referenced() or symbol.is_assigned())
        }
        for child in table.get_children():
            mine |= collect(child)
        found.setdefault((table.get_lineno(), table.get_name()), set()).update(mine)
        return mine

    for table in symtable.symtable(source, "<cell>", "exec").get_children():
        collect(table)
    return found


class _Walk(ast.NodeVisitor):
    """Visits in the order of execution, and tells `Scopes` what is bound and read."""

    def __init__(self, bodies: dict[tuple[int, str], set[str]], lazy_annotations: bool) -> None:
        self.scopes = Scopes()
        self._bodies = bodies
        self._lazy = lazy_annotations

    # ---------------------------------------------------------------------------------------------- simple statements

    def statements(self, body: Sequence[ast.AST]) -> None:
        """Walk one after the other."""
        for node in body:
            self.visit(node)

    def _maybe(self, *nodes: ast.AST | None) -> None:
        self.scopes.ways(lambda: self.statements([node for node in nodes if node is not None]), lambda: None)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.scopes.bind(node.id)
        elif isinstance(node.ctx, ast.Del):
            self.scopes.load(node.id)
            self.scopes.bind(node.id)  # gone: what reads it now fails here as it would fail in the notebook
        else:
            self.scopes.load(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self.statements(node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.scopes.load(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)
        self._annotation(node.annotation)

    def _annotation(self, node: ast.expr | None) -> None:
        if node is None:
            return
        if self._lazy:
            self.scopes.load_later(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        else:
            self.visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.scopes.bind(node.target.id, walrus=True)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.scopes.bind(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name != "*":
                self.scopes.bind(alias.asname or alias.name)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self.scopes.end()

    def visit_Break(self, node: ast.Break) -> None:
        self.scopes.end()

    def visit_Continue(self, node: ast.Continue) -> None:
        self.scopes.end()

    # ------------------------------------------------------------------------------------------------------- branches

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.scopes.ways(lambda: self.statements(node.body), lambda: self.statements(node.orelse))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self.scopes.ways(lambda: self.visit(node.body), lambda: self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._maybe(*node.values[1:])

    def visit_Compare(self, node: ast.Compare) -> None:
        self.visit(node.left)
        self.visit(node.comparators[0])
        self._maybe(*node.comparators[1:])

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self._maybe(node.msg)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._maybe(node.target, *node.body)
        self._maybe(*node.orelse)

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._maybe(*node.body)
        self._maybe(*node.orelse)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self.visit(item.optional_vars)
        if any(isinstance(item.context_expr, ast.Call) and _swallows(item.context_expr.func) for item in node.items):
            self._maybe(*node.body)
        else:
            self.statements(node.body)

    visit_AsyncWith = visit_With

    def visit_Try(self, node: ast.Try) -> None:
        def handler(caught: ast.ExceptHandler) -> None:
            self.statements([caught.type] if caught.type else [])
            if caught.name:
                self.scopes.bind(caught.name)  # gone at the end of the handler, and then the notebook's would be too
            self.statements(caught.body)

        before = self.scopes.bound()
        self.scopes.ways(
            lambda: self.statements([*node.body, *node.orelse]),
            *(lambda caught=caught: handler(caught) for caught in node.handlers),
        )
        if node.finalbody:
            self.scopes.from_there(before, lambda: self.statements(node.finalbody))

    visit_TryStar = visit_Try

    def visit_Match(self, node: ast.Match) -> None:
        def case(one: ast.match_case) -> None:
            self.visit(one.pattern)
            self.statements([one.guard] if one.guard else [])
            self.statements(one.body)

        self.visit(node.subject)
        self.scopes.ways(*(lambda one=one: case(one) for one in node.cases), lambda: None)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self.generic_visit(node)
        if node.name:
            self.scopes.bind(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self.scopes.bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self.scopes.bind(node.rest)

    # --------------------------------------------------------------------------------------------------------- scopes

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)

        def rounds() -> None:
            for number, generator in enumerate(node.generators):
                if number:
                    self.visit(generator.iter)
                self.visit(generator.target)
                self.statements(generator.ifs)
            self.statements([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])

        with self.scopes.inner():
            self.scopes.ways(rounds, lambda: None)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    @contextmanager
    def _type_parameters(self, node: ast.AST) -> Iterator[None]:
        """The scope of `def f[T]` and its like (Python 3.12)."""
        names = {parameter.name for parameter in getattr(node, "type_params", ())}
        with self.scopes.inner(names):
            yield

    def visit_TypeAlias(self, node: Any) -> None:
        """`type X = ...` (Python 3.12): evaluated when first asked for."""
        self.scopes.load_later(n.id for n in ast.walk(node.value) if isinstance(n, ast.Name))
        self.scopes.bind(node.name.id)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.statements([*node.args.defaults, *(d for d in node.args.kw_defaults if d)])
        self.scopes.load_later(self._bodies.get((node.lineno, "lambda"), set()) | magic_lines.text_names(node.body))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        self.statements(node.decorator_list)
        self.statements([*arguments.defaults, *(d for d in arguments.kw_defaults if d)])
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        with self._type_parameters(node):
            for argument in everything:
                self._annotation(argument.annotation if argument else None)
            self._annotation(node.returns)
        body = self._bodies.get((node.lineno, node.name), set()).union(*map(magic_lines.text_names, node.body))
        self.scopes.define(node.name, body, at_once=bool(node.decorator_list))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.statements(node.decorator_list)
        with self._type_parameters(node):
            self.statements([*node.bases, *node.keywords])
        with self.scopes.class_body() as read:
            self.statements(node.body)
        self.scopes.define(node.name, read, at_once=bool(node.decorator_list or node.keywords))

    # --------------------------------------------------------------------------------------------------------- magics

    def visit_Call(self, node: ast.Call) -> None:
        call = magic_lines.magic_call(node)
        if call is None:
            self.generic_visit(node)
            for name in magic_lines.query_names(node):
                self.scopes.load(name)
            return
        code = call.name in ("time", "timeit") and magic_lines.parsed(call.text)
        if code:
            self.scopes.ways(lambda: self.statements(code.body), *([] if call.name == "time" else [lambda: None]))
        else:
            for name in sorted(magic_lines.line_names(call)):
                self.scopes.load(name)


def _swallows(manager: ast.expr) -> bool:
    """Whether a context manager goes by a name that says it ends its block early (`suppress`, `raises`)."""
    name = manager.attr if isinstance(manager, ast.Attribute) else manager.id if isinstance(manager, ast.Name) else ""
    return name in ("suppress", "raises", "assertRaises")
