"""What a cell reads of the notebook, and what it does not."""

from __future__ import annotations

import ast
import builtins
import sys
import textwrap
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from nbproc.notebook.names import reads

NOTEBOOK = frozenset(["a", "b", "c", "d", "e", "f", "g", "x", "y", "z", "cfg", "model", "train", "Net", "items"])


def found(source: str) -> tuple[str, str]:
    """The hard and the soft names of a cell, of those that the notebook has."""
    code = TransformerManager().transform_cell(source)
    result = reads(ast.parse(code), code)
    return " ".join(sorted(result.hard & NOTEBOOK)), " ".join(sorted(result.soft & NOTEBOOK))


@pytest.mark.parametrize(
    ("source", "hard", "soft"),
    [
        # one after the other
        ("a", "a", ""),
        ("a = 1\na", "", ""),
        ("a = a", "a", ""),
        ("a = b; c = a", "b", ""),
        ("a += 1", "a", ""),
        ("a.b = 1", "a", ""),
        ("a[b] = c", "a b c", ""),
        ("a[b] += c", "a b c", ""),
        ("(a, *b), c = d\na, b, c", "d", ""),
        ("a: int = b", "b", ""),
        ("a: b", "b", ""),
        ("a: b = 1\na", "b", ""),
        ("del a", "a", ""),
        ("a = 1\ndel a\na", "", ""),
        ("del a[b]", "a b", ""),
        ("import a\na", "", ""),
        ("import a.b as c\nc, a", "a", ""),
        ("import a.b\na, b", "b", ""),
        ("from m import a, b as c\na, c, b", "b", ""),
        ("from m import *\na", "a", ""),
        ("f'{a} {b!r:>{c}}'", "a b c", ""),
        ("print(a, *b, **c)", "a b c", ""),
        ("(a := b) + a", "b", ""),
        ("global a\na = 1\na", "", ""),
        ("assert a, b", "a b", ""),
        ("raise a from b", "a b", ""),
        # branches: only what every way assigns is sure to be there
        ("if a:\n  b = 1\nelse:\n  b = 2\nb", "a", ""),
        ("if a:\n  b = 1\nb", "a", "b"),
        ("if a:\n  b = 1\nelse:\n  raise ValueError\nb", "a", ""),
        ("b = 1 if a else c", "a c", ""),
        ("a and (b := 1)\nb", "a", "b"),
        ("(b := a) and c\nb", "a c", ""),
        ("a < (b := 1) < (c := 2)\nb, c", "a", "c"),
        (
            "match a:\n  case [b, *c]: b, c\n  case {'k': d, **e}: d, e\n  case Net(x=y) as z: y, z\n  case _: 1",
            "Net a",
            "",
        ),
        ("match a:\n  case x.y: 1\n  case b: b", "a x", ""),
        ("match a:\n  case b if c: 1\nb", "a c", "b"),
        # loops may not run at all
        ("for a in b:\n  c = a\nc", "b", "c"),
        ("for a in b:\n  d\n  d = 1", "b d", ""),
        ("for a.b in c: pass", "a c", ""),
        ("for a in b:\n  if c: break\n  d = 1\nelse:\n  e = 1\nd, e", "b c", "d e"),
        ("while a:\n  b = 1\n  b\nb", "a", "b"),
        ("for a in range(3): pass\nelse:\n  b\n", "b", ""),
        # try
        ("try:\n  a = b\nexcept c as d:\n  a = d\na", "b c", ""),
        ("try:\n  a = b\nexcept c:\n  pass\na", "b c", "a"),
        ("try:\n  a = 1\nexcept c:\n  raise\na", "c", ""),
        ("try:\n  a = 1\nfinally:\n  a", "", "a"),
        ("try:\n  b\nfinally:\n  a = 1\na", "b", ""),
        ("try:\n  1\nexcept c:\n  a = 1\nelse:\n  a = 2\na", "c", ""),
        ("try:\n  1\nexcept ValueError as a:\n  pass\na", "", "a"),
        # with
        ("with a as b, c(b) as d:\n  e = d\ne", "a c", ""),
        ("import contextlib\nwith contextlib.suppress(a):\n  e = 1\ne", "a", "e"),
        # comprehensions and lambdas have names of their own
        ("[a for a in b if a]", "b", ""),
        ("[a for a in b]\na", "a b", ""),
        ("[b for a in c for b in a]", "c", ""),
        ("[(x, y) for x in a for z in x]", "a y", ""),
        ("{a: c for a, b in d.items()}", "c d", ""),
        ("any((e := a) for a in b)\ne", "b", "e"),
        ("[[a for a in b] for b in c]", "c", ""),
        ("f = lambda a, b=c: a + b + d", "c", "d"),
        ("sorted(items, key=lambda a: a[x])", "items", "x"),
        # functions: their bodies are soft, what is evaluated at the definition is hard
        ("def f(a, b=c, *, d: e = x): return a + b + d + y\nf()", "c e x", "y"),
        ("@a\ndef f(b) -> c: d", "a c", "d"),
        ("def f(): return g()\ndef g(): return x\nf()", "", "x"),
        ("def f():\n  global a\n  a = 1\nf()", "", "a"),
        ("def f():\n  def g():\n    return a\n  a = 1\n  return g\nf()", "", ""),
        ("def f():\n  def g():\n    nonlocal b\n    b = c\n  b = 1\nf()", "", "c"),
        ("async def f():\n  async with a as b:\n    async for c in b: d\nawait f()", "", "a d"),
        ("def f(): return [a for a in b if c]\nf()", "", "b c"),
        # a body counts where its function is read
        ("def f(): return model\nmodel = 1\nf()", "", ""),
        ("def f(): return model\nf()\nmodel = 1", "", "model"),
        ("def f(): return model\ng = f\nmodel = 1\ng()", "", "model"),
        ("def f(): return model\nmodel = 1", "", "model"),
        ("f = 1\ndef f(): return f\nf()", "", ""),
        # classes run at once; their methods do not
        ("class A(a, metaclass=b):\n  c = d\n  e = c", "a b d", ""),
        ("class A:\n  a = a", "a", ""),
        ("class A:\n  a = 1\n  def m(self, b=a): return a + x\nA().m()", "", "a x"),
        ("class A:\n  a = 1\n  b = [a for _ in c]", "a c", ""),
        ("class A:\n  a = 1\n  b = [c for c in a]", "", ""),
        ("class A:\n  class B:\n    def m(self): return a\nA", "", "a"),
        ("class A:\n  a = 1\na", "a", ""),
        # names that stand in texts
        ("!echo {a} $b '$c' {{d}} $$e", "a b", ""),
        ("x = !ls {a.b['c']} {d", "", ""),
        ("!ls {a.b['c']}", "a", ""),
        ("%time b = f(a)\nb", "a f", ""),
        ("%timeit -n 3 -r 1 f(a)\n", "a f", ""),
        ("%cd {a}/b", "a", ""),
        ("%env A=$a", "a", ""),
        ("def h():\n  !echo {a}\n  %time b + 1\nh()", "", "a b"),
        ("items.query('k > @a and l == @b')", "a b items", ""),
        ("await a.b(c)", "a c", ""),
        ("async for a in b: pass\n", "b", ""),
    ],
)
def test_a_cell_reads(source: str, hard: str, soft: str) -> None:
    assert found(source) == (hard, soft)


def test_annotations_are_not_read_where_they_are_not_evaluated() -> None:
    source = "from __future__ import annotations\ndef f(a: b) -> c: ...\nx: d = 1"
    result = reads(ast.parse(source), source, lazy_annotations=True)
    assert not result.hard
    assert {"b", "c", "d"} <= result.soft


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")
def test_groups_of_exceptions_are_handled_as_exceptions_are() -> None:
    assert found("try:\n  a = b\nexcept* c as d:\n  a = d\na") == ("b c", "")


def test_a_name_once_sure_stays_sure_after_code_that_is_never_reached() -> None:
    assert found("a = 1\nraise ValueError\na, b") == ("b", "")


# ------------------------------------------------------------------------------------ never too little, for any cell


class _Recorder(dict[str, Any]):
    """Globals that note each name of the notebook that is looked up while the cell has not bound it."""

    def __init__(self) -> None:
        super().__init__(__builtins__=builtins.__dict__, __name__="cell")
        self.read: set[str] = set()

    def __missing__(self, name: str) -> object:
        if name not in "abcde":
            raise KeyError(name)
        self.read.add(name)
        return _Anything()


class _Anything:
    """A value that can be called, looped over and entered."""

    def __call__(self, *_: object, **__: object) -> _Anything:
        return self

    def __iter__(self) -> Any:
        return iter([1, _Anything()])

    def __enter__(self) -> _Anything:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


NAMES = st.sampled_from("abcde")
EXPRESSIONS = st.recursive(
    NAMES | st.just("1"),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{} for {} in ({}, 1)]".format, inner, NAMES, inner),
        st.builds("(lambda {}: {})".format, NAMES, inner),
        st.builds("({} := {})".format, NAMES, inner),
        st.builds("callable({})".format, inner),
    ),
    max_leaves=5,
)


def block(body: str) -> str:
    return textwrap.indent(body, "    ")


STATEMENTS = st.recursive(
    st.one_of(
        st.builds("{} = {}".format, NAMES, EXPRESSIONS),
        EXPRESSIONS,
        st.builds("try: {}()\nexcept Exception: pass".format, NAMES),
        st.builds("import os as {}".format, NAMES),
    ),
    lambda inner: st.one_of(
        st.builds("{}\n{}".format, inner, inner),
        st.builds(lambda t, a, b: f"if {t}:\n{block(a)}\nelse:\n{block(b)}", EXPRESSIONS, inner, inner),
        st.builds(lambda n, a: f"for {n} in (1, 2):\n{block(a)}", NAMES, inner),
        st.builds(lambda n, p, a: f"def {n}({p}=1):\n{block(a)}", NAMES, NAMES, inner),
        st.builds(lambda n, a: f"class {n}:\n{block(a)}", NAMES, inner),
        st.builds(
            lambda a, b, c, n: (
                f"try:\n{block(a)}\nexcept Exception as {n}:\n{block(b)}\nelse:\n    pass\nfinally:\n{block(c)}"
            ),
            inner,
            inner,
            inner,
            NAMES,
        ),
        st.builds(lambda e, n, a: f"with a_manager({e}) as {n}:\n{block(a)}", EXPRESSIONS, NAMES, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(STATEMENTS)
def test_what_a_cell_looks_up_was_named(source: str) -> None:
    try:
        code = compile(source, "<cell>", "exec", dont_inherit=True)
    except SyntaxError:
        return  # such as a walrus where a comprehension's own name stands
    variables = _Recorder()
    variables["a_manager"] = lambda _: _Anything()
    try:
        exec(code, variables)
    except Exception:
        pass  # it ended early; what it read until then counts
    result = reads(ast.parse(source), source)
    assert variables.read <= result.hard | result.soft


def test_the_recorder_sees_what_is_looked_up() -> None:
    variables = _Recorder()
    exec("a\ndef f(): return b\nf()\nc = 1\nc", variables)
    assert variables.read == {"a", "b"}
