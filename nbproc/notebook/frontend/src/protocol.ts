// What the kernel and the view say to each other; the kernel's side is wire.py.

export type RankState = "waiting" | "starting" | "running" | "succeeded" | "failed" | "stopped";
export type RunState = "created" | "starting" | "running" | "stopping" | "succeeded" | "failed" | "stopped";

/** [state, pid, started, ended, exit code, words, node] */
export type RankSnap = [RankState, number | null, number | null, number | null, number | null, string, string];

export interface Snap {
  name: string;
  state: RunState;
  started: number | null;
  ended: number | null;
  dir: string;
  first: number | null;
  headline: string;
  notes: string[];
  ranks: RankSnap[];
  now: number;
}

export interface Frame {
  place: string;
  file: string;
  function: string;
  line: number;
  source: [number, string][];
  columns: [number, number] | null;
  /** Frames that are left out just before this one. */
  skipped: number;
  library: boolean;
}

export interface Trace {
  type: string;
  message: string;
  notes: string[];
  frames: Frame[];
  linked: ["cause" | "context", Trace][];
  group: Trace[];
}

export interface Failure {
  words: string;
  /** The words are an exception's, not a sentence without its subject ("was killed by SIGKILL"). */
  raised: boolean;
  where: string;
  /** The frame that `where` names, -1 if there is none. */
  at: number;
  trace: Trace | null;
  stack: Frame[];
  message: string;
  stderr: string[];
}

export interface FailureGroup {
  ranks: number[];
  kind: "first" | "failed" | "consequence";
  failure: Failure;
}

export interface Report {
  headline: string;
  groups: FailureGroup[];
  more: number;
  rest: string[];
}

/** [rank, stream, number of the first line, lines, 1 if the last line is not complete, time] */
export type Run = [number, number, number, number, number, number];

/** [rank, CPU in percent of a core, resident bytes, GPU bytes or null] */
export type Usage = [number, number, number, number | null];

export interface Tick {
  t: "tick";
  seq: number;
  now: number;
  runs: Run[];
  snap?: Snap;
  usage?: Usage[];
  where?: [number, string][];
  failure?: Report;
}

export interface Replay {
  t: "replay";
  to: string;
  seq: number;
  part: number;
  parts: number;
  runs: Run[];
  snap?: Snap;
  failure?: Report | null;
}

export interface Page {
  t: "page";
  to: string;
  rank: number;
  stream: number;
  first: number;
  count: number;
  part: number;
  parts: number;
  runs: Run[];
}

export interface Pong {
  t: "pong";
  to: string;
  seq: number;
}

export interface DisplayData {
  t: "display";
  to: string;
  rank: number;
  file: string;
  update: number;
  part: number;
  parts: number;
  error?: string;
}

export interface FilePiece {
  t: "file";
  to: string;
  rank: number;
  stream: number;
  offset: number;
  size: number;
  path?: string;
  error?: string;
}

export type Message = Tick | Replay | Page | Pong | DisplayData | FilePiece;

export type Question =
  | { t: "hello"; seq: number }
  | { t: "ping" }
  | { t: "replay" }
  | { t: "page"; rank: number; stream: number; first: number; count: number }
  | { t: "display"; rank: number; file: string; update: number }
  | { t: "file"; rank: number; stream: number; offset: number }
  | { t: "stop" }
  | { t: "kill" };

export function ended(state: RunState | RankState): boolean {
  return state === "succeeded" || state === "failed" || state === "stopped";
}
