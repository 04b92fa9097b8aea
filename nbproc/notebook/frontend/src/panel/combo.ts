// The field for a function: a text, with a list below it of what the notebook has.

import { attr, h } from "../dom";
import type { Fn } from "./state";

export class Combo {
  readonly input: HTMLInputElement;
  private list = h("div", { class: "np-list", role: "listbox", "aria-label": "Functions" });
  private shown: Fn[] = [];
  private active = -1;
  private open = false;
  /** Somebody is typing or looking: a list that was empty opens when it is not so any more. */
  private asked = false;
  private cleanup: (() => void)[] = [];

  constructor(
    id: string,
    private choices: () => Fn[],
    private chosen: (name: string) => void,
  ) {
    this.input = h("input", {
      id,
      class: "np-input np-code",
      type: "text",
      role: "combobox",
      autocomplete: "off",
      spellcheck: "false",
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": `${id}-list`,
      placeholder: "choose a function, or type module.name",
      focus: () => this.input.select(),
      click: () => this.ask(true),
      input: () => this.ask(false),
      keydown: (event: KeyboardEvent) => this.key(event),
      blur: () => this.leave(),
    });
    this.list.id = `${id}-list`;
    this.list.setAttribute("popover", "manual");
    this.list.addEventListener("mousedown", (event) => event.preventDefault());
    const moved = (event: Event): void => {
      if (this.open && event.target !== this.list) this.place();
    };
    document.addEventListener("scroll", moved, true);
    window.addEventListener("resize", moved);
    this.cleanup.push(() => {
      document.removeEventListener("scroll", moved, true);
      window.removeEventListener("resize", moved);
    });
  }

  get element(): HTMLElement {
    return h("div", { class: "np-combo" }, this.input, this.list);
  }

  /** The list is another one: show it, if it is open. */
  refresh(): void {
    if (this.asked) this.show(false);
  }

  dispose(): void {
    for (const each of this.cleanup) each();
  }

  private ask(all: boolean): void {
    this.asked = true;
    this.show(all);
  }

  private leave(): void {
    this.asked = false;
    this.hide();
  }

  private show(all: boolean): void {
    const text = this.input.value.trim().toLowerCase();
    const choices = this.choices();
    const known = choices.some((each) => each.name.toLowerCase() === text);
    this.shown = all || known || !text ? choices : choices.filter((each) => each.name.toLowerCase().includes(text));
    this.active = this.shown.findIndex((each) => each.name === this.input.value.trim());
    this.list.replaceChildren(
      ...this.shown.map((each, index) =>
        h(
          "div",
          {
            class: "np-option",
            role: "option",
            id: `${this.list.id}-${index}`,
            click: () => this.choose(index),
          },
          h("span", { class: "np-fn" }, h("b", {}, each.name), each.signature),
          each.doc && h("span", { class: "np-doc" }, each.doc),
        ),
      ),
    );
    if (!this.shown.length) {
      if (choices.length || text) return this.hide();
      this.list.append(h("div", { class: "np-none" }, "The notebook has no function yet: run a cell that defines one."));
    }
    if (!this.open) {
      this.open = true;
      this.list.showPopover?.();
    }
    this.place();
    attr(this.input, "aria-expanded", "true");
    this.mark();
  }

  private place(): void {
    const box = this.input.getBoundingClientRect();
    const below = window.innerHeight - box.bottom - 8;
    const above = box.top - 8;
    const up = below < 160 && above > below;
    const style = this.list.style;
    style.left = `${box.left}px`;
    style.minWidth = `${box.width}px`;
    style.maxWidth = `${Math.max(box.width, Math.min(720, window.innerWidth - box.left - 12))}px`;
    style.maxHeight = `${Math.min(320, up ? above : below)}px`;
    style.top = up ? "auto" : `${box.bottom + 2}px`;
    style.bottom = up ? `${window.innerHeight - box.top + 2}px` : "auto";
  }

  private hide(): void {
    if (!this.open) return;
    this.open = false;
    this.active = -1;
    this.list.hidePopover?.();
    attr(this.input, "aria-expanded", "false");
    attr(this.input, "aria-activedescendant", null);
  }

  private mark(): void {
    [...this.list.children].forEach((option, index) => {
      attr(option, "aria-selected", index === this.active ? "true" : null);
      if (index === this.active) option.scrollIntoView({ block: "nearest" });
    });
    attr(this.input, "aria-activedescendant", this.active < 0 ? null : `${this.list.id}-${this.active}`);
  }

  private choose(index: number): void {
    const found = this.shown[index];
    this.leave();
    if (!found) return;
    this.input.value = found.name;
    this.chosen(found.name);
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!this.open) return this.ask(true);
      const step = event.key === "ArrowDown" ? 1 : -1;
      const n = this.shown.length;
      this.active = n ? (this.active < 0 && step < 0 ? n - 1 : (this.active + step + n) % n) : -1;
      this.mark();
    } else if (event.key === "Escape" && this.asked) {
      event.preventDefault();
      event.stopPropagation();
      this.leave();
    } else if (event.key === "Enter" && this.open && this.active >= 0) {
      const same = this.shown[this.active]?.name === this.input.value.trim();
      if (same) return this.leave();
      event.preventDefault();
      this.choose(this.active);
    } else if (event.key === "Tab" && this.open && this.active >= 0) {
      this.choose(this.active);
    }
  }
}
