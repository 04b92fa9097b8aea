// Where the rows of a list stand: most are of one height, the others are listed.

import { max, min } from "./numbers";

/** The first place in a sorted list of n whose value is not below what is wanted. */
function lowest(n: number, below: (index: number) => boolean): number {
  let low = 0;
  while (low < n) {
    const middle = (low + n) >> 1;
    if (below(middle)) low = middle + 1;
    else n = middle;
  }
  return low;
}

export class Heights {
  private index: number[] = [];
  private extra: number[] = [];
  /** sums[k]: all extras before the k-th. */
  private sums: number[] = [0];
  private first = 0;

  constructor(public row: number) {}

  reset(first: number): void {
    this.truncate(0);
    this.first = first;
  }

  /** Rows before `first` are gone. */
  drop(first: number): void {
    this.first = first;
    const k = this.rank(first);
    if (!k) return;
    this.index.splice(0, k);
    this.extra.splice(0, k);
    this.sum(0);
  }

  truncate(end: number): void {
    const k = this.rank(end);
    this.index.length = k;
    this.extra.length = k;
    this.sums.length = k + 1;
  }

  /** Returns true if the height is another one than before. */
  set(index: number, height: number): boolean {
    if (this.get(index) === height) return false;
    const k = this.rank(index);
    const known = this.index[k] === index ? 1 : 0;
    this.index.splice(k, known, index);
    this.extra.splice(k, known, height - this.row);
    this.sum(k);
    return true;
  }

  get(index: number): number {
    const k = this.rank(index);
    return this.row + (this.index[k] === index ? this.extra[k]! : 0);
  }

  /** The top of a row; of the index behind the last one, the height of everything. */
  top(index: number): number {
    return (index - this.first) * this.row + this.sums[this.rank(index)]!;
  }

  /** The row at a height, among the rows before `end`. */
  find(y: number, end: number): number {
    const { first } = this;
    const after = first + lowest(end - first, (k) => this.top(first + k) <= y);
    return max(first, min(after, end) - 1);
  }

  private rank(index: number): number {
    return lowest(this.index.length, (k) => this.index[k]! < index);
  }

  private sum(from: number): void {
    this.sums.length = this.index.length + 1;
    for (let k = from; k < this.index.length; k++) this.sums[k + 1] = this.sums[k]! + this.extra[k]!;
  }
}
