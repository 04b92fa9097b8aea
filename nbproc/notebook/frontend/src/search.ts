// The search in the lines shown: its bar, the present hit, the marks of all.

import { pattern, type Controls } from "./controls";
import { eat, h, icon, text } from "./dom";
import { Finder } from "./find";
import { count } from "./format";
import type { Lines } from "./lines";
import type { List } from "./list";
import { searchField, tool } from "./tools";

export interface Search {
  readonly bar: HTMLElement;
  /** What is looked for; null for nothing. */
  readonly expression: RegExp | null;
  /** The row of the present hit and its place among the row's hits. */
  readonly current: { index: number; nth: number } | null;
  open(): void;
  close(): void;
  /** Go to the next hit, or to the one before. */
  step(by: 1 | -1): void;
  /** Begin again: what is looked for, or what is looked in, is another. */
  restart(): void;
  /** Go on for some time. Returns false if there is more to do. */
  pump(budget: number): boolean;
}

/** `changed` is called when what is looked for is another one. */
export function search(controls: Controls, list: List, lines: () => Lines, changed: () => void): Search {
  let expression: RegExp | null = null;
  let finder: Finder | null = null;

  const input = searchField("", "Find", "Find in lines", restart, (event) => {
    const { key } = event;
    if (key === "Enter") step(event.shiftKey ? -1 : 1);
    else if (key === "Escape") close();
    else return;
    eat(event);
  });
  input.value = controls.find;
  const counted = h("span.count", { role: "status" });
  const bar = h(
    "div.find",
    { role: "search", "aria-label": "Find", hidden: true },
    input,
    counted,
    tool(icon("up"), "Previous (Shift+Enter)", () => step(-1)),
    tool(icon("down"), "Next (Enter)", () => step(1)),
    tool(icon("close"), "Close (Escape)", close),
  );

  function open(): void {
    controls.finding = true;
    bar.hidden = false;
    const chosen = `${document.getSelection() ?? ""}`;
    if (chosen && !chosen.includes("\n")) input.value = chosen;
    input.focus();
    input.select();
    restart();
  }

  function close(): void {
    controls.finding = false;
    restart();
    list.box.focus();
  }

  function restart(): void {
    const { finding } = controls;
    bar.hidden = !finding;
    if (finding) controls.find = input.value;
    const wanted = finding ? pattern(controls.find, false) : null;
    expression = wanted instanceof Error ? null : wanted;
    finder = expression && new Finder(expression);
    list.repaint();
    tell();
    changed();
  }

  function step(by: 1 | -1, move = true): void {
    if (!finder) return;
    finder.pump(lines(), 200);
    if (move || finder.at < 0) finder.step(by, list.topIndex());
    const { current } = finder;
    if (current) list.reveal(current.index);
    list.repaint();
    tell();
    changed();
  }

  function tell(): void {
    const n = finder ? finder.count : -1;
    const at = finder && finder.at >= 0 ? `${count(finder.at + 1)} of ` : "";
    text(counted, n < 0 ? "" : n ? at + count(n) : "none");
  }

  return {
    bar,
    open,
    close,
    step,
    restart,
    get expression() {
      return expression;
    },
    get current() {
      return finder?.current ?? null;
    },
    pump(budget) {
      if (!finder) return true;
      const fresh = finder.at < 0;
      const done = finder.pump(lines(), budget);
      if (fresh && done && finder.count && input === document.activeElement) {
        step(1, false);
        list.sync(budget); // the hit that is counted is also marked
      }
      tell();
      return done;
    },
  };
}
