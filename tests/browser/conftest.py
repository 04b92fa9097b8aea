"""A JupyterLab for all tests of this folder, and a notebook for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from lab import Lab, Notebook

SETUP = """\
from pathlib import Path
import tempfile, time, threading
from fakes import FakeContext
from nbproc.logs.lines import Stream
from nbproc.notebook.view import RunView
from nbproc.states import RankState, RunState
place = tempfile.TemporaryDirectory()
def fake(n, **options):
    global ctx, view
    ctx = FakeContext(n, Path(place.name) / str(time.time()), **options)
    view = RunView(ctx)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.leaves("the browser keeps and renews processes of its own"))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def open_notebook(lab: Lab) -> Iterator[Callable[..., Notebook]]:
    opened: list[Notebook] = []

    def opener(cells: Sequence[str], **options: int) -> Notebook:
        notebook = lab.open([SETUP, *cells], **options)
        opened.append(notebook)
        notebook.run()
        notebook.idle()
        return notebook

    yield opener
    for notebook in opened:
        notebook.close()
