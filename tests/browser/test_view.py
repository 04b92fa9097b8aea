"""The live view, as a person sees it in JupyterLab."""

from __future__ import annotations

from collections.abc import Callable

from lab import Notebook

Opener = Callable[..., Notebook]


def test_lines_of_two_ranks_appear_while_the_run_goes_on(open_notebook: Opener) -> None:
    """Given a run of two ranks, when they write, then the overview shows each one's last line, and its tab all."""
    book = open_notebook(["fake(2); ctx.start(); view.show()"])
    book.run()
    book.idle()
    book.say("ctx.write(0, 'hello from zero\\n'); ctx.write(1, 'one\\ntwo\\n')")
    book.until(lambda: book.texts(".nb-last") == ["hello from zero", "two"], "each rank's last line is shown")
    assert book.text(".nb-word") == "running"
    book.page.get_by_role("tab", name="Rank 1").click()
    book.until(lambda: book.texts(".nb-row .nb-text") == ["one", "two"], "rank 1's lines are shown")
    book.say("ctx.finish()")
    book.until(lambda: book.text(".nb-word") == "done", "the view says that the run is done")
    assert not [error for error in book.errors if "nbproc" in error]
