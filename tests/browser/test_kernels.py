"""Stop while a cell blocks, in the kernels and the applications that people have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lab import Lab, Notebook

Opener = Callable[..., Notebook]

BLOCKING = """\
from nbproc.notebook import busy
fake(2); ctx.start(); view.show()
began = time.monotonic()
while not ctx.asked_to_stop.wait(busy.pump_period() or 9) and time.monotonic() < began + 9:
    busy.pump()
print("asked", ctx.asked_to_stop.is_set())
ctx.finish(RunState.STOPPED, "stopped by you")
view.finish()
"""


def stop_in(book: Notebook) -> None:
    book.run(wait=False)
    book.until(lambda: book.page.query_selector(".nb-stop:enabled"), "Stop can be pressed", 8)
    book.page.click(".nb-stop")
    book.until(lambda: any("asked True" in text for text in book.outputs()), "the run was asked to stop", 5)
    book.until(lambda: book.text(".nb-word") == "stopped", "the view says so")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["6.31.0", "7.3.0"])
def test_stop_in_older_kernels(
    lab: Lab, open_notebook: Opener, older_ipykernel: Callable[[str], Path], version: str
) -> None:
    kernel = lab.add_kernel(f"ipykernel-{version}", older_ipykernel(version))
    book = open_notebook(
        [f"import ipykernel; assert ipykernel.__version__ == {version!r}; print('right')", BLOCKING], kernel=kernel
    )
    book.run()
    book.until(lambda: "right" in " ".join(book.outputs()), "the kernel has the version")
    stop_in(book)


@pytest.mark.slow
def test_stop_in_notebook_7(notebook_app: Lab, open_notebook: Opener) -> None:
    stop_in(open_notebook([BLOCKING], app=notebook_app))


@pytest.mark.slow
def test_lines_and_themes_in_notebook_7(notebook_app: Lab, open_notebook: Opener) -> None:
    book = open_notebook(["fake(2); ctx.start(); view.show(); ctx.write(1, 'hello\\n')"], app=notebook_app)
    book.run()
    book.idle()
    book.until(lambda: "hello" in book.texts(".nb-last"), "the line is shown")
    book.theme(True)
    book.until(lambda: book.page.query_selector(".nb-run[data-theme=dark]"), "the view is dark")
