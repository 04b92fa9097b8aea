// Search in the rows that are shown, in slices of time: the list of hits grows with the log.

import { plain } from "./ansi";
import type { Lines } from "./lines";
import { matches } from "./paint";

export class Finder {
  /** For each hit the index of its row; a row with two hits is here twice. */
  private hits: number[] = [];
  private cursor = 0;
  private epoch = -1;
  private edits = -1;
  private rows: Lines | null = null;
  at = -1;

  constructor(private expression: RegExp) {}

  get count(): number {
    return this.hits.length;
  }

  /** The row of the present hit and its place among the row's hits. */
  get current(): { index: number; nth: number } | null {
    const index = this.hits[this.at];
    return index === undefined ? null : { index, nth: this.at - this.hits.indexOf(index) };
  }

  pump(rows: Lines, budget: number): boolean {
    if (rows !== this.rows || rows.epoch !== this.epoch) {
      this.rows = rows;
      this.epoch = rows.epoch;
      this.edits = rows.edits;
      this.hits = [];
      this.cursor = rows.first;
      this.at = -1;
    }
    let gone = 0;
    while (gone < this.hits.length && this.hits[gone]! < rows.first) gone++;
    if (gone) {
      this.hits.splice(0, gone);
      this.at = Math.max(-1, this.at - gone);
    }
    if (rows.edits !== this.edits || this.cursor > rows.end) {
      this.edits = rows.edits;
      const back = Math.max(rows.first, Math.min(this.cursor, rows.end - 300));
      while (this.hits.length && this.hits.at(-1)! >= back) this.hits.pop();
      this.cursor = back;
    }
    this.cursor = Math.max(this.cursor, rows.first);
    const until = performance.now() + budget;
    for (; this.cursor < rows.end; this.cursor++) {
      const row = rows.at(this.cursor)!;
      if (row.stream !== 2 && !row.gap) {
        const n = matches(this.expression, plain(row.text)).length;
        for (let k = 0; k < n; k++) this.hits.push(this.cursor);
      }
      if ((this.cursor & 255) === 0 && performance.now() > until) return false;
    }
    return true;
  }

  /** Go to the next hit, or the one before; the first time to the one nearest below `from`. */
  step(by: 1 | -1, from: number): void {
    if (!this.hits.length) this.at = -1;
    else if (this.at < 0) {
      const below = this.hits.findIndex((index) => index >= from);
      this.at = by > 0 ? Math.max(0, below) : below > 0 ? below - 1 : this.hits.length - 1;
    } else this.at = (this.at + by + this.hits.length) % this.hits.length;
  }
}
