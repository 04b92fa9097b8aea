// The lines of one rank or of all: the bar above them (filter, streams, copy ...), the list, the search.

import { plain } from "./ansi";
import { pattern, type Controls } from "./controls";
import { attr, button, eat, h, icon, on, text } from "./dom";
import { figure } from "./figure";
import { Finder } from "./find";
import { bytes, count, plural, timestamp } from "./format";
import { DISPLAY, ERR, OUT, Shown, type Lines, type Row, type Test } from "./lines";
import { list } from "./list";
import { floor, max, min, round, ticks } from "./numbers";
import { draw, DRAWN, matches, type Mark, type Theme } from "./paint";
import { PAGE, STREAM_NAMES, type RunStore } from "./store";

const SLICE = 8;

type Toggle = "regex" | "invert" | "out" | "err" | "time" | "wrap";

export interface LogPane {
  readonly bar: HTMLElement;
  readonly body: HTMLElement;
  /** Show the lines of a rank, or of all. */
  open(source: Lines): void;
  sync(): void;
  repaint(): void;
  /** Displays that have arrived are painted again. */
  refreshFigures(): void;
  /** The page has forgotten where the list was scrolled to. */
  reattached(): void;
  focusFilter(): void;
  focusLog(): void;
  openFind(focus?: boolean): void;
  selectAll(): void;
  /** Returns true if the key meant something here. */
  key(event: KeyboardEvent): boolean;
}

export function logPane(
  store: RunStore,
  controls: Controls,
  theme: Theme,
  schedule: () => void,
  changed: () => void,
): LogPane {
  let source = store.all;
  let shown = new Shown(source, null);
  let filter: RegExp | null = null;
  let search: RegExp | null = null;
  let finder: Finder | null = null;
  let columns = 120;
  let digits = 1;
  let measured = { width: 7.2, height: 18 };
  let measuredAt = -Infinity;
  let olderKey = "";
  let selectedAll = false;
  const toggles = new Map<Toggle, HTMLButtonElement>();

  const rows = list({ paint, guess, measure, width }, 18, () => {
    if (rows.follow && typeof controls.tab === "number") store.settle(controls.tab);
    schedule();
  });

  // Controls

  /** A button with a picture or a word; its title without the key is its name. */
  function tool(mark: Node | string, title: string, click: () => void, classes = ".tool"): HTMLButtonElement {
    return button(classes, { title, "aria-label": title.replace(/ \(.*/, ""), click }, mark);
  }

  function toggle(name: Toggle, mark: Node | string, title: string): HTMLButtonElement {
    const made = tool(mark, title, () => flip(name));
    toggles.set(name, made);
    return made;
  }

  function field(classes: string, words: string, name: string, input: () => void, keydown: (key: KeyboardEvent) => void) {
    return h(`input${classes as ""}`, {
      type: "search",
      placeholder: words,
      "aria-label": name,
      spellcheck: "false",
      input,
      keydown,
    });
  }

  const filterInput = field(
    ".filter",
    "Filter",
    "Filter lines",
    () => setFilter(filterInput.value),
    (event) => {
      const { key } = event;
      if (key === "Escape" && filterInput.value) setFilter((filterInput.value = ""));
      else if (key === "Escape" || key === "Enter") rows.box.focus();
      else return;
      eat(event);
    },
  );
  filterInput.value = controls.filter;
  const findInput = field("", "Find", "Find in lines", research, (event) => {
    const { key } = event;
    if (key === "Enter") step(event.shiftKey ? -1 : 1);
    else if (key === "Escape") closeFind();
    else return;
    eat(event);
  });
  findInput.value = controls.find;
  const counted = h("span.count", { role: "status" });
  const findCount = h("span.count", { role: "status" });
  const findBar = h(
    "div.find",
    { role: "search", hidden: true },
    findInput,
    findCount,
    tool(icon("up"), "Previous (Shift+Enter)", () => step(-1)),
    tool(icon("down"), "Next (Enter)", () => step(1)),
    tool(icon("close"), "Close (Escape)", closeFind),
  );
  const bar = h(
    "div.tools",
    { role: "toolbar", "aria-label": "Lines" },
    counted,
    h(
      "span.field",
      filterInput,
      toggle("regex", ".*", "Filter is a regular expression"),
      toggle("invert", "not", "Show the lines that do not match"),
    ),
    h("span.group", toggle("out", "out", "Lines of stdout"), toggle("err", "err", "Lines of stderr")),
    h(
      "span.group",
      toggle("time", icon("time"), "Times (t)"),
      toggle("wrap", icon("wrap"), "Wrap long lines (w)"),
      tool(icon("find"), "Find (Ctrl+F)", openFind),
      tool(icon("copy"), "Copy all lines shown here", () => void copyAll()),
      tool(icon("save"), "Download the log", () => void download()),
    ),
  );
  const jump = tool(icon("end"), "Jump to the end (End)", rows.toEnd, ".jump");
  jump.append("Jump to the end");
  const empty = h("div.empty");
  const older = h("div.older", { hidden: true });
  const said = h("span.said", { role: "status" });
  const body = h("div.pane", older, h("div.sheet", rows.box, empty, findBar, jump, said));
  on(rows.box, "copy", copySelection);
  on(rows.box, "click", clicked);

  function flip(name: Toggle): void {
    controls[name] = !controls[name];
    if (name === "time" || name === "wrap") {
      press();
      rows.remeasure();
      changed();
      schedule();
    } else refilter();
  }

  function press(): void {
    for (const [name, made] of toggles) attr(made, "aria-pressed", `${controls[name]}`);
    rows.box.classList.toggle("nb-wrap", controls.wrap);
  }

  function setFilter(words: string): void {
    controls.filter = words;
    refilter();
  }

  function refilter(): void {
    press();
    const wanted = pattern(controls.filter, controls.regex);
    const wrong = wanted instanceof Error;
    attr(filterInput, "aria-invalid", wrong ? "true" : null);
    filterInput.title = wrong ? wanted.message : "Filter lines (/)";
    filter = wrong ? null : wanted;
    shown = new Shown(source, test());
    rows.show(shown);
    research();
  }

  function test(): Test | null {
    const { out, err, invert, regex } = controls;
    const wanted = filter;
    if (!wanted && out && err) return null;
    const simple = wanted && !regex && wanted.flags === "g" ? controls.filter : "";
    return ({ stream, text: line }) => {
      if (stream === OUT ? !out : stream === ERR && !err) return false;
      if (!wanted) return true;
      if (stream === DISPLAY) return false;
      if (simple) return plain(line).includes(simple) !== invert;
      wanted.lastIndex = 0;
      return wanted.test(plain(line)) !== invert;
    };
  }

  // Painting

  function sync(): void {
    digits = `${max(0, store.ranks.length - 1)}`.length;
    fit();
    let done = rows.sync(SLICE);
    if (finder) {
      const fresh = finder.at < 0;
      const found = finder.pump(shown.rows, SLICE);
      done &&= found;
      if (fresh && found && finder.count && findInput === document.activeElement) {
        step(1, false);
        rows.sync(SLICE); // the hit that is counted is also marked
      }
      tellFind();
    }
    const { total } = shown;
    const { size } = shown.rows;
    const narrowed = size !== total || filter;
    text(counted, narrowed ? `${count(size)} of ${count(total)}` : plural(total, "line"));
    attr(counted, "data-narrowed", narrowed ? "" : null);
    jump.hidden = rows.follow || !size;
    empty.hidden = size > 0;
    text(empty, total ? "No line matches." : store.over ? "Nothing was written." : "Nothing yet.");
    tellOlder();
    if (!done) schedule();
  }

  /** Find out how large a character is, and how many stand in a line. */
  function fit(): void {
    const { box } = rows;
    if (!box.clientWidth) return;
    if (ticks() - measuredAt > 2_000) {
      const probe = h("div.row", { style: "position:absolute;visibility:hidden" }, "0".repeat(100));
      box.append(probe);
      const { width, height } = probe.getBoundingClientRect();
      probe.remove();
      measured = { width: (width - 20) / 100 || 7.2, height: round(height) || 18 };
      measuredAt = ticks();
    }
    rows.setRowHeight(measured.height);
    const gutter = (controls.tab === "all" ? digits + 2 : 0) + (controls.time ? 14 : 0);
    const now = max(20, floor((box.clientWidth - 22) / measured.width) - gutter);
    if (now !== columns) {
      columns = now;
      if (controls.wrap) rows.remeasure();
    }
  }

  function guess({ stream, gap, text: line }: Row): number {
    const { height } = measured;
    if (stream === DISPLAY && !gap) return line ? height * 2 : 0;
    return controls.wrap ? height * max(1, Math.ceil(line.length / columns)) : height;
  }

  function measure({ stream, gap, text: line }: Row): boolean {
    return stream === DISPLAY ? !gap && line !== "" : controls.wrap;
  }

  function width({ stream, text: line }: Row): number {
    return controls.wrap || stream === DISPLAY ? 0 : min(DRAWN, line.length) + 24;
  }

  function paint(element: HTMLElement, row: Row, index: number): void {
    const all = controls.tab === "all";
    const { rank, stream, gap, text: line } = row;
    if (gap) {
      element.className = "nb-row nb-gap";
      element.replaceChildren(
        `${plural(gap, "line")} ${line ? "could not be read" : "not shown here"} `,
        line || !store.ready || all ? "" : button(".link", { "data-gap": index }, `load ${count(min(PAGE, gap))}`),
      );
      return;
    }
    element.className = stream === ERR ? "nb-row nb-err" : "nb-row";
    element.replaceChildren();
    if (all) element.append(h(`span.rank.r${(rank % 8) as 0}`, { style: `min-width:${digits}ch` }, `${rank}`));
    if (controls.time) element.append(h("span.time", timestamp(row.time)));
    const words = h(stream === DISPLAY ? "div.display" : "span.text");
    element.append(words);
    if (stream === DISPLAY) {
      element.classList.add("nb-shown");
      element.hidden = !line;
      figure(words, row, store, theme, schedule);
    } else draw(words, line, theme, marks(line, index), controls.wrap ? Infinity : DRAWN);
  }

  function marks(line: string, index: number): Mark[] {
    const expression = search ?? (controls.invert ? null : filter);
    if (!expression) return [];
    const current = finder?.current;
    return matches(expression, plain(line)).map(([start, end], nth) => ({
      start,
      end,
      kind: !search ? "found" : current?.index === index && current.nth === nth ? "current" : "hit",
    }));
  }

  // Older lines

  function tellOlder(): void {
    const { tab } = controls;
    const parts: HTMLElement[] = [];
    if (typeof tab === "number") {
      for (const stream of [OUT, ERR]) {
        const n = store.older(tab, stream);
        const load = min(PAGE, n);
        const click = (): void => {
          rows.unfollow();
          store.askPage(tab, stream, n - load, load);
        };
        if (!n) continue;
        const words = `${plural(n, "older line")} in ${STREAM_NAMES[stream]}.log`;
        parts.push(h("span", words, store.ready && button(".link", { click }, `load ${count(load)}`)));
      }
    } else if (source.first) {
      parts.push(h("span", `${plural(source.first, "older line")} not shown here; open a rank to read its log`));
    }
    const key = `${tab}${parts.map((part) => part.textContent)}`;
    if (olderKey === key) return;
    olderKey = key;
    older.hidden = !parts.length;
    older.replaceChildren(...parts);
  }

  function clicked(event: Event): void {
    const gap = (event.target as HTMLElement).dataset.gap;
    const row = gap && shown.rows.at(+gap);
    if (row && row.gap) store.askPage(row.rank, row.stream, row.n, min(PAGE, row.gap));
  }

  // Find

  function openFind(): void {
    controls.finding = true;
    findBar.hidden = false;
    const chosen = `${document.getSelection() ?? ""}`;
    if (chosen && !chosen.includes("\n")) findInput.value = chosen;
    focusOn(findInput);
    research();
  }

  function closeFind(): void {
    controls.finding = false;
    research();
    rows.box.focus();
  }

  function research(): void {
    const { finding } = controls;
    findBar.hidden = !finding;
    if (finding) controls.find = findInput.value;
    const wanted = finding ? pattern(controls.find, false) : null;
    search = wanted instanceof Error ? null : wanted;
    finder = search && new Finder(search);
    rows.repaint();
    tellFind();
    changed();
    schedule();
  }

  function step(by: 1 | -1, move = true): void {
    if (!finder) return;
    finder.pump(shown.rows, 200);
    if (move || finder.at < 0) finder.step(by, rows.topIndex());
    const { current } = finder;
    if (current) rows.reveal(current.index);
    rows.repaint();
    tellFind();
    schedule();
  }

  function tellFind(): void {
    const n = finder ? finder.count : -1;
    const at = finder && finder.at >= 0 ? `${count(finder.at + 1)} of ` : "";
    text(findCount, n < 0 ? "" : n ? at + count(n) : "none");
  }

  // Keyboard

  function focusOn(input: HTMLInputElement): void {
    input.focus();
    input.select();
  }

  function key({ key: pressed }: KeyboardEvent): boolean {
    if (pressed === "/") focusOn(filterInput);
    else if (pressed === "w") flip("wrap");
    else if (pressed === "t") flip("time");
    else if (pressed === "n") step(1);
    else if (pressed === "N") step(-1);
    else if (pressed === "End" || pressed === "G") rows.toEnd();
    else if (pressed === "Home") rows.toStart();
    else if (pressed === "Escape" && controls.finding) closeFind();
    else return false;
    return true;
  }

  // Copy and download

  function wholeText(): string {
    shown.pump(5_000);
    let words = "";
    for (const { gap, stream, rank, time, text: line } of shown.rows.list()) {
      if (gap || stream === DISPLAY) continue;
      if (controls.tab === "all") words += `${rank}  `;
      if (controls.time) words += `${timestamp(time)}  `;
      words += `${plain(line)}\n`;
    }
    return words;
  }

  async function copyAll(): Promise<void> {
    const words = wholeText();
    const { size } = shown.rows;
    try {
      await navigator.clipboard.writeText(words);
    } catch {
      const area = h("textarea", { style: "position:fixed;opacity:0" });
      area.value = words;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say(`Copied ${plural(size, "line")}`);
  }

  function say(words: string): void {
    text(said, words);
    said.classList.add("nb-on");
    setTimeout(() => said.classList.remove("nb-on"), 2_500);
  }

  function selectAll(): void {
    document.getSelection()?.selectAllChildren(rows.box);
    selectedAll = true;
    const forget = (): void => void (selectedAll = false);
    setTimeout(() => on(document, "selectionchange", forget, { once: true }), 100);
    say("All lines are selected");
  }

  function copySelection(event: ClipboardEvent): void {
    const selection = document.getSelection();
    if (!event.clipboardData || !selection || selection.isCollapsed) return;
    const { startContainer, startOffset, endContainer, endOffset } = selection.getRangeAt(0);
    const lines: string[] = [];
    for (const part of selectedAll ? [] : rows.box.querySelectorAll(".nb-text")) {
      if (!selection.containsNode(part, true)) continue;
      const piece = document.createRange();
      piece.selectNodeContents(part);
      if (part.contains(startContainer)) piece.setStart(startContainer, startOffset);
      if (part.contains(endContainer)) piece.setEnd(endContainer, endOffset);
      lines.push(`${piece}`);
    }
    event.clipboardData.setData("text/plain", selectedAll ? wholeText() : lines.join("\n"));
    eat(event);
  }

  async function download(): Promise<void> {
    const { tab } = controls;
    const name = store.snap!.name;
    if (typeof tab !== "number" || !store.ready) {
      save([wholeText()], typeof tab === "number" ? `${name}-${tab}` : name);
      return;
    }
    for (const stream of [OUT, ERR]) {
      if (!store.ranks[tab]!.next[stream]) continue;
      try {
        const pieces = await store.file(tab, stream, (done, size) => say(`${bytes(done)} of ${bytes(size)}`));
        save(pieces as BlobPart[], `${name}-${tab}-${STREAM_NAMES[stream]}`);
      } catch (error) {
        say(`not downloaded: ${(error as Error).message}`);
        return;
      }
    }
  }

  refilter();

  return {
    bar,
    body,
    sync,
    openFind,
    selectAll,
    key,
    repaint() {
      measuredAt = -Infinity;
      rows.repaint();
    },
    reattached: rows.reattached,
    focusFilter: () => focusOn(filterInput),
    focusLog: () => rows.box.focus(),
    open(lines) {
      if (lines === source) return;
      source = lines;
      rows.follow = true;
      refilter();
    },
    refreshFigures() {
      for (const [row, { element }] of rows.painted) {
        const holder = element.querySelector<HTMLElement>(".nb-display");
        if (holder) figure(holder, row, store, theme, schedule);
      }
    },
  };
}

function save(pieces: BlobPart[], name: string): void {
  const url = URL.createObjectURL(new Blob(pieces, { type: "text/plain" }));
  h("a", { href: url, download: `${name}.log` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
