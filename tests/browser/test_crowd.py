"""The live view of 256 ranks: what is rare is found at once, and the page stays quick."""

from __future__ import annotations

from collections.abc import Callable

from lab import Notebook

Opener = Callable[..., Notebook]

FAKE = """\
from nbproc.failures.errorfile import write_error
def fail(rank):
    path = ctx.layout.files.error(rank)
    write_error(str(path), ValueError("bad shard"), {}, rank)
    ctx.fail(rank, path)
def speak(times):
    for k in range(times):
        for rank in range(256):
            ctx.write(rank, f"rank {rank} step {k}\\n")
fake(256); ctx.start(); view.show()"""
CHOSEN = ".nb-tabs [aria-selected=true]"
IN_SIGHT = """(selector) => {
  const box = document.querySelector(selector).getBoundingClientRect();
  const at = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return at !== null && at.closest(selector) !== null }"""
SAVED = """() => {
  const { model } = window.jupyterapp.shell.currentWidget.content;
  return model.toJSON().cells[1].outputs[0].data['text/html'] }"""


def cpu_seconds(book: Notebook) -> Callable[[], float]:
    """Return a function that says for how long the page's main thread has worked so far."""
    cdp = book.page.context.new_cdp_session(book.page)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        return next(m["value"] for m in cdp.send("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")

    return spent


def test_one_failure_among_256_ranks_is_found(open_notebook: Opener) -> None:
    """Given 256 ranks, when one fails, then its mark, a count, its number or its row lead there, and back."""
    book = open_notebook([FAKE])
    page = book.page
    book.run()
    book.idle()
    page.get_by_role("tab", name="Overview", exact=True).click()
    book.until(lambda: book.texts(".nb-chip") == ["256 ranks", "256 running"], "the ranks are counted by state")
    book.until(lambda: page.locator("tbody tr").count() == 256, "there is a row for each")
    book.say("fail(137)")
    book.until(lambda: "1 failed" in book.texts(".nb-chip"), "the failure is counted")
    page.get_by_role("button", name="1 failed", exact=True).click()
    book.until(lambda: book.texts("tbody tr .nb-open") == ["137"], "only the rank that failed is shown")
    book.until(lambda: book.texts("tbody .nb-last") == ["ValueError: bad shard"], "its row says why")
    page.get_by_role("button", name="256 ranks", exact=True).click()
    book.until(lambda: page.locator("tbody tr").count() == 256, "all are shown again")

    marks = "[...document.querySelectorAll('.nb-marks .nb-mark')].map((e) => e.dataset.state)"
    assert page.evaluate(marks).index("failed") == 137
    page.get_by_role("button", name="rank 137: failed").click()
    assert book.text(CHOSEN) == "137"
    for tab in ("[data-tab=overview]", "[data-tab=errors]", "[data-tab='137']"):
        book.until(lambda tab=tab: page.evaluate(IN_SIGHT, tab), f"{tab} is in sight")

    goto = page.get_by_label("Go to rank")
    goto.fill("256")
    goto.press("Enter")
    assert goto.get_attribute("aria-invalid") == "true"
    assert book.text(CHOSEN) == "137"
    goto.fill("200")
    goto.press("Enter")
    assert book.text(CHOSEN) == "200"
    book.until(lambda: page.evaluate(IN_SIGHT, "[data-tab='200']"), "the tab is in sight")

    page.locator(".nb-marks .nb-mark").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    book.until(lambda: book.text(CHOSEN) == "65", "the marks are rows of 32 for the arrow keys")


def test_256_ranks_that_write_cost_the_page_little(open_notebook: Opener) -> None:
    """Given 256 ranks, when each writes many lines, then the page works for moments only: its CPU time is counted."""
    book = open_notebook([FAKE])
    page = book.page
    spent = cpu_seconds(book)
    book.run()
    book.idle()
    book.until(lambda: page.locator("tbody tr").count() == 256, "there is a row for each")
    before = spent()
    for tab in ("Overview", "All"):
        page.get_by_role("tab", name=tab, exact=True).click()
        book.say("speak(10)")
        wanted = "rank 0 step 9" if tab == "Overview" else "rank 255 step 9"
        place = "tbody tr:first-child .nb-last" if tab == "Overview" else ".nb-row:last-child .nb-text"
        book.until(lambda place=place, wanted=wanted: book.text(place) == wanted, "the last line has arrived")
    assert spent() - before < 1.0
    assert [error for error in book.errors if "Failed to load resource" not in error] == []


def test_256_ranks_cost_the_page_little_more_than_4(open_notebook: Opener) -> None:
    """Given runs of 4 and of 256 ranks that speak and end, then no more is made, sent and saved than can be seen.

    So the page works for little longer, and is not blocked for long at a time.
    """
    few, _ = a_life(open_notebook([FAKE.replace("256", "4")]), 4)
    book = open_notebook([FAKE])
    many, sent = a_life(book, 256)
    assert book.page.locator(".nb-run *").count() < 2_000, "rows out of sight are not filled"
    assert sent < 50_000, "of the ranks only what changed is sent"
    html = book.page.evaluate(SAVED)
    assert len(html) < 25_000
    assert html.count("<") < 300
    assert many < 3 * few, (many, few)


def a_life(book: Notebook, n: int) -> tuple[float, int]:
    """Let a run appear, speak and end. Returns the page's CPU time, and what was sent for four of its changes."""
    page, spent = book.page, cpu_seconds(book)
    before = spent()
    book.run()
    book.idle()
    book.until(lambda: page.locator("tbody tr").count() == n, "there is a row for each")
    book.until(lambda: book.texts("tbody .nb-state .nb-state")[:4] == ["running"] * 4, "their states are there")
    book.say("speak(20)")
    book.until(lambda: book.text("tbody tr:first-child .nb-last") == "rank 0 step 19", "the last line has arrived")
    received = book.received
    for rank in range(4):
        book.say(f"ctx.end({rank})")
        book.until(lambda rank=rank: book.texts("tbody .nb-state .nb-state")[rank] == "succeeded", "one has ended")
    sent = book.received - received
    book.say("ctx.finish(); view.finish()")
    book.until(lambda: book.text(".nb-word") == "succeeded", "the run is over")
    return spent() - before, sent


def test_a_row_is_filled_when_it_comes_into_sight(open_notebook: Opener) -> None:
    """Given 256 ranks, when somebody scrolls to the last rows, or comes back from another tab, then they are there."""
    book = open_notebook([FAKE])
    page = book.page
    book.run()
    book.idle()
    book.until(lambda: page.locator("tbody tr").count() == 256, "there is a row for each")
    assert book.text("tbody tr:last-child") == ""
    page.locator(".nb-overview").evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
    last = "tbody tr:last-child .nb-last"
    book.say("speak(1)")
    book.until(lambda: book.text(last) == "rank 255 step 0", "the last row is filled")
    page.get_by_role("tab", name="All", exact=True).click()
    book.say("speak(2)")
    page.get_by_role("tab", name="Overview", exact=True).click()
    book.until(lambda: book.text("tbody tr:first-child .nb-last") == "rank 0 step 1", "the first row is up to date")
    page.locator(".nb-overview").evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
    book.until(lambda: book.text(last) == "rank 255 step 1", "the last one too")
