// The runs that the form has started: a line for each, and below it, if it is open, its live view.

import { attr, h, icon, text } from "../dom";
import { clock, duration } from "../format";
import type { Host, Kept, Model, Run } from "./state";

const ENDED = new Set(["succeeded", "failed", "stopped"]);

/** What a state is called. */
function wordOf(state: string): string {
  return state === "created" ? "waiting" : state;
}

export class RunList {
  readonly element = h("section", { class: "np-runs", "aria-label": "Runs" });
  private lines = new Map<number, Line>();
  private timer = 0;
  private dispose_: () => void;

  constructor(
    private model: Model,
    private host: Host | undefined,
    private kept: Kept,
  ) {
    const changed = (): void => this.update();
    model.on("change:runs", changed);
    this.dispose_ = () => model.off("change:runs", changed);
    this.update();
  }

  dispose(): void {
    this.dispose_();
    clearInterval(this.timer);
    for (const line of this.lines.values()) line.dispose();
  }

  private update(): void {
    const runs = this.model.get("runs") as Run[];
    const newest = runs[0];
    if (newest && newest.id > this.kept.newest) {
      this.kept.newest = newest.id;
      for (const run of runs) if (ENDED.has(run.state) && !this.kept.byHand.has(run.id)) this.kept.open.delete(run.id);
      this.kept.open.add(newest.id);
    }
    const ids = new Set(runs.map((run) => run.id));
    for (const [id, line] of this.lines) {
      if (ids.has(id)) continue;
      line.dispose();
      this.lines.delete(id);
    }
    let before: Element | null = this.element.firstElementChild;
    for (const run of runs) {
      let line = this.lines.get(run.id);
      if (!line) {
        line = new Line(run, this.model, this.host, this.kept);
        this.lines.set(run.id, line);
        this.element.insertBefore(line.element, before);
      }
      line.update(run);
      before = line.element.nextElementSibling;
    }
    this.element.hidden = !runs.length;
    const running = runs.some((run) => !ENDED.has(run.state));
    clearInterval(this.timer);
    if (running) this.timer = window.setInterval(() => this.lines.forEach((line) => line.tick()), 500);
  }
}

class Line {
  readonly element: HTMLElement;
  private mark = h("i", { class: "np-mark" });
  private state = h("span", { class: "np-state" });
  private call = h("span", { class: "np-call" });
  private count = h("span", { class: "np-times" });
  private time = h("span", { class: "np-time" });
  private said = h("span", { class: "np-said" });
  private stop: HTMLButtonElement;
  private remove: HTMLButtonElement;
  private again: HTMLButtonElement;
  private change: HTMLButtonElement;
  private head: HTMLButtonElement;
  private place = h("div", { class: "np-place" });
  private skew = 0;
  private shown: AbortController | null = null;

  constructor(
    private run: Run,
    private model: Model,
    private host: Host | undefined,
    private kept: Kept,
  ) {
    this.stop = this.button("Stop", () => this.ask(this.run.state === "stopping" ? "kill" : "stop"));
    this.again = this.button("Run again", () => this.ask("again"));
    this.change = this.button("Change", () => this.edit());
    this.remove = this.button("", () => this.ask("remove"));
    this.remove.append(icon("close"));
    this.remove.setAttribute("aria-label", "Take this run off the list");
    this.remove.title = "Take this run off the list; its logs stay";
    this.head = h(
      "button",
      { type: "button", class: "np-open", click: () => this.toggle() },
      icon("down"),
      this.mark,
      this.state,
      this.call,
      this.count,
    );
    this.place.id = `np-run-${run.id}-${Math.random().toString(36).slice(2)}`;
    this.head.setAttribute("aria-controls", this.place.id);
    this.element = h(
      "article",
      { class: "np-run" },
      h(
        "div",
        { class: "np-head" },
        this.head,
        this.said,
        this.time,
        h("div", { class: "np-acts" }, this.stop, this.again, this.change, this.remove),
      ),
      this.place,
    );
  }

  update(run: Run): void {
    this.run = run;
    this.skew = Date.now() / 1000 - run.now;
    const ended = ENDED.has(run.state);
    this.element.dataset.state = run.state;
    attr(this.mark, "data-state", run.state);
    text(this.state, wordOf(run.state));
    text(this.call, run.call);
    this.call.title = run.call;
    text(this.count, `\u00d7 ${run.nprocs}`);
    this.count.title = `${run.nprocs} ranks`;
    text(this.said, run.said);
    this.said.title = run.said;
    attr(this.head, "aria-label", `${run.call}, ${run.nprocs} ranks, ${wordOf(run.state)}${run.said ? `: ${run.said}` : ""}`);
    text(this.stop, run.state === "stopping" ? "Kill now" : "Stop");
    this.again.hidden = !ended;
    this.remove.hidden = !ended;
    this.tick();
    this.draw();
  }

  tick(): void {
    const { started, ended } = this.run;
    if (started === null) return text(this.time, "");
    text(this.time, ended === null ? clock(Date.now() / 1000 - this.skew - started) : duration(ended - started));
  }

  dispose(): void {
    this.shown?.abort();
    this.element.remove();
  }

  private button(label: string, click: () => void): HTMLButtonElement {
    return h("button", { type: "button", class: "np-act", click }, label);
  }

  private ask(t: string): void {
    this.model.send({ t, run: this.run.id });
  }

  private edit(): void {
    this.ask("change");
    const form = this.element.closest(".np")?.querySelector("form");
    const wanted = [...(form?.querySelectorAll<HTMLElement>("[id$='-arguments'], [id$='-function']") ?? [])];
    (wanted.find((input) => input.id.endsWith("-arguments") && input.offsetParent) ?? wanted[0])?.focus();
  }

  private toggle(): void {
    const { open, byHand } = this.kept;
    if (open.delete(this.run.id)) byHand.delete(this.run.id);
    else {
      open.add(this.run.id);
      byHand.add(this.run.id);
    }
    this.draw();
  }

  private draw(): void {
    const open = this.kept.open.has(this.run.id);
    attr(this.head, "aria-expanded", String(open));
    this.element.classList.toggle("np-opened", open);
    this.place.hidden = !open;
    this.stop.hidden = open || ENDED.has(this.run.state); // an open view has its own
    if (open && !this.shown) void this.show();
    if (!open && this.shown) {
      this.shown.abort();
      this.shown = null;
      this.place.replaceChildren();
    }
  }

  private async show(): Promise<void> {
    const shown = (this.shown = new AbortController());
    try {
      if (!this.host) throw new Error("this front end cannot show a view inside another");
      const widget = await this.host.getWidget(this.run.model);
      if (shown.signal.aborted) return;
      const el = h("div");
      this.place.replaceChildren(el);
      await widget.render({ el, signal: shown.signal });
    } catch (error) {
      if (shown.signal.aborted) return;
      this.place.replaceChildren(
        h("p", { class: "np-note" }, `The view cannot be shown here (${String(error).replace(/^Error: /, "")}); display the run's variable in a cell.`),
      );
    }
  }
}
