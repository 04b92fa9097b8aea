// Everything the browser knows of one run. Views paint it; the kernel fills it. One per run and page, however
// many views and models there are.

import { DISPLAY, ERR, OUT, type Lines } from "./lines";
import { logs, type RankLog } from "./logs";
import { max, ticks } from "./numbers";
import {
  ended,
  type DisplayData,
  type FilePiece,
  type Message,
  type Page,
  type Question,
  type Replay,
  type Report,
  type Snap,
  type SnapNews,
  type Tick,
  type Usage,
} from "./protocol";

export const PAGE = 2_000;
const DISPLAYS_HELD = 60;

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
  readonly ranks: RankLog[];
  readonly all: Lines;
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
  /** How many lines there were that do not stand among all. */
  missing(): number;
  askPage(rank: number, stream: number, first: number, count: number): void;
  display(rank: number, file: string, update: number): Display;
  /** Fetch a whole log, piece by piece. `progress` is called with the bytes so far and of all. */
  file(rank: number, stream: number, progress: (done: number, size: number) => void): Promise<WholeFile>;
}

export interface WholeFile {
  pieces: Uint8Array[];
  /** The bytes that came, and those that the file has. */
  size: number;
  whole: number;
  path: string;
}

type Parts<T> = [message: T, data: Uint8Array][];

export function runStore(): RunStore {
  const listeners = new Set<() => void>();
  const lines = logs((rank) => self.where.delete(rank));
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
    if (message.usage) self.usage = new Map(message.usage.map((usage) => [usage[0], usage]));
    if (message.where) self.where = new Map(message.where);
    news(message, data);
    lines.trim();
  }

  function news({ snap, failure, runs }: Tick, data: Uint8Array): void {
    takeSnap(snap);
    takeReport(failure);
    lines.take(runs, data);
  }

  function takeSnap(snap?: SnapNews): void {
    if (!snap) return;
    const { size, ranks, ...rest } = snap;
    if (!self.snap && ranks.length < size) return; // the others come with the replay
    const all = self.snap?.ranks.slice() ?? [];
    for (const [rank, ...is] of ranks) all[rank] = is;
    self.snap = { ...rest, ranks: all };
    lines.grow(size);
    if (self.over) self.usage.clear();
  }

  function takeReport(report?: Report | null): void {
    if (!report) return;
    self.report = report;
    self.after = new Map(report.after);
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
    const since = later.filter(([tick]) => tick.seq > message.seq);
    // What has come since then says only what has changed: it has to be whole.
    const whole = since.length >= seq - message.seq;
    if (whole || !self.snap) takeSnap(snap);
    if (whole || !self.report) takeReport(failure);
    lines.merge(parts.flatMap(([part, text]) => lines.rows(part.runs, text)));
    seq = max(seq, message.seq);
    for (const [tick, text] of since) news(tick, text);
    lines.trim();
    if (!whole) askReplay();
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
    lines.insert(rank, stream, first, count, parts.flatMap(([part, text]) => lines.rows(part.runs, text)));
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
    ranks: lines.ranks,
    all: lines.all,
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
    settle: lines.settle,
    older: lines.older,
    missing: lines.missing,
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
          const { size, whole = size, path = "" } = piece;
          if (done >= size || !data.byteLength) return { pieces, size: done, whole: max(whole, done), path };
        }
      } finally {
        files.delete(key);
      }
    },
  };
  return self;
}

export const STREAM_NAMES: Record<number, string> = { [OUT]: "stdout", [ERR]: "stderr", [DISPLAY]: "displays" };

/** The state by which a rank is painted: a failure that follows from another is none of its own. */
export function painted(store: RunStore, rank: number): string | null {
  return store.after.has(rank) ? "after" : (store.snap!.ranks[rank]?.[0] ?? null);
}
