// One view of a run in a page: head, first cause, tabs, what the open tab shows, foot.

import { controls as initial, type Tab } from "./controls";
import { attr, eat, h, text } from "./dom";
import { foot, handle } from "./foot";
import { head, MANY } from "./head";
import { logPane } from "./logpane";
import { max, round, ticks } from "./numbers";
import { overview } from "./overview";
import { ended, type Report } from "./protocol";
import type { RunStore } from "./store";
import { tabRow } from "./tabs";
import { toClipboard } from "./taking";
import { follow, initial as noTheme } from "./theme";
import { grow } from "./tree";

const LEAST = 120;
let views = 0;

export interface View {
  readonly store: RunStore;
  el: HTMLElement;
  /** Go on in another element. */
  moveTo(el: HTMLElement): void;
  dispose(): void;
}

export function view(el: HTMLElement, store: RunStore): View {
  const id = `nb${++views}-`;
  const controls = initial(store.ui);
  const theme = noTheme();
  let frame = 0;
  let timer: ReturnType<typeof setInterval> | undefined;
  let fading: ReturnType<typeof setTimeout> | undefined;
  let reportShown: Report | null = null;
  let reportKey = "";
  let opened: Tab | null = null;
  let figures = 0;
  let focused: HTMLElement | null = null;
  let typed = "";
  let typedAt = 0;

  const panel = h("div.panel", { role: "tabpanel", id: `${id}panel` });
  const said = h("span.said", { role: "status" });
  const cause = h("div");
  const top = head(store, open, schedule);
  const tabs = tabRow(store, controls, id, panel.id, open);
  const pane = logPane(store, controls, theme, say, schedule, keep);
  const rows = overview(store, theme, open, schedule);
  const bottom = foot(store, (words, then) => void toClipboard(words).then(() => say(then)));
  const size = handle(() => panel.clientHeight, resize);
  const root = h(
    "section.run",
    {
      keydown: key,
      click(event: Event) {
        const tab = (event.target as HTMLElement).dataset.open;
        if (tab) open(tab === "errors" ? tab : +tab);
      },
      focusin: (event: Event) => (focused = event.target as HTMLElement),
      focusout: () =>
        setTimeout(() => {
          if (root.isConnected && !root.contains(document.activeElement)) focused = null;
        }),
    },
    top.element,
    top.notice,
    cause,
    h("div.bar", tabs.element, rows.bar, pane.bar),
    h("div.stage", panel, said),
    size,
    bottom.element,
  );

  function keep(): void {
    store.ui = { ...controls };
  }

  function schedule(): void {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      sync();
    });
  }

  /** Tell the reader something for some time. */
  function say(words: string, time = 2_500): void {
    text(said, words);
    said.classList.add("nb-on");
    clearTimeout(fading);
    fading = setTimeout(() => said.classList.remove("nb-on"), time);
  }

  // Painting

  function sync(): void {
    const { snap, report } = store;
    attr(root, "data-state", snap?.state ?? "created");
    attr(root, "data-ready", store.ready ? "" : null);
    top.sync();
    if (!snap) return;
    attr(root, "aria-label", `Run ${snap.name}`);
    root.classList.toggle("nb-crowd", snap.ranks.length > MANY);
    if (report && report !== reportShown && !controls.chosen && controls.tab === "overview") controls.tab = "errors";
    tabs.sync();
    failure();
    if (opened !== controls.tab) openTab();
    if (controls.tab === "overview") rows.sync();
    else if (controls.tab !== "errors") {
      pane.sync();
      let versions = 0;
      for (const held of store.displays.values()) versions += held.version + 1;
      if (versions !== figures) pane.refreshFigures();
      figures = versions;
    }
    bottom.sync();
    clearInterval(timer);
    if (!ended(snap.state) && !store.gone) timer = setInterval(second, 1_000);
  }

  function second(): void {
    const silent = ticks() - store.heardAt;
    if (silent > 15_000 && silent < 16_500) store.ask({ t: "ping" });
    schedule();
  }

  function failure(): void {
    const { report } = store;
    if (!report || report === reportShown) return;
    reportShown = report;
    const now = JSON.stringify(report);
    if (now === reportKey) return;
    reportKey = now;
    cause.replaceChildren(grow(report.cause));
    if (controls.tab === "errors") opened = null;
  }

  // Tabs

  function open(tab: Tab, focus = false): void {
    if (typeof tab === "number" && !store.snap?.ranks[tab]) return;
    controls.tab = tab;
    controls.chosen = true;
    keep();
    sync();
    tabs.reveal(tab, focus);
  }

  function openTab(): void {
    const { tab, height } = controls;
    opened = tab;
    const log = typeof tab === "number" || tab === "all";
    attr(panel, "aria-labelledby", id + tab);
    attr(root, "data-view", log ? "log" : tab);
    pane.bar.hidden = !log;
    if (log) pane.open(tab === "all" ? store.all : store.ranks[tab]!.lines);
    panel.replaceChildren(
      log ? pane.body : tab === "errors" && store.report ? grow(store.report.errors) : rows.body,
    );
    if (tab === "overview") rows.opened();
    // Tracebacks end with what matters.
    const raised = panel.querySelector(".nb-failure > .nb-trace > .nb-raised");
    const errors = panel.firstElementChild!;
    if (raised) errors.scrollTop += raised.getBoundingClientRect().bottom - errors.getBoundingClientRect().bottom + 8;
    resize(height);
  }

  // Keyboard

  function key(event: KeyboardEvent): void {
    const { key: pressed, altKey } = event;
    const command = event.ctrlKey || event.metaKey;
    const inText = event.target instanceof HTMLInputElement;
    const reading = !pane.bar.hidden;
    if (command && !altKey && pressed === "f" && reading) pane.openFind();
    else if (command && pressed === "a" && reading && !inText) pane.selectAll();
    else if (command || altKey) return;
    // From here on the key is ours: the notebook would take a letter for one of its own commands.
    else if (inText) {
      event.stopPropagation();
      return;
    } else if (/^\d$/.test(pressed)) digit(pressed);
    else if (pressed === "o") open("overview");
    else if (pressed === "a") open("all");
    else if (pressed === "e" && store.report) open("errors");
    else if (pressed === "/" && !reading) {
      open("all");
      pane.focusFilter();
    } else if (!reading || !pane.key(event)) {
      if (pressed !== "Tab") event.stopPropagation();
      return;
    }
    eat(event);
  }

  function digit(pressed: string): void {
    const now = ticks();
    const longer = now - typedAt < 700 ? typed + pressed : pressed;
    typed = store.snap?.ranks[+longer] ? longer : pressed;
    typedAt = now;
    open(+typed);
    pane.focusLog();
  }

  function resize(height: number): void {
    controls.height = max(LEAST, round(height));
    root.style.setProperty("--nb-height", `${controls.height}px`);
    attr(size, "aria-valuenow", controls.height);
    keep();
    schedule();
  }

  el.replaceChildren(root);
  const unsubscribe = store.subscribe(schedule);
  const unfollow = follow(root, theme, () => {
    pane.repaint();
    rows.repaint();
    schedule();
  });
  const observer = new ResizeObserver(() => {
    const width = root.clientWidth;
    root.classList.toggle("nb-narrow", width > 0 && width < 720);
    tabs.resized();
    schedule();
  });
  observer.observe(root);
  observer.observe(panel);
  schedule();

  const self: View = {
    store,
    el,
    moveTo(to) {
      self.el = to;
      to.replaceChildren(root);
      const last = focused;
      requestAnimationFrame(() => {
        if (last && document.activeElement === document.body) last.focus({ preventScroll: true });
        pane.reattached();
        schedule();
      });
    },
    dispose() {
      cancelAnimationFrame(frame);
      clearInterval(timer);
      unsubscribe();
      unfollow();
      observer.disconnect();
      root.remove();
    },
  };
  return self;
}
