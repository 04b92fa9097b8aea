// What the kernel describes as elements: [selector, attributes or child, ...]. A string is text and stays text.

import { h, type Props } from "./dom";

export type Tree = [selector: string, ...parts: (Tree | Record<string, string | number | boolean> | string)[]];

export function grow([selector, ...parts]: Tree): HTMLElement {
  return h(selector as "div", ...parts.map((part) => (Array.isArray(part) ? grow(part) : (part as Props | string))));
}
