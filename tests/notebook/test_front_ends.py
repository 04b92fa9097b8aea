"""What front ends ask of the magics: completion, help, execution of whole notebooks, scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from kernels import Kernel, plain


@pytest.fixture(scope="module", autouse=True)
def names(kernel: Kernel) -> None:
    kernel.always("learning_rate, model_name, n_ranks = 0.1, 'net', 2\ndef train_model(x): pass")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%%spawn --det", ["--detach"]),
        ("%%spawn -n 4 --start-method fo", ["fork", "forkserver"]),
        ("%%spawn -n g", ["gpu"]),
        ("%%spawn --lo", ["--local-ranks-filter", "--log-dir"]),
        ("%spawn -n 2 --no", ["--no-check", "--no-quiet"]),
        ("%spawn_config --res", ["--reset"]),
        ("%%spawn -n $n_ra", ["n_ranks"]),
        ("%spawn -n 2 -- python train.py --lr {learn", ["learning_rate}"]),
        ("%spawn -n 2 -- python train.py --seed {ra", ["rank}"]),
        ("%spawn -n 2 --start-method=sp", ["spawn"]),
        ("%spawn -n 2 train_mo", ["train_model"]),
        ("%spawn -n 2 train_model(x=learning", ["learning_rate"]),
    ],
)
def test_tab_completes_options_and_names(kernel: Kernel, typed: str, offered: list[str]) -> None:
    found = kernel.complete(typed)
    assert [one for one in found if one in offered] == offered, found


@pytest.mark.parametrize("jedi", [True, False])
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%spawn -n 2 settings.", ["depth", "width"]),
        ("%spawn -n 2 settings.wi", ["width"]),
        ("%spawn -n 2 train_model(x=settings.d", ["depth"]),
        ("%spawn -n 2 train_model(many['one'].", ["depth", "width"]),
        ("%spawn -n 2 -- python train.py {settings.w", ["width"]),
        ("%%spawn -n {settings.de", ["depth"]),
    ],
)
def test_tab_completes_attributes(kernel: Kernel, typed: str, offered: list[str], jedi: bool) -> None:
    kernel.run(
        "import types\nsettings = types.SimpleNamespace(width=3, depth=4)\nmany = {'one': settings}\n"
        f"get_ipython().Completer.use_jedi = {jedi}"
    )
    assert [one.rpartition(".")[2] for one in kernel.complete(typed)] == offered


def test_tab_completes_python_in_the_cell(kernel: Kernel) -> None:
    assert "train_model" in kernel.complete("%%spawn -n 2\ntrain_mo")
    assert not [one for one in kernel.complete("%%spawn -n 2\ntrain_mo") if one.startswith("--")]


def test_question_mark_shows_the_help(kernel: Kernel) -> None:
    for name in ("%%spawn", "%spawn"):
        told = kernel.inspect(name)
        assert "%%spawn -n N [options]" in told
        assert "%spawn -n N [options] call(...)" in told
        assert "--detach" in told
        assert max(len(line) for line in told.splitlines()) <= 120
    assert "%spawn_config [options]" in kernel.inspect("%spawn_config")
    ran = kernel.run("%%spawn?")
    assert ran.ok
    assert "-n, --nproc-per-node N" in str(ran.reply["payload"][0]["data"]["text/plain"])


def execute(folder: Path, *cells: str) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    try:
        client.execute()
    finally:
        nbformat.write(notebook, folder / "run.ipynb")
    return notebook


def text_of(cell: nbformat.NotebookNode) -> str:
    return "\n".join(
        output.get("text", "") + str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs
    )


def test_nbclient_runs_a_notebook_and_keeps_what_was_said(tmp_path: Path) -> None:
    done = execute(
        tmp_path,
        "%load_ext nbproc",
        "def f(x):\n    print('line of', x)\n    return x",
        "%%spawn -n 2 --as out\nf(rank)",
        "out.return_values",
        "import nbproc\nnbproc.start_processes('t', f, args={0: (7,)}).wait()[0]",
    )
    assert "results in out; out[0] is rank 0's" in text_of(done.cells[2])
    assert text_of(done.cells[3]) == "{0: 0, 1: 1}"
    assert "[t0]:line of 7" in text_of(done.cells[4])
    assert (tmp_path / "run.ipynb").stat().st_size < 100_000


def test_nbclient_gets_a_normal_error(tmp_path: Path) -> None:
    with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
        execute(tmp_path, "%load_ext nbproc", "%%spawn -n 2\nif rank: raise ValueError('bad batch')", "1")
    assert caught.value.ename == "SpawnError"
    assert "rank 1 failed first: ValueError: bad batch" in plain(str(caught.value))
    (error,) = [
        output for output in nbformat.read(tmp_path / "run.ipynb", 4).cells[1].outputs if output.output_type == "error"
    ]
    assert error.ename == "SpawnError"
    assert any("ValueError: bad batch" in plain(line) for line in error.traceback)


def test_a_script_of_ipython_says_it_in_plain_text(tmp_path: Path) -> None:
    script = tmp_path / "script.ipy"
    script.write_text(
        "%load_ext nbproc\ndef f(x):\n    print('line of', x)\n    return x\n"
        "get_ipython().run_cell_magic('spawn', '-n 2', 'f(rank)')\nprint('got', list(_))\n"
        "get_ipython().run_line_magic('spawn', '-n 2 1/rank')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", str(script)],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    assert "\x1b" not in ran.stdout.partition("got")[0]
    assert lines[0].startswith("2 ranks, sent f (")
    assert sorted(line for line in lines if line.startswith("rank ") and "line of" in line) == [
        "rank 0: line of 0",
        "rank 1: line of 1",
    ]
    assert "results in _; _[0] is rank 0's; --as NAME keeps them" in lines
    assert "got [0, 1]" in lines
    assert "rank 0 failed first: ZeroDivisionError: division by zero" in plain(ran.stdout + ran.stderr)
