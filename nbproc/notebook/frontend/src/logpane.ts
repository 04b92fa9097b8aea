// The lines of one rank or of all: the bar above them, the list, what is older or missing, the search.

import { plain } from "./ansi";
import { pattern, type Controls } from "./controls";
import { attr, button, h, icon, on, text } from "./dom";
import { displayed, figure } from "./figure";
import { count, plural } from "./format";
import { DISPLAY, ERR, OUT, Shown, type Lines, type Test } from "./lines";
import { list } from "./list";
import { min } from "./numbers";
import { marksOf, rowPainter } from "./rows";
import { search } from "./search";
import { PAGE, STREAM_NAMES, type RunStore } from "./store";
import { taking } from "./taking";
import type { Theme } from "./theme";
import { tool, tools, type Toggle } from "./tools";

const SLICE = 8;

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
  openFind(): void;
  selectAll(): void;
  /** Returns true if the key meant something here. */
  key(event: KeyboardEvent): boolean;
}

/** `say` tells the reader something for some time; `changed` is called when a control was used. */
export function logPane(
  store: RunStore,
  controls: Controls,
  theme: Theme,
  say: (words: string, time?: number) => void,
  schedule: () => void,
  changed: () => void,
): LogPane {
  let source = store.all;
  let shown = new Shown(source, null);
  let filter: RegExp | null = null;
  let wrong = false;
  let olderKey = "";

  const painter = rowPainter(store, controls, theme, marks, schedule);
  const rows = list(painter, 18, () => {
    if (rows.follow && typeof controls.tab === "number") store.settle(controls.tab);
    schedule();
  });
  const finding = search(
    controls,
    rows,
    () => shown.rows,
    () => {
      changed();
      schedule();
    },
  );
  const { copyAll, download, selectAll } = taking(store, controls, rows.box, () => shown, say);
  const { bar, counted, filter: filterInput, press } = tools(controls, {
    filtered: refilter,
    flipped,
    leave: () => rows.box.focus(),
    find: finding.open,
    copy: copyAll,
    download,
  });
  const jump = tool(icon("end"), "Jump to the end (End)", rows.toEnd, ".jump");
  jump.append("Jump to the end");
  const empty = h("div.empty");
  const older = h("div.older", { hidden: true });
  const body = h("div.pane", older, h("div.sheet", finding.bar, rows.box, empty, jump));
  on(rows.box, "click", clicked);

  // The filter

  function flipped(name: Toggle): void {
    if (name !== "time" && name !== "wrap") return refilter();
    rows.box.classList.toggle("nb-wrap", controls.wrap);
    rows.remeasure();
    changed();
    schedule();
  }

  function refilter(): void {
    press();
    rows.box.classList.toggle("nb-wrap", controls.wrap);
    const wanted = pattern(controls.filter, controls.regex);
    wrong = wanted instanceof Error;
    attr(filterInput, "aria-invalid", wrong ? "true" : null);
    filterInput.title = wanted instanceof Error ? wanted.message : "Filter lines (/)";
    filter = wanted instanceof Error ? null : wanted;
    shown = new Shown(source, test());
    rows.show(shown);
    finding.restart();
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

  function marks(line: string, index: number) {
    const { expression, current } = finding;
    if (expression) return marksOf(expression, line, "hit", current?.index === index ? current.nth : -1);
    return marksOf(controls.invert ? null : filter, line, "found", -1);
  }

  // Painting

  function sync(): void {
    painter.fit(rows);
    const listed = rows.sync(SLICE);
    const searched = finding.pump(SLICE);
    const { size, written } = shown.rows;
    const total = source.written;
    const narrowed = written !== total || filter;
    text(
      counted,
      wrong ? "not an expression" : narrowed ? `${count(written)} of ${count(total)}` : counts(total),
    );
    attr(counted, "role", filter || wrong ? "status" : null); // a log that grows is not told all the time
    jump.hidden = rows.follow || !size;
    empty.hidden = size > 0;
    text(empty, source.size ? "No line matches." : store.over ? "Nothing was written." : "Nothing yet.");
    tellOlder();
    if (!listed || !searched) schedule();
  }

  function counts(lines: number): string {
    const { tab } = controls;
    const logs = typeof tab === "number" ? [store.ranks[tab]!] : store.ranks;
    const figures = displayed(logs.flatMap((log) => [...log.displays.values()]));
    return [(lines || !figures) && plural(lines, "line"), figures].filter(Boolean).join(", ");
  }

  /** Say which lines are not here, and where they are. */
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
    } else {
      const n = store.missing();
      const words = `${plural(n, "line")} not shown here: open a rank, or read its log in ${store.snap?.dir}`;
      if (n > 0) parts.push(h("span", words));
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

  // Keyboard

  function focusFilter(): void {
    filterInput.focus();
    filterInput.select();
  }

  function key({ key: pressed }: KeyboardEvent): boolean {
    if (pressed === "/") focusFilter();
    else if (pressed === "w" || pressed === "t") {
      const name = pressed === "w" ? "wrap" : "time";
      controls[name] = !controls[name];
      press();
      flipped(name);
    } else if (pressed === "n") finding.step(1);
    else if (pressed === "N") finding.step(-1);
    else if (pressed === "End" || pressed === "G") rows.toEnd();
    else if (pressed === "Home") rows.toStart();
    else if (pressed === "Escape" && controls.finding) finding.close();
    else return false;
    return true;
  }

  refilter();

  return {
    bar,
    body,
    sync,
    openFind: finding.open,
    selectAll,
    key,
    repaint() {
      painter.forget();
      rows.repaint();
    },
    reattached: rows.reattached,
    focusFilter,
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
