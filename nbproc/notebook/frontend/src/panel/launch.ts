// The foot of the form: what would run, as code, and the button that runs it.

import { attr, h, icon, text } from "../dom";
import { countOf, type Checked, type Values } from "./state";

export class LaunchFoot {
  readonly element: HTMLElement;
  private code = h("code", { class: "np-text", tabindex: "0", role: "textbox", "aria-readonly": "true", "aria-label": "Equivalent code" });
  private copy: HTMLButtonElement;
  private launch = h("button", { type: "submit", class: "np-launch" });
  private wants = h("span", { class: "np-wants", role: "status" });

  constructor() {
    this.copy = h("button", { type: "button", class: "np-small np-copy", click: () => void this.copyCode() }, icon("copy"), "Copy");
    this.element = h(
      "div",
      { class: "np-foot" },
      h("div", { class: "np-codebox" }, this.code, this.copy),
      h("div", { class: "np-go" }, this.wants, this.launch),
    );
  }

  draw(checked: Checked, values: Values, busy: boolean): void {
    const wrong = Object.keys(checked.errors).length;
    text(this.code, checked.code || (wrong ? "The code appears here when the marked fields are right." : ""));
    this.code.classList.toggle("np-no", !checked.code);
    this.copy.hidden = !checked.code;
    const count = countOf(values);
    text(this.launch, busy ? "Launching\u2026" : count ? `Launch ${count} rank${count === 1 ? "" : "s"}` : "Launch");
    this.launch.disabled = !busy && !checked.ready;
    attr(this.launch, "aria-disabled", busy ? "true" : null); // not disabled: the keyboard stays where it is
    text(this.wants, busy || wrong ? "" : checked.wants);
  }

  private async copyCode(): Promise<void> {
    try {
      await navigator.clipboard.writeText(this.code.textContent ?? "");
      this.copied("Copied");
    } catch {
      const range = document.createRange();
      range.selectNodeContents(this.code);
      getSelection()?.removeAllRanges();
      getSelection()?.addRange(range);
      this.copied("Selected");
    }
  }

  private copied(word: string): void {
    const label = this.copy.lastChild!;
    label.textContent = word;
    setTimeout(() => (label.textContent = "Copy"), 1500);
  }
}
