"""A cell that fails under a view explains itself once."""

from __future__ import annotations

from collections.abc import Callable

from lab import Notebook

Opener = Callable[..., Notebook]

FAIL = "%%spawn -n 2\nif rank: raise ValueError('bad batch')\nimport threading; threading.Event().wait()"
ERROR = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"


def test_the_error_below_a_view_is_its_headline_and_tb_shows_the_whole(open_notebook: Opener) -> None:
    """Given a page that has shown a view, when a run fails, then its error is two lines; %tb has the traceback."""
    book = open_notebook(["%load_ext nbproc", "%spawn -n 1 1", FAIL, "%tb"])
    book.run()
    book.run()
    book.until(lambda: book.text(".nb-word") == "succeeded", "a view stands", 60)
    book.run(wait=False)
    book.until(lambda: book.texts(ERROR), "the cell has failed", 30)
    headline, where = book.text(ERROR).strip().splitlines()
    assert headline.startswith("rank 1 failed first: ValueError: bad batch, at cell [")
    assert where.startswith("The view above")
    assert "raise ValueError('bad batch')" in book.text(".nb-errors")
    book.run(wait=False)
    book.until(lambda: "Traceback of rank 1" in book.texts(ERROR)[-1], "%tb prints it")
