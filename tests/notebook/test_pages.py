"""Each page of the documentation, followed by a reader who types what it says into one notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pages
from kernels import Kernel, Ran
from pages import Block

PATIENCE = 120.0


def _id(page: Path) -> str:
    return page.relative_to(pages.ROOT).with_suffix("").as_posix()


WITH_CODE = [
    page
    for page in pages.pages()
    if any(block.language in ("python", "console") and not block.file for block in pages.blocks(page))
]


@pytest.mark.parametrize("page", WITH_CODE, ids=_id)
def test_a_reader_who_follows_the_page_sees_what_it_says(
    page: Path, fresh: Callable[..., Kernel], tmp_path: Path
) -> None:
    kernel = None
    shown = ""
    for block in pages.blocks(page):
        if block.file:
            file = tmp_path / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            kernel = kernel or fresh(load=False)
            ran = kernel.run(block.body.rstrip("\n"), PATIENCE)
            shown = _shown(ran)
            assert ran.ok == (not block.raises), f"{block}\n{block.body}\n{shown}"
            assert ran.ename == block.raises, f"{block}\n{shown}"
        elif block.language == "console":
            _commands(block, tmp_path)
        elif block.language == "output":
            assert pages.matches(block.body, shown), f"{block}: expected\n{block.body}\nbut shown was\n{shown}"


def test_the_profile_of_the_configuration_page_is_honoured(
    fresh: Callable[..., Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = [block for block in pages.blocks(pages.ROOT / "docs/reference/configuration.md") if block.file]
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / block.file).write_text(block.body)
    monkeypatch.setenv("IPYTHONDIR", str(profile.parent))
    kernel = fresh(load=False)
    assert kernel.run("%spawn_config").stdout.strip() == "-n 2 --timeout 600 --env MODE=quick"
    kernel.run("%%spawn --as seen\nimport os\nos.environ['MODE']").end()
    assert kernel.run("seen.return_values").value == "{0: 'quick', 1: 'quick'}"


def _shown(ran: Ran) -> str:
    """All that the cell shows: what it prints and displays, and the lines of its ranks."""
    pages_shown = (output.get("data", {}).get("text/html") for output in ran.outputs)
    return "\n".join([ran.text, *(pages.words(html) for html in pages_shown if html)])


def _commands(block: Block, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command, expected in block.commands:
        if pages.not_run(command):
            continue
        ran = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, f"{block}: $ {command}\n{ran.stdout}"
        if expected.strip():
            assert pages.matches(expected, ran.stdout), f"{block}: $ {command}\nprinted\n{ran.stdout}"
