// Below the open tab: the handle that changes its height; what the run says of itself, and where its logs are.

import { attr, button, eat, h, text } from "./dom";
import { ended } from "./protocol";
import type { RunStore } from "./store";

const STEP = 20;

/** A bar to drag, or to move with the arrow keys. `base` is the height now; `resize` is given the wanted one. */
export function handle(base: () => number, resize: (height: number) => void): HTMLElement {
  const bar = h("div.handle", {
    role: "separator",
    tabindex: 0,
    "aria-orientation": "horizontal",
    "aria-label": "Height",
    title: "Drag, or use the arrow keys, to change the height",
    pointerdown(event: PointerEvent) {
      const from = base() - event.clientY;
      bar.setPointerCapture(event.pointerId);
      bar.onpointermove = (moved) => resize(from + moved.clientY);
      bar.onlostpointercapture = () => (bar.onpointermove = null);
      event.preventDefault();
    },
    keydown(event: KeyboardEvent) {
      const by = { ArrowDown: STEP, ArrowUp: -STEP }[event.key];
      if (!by) return;
      resize(base() + by);
      eat(event);
    },
  });
  return bar;
}

export interface Foot {
  readonly element: HTMLElement;
  sync(): void;
}

export function foot(store: RunStore, copy: (words: string, said: string) => void): Foot {
  const notes = h("div.notes");
  const dir = button(".link.dir", { click: () => copy(store.snap!.dir, "Copied the path") });
  const element = h("div.foot", notes, dir);
  let key = "";
  return {
    element,
    sync() {
      const { state, headline, notes: remarks, dir: path } = store.snap!;
      // The head has a place for the headline of a run that is over.
      const lines = [ended(state) ? "" : headline, ...remarks].filter(Boolean);
      if (key !== `${lines}`) notes.replaceChildren(...lines.map((line) => h("div", line)));
      key = `${lines}`;
      const parts = path.split("/");
      text(dir, path && `logs: ${parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : path}`);
      attr(dir, "title", `${path} (click to copy)`);
      dir.hidden = !path;
      element.hidden = !lines.length && !path;
    },
  };
}
