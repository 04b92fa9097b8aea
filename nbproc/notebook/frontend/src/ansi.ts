// SGR escapes -> plain text and the spans of it that have a style. Everything else was removed by the kernel.

import { floor, max, min, round } from "./numbers";

export type Colour = number | [number, number, number];

export interface Style {
  fg: Colour | null;
  bg: Colour | null;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  strike: boolean;
  inverse: boolean;
}

export interface Span {
  start: number;
  end: number;
  style: Style | null;
}

const ESCAPE = /\x1b\[([0-9;:]*)m/g;
const NONE: Style = {
  fg: null,
  bg: null,
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  strike: false,
  inverse: false,
};

export function plain(text: string): string {
  return text.includes("\x1b") ? text.replace(ESCAPE, "") : text; // a filter asks this of every line
}

export function parse(text: string): { plain: string; spans: Span[] } {
  const spans: Span[] = [];
  let out = "";
  let style: Style | null = null;
  // The pieces between the escapes, and after each piece the codes of the escape that follows it.
  text.split(ESCAPE).forEach((piece, k) => {
    if (k % 2) style = apply(style, piece);
    else if (piece) {
      spans.push({ start: out.length, end: out.length + piece.length, style });
      out += piece;
    }
  });
  return { plain: out, spans };
}

function apply(before: Style | null, codes: string): Style | null {
  const s: Style = { ...(before ?? NONE) };
  const list = codes.split(/[;:]/).map(Number);
  for (let i = 0; i < list.length; i++) {
    const c = list[i]!;
    const ten = floor(c / 10);
    const unit = c % 10;
    if (c === 0) Object.assign(s, NONE);
    else if (c === 1) s.bold = true;
    else if (c === 2) s.dim = true;
    else if (c === 22) s.bold = s.dim = false;
    // Those that come in pairs: on, and 20 more for off.
    else if (c === 3 || c === 23) s.italic = c < 20;
    else if (c === 4 || c === 24) s.underline = c < 20;
    else if (c === 7 || c === 27) s.inverse = c < 20;
    else if (c === 9 || c === 29) s.strike = c < 20;
    else {
      const which = ten === 3 || ten === 9 ? "fg" : ten === 4 || ten === 10 ? "bg" : null;
      if (!which) continue;
      if (unit < 8) s[which] = ten < 9 ? unit : unit + 8;
      else if (ten > 4) continue;
      else if (unit === 9) s[which] = null;
      else if (list[i + 1] === 5) s[which] = indexed(list[(i += 2)] ?? 0);
      else if (list[i + 1] === 2) {
        s[which] = [byte(list[i + 2]), byte(list[i + 3]), byte(list[i + 4])];
        i += 4;
      }
    }
  }
  return Object.values(s).some((value) => value !== null && value !== false) ? s : null;
}

function byte(value: number | undefined): number {
  return max(0, min(255, value || 0));
}

function indexed(n: number): Colour {
  if (n < 16) return max(0, n);
  if (n >= 232) {
    const grey = min(255, 8 + (n - 232) * 10);
    return [grey, grey, grey];
  }
  const level = (k: number): number => (k ? 55 + k * 40 : 0);
  const c = n - 16;
  return [level(floor(c / 36)), level(floor(c / 6) % 6), level(c % 6)];
}

/** The relative luminance of a colour (WCAG). */
export function luminance([r = 0, g = 0, b = 0]: readonly number[]): number {
  const part = (value: number): number => {
    const v = value / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
}

export function contrast(one: readonly number[], other: readonly number[]): number {
  const a = luminance(one) + 0.05;
  const b = luminance(other) + 0.05;
  return max(a / b, b / a);
}

/** Move a colour towards black or white until it can be read on a background. */
export function readable(colour: readonly number[], background: readonly number[], ratio = 4.5): number[] {
  const towards = luminance(background) > 0.18 ? 0 : 255;
  let c = [...colour];
  for (let step = 0; step < 20 && contrast(c, background) < ratio; step++) {
    c = c.map((value) => round(value + (towards - value) * 0.15));
  }
  return c;
}
