"""A rank that says nothing: the view tells for how long, and where the rank is."""

from __future__ import annotations

import re
from collections.abc import Callable

from lab import Notebook

Opener = Callable[..., Notebook]

LOAD = "import nbproc.notebook.silence as silence\nsilence.AFTER, silence.PERIOD = 2.0, 1.0\n%load_ext nbproc"
WAIT = """\
%%spawn -n 2 --detach
import pathlib, time, torch.distributed as dist
dist.init_process_group("gloo")
if rank == 0:
    while not pathlib.Path("go").exists():
        print("busy", flush=True); time.sleep(0.2)
dist.barrier()
print("past it")
"""


def test_a_silent_rank_is_shown_with_the_call_that_it_is_in(open_notebook: Opener) -> None:
    """Given two ranks, one in a barrier and one that prints, when time passes, then the silent one says where it is."""
    book = open_notebook([LOAD, WAIT])
    book.run()
    book.idle()
    book.run(wait=False)
    wanted = re.compile(r"no output for \d+ s, in barrier, cell \[\d+\] line 7")
    book.until(
        lambda: wanted.search(book.texts(".nb-silent")[1] if book.texts(".nb-silent") else ""), "rank 1 says so", 60
    )
    assert book.texts(".nb-silent")[0] == ""
    assert book.texts(".nb-last")[0] == "busy"
    book.say("import pathlib; pathlib.Path('go').touch()")
    book.until(lambda: book.text(".nb-word") == "succeeded", "the run is over, unharmed", 60)
    assert book.texts(".nb-last") == ["past it"] * 2
    assert book.texts(".nb-silent") == ["", ""]
