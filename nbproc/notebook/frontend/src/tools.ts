// The bar above the lines of a log: how many there are, the filter, switches, what can be done with all of them.

import type { Controls } from "./controls";
import { attr, button, eat, h, icon } from "./dom";

export type Toggle = "regex" | "invert" | "out" | "err" | "time" | "wrap";

export interface Tools {
  readonly bar: HTMLElement;
  readonly counted: HTMLElement;
  readonly filter: HTMLInputElement;
  /** Show which switches are on. */
  press(): void;
}

export interface Actions {
  filtered(): void;
  flipped(name: Toggle): void;
  /** Leave the filter for the lines. */
  leave(): void;
  find(): void;
  copy(): void;
  download(): void;
}

/** A button with a picture or a word; its title without the key is its name. */
export function tool(mark: Node | string, title: string, click: () => void, classes = ".tool"): HTMLButtonElement {
  return button(classes, { title, "aria-label": title.replace(/ \(.*/, ""), click }, mark);
}

export function searchField(
  classes: string,
  words: string,
  name: string,
  input: () => void,
  keydown: (key: KeyboardEvent) => void,
): HTMLInputElement {
  return h(`input${classes as ""}`, {
    type: "search",
    placeholder: words,
    "aria-label": name,
    spellcheck: "false",
    input,
    keydown,
  });
}

export function tools(controls: Controls, actions: Actions): Tools {
  const toggles = new Map<Toggle, HTMLButtonElement>();

  function toggle(name: Toggle, mark: Node | string, title: string): HTMLButtonElement {
    const made = tool(mark, title, () => {
      controls[name] = !controls[name];
      press();
      actions.flipped(name);
    });
    toggles.set(name, made);
    return made;
  }

  function press(): void {
    for (const [name, made] of toggles) attr(made, "aria-pressed", `${controls[name]}`);
  }

  function changed(): void {
    controls.filter = filter.value;
    actions.filtered();
  }

  const filter = searchField(".filter", "Filter", "Filter lines", changed, (event) => {
    const { key } = event;
    if (key === "Escape" && filter.value) {
      filter.value = "";
      changed();
    } else if (key === "Escape" || key === "Enter") actions.leave();
    else return;
    eat(event);
  });
  filter.value = controls.filter;
  const counted = h("span.count");
  const bar = h(
    "div.tools",
    { role: "group", "aria-label": "Lines" },
    counted,
    h(
      "span.field",
      filter,
      toggle("regex", ".*", "Filter is a regular expression"),
      toggle("invert", "not", "Show the lines that do not match"),
    ),
    h("span.group", toggle("out", "out", "Lines of stdout"), toggle("err", "err", "Lines of stderr")),
    h(
      "span.group",
      toggle("time", icon("time"), "Times (t)"),
      toggle("wrap", icon("wrap"), "Wrap long lines (w)"),
      tool(icon("find"), "Find (Ctrl+F)", actions.find),
      tool(icon("copy"), "Copy all lines shown here", actions.copy),
      tool(icon("save"), "Download the log", actions.download),
    ),
  );
  return { bar, counted, filter, press };
}
