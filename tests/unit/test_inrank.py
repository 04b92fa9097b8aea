"""What a rank has of a notebook. Each test runs its code in a process of its own, whose streams are files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nbproc.notebook.displays import counted

PNG = b"\x89PNG"
INLINE = "module://matplotlib_inline.backend_inline"


@dataclass
class Rank:
    """What a rank left behind."""

    directory: Path
    stdout: str
    stderr: str

    @property
    def records(self) -> list[dict[str, Any]]:
        listing = self.directory / "display.jsonl"
        return [json.loads(line) for line in listing.read_text().splitlines()] if listing.exists() else []

    @property
    def shown(self) -> list[str]:
        """The richest type of each display."""
        return [record["mime"][0] for record in self.records if "n" in record]

    def content(self, number: int, mime: str) -> bytes:
        return (self.directory / self.records[number]["files"][mime]).read_bytes()


Run = Callable[..., Rank]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run code as a rank does: set up, then the code, then the end of it."""

    def run(code: str, *, before: str = "", **environment: str) -> Rank:
        directory = tmp_path / "0"
        directory.mkdir(exist_ok=True)
        script = tmp_path / "script.py"
        script.write_text(
            f"import sys\n{textwrap.dedent(before)}\nfrom nbproc.notebook import inrank, show\n"
            f"ending = inrank.install(directory={str(directory)!r})\n"
            f"{textwrap.dedent(code)}\nending()\n"
        )
        with open(directory / "stdout.log", "ab") as out, open(directory / "stderr.log", "ab") as err:
            done = subprocess.run(
                [sys.executable, str(script)],
                stdout=out,
                stderr=err,
                cwd=tmp_path,
                env={**os.environ, "MPLBACKEND": INLINE, **environment},
                check=False,
            )
        stdout, stderr = ((directory / name).read_text() for name in ("stdout.log", "stderr.log"))
        assert done.returncode == 0, stderr
        return Rank(directory, stdout, stderr)

    return run


# ------------------------------------------------------------------------------------------------------------ display


def test_what_is_rich_becomes_files_and_a_line(run: Run) -> None:
    rank = run("""
        class Table:
            def _repr_html_(self): return "<b>ä</b>"
            def __repr__(self): return "Table()"
        print("before")
        display(Table())
        print("after", file=sys.stderr)
        display(Table())
        """)
    assert rank.content(0, "text/html").decode() == "<b>ä</b>"
    first, second = rank.records
    assert first["file"] == "display/000.html"
    assert first["files"] == {"text/html": "display/000.html", "text/plain": "display/000.txt"}
    assert first["mime"] == ["text/html", "text/plain"]
    assert first["text"] == "Table()"
    assert (first["stdout"], first["stderr"]) == (len("before\n"), 0)
    assert (second["n"], second["stdout"], second["stderr"]) == (1, len("before\n"), len("after\n"))


def test_a_display_is_called_what_it_is(run: Run) -> None:
    """Given a table, a picture and something else, then each is named, to be counted as such."""
    rank = run("""
        for forms in ({"text/html": "<div><table></table></div>"}, {"image/svg+xml": "<svg/>"}, {"text/html": "<b>b</b>"}):
            display({**forms, "text/plain": "x"}, raw=True)
        """)
    kinds = [record["kind"] for record in rank.records]
    assert kinds == ["table", "figure", "output"]
    assert counted([*kinds, "figure"]) == "1 table, 2 figures, 1 output"


def test_what_is_text_is_printed(run: Run) -> None:
    rank = run("display(5, 'x', {'b': [1], 'a': 2})")
    assert rank.stdout == "5\n'x'\n{'b': [1], 'a': 2}\n"
    assert rank.records == []


@pytest.mark.parametrize(
    ("method", "value", "mime", "file", "content"),
    [
        ("_repr_html_", "'<p>'", "text/html", "000.html", b"<p>"),
        ("_repr_svg_", "'<svg>'", "image/svg+xml", "000.svg", b"<svg>"),
        ("_repr_png_", "b'png'", "image/png", "000.png", b"png"),
        ("_repr_jpeg_", "(b'jpg', {'width': 3})", "image/jpeg", "000.jpg", b"jpg"),
        ("_repr_markdown_", "'*a*'", "text/markdown", "000.md", b"*a*"),
        ("_repr_latex_", "'$a$'", "text/latex", "000.tex", b"$a$"),
        ("_repr_json_", "{'a': [1]}", "application/json", "000.json", b'{"a": [1]}'),
    ],
)
def test_every_form_that_a_notebook_knows(
    run: Run, method: str, value: str, mime: str, file: str, content: bytes
) -> None:
    rank = run(f"class A:\n    def {method}(self): return {value}\ndisplay(A())")
    assert rank.shown == [mime]
    assert rank.records[0]["file"] == f"display/{file}"
    assert rank.content(0, mime) == content
    assert rank.records[0]["metadata"] == ({mime: {"width": 3}} if "width" in value else {})


def test_a_mime_bundle_and_an_object_that_displays_itself(run: Run) -> None:
    rank = run("""
        class Bundle:
            def _repr_mimebundle_(self, include=None, exclude=None):
                return {"application/vnd.plot+json": {"a": 1}, "image/png": "iVBORw=="}, {"k": "v"}
        class Own:
            def _ipython_display_(self): print("own")
        display(Bundle(), Own())
        """)
    assert rank.shown == ["application/vnd.plot+json"]
    assert rank.content(0, "image/png") == PNG
    assert rank.records[0]["metadata"] == {"k": "v"}
    assert rank.stdout == "own\n"


def test_objects_that_break_are_told_and_do_no_harm(run: Run) -> None:
    rank = run("""
        from unittest.mock import MagicMock
        class Bad:
            def _repr_html_(self): raise ValueError("broken")
            def __repr__(self): raise KeyError("too")
        display(Bad(), MagicMock(name="m"), Bad)
        show.show_value(MagicMock())
        """)
    assert rank.records == []
    assert "<Bad: its repr raised KeyError: 'too'>" in rank.stdout
    assert "MagicMock" in rank.stdout
    assert "Bad._repr_html_ raised ValueError: broken" in rank.stderr


def test_a_display_is_replaced_by_its_name_and_its_last_state_is_kept(run: Run) -> None:
    rank = run("""
        class Page:
            def __init__(self, n): self.n = n
            def _repr_html_(self): return f"<b>{self.n}</b>"
        handle = display(Page(0), display_id=True)
        for n in range(1000):
            handle.update(Page(n))
        """)
    assert rank.content(0, "text/html") == b"<b>999</b>"
    assert {record["n"] for record in rank.records} == {0}
    assert len(rank.records) < 20
    assert rank.records[-1]["update"] >= 1


def test_a_plot_drawn_anew_in_a_loop_takes_the_place_of_the_last(run: Run) -> None:
    rank = run("""
        from IPython.display import HTML, clear_output
        for n in range(60):
            clear_output(wait=True)
            display(HTML(f"<b>{n}</b>"))
        """)
    assert rank.records[-2]["clear"] is True
    assert rank.records[-1]["n"] == 0
    assert rank.content(-1, "text/html") == b"<b>59</b>"


def test_fifty_are_kept_and_then_a_line_says_so(run: Run) -> None:
    rank = run("""
        class A:
            def _repr_html_(self): return "<b>"
        for _ in range(60):
            display(A())
        """)
    assert len(rank.records) == 51
    assert rank.shown[:50] == ["text/html"] * 50
    assert rank.records[50]["text"].startswith("50 displays are kept of a rank")


def test_what_is_too_large_is_left_out_and_told(run: Run) -> None:
    rank = run("""
        class A:
            def _repr_html_(self): return "x" * 3_000_000
            def _repr_markdown_(self): return "small"
        class B:
            def _repr_html_(self): return "x" * 3_000_000
            def __repr__(self): return "y" * 3_000_000
        display(A(), B())
        """)
    assert rank.records[0]["mime"] == ["text/markdown", "text/plain"]
    assert rank.records[1]["mime"] == ["text/plain"]
    assert rank.records[1]["text"].startswith("[not kept: text/html of 3.0 MB; a display of a rank may hold 2 MB]")
    assert rank.content(1, "text/plain").endswith(b"(3,000,000 bytes in all)")


def test_a_rich_value_is_shown_and_a_plain_one_is_not(run: Run) -> None:
    rank = run("""
        import pandas
        show.show_value(pandas.DataFrame({"a": [1, 2]}))
        for plain in (1, "x", [pandas.DataFrame()], None, object(), pandas.DataFrame):
            show.show_value(plain)
        """)
    assert rank.shown == ["text/html"]
    assert b"<table" in rank.content(0, "text/html")
    assert rank.records[0]["text"] == "   a\n0  1\n1  2"
    assert rank.stdout == ""


def test_a_disk_that_takes_nothing_ends_no_rank(run: Run, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "display").write_text("in the way")
    rank = run("class A:\n    def _repr_html_(self): return '<b>'\ndisplay(A())")
    assert "a display could not be kept" in rank.stderr


# ------------------------------------------------------------------------------------------------------- libraries


@pytest.mark.parametrize(
    "before", ["", "import IPython, IPython.display", "from IPython.display import display as mine"]
)
def test_ipythons_display_is_the_ranks_also_where_it_was_imported_before(run: Run, before: str) -> None:
    rank = run(
        """
        import IPython
        from IPython.display import HTML, Image, Markdown, SVG, display, publish_display_data
        assert display is show.display and IPython.display.display is show.display
        if "mine" in globals(): assert mine is show.display
        assert IPython.get_ipython() is None and get_ipython() is not None
        display(HTML("<b>"), Markdown("*"), Image(data=b"\\x89PNG\\r\\n\\x1a\\n", format="png"), SVG("<svg></svg>"))
        publish_display_data({"text/html": "<i>"})
        """,
        before=before,
    )
    assert rank.shown == ["text/html", "text/markdown", "image/png", "image/svg+xml", "text/html"]


def test_figures_are_shown_at_show_and_at_the_end(run: Run) -> None:
    rank = run("""
        assert "matplotlib" not in sys.modules
        import matplotlib.pyplot as plt
        assert plt.isinteractive()
        plt.plot([1, 2]); plt.figure(); plt.plot([3])
        plt.show()
        assert not plt.get_fignums()
        plt.figure()
        plt.title("the last")
        """)
    assert rank.shown == ["image/png"] * 3
    assert all(rank.content(n, "image/png").startswith(PNG) for n in range(3))
    assert rank.records[0]["text"] == "<Figure size 640x480 with 1 Axes>"
    assert rank.stderr == ""


def test_a_figure_displayed_by_hand_and_figures_left_alone_without_interaction(run: Run) -> None:
    rank = run("""
        import matplotlib.pyplot as plt
        plt.ioff()
        figure, axes = plt.subplots()
        axes.plot([1])
        display(figure)
        """)
    assert rank.shown == ["image/png"]


@pytest.mark.parametrize(
    ("backend", "mine"), [("", True), ("agg", True), ("module://ipympl.backend_nbagg", True), ("pdf", False)]
)
def test_a_backend_that_was_chosen_on_purpose_stays(run: Run, backend: str, mine: bool) -> None:
    rank = run(
        """
        import os, matplotlib
        print(matplotlib.get_backend() == inrank.BACKEND, os.environ["MPLBACKEND"])
        """,
        MPLBACKEND=backend,
    )
    assert rank.stdout == ("True agg\n" if mine else f"False {backend}\n")


def test_notebook_bars_are_text(run: Run) -> None:
    rank = run(
        """
        from tqdm.notebook import tqdm, trange
        import tqdm.auto
        for _ in tqdm(range(3), desc="one", display=True): pass
        for _ in trange(3, desc="two"): pass
        for _ in tqdm_auto(range(3), desc="three"): pass
        """.replace("import tqdm.auto", "from tqdm.auto import tqdm as tqdm_auto")
    )
    for name in ("one", "two", "three"):
        assert f"{name}: 100%|" in rank.stderr
    assert "Warning" not in rank.stderr


def test_a_bar_that_was_imported_in_the_notebook_arrives_as_text(run: Run) -> None:
    """A class travels by its name; under that name there is the text bar."""
    rank = run("""
        import pickle
        bar = pickle.loads(b"ctqdm.notebook\\ntqdm_notebook\\n.")
        for _ in bar(range(2)): pass
        """)
    assert "100%|" in rank.stderr


def test_other_widgets_show_their_text_and_one_line_why(run: Run) -> None:
    rank = run("""
        import ipywidgets
        display(ipywidgets.IntSlider(3), ipywidgets.IntSlider(4))
        show.show_value(ipywidgets.Text("x"))
        """)
    assert "IntSlider(value=3)\n" in rank.stdout
    assert "IntSlider(value=4)\n" in rank.stdout
    assert "Text(value='x')" in rank.stdout
    assert rank.stdout.count("cannot reach the page") == 1
    assert rank.records == []


def test_rich_writes_plain_text(run: Run) -> None:
    rank = run("import rich\nrich.print('[bold]hello[/]')")
    assert rank.stdout == "hello\n"
    assert rank.records == []


def test_a_rank_forked_from_a_kernel_has_its_own_display(run: Run) -> None:
    rank = run(
        """
        assert type(get_ipython()).__name__ == "RankShell" and IPython.get_ipython() is None
        assert not plt.get_fignums(), "the kernel's figures"
        display_of_a_module(HTML("<b>"))
        plt.plot([1]); plt.show()
        """,
        before="""
        import os
        import IPython
        from IPython.display import HTML, display as display_of_a_module
        import matplotlib
        matplotlib.use("module://matplotlib_inline.backend_inline")
        import matplotlib.pyplot as plt
        plt.plot([5])
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    assert rank.shown == ["text/html", "image/png"]


# --------------------------------------------------------------------------------------------------- get_ipython()


def test_shell_commands(run: Run) -> None:
    rank = run(
        """
        name, numbers = "ada", [1, 2]
        def local(name): get_ipython().system("echo {name} $name")
        get_ipython().system("echo {name} {numbers[1]} $HOME_OF '$name' {{x}} $$name")
        local("bob")
        get_ipython().system("exit 3")
        print(_exit_code)
        lines = get_ipython().getoutput("echo a b; echo c >&2")
        print(lines, lines.s, repr(lines.n), lines.fields(0), lines.grep("c"))
        """,
        HOME_OF="home",
    )
    assert rank.stdout.splitlines()[:4] == [
        "ada 2 home $name {x}",
        "bob bob",
        "3",
        "['a b', 'c'] a b c 'a b\\nc' ['a', 'c'] ['c']",
    ]


def test_magics(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    rank = run("""
        import os
        magic = get_ipython().run_line_magic
        where = "sub"
        magic("cd", "{where}"); assert os.getcwd().endswith("sub")
        magic("cd", "-q -"); assert not os.getcwd().endswith("sub")
        magic("env", "A=$where"); magic("env", "B c d")
        assert os.environ["A"] == magic("env", "A") == "sub" and os.environ["B"] == "c d"
        assert "PATH" in magic("env", "")
        assert magic("time", "x = 20; x + 1") == 21 and x == 20
        def f(y): return magic("time", "y * 2")
        assert f(4) == 8
        result = magic("timeit", "-n 2 -r 3 -o x + 1")
        assert result.loops == 2 and len(result.all_runs) == 3
        try:
            magic("prun", "f()")
        except TypeError as error:
            print(error)
        try:
            get_ipython().kernel
        except AttributeError as error:
            print(error)
        """)
    assert rank.stdout.startswith(f"{tmp_path / 'sub'}\nenv: A=sub\nenv: B=c d\nCPU times: user ")
    assert "Wall time: " in rank.stdout
    assert "per loop (mean +- std. dev. of 3 runs, 2 loops each)" in rank.stdout
    assert "%prun does not work in a rank (these do: !, %cd, %env, %time, %timeit)" in rank.stdout
    assert "get_ipython() in a rank has no 'kernel'" in rank.stdout


def test_without_a_directory_everything_is_printed(run: Run) -> None:
    rank = run("""
        inrank.install()
        class A:
            def _repr_html_(self): return "<b>"
            def __repr__(self): return "A()"
        display(A())
        """)
    assert rank.stdout == "A()\n"
