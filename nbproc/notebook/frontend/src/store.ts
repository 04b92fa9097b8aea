// Everything the browser knows of one run. Views paint it; the kernel fills it. One per run and page, however
// many views and models there are.

import { note } from "./figure";
import { DISPLAY, ERR, Lines, OUT, REACH, type Row } from "./lines";
import {
  ended,
  type DisplayData,
  type FilePiece,
  type Message,
  type Page,
  type Question,
  type Replay,
  type Report,
  type Run,
  type Snap,
  type Tick,
  type Usage,
} from "./protocol";

export const LINES_PER_RANK = 50_000;
const LINES_IN_ALL = 200_000;
const LINES_TOGETHER = 1_000_000;
const CHARACTERS_TOGETHER = 200_000_000;
const SLACK = 1_000;
export const PAGE = 2_000;
const DISPLAYS_HELD = 60;

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

export interface Display {
  state: "asked" | "here" | "error";
  data: Uint8Array[];
  error: string;
  version: number;
}

export class RunStore {
  readonly client = Math.random().toString(36).slice(2);
  snap: Snap | null = null;
  report: Report | null = null;
  ranks: RankLog[] = [];
  all = new Lines();
  usage = new Map<number, Usage>();
  where = new Map<number, string>();
  seq = 0;
  /** The kernel answers while the run goes on: Stop works. */
  ready = false;
  /** Why no more news will come; "" while they may. */
  gone = "";
  goneAt = 0;
  heardAt = performance.now();
  /** Seconds to add to the browser's clock to have the kernel's. */
  skew = 0;
  displays = new Map<string, Display>();
  /** The state of the latest view's controls: the next view starts with it. */
  ui: unknown = null;
  private listeners = new Set<() => void>();
  private transport: ((question: object) => void) | null = null;
  private decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  private replaying: { parts: [Replay, Uint8Array][]; ticks: [Tick, Uint8Array][] } | null = null;
  private retry = 0;
  private retries = 0;
  private pages = new Map<string, [Page, Uint8Array][]>();
  private files = new Map<string, (piece: FilePiece, data: Uint8Array) => void>();

  // Connection

  connect(send: (question: object) => void): () => void {
    this.transport = send;
    this.ready = false;
    this.gone = "";
    this.heardAt = performance.now();
    this.greet(250);
    this.changed();
    return () => {
      clearTimeout(this.greeting);
      if (this.transport === send) this.transport = null;
    };
  }

  private greeting = 0;

  /** Say hello until the kernel answers. JupyterLab opens a thread in the kernel for messages of a comm, so that they
   * are handled while a cell runs; what is sent before that thread is there waits for the end of the cell. */
  private greet(wait: number): void {
    this.ask({ t: "hello", seq: this.seq });
    clearTimeout(this.greeting);
    this.greeting = setTimeout(() => {
      if (!this.ready && !this.gone && wait < 20_000) this.greet(wait * 2);
    }, wait) as unknown as number;
  }

  ask(question: Question): void {
    this.transport?.({ ...question, client: this.client });
  }

  /** The kernel is gone: say so; nothing can be asked any more. */
  lose(why: string): void {
    if (this.gone) return;
    this.gone = why;
    this.goneAt = this.now();
    this.ready = false;
    this.changed();
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed(): void {
    for (const listener of this.listeners) listener();
  }

  now(): number {
    return Date.now() / 1000 + this.skew;
  }

  get over(): boolean {
    return this.snap !== null && ended(this.snap.state);
  }

  receive(message: Message, data: Uint8Array): void {
    this.heardAt = performance.now();
    switch (message.t) {
      case "tick":
        this.tick(message, data);
        break;
      case "pong":
        if (message.to !== this.client) return;
        this.ready = true;
        if (this.gone) this.gone = "";
        if (message.seq > this.seq) this.askReplay();
        break;
      case "replay":
        if (message.to === this.client) this.takeReplay(message, data);
        break;
      case "page":
        if (message.to === this.client) this.takePage(message, data);
        break;
      case "display":
        if (message.to === this.client) this.takeDisplay(message, data);
        break;
      case "file":
        if (message.to === this.client) this.files.get(`${message.rank}/${message.stream}`)?.(message, data);
        return;
    }
    this.changed();
  }

  private tick(message: Tick, data: Uint8Array): void {
    this.skew = message.now - Date.now() / 1000;
    if (message.seq > this.seq + 1) this.askReplay();
    this.seq = Math.max(this.seq, message.seq);
    this.replaying?.ticks.push([message, data]);
    if (message.snap) this.takeSnap(message.snap);
    if (message.failure) this.report = message.failure;
    if (message.usage) this.usage = new Map(message.usage.map((u) => [u[0], u]));
    if (message.where) this.where = new Map(message.where);
    for (const row of this.rows(message.runs, data)) this.upsert(row);
    this.trim();
  }

  private takeSnap(snap: Snap): void {
    this.snap = snap;
    if (snap.ranks.length !== this.ranks.length) this.grow(snap.ranks.length);
    if (this.over) this.usage.clear();
  }

  private grow(n: number): void {
    while (this.ranks.length < n) this.ranks.push(new RankLog());
  }

  private *rows(runs: Run[], data: Uint8Array): Generator<Row> {
    if (!runs.length) return;
    const lines = this.decoder.decode(data).split("\n");
    let k = 0;
    for (const [rank, stream, number, n, open, time] of runs) {
      for (let i = 0; i < n; i++) {
        const text = lines[k++] ?? "";
        yield { rank, stream, n: number + i, text, time, open: open === 1 && i === n - 1, gap: 0, version: 0 };
      }
    }
  }

  private upsert(row: Row): void {
    if (row.rank >= this.ranks.length) this.grow(row.rank + 1);
    const log = this.ranks[row.rank]!;
    const s = row.stream;
    const recent = log.recent[s]!;
    log.heard = Math.max(log.heard, row.time);
    const known = recent.get(row.n);
    if (known) {
      if (known.text !== row.text || known.open !== row.open) {
        log.characters += row.text.length - known.text.length;
        known.text = row.text;
        known.open = row.open;
        known.time = row.time;
        known.version++;
        log.lines.edits++;
        this.all.edits++;
        if (s !== DISPLAY && known.text.trim()) log.last = known;
      }
      return;
    }
    const next = log.next[s]!;
    if (row.n < next) return; // known and settled, or older than what is held
    if (row.n > next) {
      recent.clear();
      if (next === 0 && log.oldest[s] === 0) log.oldest[s] = row.n;
      else if (s !== DISPLAY) this.add(log, { ...row, n: next, gap: row.n - next, text: "", open: false });
    }
    log.next[s] = row.n + 1;
    recent.set(row.n, row);
    recent.delete(row.n - REACH);
    if (s === DISPLAY && this.redisplayed(log, row)) return;
    if (s !== DISPLAY && row.text.trim()) log.last = row;
    this.add(log, row);
  }

  /** A display may replace an earlier one, or take all before it away. Returns true if it needs no row. */
  private redisplayed(log: RankLog, row: Row): boolean {
    const { n, clear } = note(row.text);
    const change = (known: Row, text: string): void => {
      known.text = text;
      known.version++;
      log.lines.edits++;
      this.all.edits++;
    };
    if (clear) {
      for (const known of log.displays.values()) change(known, "");
      log.displays.clear();
      return true;
    }
    if (n === null) return false;
    const known = log.displays.get(n);
    if (known) change(known, row.text);
    else log.displays.set(n, row);
    return known !== undefined;
  }

  private add(log: RankLog, row: Row): void {
    log.characters += row.text.length;
    log.lines.push(row);
    this.all.push(row);
  }

  private trim(): void {
    const n = Math.max(1, this.ranks.length);
    const cap = Math.min(LINES_PER_RANK, Math.floor(LINES_TOGETHER / n));
    const characters = CHARACTERS_TOGETHER / n;
    for (const log of this.ranks) {
      let over = log.lines.size - cap - Math.min(log.paged, cap);
      if (over < SLACK && log.characters < characters) continue;
      const size = log.lines.size;
      while (log.lines.size && (over-- > 0 || log.characters > characters * 0.9)) {
        const row = log.lines.at(log.lines.first)!;
        if (!row.gap) log.characters -= row.text.length;
        log.oldest[row.stream] = row.n + Math.max(1, row.gap);
        log.lines.drop(1);
      }
      log.paged = Math.max(0, log.paged - (size - log.lines.size));
    }
    const tooMany = this.all.size - Math.min(LINES_IN_ALL, cap * n);
    if (tooMany > SLACK) this.all.drop(tooMany);
  }

  /** The view follows the end again: pages that were loaded may go. */
  settle(rank: number): void {
    const log = this.ranks[rank];
    if (log?.paged) {
      log.paged = 0;
      this.trim();
    }
  }

  // Replay

  askReplay(): void {
    if (this.replaying) return;
    this.replaying = { parts: [], ticks: [] };
    this.retries = 0;
    this.ask({ t: "replay" });
    this.retryLater();
  }

  private retryLater(): void {
    clearTimeout(this.retry);
    this.retry = setTimeout(() => {
      if (!this.replaying || this.retries++ > 5) return;
      this.replaying.parts = [];
      this.ask({ t: "replay" });
      this.retryLater();
    }, 5_000 * (this.retries + 1)) as unknown as number;
  }

  private takeReplay(message: Replay, data: Uint8Array): void {
    if (!this.replaying) this.replaying = { parts: [], ticks: [] };
    const { parts, ticks } = this.replaying;
    if (message.part !== parts.length) {
      if (message.part === 0) parts.length = 0;
      else return; // a part was lost; the timer asks again
    }
    parts.push([message, data]);
    this.retryLater();
    if (parts.length < message.parts) return;
    clearTimeout(this.retry);
    this.replaying = null;
    const head = parts[0]![0];
    if (head.snap && head.seq >= this.seq) {
      this.takeSnap(head.snap);
      this.report = head.failure ?? this.report;
    } else if (head.snap && !this.snap) {
      this.takeSnap(head.snap);
    }
    if (head.failure && !this.report) this.report = head.failure;
    this.merge(parts.flatMap(([m, d]) => [...this.rows(m.runs, d)]));
    this.seq = Math.max(this.seq, message.seq);
    for (const [tick, buffer] of ticks) {
      if (tick.seq <= message.seq) continue;
      for (const row of this.rows(tick.runs, buffer)) this.upsert(row);
    }
    this.trim();
  }

  /** Put what a replay holds between what is older and what is newer here. */
  private merge(rows: Row[]): void {
    const windows = new Map<string, [number, number]>();
    for (const row of rows) {
      const key = `${row.rank}/${row.stream}`;
      const window = windows.get(key);
      if (!window) windows.set(key, [row.n, row.n]);
      else {
        window[0] = Math.min(window[0], row.n);
        window[1] = Math.max(window[1], row.n);
      }
    }
    const side = (row: Row): -1 | 0 | 1 => {
      const window = windows.get(`${row.rank}/${row.stream}`);
      if (!window) return -1;
      return row.n < window[0] ? -1 : row.n > window[1] ? 1 : 0;
    };
    const join = (held: Row[], fresh: Row[]): Row[] => [
      ...held.filter((row) => side(row) < 0),
      ...fresh,
      ...held.filter((row) => side(row) > 0),
    ];
    const byRank = new Map<number, Row[]>();
    for (const row of rows) {
      const list = byRank.get(row.rank);
      if (list) list.push(row);
      else byRank.set(row.rank, [row]);
    }
    for (const [rank, fresh] of byRank) {
      this.grow(rank + 1);
      const log = this.ranks[rank]!;
      settleDisplays(fresh);
      const joined = close(join(log.lines.list(), fresh));
      log.lines.replace(joined);
      this.index(log, joined);
    }
    const inTime = [...rows].sort((a, b) => a.time - b.time);
    this.all.replace(join(this.all.list(), inTime).filter((row) => !row.gap));
  }

  private index(log: RankLog, rows: Row[]): void {
    log.recent = [new Map(), new Map(), new Map()];
    log.next = [0, 0, 0];
    log.last = null;
    log.characters = 0;
    log.displays.clear();
    const seen = [false, false, false];
    for (const row of rows) {
      const s = row.stream;
      if (!seen[s]) {
        seen[s] = true;
        log.oldest[s] = row.n;
      }
      log.characters += row.text.length;
      if (row.gap) continue;
      log.next[s] = Math.max(log.next[s]!, row.n + 1);
      log.heard = Math.max(log.heard, row.time);
      if (s === DISPLAY) {
        const { n } = note(row.text);
        if (n !== null) log.displays.set(n, row);
      } else if (row.text.trim() && (!log.last || row.time >= log.last.time)) log.last = row;
    }
    for (let i = Math.max(0, rows.length - 3 * REACH); i < rows.length; i++) {
      const row = rows[i]!;
      if (!row.gap && row.n > log.next[row.stream]! - REACH) log.recent[row.stream]!.set(row.n, row);
    }
  }

  // Older lines, figures, files

  /** How many lines of a stream are older than those held. */
  older(rank: number, stream: number): number {
    const log = this.ranks[rank];
    return log && !log.lost[stream] ? log.oldest[stream]! : 0;
  }

  askPage(rank: number, stream: number, first: number, count: number): void {
    this.pages.set(`${rank}/${stream}/${first}`, []);
    this.ask({ t: "page", rank, stream, first, count });
  }

  private takePage(message: Page, data: Uint8Array): void {
    const key = `${message.rank}/${message.stream}/${message.first}`;
    const parts = this.pages.get(key);
    const log = this.ranks[message.rank];
    if (!parts || !log) return;
    if (message.part !== parts.length) return;
    parts.push([message, data]);
    if (parts.length < message.parts) return;
    this.pages.delete(key);
    const { stream, first, count } = message;
    const rows = parts.flatMap(([m, d]) => [...this.rows(m.runs, d)]);
    const held = log.lines.list();
    const gap = held.find((row) => row.gap && row.stream === stream && row.n <= first && first < row.n + row.gap);
    if (gap) {
      const at = held.indexOf(gap);
      const inside = rows.filter((row) => row.n >= gap.n && row.n < gap.n + gap.gap);
      const left = gap.n + gap.gap - (first + count);
      const rest = left > 0 ? [{ ...gap, n: first + count, gap: left }] : [];
      held.splice(at, 1, ...(inside.length ? [...inside, ...rest] : [{ ...gap, text: "lost" }]));
    } else {
      const fresh = rows.filter((row) => row.n < log.oldest[stream]!);
      if (!fresh.length) log.lost[stream] = true;
      else log.oldest[stream] = Math.min(...fresh.slice(0, 1).map((row) => row.n));
      held.unshift(...fresh);
      log.paged += fresh.length;
    }
    for (const row of rows) log.characters += row.text.length;
    log.lines.replace(held);
  }

  display(rank: number, file: string, update: number): Display {
    const key = `${rank}/${file}/${update}`;
    let held = this.displays.get(key);
    if (!held) {
      held = { state: "asked", data: [], error: "", version: 0 };
      this.displays.set(key, held);
      this.ask({ t: "display", rank, file, update });
      for (const [old] of this.displays) {
        if (this.displays.size <= DISPLAYS_HELD) break;
        this.displays.delete(old);
      }
    }
    return held;
  }

  private takeDisplay(message: DisplayData, data: Uint8Array): void {
    const held = this.displays.get(`${message.rank}/${message.file}/${message.update}`);
    if (!held || held.state === "here" || message.part !== held.data.length) return;
    held.error = message.error ?? "";
    held.data.push(data);
    if (message.error) held.state = "error";
    else if (held.data.length === message.parts) held.state = "here";
    else return;
    held.version++;
  }

  /** Fetch a whole log, piece by piece. `progress` is called with the bytes so far and of all. */
  async file(rank: number, stream: number, progress: (done: number, size: number) => void): Promise<Uint8Array[]> {
    const key = `${rank}/${stream}`;
    const pieces: Uint8Array[] = [];
    let done = 0;
    try {
      for (;;) {
        const [piece, data] = await new Promise<[FilePiece, Uint8Array]>((resolve, reject) => {
          const timer = setTimeout(() => reject(new Error("the kernel does not answer")), 10_000);
          this.files.set(key, (p, d) => {
            if (p.offset !== done) return;
            clearTimeout(timer);
            resolve([p, d]);
          });
          this.ask({ t: "file", rank, stream, offset: done });
        });
        if (piece.error) throw new Error(piece.error);
        if (!data.byteLength) return pieces;
        pieces.push(data);
        done += data.byteLength;
        progress(done, piece.size);
        if (done >= piece.size) return pieces;
      }
    } finally {
      this.files.delete(key);
    }
  }
}

/** Let later displays replace earlier ones; what is replaced or cleared keeps an empty row. */
function settleDisplays(rows: Row[]): void {
  const shown = new Map<number, Row>();
  for (const row of rows) {
    if (row.stream !== DISPLAY) continue;
    const { n, clear } = note(row.text);
    const known = n === null ? undefined : shown.get(n);
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
  const next: (number | null)[] = [null, null, null];
  const closed: Row[] = [];
  for (const row of rows) {
    if (row.gap) continue;
    const expected = next[row.stream]!;
    if (next[row.stream] !== null && row.n > expected && row.stream !== DISPLAY) {
      closed.push({ ...row, n: expected, gap: row.n - expected, text: "", open: false });
    }
    next[row.stream] = Math.max(expected ?? 0, row.n + 1);
    closed.push(row);
  }
  return closed;
}

export const STREAM_NAMES: Record<number, string> = { [OUT]: "stdout", [ERR]: "stderr", [DISPLAY]: "displays" };
