// Why a run failed: the first cause, then the other failures, the consequences folded.

import { h, type Child } from "./dom";
import { count, ranksWord } from "./format";
import type { Failure, FailureGroup, Frame, Report, Trace } from "./protocol";

/** Above the tabs: the first cause in two lines, and the lines of source around it. */
export function banner(report: Report, source: boolean, details: () => void): HTMLElement {
  const first = report.groups[0];
  const failure = first?.failure;
  const frame = failure?.trace && deepest(failure.trace);
  const stopped = report.stopped.map(([ranks, where]) => `${ranksWord(ranks)} stopped${where ? ` ${where}` : ""}`);
  const rest = report.groups.slice(1).filter((group) => group.kind === "consequence");
  const lost = rest.flatMap((group) => group.ranks);
  if (lost.length) stopped.unshift(`${ranksWord(lost)} failed as a consequence`);
  return h(
    "div",
    { class: "nb-cause", role: "alert" },
    h("div", {}, h("strong", {}, first ? lead(first, report) : "failed"), ": ", h("code", {}, failure?.words ?? "")),
    failure?.where ? h("div", { class: "nb-where" }, failure.where) : null,
    failure?.hint ? h("div", { class: "nb-where" }, failure.hint) : null,
    source && frame ? sourceOf(frame) : null,
    stopped.length || source
      ? h(
          "div",
          { class: "nb-where" },
          stopped.length ? `${stopped.join("; ")}. ` : "",
          source ? h("button", { type: "button", class: "nb-link", click: details }, "Full traceback") : null,
        )
      : null,
  );
}

function lead(group: FailureGroup, report: Report): string {
  const ranks = ranksWord(group.ranks);
  if (report.groups.length === 1 && !report.stopped.length) return `${ranks} failed${group.ranks.length > 1 ? " (same)" : ""}`;
  return group.ranks.length > 1 ? `${ranks} failed first (same)` : `${ranks} failed first`;
}

export function errors(report: Report): HTMLElement {
  const own = report.groups.filter((group) => group.kind !== "consequence");
  const rest = report.groups.filter((group) => group.kind === "consequence");
  const part = (group: FailureGroup): HTMLElement =>
    h(
      "section",
      { class: "nb-failure", "data-kind": group.kind },
      h("h4", {}, ranksWord(group.ranks), h("span", {}, ...aside(group, report))),
      body(group.failure),
    );
  return h(
    "div",
    { class: "nb-errors" },
    ...own.map(part),
    rest.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, `${ranksWord(rest.flatMap((group) => group.ranks))} failed as a consequence`),
        ...rest.map(part),
      ),
    report.more > 0 && h("p", { class: "nb-quiet" }, `${count(report.more)} more failures are in the run directory.`),
  );
}

function aside(group: FailureGroup, report: Report): Child[] {
  const words: string[] = [];
  if (group.kind === "first" && report.groups.length + report.stopped.length > 1) words.push("first");
  if (group.ranks.length > 1) words.push("same failure");
  return words.length ? [words.join(", ")] : [];
}

function body(failure: Failure): HTMLElement {
  const { trace } = failure;
  return h(
    "div",
    {},
    trace ? traceback(trace) : h("div", { class: "nb-raised" }, failure.words),
    failure.hint ? h("p", {}, failure.hint) : null,
    failure.message ? h("pre", { tabindex: 0 }, failure.message) : null,
    failure.fatal ? h("pre", { tabindex: 0, "aria-label": "Stack of the crash" }, failure.fatal) : null,
    failure.stderr.length > 0 && h("p", { class: "nb-quiet" }, "Last lines of stderr.log"),
    failure.stderr.length > 0 && h("pre", { tabindex: 0 }, failure.stderr.join("\n")),
  );
}

function traceback(trace: Trace): HTMLElement {
  const linked = trace.linked.map(([kind, other]) =>
    h(
      "div",
      {},
      traceback(other),
      h("p", { class: "nb-quiet" }, kind === "cause" ? "caused the following:" : "and while it was handled:"),
    ),
  );
  const frames = trace.frames.map(frameOf);
  if (trace.hidden) {
    frames.splice(trace.cut, 0, h("p", { class: "nb-quiet" }, `${count(trace.hidden)} frames are left out`));
  }
  return h(
    "div",
    { class: "nb-trace" },
    ...linked,
    ...frames,
    h("div", { class: "nb-raised" }, h("strong", {}, trace.type), trace.message ? `: ${trace.message}` : ""),
    ...trace.notes.map((note) => h("div", { class: "nb-note" }, note)),
    ...trace.group.map((member) => h("div", { class: "nb-member" }, traceback(member))),
  );
}

function frameOf(frame: Frame): HTMLElement {
  return h(
    "div",
    { class: "nb-frame" },
    h("div", { class: "nb-place", title: frame.file }, h("span", {}, frame.function), ", ", frame.place),
    frame.source.length > 0 ? sourceOf(frame) : null,
  );
}

function sourceOf(frame: Frame): HTMLElement {
  const width = String(frame.source.at(-1)?.[0] ?? 0).length;
  return h(
    "pre",
    { class: "nb-source", tabindex: 0, "aria-label": `Source of ${frame.function}` },
    ...frame.source.map(([number, line]) => {
      const here = number === frame.line;
      const [from, to] = (here && frame.columns) || [0, 0];
      const code = to > from ? [line.slice(0, from), h("u", {}, line.slice(from, to)), line.slice(to)] : [line];
      return h("div", here ? { class: "nb-here" } : {}, h("i", {}, String(number).padStart(width)), ...code, line ? "" : " ");
    }),
  );
}

function deepest(trace: Trace): Frame | undefined {
  return [...trace.frames].reverse().find((frame) => frame.place.startsWith("cell [")) ?? trace.frames.at(-1);
}
