"""What a notebook keeps of a launch panel, where nobody sees the form."""

from __future__ import annotations

import pytest

from kernels import Kernel

LAUNCH = (
    "from nbproc.notebook import panel_widget\n"
    "panel = list(panel_widget._panels.values())[-1]\n"
    "panel._receive(None, {'t': 'launch', 'values': panel.values.to_json()}, [])"
)


@pytest.fixture(scope="module", autouse=True)
def names(kernel: Kernel) -> None:
    kernel.always(
        "import nbproc\n%spawn_config -n 2\ndef good(x): return 2 * x\ndef bad(): raise ValueError('bad batch')"
    )


def test_the_runs_of_a_form_stand_in_the_notebook_with_how_they_ended(kernel: Kernel) -> None:
    ran = kernel.run("nbproc.panel(good, args='3')")
    assert ran.shown == ["nbproc.panel(): run this cell to get the form back", ""]
    kernel.run(LAUNCH)
    ran.until(lambda: "all ranks: 6" in ran.shown[1])
    assert ran.shown[1].startswith("good(3): succeeded, 2 ranks, ")
    assert "<strong" in ran.of("display_data")[1]["data"]["text/html"]
    assert kernel.ask("panel.values.nprocs") == "2"  # what %spawn_config has set


def test_a_run_that_failed_says_why(kernel: Kernel) -> None:
    ran = kernel.run("nbproc.panel(bad, 1)")
    kernel.run(LAUNCH)
    ran.until(lambda: "bad(): failed, 1 rank" in ran.shown[1])
    assert "; rank 0 failed: ValueError: bad batch, in bad, cell [" in ran.shown[1]
