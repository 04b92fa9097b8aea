// One view of a run in a page: head, first cause, tabs, what the open tab shows, foot.

import { controls as initial, type Controls, type Tab } from "./controls";
import { attr, h, text } from "./dom";
import { banner, errors } from "./errors";
import { clock, duration, plural, timestamp } from "./format";
import { LogPane } from "./logpane";
import { luminance } from "./ansi";
import { Overview } from "./overview";
import type { Theme } from "./paint";
import { ended, type RunState } from "./protocol";
import type { RunStore } from "./store";

const STATES: Record<RunState, string> = {
  created: "waiting",
  starting: "starting",
  running: "running",
  stopping: "stopping",
  succeeded: "done",
  failed: "failed",
  stopped: "stopped",
};
const LEAST = 120;
let views = 0;

export class View {
  private readonly id = `nb${++views}`;
  private readonly controls: Controls;
  private readonly theme: Theme = { dark: false, background: [255, 255, 255], ink: [31, 35, 40] };
  private root = h("section", { class: "nb-run" });
  private mark = h("i", { class: "nb-mark nb-big" });
  private state = h("strong", { class: "nb-word", role: "status" });
  private name = h("span", { class: "nb-name" });
  private facts = h("span", { class: "nb-facts" });
  private marks = h("div", { class: "nb-marks", role: "group", "aria-label": "Ranks" });
  private stop = h("button", { type: "button", class: "nb-stop", disabled: true }, "Stop");
  private notice = h("div", { class: "nb-notice", role: "status", hidden: true });
  private cause = h("div");
  private tabs = h("div", { class: "nb-tabs", role: "tablist", "aria-label": "Views of the run" });
  private panel = h("div", { class: "nb-panel", role: "tabpanel" });
  private ending = h("span", { class: "nb-grow" });
  private foot = h("div", { class: "nb-foot" });
  private said = h("span", { class: "nb-headline" });
  private dir = h("span", { class: "nb-dir" });
  private pane: LogPane;
  private overview: Overview;
  private tabButtons = new Map<Tab, HTMLButtonElement>();
  private rankMarks: HTMLButtonElement[] = [];
  private frame = 0;
  private timer = 0;
  private reportShown: unknown = null;
  private bannerKey = "";
  private opened: Tab | null = null;
  private figures = 0;
  private killing = false;
  private focused: HTMLElement | null = null;
  private cleanups: (() => void)[] = [];

  constructor(
    public el: HTMLElement,
    public readonly store: RunStore,
  ) {
    this.controls = initial(store.ui);
    const schedule = (): void => this.schedule();
    this.pane = new LogPane(store, this.controls, this.theme, schedule, () => this.keep());
    this.overview = new Overview(store, this.theme, (rank) => this.open(rank));
    this.build();
    this.cleanups.push(store.subscribe(schedule));
    this.watchTheme();
    this.watchSize();
    this.schedule();
  }

  private build(): void {
    const { root, id } = this;
    root.append(
      h(
        "header",
        { class: "nb-head" },
        this.mark,
        this.state,
        this.name,
        this.facts,
        this.marks,
        this.ending,
        this.stop,
      ),
      this.notice,
      this.cause,
      h("div", { class: "nb-bar" }, this.tabs, this.pane.bar),
      this.panel,
      this.handle(),
      this.foot,
    );
    this.foot.append(this.said, this.dir);
    this.panel.id = `${id}-panel`;
    this.stop.addEventListener("click", () => this.pressStop());
    this.tabs.addEventListener("keydown", (event) => this.moveInTabs(event));
    this.tabs.addEventListener(
      "wheel",
      (event) => {
        if (this.tabs.scrollWidth <= this.tabs.clientWidth || !event.deltaY) return;
        this.tabs.scrollLeft += event.deltaY;
        event.preventDefault();
      },
      { passive: false },
    );
    this.tabs.addEventListener("scroll", () => this.fadeTabs(), { passive: true });
    this.marks.addEventListener("keydown", (event) => this.moveInMarks(event));
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("focusin", (event) => (this.focused = event.target as HTMLElement));
    root.addEventListener("focusout", () => {
      setTimeout(() => {
        if (root.isConnected && !root.contains(document.activeElement)) this.focused = null;
      });
    });
    this.el.replaceChildren(root);
  }

  /** True if the element that the view was drawn into was taken out of the page by itself, not with a cell. */
  get thrownAway(): boolean {
    return this.el.parentNode === null;
  }

  /** Go on in another element. */
  moveTo(el: HTMLElement): void {
    this.el = el;
    el.replaceChildren(this.root);
    const { focused } = this;
    requestAnimationFrame(() => {
      if (focused && document.activeElement === document.body) focused.focus({ preventScroll: true });
      this.pane.reattached();
      this.schedule();
    });
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    clearInterval(this.timer);
    for (const cleanup of this.cleanups) cleanup();
    this.root.remove();
  }

  private keep(): void {
    this.store.ui = { ...this.controls };
  }

  private schedule(): void {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.sync();
      });
    }
  }

  // Painting

  private sync(): void {
    const { store, controls } = this;
    const { snap } = store;
    attr(this.root, "data-state", snap?.state ?? "created");
    attr(this.root, "data-ready", store.ready ? "" : null);
    if (!snap) {
      text(this.state, "connecting");
      attr(this.mark, "data-state", "waiting");
      return;
    }
    const over = ended(snap.state);
    attr(this.root, "aria-label", `Run ${snap.name}`);
    this.head();
    this.ranks();
    if (store.report && store.report !== this.reportShown && !controls.chosen && controls.tab === "overview") {
      controls.tab = "errors";
    }
    this.buildTabs();
    this.failure();
    if (this.opened !== controls.tab) this.openTab();
    if (controls.tab === "overview") this.overview.sync();
    else if (controls.tab !== "errors") {
      this.pane.sync();
      let versions = 0;
      for (const held of store.displays.values()) versions += held.version + 1;
      if (versions !== this.figures) {
        this.figures = versions;
        this.pane.refreshFigures();
      }
    }
    text(this.ending, over ? snap.headline : "");
    attr(this.ending, "title", over ? snap.headline : null);
    text(this.said, [over ? "" : snap.headline, ...snap.notes].filter(Boolean).join("; "));
    text(this.dir, snap.dir ? `logs: ${shorten(snap.dir)}` : "");
    attr(this.dir, "title", snap.dir || null);
    this.foot.hidden = !snap.headline && !snap.notes.length && !snap.dir;
    if (!over && !store.gone && !this.timer) {
      this.timer = setInterval(() => this.second(), 1_000) as unknown as number;
    } else if ((over || store.gone) && this.timer) {
      clearInterval(this.timer);
      this.timer = 0;
    }
  }

  private second(): void {
    const silent = performance.now() - this.store.heardAt;
    if (silent > 15_000 && silent < 16_500) this.store.ask({ t: "ping" });
    this.schedule();
  }

  private head(): void {
    const { store } = this;
    const snap = store.snap!;
    const over = ended(snap.state);
    const gone = !over && store.gone !== "";
    attr(this.mark, "data-state", gone ? "stopped" : snap.state);
    text(this.state, gone ? "ended with its kernel" : STATES[snap.state]);
    text(this.name, snap.name);
    const until = snap.ended ?? (gone ? store.goneAt : store.now());
    const time =
      snap.started === null ? "" : over ? duration(until - snap.started) : clock(until - snap.started);
    let cpu = 0;
    for (const usage of store.usage.values()) cpu += usage[1];
    text(this.facts, [plural(snap.ranks.length, "rank"), time].filter(Boolean).join(", "));
    const silent = (performance.now() - store.heardAt) / 1000;
    const notice = gone
      ? `${store.gone} at ${timestamp(store.goneAt, false)}; the run ended with it`
      : !over && silent > 20
        ? `no news from the kernel for ${clock(silent)}`
        : !over && snap.state !== "stopping" && !store.ready
          ? ""
          : "";
    text(this.notice, notice);
    this.notice.hidden = !notice;
    this.stop.hidden = over || gone;
    const stopping = snap.state === "stopping";
    const label = stopping ? (this.killing ? "Kill now" : "Stopping") : "Stop";
    text(this.stop, label);
    this.stop.disabled = !store.ready || (stopping && !this.killing);
    attr(
      this.stop,
      "title",
      store.ready
        ? stopping
          ? "End what is left at once"
          : "Stop all ranks (Interrupt, then harder)"
        : "The kernel does not answer while the cell runs: use the kernel's Interrupt",
    );
    if (!stopping) this.killing = false;
  }

  private pressStop(): void {
    if (this.store.snap?.state === "stopping") {
      this.store.ask({ t: "kill" });
      return;
    }
    this.store.ask({ t: "stop" });
    this.stop.disabled = true;
    setTimeout(() => {
      this.killing = true;
      this.schedule();
    }, 1_500);
  }

  private ranks(): void {
    const snap = this.store.snap!;
    const many = snap.ranks.length > 24;
    this.marks.classList.toggle("nb-many", many);
    while (this.rankMarks.length < snap.ranks.length) {
      const rank = this.rankMarks.length;
      const mark = h("button", {
        type: "button",
        class: "nb-mark",
        tabindex: rank ? -1 : 0,
        click: () => this.open(rank),
      });
      this.rankMarks.push(mark);
      this.marks.append(mark);
    }
    snap.ranks.forEach(([state, , , , , words], rank) => {
      const mark = this.rankMarks[rank]!;
      attr(mark, "data-state", state);
      const title = `rank ${rank}: ${state}${words ? `, ${words.slice(0, 200)}` : ""}`;
      attr(mark, "title", title);
      attr(mark, "aria-label", title);
    });
  }

  private tabList(): Tab[] {
    const tabs: Tab[] = ["overview"];
    if (this.store.report) tabs.push("errors");
    tabs.push("all");
    for (let rank = 0; rank < (this.store.snap?.ranks.length ?? 0); rank++) tabs.push(rank);
    return tabs;
  }

  private buildTabs(): void {
    const wanted = this.tabList();
    if (wanted.length !== this.tabButtons.size) {
      for (const tab of wanted) {
        if (this.tabButtons.has(tab)) continue;
        const label = typeof tab === "number" ? String(tab) : tab[0]!.toUpperCase() + tab.slice(1);
        const button = h(
          "button",
          {
            type: "button",
            role: "tab",
            id: `${this.id}-${tab}`,
            "aria-controls": this.panel.id,
            "data-tab": tab,
            click: () => this.open(tab),
          },
          label,
        );
        if (typeof tab === "number") attr(button, "aria-label", `Rank ${tab}`);
        this.tabButtons.set(tab, button);
      }
      this.tabs.replaceChildren(...wanted.map((tab) => this.tabButtons.get(tab)!));
      this.fadeTabs();
    }
    for (const [tab, button] of this.tabButtons) {
      const chosen = tab === this.controls.tab;
      attr(button, "aria-selected", String(chosen));
      attr(button, "tabindex", chosen ? "0" : "-1");
      const state = typeof tab === "number" ? this.store.snap!.ranks[tab]?.[0] : undefined;
      attr(button, "data-state", tab === "errors" ? "failed" : (state ?? null));
    }
  }

  /** Show at which end of the row there are more tabs. */
  private fadeTabs(): void {
    const { scrollLeft, scrollWidth, clientWidth, classList } = this.tabs;
    classList.toggle("nb-over", scrollWidth > clientWidth + 1);
    classList.toggle("nb-start", scrollLeft < 4);
    classList.toggle("nb-end", scrollLeft + clientWidth > scrollWidth - 4);
  }

  private failure(): void {
    const { report } = this.store;
    this.reportShown = report;
    const inErrors = this.controls.tab === "errors";
    const key = report ? `${JSON.stringify(report)}${inErrors}` : "";
    if (key === this.bannerKey) return;
    this.bannerKey = key;
    this.cause.replaceChildren(...(report ? [banner(report, this.store.ranks.length, inErrors ? null : () => this.open("errors"))] : []));
    if (inErrors) this.opened = null;
  }

  // Tabs

  open(tab: Tab, focus = false): void {
    if (typeof tab === "number" && !this.store.snap?.ranks[tab]) return;
    this.controls.tab = tab;
    this.controls.chosen = true;
    this.keep();
    this.sync();
    const button = this.tabButtons.get(tab);
    button?.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (focus) button?.focus();
  }

  private openTab(): void {
    const { controls, store } = this;
    const { tab } = controls;
    this.opened = tab;
    const log = typeof tab === "number" || tab === "all";
    attr(this.panel, "aria-labelledby", `${this.id}-${tab}`);
    this.root.classList.toggle("nb-reading", log);
    this.pane.bar.hidden = !log;
    if (log) {
      this.pane.open(tab === "all" ? store.all : store.ranks[tab]!.lines);
      this.panel.replaceChildren(this.pane.body);
    } else if (tab === "errors" && store.report) {
      this.panel.replaceChildren(errors(store.report));
      // Tracebacks end with what matters.
      const raised = this.panel.querySelector(".nb-failure > .nb-trace > .nb-raised");
      const list = this.panel.firstElementChild!;
      if (raised) list.scrollTop += raised.getBoundingClientRect().bottom - list.getBoundingClientRect().bottom + 8;
    } else {
      this.panel.replaceChildren(this.overview.body);
    }
    this.resize(controls.height);
  }

  private moveInTabs(event: KeyboardEvent): void {
    const tabs = this.tabList();
    const at = tabs.indexOf(this.controls.tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    this.open(tabs[(to + tabs.length) % tabs.length]!, true);
    event.preventDefault();
    event.stopPropagation();
  }

  private moveInMarks(event: KeyboardEvent): void {
    const at = this.rankMarks.indexOf(event.target as HTMLButtonElement);
    const last = this.rankMarks.length - 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    const next = to === undefined ? undefined : this.rankMarks[(to + last + 1) % (last + 1)];
    if (!next) return;
    for (const mark of this.rankMarks) mark.tabIndex = mark === next ? 0 : -1;
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  }

  // Keyboard

  private typed = "";
  private typedAt = 0;

  private key(event: KeyboardEvent): void {
    const command = event.ctrlKey || event.metaKey;
    const inText = event.target instanceof HTMLInputElement;
    const reading = this.root.classList.contains("nb-reading");
    if (command && !event.altKey && event.key === "f" && reading) this.pane.openFind();
    else if (command && event.key === "a" && reading && !inText) this.pane.selectAll();
    else if (command || event.altKey) return;
    // From here on the key is ours: the notebook would take a letter for one of its own commands.
    else if (inText) {
      event.stopPropagation();
      return;
    } else if (/^\d$/.test(event.key)) this.digit(event.key);
    else if (event.key === "o") this.open("overview");
    else if (event.key === "a") this.open("all");
    else if (event.key === "e" && this.store.report) this.open("errors");
    else if (event.key === "/" && !reading) {
      this.open("all");
      this.pane.focusFilter();
    } else if (!(reading && this.pane.key(event))) {
      if (event.key !== "Tab") event.stopPropagation();
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private digit(key: string): void {
    const now = performance.now();
    const longer = now - this.typedAt < 700 ? this.typed + key : key;
    this.typed = this.store.snap?.ranks[Number(longer)] ? longer : key;
    this.typedAt = now;
    this.open(Number(this.typed));
    this.pane.focusLog();
  }

  // Height

  private handle(): HTMLElement {
    const handle = h("div", {
      class: "nb-handle",
      role: "separator",
      tabindex: 0,
      "aria-orientation": "horizontal",
      "aria-label": "Height",
      title: "Drag, or use the arrow keys, to change the height",
    });
    handle.addEventListener("pointerdown", (event) => {
      const from = event.clientY;
      const height = this.panel.clientHeight;
      handle.setPointerCapture(event.pointerId);
      const move = (e: PointerEvent): void => this.resize(height + e.clientY - from);
      handle.addEventListener("pointermove", move);
      handle.addEventListener("lostpointercapture", () => handle.removeEventListener("pointermove", move), {
        once: true,
      });
      event.preventDefault();
    });
    handle.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 20, ArrowUp: -20 }[event.key];
      if (by === undefined) return;
      this.resize(this.panel.clientHeight + by);
      event.preventDefault();
      event.stopPropagation();
    });
    return handle;
  }

  private resize(height: number): void {
    this.controls.height = Math.max(LEAST, Math.round(height));
    this.root.style.setProperty("--nb-height", `${this.controls.height}px`);
    attr(this.root.querySelector(".nb-handle")!, "aria-valuenow", String(this.controls.height));
    this.keep();
    this.schedule();
  }

  // What the page does around us

  private watchTheme(): void {
    const { theme, root } = this;
    const look = (): void => {
      const { backgroundColor, color } = getComputedStyle(root);
      const background = numbers(backgroundColor) ?? [255, 255, 255];
      if (String(background) === String(theme.background) && root.dataset.theme) return;
      theme.background = background;
      theme.dark = luminance(background) < 0.18;
      root.dataset.theme = theme.dark ? "dark" : "light";
      theme.ink = numbers(color) ?? theme.ink;
      this.pane.repaint();
      this.overview.repaint();
      this.schedule();
    };
    // The style sheet lets the background change in a moment rather than at once, so that there is an event for it.
    root.addEventListener("transitionend", look);
    const observer = new MutationObserver(look);
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "class"] });
    this.cleanups.push(() => observer.disconnect());
    requestAnimationFrame(look);
  }

  private watchSize(): void {
    const observer = new ResizeObserver(() => {
      const width = this.root.clientWidth;
      this.root.classList.toggle("nb-narrow", width > 0 && width < 720);
      this.fadeTabs();
      this.schedule();
    });
    observer.observe(this.root);
    observer.observe(this.panel);
    this.cleanups.push(() => observer.disconnect());
  }
}

/** The parts of a computed colour; null if it is transparent. */
function numbers(colour: string): number[] | null {
  const parts = colour.match(/[\d.]+/g)?.map(Number) ?? [];
  return parts.length >= 3 && parts[3] !== 0 ? parts.slice(0, 3) : null;
}

function shorten(path: string): string {
  const parts = path.split("/");
  return parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : path;
}
