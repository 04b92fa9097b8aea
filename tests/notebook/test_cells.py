"""A spawned cell means in a rank what it would mean in the notebook."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernels import Kernel
from nbproc.notebook.around import AHEAD
from nbproc.ranks.client import PRELOAD


def test_the_last_expression_of_each_rank_is_its_value(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 3\nrank * 10 + world_size")
    assert ran.ok
    assert ran.value == ""  # no second output
    assert kernel.ask("_.return_values") == {0: 3, 1: 13, 2: 23}
    assert kernel.ask("_[1]") == 13


@pytest.mark.parametrize(
    ("cell", "values"),
    [
        ("5;", [None, None]),
        ("x5 = 5", [None, None]),
        ("if True:\n    5", [None, None]),
        ("5  # five", [5, 5]),
        ("import asyncio\nawait asyncio.sleep(0, rank + 7)", [7, 8]),
        ("import asyncio\nasync def f():\n    return rank\nawait f()", [0, 1]),
        ("!echo $RANK-{world_size + 1} > out{rank}.txt\nopen(f'out{rank}.txt').read()", ["0-3\n", "1-3\n"]),
        ("found = !echo {rank}\nlist(found)", [["0"], ["1"]]),
        ("%env NBPROC_T=1\nimport os\nos.environ['NBPROC_T']", ["1", "1"]),
        ("%time 5 + rank", [5, 6]),
        ("__name__", ["__main__", "__main__"]),
        ("from __future__ import annotations\ndef f(x: nowhere): return 1\nf(0)", [1, 1]),
    ],
)
def test_what_a_cell_returns(kernel: Kernel, cell: str, values: list[object]) -> None:
    ran = kernel.run(f"%%spawn -n 2\n{cell}")
    assert ran.ok, ran.text
    assert kernel.ask("list(_)") == values


def test_what_the_cell_reads_travels_and_what_it_assigns_stays(kernel: Kernel) -> None:
    kernel.run("SCALE, unused = 3, open('/dev/null')\ndef scaled(x):\n    return x * SCALE")
    ran = kernel.run("%%spawn -n 2\nSCALE = 100\ny1 = scaled(1)\ny1")
    assert ran.ok, ran.text
    assert kernel.ask("list(_)") == [100, 100]  # the function saw the cell's assignment: one namespace
    assert kernel.ask("SCALE") == 3
    assert kernel.ask("'y1' in globals()") is False
    assert "unused" not in ran.text


def test_rank_and_world_size_of_the_notebook_are_hidden_and_that_is_said(kernel: Kernel) -> None:
    kernel.run("rank = 'mine'")
    ran = kernel.run("%%spawn -n 2\nrank")
    assert kernel.ask("list(_)") == [0, 1]
    assert "rank of the notebook: hidden" in ran.text
    assert kernel.ask("rank") == "mine"
    kernel.run("del rank")


def test_a_name_that_is_nowhere_is_a_name_error_with_the_cells_line(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 1\nx = 1\nnowhere + x")
    assert ran.ename == "SpawnError"
    first, *rest = ran.error.splitlines()
    assert first == f"rank 0 failed: NameError: name 'nowhere' is not defined, at cell [{ran.count}] line 3"
    assert "    > 3  nowhere + x" in rest
    assert f"  Cell In[{ran.count}], line 3" in rest


def test_a_syntax_error_is_shown_as_in_any_cell_and_nothing_starts(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2\n\nx = (1 +\n")
    assert ran.ename == "SyntaxError"
    assert f"Cell In[{ran.count}], line 3" in ran.error
    assert "x = (1 +" in ran.error
    assert "nbproc" not in ran.error
    assert ran.shown == []
    line = kernel.run("%spawn -n 2 f(1")
    assert line.ename == "SyntaxError"
    assert "f(1" in line.error


def test_a_magic_that_a_rank_has_not_is_refused_by_its_line(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2\nx = 1\n%matplotlib inline")
    assert "not run: line 3: %matplotlib does not work in a rank" in ran.error
    assert len(ran.error.splitlines()) == 1
    assert ran.shown == []


def test_what_cannot_be_sent_is_named_before_anything_starts(kernel: Kernel) -> None:
    kernel.run(
        "import threading, logging\n"
        "class Client:\n    def __init__(self):\n        self.guard = threading.Lock()\n"
        "client_obj = Client()\ndef fetch():\n    return client_obj\n"
        "steps = (i for i in range(3))\nlog_file = open('/dev/null')"
    )
    for cell, words in {
        "fetch()": "client_obj.guard",
        "list(steps)": "generator",
        "log_file.read()": "log_file",
    }.items():
        ran = kernel.run(f"%%spawn -n 2\n{cell}")
        assert ran.ename == "PayloadError"
        assert words in ran.error
        assert "Traceback" not in ran.error
        assert ran.shown == []


def test_a_name_in_a_body_that_is_never_reached_may_be_unsendable(kernel: Kernel) -> None:
    kernel.run("import threading\nguard1 = threading.Lock()")
    ran = kernel.run("%%spawn -n 2\ndef rarely():\n    return guard1\nrank")
    assert ran.ok, ran.text
    missed = kernel.run("%%spawn -n 2\ndef now():\n    return guard1\nnow()")
    assert "guard1" in missed.error
    assert "lock" in missed.error


def test_the_launch_says_in_one_line_what_was_sent(kernel: Kernel) -> None:
    kernel.run("class Net:\n    pass\ndef train1():\n    return Net")
    ran = kernel.run("%%spawn -n 2\ntrain1(), Net;")
    (launch,) = (line for line in ran.text.splitlines() if "sent" in line)
    assert launch.startswith("2 ranks, sent Net, train1 (")
    assert launch.endswith("), OMP_NUM_THREADS=1 (unset; change with --env)")


def test_the_result_says_in_one_line_where_it_is(kernel: Kernel) -> None:
    assert "results in _; _[0] is rank 0's; --as NAME keeps them" in kernel.run("%%spawn -n 2\n1").text
    assert "results in out1; out1[0] is rank 0's" in kernel.run("%%spawn -n 2 --as out1\n1").text


def test_what_is_large_is_listed_and_what_is_not_used_is_not_sent(kernel: Kernel) -> None:
    kernel.run("import numpy as np\nlarge1 = np.zeros(3_000_000)\nlarge2 = np.zeros(400_000_000 // 8)")
    ran = kernel.run("%%spawn -n 2\nfloat(large1.sum())")
    assert ran.ok, ran.text
    assert "sent large1 (24 MB)," in ran.text
    assert "large: " not in ran.text  # it was said of the only one
    assert "large2" not in ran.text
    kernel.run("small1 = 'small'")
    assert "sent large1, small1 (24 MB), large: large1 24 MB" in kernel.run("%%spawn -n 2\nlarge1.sum(), small1;").text
    kernel.run("del large1, large2")


def test_a_cell_that_spawned_can_be_run_again_and_changed(kernel: Kernel) -> None:
    for number in range(3):
        assert kernel.run(f"%%spawn -n 2\n{number}").ok
        assert kernel.ask("list(_)") == [number] * 2


def test_a_rank_has_imported_what_it_runs_on_before_there_is_a_cell(kernel: Kernel) -> None:
    """Given a warm kernel, then no rank spends a cell's time on importing parts of nbproc."""
    ran = kernel.run("%%spawn -n 1 --as ran\nimport sys\n[name for name in sys.modules if name.startswith('nbproc')]")
    assert ran.ok, ran.text
    modules = ("nbproc.ranks.server", *PRELOAD, *AHEAD)
    code = f"import sys; [__import__(name) for name in {modules!r}]; print(*sys.modules)"
    ahead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(kernel.ask("ran[0]")) - set(ahead) == set()
