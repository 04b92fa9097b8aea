// Rows of a log: a queue with stable indexes, and the part of it that a filter lets through.

export const OUT = 0;
export const ERR = 1;
export const DISPLAY = 2;

export interface Row {
  rank: number;
  stream: number;
  /** The line's number in its stream; of a gap, the first line that is missing. */
  n: number;
  text: string;
  time: number;
  open: boolean;
  /** How many lines are missing here; 0 for a line. */
  gap: number;
  /** Counts the changes of the text. */
  version: number;
}

/** A queue: what is dropped at its head does not move the indexes of the rest. */
export class Lines {
  private rows: Row[] = [];
  private start = 0;
  /** The index of the oldest row that is held. */
  first = 0;
  /** Changes when indexes have lost their meaning. */
  epoch = 0;
  /** Counts rows whose text has changed. */
  edits = 0;

  get end(): number {
    return this.first + this.rows.length - this.start;
  }

  get size(): number {
    return this.rows.length - this.start;
  }

  at(index: number): Row | undefined {
    return this.rows[this.start + index - this.first];
  }

  push(row: Row): void {
    this.rows.push(row);
  }

  drop(count: number): void {
    const n = Math.min(count, this.size);
    this.start += n;
    this.first += n;
    if (this.start > 4096 && this.start * 2 > this.rows.length) {
      this.rows = this.rows.slice(this.start);
      this.start = 0;
    }
  }

  /** Forget the rows from an index on. */
  truncate(index: number): void {
    this.rows.length = Math.max(this.start, this.start + index - this.first);
  }

  list(): Row[] {
    return this.rows.slice(this.start);
  }

  replace(rows: Row[]): void {
    this.rows = rows;
    this.start = 0;
    this.first = 0;
    this.epoch++;
  }
}

export type Test = (row: Row) => boolean;

/** How far up a program may change lines that were written. */
export const REACH = 300;

/** The rows of a log that pass a test, kept up to date in slices of time. Without a test, the log itself. */
export class Shown {
  rows: Lines;
  private source: Lines;
  private test: Test | null;
  private from: number[] = [];
  private fromStart = 0;
  private cursor = 0;
  private epoch = -1;
  private edits = -1;

  constructor(source: Lines, test: Test | null) {
    this.source = source;
    this.test = test;
    this.rows = test ? new Lines() : source;
  }

  get total(): number {
    return this.source.size;
  }

  get done(): boolean {
    return !this.test || this.cursor >= this.source.end;
  }

  /** Take in what is new, for at most about `budget` milliseconds. */
  pump(budget: number): void {
    const { source, test, rows } = this;
    if (!test) return;
    if (source.epoch !== this.epoch) {
      this.epoch = source.epoch;
      rows.replace([]);
      this.from = [];
      this.fromStart = 0;
      this.cursor = source.first;
    }
    let stale = 0;
    while (this.fromStart + stale < this.from.length && this.from[this.fromStart + stale]! < source.first) stale++;
    if (stale) {
      rows.drop(stale);
      this.fromStart += stale;
      if (this.fromStart > 4096) {
        this.from = this.from.slice(this.fromStart);
        this.fromStart = 0;
      }
    }
    this.cursor = Math.max(this.cursor, source.first);
    if (source.edits !== this.edits) {
      this.edits = source.edits;
      const back = Math.max(source.first, Math.min(this.cursor, source.end - REACH));
      if (back < this.cursor) {
        let keep = this.from.length;
        while (keep > this.fromStart && this.from[keep - 1]! >= back) keep--;
        rows.truncate(rows.first + keep - this.fromStart);
        this.from.length = keep;
        this.cursor = back;
        rows.edits++;
      }
    }
    const until = performance.now() + budget;
    while (this.cursor < source.end) {
      const row = source.at(this.cursor)!;
      if (row.gap || test(row)) {
        rows.push(row);
        this.from.push(this.cursor);
      }
      this.cursor++;
      if ((this.cursor & 511) === 0 && performance.now() > until) break;
    }
  }
}
