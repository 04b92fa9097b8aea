// Everything the browser knows of one run. Views paint it; the kernel fills it. One per run and page, however
// many views and models there are.

import { note } from "./figure";
import { DISPLAY, ERR, Lines, OUT, REACH, type Row } from "./lines";
import { floor, max, min, ticks } from "./numbers";
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

export interface RunStore {
  readonly client: string;
  snap: Snap | null;
  report: Report | null;
  /** The ranks whose failure follows from another, and what is to be said of each. */
  after: Map<number, string>;
  ranks: RankLog[];
  all: Lines;
  usage: Map<number, Usage>;
  /** The ranks that have been silent for long, and where they are, as far as it is known. */
  where: Map<number, string>;
  /** The kernel answers while the run goes on: Stop works. */
  ready: boolean;
  /** Why no more news will come; "" while they may. */
  gone: string;
  goneAt: number;
  heardAt: number;
  displays: Map<string, Display>;
  /** The state of the latest view's controls: the next view starts with it. */
  ui: unknown;
  readonly over: boolean;
  /** Give it the way to the kernel. Returns how to take that away. */
  connect(send: (question: object) => void): () => void;
  ask(question: Question): void;
  receive(message: Message, data: Uint8Array): void;
  /** The kernel is gone: say so; nothing can be asked any more. */
  lose(why: string): void;
  subscribe(listener: () => void): () => void;
  /** The kernel's time; the time of the kernel's end, once it has come. */
  now(): number;
  askReplay(): void;
  /** The view follows the end again: pages that were loaded may go. */
  settle(rank: number): void;
  /** How many lines of a stream are older than those held. */
  older(rank: number, stream: number): number;
  askPage(rank: number, stream: number, first: number, count: number): void;
  display(rank: number, file: string, update: number): Display;
  /** Fetch a whole log, piece by piece. `progress` is called with the bytes so far and of all. */
  file(rank: number, stream: number, progress: (done: number, size: number) => void): Promise<Uint8Array[]>;
}

type Parts<T> = [message: T, data: Uint8Array][];

export function runStore(): RunStore {
  const listeners = new Set<() => void>();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const pages = new Map<string, Parts<Page>>();
  const files = new Map<string, (piece: FilePiece, data: Uint8Array) => void>();
  let transport: ((question: object) => void) | null = null;
  let greeting: ReturnType<typeof setTimeout>;
  let seq = 0;
  /** Seconds to add to the browser's clock to have the kernel's. */
  let skew = 0;
  let replaying: { parts: Parts<Replay>; later: Parts<Tick> } | null = null;
  let retry: ReturnType<typeof setTimeout>;
  let retries = 0;

  // Connection

  /** Say hello until the kernel answers. JupyterLab opens a thread in the kernel for messages of a comm, so that they
   * are handled while a cell runs; what is sent before that thread is there waits for the end of the cell. */
  function greet(wait: number): void {
    ask({ t: "hello", seq });
    clearTimeout(greeting);
    greeting = setTimeout(() => {
      if (!self.ready && !self.gone && wait < 20_000) greet(wait * 2);
    }, wait);
  }

  function ask(question: Question): void {
    transport?.({ ...question, client: self.client });
  }

  function changed(): void {
    for (const listener of listeners) listener();
  }

  function clock(): number {
    return Date.now() / 1000 + skew;
  }

  function receive(message: Message, data: Uint8Array): void {
    self.heardAt = ticks();
    if (message.t === "tick") tick(message, data);
    else if (message.to !== self.client) return;
    else if (message.t === "pong") {
      self.ready = true;
      self.gone = "";
      if (message.seq > seq) askReplay();
    } else if (message.t === "replay") takeReplay(message, data);
    else if (message.t === "page") takePage(message, data);
    else if (message.t === "display") takeDisplay(message, data);
    else {
      files.get(`${message.rank}/${message.stream}`)?.(message, data);
      return;
    }
    changed();
  }

  function tick(message: Tick, data: Uint8Array): void {
    skew = message.now - Date.now() / 1000;
    if (message.seq > seq + 1) askReplay();
    seq = max(seq, message.seq);
    replaying?.later.push([message, data]);
    if (message.snap) takeSnap(message.snap);
    if (message.failure) takeReport(message.failure);
    if (message.usage) self.usage = new Map(message.usage.map((usage) => [usage[0], usage]));
    if (message.where) self.where = new Map(message.where);
    take(message.runs, data);
    trim();
  }

  function takeSnap(snap: Snap): void {
    self.snap = snap;
    grow(snap.ranks.length);
    if (self.over) self.usage.clear();
  }

  function takeReport(report: Report): void {
    self.report = report;
    self.after = new Map(report.after);
  }

  // Lines

  function grow(n: number): void {
    while (self.ranks.length < n) self.ranks.push(new RankLog());
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
    self.all.edits++;
  }

  function upsert(row: Row): void {
    grow(row.rank + 1);
    const log = self.ranks[row.rank]!;
    const { stream, n, time } = row;
    const line = stream !== DISPLAY;
    const recent = log.recent[stream]!;
    log.heard = max(log.heard, time);
    self.where.delete(row.rank);
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
    const { n, clear } = note(row.text);
    if (clear) {
      for (const known of displays.values()) change(log, known, "");
      displays.clear();
      return true;
    }
    const known = n !== null && displays.get(n);
    if (known) change(log, known, row.text);
    else if (n !== null) displays.set(n, row);
    return !!known;
  }

  function add(log: RankLog, row: Row): void {
    log.characters += row.text.length;
    log.lines.push(row);
    self.all.push(row);
  }

  function trim(): void {
    const n = max(1, self.ranks.length);
    const cap = min(LINES_PER_RANK, floor(LINES_TOGETHER / n));
    const characters = CHARACTERS_TOGETHER / n;
    for (const log of self.ranks) {
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
    const tooMany = self.all.size - min(LINES_IN_ALL, cap * n);
    if (tooMany > SLACK) self.all.drop(tooMany);
  }

  // Replay

  function askReplay(): void {
    if (replaying) return;
    replaying = { parts: [], later: [] };
    retries = 0;
    askAgain();
  }

  function askAgain(): void {
    ask({ t: "replay" });
    retryLater();
  }

  function retryLater(): void {
    clearTimeout(retry);
    retry = setTimeout(() => {
      if (!replaying || retries++ > 5) return;
      replaying.parts = [];
      askAgain();
    }, 5_000 * (retries + 1));
  }

  function takeReplay(message: Replay, data: Uint8Array): void {
    replaying ??= { parts: [], later: [] };
    const { parts, later } = replaying;
    if (!message.part) parts.length = 0;
    if (message.part !== parts.length) return; // a part was lost; the timer asks again
    parts.push([message, data]);
    retryLater();
    if (parts.length < message.parts) return;
    clearTimeout(retry);
    replaying = null;
    const { snap, failure } = parts[0]![0];
    const newer = message.seq >= seq;
    if (snap && (newer || !self.snap)) takeSnap(snap);
    if (failure && (newer || !self.report)) takeReport(failure);
    merge(parts.flatMap(([part, lines]) => rows(part.runs, lines)));
    seq = max(seq, message.seq);
    for (const [message_, lines] of later) if (message_.seq > message.seq) take(message_.runs, lines);
    trim();
  }

  /** Put what a replay holds between what is older and what is newer here. */
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
      const log = self.ranks[rank]!;
      const own = fresh.filter((row) => row.rank === rank);
      settleDisplays(own);
      const joined = close(join(log.lines.list(), own));
      log.lines.replace(joined);
      index(log, joined);
    }
    fresh.sort((a, b) => a.time - b.time);
    self.all.replace(join(self.all.list(), fresh).filter((row) => !row.gap));
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
        const shown = note(text).n;
        if (shown !== null) log.displays.set(shown, row);
      } else if (text.trim() && !(log.last && time < log.last.time)) log.last = row;
    }
    for (const row of held.slice(-3 * REACH)) {
      if (!row.gap && row.n > log.next[row.stream]! - REACH) log.recent[row.stream]!.set(row.n, row);
    }
  }

  // Older lines, figures

  function takePage(message: Page, data: Uint8Array): void {
    const { rank, stream, first, count } = message;
    const key = `${rank}/${stream}/${first}`;
    const parts = pages.get(key);
    if (message.part !== parts?.length) return;
    parts.push([message, data]);
    if (parts.length < message.parts) return;
    pages.delete(key);
    const log = self.ranks[rank]!;
    const read = parts.flatMap(([part, lines]) => rows(part.runs, lines));
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

  function takeDisplay({ rank, file, update, part, parts, error }: DisplayData, data: Uint8Array): void {
    const held = self.displays.get(`${rank}/${file}/${update}`);
    if (held?.state !== "asked" || part !== held.data.length) return;
    held.data.push(data);
    if (error) {
      held.error = error;
      held.state = "error";
    } else if (held.data.length === parts) held.state = "here";
    else return;
    held.version++;
  }

  const self: RunStore = {
    client: Math.random().toString(36).slice(2),
    snap: null,
    report: null,
    after: new Map(),
    ranks: [],
    all: new Lines(),
    usage: new Map(),
    where: new Map(),
    ready: false,
    gone: "",
    goneAt: 0,
    heardAt: ticks(),
    displays: new Map(),
    ui: null,
    ask,
    receive,
    askReplay,
    get over() {
      return !!self.snap && ended(self.snap.state);
    },
    now: () => (self.gone ? self.goneAt : clock()),
    connect(send) {
      transport = send;
      self.ready = false;
      self.gone = "";
      self.heardAt = ticks();
      greet(250);
      changed();
      return () => {
        clearTimeout(greeting);
        if (transport === send) transport = null;
      };
    },
    lose(why) {
      if (self.gone) return;
      self.goneAt = clock();
      self.gone = why;
      self.ready = false;
      changed();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    settle(rank) {
      const log = self.ranks[rank];
      if (!log?.paged) return;
      log.paged = 0;
      trim();
    },
    older(rank, stream) {
      const log = self.ranks[rank]!;
      return log.lost[stream] ? 0 : log.oldest[stream]!;
    },
    askPage(rank, stream, first, count) {
      pages.set(`${rank}/${stream}/${first}`, []);
      ask({ t: "page", rank, stream, first, count });
    },
    display(rank, file, update) {
      const { displays } = self;
      const key = `${rank}/${file}/${update}`;
      let held = displays.get(key);
      if (!held) {
        held = { state: "asked", data: [], error: "", version: 0 };
        displays.set(key, held);
        ask({ t: "display", rank, file, update });
        for (const old of displays.keys()) if (displays.size > DISPLAYS_HELD) displays.delete(old);
      }
      return held;
    },
    async file(rank, stream, progress) {
      const key = `${rank}/${stream}`;
      const pieces: Uint8Array[] = [];
      let done = 0;
      try {
        for (;;) {
          const [piece, data] = await new Promise<[FilePiece, Uint8Array]>((resolve, reject) => {
            const timer = setTimeout(() => reject(new Error("the kernel does not answer")), 10_000);
            files.set(key, (answer, bytes) => {
              if (answer.offset !== done) return;
              clearTimeout(timer);
              resolve([answer, bytes]);
            });
            ask({ t: "file", rank, stream, offset: done });
          });
          if (piece.error) throw new Error(piece.error);
          pieces.push(data);
          done += data.byteLength;
          progress(done, piece.size);
          if (done >= piece.size || !data.byteLength) return pieces;
        }
      } finally {
        files.delete(key);
      }
    },
  };
  return self;
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

export const STREAM_NAMES: Record<number, string> = { [OUT]: "stdout", [ERR]: "stderr", [DISPLAY]: "displays" };
