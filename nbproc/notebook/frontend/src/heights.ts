// Where the rows of a list stand: most are of one height, the others are listed.

export class Heights {
  private index: number[] = [];
  private extra: number[] = [];
  /** sums[k]: all extras before the k-th. */
  private sums: number[] = [0];
  private first = 0;

  constructor(public row: number) {}

  reset(first: number): void {
    this.index = [];
    this.extra = [];
    this.sums = [0];
    this.first = first;
  }

  /** Rows before `first` are gone. */
  drop(first: number): void {
    this.first = first;
    const k = this.rank(first);
    if (k === 0) return;
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
    const k = this.rank(index);
    const extra = height - this.row;
    const known = this.index[k] === index;
    if ((known ? this.extra[k]! : 0) === extra) return false;
    if (known) {
      this.extra[k] = extra;
    } else {
      this.index.splice(k, 0, index);
      this.extra.splice(k, 0, extra);
    }
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
    let low = this.first;
    let high = end;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.top(middle) <= y) low = middle;
      else high = middle - 1;
    }
    return Math.max(this.first, Math.min(low, end - 1));
  }

  private rank(index: number): number {
    let low = 0;
    let high = this.index.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.index[middle]! < index) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  private sum(from: number): void {
    this.sums.length = this.index.length + 1;
    this.sums[0] = 0;
    for (let k = from; k < this.index.length; k++) this.sums[k + 1] = this.sums[k]! + this.extra[k]!;
  }
}
