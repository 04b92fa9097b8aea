// The state of a view's controls: what is shown, and how. It survives when the notebook draws the view anew.

export type Tab = "overview" | "errors" | "all" | number;

export interface Controls {
  tab: Tab;
  /** The reader has chosen a tab: a failure does not take them elsewhere. */
  chosen: boolean;
  out: boolean;
  err: boolean;
  time: boolean;
  wrap: boolean;
  filter: string;
  regex: boolean;
  invert: boolean;
  find: string;
  finding: boolean;
  height: number;
}

export function controls(before: unknown): Controls {
  const fresh: Controls = {
    tab: "overview",
    chosen: false,
    out: true,
    err: true,
    time: false,
    wrap: false,
    filter: "",
    regex: false,
    invert: false,
    find: "",
    finding: false,
    height: 320,
  };
  return { ...fresh, ...(before as Partial<Controls> | null) };
}

/** What a filter or a search looks for; null for nothing, an Error for a pattern that is none. */
export function pattern(text: string, regex: boolean): RegExp | null | Error {
  if (!text) return null;
  try {
    // As editors do: a capital letter in the pattern asks for its case.
    const flags = text === text.toLowerCase() ? "gi" : "g";
    return new RegExp(regex ? text : text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), flags);
  } catch (error) {
    return error as Error;
  }
}
