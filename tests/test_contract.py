"""The promises that a reader of the source relies on: who imports what, and what an import costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, **options)  # type: ignore[call-overload]


def test_the_floors_hold_and_only_the_notebook_wing_knows_jupyter() -> None:
    answer = run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_importing_nbproc_imports_nothing_heavy_and_starts_nothing() -> None:
    answer = run(
        sys.executable,
        "-c",
        "import json, os, signal, sys, threading\n"
        "signals = [signal.getsignal(number) for number in signal.valid_signals()]\n"
        "import nbproc\n"
        "children = [pid for pid in os.listdir('/proc') if pid.isdigit()\n"
        "            and f'\\nPPid:\\t{os.getpid()}\\n' in open(f'/proc/{pid}/status', errors='replace').read()]\n"
        "print(json.dumps({\n"
        "    'modules': sorted({name.partition('.')[0] for name in sys.modules}),\n"
        "    'threads': threading.active_count(),\n"
        "    'children': children,\n"
        "    'same signals': signals == [signal.getsignal(number) for number in signal.valid_signals()],\n"
        "}))",
    )
    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout)
    heavy = {"torch", "numpy", "IPython", "ipykernel", "ipywidgets", "anywidget", "multiprocessing", "asyncio"}
    assert heavy.isdisjoint(seen["modules"])
    assert seen["threads"] == 1
    assert seen["children"] == []
    assert seen["same signals"]


def test_each_public_name_is_there_and_is_listed() -> None:
    answer = run(
        sys.executable,
        "-c",
        "import nbproc, json\n"
        "print(json.dumps([sorted(set(nbproc.__all__) - set(dir(nbproc))),\n"
        "                  [name for name in nbproc.__all__ if getattr(nbproc, name, None) is None]]))",
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == [[], []]


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs_and_know_no_machine(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), f"{path.name}, cell {cell['id']}: outputs are stored; run `make strip`"
        assert cell.get("execution_count") is None
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert str(ROOT) not in path.read_text(encoding="utf-8")
