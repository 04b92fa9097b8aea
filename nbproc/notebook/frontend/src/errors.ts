// Why a run failed: the first cause, then the other failures, the consequences folded.

import { h } from "./dom";
import { count, plural, ranksWord } from "./format";
import type { Failure, FailureGroup, Frame, Report, Trace } from "./protocol";

/** Above the tabs: the first cause in two lines; with `details` the source around it and a way to the whole. */
export function banner(report: Report, nprocs: number, details: (() => void) | null): HTMLElement {
  const first = report.groups[0]!;
  const n = first.ranks.length;
  const alone = n === nprocs || (n > 1 && report.groups.length === 1);
  const { failure } = first;
  const frame = failure.trace?.frames[failure.at] ?? failure.stack[failure.at];
  return h(
    "div",
    { class: "nb-cause", role: "alert" },
    h("div", { class: "nb-lead" }, ...lead(first, alone)),
    failure.where ? h("div", { class: "nb-where" }, failure.where) : null,
    details && frame ? sourceOf(frame, 1) : null,
    h(
      "div",
      { class: "nb-where" },
      report.rest.length ? `${report.rest.join("; ")}. ` : "",
      details ? h("button", { type: "button", class: "nb-link", click: details }, "Full traceback") : null,
    ),
  );
}

function lead({ ranks, failure }: FailureGroup, alone: boolean): (Node | string)[] {
  if (!failure.raised) return [h("strong", {}, `${ranksWord(ranks)} ${failure.words}`)];
  const words = `${ranksWord(ranks)} failed${alone ? "" : " first"}${ranks.length > 1 ? " (same)" : ""}`;
  return [h("strong", {}, words), ": ", h("code", {}, failure.words)];
}

export function errors(report: Report): HTMLElement {
  const own = report.groups.filter((group) => group.kind !== "consequence");
  const rest = report.groups.filter((group) => group.kind === "consequence");
  return h(
    "div",
    { class: "nb-errors", tabindex: 0, "aria-label": "Failures" },
    ...own.map((group) => part(group, own.length + rest.length > 1)),
    rest.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, `${ranksWord(rest.flatMap((group) => group.ranks))} then lost the connection`),
        ...rest.map((group) => part(group, true)),
      ),
    report.more > 0 && h("p", { class: "nb-quiet" }, `${plural(report.more, "more failure")}; see the run's directory`),
  );
}

function part({ ranks, kind, failure }: FailureGroup, titled: boolean): HTMLElement {
  const aside = [kind === "first" && "first", ranks.length > 1 && "same failure"].filter(Boolean).join(", ");
  return h(
    "section",
    { class: "nb-failure" },
    titled ? h("h4", {}, ranksWord(ranks), h("span", {}, aside)) : null,
    ...body(failure),
  );
}

function body(failure: Failure): (HTMLElement | null)[] {
  const { trace, stack, message, stderr } = failure;
  return [
    trace ? traceback(trace) : null,
    stack.length ? h("div", { class: "nb-trace" }, ...stack.flatMap((frame) => frameOf(frame))) : null,
    trace ? null : h("div", { class: "nb-raised" }, failure.words),
    message ? h("pre", { tabindex: 0 }, message) : null,
    stderr.length ? h("p", { class: "nb-quiet" }, "Last lines of its stderr") : null,
    stderr.length ? h("pre", { tabindex: 0 }, stderr.join("\n")) : null,
  ];
}

function traceback(trace: Trace): HTMLElement {
  const linked = trace.linked.flatMap(([kind, other]) => [
    traceback(other),
    h("p", { class: "nb-quiet" }, kind === "cause" ? "was the cause of" : "and while that was handled"),
  ]);
  return h(
    "div",
    { class: "nb-trace" },
    ...linked,
    ...trace.frames.flatMap((frame) => frameOf(frame)),
    h("div", { class: "nb-raised" }, h("strong", {}, trace.type), trace.message ? `: ${trace.message}` : ""),
    ...trace.notes.map((note) => h("div", { class: "nb-note" }, note)),
    ...trace.group.map((member) => h("div", { class: "nb-member" }, traceback(member))),
  );
}

function frameOf(frame: Frame): (HTMLElement | null)[] {
  const place = frame.function ? [h("b", {}, frame.function), `, ${frame.place}`] : [frame.place];
  return [
    frame.skipped ? h("p", { class: "nb-quiet" }, `${count(frame.skipped)} frames are left out`) : null,
    h(
      "div",
      { class: "nb-frame", "data-library": frame.library },
      h("div", { class: "nb-place", title: frame.file }, ...place),
      frame.source.length > 0 && sourceOf(frame),
    ),
  ];
}

function sourceOf(frame: Frame, around = 9): HTMLElement {
  const near = frame.source.filter(([number]) => Math.abs(number - frame.line) <= around);
  const width = String(near.at(-1)?.[0] ?? 0).length;
  return h(
    "pre",
    { class: "nb-source", tabindex: 0, "aria-label": `Source, ${frame.place}` },
    ...near.map(([number, line]) => {
      const here = number === frame.line;
      const [from, to] = (here && frame.columns) || [0, 0];
      const code = to > from ? [line.slice(0, from), h("u", {}, line.slice(from, to)), line.slice(to)] : [line || " "];
      return h("div", here ? { class: "nb-here" } : {}, h("i", {}, String(number).padStart(width)), ...code);
    }),
  );
}
