"""Run the quickstart in a real kernel, print what each cell and each rank did, and keep the result as HTML.

    python notebooks/run_demo.py [NOTEBOOK] [--output FOLDER]

What it writes, the executed notebook and its HTML, lies in ``.demo/``; the notebook itself is not changed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

HERE = Path(__file__).resolve().parent
SGR = re.compile(r"\x1b\[[0-9;]*m")


def main(arguments: list[str]) -> int:
    """Run the notebook; return 0 if every cell did what it should."""
    parser = argparse.ArgumentParser(description="Run a notebook in a real kernel and print what its ranks did.")
    parser.add_argument("notebook", type=Path, nargs="?", default=HERE / "quickstart.ipynb")
    parser.add_argument("--output", type=Path, default=HERE.parent / ".demo", help="where the results go")
    options = parser.parse_args(arguments)

    notebook = nbformat.read(options.notebook, as_version=4)
    began = time.monotonic()
    print(f"Running {options.notebook.name} in a kernel of its own.", flush=True)
    status = 0
    try:
        run(notebook, options.notebook.parent)
    except CellExecutionError:  # the cell's traceback was printed with the cell
        status = 1

    options.output.mkdir(parents=True, exist_ok=True)
    executed = options.output / options.notebook.name
    nbformat.write(notebook, executed)
    page = executed.with_suffix(".html")
    body, _ = HTMLExporter().from_notebook_node(notebook)
    page.write_text(body, encoding="utf-8")
    print(f"\n{'Done' if status == 0 else 'Stopped at the cell above'} in {time.monotonic() - began:.0f} s.")
    print(f"The executed notebook as HTML: {page}")
    return status


def run(notebook: Any, folder: Path) -> None:
    """Execute all cells in place, and print each cell that says something as soon as it has ended."""
    began: dict[int, float] = {}

    def starts(cell: Any, cell_index: int) -> None:
        began[cell_index] = time.monotonic()

    def ended(cell: Any, cell_index: int, execute_reply: Any) -> None:
        if words := spoken(cell):
            first = next((line for line in cell.source.splitlines() if line.strip()), "")
            seconds = time.monotonic() - began[cell_index]
            print(f"\n[{cell.execution_count}] {first}   ({seconds:.1f} s)")
            print("\n".join(f"    {line}" for line in words.splitlines()), flush=True)

    NotebookClient(
        notebook,
        timeout=300,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # not that its loopback sockets are not encrypted
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=starts,
        on_cell_executed=ended,
    ).execute()


def spoken(cell: Any) -> str:
    """Return what a cell printed and displayed, as plain text."""
    parts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            said = SGR.sub("", "\n".join(output.traceback) or f"{output.ename}: {output.evalue}")
            if not any(said.strip() in SGR.sub("", part) for part in parts):  # a view's text explains it, too
                parts.append(said)
        elif "image/png" in output.data:
            parts.append("(a picture)")
        else:
            parts.append(output.data.get("text/plain", ""))
    return SGR.sub("", "\n".join(part.rstrip("\n") for part in parts if part.strip()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
