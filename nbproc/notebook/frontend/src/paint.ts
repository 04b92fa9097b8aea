// A line of a log -> elements: its colours, and marks where a filter or a search has found something.

import { parse, readable, type Style } from "./ansi";
import { h } from "./dom";
import { count } from "./format";
import { min } from "./numbers";
import type { Theme } from "./theme";

export interface Mark {
  start: number;
  end: number;
  kind: "found" | "hit" | "current";
}

/** The most that is drawn of a line that is not wrapped. */
export const DRAWN = 4_000;

export function matches(expression: RegExp, text: string, limit = 500): [number, number][] {
  const found: [number, number][] = [];
  expression.lastIndex = 0;
  for (const { 0: match, index } of text.matchAll(expression)) {
    if (match) found.push([index, index + match.length]);
    if (found.length >= limit) break;
  }
  return found;
}

/** Draw a text into an element. */
export function draw(into: HTMLElement, source: string, theme: Theme, marks: Mark[] = [], limit = Infinity): void {
  const { plain, spans } = parse(source.slice(0, limit * 2));
  const pieces: (Node | string)[] = [];
  for (const { start, end, style } of spans) {
    for (let at = start; at < min(end, limit); ) {
      const mark = marks.find((m) => m.end > at);
      const inside = mark && mark.start <= at;
      const stop = min(end, limit, mark ? (inside ? mark.end : mark.start) : end);
      const piece = plain.slice(at, stop);
      if (!style && !inside) pieces.push(...bars(piece));
      else {
        const element = inside ? h("mark", { "data-kind": mark.kind }, piece) : h("span", piece);
        if (style) dress(element, style, theme);
        pieces.push(element);
      }
      at = stop;
    }
  }
  if (plain.length > limit || source.length > limit * 2) {
    pieces.push(h("span.cut", ` … ${count(source.length - limit)} more characters; Wrap shows them`));
  }
  into.replaceChildren(...pieces);
}

/** The filled part of a progress bar has the accent's colour. */
function bars(piece: string): (Node | string)[] {
  return piece.split(/([\u2580-\u259f]{2,})/).map((part, k) => (k % 2 ? h("span.full", part) : part));
}

const cache = new Map<string, string>();

function dress(element: HTMLElement, style: Style, theme: Theme): void {
  const { bold, dim, italic, underline, strike, inverse } = style;
  const fg = inverse ? style.bg : style.fg;
  const bg = inverse ? style.fg : style.bg;
  const css = element.style;
  const direct = typeof fg === "number" && `${bg === null && !inverse ? "f" : "F"}${fg}`;
  element.className = [
    bold && "b",
    dim && "d",
    italic && "i",
    underline ? "u" : strike && "s",
    inverse && fg === null && "inv-f",
    inverse && bg === null && "inv-b",
    direct,
    typeof bg === "number" && `B${bg}`,
  ]
    .filter(Boolean)
    .join(" ");
  if (Array.isArray(fg)) css.color = rgb(fg, Array.isArray(bg) ? bg : theme.background, bg === null);
  if (Array.isArray(bg)) {
    css.backgroundColor = rgb(bg);
    if (fg === null) css.color = rgb(theme.ink, bg, true);
  }
}

/** A colour in CSS; moved away from its background, if it is to be. */
function rgb(colour: number[], background: number[] = [], adjust = false): string {
  const key = `${colour}/${adjust && background}`;
  let value = cache.get(key);
  if (!value) {
    if (cache.size > 2_000) cache.clear();
    cache.set(key, (value = `rgb(${adjust ? readable(colour, background) : colour})`));
  }
  return value;
}
