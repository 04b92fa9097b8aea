// A field: its label, its input, and below it what is wrong with it.

import { attr, h, text } from "../dom";

type Input = HTMLInputElement | HTMLSelectElement;

export class Field {
  readonly element: HTMLElement;
  private sentence: HTMLElement;
  private note: HTMLElement;

  constructor(
    label: string | HTMLElement,
    readonly input: Input,
    control: HTMLElement = input,
    place: "wide" | "right" | "" = "",
  ) {
    const id = input.id;
    this.sentence = h("p", { class: "np-error", id: `${id}-error`, hidden: true });
    this.note = h("p", { class: "np-note", id: `${id}-note`, hidden: true });
    this.element = h(
      "div",
      { class: place ? `np-field np-${place}` : "np-field" },
      typeof label === "string" ? h("label", { class: "np-label", for: id }, label) : label,
      h("div", { class: "np-control" }, control, this.sentence, this.note),
    );
    this.say("", "");
  }

  say(error: string, note: string): void {
    text(this.sentence, error);
    this.sentence.hidden = !error;
    text(this.note, note);
    this.note.hidden = !note || Boolean(error);
    attr(this.input, "aria-invalid", error ? "true" : null);
    attr(this.input, "aria-describedby", error ? this.sentence.id : note ? this.note.id : null);
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
