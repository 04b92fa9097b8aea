// The lines of a run that the browser holds: each rank's, and all together. What a kernel sends goes in; what is too
// much goes out again, oldest first, and is counted.

import { note } from "./figure";
import { DISPLAY, ERR, Lines, OUT, REACH, type Row } from "./lines";
import { floor, max, min } from "./numbers";
import type { Run } from "./protocol";

export const LINES_PER_RANK = 50_000;
const LINES_IN_ALL = 200_000;
const LINES_TOGETHER = 1_000_000;
const CHARACTERS_TOGETHER = 200_000_000;
const SLACK = 1_000;

/** One rank's lines. */
export class RankLog {
  lines = new Lines();
  /** By stream: the lines that may still change, the number of the next new one, of the oldest held. */
  recent: Map<number, Row>[] = [new Map(), new Map(), new Map()];
  next = [0, 0, 0];
  oldest = [0, 0, 0];
  lost = [false, false, false];
  last: Row | null = null;
  heard = 0;
  /** Displays that stand in the log, by their number. */
  displays = new Map<number, Row>();
  characters = 0;
  /** Rows that were asked for from the log: they are kept until the view follows the end again. */
  paged = 0;
}

export interface Logs {
  readonly ranks: RankLog[];
  readonly all: Lines;
  grow(ranks: number): void;
  take(runs: Run[], data: Uint8Array): void;
  /** Drop what is over the limits. */
  trim(): void;
  /** Put what a replay holds between what is older and what is newer here. */
  merge(fresh: Row[]): void;
  rows(runs: Run[], data: Uint8Array): Row[];
  /** Put lines that were read from a log where they are missing: into a gap, or before all. */
  insert(rank: number, stream: number, first: number, count: number, read: Row[]): void;
  /** The reader follows the end again: pages that were loaded may go. */
  settle(rank: number): void;
  /** How many lines of a stream are older than those held. */
  older(rank: number, stream: number): number;
  /** How many lines there were that do not stand among all. */
  missing(): number;
}

/** `heard` is called with each rank that says something. */
export function logs(heard: (rank: number) => void): Logs {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const ranks: RankLog[] = [];
  const all = new Lines();

  function grow(n: number): void {
    while (ranks.length < n) ranks.push(new RankLog());
  }

  function rows(runs: Run[], data: Uint8Array): Row[] {
    const lines = decoder.decode(data).split("\n");
    let k = 0;
    return runs.flatMap(([rank, stream, number, n, open, time]) =>
      lines.slice(k, (k += n)).map((text, i) => ({
        rank,
        stream,
        n: number + i,
        text,
        time,
        open: open === 1 && i === n - 1,
        gap: 0,
        version: 0,
      })),
    );
  }

  function take(runs: Run[], data: Uint8Array): void {
    for (const row of rows(runs, data)) upsert(row);
  }

  function change(log: RankLog, row: Row, text: string): void {
    log.characters += text.length - row.text.length;
    row.text = text;
    row.version++;
    log.lines.edits++;
    all.edits++;
  }

  function upsert(row: Row): void {
    grow(row.rank + 1);
    const log = ranks[row.rank]!;
    const { stream, n, time } = row;
    const line = stream !== DISPLAY;
    const recent = log.recent[stream]!;
    log.heard = max(log.heard, time);
    heard(row.rank);
    const known = recent.get(n);
    if (known) {
      if (known.text !== row.text || known.open !== row.open) {
        known.open = row.open;
        known.time = time;
        change(log, known, row.text);
        if (line && row.text.trim()) log.last = known;
      }
      return;
    }
    const next = log.next[stream]!;
    if (n < next) return; // known and settled, or older than what is held
    if (n > next) {
      recent.clear();
      if (!next && !log.oldest[stream]) log.oldest[stream] = n;
      else if (line) add(log, missing(row, next));
    }
    log.next[stream] = n + 1;
    recent.set(n, row);
    recent.delete(n - REACH);
    if (!line && redisplayed(log, row)) return;
    if (line && row.text.trim()) log.last = row;
    add(log, row);
  }

  /** A display may replace an earlier one, or take all before it away. Returns true if it needs no row. */
  function redisplayed(log: RankLog, row: Row): boolean {
    const { displays } = log;
    const { n, clear, kind } = note(row.text);
    if (clear) {
      for (const known of displays.values()) change(log, known, "");
      displays.clear();
      return true;
    }
    const known = n !== null && displays.get(n);
    (known || row).kind = kind;
    if (known) change(log, known, row.text);
    else if (n !== null) displays.set(n, row);
    return !!known;
  }

  function add(log: RankLog, row: Row): void {
    log.characters += row.text.length;
    log.lines.push(row);
    all.push(row);
  }

  function trim(): void {
    const n = max(1, ranks.length);
    const cap = min(LINES_PER_RANK, floor(LINES_TOGETHER / n));
    const characters = CHARACTERS_TOGETHER / n;
    for (const log of ranks) {
      const { lines } = log;
      let over = lines.size - cap - min(log.paged, cap);
      if (over < SLACK && log.characters < characters) continue;
      const { size } = lines;
      while (lines.size && (over-- > 0 || log.characters > characters * 0.9)) {
        const row = lines.at(lines.first)!;
        log.characters -= row.text.length;
        log.oldest[row.stream] = row.n + max(1, row.gap);
        lines.drop(1);
      }
      log.paged = max(0, log.paged - size + lines.size);
    }
    const tooMany = all.size - min(LINES_IN_ALL, cap * n);
    if (tooMany > SLACK) all.drop(tooMany);
  }

  function merge(fresh: Row[]): void {
    const key = (row: Row): string => `${row.rank}/${row.stream}`;
    const windows = new Map<string, [first: number, last: number]>();
    for (const row of fresh) {
      const [first, last] = windows.get(key(row)) ?? [row.n, row.n];
      windows.set(key(row), [min(first, row.n), max(last, row.n)]);
    }
    const join = (held: Row[], between: Row[]): Row[] => {
      const side = (row: Row): number => {
        const [first, last] = windows.get(key(row)) ?? [Infinity, 0];
        return row.n < first ? -1 : row.n > last ? 1 : 0;
      };
      return [...held.filter((row) => side(row) < 0), ...between, ...held.filter((row) => side(row) > 0)];
    };
    for (const rank of new Set(fresh.map((row) => row.rank))) {
      grow(rank + 1);
      const log = ranks[rank]!;
      const own = fresh.filter((row) => row.rank === rank);
      settleDisplays(own);
      const joined = close(join(log.lines.list(), own));
      log.lines.replace(joined);
      index(log, joined);
    }
    fresh.sort((a, b) => a.time - b.time);
    all.replace(join(all.list(), fresh).filter((row) => !row.gap));
  }

  function index(log: RankLog, held: Row[]): void {
    const { lines, lost, paged, oldest, heard } = log;
    Object.assign(log, new RankLog(), { lines, lost, paged, oldest, heard });
    const seen: boolean[] = [];
    for (const row of held) {
      const { stream, n, time, text } = row;
      if (!seen[stream]) log.oldest[stream] = n;
      seen[stream] = true;
      log.characters += text.length;
      if (row.gap) continue;
      log.next[stream] = max(log.next[stream]!, n + 1);
      log.heard = max(log.heard, time);
      if (stream === DISPLAY) {
        const shown = note(text);
        row.kind = shown.kind;
        if (shown.n !== null) log.displays.set(shown.n, row);
      } else if (text.trim() && !(log.last && time < log.last.time)) log.last = row;
    }
    for (const row of held.slice(-3 * REACH)) {
      if (!row.gap && row.n > log.next[row.stream]! - REACH) log.recent[row.stream]!.set(row.n, row);
    }
  }

  function insert(rank: number, stream: number, first: number, count: number, read: Row[]): void {
    const log = ranks[rank]!;
    const held = log.lines.list();
    const at = held.findIndex((row) => row.gap && row.stream === stream && row.n <= first && first < row.n + row.gap);
    const gap = held[at];
    if (gap) {
      const end = gap.n + gap.gap;
      const inside = read.filter((row) => row.n >= gap.n && row.n < end);
      const left = end - first - count;
      if (left > 0) inside.push({ ...gap, n: first + count, gap: left });
      held.splice(at, 1, ...(read.length ? inside : [{ ...gap, text: "lost" }]));
    } else {
      const fresh = read.filter((row) => row.n < log.oldest[stream]!);
      if (fresh[0]) log.oldest[stream] = fresh[0].n;
      else log.lost[stream] = true;
      held.unshift(...fresh);
      log.paged += fresh.length;
    }
    for (const row of read) log.characters += row.text.length;
    log.lines.replace(held);
  }

  return {
    ranks,
    all,
    grow,
    take,
    trim,
    merge,
    rows,
    insert,
    settle(rank) {
      const log = ranks[rank];
      if (!log?.paged) return;
      log.paged = 0;
      trim();
    },
    older(rank, stream) {
      const log = ranks[rank]!;
      return log.lost[stream] ? 0 : log.oldest[stream]!;
    },
    missing: () => ranks.reduce((n, { next }) => n + next[OUT]! + next[ERR]!, 0) - all.written,
  };
}

/** What stands for the lines that are missing from `n` on before a row. */
function missing(row: Row, n: number): Row {
  return { ...row, n, gap: row.n - n, text: "", open: false };
}

/** Let later displays replace earlier ones; what is replaced or cleared keeps an empty row. */
function settleDisplays(rows: Row[]): void {
  const shown = new Map<number, Row>();
  for (const row of rows) {
    if (row.stream !== DISPLAY) continue;
    const { n, clear } = note(row.text);
    const known = n !== null && shown.get(n);
    if (clear) {
      for (const earlier of shown.values()) earlier.text = "";
      shown.clear();
      row.text = "";
    } else if (known) {
      known.text = row.text;
      row.text = "";
    } else if (n !== null) shown.set(n, row);
  }
}

/** Mark the lines that are missing between the rows of each stream; forget marks that are filled. */
function close(rows: Row[]): Row[] {
  const next: number[] = [];
  const closed: Row[] = [];
  for (const row of rows) {
    if (row.gap) continue;
    const { stream, n } = row;
    const expected = next[stream] ?? n;
    if (n > expected && stream !== DISPLAY) closed.push(missing(row, expected));
    next[stream] = max(expected, n + 1);
    closed.push(row);
  }
  return closed;
}
