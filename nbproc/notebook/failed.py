"""Why a run has failed, as elements for the view: the browser builds them, and text of a run stays text.

An element is ``[selector, attributes or child, ...]``: a tag with the view's classes (``"div.cause"``), a dict of
attributes, an element or a string. `cause` stands above everything, `errors` is the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbproc.explain import ranks_words

if TYPE_CHECKING:
    from nbproc.explain import Report
    from nbproc.failures import Frame, ProcessFailure, Trace

Element = list[Any]

FRAMES = 40
DEPTH = 8
GROUPS = 32
MEMBERS = 8
NOTES = 3
WORDS = 2_000
MESSAGE = 20_000
SOURCE_LINE = 500


def cause(report: Report, first: ProcessFailure) -> Element:
    """Return the first cause in a few lines, with the source around it and a way to the whole."""
    at = first.where
    rest = "; ".join(group.sentence[:WORDS] for group in report.groups[:GROUPS])
    return [
        "div.cause",
        {"role": "alert"},
        ["div.lead", *_lead(report, first)],
        *([["div.where", _place(first, at)]] if at is not None and first.raised else []),
        *([_source(at, 1)] if at is not None and at.source else []),
        *(["div.note", note[:WORDS]] for note in (first.trace.notes[:NOTES] if first.trace is not None else ())),
        [
            "div.where",
            f"{rest}. " if rest else "",
            _link("errors", "Full traceback"),
            " ",
            _link(str(first.local_rank), f"Log of rank {first.local_rank}"),
        ],
    ]


def _link(tab: str, words: str) -> Element:
    return ["button.link", {"type": "button", "data-open": tab}, words]


def _lead(report: Report, first: ProcessFailure) -> list[Element | str]:
    who, colon, _ = report.headline.partition(": ")
    if not first.raised or not colon:
        return [["strong", report.headline[:WORDS]]]
    return [["strong", who], ": ", ["code", first.words[:WORDS]]]


def _place(failure: ProcessFailure, at: Frame) -> str:
    frames = list(failure.trace.frames if failure.trace is not None else failure.stack)
    outer = frames[: frames.index(at)] if at in frames else []
    caller = next((frame for frame in reversed(outer) if not frame.is_library), None)
    words = f"{'at' if at.function in ('', '<module>') else 'in'} {at.words}"
    return f"{words}; called from {caller.words}" if caller is not None else words


def errors(report: Report, failures: Mapping[int, ProcessFailure]) -> Element:
    """Return all failures with their tracebacks: the first cause, the others, the consequences folded."""
    assert report.first is not None
    own = [(report.first_ranks, report.first, "first")]
    own += [(other.ranks, failures[other.ranks[0]], "") for other in report.others if other.ranks[0] in failures]
    rest = [((failure.local_rank,), failure, "") for failure in report.consequences]
    titled = len(own) + len(rest) > 1
    left = max(0, GROUPS - len(own))
    more = max(0, len(own) - GROUPS) + max(0, len(rest) - left)
    parts = [_part(*group, titled=titled) for group in own[:GROUPS]]
    if rest[:left]:
        lost = ranks_words(failure.local_rank for failure in report.consequences)
        folded = [_part(*group, titled=True) for group in rest[:left]]
        parts.append(["details", ["summary", f"{lost} then lost the connection"], *folded])
    if more:
        parts.append(["p.quiet", f"{more:,} more failure{'' if more == 1 else 's'}; see the run's directory"])
    return ["div.errors", {"tabindex": 0, "aria-label": "Failures"}, *parts]


def _part(ranks: Sequence[int], failure: ProcessFailure, kind: str, *, titled: bool) -> Element:
    aside = ", ".join(filter(None, [kind, "same failure" if len(ranks) > 1 else ""]))
    title = [["h4", ranks_words(ranks), ["span", aside]]] if titled else []
    return ["section.failure", *title, *_body(failure)]


def _body(failure: ProcessFailure) -> Iterator[Element]:
    if failure.trace is not None:
        yield _traceback(failure.trace, DEPTH)
    if failure.stack:
        yield ["div.trace", *_frames(failure.stack)]
    if failure.trace is None:
        yield ["div.raised", failure.words[:WORDS]]
        if not failure.stack and isinstance(failure.message, str) and failure.raised:
            # what an error file of somebody else's says; a trace says more
            yield ["pre", {"tabindex": 0}, failure.message[:MESSAGE]]
    if failure.told_by_stderr:
        yield ["p.quiet", "Last lines of its stderr"]
        yield ["pre", {"tabindex": 0}, "\n".join(line[:WORDS] for line in failure.stderr_tail[-FRAMES:])]


def _traceback(trace: Trace, depth: int) -> Element:
    linked: list[Element] = []
    if depth:
        before = trace.cause or trace.context
        if before is not None:
            words = "was the cause of" if trace.cause is not None else "and while that was handled"
            linked = [_traceback(before, depth - 1), ["p.quiet", words]]
    members = trace.group[:MEMBERS] if depth else ()
    return [
        "div.trace",
        *linked,
        *_frames([*trace.frames, *([trace.syntax] if trace.syntax is not None else [])]),
        ["div.raised", ["strong", trace.full_name], f": {trace.message[:MESSAGE]}" if trace.message else ""],
        *(["div.note", note[:WORDS]] for note in trace.notes),
        *(["div.member", _traceback(member, depth - 1)] for member in members),
    ]


def _frames(frames: Sequence[Frame]) -> Iterator[Element]:
    for frame in frames[-FRAMES:]:
        if frame.skipped:
            yield ["p.quiet", f"{frame.skipped:,} frames are left out"]
        function = "" if frame.function == "<module>" else frame.function
        name = [["b", function], f", {frame.place}"] if function else [frame.place]
        yield [
            "div.frame",
            {"data-library": frame.is_library},
            ["div.place", {"title": frame.file}, *name],
            *([_source(frame)] if frame.source else []),
        ]


def _source(frame: Frame, around: int = 9) -> Element:
    near = [(number, text) for number, text in frame.source if abs(number - frame.line) <= around]
    width = len(str(near[-1][0])) if near else 0
    lines: list[Element] = []
    for number, text in near:
        here, shown = number == frame.line, text[:SOURCE_LINE]
        start, end = frame.columns if here and frame.columns else (0, 0)
        code = [shown[:start], ["u", shown[start:end]], shown[end:]] if end > start else [shown or " "]
        lines.append(["div.here" if here else "div", ["i", f"{number:>{width}}"], *code])
    return ["pre.source", {"tabindex": 0, "aria-label": f"Source, {frame.place}"}, *lines]
