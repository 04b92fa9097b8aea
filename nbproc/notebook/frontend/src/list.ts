// A list that holds only the rows in sight. It follows its end until the reader scrolls up.

import { Heights } from "./heights";
import type { Row, Shown } from "./lines";
import { h } from "./dom";

const OVERSCAN = 12;

export interface Painter {
  /** Fill the element of a row. Called again when the row's text has changed. */
  paint(element: HTMLElement, row: Row, index: number): void;
  /** A guess of a row's height in pixels; what is painted is measured. */
  guess(row: Row): number;
  /** True if painted rows may have another height than guessed. */
  measure(row: Row): boolean;
  /** The width of a row's text, in characters. */
  width(row: Row): number;
}

interface Painted {
  element: HTMLElement;
  version: number;
}

export class List {
  readonly box: HTMLElement;
  follow = true;
  private spacer = h("div", { class: "nb-spacer" });
  private rows = h("div", { class: "nb-rows" });
  private heights: Heights;
  private painted = new Map<Row, Painted>();
  private shown: Shown | null = null;
  private epoch = -1;
  private cursor = 0;
  private edits = -1;
  private anchor: { row: Row; offset: number } | null = null;
  private set = 0;
  private wide = 0;
  private stamp = 0;
  private patience = 10;

  constructor(
    private painter: Painter,
    rowHeight: number,
    private onFollow: () => void,
  ) {
    this.heights = new Heights(rowHeight);
    this.spacer.append(this.rows);
    this.box = h(
      "div",
      { class: "nb-log", role: "log", "aria-live": "off", tabindex: 0, "aria-label": "Lines of the log" },
      this.spacer,
    );
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    // Nothing is painted while the page hides the list, as JupyterLab does for a moment when its theme changes.
    new ResizeObserver(() => this.appeared()).observe(this.box);
  }

  show(shown: Shown): void {
    this.shown = shown;
    this.epoch = -1;
    this.repaint();
  }

  /** Forget what is painted: colours, marks or columns are others now. */
  repaint(): void {
    this.stamp++;
  }

  /** Guess all heights again: the width or the wrapping is another. */
  remeasure(): void {
    this.epoch = -1;
    this.repaint();
  }

  setRowHeight(height: number): void {
    if (height > 0 && height !== this.heights.row) {
      this.heights.row = height;
      this.remeasure();
    }
  }

  toEnd(): void {
    this.follow = true;
    this.onFollow();
  }

  toStart(): void {
    this.unfollow();
    this.anchor = null;
    this.scrollTo(0);
  }

  unfollow(): void {
    if (!this.follow) return;
    this.follow = false;
    this.remember();
    this.onFollow();
  }

  /** Bring a row into sight. */
  reveal(index: number): void {
    const { box, heights } = this;
    const top = heights.top(index);
    this.unfollow();
    if (top < box.scrollTop || top + heights.get(index) > box.scrollTop + box.clientHeight) {
      this.scrollTo(Math.max(0, top - box.clientHeight / 3));
    }
    this.remember();
  }

  private appeared(): void {
    if (!this.box.clientHeight || !this.shown) return;
    if (this.follow) this.scrollTo(this.box.scrollHeight);
    this.paint();
  }

  /** Scroll again to where the reader was. */
  reattached(): void {
    if (this.shown && !this.follow) this.restore();
  }

  topIndex(): number {
    return this.shown ? this.heights.find(this.box.scrollTop, this.shown.rows.end) : 0;
  }

  painting(): IterableIterator<[Row, { element: HTMLElement }]> {
    return this.painted.entries();
  }

  /** Bring the page up to date with the rows. Returns false if a filter has more to do. */
  sync(budget: number): boolean {
    const { shown, heights, box } = this;
    if (!shown) return true;
    shown.pump(budget);
    const rows = shown.rows;
    let moved = false;
    if (rows.epoch !== this.epoch) {
      this.epoch = rows.epoch;
      heights.reset(rows.first);
      this.cursor = rows.first;
      this.edits = rows.edits;
      this.wide = 0;
      moved = true;
    }
    const before = heights.top(rows.first);
    if (before > 0) moved = true;
    heights.drop(rows.first);
    if (this.cursor > rows.end) {
      heights.truncate(rows.end);
      this.cursor = rows.end;
    }
    if (rows.edits !== this.edits) {
      this.edits = rows.edits;
      const back = Math.max(rows.first, Math.min(this.cursor, rows.end - 300));
      heights.truncate(back);
      this.cursor = back;
    }
    this.cursor = Math.max(this.cursor, rows.first);
    for (; this.cursor < rows.end; this.cursor++) {
      const row = rows.at(this.cursor)!;
      const height = this.painter.guess(row);
      if (height !== heights.row) heights.set(this.cursor, height);
      const width = this.painter.width(row);
      if (width > this.wide) this.wide = width;
    }
    this.layout();
    if (this.follow) this.scrollTo(box.scrollHeight);
    else if (moved) this.restore();
    this.paint();
    return shown.done;
  }

  private layout(): void {
    const end = this.shown!.rows.end;
    const height = `${this.heights.top(end)}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
    const width = this.wide ? `${this.wide}ch` : "";
    if (this.spacer.style.minWidth !== width) this.spacer.style.minWidth = width;
  }

  private scrollTo(top: number): void {
    this.box.scrollTop = top;
    this.set = this.box.scrollTop;
  }

  private scrolled(): void {
    const { box } = this;
    if (!box.clientHeight) return;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    if (this.follow && box.scrollTop < this.set - 2) {
      this.follow = false;
      this.onFollow();
    } else if (!this.follow && atEnd && box.scrollTop > this.set) {
      this.toEnd();
    }
    this.set = box.scrollTop;
    this.remember();
    this.paint();
  }

  private remember(): void {
    const rows = this.shown?.rows;
    if (!rows?.size) return;
    const index = this.topIndex();
    const row = rows.at(index);
    this.anchor = row ? { row, offset: this.box.scrollTop - this.heights.top(index) } : null;
  }

  private restore(): void {
    const { anchor, shown } = this;
    if (!anchor || !shown) return;
    const rows = shown.rows;
    const index = this.locate(rows.first, rows.end, anchor.row);
    this.scrollTo(index < 0 ? this.box.scrollTop : this.heights.top(index) + anchor.offset);
  }

  private locate(first: number, end: number, wanted: Row): number {
    const rows = this.shown!.rows;
    for (let i = first; i < end; i++) {
      const row = rows.at(i)!;
      if (row === wanted || (row.n === wanted.n && row.rank === wanted.rank && row.stream === wanted.stream)) return i;
    }
    return -1;
  }

  private paint(): void {
    const { shown, heights, box, painter } = this;
    if (!shown) return;
    if (!box.clientHeight) {
      // Hidden: for a moment, which no observer sees, or for longer, whose end `appeared` is told of.
      if (this.patience-- > 0) requestAnimationFrame(() => this.paint());
      return;
    }
    this.patience = 10;
    for (let pass = 0; pass < 3; pass++) {
      const { rows } = shown;
      if (!rows.size) {
        this.rows.replaceChildren();
        this.painted.clear();
        return;
      }
      const from = Math.max(rows.first, heights.find(box.scrollTop, rows.end) - OVERSCAN);
      const to = Math.min(rows.end, heights.find(box.scrollTop + box.clientHeight, rows.end) + 1 + OVERSCAN);
      const wanted = new Set<Row>();
      for (let i = from; i < to; i++) wanted.add(rows.at(i)!);
      for (const [row, { element }] of this.painted) {
        if (wanted.has(row)) continue;
        element.remove();
        this.painted.delete(row);
      }
      let place: ChildNode | null = this.rows.firstChild;
      const check: [number, HTMLElement][] = [];
      for (let i = from; i < to; i++) {
        const row = rows.at(i)!;
        let held = this.painted.get(row);
        if (!held) {
          held = { element: h("div"), version: NaN };
          this.painted.set(row, held);
        }
        const version = row.version + this.stamp * 1e6;
        if (held.version !== version) {
          held.version = version;
          painter.paint(held.element, row, i);
          check.push([i, held.element]);
        }
        if (held.element === place) place = place.nextSibling;
        else this.rows.insertBefore(held.element, place);
        if (painter.measure(row) && check.at(-1)?.[0] !== i) check.push([i, held.element]);
      }
      const shift = `translateY(${heights.top(from)}px)`;
      if (this.rows.style.transform !== shift) this.rows.style.transform = shift;
      let changed = false;
      for (const [index, element] of check) {
        if (!painter.measure(rows.at(index)!)) continue;
        const height = element.offsetHeight;
        if (height > 0 && heights.set(index, height)) changed = true;
      }
      if (!changed) return;
      this.layout();
      if (this.follow) this.scrollTo(box.scrollHeight);
      else this.restore();
    }
  }
}
