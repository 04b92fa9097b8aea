"""A JupyterLab for all tests of this folder, and a notebook for each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Notebook, chromium
from playwright.sync_api import Browser

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
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), browser) as lab:
        yield lab


@pytest.fixture(scope="session")
def notebook_app(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Lab]:
    """Notebook 7, which is JupyterLab in another house."""
    with Lab(tmp_path_factory.mktemp("notebook"), browser, app="notebook") as app:
        yield app


@pytest.fixture(scope="session")
def older_ipykernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that installs a version of ipykernel beside the environment; its folder."""

    @cache
    def install(version: str) -> Path:
        folder = tmp_path_factory.mktemp("kernel") / version
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, f"ipykernel=={version}"], check=True, timeout=120)
        return folder

    return install


@pytest.fixture
def open_notebook(lab: Lab) -> Iterator[Callable[..., Notebook]]:
    opened: list[Notebook] = []

    def opener(cells: Sequence[str], app: Lab = lab, **options: Any) -> Notebook:
        notebook = app.open([SETUP, *cells], **options)
        opened.append(notebook)
        notebook.run()
        notebook.idle()
        return notebook

    yield opener
    for notebook in opened:
        notebook.close()
