// Numbers as a person reads them.

/** "0:07", "12:40", "3:02:11". */
export function clock(seconds: number): string {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n: number): string => String(n).padStart(2, "0");
  const minutes = Math.floor(s / 60);
  return minutes < 60 ? `${minutes}:${two(s % 60)}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(s % 60)}`;
}

/** "0.4 s", "21.3 s", "1:02". */
export function duration(seconds: number): string {
  return seconds < 60 ? `${Math.max(0, seconds).toFixed(1)} s` : clock(seconds);
}

export function bytes(n: number): string {
  if (n < 1e3) return `${n} B`;
  if (n < 1e6) return `${Math.round(n / 1e3)} kB`;
  if (n < 999.5e6) return `${Math.round(n / 1e6)} MB`;
  return `${(n / 1e9).toFixed(1)} GB`;
}

export function count(n: number): string {
  return n.toLocaleString("en-US");
}

export function plural(n: number, word: string): string {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

/** "0", "0-3", "0, 2, 5-7". */
export function rankList(ranks: readonly number[]): string {
  const sorted = [...ranks].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; i++) {
    const from = sorted[i]!;
    let to = from;
    while (sorted[i + 1] === to + 1) to = sorted[++i]!;
    parts.push(from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}-${to}`);
  }
  return parts.join(", ");
}

export function ranksWord(ranks: readonly number[]): string {
  return `${ranks.length === 1 ? "rank" : "ranks"} ${rankList(ranks)}`;
}

/** "14:37:02.120" in the browser's time zone. */
export function timestamp(seconds: number, millis = true): string {
  const d = new Date(seconds * 1000);
  const pad = (n: number, width = 2): string => String(n).padStart(width, "0");
  const text = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  return millis ? `${text}.${pad(d.getMilliseconds(), 3)}` : text;
}
