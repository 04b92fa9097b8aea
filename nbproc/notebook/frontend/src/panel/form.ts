// The form: what to launch, on how many ranks, and, folded away at first, everything else.

import { attr, h, icon, text } from "../dom";
import { Combo } from "./combo";
import { Field, select, textInput } from "./fields";
import { LaunchFoot } from "./launch";
import { RankTable } from "./ranks";
import { countOf, type Checked, type Fn, type Form, type Kept, type Launch, type Model, type TextField, type Values } from "./state";

const PAUSE = 60;
const PATIENCE = 1500;
const streams = (where: string): [string, string][] => [
  ["", "nothing"],
  ["1", `stdout ${where}`],
  ["2", `stderr ${where}`],
  ["3", `both ${where}`],
];
const METHODS: [string, string][] = [
  ["", "forkserver (default)"],
  ["spawn", "spawn"],
  ["fork", "fork"],
];
const FOLDED: [keyof Values, string][] = [
  ["environment", "environment"],
  ["name", "name"],
  ["start_method", "start method"],
  ["timeout", "timeout"],
  ["redirects", "redirect"],
  ["tee", "tee"],
  ["filters", "filters"],
  ["log_dir", "log directory"],
];

export class FormView {
  readonly element: HTMLFormElement;
  private values: Values;
  private checked: Checked;
  private view = crypto.randomUUID();
  private timer = 0;
  private wait = 0;
  private launchingFrom: number | null = null;
  private fields = new Map<string, Field>();
  private combo: Combo;
  private table: RankTable;
  private kinds: HTMLInputElement[] = [];
  private about = h("p", { class: "np-about" });
  private functionPart: HTMLElement;
  private programPart: HTMLElement;
  private argumentsPart: HTMLElement;
  private methodPart: HTMLElement;
  private perGpu = h("button", { type: "button", class: "np-small", hidden: true, click: () => this.onePerGpu() });
  private options = h("div", { class: "np-options" });
  private fold: HTMLButtonElement;
  private set = h("span", { class: "np-set" });
  private foot = new LaunchFoot();
  private banner = h("div", { class: "np-banner", role: "alert", hidden: true });
  private cleanups: (() => void)[] = [];

  constructor(
    private id: string,
    private model: Model,
    private kept: Kept,
  ) {
    this.values = structuredClone((model.get("form") as Form).values);
    this.checked = model.get("checked") as Checked;
    this.combo = new Combo(`${id}-function`, () => this.choices(), (name) => this.change("function", name));
    this.combo.input.addEventListener("input", () => this.change("function", this.combo.input.value));
    this.table = new RankTable(`${id}-rank`, () => this.values, () => this.edited());
    this.fold = h("button", { type: "button", class: "np-fold", click: () => this.unfold(!this.kept.optionsOpen) }, icon("down"), "Options");
    const kind = h(
      "div",
      { class: "np-kinds", role: "radiogroup", "aria-label": "What to launch" },
      this.kind("Function", false),
      this.kind("Program", true),
    );
    this.functionPart = this.add("function", "", this.combo.input, { control: this.combo.element });
    this.programPart = this.add("executable", "", this.input("executable", "python, torchrun, ./train.sh", true));
    for (const [part, name] of [[this.functionPart, "Function"], [this.programPart, "Program"]] as const) {
      part.querySelector("label")!.textContent = name;
      part.querySelector("label")!.className = "np-hidden";
    }
    const ranks = this.input("nprocs", "", false);
    ranks.inputMode = "numeric";
    ranks.addEventListener("keydown", (event) => this.step(event));
    const stepper = h(
      "div",
      { class: "np-stepper" },
      h("button", { type: "button", class: "np-step", tabindex: "-1", "aria-label": "One rank less", click: () => this.by(-1) }, "\u2212"),
      ranks,
      h("button", { type: "button", class: "np-step", tabindex: "-1", "aria-label": "One rank more", click: () => this.by(1) }, "+"),
    );
    this.argumentsPart = this.add("arguments", "Arguments", this.input("arguments", "", true));
    this.methodPart = this.add("start_method", "Start method", select(`${id}-start_method`, METHODS, (value) => this.change("start_method", value)));
    this.options.id = `${id}-options`;
    this.fold.setAttribute("aria-controls", this.options.id);
    this.options.append(
      this.add("environment", "Environment", this.input("environment", 'NAME=value OTHER="two words"', true), { place: "wide" }),
      this.add("name", "Name", this.input("name", "", false)),
      this.add("variable", "Variable", this.input("variable", "no variable", true), { place: "right" }),
      this.methodPart,
      this.add("timeout", "Timeout", this.input("timeout", "none, or seconds", false), { place: "right" }),
      this.add("redirects", "Redirect", select(`${id}-redirects`, streams("to files only"), (value) => this.change("redirects", value))),
      this.add("tee", "Tee", select(`${id}-tee`, streams("to files and console"), (value) => this.change("tee", value)), { place: "right" }),
      this.add("filters", "Filters", this.input("filters", 'lines with: loss "val acc"', true)),
      this.add("log_dir", "Log directory", this.input("log_dir", "private, or where NAME-1, NAME-2 go", true), { place: "right" }),
      h("h4", { class: "np-heading np-wide" }, "By rank"),
      this.table.element,
    );
    this.element = h(
      "form",
      { class: "np-form", novalidate: true, "aria-label": "Launch", submit: (event: Event) => this.submit(event), keydown: (event: KeyboardEvent) => this.key(event) },
      h(
        "div",
        { class: "np-top" },
        kind,
        h("div", { class: "np-what" }, this.functionPart, this.programPart),
        h("div", { class: "np-count" }, this.add("nprocs", "Ranks", ranks, { control: stepper }), this.perGpu),
      ),
      this.about,
      this.argumentsPart,
      h("div", { class: "np-foldline" }, this.fold, this.set),
      this.options,
      this.banner,
      this.foot.element,
    );
    this.argumentsPart.classList.add("np-line");
    this.listen("change:form", () => this.formChanged());
    this.listen("change:checked", () => this.checkedChanged());
    this.listen("change:functions", () => this.combo.refresh());
    this.listen("change:members", () => this.combo.refresh());
    this.listen("change:gpus", () => this.draw());
    this.listen("change:launch", () => this.launchChanged());
    this.fill();
    this.launchChanged();
  }

  dispose(): void {
    clearTimeout(this.timer);
    clearTimeout(this.wait);
    this.combo.dispose();
    for (const each of this.cleanups) each();
  }

  // Building

  private listen(event: string, listener: () => void): void {
    this.model.on(event, listener);
    this.cleanups.push(() => this.model.off(event, listener));
  }

  private input(name: TextField, placeholder: string, code: boolean): HTMLInputElement {
    return textInput(`${this.id}-${name}`, placeholder, (value) => this.change(name, value), code);
  }

  private add(
    name: TextField,
    label: string,
    input: HTMLInputElement | HTMLSelectElement,
    { control = input, place = "" }: { control?: HTMLElement; place?: "wide" | "right" | "" } = {},
  ): HTMLElement {
    const field = new Field(label, input, control, place);
    this.fields.set(name, field);
    return field.element;
  }

  private kind(label: string, program: boolean): HTMLElement {
    const radio: HTMLInputElement = h("input", {
      type: "radio",
      name: `${this.id}-kind`,
      change: () => {
        this.values.program = program;
        this.edited();
      },
    });
    this.kinds.push(radio);
    return h("label", { class: "np-kind" }, radio, h("span", {}, label));
  }

  // Changing

  private change(name: TextField, value: string): void {
    this.values[name] = value;
    this.edited();
  }

  private edited(): void {
    this.say("");
    this.draw();
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.send("edit"), PAUSE);
  }

  private send(t: "edit" | "launch"): void {
    clearTimeout(this.timer);
    this.timer = 0;
    this.model.send({ t, view: this.view, seq: ++this.kept.seq, values: this.values });
  }

  private by(step: number): void {
    const count = countOf(this.values) || (step > 0 ? 0 : 2);
    this.change("nprocs", String(Math.max(1, count + step)));
    this.fill();
  }

  private step(event: KeyboardEvent): void {
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    this.by(event.key === "ArrowUp" ? 1 : -1);
  }

  private onePerGpu(): void {
    this.change("nprocs", String(this.model.get("gpus")));
    this.fill();
  }

  private unfold(open: boolean): void {
    this.kept.optionsOpen = open;
    this.draw();
  }

  /** Enter launches from any field, also before the last key was looked at: the kernel looks again. */
  private key(event: KeyboardEvent): void {
    const { target } = event;
    if (event.key !== "Enter" || event.defaultPrevented || event.isComposing) return;
    if (!(target instanceof HTMLInputElement || target instanceof HTMLSelectElement)) return;
    event.preventDefault();
    const stale = this.timer !== 0 || this.checked.seq < this.kept.seq;
    if (stale || this.checked.ready) this.submit();
    else this.element.querySelector<HTMLElement>("[aria-invalid]")?.focus();
  }

  private submit(event?: Event): void {
    event?.preventDefault();
    if (this.busy()) return;
    this.launchingFrom = (this.model.get("launch") as Launch).number ?? 0;
    this.send("launch");
    this.say("");
    this.wait = window.setTimeout(
      () => this.say("The kernel does not answer yet: the launch begins when its cell is done. After a restart, run this cell again.", true),
      PATIENCE,
    );
    this.draw();
  }

  private busy(): boolean {
    return this.launchingFrom !== null || Boolean((this.model.get("launch") as Launch).busy);
  }

  // What the kernel says

  private formChanged(): void {
    const form = this.model.get("form") as Form;
    if (form.view === this.view) return;
    this.values = structuredClone(form.values);
    this.kept.seq = Math.max(this.kept.seq, form.seq);
    this.fill();
  }

  private checkedChanged(): void {
    const checked = this.model.get("checked") as Checked;
    if (checked.view === this.view && (checked.seq < this.kept.seq || this.timer)) return;
    this.checked = checked;
    if (Object.keys(checked.errors).some((name) => this.isFolded(name))) this.kept.optionsOpen = true;
    this.draw();
  }

  private launchChanged(): void {
    const launch = this.model.get("launch") as Launch;
    if (this.launchingFrom !== null && (launch.number ?? 0) > this.launchingFrom) {
      this.launchingFrom = null;
      clearTimeout(this.wait);
      this.say("");
    }
    if (launch.said) this.say(launch.said);
    this.draw();
  }

  private isFolded(name: string): boolean {
    return name.includes(".") || this.options.contains(this.fields.get(name)?.element ?? null);
  }

  private choices(): Fn[] {
    const members = this.combo.input.value.includes(".") ? (this.model.get("members") as Fn[]) : [];
    return [...(this.model.get("functions") as Fn[]), ...members];
  }

  // Drawing

  private fill(): void {
    for (const [name, field] of this.fields) {
      const value = this.values[name as TextField];
      if (field.input.value !== value) field.input.value = value;
    }
    this.kinds.forEach((radio, index) => (radio.checked = this.values.program === (index === 1)));
    this.draw();
  }

  private say(words: string, quiet = false): void {
    text(this.banner, words);
    this.banner.hidden = !words;
    this.banner.classList.toggle("np-quiet", quiet);
  }

  private draw(): void {
    const { values, checked, kept } = this;
    const program = values.program;
    this.functionPart.hidden = program;
    this.programPart.hidden = !program;
    this.methodPart.hidden = program;
    this.drawAbout();
    const takes = program || (checked.takes && Boolean(checked.about)) || Boolean(values.arguments.trim());
    this.argumentsPart.hidden = !takes;
    const { about } = checked;
    (this.fields.get("arguments")!.input as HTMLInputElement).placeholder = program
      ? "train.py --seed {rank}"
      : about?.signature.slice(1, -1) ?? "";
    (this.fields.get("name")!.input as HTMLInputElement).placeholder = program ? values.executable.trim() || "program" : values.function.split(".").pop() || "run";
    for (const [name, field] of this.fields) field.say(checked.errors[name] ?? "", checked.notes[name] ?? "");
    this.options.hidden = !kept.optionsOpen;
    attr(this.fold, "aria-expanded", String(kept.optionsOpen));
    this.set.hidden = kept.optionsOpen;
    const wrong = Object.keys(checked.errors).some((name) => this.isFolded(name));
    text(this.set, wrong ? "a field in here is to be mended" : this.whatIsSet());
    this.set.classList.toggle("np-error", wrong);
    if (kept.optionsOpen) this.table.update(checked.errors);
    const gpus = Number(this.model.get("gpus"));
    this.perGpu.hidden = !gpus;
    text(this.perGpu, `one per GPU (${gpus})`);
    this.foot.draw(checked, values, this.busy());
  }

  private drawAbout(): void {
    const { about } = this.checked;
    const show = !this.values.program && about !== null && about.name === this.values.function.trim();
    this.about.hidden = !show;
    if (!show) return;
    const key = JSON.stringify(about);
    if (this.about.dataset.key === key) return;
    this.about.dataset.key = key;
    this.about.replaceChildren(
      h("code", {}, about.name.split(".").pop()!, about.signature),
      ...(about.doc ? [h("span", {}, about.doc)] : []),
    );
  }

  private whatIsSet(): string {
    const said = FOLDED.filter(([name]) => String(this.values[name]).trim()).map(([, words]) => words);
    if (Object.keys(this.values.ranks).some((rank) => Number(rank) < countOf(this.values))) said.push("by rank");
    return said.join(", ");
  }
}
