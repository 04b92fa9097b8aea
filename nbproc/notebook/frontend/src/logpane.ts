// The lines of one rank or of all: the bar above them (filter, streams, copy ...), the list, the search.

import { plain } from "./ansi";
import { pattern, type Controls } from "./controls";
import { attr, h, icon, text } from "./dom";
import { figure } from "./figure";
import { Finder } from "./find";
import { bytes, count, plural, timestamp } from "./format";
import { DISPLAY, ERR, OUT, Shown, type Lines, type Row, type Test } from "./lines";
import { List } from "./list";
import { draw, DRAWN, matches, type Mark, type Theme } from "./paint";
import { PAGE, STREAM_NAMES, type RunStore } from "./store";

const SLICE = 8;

export class LogPane {
  readonly bar: HTMLElement;
  readonly body: HTMLElement;
  private list: List;
  private shown: Shown;
  private source: Lines;
  private filter: RegExp | null = null;
  private finder: Finder | null = null;
  private painted = "";
  private columns = 120;
  private digits = 1;
  private input = h("input", {
    type: "search",
    class: "nb-filter",
    placeholder: "Filter",
    "aria-label": "Filter lines",
    title: "Filter lines (/)",
    spellcheck: "false",
  });
  private counted = h("span", { class: "nb-count", role: "status" });
  private toggles = new Map<string, HTMLButtonElement>();
  private findBar: HTMLElement;
  private findInput = h("input", {
    type: "search",
    placeholder: "Find",
    "aria-label": "Find in lines",
    spellcheck: "false",
  });
  private findCount = h("span", { class: "nb-count", role: "status" });
  private jump: HTMLButtonElement;
  private empty = h("div", { class: "nb-empty" });
  private older = h("div", { class: "nb-older", hidden: true });
  private said = h("span", { class: "nb-said", role: "status" });

  constructor(
    private store: RunStore,
    private controls: Controls,
    private theme: Theme,
    private schedule: () => void,
    private changed: () => void,
  ) {
    this.source = store.all;
    this.shown = new Shown(this.source, null);
    this.list = new List(this, 18, () => {
      if (this.list.follow && typeof controls.tab === "number") store.settle(controls.tab);
      schedule();
    });
    this.jump = this.button("Jump to the end", "end", "Jump to the end (End)", () => this.list.toEnd(), "nb-jump");
    this.input.value = controls.filter;
    this.input.addEventListener("input", () => {
      controls.filter = this.input.value;
      this.refilter();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.input.value) {
        this.input.value = controls.filter = "";
        this.refilter();
        event.preventDefault();
      } else if (event.key === "Escape" || event.key === "Enter") this.list.box.focus();
      else return;
      event.stopPropagation();
    });
    this.bar = h(
      "div",
      { class: "nb-tools", role: "toolbar", "aria-label": "Lines" },
      this.counted,
      h(
        "span",
        { class: "nb-field" },
        this.input,
        this.toggle("regex", ".*", "Filter is a regular expression"),
        this.toggle("invert", "not", "Show the lines that do not match"),
      ),
      h(
        "span",
        { class: "nb-group" },
        this.toggle("out", "out", "Lines of stdout"),
        this.toggle("err", "err", "Lines of stderr"),
      ),
      h(
        "span",
        { class: "nb-group" },
        this.toggle("time", icon("time"), "Times (t)"),
        this.toggle("wrap", icon("wrap"), "Wrap long lines (w)"),
        this.button("", "find", "Find (Ctrl+F)", () => this.openFind()),
        this.button("", "copy", "Copy all lines shown here", () => void this.copyAll()),
        this.button("", "save", "Download the log", () => void this.download()),
      ),
    );
    this.findInput.addEventListener("input", () => this.research());
    this.findInput.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") this.closeFind();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.findBar = h(
      "div",
      { class: "nb-find", role: "search", hidden: true },
      this.findInput,
      this.findCount,
      this.button("", "up", "Previous (Shift+Enter)", () => this.step(-1)),
      this.button("", "down", "Next (Enter)", () => this.step(1)),
      this.button("", "close", "Close (Escape)", () => this.closeFind()),
    );
    this.body = h(
      "div",
      { class: "nb-pane" },
      this.older,
      h("div", { class: "nb-sheet" }, this.list.box, this.empty, this.findBar, this.jump, this.said),
    );
    this.list.box.addEventListener("copy", (event) => this.copySelection(event));
    this.list.box.addEventListener("click", (event) => this.clicked(event));
    if (controls.finding) this.openFind(false);
    this.refilter();
  }

  // Controls

  private button(
    label: string,
    mark: Parameters<typeof icon>[0],
    title: string,
    click: () => void,
    name = "nb-tool",
  ): HTMLButtonElement {
    const words = label || title.replace(/ \(.*/, "");
    const button = h("button", { type: "button", class: name, title, "aria-label": words, click }, icon(mark));
    if (label) button.append(label);
    return button;
  }

  private toggle(name: "regex" | "invert" | "out" | "err" | "time" | "wrap", mark: Node | string, title: string) {
    const flip = (): void => this.flip(name);
    const words = title.replace(/ \(.*/, "");
    const button = h("button", { type: "button", class: "nb-tool", title, "aria-label": words, click: flip }, mark);
    this.toggles.set(name, button);
    return button;
  }

  flip(name: "regex" | "invert" | "out" | "err" | "time" | "wrap"): void {
    this.controls[name] = !this.controls[name];
    if (name === "time" || name === "wrap") {
      this.list.remeasure();
      this.changed();
      this.schedule();
    } else this.refilter();
  }

  /** Show the lines of a rank, or of all. */
  open(source: Lines): void {
    if (source === this.source) return;
    this.source = source;
    this.list.follow = true;
    this.refilter();
  }

  private refilter(): void {
    const { controls } = this;
    for (const [name, button] of this.toggles) {
      attr(button, "aria-pressed", String(controls[name as "out"]));
    }
    const wanted = pattern(controls.filter, controls.regex);
    const wrong = wanted instanceof Error;
    attr(this.input, "aria-invalid", wrong ? "true" : null);
    this.input.title = wrong ? wanted.message : "Filter lines (/)";
    this.filter = wrong ? null : wanted;
    this.shown = new Shown(this.source, this.test());
    this.list.show(this.shown);
    this.research();
    this.changed();
    this.schedule();
  }

  private test(): Test | null {
    const { filter, controls } = this;
    const { out, err, invert } = controls;
    if (!filter && out && err) return null;
    const simple = filter && !controls.regex && filter.flags === "g" ? controls.filter : "";
    return (row) => {
      if (row.stream === OUT && !out) return false;
      if (row.stream === ERR && !err) return false;
      if (!filter) return true;
      if (row.stream === DISPLAY) return false;
      const line = plain(row.text);
      if (simple) return line.includes(simple) !== invert;
      filter.lastIndex = 0;
      return filter.test(line) !== invert;
    };
  }

  // Painting

  sync(): void {
    this.columnsNow();
    const { store, controls } = this;
    this.digits = String(Math.max(0, store.ranks.length - 1)).length;
    const done = this.list.sync(SLICE);
    let found = true;
    if (this.finder) {
      const before = this.finder.at;
      found = this.finder.pump(this.shown.rows, SLICE);
      if (before < 0 && found && this.finder.count && this.findInput === document.activeElement) {
        this.step(1, false);
      }
      this.tellFind();
    }
    const { rows, total } = this.shown;
    const narrowed = rows.size !== total || this.filter;
    text(this.counted, narrowed ? `${count(rows.size)} of ${count(total)}` : plural(total, "line"));
    attr(this.counted, "data-narrowed", narrowed ? "" : null);
    this.jump.hidden = this.list.follow;
    this.empty.hidden = rows.size > 0;
    if (!rows.size) text(this.empty, total ? "No line matches." : store.over ? "Nothing was written." : "Nothing yet.");
    this.tellOlder();
    const key = `${controls.wrap}`;
    if (key !== this.painted) {
      this.painted = key;
      this.list.box.classList.toggle("nb-wrap", controls.wrap);
    }
    if (!done || !found) this.schedule();
  }

  private columnsNow(): void {
    const { clientWidth } = this.list.box;
    if (!clientWidth) return;
    const probe = this.probe();
    const columns = Math.max(20, Math.floor((clientWidth - this.gutter(probe)) / probe.width));
    this.list.setRowHeight(probe.height);
    if (columns !== this.columns) {
      this.columns = columns;
      if (this.controls.wrap) this.list.remeasure();
    }
  }

  private measured: { width: number; height: number; at: number } | null = null;

  private probe(): { width: number; height: number } {
    if (!this.measured || performance.now() - this.measured.at > 2_000) {
      const element = h("div", { class: "nb-row", style: "position:absolute;visibility:hidden" }, "0".repeat(100));
      this.list.box.append(element);
      const { width, height } = element.getBoundingClientRect();
      element.remove();
      this.measured = { width: (width - 20) / 100 || 7.2, height: Math.round(height) || 18, at: performance.now() };
    }
    return this.measured;
  }

  private gutter(probe: { width: number }): number {
    const { controls } = this;
    return 22 + ((controls.tab === "all" ? this.digits + 2 : 0) + (controls.time ? 14 : 0)) * probe.width;
  }

  guess(row: Row): number {
    const height = this.measured?.height ?? 18;
    if (row.stream === DISPLAY && !row.gap) return row.text ? height * 2 : 0;
    if (!this.controls.wrap) return height;
    return height * Math.max(1, Math.ceil(row.text.length / this.columns));
  }

  measure(row: Row): boolean {
    return row.stream === DISPLAY ? !row.gap && row.text !== "" : this.controls.wrap;
  }

  width(row: Row): number {
    if (this.controls.wrap || row.stream === DISPLAY) return 0;
    return Math.min(DRAWN, row.text.length) + 24;
  }

  paint(element: HTMLElement, row: Row, index: number): void {
    const { controls } = this;
    element.className = `nb-row${row.stream === ERR ? " nb-err" : ""}`;
    if (row.gap) {
      const words = `${plural(row.gap, "line")} not shown here`;
      element.classList.add("nb-gap");
      element.replaceChildren(
        h("span", {}, row.text ? `${plural(row.gap, "line")} could not be read` : words),
        !row.text && this.store.ready && controls.tab !== "all"
          ? h("button", { type: "button", class: "nb-link", "data-gap": index }, `load ${count(Math.min(PAGE, row.gap))}`)
          : "",
      );
      return;
    }
    const parts: HTMLElement[] = [];
    if (controls.tab === "all") {
      const prefix = h("span", { class: `nb-rank r${row.rank % 8}`, "data-rank": row.rank }, String(row.rank));
      prefix.style.minWidth = `${this.digits}ch`;
      parts.push(prefix);
    }
    if (controls.time) parts.push(h("span", { class: "nb-time" }, timestamp(row.time)));
    if (row.stream === DISPLAY) {
      const holder = h("div", { class: "nb-display" });
      figure(holder, row, this.store, this.theme, () => this.schedule());
      element.classList.add("nb-shown");
      element.hidden = !row.text;
      element.replaceChildren(...parts, holder);
      return;
    }
    const words = h("span", { class: "nb-text" });
    draw(words, row.text, this.theme, this.marks(row, index), controls.wrap ? Infinity : DRAWN);
    element.replaceChildren(...parts, words);
  }

  private marks(row: Row, index: number): Mark[] {
    const marks: Mark[] = [];
    const line = this.filter || this.finder ? plain(row.text) : "";
    if (this.finder && this.search) {
      const current = this.finder.current;
      matches(this.search, line).forEach(([start, end], nth) => {
        marks.push({ start, end, kind: current?.index === index && current.nth === nth ? "current" : "hit" });
      });
    } else if (this.filter && !this.controls.invert) {
      for (const [start, end] of matches(this.filter, line)) marks.push({ start, end, kind: "found" });
    }
    return marks;
  }

  /** The page has forgotten where the list was scrolled to. */
  reattached(): void {
    this.list.reattached();
  }

  repaint(): void {
    this.measured = null;
    this.list.repaint();
  }

  // Displays that have arrived are painted again

  refreshFigures(): void {
    for (const [row, { element }] of this.list.painting()) {
      const holder = row.stream === DISPLAY ? element.querySelector<HTMLElement>(".nb-display") : null;
      if (holder) figure(holder, row, this.store, this.theme, () => this.schedule());
    }
  }

  // Older lines

  private tellOlder(): void {
    const rank = this.controls.tab;
    const { store } = this;
    const parts: HTMLElement[] = [];
    let key = "";
    if (typeof rank === "number") {
      for (const stream of [OUT, ERR]) {
        const n = store.older(rank, stream);
        if (!n) continue;
        const name = STREAM_NAMES[stream]!;
        key += `${n}${name}${store.ready}`;
        const load = Math.min(PAGE, n);
        parts.push(
          h(
            "span",
            {},
            `${plural(n, "older line")} in ${name}.log`,
            store.ready &&
              h(
                "button",
                { type: "button", class: "nb-link", click: () => this.loadOlder(rank, stream, n - load, load) },
                `load ${count(load)}`,
              ),
          ),
        );
      }
    } else {
      const n = store.all.first;
      key = n ? `${n}` : "";
      if (n) parts.push(h("span", {}, `${plural(n, "older line")} not shown here; open a rank to read its log`));
    }
    if (this.older.dataset.key === key) return;
    this.older.dataset.key = key;
    this.older.hidden = !parts.length;
    this.older.replaceChildren(...parts);
  }

  private loadOlder(rank: number, stream: number, first: number, n: number): void {
    this.list.unfollow();
    this.store.askPage(rank, stream, first, n);
  }

  private clicked(event: Event): void {
    const target = event.target as Element;
    const gap = target.closest<HTMLElement>("[data-gap]");
    const rank = this.controls.tab;
    if (gap && typeof rank === "number") {
      const row = this.shown.rows.at(Number(gap.dataset.gap));
      if (row?.gap) this.store.askPage(rank, row.stream, row.n, Math.min(PAGE, row.gap));
    }
  }

  // Find

  private search: RegExp | null = null;

  openFind(focus = true): void {
    this.controls.finding = true;
    this.findBar.hidden = false;
    if (this.findInput.value !== this.controls.find) this.findInput.value = this.controls.find;
    const chosen = String(document.getSelection() ?? "");
    if (focus && chosen && !chosen.includes("\n")) this.findInput.value = chosen;
    if (focus) {
      this.findInput.focus();
      this.findInput.select();
    }
    this.research();
  }

  closeFind(): void {
    this.controls.finding = false;
    this.findBar.hidden = true;
    this.research();
    this.list.box.focus();
  }

  private research(): void {
    const { controls } = this;
    if (controls.finding) controls.find = this.findInput.value;
    const wanted = controls.finding ? pattern(controls.find, false) : null;
    this.search = wanted instanceof Error ? null : wanted;
    this.finder = this.search ? new Finder(this.search) : null;
    this.list.repaint();
    this.tellFind();
    this.changed();
    this.schedule();
  }

  step(by: 1 | -1, move = true): void {
    const { finder } = this;
    if (!finder) return;
    finder.pump(this.shown.rows, 200);
    if (move || finder.at < 0) finder.step(by, this.list.topIndex());
    const current = finder.current;
    if (current) this.list.reveal(current.index);
    this.list.repaint();
    this.tellFind();
    this.schedule();
  }

  private tellFind(): void {
    const { finder } = this;
    text(
      this.findCount,
      !finder ? "" : finder.count ? `${finder.at < 0 ? "" : `${count(finder.at + 1)} of `}${count(finder.count)}` : "none",
    );
  }

  // Keyboard

  focusFilter(): void {
    this.input.focus();
    this.input.select();
  }

  focusLog(): void {
    this.list.box.focus();
  }

  /** Returns true if the key meant something here. */
  key(event: KeyboardEvent): boolean {
    if (event.key === "/") this.focusFilter();
    else if (event.key === "w") this.flip("wrap");
    else if (event.key === "t") this.flip("time");
    else if (event.key === "n" || event.key === "N") this.step(event.key === "n" ? 1 : -1);
    else if (event.key === "End" || event.key === "G") this.list.toEnd();
    else if (event.key === "Home") this.list.toStart();
    else if (event.key === "Escape" && this.controls.finding) this.closeFind();
    else return false;
    return true;
  }

  // Copy and download

  private line(row: Row): string {
    const parts: string[] = [];
    if (this.controls.tab === "all") parts.push(String(row.rank));
    if (this.controls.time) parts.push(timestamp(row.time));
    parts.push(plain(row.text));
    return parts.join("  ");
  }

  private wholeText(): string {
    this.shown.pump(5_000);
    const lines = this.shown.rows.list().filter((row) => !row.gap && row.stream !== DISPLAY);
    return lines.map((row) => this.line(row)).join("\n") + "\n";
  }

  async copyAll(): Promise<void> {
    const all = this.wholeText();
    const lines = this.shown.rows.size;
    await copy(all);
    this.say(`Copied ${plural(lines, "line")}`);
  }

  private say(words: string): void {
    text(this.said, words);
    this.said.classList.add("nb-on");
    setTimeout(() => this.said.classList.remove("nb-on"), 2_500);
  }

  private selectedAll = false;

  selectAll(): void {
    document.getSelection()?.selectAllChildren(this.list.box);
    this.selectedAll = true;
    const forget = (): void => void (this.selectedAll = false);
    setTimeout(() => document.addEventListener("selectionchange", forget, { once: true }), 100);
    this.say("All lines are selected");
  }

  private copySelection(event: ClipboardEvent): void {
    const selection = document.getSelection();
    if (!event.clipboardData || !selection || selection.isCollapsed) return;
    let words: string;
    if (this.selectedAll) words = this.wholeText();
    else {
      const range = selection.getRangeAt(0);
      const lines: string[] = [];
      for (const element of this.list.box.querySelectorAll<HTMLElement>(".nb-row")) {
        const part = element.querySelector(".nb-text");
        if (!part || !range.intersectsNode(part)) continue;
        const piece = document.createRange();
        piece.selectNodeContents(part);
        if (part.contains(range.startContainer)) piece.setStart(range.startContainer, range.startOffset);
        if (part.contains(range.endContainer)) piece.setEnd(range.endContainer, range.endOffset);
        lines.push(piece.toString());
      }
      words = lines.join("\n");
    }
    event.clipboardData.setData("text/plain", words);
    event.preventDefault();
    event.stopPropagation();
  }

  async download(): Promise<void> {
    const { store, controls } = this;
    const name = store.snap?.name ?? "run";
    const rank = controls.tab;
    if (typeof rank !== "number" || !store.ready) {
      save([new TextEncoder().encode(this.wholeText())], `${name}${typeof rank === "number" ? `-${rank}` : ""}.log`);
      return;
    }
    for (const stream of [OUT, ERR]) {
      if (!store.ranks[rank]?.next[stream]) continue;
      try {
        const pieces = await store.file(rank, stream, (done, size) => this.say(`${bytes(done)} of ${bytes(size)}`));
        save(pieces, `${name}-${rank}-${STREAM_NAMES[stream]}.log`);
      } catch (error) {
        this.say(`not downloaded: ${(error as Error).message}`);
        return;
      }
    }
  }
}

async function copy(words: string): Promise<void> {
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
}

function save(pieces: Uint8Array[], name: string): void {
  const url = URL.createObjectURL(new Blob(pieces as BlobPart[], { type: "text/plain" }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
