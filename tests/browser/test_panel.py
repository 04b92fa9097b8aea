"""The launch panel in JupyterLab: by hand and by keyboard, as somebody uses it who would rather not write the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab import Notebook

Opener = Callable[..., Notebook]

CODE = '''\
import os, time, json, nbproc
def train(cfg, epochs=2, *, lr=0.1):
    """Train a small net."""
    for epoch in range(epochs):
        print(f"epoch {epoch} lr {lr}", flush=True)
    return cfg["width"] * epochs + int(os.environ["RANK"])
def forever():
    print("still here", flush=True)
    while True:
        time.sleep(0.05)
def fail():
    if os.environ["RANK"] == "1":
        raise ValueError("bad batch 17")
    forever()
cfg = {"width": 8}
'''
ROW = ".np-run:first-child "


class Panel:
    """A notebook with a panel in it."""

    def __init__(self, book: Notebook) -> None:
        self.book, self.page = book, book.page

    def field(self, label: str) -> Any:
        if label == "Function":  # there is also the choice between function and program
            return self.page.get_by_role("combobox", name=label, exact=True)
        return self.page.locator(".np-form").get_by_label(label, exact=True)

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name).first

    def row(self, part: str) -> str:
        """Return what the newest run's line says."""
        return self.book.text(f"{ROW}.np-{part}") or str(
            self.page.evaluate(f"(document.querySelector('{ROW}.np-{part}') || {{}}).textContent || ''")
        )

    def until_row(self, state: str) -> None:
        self.book.until(lambda: self.row("state") == state, f"the newest run is {state}")

    def until_said(self, words: str) -> None:
        self.until_row("succeeded")
        self.book.until(lambda: self.row("said") == words, f"the newest run's line says {words}")

    def code(self) -> str:
        return self.book.text(".np-text")

    def choose(self, function: str, arguments: str | None = None) -> None:
        self.field("Function").fill(function)
        self.field("Function").press("Escape")
        if arguments is not None:
            self.book.until(lambda: self.page.query_selector("[id$=-arguments]:visible"), "arguments can be given")
            self.field("Arguments").fill(arguments)
        self.ready(function)

    def ready(self, words: str = "") -> None:
        self.book.until(
            lambda: self.page.query_selector(".np-launch:enabled") and words in self.code(), "it can be launched"
        )

    def unfold(self) -> None:
        self.button("Options").click()
        self.book.until(lambda: self.page.query_selector(".np-options:visible"), "the options are there")

    def run_below(self) -> None:
        """Run the cell below; the panel's is the active one as soon as somebody has clicked into it."""
        self.book.command("notebook:move-cursor-down")
        self.book.run()

    def launch(self) -> None:
        before = self.page.evaluate("document.querySelectorAll('.np-run').length")
        self.page.click(".np-launch")
        self.book.until(
            lambda: self.page.evaluate("document.querySelectorAll('.np-run').length") > before,
            "a run stands in the list",
        )


@pytest.fixture
def open_panel(open_notebook: Opener) -> Callable[..., Panel]:
    def opener(call: str = "nbproc.panel()", *more: str, **options: Any) -> Panel:
        book = open_notebook([CODE, call, *more], **options)
        for _ in range(2):
            book.run()
            book.idle()
        book.until(lambda: book.page.query_selector(".np-form"), "the form is there", 60)
        return Panel(book)

    return opener


def test_a_function_is_chosen_launched_watched_stopped_and_run_again(open_panel: Callable[..., Panel]) -> None:
    """Given functions in cells, when one is launched by hand, then it runs beside the kernel's cells until Stop."""
    panel = open_panel("nbproc.panel()", "print('a cell', 6 * 7)")
    book, page = panel.book, panel.page
    visible = page.eval_on_selector_all(".np-form .np-input", "all => all.filter((e) => e.offsetParent).length")
    assert visible == 2, "only what to run and the number of ranks are there at first"
    assert book.text(".np-wants") == "Choose a function"
    assert page.is_disabled(".np-launch")
    panel.field("Function").click()
    book.until(lambda: len(book.texts(".np-option")) == 4, "the notebook's functions are listed")
    assert book.texts(".np-option")[1].split("\n") == ["train(cfg, epochs=2, *, lr=0.1)", "Train a small net."]
    page.locator(".np-option", has_text="forever").click()
    panel.ready("forever()")
    assert book.text(".np-launch") == "Launch 2 ranks"
    panel.launch()
    panel.until_row("running")
    book.until(lambda: book.texts(".nb-last") == ["still here"] * 2, "both ranks' lines are shown")
    panel.run_below()  # while the run goes on
    book.until(lambda: "a cell 42" in "".join(book.outputs()), "another cell runs meanwhile")
    assert panel.row("state") == "running"
    book.say("assert run.snapshot().state.value == 'running'")

    # A launch while another run is going.
    panel.choose("train", "cfg, lr=0.5")
    panel.launch()
    panel.until_said("0: 16, 1: 17")
    assert book.texts(".np-run .np-call") == ["train(cfg, lr=0.5)", "forever()"]
    assert book.text(".np-run:nth-child(2) .np-state") in ("running", "")
    page.locator(".np-run:nth-child(2) .np-open").click()
    book.until(lambda: page.query_selector(".np-run:nth-child(2) .np-act:visible >> text=Stop"), "it can be stopped")
    page.locator(".np-run:nth-child(2) .np-act", has_text="Stop").click()
    stopped = ".np-run:nth-child(2) .np-said"
    book.until(lambda: "nothing left running" in book.text(stopped), "it is stopped, and says so")
    assert "stopped" in book.text(stopped)
    assert book.text(".np-run:nth-child(2) .np-state") == "stopped"

    # Again, with the same and with changed values.
    page.locator(".np-run:first-child .np-act", has_text="Run again").click()
    book.until(lambda: len(book.texts(".np-run")) == 3, "it runs again")
    panel.until_row("succeeded")
    page.locator(".np-run:first-child .np-act", has_text="Change").click()

    def filled() -> bool:  # the run's own values come from the kernel, and may come after what is typed at once
        panel.field("Arguments").fill("cfg, 5")
        return "train(cfg, 5)" in panel.code()

    book.until(filled, "the values are the changed ones")
    panel.ready("train(cfg, 5)")
    panel.launch()
    panel.until_said("0: 40, 1: 41")
    book.say("assert run.result()[1] == 41")
    assert [error for error in book.errors if "np" in error or "nbproc" in error] == []


def test_all_can_be_done_by_keyboard(open_panel: Callable[..., Panel]) -> None:
    """Given only a keyboard, when somebody goes through the form, then the order is that of reading, and Enter launches."""
    panel = open_panel()
    book, page = panel.book, panel.page
    keys = page.keyboard
    focused = "document.activeElement.getAttribute('aria-label') || (document.activeElement.labels || [])[0]?.textContent || document.activeElement.textContent"
    panel.field("Function").focus()
    keys.type("rai")
    keys.press("ArrowDown")
    assert page.evaluate("document.querySelector('[aria-selected=true] b').textContent") == "train"
    keys.press("Enter")
    book.until(lambda: page.query_selector("[id$=-arguments]:visible"), "the function's arguments are asked for")
    assert book.text(".np-wants") == "Give cfg"
    order = []
    for _ in range(3):
        keys.press("Tab")
        order.append(page.evaluate(focused))
    assert order == ["Ranks", "Arguments", "Options"]
    keys.press("Enter")
    order = []
    for _ in range(12):
        keys.press("Tab")
        order.append(page.evaluate(focused))
    assert order == [
        *("Environment", "Name", "Variable", "Start method", "Timeout", "Redirect", "Tee", "Filters", "Log directory"),
        *("arguments of rank 0", "environment of rank 0", "redirects of rank 0"),
    ]
    panel.field("Ranks").focus()
    keys.press("ArrowUp")
    assert panel.field("Ranks").input_value() == "3"
    keys.press("ArrowDown")
    panel.field("Arguments").focus()
    keys.type("cfg, 3")
    keys.press("Enter")  # at once, before the last key was looked at
    panel.until_row("succeeded")
    assert panel.row("call") == "train(cfg, 3)"
    cells = len(book.texts(".jp-Cell"))
    panel.button("Options").focus()
    for key in "ddxbm":
        keys.press(key)
    assert len(book.texts(".jp-Cell")) == cells
    panel.field("Arguments").fill("cfg, (")
    book.until(lambda: page.is_disabled(".np-launch"), "a wrong form cannot be launched")
    keys.press("Enter")
    assert len(book.texts(".np-run")) == 1
    unlabelled = page.eval_on_selector_all(
        ".np-form input, .np-form select", "all => all.filter((e) => !e.labels?.length && !e.ariaLabel).length"
    )
    assert unlabelled == 0


def test_wrong_input_is_marked_at_its_field(open_panel: Callable[..., Panel]) -> None:
    """Given a form, when each field is filled in wrongly, then each says why, and Launch is off until it is right."""
    panel = open_panel()
    book, page = panel.book, panel.page
    panel.choose("train", "cfg")
    panel.unfold()
    wrong = {
        "Function": ("trian", "trian is not defined in the notebook."),
        "Ranks": ("0", "How many ranks? A whole number from 1 to 1024."),
        "Arguments": ("cfg, lrr=1", "The function has no argument lrr."),
        "Environment": ("A", "A is no setting; write NAME=value, and quotes round a value with spaces."),
        "Name": ("a/b", "A name of a run has no slash: it is a part of its directory's name."),
        "Variable": ("2x", "2x cannot be a variable's name."),
        "Timeout": ("soon", "A number of seconds, such as 60."),
        "Filters": ("'a", "The quote ' in 'a is not closed."),
        "Log directory": ("/etc/passwd", "/etc/passwd is a file; name a directory."),
        "arguments of rank 1": ("cfg, (", "Not valid Python: '(' was never closed."),
        "environment of rank 0": ("=", "= is no setting; write NAME=value, and quotes round a value with spaces."),
    }
    for label, (text, sentence) in wrong.items():
        field = panel.field(label)
        right = field.input_value()
        field.fill(text)
        book.until(lambda field=field: field.get_attribute("aria-invalid") == "true", f"{label} is marked")
        assert book.text(f"[id='{field.get_attribute('aria-describedby')}']") == sentence
        assert page.is_disabled(".np-launch")
        field.fill(right)
        book.until(lambda field=field: field.get_attribute("aria-invalid") is None, f"{label} is right again")
        panel.ready()
    # What can only be known at the launch.
    panel.field("Arguments").fill("cgf")
    panel.ready("train(cgf)")
    page.click(".np-launch")
    field = panel.field("Arguments")
    book.until(lambda: field.get_attribute("aria-invalid") == "true", "the field is marked")
    assert book.text(f"[id='{field.get_attribute('aria-describedby')}']") == "cgf is not defined in the notebook."
    assert page.is_disabled(".np-launch")
    book.say("import threading; lock = threading.Lock()")
    field.fill("lock")
    panel.ready("train(lock)")
    page.click(".np-launch")
    book.until(lambda: book.text(".np-banner").startswith("not run:"), "what cannot be sent is told")
    assert "lock" in book.text(".np-banner")
    assert book.texts(".np-run") == []


def test_a_program_with_arguments_by_rank_and_a_failure(open_panel: Callable[..., Panel]) -> None:
    """Given a program, when it is launched with arguments by rank, then each rank has its own; a failure is one line."""
    panel = open_panel("nbproc.panel('sh', args={0: \"-c 'echo first'\", 1: \"-c 'echo second'\"}, log_dir='logs')")
    book, page = panel.book, panel.page
    assert page.is_checked("input[type=radio] >> nth=1")
    panel.ready("-- sh -c")
    panel.launch()
    panel.until_row("succeeded")
    book.until(lambda: book.texts(".nb-last") == ["first", "second"], "each rank ran its own")
    book.say("assert run.run_dir.name == 'sh-1' and run.run_dir.parent.name == 'logs', run.run_dir")
    page.locator(".np-kind").first.click()
    panel.field("Function").fill("fail")
    panel.field("Function").press("Escape")
    panel.button("Options").scroll_into_view_if_needed()
    book.until(lambda: page.query_selector(".np-options:visible"), "what is wrong is not folded away")
    for rank in range(2):
        panel.field(f"arguments of rank {rank}").fill("")
    panel.ready("fail()")
    panel.launch()
    panel.until_row("failed")
    assert panel.row("said").startswith("rank 1 failed first: ValueError: bad batch 17, in fail, cell [")
    page.click(f"{ROW}.np-open")
    book.until(lambda: page.query_selector(f"{ROW}.np-said:visible"), "the line says why")
    assert "rank 1 failed first" in book.text(f"{ROW}.np-said")
    saved = page.query_selector(".nbproc-panel-runs")
    assert "rank 1 failed first" in (saved.text_content() or ""), "a notebook without widgets has the list"
    assert not saved.is_visible(), "here the form has it"


def test_the_code_that_is_shown_does_the_same(open_panel: Callable[..., Panel]) -> None:
    """Given a filled form, when its code is copied into a cell and run, then the same comes out."""
    panel = open_panel("nbproc.panel(train, args={0: 'cfg, 3', 1: 'dict(cfg, width=1), lr=0.25'}, envs={'A': '1'})")
    book, page = panel.book, panel.page
    panel.ready("train_args")
    panel.launch()
    panel.until_row("succeeded")
    panel.until_said("0: 24, 1: 3")
    panel.button("Copy").click()
    book.until(lambda: "Copied" in book.text(".np-copy"), "the code is copied")
    code = page.evaluate("navigator.clipboard.readText()")
    assert code == panel.code()
    assert code.splitlines()[-1].startswith(
        "%spawn -n 2 --detach --as run --name train --env A=1 train(*train_args[rank]"
    )
    book.say("mine = run; before = run.plan; run = None")
    book.say(f"get_ipython().run_cell({code!r})")
    book.say(
        "assert run is not mine\nresult = run.result()\nassert dict(enumerate(result)) == {0: 24, 1: 3}, result\n"
        "assert run.envs == mine.envs and run.name == mine.name and run.plan.start_method == before.start_method"
    )


def test_values_survive_and_functions_stay_current(open_panel: Callable[..., Panel]) -> None:
    """Given a filled form, when cells are run again, then it keeps its values and runs, and launches the new function."""
    newer = "def train(cfg, more):\n    'Another one.'\n    return more\ndef added(): pass"
    panel = open_panel("nbproc.panel(nprocs=3)", newer)
    book, page = panel.book, panel.page
    panel.choose("train", "cfg")
    assert book.text(".np-launch") == "Launch 3 ranks"
    panel.launch()
    panel.until_said("0: 16, 1: 17, 2: 18")
    panel.run_below()
    book.until(lambda: "Another one." in book.text(".np-about"), "the signature is the new one")
    assert book.text("[id$=-arguments-error]") == "Give more."
    panel.field("Function").click()
    book.until(lambda: any("added" in text for text in book.texts(".np-option")), "the new function is listed")
    panel.field("Function").press("Escape")
    panel.field("Arguments").fill("cfg, 'new'")
    panel.field("Ranks").fill("2")
    panel.ready("-n 2")
    panel.launch()
    panel.until_said("all ranks: 'new'")
    panel.field("Function").fill("json.d")
    book.until(
        lambda: any("json.dumps" in text for text in book.texts(".np-option")), "a module's functions are listed"
    )
    panel.choose("train", "cfg, 1")
    panel.field("Arguments").click()  # the panel's cell is the active one then
    book.run()
    book.idle()
    book.until(lambda: len(book.texts(".np-form")) == 1, "there is one form")
    book.until(lambda: panel.field("Arguments").input_value() == "cfg, 1", "the values are still there")
    assert panel.field("Ranks").input_value() == "2"
    assert book.texts(".np-run .np-call") == ["train(cfg, 'new')", "train(cfg)"]
    book.command("docmanager:save")
    book.goto()
    book.until(lambda: page.query_selector(".np-form"), "the form is back after a reload", 60)
    assert panel.field("Arguments").input_value() == "cfg, 1"
    panel.ready("train(cfg, 1)")
    panel.launch()
    panel.until_row("succeeded")


def test_it_can_be_read_in_both_themes_and_in_a_narrow_window(open_panel: Callable[..., Panel]) -> None:
    """Given a full panel, when the theme or the width changes, then texts have a contrast of 4.5 and nothing sticks out."""
    panel = open_panel()
    book, page = panel.book, panel.page
    panel.choose("fail")
    panel.launch()
    panel.until_row("failed")
    page.click(f"{ROW}.np-open")
    panel.choose("train", "cfg")
    panel.unfold()
    panel.field("Timeout").fill("soon")
    book.until(lambda: page.is_disabled(".np-launch"), "there is an error to be read")
    for dark in (False, True):
        book.theme(dark)
        wanted = "dark" if dark else "light"
        book.until(lambda wanted=wanted: page.query_selector(f".np[data-theme={wanted}]"), f"the panel is {wanted}")
        assert page.evaluate(FAINT) == [], wanted
    book.command("application:toggle-left-area")
    page.set_viewport_size({"width": 560, "height": 1000})
    book.until(lambda: page.query_selector(".np-narrow"), "the panel is narrow")
    assert page.evaluate(OUTSIDE) == []


OUTSIDE = """() => {
  const right = document.querySelector('.np').getBoundingClientRect().right;
  return [...document.querySelectorAll('.np-form *, .np-head *')].filter((e) => e.getClientRects().length
    && !e.closest('.np-scroll') && !e.closest('.np-hidden') && e.getBoundingClientRect().right > right + 1).map((e) => e.className) }"""

FAINT = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const lum = (c) => { const p = c.slice(0, 3).map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
    return .2126 * p[0] + .7152 * p[1] + .0722 * p[2] };
  const over = (top, under) => { const a = top.length > 3 ? top[3] : 1; return under.map((u, i) => top[i] * a + u * (1 - a)) };
  const background = (e) => { const list = []; for (; e; e = e.parentElement) list.unshift(parse(getComputedStyle(e).backgroundColor));
    return list.reduce((under, top) => over(top, under), [255, 255, 255]) };
  const bad = [];
  const look = (e, style, words) => {
    const under = background(e), [a, b] = [lum(over(parse(style.color), under)), lum(under)].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.49) bad.push(`${words.slice(0, 30)} ${e.className} ${((a + .05) / (b + .05)).toFixed(2)}`) };
  for (const e of document.querySelectorAll('.np input, .np select')) {
    if (!e.getClientRects().length || e.type === 'radio') continue;
    look(e, getComputedStyle(e), e.value);
    if (e.placeholder) look(e, getComputedStyle(e, '::placeholder'), e.placeholder) }
  const walker = document.createTreeWalker(document.querySelector('.np'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    if (words && e.getClientRects().length && !e.closest('[hidden], option, .nb-run')) look(e, getComputedStyle(e), words) }
  return bad; }"""
