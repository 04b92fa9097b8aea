"""What a notebook that was run without a page keeps of a run, and what nbconvert makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

CELL = """\
import sys, tempfile
from pathlib import Path
from fakes import FakeContext
from nbproc.notebook.view import RunView
place = tempfile.TemporaryDirectory()
ctx = FakeContext(2, Path(place.name) / "run").start()
view = RunView(ctx)
view.show()
ctx.write(0, "hello <b>world</b>\\n" * 3)
ctx.finish(headline="results in `_`")
view.finish()
"""


@pytest.fixture(scope="module")
def saved() -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(CELL)],
        metadata={"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}},
    )
    tests = Path(__file__).parents[1]
    before = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tests.parent), str(tests), before]))
        NotebookClient(notebook, timeout=60).execute()
    return notebook


def test_a_run_takes_little_room(saved: nbformat.NotebookNode) -> None:
    """Given nbclient, then the notebook holds the run as HTML and text, and not the view's program."""
    (output,) = saved.cells[0].outputs
    assert set(output.data) == {"text/html", "text/plain"}
    assert "hello &lt;b&gt;world&lt;/b&gt;" in output.data["text/html"]
    assert output.data["text/plain"].startswith("trainer: succeeded")
    states = saved.metadata.get("widgets", {})
    assert len(json.dumps(states)) < 2_000, "no program is saved"
    assert len(nbformat.writes(saved)) < 12_000


def test_nbconvert_shows_it(saved: nbformat.NotebookNode) -> None:
    page, _ = HTMLExporter().from_notebook_node(saved)
    assert "hello &lt;b&gt;world&lt;/b&gt;" in page
    assert "results in `_`" in page
