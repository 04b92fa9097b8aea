"""Pages of the documentation as what they promise: cells, files, commands, and what these print.

A page is Markdown. Its blocks of code are, by their language:

- ``python``: a cell, run in the page's kernel, in order. One that begins with a comment that is a file's name
  (``# train.py``) is that file instead.
- ``output``: what the cell or command before it shows; ``...`` stands for anything within a line, a line of ``...``
  for any lines.
- ``console``: commands after ``$``, run in the page's folder, and what they print.
- ``bash`` and ``ini``: a file, named as above, or, in ``NOT_RUN``, a command that is tried elsewhere.
- ``json``: data that must parse.
- ``text``: a drawing or words, not code.

A comment before a block, ``<!-- raises SpawnError -->``, says that the cell fails, and with what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path

ROOT = Path(__file__).parents[1]
LANGUAGES = frozenset({"python", "output", "console", "bash", "ini", "json", "text"})
NOT_RUN = {
    r"pip install .*": "make dist installs the wheel and the sdist in empty environments",
    r"make [\w-]+( .*)?": "a target of the Makefile; test_docs looks whether it is there",
    r"git clone .*": "the repository's address",
    r"python3? -m venv .*": "make binder-check begins with it",
    r"jupyter lab.*": "tests/browser opens JupyterLab",
    r"torchrun .*": "torch's own command, shown for comparison",
    r"pre-commit install": "it writes into the clone's .git",
}
"""Commands that no test of a page runs, and what looks at them instead."""

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)(?P=fence) *$", re.M | re.S
)
_RAISES = re.compile(r"<!-- raises (\w+) -->\s*$")
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """One block of code of a page. ``language`` is the first word of its info string, ``raises`` "" if it succeeds."""

    page: Path
    line: int
    language: str
    body: str
    raises: str = ""

    @property
    def file(self) -> str:
        """The name of the file that the block is, "" if it is none."""
        found = _FILE.match(self.body)
        return found[1] if found and self.language in ("python", "bash", "ini") else ""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands of a ``console`` block, each with what it prints."""
        parts = re.split(r"^\$ (.*)\n", self.body, flags=re.M)[1:]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every page with code: the README and those of docs/."""
    documents = (path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "notebooks"} & set(path.parts))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(documents)]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of code of a page, in order; directives of MyST (``{note}``) are none."""
    return list(_blocks(page, page.read_text(encoding="utf-8")))


def _blocks(page: Path, text: str, first: int = 1) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        info = found["info"].split()
        line = first + text.count("\n", 0, found.start())
        body = re.sub(f"^{found['indent']}", "", found["body"], flags=re.M)
        if info and info[0].startswith("{"):
            yield from _blocks(page, body, line + 1)
            continue
        raises = _RAISES.search(text[: found.start()])
        yield Block(page, line, info[0] if info else "", body, raises[1] if raises else "")


def not_run(command: str) -> bool:
    """Return whether a command is one of those that are tried elsewhere."""
    return any(re.fullmatch(pattern, command) for pattern in NOT_RUN)


def matches(expected: str, shown: str) -> bool:
    """Return whether the lines of ``expected`` stand in ``shown`` one after another, where its dots allow."""
    lines = [line.rstrip() for line in expected.rstrip("\n").split("\n")]
    parts = []
    for line in lines:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r"[^\n]*".join(map(re.escape, line.split("..."))) + r"[^\S\n]*\n")
    text = "\n".join(line.rstrip() for line in shown.rstrip("\n").split("\n")) + "\n"
    return re.search("^" + "".join(parts), text, re.M) is not None


def words(html: str) -> str:
    """Return what a reader sees of HTML."""
    text = re.sub(r"<style.*?</style>", "", html, flags=re.S)
    return unescape(re.sub(r"<[^>]+>", "", re.sub(r"</(?:div|p|tr|summary|pre|li|h\d)>|<br>", "\n", text)))
