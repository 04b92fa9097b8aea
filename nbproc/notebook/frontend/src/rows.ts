// How a row of a log is painted and measured.

import { plain } from "./ansi";
import type { Controls } from "./controls";
import { button, h } from "./dom";
import { figure } from "./figure";
import { count, plural, timestamp } from "./format";
import { DISPLAY, ERR } from "./lines";
import type { List, Painter } from "./list";
import { floor, max, min, round, ticks } from "./numbers";
import { draw, DRAWN, matches, type Mark } from "./paint";
import { PAGE, type RunStore } from "./store";
import type { Theme } from "./theme";

export interface Rows extends Painter {
  /** Find out how large a character is, and how many stand in a line. */
  fit(list: List): void;
  /** The font may be another one. */
  forget(): void;
}

/** `marks` returns what is to be marked in a line. */
export function rowPainter(
  store: RunStore,
  controls: Controls,
  theme: Theme,
  marks: (line: string, index: number) => Mark[],
  schedule: () => void,
): Rows {
  let columns = 120;
  let digits = 1;
  let measured = { width: 7.2, height: 18 };
  let measuredAt = -Infinity;

  return {
    fit(list) {
      const { box } = list;
      digits = `${max(0, store.ranks.length - 1)}`.length;
      if (!box.clientWidth) return;
      if (ticks() - measuredAt > 2_000) {
        const probe = h("div.row", { style: "position:absolute;visibility:hidden" }, "0".repeat(100));
        box.append(probe);
        const { width, height } = probe.getBoundingClientRect();
        probe.remove();
        measured = { width: (width - 20) / 100 || 7.2, height: round(height) || 18 };
        measuredAt = ticks();
      }
      list.setRowHeight(measured.height);
      const gutter = (controls.tab === "all" ? digits + 2 : 0) + (controls.time ? 14 : 0);
      const now = max(20, floor((box.clientWidth - 22) / measured.width) - gutter);
      if (now !== columns) {
        columns = now;
        if (controls.wrap) list.remeasure();
      }
    },
    forget: () => (measuredAt = -Infinity),
    guess({ stream, gap, text: line }) {
      const { height } = measured;
      if (stream === DISPLAY && !gap) return line ? height * 2 : 0;
      return controls.wrap ? height * max(1, Math.ceil(line.length / columns)) : height;
    },
    measure: ({ stream, gap, text: line }) => (stream === DISPLAY ? !gap && line !== "" : controls.wrap),
    width: ({ stream, text: line }) => (controls.wrap || stream === DISPLAY ? 0 : min(DRAWN, line.length) + 24),
    paint(element, row, index) {
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
    },
  };
}

/** The places in a line that an expression matches; `at` is the one of them where the reader is, -1 for none. */
export function marksOf(expression: RegExp | null, line: string, kind: "found" | "hit", at: number): Mark[] {
  if (!expression) return [];
  return matches(expression, plain(line)).map(([start, end], nth) => ({ start, end, kind: nth === at ? "current" : kind }));
}
