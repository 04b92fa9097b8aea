// Numbers as a person reads them.

import { floor, max, round } from "./numbers";

function pad(n: number, width = 2): string {
  return `${n}`.padStart(width, "0");
}

/** "0:07", "12:40", "3:02:11". */
export function clock(seconds: number): string {
  const s = max(0, floor(seconds));
  const minutes = floor(s / 60);
  return `${minutes < 60 ? minutes : `${floor(minutes / 60)}:${pad(minutes % 60)}`}:${pad(s % 60)}`;
}

/** "0.4 s", "21.3 s", "1:02". */
export function duration(seconds: number): string {
  return seconds < 60 ? `${max(0, seconds).toFixed(1)} s` : clock(seconds);
}

export function bytes(n: number): string {
  if (n < 1e3) return `${n} B`;
  if (n < 1e6) return `${round(n / 1e3)} kB`;
  if (n < 999.5e6) return `${round(n / 1e6)} MB`;
  return `${(n / 1e9).toFixed(1)} GB`;
}

export function count(n: number): string {
  return n.toLocaleString("en-US");
}

export function plural(n: number, word: string): string {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

/** "14:37:02.120" in the browser's time zone. */
export function timestamp(seconds: number, millis = true): string {
  const d = new Date(seconds * 1000);
  const time = [d.getHours(), d.getMinutes(), d.getSeconds()].map((n) => pad(n)).join(":");
  return millis ? `${time}.${pad(d.getMilliseconds(), 3)}` : time;
}
