// One view of a run in a page: head, first cause, tabs, what the open tab shows, foot.

import { luminance } from "./ansi";
import { controls as initial, type Tab } from "./controls";
import { along, attr, button, eat, h, on, text } from "./dom";
import { clock, duration, plural, timestamp } from "./format";
import { logPane } from "./logpane";
import { max, round, ticks } from "./numbers";
import { overview } from "./overview";
import type { Theme } from "./paint";
import { ended, type Report, type RunState } from "./protocol";
import type { RunStore } from "./store";
import { grow } from "./tree";

/** The words for states that are not their own. */
const STATES: Partial<Record<RunState, string>> = { created: "waiting" };
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
  const theme: Theme = { dark: false, background: [255, 255, 255], ink: [31, 35, 40] };
  const tabButtons = new Map<Tab, HTMLButtonElement>();
  const rankMarks: HTMLButtonElement[] = [];
  let frame = 0;
  let timer: ReturnType<typeof setInterval> | undefined;
  let reportShown: Report | null = null;
  let reportKey = "";
  let opened: Tab | null = null;
  let figures = 0;
  let killing = false;
  let focused: HTMLElement | null = null;
  let typed = "";
  let typedAt = 0;

  const pane = logPane(store, controls, theme, schedule, keep);
  const rows = overview(store, theme, open);
  const mark = h("i.mark.big");
  const state = h("strong.word", { role: "status" });
  const name = h("span.name");
  const facts = h("span.facts");
  const marks = h("div.marks", { role: "group", "aria-label": "Ranks", keydown: moveInMarks });
  const stop = button(".stop", { disabled: true, click: pressStop }, "Stop");
  const notice = h("div.notice", { role: "status", hidden: true });
  const cause = h("div");
  const tabs = h("div.tabs", { role: "tablist", "aria-label": "Views of the run", keydown: moveInTabs, scroll: fadeTabs });
  const panel = h("div.panel", { role: "tabpanel", id: `${id}panel` });
  const ending = h("span.grow");
  const said = h("span.headline");
  const dir = h("span.dir");
  const foot = h("div.foot", said, dir);
  const handle = h("div.handle", {
    role: "separator",
    tabindex: 0,
    "aria-orientation": "horizontal",
    "aria-label": "Height",
    title: "Drag, or use the arrow keys, to change the height",
    pointerdown: drag,
    keydown(event: KeyboardEvent) {
      const by = { ArrowDown: 20, ArrowUp: -20 }[event.key];
      if (!by) return;
      resize(panel.clientHeight + by);
      eat(event);
    },
  });
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
      // The style sheet lets the background change in a moment rather than at once, so that there is an event for it.
      transitionend: lookAtTheme,
    },
    h("header.head", mark, state, name, facts, marks, ending, stop),
    notice,
    cause,
    h("div.bar", tabs, pane.bar),
    panel,
    handle,
    foot,
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

  // Painting

  function sync(): void {
    const { snap, report } = store;
    attr(root, "data-state", snap?.state ?? "created");
    attr(root, "data-ready", store.ready ? "" : null);
    if (!snap) {
      text(state, "connecting");
      attr(mark, "data-state", "waiting");
      return;
    }
    const over = ended(snap.state);
    const { headline } = snap;
    attr(root, "aria-label", `Run ${snap.name}`);
    head();
    ranks();
    if (report && report !== reportShown && !controls.chosen && controls.tab === "overview") controls.tab = "errors";
    buildTabs();
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
    text(ending, over ? headline : "");
    attr(ending, "title", over ? headline : null);
    text(said, [!over && headline, ...snap.notes].filter(Boolean).join(", "));
    const parts = snap.dir.split("/");
    text(dir, snap.dir && `logs: ${parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : snap.dir}`);
    attr(dir, "title", snap.dir);
    foot.hidden = !said.textContent && !snap.dir;
    clearInterval(timer);
    if (!over && !store.gone) timer = setInterval(second, 1_000);
  }

  function second(): void {
    const silent = ticks() - store.heardAt;
    if (silent > 15_000 && silent < 16_500) store.ask({ t: "ping" });
    schedule();
  }

  function head(): void {
    const snap = store.snap!;
    const { started } = snap;
    const over = ended(snap.state);
    const gone = !over && store.gone;
    const stopping = snap.state === "stopping";
    attr(mark, "data-state", gone ? "stopped" : snap.state);
    text(state, gone ? "ended with its kernel" : (STATES[snap.state] ?? snap.state));
    text(name, snap.name);
    const time = started !== null && (over ? duration : clock)((snap.ended ?? store.now()) - started);
    text(facts, plural(snap.ranks.length, "rank") + (time ? `, ${time}` : ""));
    const silent = (ticks() - store.heardAt) / 1000;
    text(
      notice,
      gone
        ? `${gone} at ${timestamp(store.goneAt, false)}; the run ended with it`
        : !over && silent > 20
          ? `no news from the kernel for ${clock(silent)}`
          : "",
    );
    notice.hidden = !notice.textContent;
    killing &&= stopping;
    stop.hidden = over || !!gone;
    stop.disabled = !store.ready || (stopping && !killing);
    text(stop, killing ? "Kill now" : stopping ? "Stopping" : "Stop");
    stop.title = !store.ready
      ? "The kernel does not answer while the cell runs: use the kernel's Interrupt"
      : stopping
        ? "End what is left at once"
        : "Stop all ranks (Interrupt, then harder)";
  }

  function pressStop(): void {
    const stopping = store.snap?.state === "stopping";
    store.ask({ t: stopping ? "kill" : "stop" });
    if (stopping) return;
    stop.disabled = true;
    setTimeout(() => {
      killing = true;
      schedule();
    }, 1_500);
  }

  function ranks(): void {
    const all = store.snap!.ranks;
    marks.classList.toggle("nb-many", all.length > 24);
    all.forEach(([kind, , , , , words], rank) => {
      let made = rankMarks[rank];
      if (!made) {
        made = rankMarks[rank] = button(".mark", { tabindex: rank ? -1 : 0, click: () => open(rank) });
        marks.append(made);
      }
      const title = `rank ${rank}: ${kind}${words ? `, ${words.slice(0, 200)}` : ""}`;
      attr(made, "data-state", stateOf(rank));
      attr(made, "title", title);
      attr(made, "aria-label", title);
    });
  }

  /** The state by which a rank is painted: a failure that follows from another is none of its own. */
  function stateOf(rank: number): string | null {
    return store.after.has(rank) ? "after" : (store.snap!.ranks[rank]?.[0] ?? null);
  }

  function tabList(): Tab[] {
    return ["overview", ...(store.report ? (["errors"] as const) : []), "all", ...store.snap!.ranks.keys()];
  }

  function buildTabs(): void {
    const wanted = tabList();
    if (wanted.length !== tabButtons.size) {
      for (const tab of wanted) {
        if (tabButtons.has(tab)) continue;
        const rank = typeof tab === "number";
        const made = button(
          "",
          {
            role: "tab",
            id: id + tab,
            "aria-controls": panel.id,
            "aria-label": rank && `Rank ${tab}`,
            "data-tab": tab,
            click: () => open(tab),
          },
          rank ? `${tab}` : tab[0]!.toUpperCase() + tab.slice(1),
        );
        tabButtons.set(tab, made);
      }
      tabs.replaceChildren(...wanted.map((tab) => tabButtons.get(tab)!));
      fadeTabs();
    }
    for (const [tab, made] of tabButtons) {
      const chosen = tab === controls.tab;
      attr(made, "aria-selected", `${chosen}`);
      made.tabIndex = chosen ? 0 : -1;
      attr(made, "data-state", tab === "errors" ? "failed" : stateOf(tab as number));
    }
  }

  /** Show at which end of the row there are more tabs. */
  function fadeTabs(): void {
    const { scrollLeft, scrollWidth, clientWidth, classList } = tabs;
    classList.toggle("nb-over", scrollWidth > clientWidth + 1);
    classList.toggle("nb-start", scrollLeft < 4);
    classList.toggle("nb-end", scrollLeft + clientWidth > scrollWidth - 4);
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
    const made = tabButtons.get(tab);
    made?.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (focus) made?.focus();
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
    // Tracebacks end with what matters.
    const raised = panel.querySelector(".nb-failure > .nb-trace > .nb-raised");
    const errors = panel.firstElementChild!;
    if (raised) errors.scrollTop += raised.getBoundingClientRect().bottom - errors.getBoundingClientRect().bottom + 8;
    resize(height);
  }

  function moveInTabs(event: KeyboardEvent): void {
    const all = tabList();
    const to = along(event, all.indexOf(controls.tab), all.length);
    if (to !== undefined) open(all[to]!, true);
  }

  function moveInMarks(event: KeyboardEvent): void {
    const to = along(event, rankMarks.indexOf(event.target as HTMLButtonElement), rankMarks.length);
    if (to === undefined) return;
    rankMarks.forEach((each, rank) => (each.tabIndex = rank === to ? 0 : -1));
    rankMarks[to]!.focus();
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

  // Height

  function drag(event: PointerEvent): void {
    const base = panel.clientHeight - event.clientY;
    handle.setPointerCapture(event.pointerId);
    handle.onpointermove = (moved) => resize(base + moved.clientY);
    handle.onlostpointercapture = () => (handle.onpointermove = null);
    event.preventDefault();
  }

  function resize(height: number): void {
    controls.height = max(LEAST, round(height));
    root.style.setProperty("--nb-height", `${controls.height}px`);
    attr(handle, "aria-valuenow", controls.height);
    keep();
    schedule();
  }

  // What the page does around us

  function lookAtTheme(): void {
    const { backgroundColor, color } = getComputedStyle(root);
    const background = numbers(backgroundColor) ?? [255, 255, 255];
    if (`${background}` === `${theme.background}` && root.dataset.theme) return;
    theme.background = background;
    theme.dark = luminance(background) < 0.18;
    theme.ink = numbers(color) ?? theme.ink;
    root.dataset.theme = theme.dark ? "dark" : "light";
    pane.repaint();
    rows.repaint();
    schedule();
  }

  on(
    tabs,
    "wheel",
    (event: WheelEvent) => {
      if (tabs.scrollWidth <= tabs.clientWidth || !event.deltaY) return;
      tabs.scrollLeft += event.deltaY;
      event.preventDefault();
    },
    { passive: false },
  );
  el.replaceChildren(root);
  const unsubscribe = store.subscribe(schedule);
  const page = new MutationObserver(lookAtTheme);
  page.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "class"] });
  requestAnimationFrame(lookAtTheme);
  const size = new ResizeObserver(() => {
    const width = root.clientWidth;
    root.classList.toggle("nb-narrow", width > 0 && width < 720);
    fadeTabs();
    schedule();
  });
  size.observe(root);
  size.observe(panel);
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
      page.disconnect();
      size.disconnect();
      root.remove();
    },
  };
  return self;
}

/** The parts of a computed colour; null if it is transparent. */
function numbers(colour: string): number[] | null {
  const parts = colour.match(/[\d.]+/g)?.map(Number) ?? [];
  return parts.length >= 3 && parts[3] !== 0 ? parts.slice(0, 3) : null;
}
