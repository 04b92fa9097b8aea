"""What somebody needs who works without a mouse, or hears the page: names, roles, the order of the focus, edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab import Notebook

Opener = Callable[..., Notebook]

SHOW = """\
from nbproc.failures.errorfile import write_error
def fail(rank):
    path = ctx.layout.files.error(rank)
    write_error(str(path), ValueError("bad batch"), {}, rank)
    ctx.fail(rank, path)
fake(32); ctx.start(); view.show()"""
PANEL = """\
import nbproc
def train(n, lr=0.1):
    "Train."
nbproc.panel(train, 2)"""

NAMED = {
    "button",
    "checkbox",
    "columnheader",
    "combobox",
    "form",
    "image",
    "log",
    "radio",
    "radiogroup",
    "search",
    "searchbox",
    "spinbutton",
    "splitter",
    "tab",
    "table",
    "tablist",
    "tabpanel",
    "textbox",
}

STRUCTURE = """(root) => {
  root = document.querySelector(root);
  const bad = [], all = [...root.querySelectorAll('*')];
  const ids = all.map((e) => e.id).filter(Boolean);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) bad.push(`two are called ${id}`);
  for (const e of all) {
    for (const name of ['aria-controls', 'aria-labelledby', 'aria-describedby', 'aria-activedescendant'])
      for (const id of (e.getAttribute(name) || '').split(' ').filter(Boolean))
        if (!document.getElementById(id)) bad.push(`${name} of ${e.className} leads to nothing: ${id}`);
    if (e.matches('[aria-hidden=true] :is(button, input, a, [tabindex])')) bad.push(`hidden, with focus: ${e.outerHTML}`);
    if (e.matches('button button, button input, a button')) bad.push(`one in another: ${e.outerHTML}`);
    const role = e.getAttribute('role');
    if (role === 'tab' && !e.closest('[role=tablist]')) bad.push('a tab that is in no list');
    if (role === 'row' && !e.closest('[role=table], [role=rowgroup]')) bad.push('a row that is in no table');
    if (role === 'cell' && e.parentElement.getAttribute('role') !== 'row') bad.push('a cell that is in no row');
    if (role === 'separator' && e.tabIndex >= 0 && !e.hasAttribute('aria-valuenow')) bad.push('a separator without value');
  }
  for (const list of root.querySelectorAll('[role=tablist]'))
    if ([...list.querySelectorAll('[role=tab]')].filter((e) => e.tabIndex === 0).length !== 1)
      bad.push('not one tab has the focus of its list');
  return bad }"""

FOCUS = """() => {
  const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
  const holder = e.closest('.nb-field, .nb-find, .np-stepper, .np-kind');
  const ring = (s) => s.outlineStyle !== 'none' || s.boxShadow !== 'none';
  const kind = e.matches('.np-kind input') ? getComputedStyle(e.nextElementSibling) : style;
  return {ours: Boolean(e.closest('.nb-run, .np')), name: e.getAttribute('aria-label') || e.innerText || e.id,
    shown: box.width > 0 && box.height > 0,
    ring: ring(style) || ring(kind) || Boolean(holder && ring(getComputedStyle(holder)))} }"""

EDGES = """(selectors) => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const lum = (c) => { const p = c.slice(0, 3).map((v) => { v /= 255;
    return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * p[0] + .7152 * p[1] + .0722 * p[2] };
  const over = (top, under) => { const a = top.length > 3 ? top[3] : 1; return under.map((u, i) => top[i] * a + u * (1 - a)) };
  const ground = (e) => { const list = []; for (; e; e = e.parentElement) list.unshift(parse(getComputedStyle(e).backgroundColor));
    return list.reduce((under, top) => over(top, under), [255, 255, 255]) };
  const bad = [];
  for (const [selector, what] of selectors) for (const e of document.querySelectorAll(selector)) {
    if (!e.getClientRects().length) continue;
    const under = ground(e.parentElement), style = getComputedStyle(e);
    const shadow = parse(style.boxShadow), fill = parse(style.backgroundColor);
    const colour = what === 'border' ? parse(style.borderTopColor) : fill[3] === 0 ? shadow.slice(0, 3) : fill;
    const [a, b] = [lum(over(colour, under)), lum(under)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (!(ratio >= 2.99)) bad.push(`${selector} ${e.className} ${e.dataset.state} ${ratio.toFixed(2)}`);
  }
  return bad }"""


def unnamed(book: Notebook, root: str) -> list[str]:
    """Return what the browser tells of to a screen reader without a name, though it needs one."""
    cdp = book.page.context.new_cdp_session(book.page)
    cdp.send("Accessibility.enable")
    found = cdp.send("Runtime.evaluate", {"expression": f"document.querySelector('{root}')"})["result"]
    nodes: list[dict[str, Any]] = cdp.send("Accessibility.queryAXTree", {"objectId": found["objectId"]})["nodes"]
    roles = {node["role"]["value"] for node in nodes if not node["ignored"]}
    assert {"button"} <= roles, roles
    cdp.detach()
    return [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] in NAMED
        and not str(node.get("name", {}).get("value", "")).strip()
    ]


def walk(book: Notebook, start: str, steps: int) -> list[str]:
    """Press Tab from an element on. Returns the names of what has the focus in turn, while that is ours."""
    book.page.locator(start).first.focus()
    names = []
    for _ in range(steps):
        at = book.page.evaluate(FOCUS)
        if not at["ours"]:
            break
        assert at["shown"], at
        assert at["ring"] or not names, at  # the first one got the focus without the keyboard
        names.append(at["name"])
        book.page.keyboard.press("Tab")
    return names


def test_everything_in_the_view_has_a_name_and_a_place(open_notebook: Opener) -> None:
    """Given a run of 32 ranks with a failure, when its tabs are opened, then all has names, and Tab leads through it."""
    book = open_notebook([SHOW])
    page = book.page
    book.run()
    book.idle()
    book.say("[ctx.write(r, f'line {r}\\n') for r in range(32)]; fail(7)")
    book.until(lambda: book.text(".nb-cause"), "the cause is shown")
    for tab in ("Overview", "Errors", "All", "Rank 7"):
        page.get_by_role("tab", name=tab, exact=True).click()
        book.until(
            lambda tab=tab: book.text(".nb-tabs [aria-selected=true]") == tab.removeprefix("Rank "), "it is open"
        )
        if tab == "All":
            page.get_by_role("button", name="Find", exact=True).click()
        assert unnamed(book, ".nb-run") == [], tab
        assert page.evaluate(STRUCTURE, ".nb-run") == [], tab
        if tab == "All":
            page.keyboard.press("Escape")
    names = walk(book, ".nb-marks .nb-mark", 30)
    assert names[0].startswith("rank 0: running")
    order = ["Stop", "Log of rank 7", "Rank 7", "Go to rank", "Filter lines", "Times", "Download the log"]
    order += ["Lines of the log", "Height"]
    assert [name for name in names if name in order] == order
    for dark in (False, True):
        book.theme(dark)
        wanted = "dark" if dark else "light"
        book.until(lambda wanted=wanted: page.query_selector(f".nb-run[data-theme={wanted}]"), f"the view is {wanted}")
        edges = [[".nb-run .nb-field", "border"], [".nb-run .nb-stop:enabled", "border"]]
        edges += [[f".nb-marks .nb-mark[data-state={state}]", "mark"] for state in ("running", "failed")]
        assert page.evaluate(EDGES, edges) == [], wanted


def test_everything_in_the_panel_has_a_name_and_a_place(open_notebook: Opener) -> None:
    """Given a panel with its options open and a mistake, then all has names, and Tab leads through it in order."""
    book = open_notebook([PANEL])
    page = book.page
    book.run()
    book.idle()
    book.until(lambda: page.query_selector(".np-form [id$=-arguments]:visible"), "the form is there", 60)
    page.get_by_role("button", name="Options").click()
    arguments = page.locator(".np-form").get_by_label("Arguments", exact=True)
    arguments.fill("1, lr=")
    book.until(lambda: arguments.get_attribute("aria-invalid") == "true", "the mistake is marked")
    described = arguments.get_attribute("aria-describedby")
    assert described
    assert "Not valid Python" in " ".join(book.text(f"[id='{name}']") for name in described.split())
    assert unnamed(book, ".np") == []
    assert page.evaluate(STRUCTURE, ".np") == []
    walk(book, ".np-kinds input", 40)
    for dark in (False, True):
        book.theme(dark)
        wanted = "dark" if dark else "light"
        book.until(lambda wanted=wanted: page.query_selector(f".np[data-theme={wanted}]"), f"the panel is {wanted}")
        assert page.evaluate(EDGES, [[".np-form > * .np-input:not(table *, .np-stepper *)", "border"]]) == [], wanted


def test_nothing_moves_for_somebody_who_wants_that(open_notebook: Opener) -> None:
    """Given a page that is to show no motion, then nothing in the view has a transition or an animation."""
    book = open_notebook([SHOW])
    book.page.emulate_media(reduced_motion="reduce")
    book.run()
    book.idle()
    book.until(lambda: book.page.query_selector(".nb-run"), "the view is there")
    moving = """[...document.querySelectorAll('.nb-run *')].filter((e) => { const s = getComputedStyle(e);
      return s.transitionDuration !== '0s' || s.animationName !== 'none' }).map((e) => e.className)"""
    assert book.page.evaluate(moving) == []
