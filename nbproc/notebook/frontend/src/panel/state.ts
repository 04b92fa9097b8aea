// What the form knows, and how it talks with the kernel. The fields' names are those of the kernel's `Values`.

export interface Row {
  arguments: string;
  environment: string;
  redirects: string;
  tee: string;
}

export interface Values {
  program: boolean;
  function: string;
  executable: string;
  nprocs: string;
  arguments: string;
  environment: string;
  name: string;
  variable: string;
  start_method: string;
  redirects: string;
  tee: string;
  filters: string;
  log_dir: string;
  timeout: string;
  ranks: Record<string, Row>;
}

export type TextField = Exclude<keyof Values, "program" | "ranks">;

export interface Fn {
  name: string;
  signature: string;
  doc: string;
  own: boolean;
}

export interface Checked {
  view: string;
  seq: number;
  errors: Record<string, string>;
  notes: Record<string, string>;
  wants: string;
  code: string;
  button: string;
  ready: boolean;
  about: Fn | null;
  takes: boolean;
}

export interface Form {
  values: Values;
  revision: number;
  view: string;
  seq: number;
}

export interface Run {
  id: number;
  model: string;
  state: string;
  name: string;
  call: string;
  nprocs: number;
  started: number | null;
  ended: number | null;
  said: string;
  now: number;
}

export interface Launch {
  number: number;
  busy: boolean;
  said: string;
}

export interface Model {
  get(name: string): unknown;
  on(event: string, listener: () => void): void;
  off(event: string, listener?: () => void): void;
  send(content: object): void;
}

export interface Host {
  getWidget(ref: string): Promise<{ render(target: { el: HTMLElement; signal?: AbortSignal }): Promise<void> }>;
}

/** What stays when the page draws the panel anew. */
export interface Kept {
  optionsOpen: boolean;
  open: Set<number>;
  byHand: Set<number>;
  newest: number;
  seq: number;
}

const kept = new Map<string, Kept>();

export function keptOf(panel: string): Kept {
  let found = kept.get(panel);
  if (!found) kept.set(panel, (found = { optionsOpen: false, open: new Set(), byHand: new Set(), newest: 0, seq: 0 }));
  return found;
}

export const EMPTY_ROW: Row = { arguments: "", environment: "", redirects: "", tee: "" };

export function blank(row: Row): boolean {
  return !(row.arguments.trim() || row.environment.trim() || row.redirects || row.tee);
}

export function countOf(values: Values): number {
  const text = values.nprocs.trim();
  return /^\d{1,5}$/.test(text) ? Number(text) : 0;
}
