// SGR escapes -> plain text and the spans of it that have a style. Everything else was removed by the kernel.

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
  return text.includes("\x1b") ? text.replace(ESCAPE, "") : text;
}

export function parse(text: string): { plain: string; spans: Span[] } {
  if (!text.includes("\x1b")) return { plain: text, spans: text ? [{ start: 0, end: text.length, style: null }] : [] };
  const spans: Span[] = [];
  let out = "";
  let at = 0;
  let style: Style | null = null;
  const add = (piece: string): void => {
    if (!piece) return;
    spans.push({ start: out.length, end: out.length + piece.length, style });
    out += piece;
  };
  for (const match of text.matchAll(ESCAPE)) {
    add(text.slice(at, match.index));
    at = match.index + match[0].length;
    style = apply(style, match[1]!);
  }
  add(text.slice(at));
  return { plain: out, spans };
}

function apply(before: Style | null, codes: string): Style | null {
  const s: Style = { ...(before ?? NONE) };
  const list = codes === "" ? [0] : codes.split(/[;:]/).map(Number);
  for (let i = 0; i < list.length; i++) {
    const c = list[i]!;
    if (c === 0) Object.assign(s, NONE);
    else if (c === 1) s.bold = true;
    else if (c === 2) s.dim = true;
    else if (c === 3) s.italic = true;
    else if (c === 4) s.underline = true;
    else if (c === 7) s.inverse = true;
    else if (c === 9) s.strike = true;
    else if (c === 22) s.bold = s.dim = false;
    else if (c === 23) s.italic = false;
    else if (c === 24) s.underline = false;
    else if (c === 27) s.inverse = false;
    else if (c === 29) s.strike = false;
    else if (c >= 30 && c <= 37) s.fg = c - 30;
    else if (c >= 90 && c <= 97) s.fg = c - 82;
    else if (c === 39) s.fg = null;
    else if (c >= 40 && c <= 47) s.bg = c - 40;
    else if (c >= 100 && c <= 107) s.bg = c - 92;
    else if (c === 49) s.bg = null;
    else if (c === 38 || c === 48) {
      let colour: Colour | null = null;
      if (list[i + 1] === 5) {
        colour = indexed(list[i + 2] ?? 0);
        i += 2;
      } else if (list[i + 1] === 2) {
        colour = [byte(list[i + 2]), byte(list[i + 3]), byte(list[i + 4])];
        i += 4;
      }
      if (colour !== null) s[c === 38 ? "fg" : "bg"] = colour;
    }
  }
  return Object.values(s).some((value) => value !== null && value !== false) ? s : null;
}

function byte(value: number | undefined): number {
  return Math.max(0, Math.min(255, value || 0));
}

function indexed(n: number): Colour {
  if (n < 16) return Math.max(0, n);
  if (n >= 232) {
    const grey = Math.min(255, 8 + (n - 232) * 10);
    return [grey, grey, grey];
  }
  const level = (k: number): number => (k ? 55 + k * 40 : 0);
  const c = n - 16;
  return [level(Math.floor(c / 36)), level(Math.floor(c / 6) % 6), level(c % 6)];
}

/** The relative luminance of a colour (WCAG). */
export function luminance([r, g, b]: readonly number[]): number {
  const part = (value: number): number => {
    const v = value / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * part(r ?? 0) + 0.7152 * part(g ?? 0) + 0.0722 * part(b ?? 0);
}

export function contrast(one: readonly number[], other: readonly number[]): number {
  const a = luminance(one);
  const b = luminance(other);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

/** Move a colour towards black or white until it can be read on a background. */
export function readable(colour: readonly number[], background: readonly number[], ratio = 4.5): number[] {
  const towards = luminance(background) > 0.18 ? 0 : 255;
  let c = [...colour];
  for (let step = 0; step < 20 && contrast(c, background) < ratio; step++) {
    c = c.map((value) => Math.round(value + (towards - value) * 0.15));
  }
  return c;
}
