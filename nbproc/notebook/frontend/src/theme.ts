// The colours of the page around us, and news of their change: a notebook's theme may change at any time.

import { luminance } from "./ansi";
import { on } from "./dom";

export interface Theme {
  dark: boolean;
  background: number[];
  ink: number[];
}

export function initial(): Theme {
  return { dark: false, background: [255, 255, 255], ink: [31, 35, 40] };
}

/** Keep a theme that of an element, which is marked with it. `changed` is called after each change. Returns how to stop. */
export function follow(root: HTMLElement, theme: Theme, changed: () => void): () => void {
  const look = (): void => {
    const { backgroundColor, color } = getComputedStyle(root);
    const background = numbers(backgroundColor) ?? [255, 255, 255];
    if (`${background}` === `${theme.background}` && root.dataset.theme) return;
    theme.background = background;
    theme.dark = luminance(background) < 0.18;
    theme.ink = numbers(color) ?? theme.ink;
    root.dataset.theme = theme.dark ? "dark" : "light";
    changed();
  };
  // The style sheet lets the background change in a moment rather than at once, so that there is an event for it.
  on(root, "transitionend", look);
  const page = new MutationObserver(look);
  page.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "class"] });
  requestAnimationFrame(look);
  return () => page.disconnect();
}

/** The parts of a computed colour; null if it is transparent. */
function numbers(colour: string): number[] | null {
  const parts = colour.match(/[\d.]+/g)?.map(Number) ?? [];
  return parts.length >= 3 && parts[3] !== 0 ? parts.slice(0, 3) : null;
}
