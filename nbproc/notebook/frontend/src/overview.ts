// A row for each rank, in rank order: what it does, for how long, what it uses, what it said last.

import { attr, h, icon, text } from "./dom";
import { bytes, clock, duration } from "./format";
import type { Row } from "./lines";
import { draw, type Theme } from "./paint";
import { ended } from "./protocol";
import type { RankLog, RunStore } from "./store";

const SILENT = 60;

interface Cells {
  row: HTMLTableRowElement;
  mark: HTMLElement;
  state: HTMLElement;
  time: HTMLElement;
  cpu: HTMLElement;
  memory: HTMLElement;
  gpu: HTMLElement;
  said: HTMLElement;
  quiet: HTMLElement;
  figures: HTMLElement;
  shown: string;
}

export class Overview {
  readonly body: HTMLElement;
  private table: HTMLElement;
  private rows: Cells[] = [];
  private list = h("tbody");

  constructor(
    private store: RunStore,
    private theme: Theme,
    private open: (rank: number) => void,
  ) {
    this.table = h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Rank"),
          h("th", { scope: "col" }, "State"),
          h("th", { scope: "col", class: "nb-n" }, "Time"),
          h("th", { scope: "col", class: "nb-n nb-use", title: "CPU time, in percent of one core" }, "CPU"),
          h("th", { scope: "col", class: "nb-n nb-use", title: "Resident memory" }, "Memory"),
          h("th", { scope: "col", class: "nb-n nb-use nb-gpu", title: "GPU memory" }, "GPU"),
          h("th", { scope: "col" }, "Last line"),
        ),
      ),
      this.list,
    );
    this.body = h("div", { class: "nb-overview" }, this.table);
  }

  private make(rank: number): Cells {
    const mark = h("i", { class: "nb-mark" });
    const name = h("button", { type: "button", class: `nb-open r${rank % 8}`, "data-rank": rank }, String(rank));
    attr(name, "aria-label", `Open rank ${rank}`);
    const state = h("td", { class: "nb-state" });
    const number = (extra = ""): HTMLTableCellElement => h("td", { class: `nb-n ${extra}` });
    const time = number();
    const cpu = number("nb-use");
    const memory = number("nb-use");
    const gpu = number("nb-use nb-gpu");
    const said = h("span", { class: "nb-last" });
    const quiet = h("span", { class: "nb-silent" });
    const figures = h("span", { class: "nb-figures", hidden: true }, icon("figure"), h("span"));
    const row = h(
      "tr",
      { click: () => this.open(rank) },
      h("td", {}, name),
      h("td", { class: "nb-state" }, mark, state),
      time,
      cpu,
      memory,
      gpu,
      h("td", { class: "nb-said-cell" }, h("div", {}, said, figures, quiet)),
    );
    return { row, mark, state, time, cpu, memory, gpu, said, quiet, figures, shown: "" };
  }

  focus(rank = 0): void {
    this.rows[rank]?.row.querySelector("button")?.focus();
  }

  repaint(): void {
    for (const cells of this.rows) cells.shown = "";
  }

  sync(): void {
    const { store } = this;
    const ranks = store.snap?.ranks ?? [];
    while (this.rows.length < ranks.length) {
      const cells = this.make(this.rows.length);
      this.rows.push(cells);
      this.list.append(cells.row);
    }
    const now = store.gone ? store.goneAt : store.now();
    attr(this.table, "data-over", store.over ? "" : null);
    attr(this.table, "data-gpu", [...store.usage.values()].some((u) => u[3] !== null) ? "" : null);
    ranks.forEach(([state, , started, end, , words, node], rank) => {
      const cells = this.rows[rank]!;
      const log = store.ranks[rank];
      attr(cells.row, "data-state", state);
      attr(cells.mark, "data-state", state);
      text(cells.state, node ? `${state} on ${node}` : state);
      text(cells.time, started === null ? "" : end === null ? clock(now - started) : duration(end - started));
      const usage = ended(state) ? undefined : store.usage.get(rank);
      text(cells.cpu, usage ? `${usage[1]} %` : "");
      text(cells.memory, usage ? bytes(usage[2]) : "");
      text(cells.gpu, usage?.[3] != null ? bytes(usage[3]) : "");
      this.say(cells, state, words, log);
      const silent = state === "running" && started !== null ? now - Math.max(started, log?.heard ?? 0) : 0;
      const where = store.where.get(rank);
      text(cells.quiet, silent >= SILENT ? `no output for ${clock(silent)}${where ? `, in ${where}` : ""}` : "");
      const n = log?.displays.size ?? 0;
      if (cells.figures.hidden !== (n === 0)) cells.figures.hidden = n === 0;
      text(cells.figures.lastElementChild!, n ? String(n) : "");
      attr(cells.figures, "title", n ? `${n} displayed` : null);
    });
  }

  private say(cells: Cells, state: string, words: string, log: RankLog | undefined): void {
    const failed = state === "failed" || (state === "stopped" && words !== "");
    const last = failed ? null : lastLine(log);
    const key = failed ? `${state} ${words}` : last ? `${last.n}/${last.stream}/${last.version}` : words;
    if (cells.shown === key) return;
    cells.shown = key;
    attr(cells.said, "data-kind", failed ? state : last ? "line" : "words");
    if (last) draw(cells.said, last.text, this.theme, [], 400);
    else text(cells.said, words);
  }
}

function lastLine(log: RankLog | undefined): Row | null {
  if (!log?.last) return null;
  if (log.last.text.trim()) return log.last;
  const { lines } = log;
  for (let i = lines.end - 1; i >= Math.max(lines.first, lines.end - 50); i--) {
    const row = lines.at(i)!;
    if (row.stream !== 2 && !row.gap && row.text.trim()) return row;
  }
  return null;
}
