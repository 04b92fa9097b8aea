"""Failure, summary and log lines as HTML for the saved notebook.

It must read well where styles and scripts are stripped (GitHub), so the structure is plain: paragraphs, a table,
``<pre>``, ``<details>``. Inline styles and class names only add colour, by JupyterLab's theme variables with
fallbacks that can be read on white and on black. Everything from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from nbproc.explain import Piece, Report, Style, body, head, launch_line
from nbproc.logs.lines import LineEvent, Stream
from nbproc.notebook.alike import EACH, Alike, alike, consequences, said_of, told
from nbproc.notebook.displays import counted
from nbproc.notebook.sgr import sgr_to_html
from nbproc.states import RankSnapshot, RankState, RunState, Snapshot

LIMIT = 500_000
"""Bytes that one run may take in a saved notebook, figures aside."""
LINES = 200
"""Last lines of each rank that are saved."""
_REPORT_BYTES = 100_000
_NAME = 40
"""Characters of a list of ranks; a longer one is folded, below their number."""
_SPAN = 100
"""What a piece with colours of its own counts, in bytes: JupyterLab parses each one, for its table of contents."""

_RED = "var(--jp-error-color1, #dc3939)"
_FAINT = "color:var(--jp-ui-font-color2, #767676)"
_STYLES = {
    Style.ERROR: ("nbproc-error", f"color:{_RED};font-weight:bold"),
    Style.STRONG: ("nbproc-strong", "font-weight:bold"),
    Style.FAINT: ("nbproc-faint", _FAINT),
    Style.MARK: ("nbproc-mark", f"color:{_RED}"),
    Style.FAILING: ("nbproc-failing", "background:rgba(220, 57, 57, .16)"),
}
_STATE_COLORS = {
    RankState.SUCCEEDED: "color:var(--jp-success-color1, #148a27)",
    RankState.FAILED: f"color:{_RED};font-weight:bold",
}
_PLAIN = "text-align:left;vertical-align:top;border:0;background:none"
_CELL = f"{_PLAIN};padding:1px 12px 1px 0;white-space:nowrap"
_RANKS_CELL = f"{_PLAIN};padding:1px 12px 1px 0;max-width:24em"
_WORDS_CELL = f"{_PLAIN};padding:1px 0;max-width:none"
_BOX = f"border-left:3px solid {_RED};padding:2px 0 2px 12px;margin:6px 0"
_PRE = (
    "font-family:var(--jp-code-font-family, monospace);font-size:var(--jp-code-font-size, 13px);line-height:1.4;"
    "background:none;border:0;margin:4px 0;padding:0;white-space:pre;overflow-x:auto"
)
_LOG = f"{_PRE};max-height:30em;overflow-y:auto"


def report_html(report: Report) -> str:
    """Return the explanation of a run's end: headline, the other ranks, the first failure's traceback, the files."""
    if report.first is None:
        return f'<div class="nbproc-report"><p style="margin:4px 0">{escape(report.headline)}</p></div>'
    inner = [f'<p style="margin:4px 0">{"".join(_headline(piece) for piece in head(report))}</p>']
    groups = [escape(group.sentence) for group in report.groups]
    if groups:
        inner.append(f'<p style="margin:4px 0">{"<br>".join(groups)}</p>')
    pieces = list(body(report.first))
    if pieces:
        inner.append(f'<pre style="{_PRE}">{_bounded([_line(line) for line in pieces])}</pre>')
    return f'<div class="nbproc-report nbproc-failed" style="{_BOX}">{"".join(inner)}</div>'


def _headline(piece: Piece) -> str:
    if piece.style is Style.ERROR:
        name, css = _STYLES[Style.ERROR]
        return f'<strong class="{name}" style="{css}">{escape(piece.text, quote=False)}</strong>'
    return escape(piece.text, quote=False)


def _line(pieces: Sequence[Piece]) -> str:
    return "".join(_span(piece) for piece in pieces).rstrip()


def _span(piece: Piece) -> str:
    shown = escape(piece.text, quote=False)
    if piece.style not in _STYLES or not shown.strip():
        return shown
    name, css = _STYLES[piece.style]
    return f'<span class="{name}" style="{css}">{shown}</span>'


def _bounded(lines: list[str]) -> str:
    """Join lines, the middle ones replaced by a remark if they are too much for a saved notebook."""
    if sum(map(len, lines)) <= _REPORT_BYTES:
        return "\n".join(lines)
    first = _fitting(lines, _REPORT_BYTES // 2)
    last = _fitting(lines[::-1], _REPORT_BYTES // 2)[::-1]
    return "\n".join([*first, f"... {len(lines) - len(first) - len(last):,} lines cut ...", *last])


def _fitting(lines: Iterable[str], limit: int) -> list[str]:
    taken = []
    for line in lines:
        limit -= len(line.encode(errors="replace")) + 1
        if limit < 0:
            break
        taken.append(line)
    return taken


def summary_html(
    snapshot: Snapshot, last: Mapping[int, str] | None = None, said: Mapping[int, str] | None = None
) -> str:
    """Return one row a rank, in rank order: state, time, and how it ended. Many ranks share rows if they are alike.

    ``last`` holds the last line of a rank; it is shown for ranks of which there is nothing else to say. ``said``
    replaces what a rank's snapshot says of its end.
    """
    said, last = said or {}, last or {}
    if snapshot.nprocs > EACH:
        groups = alike(snapshot, said)
    else:
        groups = [Alike((rank,), said_of(rank, said)) for rank in snapshot.ranks]
    rows = "".join(_row(group, snapshot, last) for group in groups)
    return (
        f'<table class="nbproc-summary" style="margin:4px 0;border:0;font-size:inherit"><tbody>{rows}</tbody></table>'
    )


def _row(group: Alike, snapshot: Snapshot, last: Mapping[int, str]) -> str:
    state, count = group.state.value, len(group.ranks)
    shown = escape(group.words, quote=False)
    line = last.get(group.ranks[0].rank, "")
    if line and not shown:
        whose = f'<span style="{_FAINT}">rank {group.ranks[0].rank}:</span> ' if count > 1 else ""
        shown = whose + sgr_to_html(line[:2000])
    name = group.name
    if len(name) > _NAME:
        name = f"<details><summary>{count:,} ranks</summary>{name}</details>"
    elif count > 1:
        state = f"{count:,} {state}"
    css = _STATE_COLORS.get(group.state, _FAINT)
    return (
        f'<tr style="background:none"><td style="{_CELL if count == 1 else _RANKS_CELL}">{name}</td>'
        f'<td style="{_CELL}"><span class="nbproc-{group.state.value}" style="{css}">{state}</span></td>'
        f'<td style="{_CELL};{_FAINT}">{_lasted(group.ranks, snapshot)}</td><td style="{_WORDS_CELL}">{shown}</td></tr>'
    )


def _lasted(ranks: Iterable[RankSnapshot], snapshot: Snapshot) -> str:
    times = [
        (rank.ended if rank.ended is not None else snapshot.ended, rank.started)
        for rank in ranks
        if rank.started is not None
    ]
    lasted = sorted(end - start for end, start in times if end is not None and start is not None)
    return " to ".join(dict.fromkeys(duration(time) for time in (lasted[0], lasted[-1]))) if lasted else ""


def duration(seconds: float) -> str:
    """Return a time in few characters: ``0.4 s``, ``0:09``, ``1:02:03``."""
    if seconds < 1:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True)
class RankLog:
    """What is known of one rank's output: its newest lines, and how much there was before them."""

    lines: Sequence[LineEvent] = ()
    older: int = 0
    file: Path | None = None
    displays: Mapping[int, str] = field(default_factory=dict)
    """HTML for displayed objects, by the number of their event; those without one are named only."""
    kinds: Mapping[int, str] = field(default_factory=dict)
    """What was displayed, by the number of its event: "figure", "table"; nothing for what was replaced later."""

    @property
    def last(self) -> str:
        """Its last line that is not blank, or what it displayed if there is none."""
        texts = (line.text for line in reversed(self.lines) if line.stream is not Stream.DISPLAY and line.text.strip())
        return next(texts, "") or (f"displayed {counted(self.kinds.values())}" if self.kinds else "")


def lines_html(lines: Iterable[LineEvent], displays: Mapping[int, str] | None = None) -> str:
    """Return lines of a log in their order; what was displayed stands between them."""
    return _lines([(event, _log_line(event)) for event in lines], displays or {})


def _lines(lines: Iterable[tuple[LineEvent, str]], displays: Mapping[int, str]) -> str:
    parts: list[str] = []
    run: list[str] = []
    for event, shown in lines:
        if event.stream is not Stream.DISPLAY:
            run.append(shown)
            continue
        parts += _log(run)
        run = []
        parts.append(displays.get(event.number, f'<p style="{_FAINT}">(displayed: not saved)</p>'))
    return "".join([*parts, *_log(run)])


def _log_line(event: LineEvent) -> str:
    if event.stream is Stream.DISPLAY:
        return ""
    shown = sgr_to_html(event.text)
    if event.stream is Stream.ERR and shown:
        edge = "box-shadow:-3px 0 0 -1px var(--jp-border-color1, #9e9e9e)"
        return f'<span class="nbproc-stderr" style="{edge};padding-left:5px">{shown}</span>'
    return shown


def _log(lines: Sequence[str]) -> list[str]:
    joined = "\n".join(lines)
    return [f'<pre class="nbproc-log" style="{_LOG};padding-left:6px">{joined}</pre>'] if lines else []


def run_html(
    snapshot: Snapshot,
    report: Report | None = None,
    logs: Mapping[int, RankLog] | None = None,
    *,
    launch: str = "",
    limit: int = LIMIT,
) -> str:
    """Return a run as the saved notebook shows it: headline, explanation, summary, the last lines of each rank.

    ``launch`` is the line that said what was sent. The ranks that failed come first among the logs; of many ranks
    only some have one here. What does not fit into ``limit`` bytes (figures do not count) is left out, and how much
    that is is said.
    """
    logs = logs or {}
    failed = report is not None and report.first is not None
    last = {rank: log.last for rank, log in logs.items()}
    parts = [title_html(snapshot)]
    if report is not None and failed:
        parts.append(report_html(report))
    elif snapshot.headline:
        parts.append(f'<p style="margin:4px 0">{escape(snapshot.headline, quote=False)}</p>')
    launch = launch or launch_line(snapshot)
    parts.append(f'<p style="margin:4px 0;{_FAINT}">{escape(launch, quote=False)}</p>')
    if snapshot.nprocs > 1 or not failed:
        parts.append(summary_html(snapshot, last, consequences(report)))
    order = [rank for rank in told(snapshot, report) if rank in logs]
    if snapshot.nprocs > EACH and any(logs[rank].lines for rank in order):
        parts.append(_left_out(snapshot, len(order)))
    left = limit - sum(len(part.encode(errors="replace")) for part in parts)
    details = {}
    for index, rank in enumerate(order):
        share = max(left // (len(order) - index), min(left, LIMIT // 5) if index == 0 else 0)
        details[rank], used = _details(rank, logs[rank], share)
        left -= used
    parts += [details[rank] for rank in order]
    if snapshot.run_dir is not None:
        parts.append(f'<p style="margin:4px 0;{_FAINT}">logs: <code>{escape(str(snapshot.run_dir))}</code></p>')
    return f'<div class="nbproc-run">{"".join(parts)}</div>'


def _left_out(snapshot: Snapshot, kept: int) -> str:
    place = f"are in <code>{escape(str(snapshot.run_dir))}</code>" if snapshot.run_dir is not None else "are not"
    words = f"The last lines of {kept} ranks are kept here; those of the other {snapshot.nprocs - kept:,} {place}"
    return f'<p style="margin:4px 0;{_FAINT}">{words}</p>'


def title_text(snapshot: Snapshot, name: str = "") -> str:
    """Return a run in a line of text: ``trainer: succeeded, 4 ranks, 0:09``; ``name`` stands for its own."""
    return f"{name or snapshot.name}: {snapshot.state.value}, {_size(snapshot)}"


def title_html(snapshot: Snapshot, name: str = "") -> str:
    """Return a run in a line: its state, its name (or ``name``), its number of ranks and the time it took."""
    colors = {
        RunState.FAILED: f"color:{_RED}",
        RunState.SUCCEEDED: "color:var(--jp-success-color1, #148a27)",
    }
    state = snapshot.state.value
    name = escape(name or snapshot.name, quote=False)
    return (
        f'<p style="margin:4px 0"><strong class="nbproc-{state}" style="{colors.get(snapshot.state, "")}">{state}'
        f'</strong> {name} <span style="{_FAINT}">{_size(snapshot)}</span></p>'
    )


def _size(snapshot: Snapshot) -> str:
    ranks = f"{snapshot.nprocs} rank{'' if snapshot.nprocs == 1 else 's'}"
    if snapshot.started is None or snapshot.ended is None:
        return ranks
    return f"{ranks}, {duration(snapshot.ended - snapshot.started)}"


def _cost(html: str) -> int:
    return len(html.encode(errors="replace")) + _SPAN * html.count("<span")


def _details(rank: int, log: RankLog, share: int) -> tuple[str, int]:
    """Return the ``<details>`` of a rank and what it took of its share."""
    if not log.lines and not log.older:
        return "", 0
    share -= 600
    kept: list[tuple[LineEvent, str]] = []
    for event in reversed(log.lines[-LINES:]):
        shown = _log_line(event)
        cost = _cost(shown) + 1
        if cost > share and not kept and share > 200:  # one huge line: what fits of its beginning, without colours
            cut = event._replace(text=event.text.replace("\x1b", "")[: share // 8] + " ... (line cut)")
            kept.append((cut, _log_line(cut)))
            break
        if cost > share:
            break
        share -= cost
        kept.append((event, shown))
    kept.reverse()
    figures = [event.number for event, _ in kept if event.stream is Stream.DISPLAY]
    count = len(kept) - len(figures)
    older = log.older + sum(event.stream is not Stream.DISPLAY for event in log.lines) - count
    lines = f"{'last ' if older else ''}{count:,} line{'' if count == 1 else 's'}" if count or older else ""
    label = ", ".join(filter(None, [lines, counted(log.kinds[number] for number in figures if number in log.kinds)]))
    note = ""
    if older:
        place = f" in <code>{escape(str(log.file))}</code>" if log.file is not None else " not saved here"
        note = f'<p style="margin:4px 0;{_FAINT}">{older:,} older lines{place}</p>'
    inner = f"{note}{_lines(kept, log.displays)}"
    html = f'<details class="nbproc-rank"><summary>rank {rank}: {label or "remarks"}</summary>{inner}</details>'
    return html, _cost(html) - sum(_cost(log.displays.get(number, "")) for number in figures)
