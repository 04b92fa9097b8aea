// A row for each rank, in rank order: what it does, for how long, what it uses, what it said last. Where the ranks are
// many, how many are in which state, to see only those.

import { attr, button, h, text } from "./dom";
import { displayed } from "./figure";
import { bytes, clock, count, duration, plural } from "./format";
import { DISPLAY, type Row } from "./lines";
import type { RankLog } from "./logs";
import { floor, max } from "./numbers";
import { draw } from "./paint";
import { ended } from "./protocol";
import { painted, type RunStore } from "./store";
import type { Theme } from "./theme";

const COLUMNS: [label: string, classes?: string, title?: string][] = [
  ["Rank"],
  ["State"],
  ["Time", ".n"],
  ["CPU", ".n.use", "CPU time, in percent of one core"],
  ["Memory", ".n.use", "Resident memory"],
  ["GPU", ".n.use.gpu", "GPU memory"],
  ["Last line"],
];
/** More ranks than can be seen at once. */
const COUNTED = 16;
/** So many rows are filled before the browser has told which are in sight. */
const FIRST = 20;
/** What the states are called where they are counted, what is rare and bad first. */
const KINDS = {
  failed: "failed",
  after: "failed after that",
  waiting: "waiting",
  starting: "starting",
  running: "running",
  stopped: "stopped",
  succeeded: "succeeded",
};

export interface Overview {
  readonly body: HTMLElement;
  /** How many ranks are in which state. */
  readonly bar: HTMLElement;
  /** Draw the last lines again: colours are others now. */
  repaint(): void;
  /** The overview is in the page again. */
  opened(): void;
  sync(): void;
}

interface RankRow {
  readonly element: HTMLElement;
  sync(now: number): void;
}

export function overview(store: RunStore, theme: Theme, open: (rank: number) => void, schedule: () => void): Overview {
  const rows: RankRow[] = [];
  // The style sheet makes grids of rows; the roles say what they still are.
  const cell = { role: "cell" };
  const list = h("tbody", { role: "rowgroup" });
  const table = h(
    "table",
    {
      role: "table",
      "aria-label": "Ranks",
      mouseover(event: Event) {
        const line = (event.target as Element).closest<HTMLElement>(".nb-last");
        if (line) line.title = line.textContent;
      },
    },
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        ...COLUMNS.map(([label, names = "", title]) => h(`th${names as ""}`, { role: "columnheader", title }, label)),
      ),
    ),
    list,
  );
  const body = h("div.overview", table);
  const bar = h("div.kinds", { role: "group", "aria-label": "Ranks shown", hidden: true });
  const chips = new Map<string, HTMLButtonElement>();
  let stamp = 0;
  let only = "";
  let whole = true;
  let seen: unknown;
  let reported: unknown;
  /** The rows in sight, or almost: only they are brought up to date. */
  const near = new Set<Element>();
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) near[isIntersecting ? "add" : "delete"](target);
      schedule();
    },
    { root: body, rootMargin: "200px" },
  );

  /** Make the row of a rank: an empty one, which is filled when it is to be seen. */
  function make(rank: number): RankRow {
    const element = h("tr", { role: "row", click: () => open(rank) });
    let update: ((now: number) => void) | undefined;
    return { element, sync: (now) => (update ??= fillRow(element, rank))(now) };
  }

  /** Returns how to bring the row up to date. */
  function fillRow(element: HTMLElement, rank: number): (now: number) => void {
    const mark = h("i.mark");
    const name = button(`.open.r${rank % 8}`, { "aria-label": `Open rank ${rank}` }, `${rank}`);
    const state = h("span.state");
    const time = h("td.n", cell);
    const cpu = h("td.n.use", cell);
    const memory = h("td.n.use", cell);
    const gpu = h("td.n.use.gpu", cell);
    const said = h("span.last");
    const shown = h("span.figures");
    const quiet = h("span.silent");
    let shownKey = "";
    element.append(
      h("td", cell, name),
      h("td.state", cell, mark, state),
      time,
      cpu,
      memory,
      gpu,
      h("td.said-cell", cell, h("div", said, shown, quiet)),
    );

    function say(kind: string, words: string, log: RankLog | undefined): void {
      const told = kind === "failed" || kind === "after" || (kind === "stopped" && words !== "");
      const last = told ? null : lastLine(log);
      const figures = displayed(log?.displays.values());
      const alone = !told && !last && figures;
      text(shown, alone ? "" : figures);
      const key = last ? `${last.n}/${last.stream}/${last.version}/${stamp}` : `${kind}/${alone || words}`;
      if (shownKey === key) return;
      shownKey = key;
      attr(said, "data-kind", told ? kind : last ? "line" : "words");
      if (last) draw(said, last.text, theme, [], 400);
      else text(said, alone ? `displayed ${figures}` : words);
    }

    return (now) => {
      const [kind, , started, end, , words, node] = store.snap!.ranks[rank]!;
      const log = store.ranks[rank];
      const kindShown = painted(store, rank)!;
      attr(element, "data-state", kindShown);
      attr(mark, "data-state", kindShown);
      text(state, node ? `${kind} on ${node}` : kind);
      text(time, started === null ? "" : end === null ? clock(now - started) : duration(end - started));
      const [, percent, resident, onGpu] = (!ended(kind) && store.usage.get(rank)) || [];
      text(cpu, percent === undefined ? "" : `${percent} %`);
      text(memory, resident ? bytes(resident) : "");
      text(gpu, onGpu != null ? bytes(onGpu) : "");
      say(kindShown, store.after.get(rank) ?? words, log);
      const where = store.where.get(rank);
      const silent = now - max(started ?? now, log?.heard ?? 0);
      const long = silent < 100 ? `${floor(silent)} s` : clock(silent);
      text(quiet, kind !== "running" || where === undefined ? "" : `no output for ${long}${where && `, ${where}`}`);
    };
  }

  function chip(kind: string): HTMLButtonElement {
    let made = chips.get(kind);
    if (!made) {
      const click = (): void => {
        only = only === kind ? "" : kind;
        seen = null;
        schedule();
      };
      chips.set(kind, (made = button(".chip", { click }, kind && h("i.mark", { "data-state": kind }), h("span"))));
    }
    return made;
  }

  /** Count the ranks by state, and show those of the chosen one. */
  function choose(): void {
    const kinds = store.snap!.ranks.map((_, rank) => painted(store, rank)!);
    const counted = new Map<string, number>();
    for (const kind of kinds) counted.set(kind, (counted.get(kind) ?? 0) + 1);
    const states = Object.entries(KINDS).filter(([kind]) => kind === only || counted.has(kind));
    const shown = [["", ""] as const, ...states].map(([kind, words]) => {
      const made = chip(kind);
      attr(made, "aria-pressed", `${only === kind}`);
      text(made.lastElementChild!, kind ? `${count(counted.get(kind) ?? 0)} ${words}` : plural(kinds.length, "rank"));
      return made;
    });
    fill(bar, shown);
    fill(list, rows.filter((_, rank) => !only || kinds[rank] === only).map(({ element }) => element));
  }

  function sync(): void {
    const { snap, report } = store;
    const all = snap!.ranks.length;
    while (rows.length < all) {
      const made = make(rows.length);
      rows.push(made);
      watch.observe(made.element);
      if (rows.length <= FIRST) near.add(made.element);
    }
    bar.hidden = all <= COUNTED;
    if (seen !== snap || reported !== report) choose();
    seen = snap;
    reported = report;
    attr(table, "data-over", store.over ? "" : null);
    attr(table, "data-gpu", [...store.usage.values()].some((usage) => usage[3] !== null) ? "" : null);
    const now = store.now();
    for (const { element, sync: update } of rows) if (near.has(element) || (whole && element.firstChild)) update(now);
    whole = false;
  }

  return {
    body,
    bar,
    repaint() {
      stamp++;
      whole = true;
    },
    opened: () => (whole = true),
    sync,
  };
}

/** Make these the children of an element; where they are it already, nothing that has the focus loses it. */
function fill(element: Element, children: Element[]): void {
  const { children: held } = element;
  if (held.length !== children.length || children.some((child, k) => held[k] !== child)) {
    element.replaceChildren(...children);
  }
}

function lastLine(log: RankLog | undefined): Row | null {
  if (!log?.last) return null;
  if (log.last.text.trim()) return log.last;
  const { lines } = log;
  for (let i = lines.end - 1; i >= max(lines.first, lines.end - 50); i--) {
    const row = lines.at(i)!;
    if (row.stream !== DISPLAY && !row.gap && row.text.trim()) return row;
  }
  return null;
}
