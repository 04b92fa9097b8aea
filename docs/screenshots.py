"""Make the pictures of the documentation from real runs in JupyterLab, in both themes.

    python docs/screenshots.py        (make screenshots)

It opens JupyterLab in headless Chromium, as the tests do, trains for some seconds on four ranks, and writes PNG files
to docs/_static.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent)]

from lab import Lab, Notebook, chromium  # noqa: E402

WIDTH, HEIGHT = 900, 1500
LOAD = "%load_ext nbproc"
TRAINING = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

inputs = torch.randn(4096, 256)
target = inputs[:, :1] * inputs[:, 1:2]
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


def train(model, steps=600):
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-3)
    bar = tqdm(range(steps), desc="train", ncols=66)
    for step in bar:
        chosen = torch.randint(len(inputs), (64,))
        loss = nn.functional.mse_loss(wrapped(inputs[chosen]), target[chosen])
        if loss.isnan():
            raise ValueError(f"the loss is not a number at step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix_str(f"loss {loss.item():.3f}")
    return loss.item()"""
RUN = """\
%%spawn -n 4 --as run
dist.init_process_group("gloo")
train(model)"""
FAIL = """\
%%spawn -n 4
dist.init_process_group("gloo")
if rank == 2:
    inputs[:] = float("nan")
train(model)"""
PANEL = """\
import nbproc

nbproc.panel(train, 4, args="model, steps=100", envs={"OMP_NUM_THREADS": 1})"""


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser, Lab(Path(folder), browser) as lab:
        notebook = lab.open([LOAD, TRAINING, RUN, FAIL, PANEL], width=WIDTH, height=HEIGHT, pixels=2)
        try:
            notebook.command("application:toggle-left-area")
            for _ in range(2):
                notebook.run()
            notebook.idle()
            notebook.run(wait=False)
            notebook.until(lambda: re.search(r" [3-9]\d%", cell_text(notebook, 2)), "it trains", 120)
            both(notebook, 2, "running")
            notebook.idle()
            notebook.run(wait=False)
            notebook.until(lambda: "failed first" in cell_text(notebook, 3), "it has failed", 120)
            notebook.idle()
            both(notebook, 3, "failed")
            notebook.run()
            notebook.until(lambda: "Launch 4 ranks" in cell_text(notebook, 4), "the form is there", 60)
            both(notebook, 4, "panel")
        finally:
            notebook.close()


def cell_text(notebook: Notebook, number: int) -> str:
    """Return what stands in a cell and under it."""
    return notebook.page.locator(".jp-Notebook .jp-Cell").nth(number).inner_text()


def both(notebook: Notebook, number: int, name: str) -> None:
    """Take a picture of a cell in each theme."""
    for dark in (False, True):
        notebook.theme(dark)
        notebook.page.wait_for_function(
            f"document.body.dataset.jpThemeLight === '{'false' if dark else 'true'}'", timeout=20_000
        )
        notebook.page.mouse.move(2, 2)
        notebook.page.wait_for_timeout(300)  # the theme's own transition
        picture = notebook.page.locator(".jp-Notebook .jp-Cell").nth(number).screenshot()
        save(picture, HERE / "_static" / f"{name}-{'dark' if dark else 'light'}.png")
    notebook.theme(False)


def save(picture: bytes, path: Path) -> None:
    """Write a PNG with as few colours as it needs."""
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            path, optimize=True
        )
    print(os.path.relpath(path), f"{path.stat().st_size / 1000:.0f} kB")  # noqa: T201 - a command speaks


if __name__ == "__main__":
    main()
