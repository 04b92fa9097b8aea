"""The documentation says what there is, and all of it is tried."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import nbproc
import pages
from nbproc.failures.frames import Frame
from nbproc.failures.traces import Trace
from nbproc.plan import rank_variables
from pages import ROOT, Block

PAGES = pages.pages()
BLOCKS = [block for page in PAGES for block in pages.blocks(page)]
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(nbproc.__path__, "nbproc.")
    if not name.startswith("nbproc.notebook.frontend")
]
REFERENCE = ROOT / "docs" / "reference"


# -------------------------------------------------------------------------------------------------- blocks of code


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_of_code_is_tried(block: Block) -> None:
    assert block.language in pages.LANGUAGES, "tests/pages.py says which languages a page may use, and what they mean"
    if block.language == "json":
        json.loads(block.body)
    elif block.language == "console":
        assert block.commands, "a console block holds commands after $"
    elif block.language in ("bash", "ini"):
        assert block.file, "name the file in a comment, or write commands in a console block"
    elif block.language == "python" and block.file:
        ast.parse(block.body)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "output"], ids=str)
def test_an_output_follows_what_shows_it(block: Block) -> None:
    before = [other for other in BLOCKS if other.page == block.page and other.line < block.line]
    assert before
    assert before[-1].language == "python"


def test_the_commands_of_make_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for target in re.findall(r"(?:^\$ |`)make ([\w-]+)", page.read_text(), re.M):
            assert target in targets, f"{page.name}: make {target}"


def test_output_may_have_gaps() -> None:
    assert pages.matches("a ... c\n", "x\na b c\n")
    assert pages.matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert not pages.matches("a\nc\n", "a\nb\nc\n")
    assert not pages.matches("a\n", "ab\n")


# ----------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in found:
        if not re.match(r"https?:|mailto:", target):
            source = (
                re.sub(r"^\.\./notebooks/", "../../notebooks/", target) if page.parent.parent.name == "docs" else target
            )
            assert (page.parent / source).exists(), f"{target} is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_no_place_of_one_machine(page: Path) -> None:
    assert not re.search(r"/(?:home|root|work|tmp)/", page.read_text())


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES:
        if page.parent.parent.name == "docs" and page.parent.name != "explanation":  # those are all taken
            name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
            assert re.search(f"^{re.escape(name)}$", contents, re.M), f"docs/index.md does not list {name}"


# ------------------------------------------------------------------------------------------------------- docstrings


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_right(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except SystemExit:  # a program
        return
    assert doctest.testmod(module).failed == 0


def test_every_public_name_says_what_it_is() -> None:
    for name in nbproc.__all__:
        thing = getattr(nbproc, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing) and thing.__module__.startswith("nbproc"):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"


def test_tab_shows_what_a_user_needs() -> None:
    shown = [name for name in dir(nbproc) if not name.startswith("__")]
    assert shown == sorted(nbproc.__all__)
    assert {"start_processes", "spawn", "panel", "Std", "record"} <= set(shown)
    assert not {"errors", "ranks", "contexts", "annotations", "sys"} & set(shown)


def test_parameters_of_the_calls_are_described() -> None:
    for call in (nbproc.start_processes, nbproc.spawn, nbproc.panel):
        text = inspect.getdoc(call)
        for parameter in inspect.signature(call).parameters:
            assert re.search(rf"^\s+{parameter}: ", text, re.M), f"{call.__name__}: {parameter}"


# -------------------------------------------------------------------------------------------------------- reference


def test_the_reference_has_every_public_name() -> None:
    text = (REFERENCE / "api.md").read_text()
    for name in nbproc.__all__:
        assert re.search(rf"nbproc\.{name}$", text, re.M), name


def test_the_reference_has_every_variable_of_a_rank() -> None:
    text = (REFERENCE / "environment.md").read_text()
    for variable in [*rank_variables(0, 1, 1, ""), "TORCHELASTIC_ERROR_FILE", "NBPROC_RUN", "OMP_NUM_THREADS"]:
        assert f"`{variable}`" in text, variable


def test_the_reference_has_every_variable_that_is_read() -> None:
    text = (REFERENCE / "environment.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "nbproc").rglob("*.py") if "frontend" not in path.parts)
    for variable in set(re.findall(r"\"(NBPROC_[A-Z_]+)[\"=]", sources)):
        assert f"`{variable}`" in text, variable


@pytest.mark.parametrize("kind", [Trace, Frame])
def test_the_reference_has_every_key_of_an_error_file(kind: Any) -> None:
    text = (REFERENCE / "files.md").read_text()
    for field in dataclasses.fields(kind):
        assert re.search(rf"^\|[^|]*`{field.name}`", text, re.M), field.name


def test_the_configuration_names_settings_that_exist() -> None:
    from nbproc.notebook.magic import Spawn

    text = (REFERENCE / "configuration.md").read_text()
    for name in re.findall(r"c\.Spawn\.(\w+)", text):
        assert name in Spawn.class_trait_names(config=True), name
