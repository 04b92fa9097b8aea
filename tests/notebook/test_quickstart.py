"""The quickstart, run whole in a real kernel by the command that `make demo` runs."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest

from leftovers import left_behind, look

ROOT = Path(__file__).parents[2]
RANKS = range(4)

PROBE = """
import json

fresh = Net()
fresh.load_state_dict(run.return_values[0]["weights"])
first = run.return_values[0]["weights"]
print("PROBE" + json.dumps({
    "seen": [run.return_values[number]["seen"] for number in range(4)],
    "losses": [run.return_values[number]["losses"] for number in range(4)],
    "returned": [run.return_values[number]["accuracy"] for number in range(4)],
    "measured": accuracy(fresh, test_data),
    "in the kernel's model": accuracy(model, test_data),
    "same weights": [all(torch.equal(first[name], value) for name, value in
                         run.return_values[number]["weights"].items()) for number in range(4)],
    "parts": len(first),
    "images": len(train_data),
    "epochs": cfg.epochs,
}))
"""


@dataclass(frozen=True)
class Demo:
    """What the command printed and wrote."""

    printed: str
    notebook: Any
    page: str

    def cell(self, name: str) -> Any:
        """Return the cell with this id."""
        return next(cell for cell in self.notebook.cells if cell.id == name)

    def text(self, name: str) -> str:
        """Return what a cell left to read, in each form that it was displayed in."""
        parts = []
        for output in self.cell(name).outputs:
            parts.append(output.get("text", ""))
            parts += output.get("traceback", ())
            parts += [str(data) for mime, data in output.get("data", {}).items() if mime.startswith("text/")]
        return "\n".join(parts)

    def seconds(self, name: str) -> float:
        """Return how long a cell ran, in the kernel."""
        times = self.cell(name).metadata["execution"]
        began, ended = (moment(times[key]) for key in ("iopub.execute_input", "shell.execute_reply"))
        return ended - began

    @property
    def probe(self) -> dict[str, Any]:
        """Return what the probe, a cell added at the end, saw in the kernel."""
        return json.loads(self.text("probe").partition("PROBE")[2])


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, private_places: Path) -> Demo:
    """Run a copy with the probe at its end; nothing may be left when the command has ended."""
    folder = tmp_path_factory.mktemp("quickstart")
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE, id="probe"))
    nbformat.write(notebook, folder / "quickstart.ipynb")

    before = look()
    answer = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "run_demo.py"), "quickstart.ipynb", "--output", "out"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert left_behind(before) == []
    page = folder / "out" / "quickstart.html"
    assert str(page.relative_to(folder)) in answer.stdout
    executed = nbformat.read(folder / "out" / "quickstart.ipynb", as_version=4)
    return Demo(answer.stdout, executed, page.read_text(encoding="utf-8"))


def test_the_ranks_saw_images_of_their_own(demo: Demo) -> None:
    shares = [set(share) for share in demo.probe["seen"]]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(shares, 2))
    assert [len(share) for share in shares] == [len(share) for share in demo.probe["seen"]]  # none seen twice
    assert {len(share) for share in shares} == {demo.probe["images"] // len(RANKS)}


def test_the_ranks_end_with_the_same_weights(demo: Demo) -> None:
    assert demo.probe["parts"] > 0
    assert demo.probe["same weights"] == [True] * len(RANKS)


def test_the_returned_model_is_as_good_in_the_kernel_as_the_ranks_said(demo: Demo) -> None:
    assert demo.probe["measured"] >= 0.95
    assert demo.probe["returned"] == pytest.approx([demo.probe["measured"]] * len(RANKS))
    assert demo.probe["in the kernel's model"] == demo.probe["measured"]


def test_the_training_takes_less_than_a_minute(demo: Demo) -> None:
    assert demo.seconds("spawn") < 60


def test_each_rank_returns_its_own_history_and_learns(demo: Demo) -> None:
    for losses in demo.probe["losses"]:
        assert len(losses) == demo.probe["epochs"]
        assert losses[-1] < losses[0] / 5
    assert len({tuple(losses) for losses in demo.probe["losses"]}) == len(RANKS)


@pytest.mark.parametrize("rank", RANKS)
def test_each_rank_shows_its_progress_bar_and_how_it_ended(demo: Demo, rank: int) -> None:
    for place in (demo.text("spawn"), demo.page):
        assert f"rank {rank}: 100%" in place
    assert f"rank {rank}" in demo.printed


def test_the_losses_are_plotted(demo: Demo) -> None:
    assert any("image/png" in output.get("data", {}) for output in demo.cell("plot").outputs)


def test_the_cell_that_fails_on_purpose_explains_itself(demo: Demo) -> None:
    shown = demo.text("failure")
    assert "rank 2" in shown
    assert "damaged images in this share: [7]" in shown
    assert "mean_brightness" in shown
    assert 'raise ValueError(f"damaged images in this share' in shown.replace("&quot;", '"')  # of the cell above
    assert "brightness = mean_brightness(images)" in shown  # of the cell itself
    assert f"[{demo.cell('check-images').execution_count}]" in shown  # the numbers that the notebook shows
    assert f"[{demo.cell('failure').execution_count}]" in shown
    assert re.search(r"ranks? [013, ]+ (stopped|were stopped|then lost the connection) ", shown)  # who waited for it


def test_the_failure_is_printed_once(demo: Demo) -> None:
    assert demo.printed.count("rank 2 failed first: ValueError: damaged images in this share: [7]") == 1


def test_only_that_cell_fails(demo: Demo) -> None:
    failed = [
        cell.id
        for cell in demo.notebook.cells
        if any(output.output_type == "error" for output in cell.get("outputs", ()))
    ]
    assert failed == ["failure"]


def test_the_command_says_where_the_page_is(demo: Demo) -> None:
    assert "quickstart.html" in demo.printed.splitlines()[-1]
    assert "damaged images in this share" in demo.page
