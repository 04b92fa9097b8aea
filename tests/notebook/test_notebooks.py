"""The notebooks, run whole: what fails is what says so, and each shows what it is about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

import pages
from leftovers import left_behind, look

NOTEBOOKS = pages.ROOT / "notebooks"
ALL = sorted(NOTEBOOKS.glob("*.ipynb"))
SHOWN: dict[str, dict[str, list[str]]] = {
    "executables": {
        "log": ["rank 0 has 0.0", "all together: 1.5"],
        "echo": ["hello Ada", "goodbye Grace"],
        "fail": [
            "rank 1 failed first: ValueError: no data for 1, in main, job.py line 9",
            "rank 0 had exited with code 0",
        ],
    },
    "failures": {
        "first": ["rank 2 failed first: ValueError: an empty batch, in step"],
        "look": ["ValueError: an empty batch", "in step"],
        "same": ["failed (same): NameError"],
        "crash": ["rank 1 was killed by SIGSEGV", "in peek"],
        "exit": ["rank 0 exited with code 3 before returning"],
        "send": ["`client.guard`, used by `fetch`: a lock cannot be sent"],
        "hang": ["timed out after 1 s", "rank 0 stopped at cell"],
        "tried": ["failed: True", "ZeroDivisionError"],
        "next": ["results in _"],
    },
    "hogwild": {"watch": ["steps of the ranks: [1760, 1760]"], "compare": ["in the ranks: [0, 0]"]},
    "language_model": {"text": ["different ones"], "spawn": ["100%"], "sample": ["Return the "]},
    "logs": {
        "run": ["written without Python", "the learning rate was halved", "100%"],
        "read": ["[trial0]:step   0  loss 1.000"],
        "again": ["written without Python"],
    },
    "panel": {"panel": ["nbproc.panel()"], "results": ["[0.0909, 0.0833]"]},
}
"""What cells show, by notebook and by the cell's id."""


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = _read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs"), f"{cell.id}: run make strip"
        assert cell.get("execution_count") is None, cell.id
        assert not set(cell.metadata) - {"tags"}, cell.id
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].source.startswith("# ")


def test_every_notebook_is_looked_at() -> None:
    assert {path.stem for path in ALL} == {*SHOWN, "quickstart"}  # tests/notebook/test_quickstart.py


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_notebook_runs_and_shows_what_it_is_about(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.ipynb"
    copy.write_bytes((NOTEBOOKS / copy.name).read_bytes())
    before = look()
    command = [sys.executable, str(NOTEBOOKS / "run_demo.py"), copy.name, "--output", "out"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert left_behind(before) == []
    notebook = _read(tmp_path / "out" / copy.name)
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    for cell in cells.values():
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", ())), f"{cell.id}\n{_text(cell)}"
    for cell_id, expected in SHOWN[name].items():
        for words in expected:
            assert words in _text(cells[cell_id]), f"{cell_id}: {words!r} is not in\n{_text(cells[cell_id])}"


def _text(cell: Any) -> str:
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text", ""))
        parts += output.get("traceback", ())
        parts += [pages.words(data) if mime == "text/html" else data for mime, data in _texts(output)]
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(parts))


def _texts(output: Any) -> list[tuple[str, str]]:
    return [(mime, str(data)) for mime, data in output.get("data", {}).items() if mime.startswith("text/")]
