"""The view and the kernel: Stop, reload, two views, lost messages, a kernel that dies."""

from __future__ import annotations

from collections.abc import Callable

from lab import Notebook

Opener = Callable[..., Notebook]

SHOW = "ctx.start(); view.show()"
ROWS = ".nb-row .nb-text"


def tab(book: Notebook, name: str) -> None:
    book.page.get_by_role("tab", name=name, exact=True).first.click()


def stop_button(book: Notebook) -> bool:
    return book.page.query_selector(".nb-stop:enabled") is not None


def test_stop_works_while_the_cell_blocks(open_notebook: Opener) -> None:
    """Given a cell that blocks until its run ends, when Stop is clicked, then the run is asked to stop at once."""
    book = open_notebook(
        [
            f"fake(2); {SHOW}\nprint('asked', ctx.asked_to_stop.wait(30))\nctx.finish(RunState.STOPPED, 'stopped by you')\nview.finish()"
        ]
    )
    book.run(wait=False)
    book.until(lambda: stop_button(book), "Stop can be pressed")
    assert "[*]" in book.texts(".jp-InputArea-prompt")[1], "the cell still runs"
    book.page.click(".nb-stop")
    book.until(lambda: any("asked True" in text for text in book.outputs()), "the run was asked to stop", 10)
    book.until(lambda: book.text(".nb-word") == "stopped", "the view says stopped")
    assert book.text(".nb-head .nb-grow") == "stopped by you"
    assert not book.page.query_selector(".nb-cause")


def test_a_second_press_kills(open_notebook: Opener) -> None:
    """Given a run that does not stop, when Stop is pressed again, then it is killed."""
    book = open_notebook([f"fake(1); {SHOW}"])
    book.run()
    book.idle()
    book.until(lambda: stop_button(book), "Stop can be pressed")
    book.page.click(".nb-stop")
    book.until(lambda: book.text(".nb-stop") == "Kill now" and stop_button(book), "Kill can be pressed")
    book.page.click(".nb-stop")
    book.say(
        "import time; deadline = time.time() + 5\nwhile 'kill' not in ctx.asked and time.time() < deadline: time.sleep(.02)\nassert ctx.asked == ['stop', 'kill'], ctx.asked"
    )


def test_a_reload_in_the_middle_loses_no_line(open_notebook: Opener) -> None:
    """Given a running run, when the page is reloaded, then the view comes back with every line, and goes on."""
    book = open_notebook([f"fake(2); {SHOW}"])
    book.run()
    book.idle()
    book.say("for k in range(2000): ctx.write(k % 2, f'line {k}\\n')")
    tab(book, "All")
    book.until(lambda: book.text(".nb-tools .nb-count") == "2,000 lines", "all lines are there")
    book.command("docmanager:save")
    book.goto()
    book.until(lambda: book.page.query_selector(".nb-run[data-ready]"), "the view is back", 30)
    book.say("ctx.write(0, 'after the reload\\n')")
    tab(book, "All")
    book.until(lambda: book.text(".nb-tools .nb-count") == "2,001 lines", "all lines are there again")
    book.until(lambda: book.texts(ROWS)[-1] == "after the reload", "and new ones")
    book.page.locator(".nb-log").press("Home")
    book.until(lambda: book.texts(ROWS)[:3] == ["line 0", "line 1", "line 2"], "in their order")


def test_a_lost_message_is_made_good(open_notebook: Opener) -> None:
    """Given a message that is lost on its way, when the next one comes, then the view has every line."""
    book = open_notebook([f"fake(1); {SHOW}"])
    book.run()
    book.idle()
    book.say("ctx.write(0, 'first\\n')")
    tab(book, "Rank 0")
    book.until(lambda: book.texts(ROWS) == ["first"], "the first line is there")
    book.say(
        "send = view._widget.send; lost = threading.Event()\n"
        "def lose(message, buffers):\n"
        "    if message.get('runs') and not lost.is_set(): lost.set()\n"
        "    else: send(message, buffers)\n"
        "view._widget.send = lose\n"
        "ctx.write(0, 'lost\\n'); assert lost.wait(5)\n"
        "ctx.write(0, 'third\\n')"
    )
    book.until(lambda: book.texts(ROWS) == ["first", "lost", "third"], "the lost line is there, in its place")


def test_older_lines_come_from_the_log_by_pages(open_notebook: Opener) -> None:
    """Given more lines than a page keeps, when older ones are asked for, then they are read from the log."""
    book = open_notebook([f"fake(1); {SHOW}"])
    book.run()
    book.idle()
    book.say(
        "for k in range(60): ctx.write(0, ''.join(f'line {k * 1000 + i}\\n' for i in range(1000))); time.sleep(.02)"
    )
    tab(book, "Rank 0")
    book.until(lambda: "line 59999" in book.texts(ROWS), "the end is shown")
    older = book.text(".nb-older")
    assert "older lines in stdout.log" in older
    n = int(older.split()[0].replace(",", ""))
    assert n <= 10_000
    book.page.get_by_role("button", name="load 2,000").click()
    book.until(lambda: book.text(".nb-older").startswith(f"{n - 2000:,} older lines"), "older ones were loaded")
    book.page.locator(".nb-log").press("Home")
    book.until(lambda: book.texts(ROWS)[0] == f"line {n - 2000}", "they stand first")


def test_two_views_of_one_run(open_notebook: Opener) -> None:
    """Given a run that is shown twice, when it writes, then both views show it, and each has its own tab."""
    book = open_notebook([f"fake(1); {SHOW}", "display(view._widget)", "other = RunView(ctx); other.show()"])
    for _ in range(3):
        book.run()
        book.idle()
    book.until(lambda: len(book.page.query_selector_all(".nb-run[data-ready]")) == 3, "there are three views")
    book.page.get_by_role("tab", name="Rank 0").nth(1).click()
    book.say("ctx.write(0, 'hello\\n')")
    book.until(lambda: book.texts(".nb-last:visible") == ["hello", "hello"], "the overviews show it")
    book.until(lambda: book.texts(ROWS) == ["hello"], "so does the open rank")


def test_a_kernel_that_restarts(open_notebook: Opener) -> None:
    """Given a running run, when its kernel restarts, then the view says so and Stop goes away."""
    book = open_notebook([f"fake(2); {SHOW}"])
    book.run()
    book.idle()
    book.until(lambda: stop_button(book), "Stop can be pressed")
    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    book.until(lambda: book.text(".nb-notice"), "the view says it")
    assert book.text(".nb-notice").startswith("kernel restarted at ")
    assert book.text(".nb-notice").endswith("; the run ended with it")
    assert not book.page.query_selector(".nb-stop:visible")
    assert book.text(".nb-word") == "ended with its kernel"


def test_a_kernel_that_is_killed(open_notebook: Opener) -> None:
    """Given a running run, when its kernel dies, then the view says so and Stop goes away."""
    book = open_notebook([f"fake(2); {SHOW}"])
    book.run()
    book.idle()
    book.until(lambda: stop_button(book), "Stop can be pressed")
    book.page.evaluate(
        "() => { const k = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;"
        " k.requestExecute({code: 'import os; os.kill(os.getpid(), 9)', silent: true}); }"
    )
    book.until(lambda: book.text(".nb-notice"), "the view says it", 60)
    assert not book.page.query_selector(".nb-stop:visible")


def test_what_a_rank_displays_stands_at_its_place(open_notebook: Opener) -> None:
    """Given a rank that displays a table between two lines, then it stands between them; its scripts do not run."""
    book = open_notebook(
        [
            (
                f"import json\nfake(2); {SHOW}\n"
                "folder = ctx.layout.files.display_dir(0); folder.mkdir(parents=True, exist_ok=True)\n"
                "(folder / '000.html').write_text('<table><tr><td>42</td></tr></table>"
                '<script>parent.window.bad = 1</script><img src=x onerror="parent.window.bad = 1">\')\n'
                "ctx.write(0, 'before\\n')\n"
                "record = {'n': 0, 'file': 'display/000.html', 'mime': ['text/html'], 'text': '', 'kind': 'table'}\n"
                "ctx.write(0, json.dumps(record) + '\\n', Stream.DISPLAY)\n"
                "ctx.write(1, json.dumps(record) + '\\n', Stream.DISPLAY)\n"
                "ctx.write(0, 'after\\n')"
            )
        ]
    )
    book.run()
    book.idle()
    book.until(
        lambda: book.texts(".nb-last") == ["after", "displayed 1 table"], "the overview says so where that is all"
    )
    assert book.texts(".nb-figures") == ["1 table", ""]
    tab(book, "Rank 1")
    book.until(lambda: book.text(".nb-count") == "1 table", "it is no line")
    tab(book, "Rank 0")
    book.until(lambda: book.text(".nb-count") == "2 lines, 1 table", "it is counted beside the lines")
    book.until(lambda: book.page.query_selector(".nb-figure iframe"), "the table is there")
    frame = book.page.frame_locator(".nb-figure iframe")
    assert frame.locator("td").inner_text() == "42"
    tops = book.page.evaluate(
        "() => [...document.querySelectorAll('.nb-row')].map(e => [e.getBoundingClientRect().top, e.innerText])"
    )
    texts = [text for _, text in sorted(tops)]
    assert (texts[0], texts[-1]) == ("before", "after")
    assert book.page.evaluate("window.bad") is None


def test_twenty_runs_in_one_notebook(open_notebook: Opener) -> None:
    """Given twenty runs, when all write, then each view shows its own."""
    cell = "runs = []\nfor k in range(20):\n    fake(2); ctx.start(); view.show(); runs.append((ctx, view))"
    book = open_notebook([cell])
    book.run()
    book.idle()
    book.until(lambda: len(book.page.query_selector_all(".nb-run[data-ready]")) == 20, "all views are there")
    book.say("for k, (c, v) in enumerate(runs): c.write(0, f'run {k}\\n'); c.finish()")
    book.until(lambda: book.texts(".nb-word") == ["succeeded"] * 20, "all have succeeded")
    assert [text for text in book.texts(".nb-last") if text.startswith("run")] == [f"run {k}" for k in range(20)]


def test_the_reader_is_not_disturbed_when_the_output_is_saved(open_notebook: Opener) -> None:
    """Given somebody who types a filter, when the run ends and its output is saved, then they type on."""
    book = open_notebook([f"fake(1); {SHOW}"])
    book.run()
    book.idle()
    book.until(lambda: stop_button(book), "the view is connected")
    book.say("ctx.write(0, 'one\\ntwo\\n')")
    tab(book, "Rank 0")
    book.page.get_by_label("Filter lines").click()
    book.page.keyboard.type("tw")
    book.until(lambda: book.texts(ROWS) == ["two"], "the filter works")
    book.say("ctx.finish(); view.finish()")
    book.until(lambda: book.text(".nb-word") == "succeeded", "the run is over")
    book.page.wait_for_timeout(500)
    book.page.keyboard.type("ox")
    book.until(lambda: book.text(".nb-empty") == "No line matches.", "the keys went on into the filter")
    assert book.page.get_by_label("Filter lines").input_value() == "twox"
