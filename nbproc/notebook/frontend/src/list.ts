// A list that holds only the rows in sight. It follows its end until the reader scrolls up.

import { h } from "./dom";
import { Heights } from "./heights";
import { Cursor, type Row, type Shown } from "./lines";
import { max, min } from "./numbers";

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

export interface List {
  readonly box: HTMLElement;
  /** The rows that are in the page. */
  readonly painted: Map<Row, Painted>;
  follow: boolean;
  show(shown: Shown): void;
  /** Forget what is painted: colours, marks or columns are others now. */
  repaint(): void;
  /** Guess all heights again: the width or the wrapping is another. */
  remeasure(): void;
  setRowHeight(height: number): void;
  toEnd(): void;
  toStart(): void;
  unfollow(): void;
  /** Bring a row into sight. */
  reveal(index: number): void;
  /** Scroll again to where the reader was: the page has forgotten it. */
  reattached(): void;
  topIndex(): number;
  /** Bring the page up to date with the rows. Returns false if a filter has more to do. */
  sync(budget: number): boolean;
}

export function list(painter: Painter, rowHeight: number, onFollow: () => void): List {
  const holder = h("div.rows");
  const spacer = h("div.spacer", holder);
  const box = h("div.log", { role: "log", "aria-live": "off", tabindex: 0, "aria-label": "Lines of the log" }, spacer);
  const heights = new Heights(rowHeight);
  const cursor = new Cursor();
  const painted = new Map<Row, Painted>();
  let shown: Shown | null = null;
  let anchor: { row: Row; offset: number } | null = null;
  /** Where we have scrolled to: anything else is the reader's doing. */
  let set = 0;
  let wide = 0;
  let stamp = 0;
  let patience = 10;

  function repaint(): void {
    stamp++;
  }

  function remeasure(): void {
    cursor.reset();
    repaint();
  }

  function scrollTo(top: number): void {
    box.scrollTop = top;
    set = box.scrollTop;
  }

  function toEnd(): void {
    self.follow = true;
    onFollow();
  }

  function unfollow(): void {
    if (!self.follow) return;
    self.follow = false;
    remember();
    onFollow();
  }

  function topIndex(): number {
    return shown ? heights.find(box.scrollTop, shown.rows.end) : 0;
  }

  function remember(): void {
    const index = topIndex();
    const row = shown?.rows.at(index);
    anchor = row ? { row, offset: box.scrollTop - heights.top(index) } : null;
  }

  function restore(): void {
    if (!anchor || !shown) return;
    const { rows } = shown;
    const { n, rank, stream } = anchor.row;
    for (let i = rows.first; i < rows.end; i++) {
      const row = rows.at(i)!;
      if (row.n === n && row.rank === rank && row.stream === stream) {
        scrollTo(heights.top(i) + anchor.offset);
        return;
      }
    }
    scrollTo(box.scrollTop);
  }

  /** Go to where the list is to be: at its end, or where the reader is. */
  function settle(): void {
    // The box's own scrollHeight still counts the rows that were painted for another length of the list.
    if (self.follow && shown) scrollTo(heights.top(shown.rows.end) - box.clientHeight);
    else restore();
  }

  function scrolled(): void {
    const { clientHeight, scrollTop, scrollHeight } = box;
    if (!clientHeight) return;
    const atEnd = scrollTop + clientHeight >= scrollHeight - 4;
    // Fewer rows than before also move the box up, which is nobody's wish to read there.
    if (self.follow && !atEnd && scrollTop < set - 2) {
      self.follow = false;
      onFollow();
    } else if (!self.follow && atEnd && scrollTop > set) toEnd();
    set = scrollTop;
    remember();
    paint();
  }

  function sync(budget: number): boolean {
    if (!shown) return true;
    shown.pump(budget);
    const { rows } = shown;
    const { first, end } = rows;
    let moved = heights.top(first) > 0;
    cursor.meet(
      rows,
      () => {
        heights.reset(first);
        wide = 0;
        moved = true;
      },
      (at) => heights.truncate(at),
    );
    heights.drop(first);
    cursor.read(rows, Infinity, (row, index) => {
      const height = painter.guess(row);
      if (height !== heights.row) heights.set(index, height);
      wide = max(wide, painter.width(row));
    });
    layout(end);
    if (self.follow || moved) settle();
    paint();
    return shown.done;
  }

  function layout(end: number): void {
    spacer.style.height = `${heights.top(end)}px`;
    spacer.style.minWidth = wide ? `${wide}ch` : "";
  }

  function paint(): void {
    if (!shown) return;
    const { clientHeight } = box;
    if (!clientHeight) {
      // Hidden: for a moment, which no observer sees, or for longer, whose end the observer is told of.
      if (patience-- > 0) requestAnimationFrame(paint);
      return;
    }
    patience = 10;
    const { rows } = shown;
    const { first, end, size } = rows;
    for (let pass = 0; pass < 3; pass++) {
      const from = size ? max(first, topIndex() - OVERSCAN) : end;
      const to = min(end, heights.find(box.scrollTop + clientHeight, end) + 1 + OVERSCAN);
      const wanted = new Set<Row>();
      for (let i = from; i < to; i++) wanted.add(rows.at(i)!);
      for (const [row, { element }] of painted) {
        if (wanted.has(row)) continue;
        element.remove();
        painted.delete(row);
      }
      let place: ChildNode | null = holder.firstChild;
      let index = from;
      for (const row of wanted) {
        let held = painted.get(row);
        if (!held) painted.set(row, (held = { element: h("div"), version: NaN }));
        const { element } = held;
        const version = row.version + stamp * 1e6;
        if (held.version !== version) {
          held.version = version;
          painter.paint(element, row, index);
        }
        if (element === place) place = place.nextSibling;
        else holder.insertBefore(element, place);
        index++;
      }
      holder.style.transform = `translateY(${heights.top(from)}px)`;
      let changed = false;
      index = from;
      for (const row of wanted) {
        const height = painter.measure(row) && painted.get(row)!.element.offsetHeight;
        if (height && heights.set(index, height)) changed = true;
        index++;
      }
      if (!changed) return;
      layout(end);
      settle();
    }
  }

  const self: List = {
    box,
    painted,
    follow: true,
    repaint,
    remeasure,
    toEnd,
    unfollow,
    topIndex,
    sync,
    show(fresh) {
      shown = fresh;
      remeasure();
    },
    setRowHeight(height) {
      if (height === heights.row) return;
      heights.row = height;
      remeasure();
    },
    toStart() {
      unfollow();
      anchor = null;
      scrollTo(0);
    },
    reveal(index) {
      const top = heights.top(index);
      const { scrollTop, clientHeight } = box;
      unfollow();
      if (top < scrollTop || top + heights.get(index) > scrollTop + clientHeight) {
        scrollTo(max(0, top - clientHeight / 3));
      }
      remember();
    },
    reattached() {
      if (!self.follow) restore();
    },
  };
  box.addEventListener("scroll", scrolled, { passive: true });
  // Nothing is painted while the page hides the list, as JupyterLab does for a moment when its theme changes.
  new ResizeObserver(() => {
    if (self.follow) settle();
    paint();
  }).observe(box);
  return self;
}
