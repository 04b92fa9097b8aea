// Rows of a log: a queue with stable indexes, and the part of it that a filter lets through.

import { max, min, ticks } from "./numbers";

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
  /** What is displayed here, where something is. */
  kind?: string;
}

function isLine({ stream, gap }: Row): number {
  return stream === DISPLAY || gap ? 0 : 1;
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
  /** How many of the rows are lines. */
  written = 0;

  get end(): number {
    return this.first + this.size;
  }

  get size(): number {
    return this.rows.length - this.start;
  }

  at(index: number): Row | undefined {
    return this.rows[this.start + index - this.first];
  }

  push(row: Row): void {
    this.rows.push(row);
    this.written += isLine(row);
  }

  drop(count: number): void {
    const n = min(count, this.size);
    for (let k = 0; k < n; k++) this.written -= isLine(this.rows[this.start + k]!);
    this.start += n;
    this.first += n;
    if (this.start > 4096 && this.start * 2 > this.rows.length) {
      this.rows = this.list();
      this.start = 0;
    }
  }

  /** Forget the rows from an index on. */
  truncate(index: number): void {
    const end = max(this.start, this.start + index - this.first);
    for (const row of this.rows.splice(end)) this.written -= isLine(row);
  }

  list(): Row[] {
    return this.rows.slice(this.start);
  }

  replace(rows: Row[]): void {
    this.rows = rows;
    this.start = 0;
    this.first = 0;
    this.written = rows.reduce((n, row) => n + isLine(row), 0);
    this.epoch++;
  }
}

/** Take the indexes before `first` out of a sorted list. Returns how many there were. */
export function forget(indexes: number[], first: number): number {
  const stale = indexes.findIndex((index) => index >= first);
  return indexes.splice(0, stale < 0 ? indexes.length : stale).length;
}

export type Test = (row: Row) => boolean;

/** How far up a program may change lines that were written. */
export const REACH = 300;

/** How far somebody has read a queue whose rows are dropped, changed and replaced meanwhile. */
export class Cursor {
  at = 0;
  private epoch = -1;
  private edits = 0;

  /** `reset` is called when all is to be read again, `back` when the rows from an index on are. */
  meet(rows: Lines, reset: () => void, back: (at: number) => void): void {
    const { first, end, epoch, edits } = rows;
    if (epoch !== this.epoch) {
      this.epoch = epoch;
      this.edits = edits;
      this.at = first;
      reset();
    }
    if (edits !== this.edits || this.at > end) {
      this.edits = edits;
      this.at = min(this.at, end - REACH);
      back(max(this.at, first));
    }
    this.at = max(this.at, first);
  }

  reset(): void {
    this.epoch = -1;
  }

  /** Read on, for at most about `budget` milliseconds. Returns true at the end. */
  read(rows: Lines, budget: number, take: (row: Row, index: number) => void): boolean {
    const until = ticks() + budget;
    for (const { end } = rows; this.at < end; ) {
      take(rows.at(this.at)!, this.at++);
      if (!(this.at & 255) && ticks() > until) return false;
    }
    return true;
  }
}

/** The rows of a log that pass a test, kept up to date in slices of time. Without a test, the log itself. */
export class Shown {
  rows: Lines;
  /** The index in the log of each row that is shown. */
  private from: number[] = [];
  private cursor = new Cursor();

  constructor(
    private source: Lines,
    private test: Test | null,
  ) {
    this.rows = test ? new Lines() : source;
  }

  get done(): boolean {
    return !this.test || this.cursor.at >= this.source.end;
  }

  /** Take in what is new, for at most about `budget` milliseconds. */
  pump(budget: number): void {
    const { source, test, rows, cursor } = this;
    if (!test) return;
    cursor.meet(
      source,
      () => {
        rows.replace([]);
        this.from = [];
      },
      (at) => {
        const { from } = this;
        while (from.length && from.at(-1)! >= at) from.pop();
        rows.truncate(rows.first + from.length);
        rows.edits++;
      },
    );
    const { from } = this;
    rows.drop(forget(from, source.first));
    cursor.read(source, budget, (row, index) => {
      if (row.gap || test(row)) {
        rows.push(row);
        from.push(index);
      }
    });
  }
}
