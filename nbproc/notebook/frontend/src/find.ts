// Search in the rows that are shown, in slices of time: the list of hits grows with the log.

import { plain } from "./ansi";
import { Cursor, DISPLAY, forget, type Lines } from "./lines";
import { max } from "./numbers";
import { matches } from "./paint";

export class Finder {
  /** For each hit the index of its row; a row with two hits is here twice. */
  private hits: number[] = [];
  private cursor = new Cursor();
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
    const { cursor } = this;
    cursor.meet(
      rows,
      () => {
        this.hits = [];
        this.at = -1;
      },
      (at) => {
        while (this.hits.length && this.hits.at(-1)! >= at) this.hits.pop();
      },
    );
    const { hits } = this;
    this.at = max(-1, this.at - forget(hits, rows.first));
    return cursor.read(rows, budget, (row, index) => {
      if (row.stream === DISPLAY || row.gap) return;
      for (const _ of matches(this.expression, plain(row.text))) hits.push(index);
    });
  }

  /** Go to the next hit, or the one before; the first time to the one nearest below `from`. */
  step(by: 1 | -1, from: number): void {
    const n = this.count;
    if (!n) this.at = -1;
    else if (this.at < 0) {
      const below = this.hits.findIndex((index) => index >= from);
      this.at = by > 0 ? max(0, below) : below > 0 ? below - 1 : n - 1;
    } else this.at = (this.at + by + n) % n;
  }
}
