// A row for each rank, in rank order: what it does, for how long, what it uses, what it said last.

import { attr, button, h, icon, text } from "./dom";
import { bytes, clock, duration } from "./format";
import { DISPLAY, type Row } from "./lines";
import { floor, max } from "./numbers";
import { draw, type Theme } from "./paint";
import { ended } from "./protocol";
import type { RankLog } from "./logs";
import type { RunStore } from "./store";

const COLUMNS: [label: string, classes?: string, title?: string][] = [
  ["Rank"],
  ["State"],
  ["Time", ".n"],
  ["CPU", ".n.use", "CPU time, in percent of one core"],
  ["Memory", ".n.use", "Resident memory"],
  ["GPU", ".n.use.gpu", "GPU memory"],
  ["Last line"],
];

export interface Overview {
  body: HTMLElement;
  /** Draw the last lines again: colours are others now. */
  repaint(): void;
  sync(): void;
}

export function overview(store: RunStore, theme: Theme, open: (rank: number) => void): Overview {
  const rows: ((now: number) => void)[] = [];
  const list = h("tbody");
  const table = h(
    "table",
    h("thead", h("tr", ...COLUMNS.map(([label, names = "", title]) => h(`th${names as ""}`, { scope: "col", title }, label)))),
    list,
  );
  let stamp = 0;

  /** Make the row of a rank. Returns what brings it up to date. */
  function make(rank: number): (now: number) => void {
    const mark = h("i.mark");
    const name = button(`.open.r${rank % 8}`, { "data-rank": rank, "aria-label": `Open rank ${rank}` }, `${rank}`);
    const state = h("span.state");
    const time = h("td.n");
    const cpu = h("td.n.use");
    const memory = h("td.n.use");
    const gpu = h("td.n.use.gpu");
    const said = h("span.last");
    const quiet = h("span.silent");
    const shown = h("span");
    const figures = h("span.figures", icon("figure"), shown);
    const row = h(
      "tr",
      { click: () => open(rank) },
      h("td", name),
      h("td.state", mark, state),
      time,
      cpu,
      memory,
      gpu,
      h("td.said-cell", h("div", said, figures, quiet)),
    );
    list.append(row);
    let shownKey = "";

    function say(kind: string, words: string, log: RankLog | undefined): void {
      const told = kind === "failed" || kind === "after" || (kind === "stopped" && words !== "");
      const last = told ? null : lastLine(log);
      const key = last ? `${last.n}/${last.stream}/${last.version}/${stamp}` : `${kind}/${words}`;
      if (shownKey === key) return;
      shownKey = key;
      attr(said, "data-kind", told ? kind : last ? "line" : "words");
      attr(said, "title", last ? null : words);
      if (last) draw(said, last.text, theme, [], 400);
      else text(said, words);
    }

    return (now) => {
      const [kind, , started, end, , words, node] = store.snap!.ranks[rank]!;
      const log = store.ranks[rank];
      const after = store.after.get(rank);
      const painted = after ? "after" : kind;
      attr(row, "data-state", painted);
      attr(mark, "data-state", painted);
      text(state, node ? `${kind} on ${node}` : kind);
      text(time, started === null ? "" : end === null ? clock(now - started) : duration(end - started));
      const [, percent, resident, onGpu] = (!ended(kind) && store.usage.get(rank)) || [];
      text(cpu, percent === undefined ? "" : `${percent} %`);
      text(memory, resident ? bytes(resident) : "");
      text(gpu, onGpu != null ? bytes(onGpu) : "");
      say(painted, after ?? words, log);
      const where = store.where.get(rank);
      const silent = now - max(started ?? now, log?.heard ?? 0);
      const long = silent < 100 ? `${floor(silent)} s` : clock(silent);
      text(quiet, kind !== "running" || where === undefined ? "" : `no output for ${long}${where && `, ${where}`}`);
      const n = log?.displays.size;
      figures.hidden = !n;
      text(shown, `${n}`);
      attr(figures, "title", `${n} displayed`);
    };
  }

  return {
    body: h("div.overview", table),
    repaint: () => void stamp++,
    sync(): void {
      while (rows.length < store.snap!.ranks.length) rows.push(make(rows.length));
      attr(table, "data-over", store.over ? "" : null);
      attr(table, "data-gpu", [...store.usage.values()].some((usage) => usage[3] !== null) ? "" : null);
      for (const sync of rows) sync(store.now());
    },
  };
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
