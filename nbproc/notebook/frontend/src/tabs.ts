// The row of tabs: those of the run stay in place, those of the ranks scroll beside them.

import type { Controls, Tab } from "./controls";
import { along, attr, button, eat, h, on, text } from "./dom";
import { MANY } from "./head";
import { painted, type RunStore } from "./store";

export interface Tabs {
  readonly element: HTMLElement;
  sync(): void;
  /** Bring a tab into sight, and into focus if it is to have that. */
  reveal(tab: Tab, focus: boolean): void;
  /** The width is another one. */
  resized(): void;
}

/** `id` is what the tabs' own ids begin with, `panel` the id of what they open. */
export function tabRow(
  store: RunStore,
  controls: Controls,
  id: string,
  panel: string,
  open: (tab: Tab, focus?: boolean) => void,
): Tabs {
  const made = new Map<Tab, HTMLButtonElement>();
  const fixed = h("div.fixed", { role: "presentation" });
  const ranks = h("div.ranks", { role: "presentation", scroll: fade });
  const list = h("div.tabs", { role: "tablist", "aria-label": "Views of the run", keydown: move }, fixed, ranks);
  const wanted = h("input.goto", {
    placeholder: "Go to rank",
    "aria-label": "Go to rank",
    title: "A rank's number, then Enter; anywhere else in the view the number alone",
    inputmode: "numeric",
    keydown(event: KeyboardEvent) {
      if (event.key !== "Enter") return;
      eat(event);
      go();
    },
    change: go,
  });
  const field = h("span.field", { hidden: true }, wanted);
  let seen: unknown;
  let reported: unknown;
  let chosen: Tab | null = null;

  function go(): void {
    const rank = +wanted.value;
    const known = wanted.value.trim() && store.snap?.ranks[rank];
    attr(wanted, "aria-invalid", known || !wanted.value ? null : "true");
    if (!known) return;
    wanted.value = "";
    open(rank);
  }

  function all(): Tab[] {
    return ["overview", ...(store.report ? (["errors"] as const) : []), "all", ...store.snap!.ranks.keys()];
  }

  function sync(): void {
    if (seen === store.snap && reported === store.report && chosen === controls.tab) return;
    seen = store.snap;
    reported = store.report;
    chosen = controls.tab;
    const tabs = all();
    if (tabs.length !== made.size) build(tabs);
    for (const [tab, element] of made) {
      const here = tab === chosen;
      attr(element, "aria-selected", `${here}`);
      element.tabIndex = here ? 0 : -1;
      attr(element, "data-state", tab === "errors" ? "failed" : painted(store, tab as number));
    }
  }

  function build(tabs: Tab[]): void {
    for (const tab of tabs) {
      if (made.has(tab)) continue;
      const rank = typeof tab === "number";
      const element = button("", {
        role: "tab",
        id: id + tab,
        "aria-controls": panel,
        "aria-label": rank && `Rank ${tab}`,
        "data-tab": tab,
        click: () => open(tab),
      });
      text(element, rank ? `${tab}` : tab[0]!.toUpperCase() + tab.slice(1));
      made.set(tab, element);
      if (rank) ranks.append(element);
    }
    fixed.replaceChildren(...tabs.filter((tab) => typeof tab === "string").map((tab) => made.get(tab)!));
    field.hidden = store.snap!.ranks.length <= MANY;
    setTimeout(fade); // to measure now would make the page lay everything out twice
  }

  /** Show at which end of the row there are more tabs. */
  function fade(): void {
    const { scrollLeft, scrollWidth, clientWidth, classList } = ranks;
    classList.toggle("nb-over", scrollWidth > clientWidth + 1);
    classList.toggle("nb-start", scrollLeft < 4);
    classList.toggle("nb-end", scrollLeft + clientWidth > scrollWidth - 4);
  }

  function move(event: KeyboardEvent): void {
    const tabs = all();
    const to = along(event, tabs.indexOf(controls.tab), tabs.length);
    if (to !== undefined) open(tabs[to]!, true);
  }

  on(
    ranks,
    "wheel",
    (event: WheelEvent) => {
      const before = ranks.scrollLeft;
      ranks.scrollLeft += event.deltaY;
      if (ranks.scrollLeft !== before) event.preventDefault();
    },
    { passive: false },
  );
  return {
    element: h("div.tabrow", list, field),
    sync,
    resized: fade,
    reveal(tab, focus) {
      const element = made.get(tab);
      element?.scrollIntoView({ block: "nearest", inline: "nearest" });
      if (focus) element?.focus();
    },
  };
}
