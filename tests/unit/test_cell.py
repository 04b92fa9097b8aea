"""A cell's source -> a value that runs in a rank."""

from __future__ import annotations

import linecache
import socket
import subprocess
import sys
import traceback
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from nbproc.errors import PlanError
from nbproc.notebook.cell import Cell, analyse, first_line
from nbproc.ranks.payload import Packer, receive, send, store

FILE = "/nowhere/cell_5.py"


def cell(source: str, namespace: dict[str, Any] | None = None, **keywords: Any) -> Cell:
    text = f"%%spawn -n 2\n{source}"
    keywords = {"transform": TransformerManager().transform_cell, "text": text, "filename": FILE, **keywords}
    return analyse(source, namespace or {}, execution_count=5, **keywords)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A `__main__` of a rank, in this process."""
    module = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    yield vars(module)
    linecache.cache.pop(FILE, None)


def run(source: str, namespace: dict[str, Any] | None = None, **keywords: Any) -> Any:
    """Send the cell as a run does, and call it."""
    made = cell(source, namespace, **keywords)
    packer = Packer({} if namespace is None else namespace, {FILE: 5}.get)
    linecache.cache[FILE] = (1, None, made.call.text.splitlines(keepends=True), FILE)
    packed = packer.pack({"cell": made.call}, variables=made.roots(namespace or {}))
    assert packed.sources[FILE].cell == 5
    ours, theirs = socket.socketpair()
    with ours, theirs, store([packed]) as shipment:
        send(ours, shipment[0])
        call = receive(theirs).load()["cell"]
    return call()


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 1", 2),
        ("1 + 1;", None),
        ("1 + 1; # said and done", None),
        ("'; not this'", "; not this"),
        ("x = 1", None),
        ("x = 1\nx", 1),
        ("(rank, world_size)", (1, 2)),
        ("rank = 7\nrank", 7),
        ("", None),
        ("# nothing", None),
        ("\n\n  \n3", 3),
        ("    a = 1\n    a", 1),
        ("def f():\n    return later\nlater = 4\nf()", 4),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 6\nawait f()", 6),
        ("import asyncio\nt = asyncio.ensure_future(asyncio.sleep(0, 8))\nawait t\nt.result()", 8),
        ("[i async for i in __import__('types').coroutine(lambda: 0)()] if 0 else 9", 9),
        ("__name__", "__main__"),
        ("class A: pass\nA.__module__", "__main__"),
        ("%%time\n5", 5),
    ],
)
def test_the_last_expression_is_the_value(source: str, value: object, main: dict[str, Any]) -> None:
    assert run(source) == value


def test_what_the_cell_reads_travels_and_only_that(main: dict[str, Any]) -> None:
    namespace = {"a": 1, "b": 2, "big": bytearray(100), "len": max}
    made = cell("a + len([3, b])", namespace)
    assert made.roots(namespace) == {"a": 1, "b": 2, "len": max}
    assert run("a + len([3, b])", namespace) == 4


def test_builtins_and_the_shell_do_not_travel() -> None:
    from IPython.display import display

    namespace = {"display": display, "get_ipython": display, "__name__": "__main__", "rank": 3, "open": display}
    made = cell("display(len); get_ipython(); __name__; open(str(rank))", namespace)
    assert made.hard == made.soft == ()


def test_a_users_own_open_does() -> None:
    assert cell("open(1)", {"open": run}).hard == ("open",)


@pytest.mark.parametrize(("source", "hidden"), [("rank", "rank"), ("rank = 1\nrank", ""), ("f()", "world_size")])
def test_a_hidden_variable_of_the_notebook_is_told(source: str, hidden: str) -> None:
    namespace: dict[str, Any] = {"rank": 1, "world_size": 2}
    exec("def g(): return [world_size for _ in 'a']\ndef f(): return g()", namespace)
    notes = " ".join(cell(source, namespace).notes)
    assert notes.startswith(f"{hidden} of the notebook: hidden" if hidden else "")
    assert bool(notes) == bool(hidden)


def test_functions_of_the_notebook_see_what_the_cell_assigns(main: dict[str, Any]) -> None:
    notebook: dict[str, Any] = {"__name__": "__main__", "SCALE": 1}
    exec("def f(): return SCALE", notebook)
    assert run("SCALE = 3\nf()", notebook) == 3


def test_an_unknown_name_is_the_usual_error_with_the_cells_line(main: dict[str, Any]) -> None:
    with pytest.raises(NameError, match="name 'nowhere' is not defined") as caught:
        run("x = 1\n\nx + nowhere")
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.line) == (FILE, 4, "x + nowhere")


def test_a_name_that_could_not_be_sent_is_told_when_it_is_missed(main: dict[str, Any]) -> None:
    made = cell("def f(): return guard\nf()", {"guard": 1})
    assert made.soft == ("guard",)
    left = made.without({"guard": "a lock cannot be sent"})
    assert left.roots({"guard": 1}) == {}
    with pytest.raises(NameError) as caught:
        left.call()
    assert caught.value.__notes__ == ["guard exists in the notebook, but was not sent: a lock cannot be sent"]


@pytest.mark.parametrize(
    "source", ["!echo \\\n  hello\n%env A=1\n\n1/0", "x = 1\n\n\n\n1/0", "\n\n\n\n1/0", "%%time\n\n\n\n1/0"]
)
def test_lines_are_those_of_the_cell_as_it_stands(source: str, main: dict[str, Any]) -> None:
    main["get_ipython"] = lambda: __import__("unittest.mock").mock.Mock()
    with pytest.raises(ZeroDivisionError) as caught:
        run(source)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.lineno, frame.line) == (6, "1/0")


def test_the_part_of_the_line_that_failed_is_marked(main: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("    x = 0\n    y = 1 + 1 / x")
    text = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "line 3, in <module>\n    y = 1 + 1 / x\n" in text
    if sys.version_info >= (3, 11):
        assert "\n            ~~^~~\n" in text


def test_an_error_after_an_await_has_no_frames_of_asyncio(main: dict[str, Any]) -> None:
    source = "import asyncio\nawait asyncio.sleep(0)\ntry:\n    1/0\nexcept ZeroDivisionError:\n    {}['k']"
    with pytest.raises(KeyError) as caught:
        run(source)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[-1] == FILE
    assert not any("asyncio" in file for file in files)
    assert isinstance(caught.value.__context__, ZeroDivisionError)
    assert not caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("x = 1\ny = (", 3, "y = ("),
        ("x = 1\nreturn x", 3, "return x"),
        ("x = 1\n   y = 2", 3, "   y = 2"),
        ("    x = 1\n    y = = 2", 3, "    y = = 2"),
        ("!echo \\\n  a\nx = = 1", 4, "x = = 1"),
        ("x = 1\n%time f(", 3, "%time f("),
        ("\n\nfor", 4, "for"),
        ("def f():\n    x = 1\n    global x", 4, "    global x"),
        ("x = 1\nbreak", 3, "break"),
        ("'abc", 2, "'abc"),
    ],
)
def test_a_syntax_error_is_found_before_anything_starts(source: str, line: int, text: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        cell(source)
    error = caught.value
    assert (error.filename, error.lineno, (error.text or "").rstrip("\n")) == (FILE, line, text)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\n%prun f()", "line 3: %prun does not work in a rank"),
        ("def f():\n    %load_ext a", "line 3: %load_ext does not"),
        ("%%html\nls", "line 2: %%html does not"),
        ("\n%%capture\n1", "line 3: %%capture does not"),
        ("x = 1\nx?", "line 3: help (?) does not"),
        ("!echo \\\n  a\n%pip install x", "line 4: %pip does not"),
    ],
)
def test_a_magic_that_ranks_do_not_have_is_told_with_its_line(source: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        cell(source)
    assert words in str(caught.value)
    assert "%cd, %env, %time, %timeit" in str(caught.value)


def test_a_cell_of_a_shell_is_told_of_the_option_for_it() -> None:
    with pytest.raises(PlanError, match=r"line 2: write --exec bash in the line of %%spawn, in place of %%bash"):
        cell("%%bash\nls")


def test_future_imports_hold_in_the_cell_and_in_its_value(main: dict[str, Any]) -> None:
    source = "from __future__ import annotations\ndef f(a: nowhere): ...\nlambda: (f.__annotations__['a'])"
    assert run(source)() == "nowhere"


def test_the_notebooks_future_flags_hold_and_this_packages_do_not(main: dict[str, Any]) -> None:
    import __future__

    source = "def f(a: int): ...\nf.__annotations__['a']"
    assert run(source, flags=__future__.annotations.compiler_flag) == "int"
    assert run(source) is int


def test_the_shells_tree_transformers_are_applied(main: dict[str, Any]) -> None:
    import ast

    class Double(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            return ast.copy_location(ast.Constant(node.value * 2), node)

    assert run("3", transform_tree=lambda tree: ast.fix_missing_locations(Double().visit(tree))) == 6


@pytest.mark.parametrize(
    ("text", "body", "line"),
    [
        ("%%spawn -n 2\nx = 1\n", "x = 1\n", 2),
        ("\n\n%%spawn -n 2\nx = 1", "x = 1\n", 4),
        ("%%time\n%%spawn\nx", "x", 3),
        ("something else", "x = 1", 2),
        ("%%spawn -n 2", "", 1),
    ],
)
def test_where_the_body_begins(text: str, body: str, line: int) -> None:
    assert first_line(text, body) == line


def test_what_runs_in_a_rank_knows_no_ipython() -> None:
    script = (
        "import sys, nbproc.notebook.call, nbproc.notebook.inrank as i; i.install(); print('IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
