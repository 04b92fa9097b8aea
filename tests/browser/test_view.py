"""The live view, as a person sees it in JupyterLab."""

from __future__ import annotations

from collections.abc import Callable

from lab import Notebook

Opener = Callable[..., Notebook]

SHOW = "ctx.start(); view.show()"
ROWS = ".nb-row .nb-text"


def tab(book: Notebook, name: str) -> None:
    book.page.get_by_role("tab", name=name, exact=True).click()


def rows(book: Notebook) -> list[str]:
    return book.texts(ROWS)


def quiet(book: Notebook) -> list[str]:
    """Return what the browser complained of that may be ours."""
    return [error for error in book.errors if "Failed to load resource" not in error and "WebSocket" not in error]


def test_lines_of_two_ranks_appear_while_the_run_goes_on(open_notebook: Opener) -> None:
    """Given a run of two ranks, when they write, then the overview shows each one's last line, and its tab all."""
    book = open_notebook([f"fake(2); {SHOW}"])
    book.run()
    book.idle()
    book.say("ctx.write(0, 'hello from zero\\n'); ctx.write(1, 'one\\ntwo\\n')")
    book.until(lambda: book.texts(".nb-last") == ["hello from zero", "two"], "each rank's last line is shown")
    assert book.text(".nb-word") == "running"
    tab(book, "Rank 1")
    book.until(lambda: rows(book) == ["one", "two"], "rank 1's lines are shown")
    book.say("ctx.finish()")
    book.until(lambda: book.text(".nb-word") == "succeeded", "the view says that the run succeeded")
    assert not book.page.query_selector(".nb-stop:visible")
    assert quiet(book) == []


def test_bars_move_in_place_in_every_row_at_once(open_notebook: Opener) -> None:
    """Given four bars, when they move, then the overview's four rows move, and each log keeps one line."""
    book = open_notebook([f"fake(4); {SHOW}"])
    book.run()
    book.idle()
    for percent in (10, 20, 90):
        book.say(f"for r in range(4): ctx.write(r, f'\\repoch {{r}}: {percent}%|###', Stream.ERR)")
        wanted = [f"epoch {r}: {percent}%|###" for r in range(4)]
        book.until(lambda wanted=wanted: book.texts(".nb-last") == wanted, "all four bars have moved")
    tab(book, "Rank 2")
    book.until(lambda: rows(book) == ["epoch 2: 90%|###"], "there is one line for the bar")
    assert book.page.query_selector(".nb-row.nb-err"), "stderr carries its mark"


FAIL = """\
from nbproc.failures.errorfile import write_error
def train(batch):
    raise ValueError(f"bad <b>batch</b> {batch}")
def fail(rank):
    path = ctx.layout.files.error(rank)
    try:
        train(17)
    except Exception as error:
        write_error(str(path), error, {train.__code__.co_filename: 2}, rank)
    ctx.fail(rank, path)
"""


def test_the_first_cause_stands_on_top_at_once(open_notebook: Opener) -> None:
    """Given a running run, when a rank raises, then the cause is on top and its traceback opens, while others run."""
    book = open_notebook([f"{FAIL}\nfake(4); {SHOW}"])
    book.run()
    book.idle()
    book.say("fail(2)")
    book.until(lambda: book.text(".nb-cause"), "the cause is shown")
    cause = book.text(".nb-cause")
    assert "rank 2 failed first: ValueError: bad <b>batch</b> 17" in cause
    assert "in train, cell [2] line 3; called from fail, cell [2] line 7" in cause
    assert book.text(".nb-tabs [aria-selected=true]") == "Errors"
    assert 'raise ValueError(f"bad <b>batch</b> {batch}")' in book.text(".nb-errors")
    assert book.text(".nb-word") == "running"
    tab(book, "Overview")
    assert book.texts(".nb-last")[2] == "ValueError: bad <b>batch</b> 17"
    assert book.texts("tbody .nb-state .nb-state")[2] == "failed"


def test_a_failure_does_not_take_a_reader_elsewhere(open_notebook: Opener) -> None:
    """Given somebody who reads a rank's log, when another rank fails, then the tab stays and the cause appears."""
    book = open_notebook([f"{FAIL}\nfake(3); {SHOW}"])
    book.run()
    book.idle()
    tab(book, "Rank 1")
    book.say("fail(2)")
    book.until(lambda: "rank 2 failed first" in book.text(".nb-cause"), "the cause is shown")
    assert book.text(".nb-tabs [aria-selected=true]") == "1"
    book.page.get_by_role("button", name="Full traceback").click()
    assert "train" in book.text(".nb-errors")


def test_the_end_is_followed_until_the_reader_scrolls_up(open_notebook: Opener) -> None:
    """Given a long log, when the reader scrolls up, then it stands still, and one click brings the end back."""
    book = open_notebook([f"fake(1); {SHOW}"])
    book.run()
    book.idle()
    book.say("ctx.write(0, ''.join(f'line {k}\\n' for k in range(500)))")
    tab(book, "Rank 0")
    book.until(lambda: "line 499" in rows(book), "the end is shown")
    box = book.page.locator(".nb-log")
    box.hover()
    book.page.mouse.wheel(0, -3000)
    book.until(lambda: book.page.query_selector(".nb-jump:visible"), "the view does not follow any more")
    top = box.evaluate("e => e.scrollTop")
    book.say("ctx.write(0, ''.join(f'more {k}\\n' for k in range(500)))")
    book.until(lambda: book.text(".nb-tools .nb-count") == "1,000 lines", "the lines have arrived")
    assert box.evaluate("e => e.scrollTop") == top
    book.page.get_by_role("button", name="Jump to the end").click()
    book.until(lambda: "more 499" in rows(book), "the end is shown again")


def test_filter_and_find(open_notebook: Opener) -> None:
    """Given a log, when it is filtered and searched, then only what matches is shown, counted and marked."""
    book = open_notebook([f"fake(2); {SHOW}"])
    book.run()
    book.idle()
    book.say("for k in range(50): ctx.write(k % 2, f'\\x1b[31mstep\\x1b[0m {k} loss (a+b) {k % 7}\\n')")
    tab(book, "All")
    count = ".nb-tools .nb-count"
    book.until(lambda: book.text(count) == "50 lines", "all lines are counted")
    field = book.page.get_by_label("Filter lines")
    field.fill("step 4")
    book.until(lambda: book.text(count) == "11 of 50", "the filter sees through colours")
    assert rows(book)[0] == "step 4 loss (a+b) 4"
    field.fill("(a+b) 3")
    book.until(lambda: book.text(count) == "7 of 50", "a filter is a plain text")
    book.page.get_by_role("button", name="Filter is a regular expression").click()
    field.fill(r"step \d$|b\) 6")
    book.until(lambda: book.text(count) == "7 of 50", "a filter may be an expression")
    assert book.texts("mark[data-kind=found]") == ["b) 6"] * 7
    field.fill("(")
    assert field.get_attribute("aria-invalid") == "true"
    field.fill("step")
    book.page.get_by_role("button", name="Show the lines that do not match").click()
    book.until(lambda: book.text(count) == "0 of 50", "a filter may be turned round")
    assert book.text(".nb-empty") == "No line matches."
    book.page.get_by_role("button", name="Show the lines that do not match").click()
    field.fill("")
    book.page.locator(".nb-log").focus()
    book.page.keyboard.press("Control+f")
    book.page.keyboard.type("step 1")
    book.until(lambda: "of 11" in book.text(".nb-find .nb-count"), "the hits are counted")
    assert "".join(book.texts("mark[data-kind=current]")) == "step 1"
    for _ in range(11):
        book.page.keyboard.press("Enter")
        book.until(lambda: len(book.texts("mark[data-kind=current]")) >= 1, "there is a present hit")
    before = book.text(".nb-find .nb-count")
    book.page.keyboard.press("Shift+Enter")
    book.until(lambda: book.text(".nb-find .nb-count") != before, "the search goes back")
    book.page.keyboard.press("Escape")
    assert not book.page.query_selector(".nb-find:visible")


def test_streams_times_and_wrapping_can_be_switched(open_notebook: Opener) -> None:
    """Given lines of both streams, when one is switched off, then the other is left; times and wrapping likewise."""
    book = open_notebook([f"fake(1); {SHOW}"])
    book.run()
    book.idle()
    book.say("ctx.write(0, 'out\\n'); ctx.write(0, 'err\\n', Stream.ERR); ctx.write(0, 'long ' * 300 + '\\n')")
    tab(book, "Rank 0")
    book.until(lambda: len(rows(book)) == 3, "all lines are shown")
    button = book.page.get_by_role("button", name="Lines of stderr")
    button.click()
    book.until(lambda: len(rows(book)) == 2 and rows(book)[0] == "out", "stderr is gone")
    button.click()
    book.page.get_by_role("button", name="Times").click()
    book.until(lambda: len(book.texts(".nb-time")) == 3, "the times are shown")
    height = book.page.locator(".nb-row").nth(2).bounding_box()["height"]
    book.page.get_by_role("button", name="Wrap long lines").click()
    book.until(
        lambda: book.page.locator(".nb-row").nth(2).bounding_box()["height"] > 4 * height, "the long line is wrapped"
    )
    box = book.page.locator(".nb-log")
    assert box.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_copy_all_selection_and_download_give_plain_text(open_notebook: Opener) -> None:
    """Given a coloured log, when it is copied or downloaded, then it is the text without colours, or the file."""
    book = open_notebook([f"fake(1, name='run'); {SHOW}"])
    book.run()
    book.idle()
    book.say("ctx.write(0, ''.join(f'\\x1b[31mred\\x1b[0m <{k}>\\n' for k in range(3000)))")
    tab(book, "Rank 0")
    book.until(lambda: "red <2999>" in rows(book), "the lines are shown")
    book.page.get_by_role("button", name="Copy all lines shown here").click()
    book.until(lambda: book.text(".nb-said") == "Copied 3,000 lines", "the view says what it copied")
    lines = book.page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines == [f"red <{k}>" for k in range(3000)]
    with book.page.expect_download() as download:
        book.page.get_by_role("button", name="Download the log").click()
    assert download.value.suggested_filename == "run-0-stdout.log"
    assert download.value.path().read_bytes() == b"".join(b"\x1b[31mred\x1b[0m <%d>\n" % k for k in range(3000))
    book.page.locator(".nb-row").last.click(click_count=3)
    book.page.keyboard.press("Control+c")
    assert book.page.evaluate("navigator.clipboard.readText()").strip() == "red <2999>"
    book.page.keyboard.press("Control+a")
    book.page.wait_for_timeout(300)
    book.page.keyboard.press("Control+c")
    book.until(
        lambda: len(book.page.evaluate("navigator.clipboard.readText()").splitlines()) == 3000, "all can be selected"
    )


def test_hostile_logs_are_text(open_notebook: Opener) -> None:
    """Given a log that is made to do harm, when it is shown, then it is text."""
    book = open_notebook([f"fake(1); {SHOW}"])
    book.run()
    book.idle()
    hostile = "<script>window.bad=1</script><img src=x onerror='window.bad=1'>"
    link = "\x1b]8;;javascript:window.bad=1\x07click\x1b]8;;\x07"
    book.say(f"ctx.write(0, {hostile + link + chr(10)!r})")
    book.until(lambda: "<script>" in book.text(".nb-last"), "the line is in the overview")
    tab(book, "Rank 0")
    book.until(lambda: hostile in rows(book)[0], "the line is text")
    assert book.page.query_selector_all(".nb-run a, .nb-row img, .nb-row script") == []
    assert book.page.evaluate("window.bad") is None


def test_keys_work_and_do_not_reach_the_notebook(open_notebook: Opener) -> None:
    """Given a run of 64 ranks, when keys are pressed in the view, then it moves, and no cell is deleted."""
    book = open_notebook([f"fake(64); {SHOW}"])
    book.run()
    book.idle()
    book.say("for r in range(64): ctx.write(r, f'i am {r}\\n')")
    cells = len(book.texts(".jp-Cell"))
    selected = ".nb-tabs [aria-selected=true]"
    tab(book, "Overview")
    book.page.keyboard.press("ArrowRight")
    assert book.text(selected) == "All"
    book.page.keyboard.press("End")
    book.until(lambda: rows(book) == ["i am 63"], "the last tab is open")
    book.page.keyboard.press("4")
    book.page.keyboard.press("2")
    book.until(lambda: rows(book) == ["i am 42"], "two digits open rank 42")
    assert book.page.evaluate(
        "document.querySelector('.nb-tabs [aria-selected=true]').getBoundingClientRect().right"
        " <= document.querySelector('.nb-tabs').getBoundingClientRect().right + 1"
    )
    for key in "ddxzbm":
        book.page.keyboard.press(key)
    book.page.keyboard.press("o")
    assert book.text(selected) == "Overview"
    assert len(book.texts(".jp-Cell")) == cells
    mark = book.page.get_by_role("button", name="rank 17: running")
    mark.click()
    book.until(lambda: rows(book) == ["i am 17"], "a mark opens its rank")


def test_the_theme_may_change_and_all_can_be_read(open_notebook: Opener) -> None:
    """Given a log in all colours, when the theme changes, then the view follows, and texts have a contrast of 4.5."""
    book = open_notebook([f"{FAIL}\nfake(4); {SHOW}"])
    book.run()
    book.idle()
    book.say(
        "ctx.write(0, ' '.join(f'\\x1b[{c}mcolour{c}\\x1b[0m' for c in [*range(30, 38), *range(90, 98)]) + '\\n');"
        "ctx.write(0, ' '.join(f'\\x1b[38;5;{c}m{c}\\x1b[0m' for c in range(16, 256)) + '\\n');"
        "[ctx.write(r, f'line {r}\\n', Stream.ERR) for r in range(4)]; fail(3)"
    )
    for dark in (False, True):
        book.theme(dark)
        wanted = "dark" if dark else "light"
        book.until(
            lambda wanted=wanted: book.page.query_selector(f".nb-run[data-theme={wanted}]"), f"the view is {wanted}"
        )
        for name in ("Overview", "Errors", "All", "Rank 0"):
            tab(book, name)
            book.page.wait_for_timeout(200)
            assert book.page.evaluate(FAINT) == [], f"{wanted} {name}"
    assert quiet(book) == []


FAINT = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const lum = (c) => { const p = c.slice(0, 3).map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
    return .2126 * p[0] + .7152 * p[1] + .0722 * p[2] };
  const over = (top, under) => { const a = top.length > 3 ? top[3] : 1; return under.map((u, i) => top[i] * a + u * (1 - a)) };
  const background = (e) => { const list = []; for (; e; e = e.parentElement) list.unshift(parse(getComputedStyle(e).backgroundColor));
    return list.reduce((under, top) => over(top, under), [255, 255, 255]) };
  const bad = [];
  const walker = document.createTreeWalker(document.querySelector('.nb-run'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    if (!words || !e.getClientRects().length || e.closest('[hidden]') || e.closest('.nb-said')) continue;
    const style = getComputedStyle(e), under = background(e);
    const colour = over([...parse(style.color).slice(0, 3), Number(style.opacity)], under);
    const [a, b] = [lum(colour), lum(under)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.49) bad.push(`${words.slice(0, 30)} ${e.className} ${ratio.toFixed(2)}`);
  }
  return bad; }"""


def test_a_table_follows_the_theme_when_the_run_is_over(open_notebook: Opener) -> None:
    """Given a finished run whose rank displayed a table, when the theme turns dark, then the table is dark too."""
    book = open_notebook(
        [
            (
                "import json\nfake(1); ctx.start(); view.show()\n"
                "folder = ctx.layout.files.display_dir(0); folder.mkdir(parents=True, exist_ok=True)\n"
                "(folder / '000.html').write_text('<table><tr><td>42</td></tr></table>')\n"
                "record = {'n': 0, 'file': 'display/000.html', 'mime': ['text/html'], 'text': ''}\n"
                "ctx.write(0, json.dumps(record) + '\\n', Stream.DISPLAY); ctx.finish(); view.finish()"
            )
        ]
    )
    book.theme(False)
    book.run()
    book.idle()
    tab(book, "Rank 0")
    colour = (  # "" while the frame loads
        "(() => { const body = document.querySelector('.nb-figure iframe')?.contentDocument?.body;"
        " return body?.querySelector('td') ? getComputedStyle(body).color : '' })()"
    )
    light = book.until(lambda: book.page.evaluate(colour), "the table is there")
    book.theme(True)
    book.until(lambda: book.page.evaluate(colour) not in ("", light), "the table has another colour")


def test_every_log_opens_at_its_end(open_notebook: Opener) -> None:
    """Given a long log that is read at its end, when a shorter one is opened, or filtered, then its end is shown."""
    book = open_notebook([f"fake(2); {SHOW}"])
    book.run()
    book.idle()
    book.say("[ctx.write(r, ''.join(f'line {k}\\n' for k in range(n))) for r, n in ((0, 900), (1, 300))]")
    tab(book, "Rank 0")
    book.until(lambda: "line 899" in rows(book), "the end of the long log is shown")
    tab(book, "Rank 1")
    book.until(lambda: "line 299" in rows(book), "the end of the shorter log is shown")
    book.page.locator(".nb-filter").fill("line 1")
    book.until(lambda: "line 199" in rows(book), "the end of what the filter lets through is shown")
    book.page.wait_for_timeout(200)
    assert not book.page.query_selector(".nb-jump:visible")


def test_failures_that_follow_from_another_are_told_from_it(open_notebook: Opener) -> None:
    """Given a rank that failed first, when others lose it, then only its mark and its row are red through and through."""
    lost = """\
import socket
def lose(rank):
    path = ctx.layout.files.error(rank)
    try:
        socket.create_connection(("127.0.0.1", 1))  # nobody listens there
    except Exception as error:
        write_error(str(path), error, {}, rank)
    ctx.fail(rank, path)
"""
    book = open_notebook([f"{FAIL}\n{lost}\nfake(3); {SHOW}"])
    book.run()
    book.idle()
    book.say("fail(1); lose(0); lose(2)")
    tab(book, "Overview")
    marks = "[...document.querySelectorAll('.nb-marks .nb-mark')].map(e => e.dataset.state)"
    book.until(lambda: book.page.evaluate(marks) == ["after", "failed", "after"], "the others are marked as such")
    said = book.texts(".nb-last")
    assert said[0].startswith("lost the connection")
    assert said[1] == "ValueError: bad <b>batch</b> 17"
    book.page.get_by_role("button", name="Log of rank 1").click()
    assert book.text(".nb-tabs [aria-selected=true]") == "1"


def test_stop_is_in_sight_however_narrow_the_page(open_notebook: Opener) -> None:
    """Given a narrow page, when a run is shown, then Stop is within it, and the page does not move sideways."""
    book = open_notebook([f"fake(4, name='a name of a run that is quite long'); {SHOW}"])
    book.run()
    book.idle()
    for width in (700, 600):
        book.page.set_viewport_size({"width": width, "height": 900})
        book.page.wait_for_timeout(300)
        assert (
            book.page.evaluate(
                "() => { const box = (s) => document.querySelector(s).getBoundingClientRect();"
                " const root = box('.nb-run'); return ['.nb-stop', '.nb-tabs', '.nb-foot', '.nb-overview']"
                ".filter((s) => box(s).left < root.left - 1 || box(s).right > root.right + 1) }"
            )
            == []
        )
