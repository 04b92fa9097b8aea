// What the kernel and the view say to each other; the kernel's side is wire.py.

import type { Tree } from "./tree";

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
  headline: string;
  notes: string[];
  ranks: RankSnap[];
  now: number;
}

/** A snapshot as it is sent: of the `size` ranks those that have changed, or all. */
export interface SnapNews extends Omit<Snap, "ranks"> {
  size: number;
  ranks: [rank: number, ...RankSnap][];
}

/** Why a run has failed: the first cause, to stand above everything, and the whole. */
export interface Report {
  cause: Tree;
  errors: Tree;
  /** The ranks whose failure follows from another, and what is to be said of each. */
  after: [rank: number, words: string][];
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
  snap?: SnapNews;
  usage?: Usage[];
  /** The ranks that are silent, and where each one is; "" if that is not known. */
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
  snap?: SnapNews;
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

/** A line of the stream of displays: what was displayed, a remark (a text alone), or that all before it are cleared. */
export interface DisplayRecord {
  n?: number | null;
  file?: string;
  mime?: string | string[];
  kind?: string;
  text?: string;
  update?: number;
  clear?: boolean;
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
  /** The bytes that can be had, and those that the file has. */
  size: number;
  whole?: number;
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
