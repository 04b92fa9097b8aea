// A line of a log -> elements: its colours, and marks where a filter or a search has found something.

import { parse, readable, type Style } from "./ansi";
import { h } from "./dom";

export interface Mark {
  start: number;
  end: number;
  kind: "found" | "hit" | "current";
}

/** The most that is drawn of a line that is not wrapped. */
export const DRAWN = 4_000;

export interface Theme {
  dark: boolean;
  background: number[];
  ink: number[];
}

export function matches(expression: RegExp, text: string, limit = 500): [number, number][] {
  const found: [number, number][] = [];
  expression.lastIndex = 0;
  for (let match = expression.exec(text); match && found.length < limit; match = expression.exec(text)) {
    if (match[0] === "") expression.lastIndex++;
    else found.push([match.index, match.index + match[0].length]);
  }
  return found;
}

/** Draw a text into an element. */
export function draw(into: HTMLElement, source: string, theme: Theme, marks: Mark[] = [], limit = Infinity): void {
  const cut = source.length > limit * 2 ? source.slice(0, limit * 2) : source;
  const { plain, spans } = parse(cut);
  if (spans.length <= 1 && !marks.length && plain.length <= limit && !spans[0]?.style && !BAR.test(plain)) {
    into.textContent = plain;
    return;
  }
  const pieces: Node[] = [];
  for (const span of spans) {
    if (span.start >= limit) break;
    let at = span.start;
    const end = Math.min(span.end, limit);
    while (at < end) {
      const mark = marks.find((m) => m.end > at);
      const inside = mark !== undefined && mark.start <= at;
      const stop = Math.min(end, mark ? (inside ? mark.end : mark.start) : end);
      const piece = plain.slice(at, stop);
      if (!span.style && !inside) pieces.push(...bars(piece));
      else {
        const element = h(inside ? "mark" : "span", inside ? { "data-kind": mark.kind } : {}, piece);
        if (span.style) dress(element, span.style, theme);
        pieces.push(element);
      }
      at = stop;
    }
  }
  if (plain.length > limit || cut !== source) {
    const rest = (source.length - limit).toLocaleString("en-US");
    pieces.push(h("span", { class: "nb-cut" }, ` … ${rest} more characters; Wrap shows them`));
  }
  into.replaceChildren(...pieces);
}

const BAR = /[\u2580-\u259f]{2,}/;

/** The filled part of a progress bar has the accent's colour. */
function bars(piece: string): Node[] {
  const found = BAR.exec(piece);
  if (!found) return [document.createTextNode(piece)];
  const end = found.index + found[0].length;
  const before = document.createTextNode(piece.slice(0, found.index));
  return [before, h("span", { class: "bar" }, found[0]), ...bars(piece.slice(end))];
}

const cache = new Map<string, string>();

function dress(element: HTMLElement, style: Style, theme: Theme): void {
  const classes: string[] = [];
  const fg = style.inverse ? style.bg : style.fg;
  const bg = style.inverse ? style.fg : style.bg;
  if (style.bold) classes.push("b");
  if (style.dim) classes.push("d");
  if (style.italic) classes.push("i");
  if (style.underline || style.strike) classes.push(style.underline ? "u" : "s");
  if (style.inverse && fg === null) classes.push("inv-f");
  if (style.inverse && bg === null) classes.push("inv-b");
  if (typeof fg === "number") classes.push(bg === null && !style.inverse ? `f${fg}` : `F${fg}`);
  if (typeof bg === "number") classes.push(`B${bg}`);
  if (Array.isArray(fg)) element.style.color = rgb(fg, Array.isArray(bg) ? bg : theme.background, bg === null);
  if (Array.isArray(bg)) {
    element.style.backgroundColor = `rgb(${bg.join(",")})`;
    if (fg === null) element.style.color = rgb(theme.ink, bg, true);
  }
  if (classes.length) element.className = classes.join(" ");
}

function rgb(colour: number[], background: number[], adjust: boolean): string {
  if (!adjust) return `rgb(${colour.join(",")})`;
  const key = `${colour.join()}/${background.join()}`;
  let value = cache.get(key);
  if (!value) {
    if (cache.size > 2_000) cache.clear();
    value = `rgb(${readable(colour, background).join(",")})`;
    cache.set(key, value);
  }
  return value;
}
