// A field: its label, its input, and below it what is wrong with it.

import { attr, h, text } from "../dom";

type Input = HTMLInputElement | HTMLSelectElement;

export class Field {
  readonly element: HTMLElement;
  private sentence: HTMLElement;
  private note: HTMLElement;
  private describes: string;

  constructor(
    label: string | HTMLElement,
    readonly input: Input,
    control: HTMLElement = input,
    { wide = false, hint = "" }: { wide?: boolean; hint?: string } = {},
  ) {
    const id = input.id;
    this.sentence = h("p", { class: "np-error", id: `${id}-error`, hidden: true });
    this.note = h("p", { class: "np-note", id: `${id}-note`, hidden: true });
    const hinted = hint ? h("p", { class: "np-note", id: `${id}-hint` }, hint) : null;
    this.describes = hint ? `${id}-hint` : "";
    this.element = h(
      "div",
      { class: wide ? "np-field np-wide" : "np-field" },
      typeof label === "string" ? h("label", { class: "np-label", for: id }, label) : label,
      h("div", { class: "np-control" }, control, this.sentence, this.note, hinted),
    );
    this.say("", "");
  }

  say(error: string, note: string): void {
    text(this.sentence, error);
    this.sentence.hidden = !error;
    text(this.note, note);
    this.note.hidden = !note || Boolean(error);
    attr(this.input, "aria-invalid", error ? "true" : null);
    const described = [error && this.sentence.id, !error && note && this.note.id, this.describes].filter(Boolean);
    attr(this.input, "aria-describedby", described.length ? described.join(" ") : null);
  }
}

export function textInput(id: string, placeholder: string, changed: (value: string) => void, code = false): HTMLInputElement {
  const input: HTMLInputElement = h("input", {
    id,
    class: code ? "np-input np-code" : "np-input",
    type: "text",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    placeholder,
    input: () => changed(input.value),
  });
  return input;
}

export function select(id: string, choices: [string, string][], changed: (value: string) => void): HTMLSelectElement {
  const input: HTMLSelectElement = h(
    "select",
    { id, class: "np-input np-select", change: () => changed(input.value) },
    ...choices.map(([value, label]) => h("option", { value }, label)),
  );
  return input;
}
