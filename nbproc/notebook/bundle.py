"""What a saved notebook keeps of a run: one bundle of a widget view, HTML and text."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbproc import explain
from nbproc.logs.lines import LineEvent, Stream, plain
from nbproc.notebook.alike import EACH, alike, told
from nbproc.notebook.html import RankLog, duration, run_html
from nbproc.states import Snapshot

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
FIGURE_BYTES = 4_000_000
"""Bytes of figures that one run may take in a saved notebook."""
_TEXT_LINE = 500
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")


def bundle(ctx: PContext, model_id: str | None) -> dict[str, Any]:
    """Return the MIME bundle of a run as it is now; without a widget view if ``model_id`` is None.

    Reads the files of what the ranks displayed; otherwise works from memory. May be called from any thread.
    """
    report, snapshot = ctx.report(), ctx.snapshot()
    logs = _logs(ctx, told(snapshot, report))
    data: dict[str, Any] = {
        "text/plain": _text(snapshot, report, logs),
        "text/html": run_html(snapshot, report, logs),
    }
    if model_id is not None:
        data[WIDGET_VIEW] = {"model_id": model_id, "version_major": 2, "version_minor": 1}
    return data


def _text(snapshot: Snapshot, report: explain.Report, logs: Mapping[int, RankLog]) -> str:
    lasted = ""
    if snapshot.started is not None and snapshot.ended is not None:
        lasted = f", {duration(snapshot.ended - snapshot.started)}"
    lines = [f"{snapshot.name}: {snapshot.state.value}{lasted}"]
    if report.first is not None:
        lines.append(explain.text(report))
    elif snapshot.headline:
        lines.append(snapshot.headline)
    lines.append(explain.launch_line(snapshot))
    if report.first is None:
        lines += _ranks_text(snapshot, logs)
    return "\n".join(lines)


def _ranks_text(snapshot: Snapshot, logs: Mapping[int, RankLog]) -> Iterator[str]:
    """Yield the last line of each rank; of many ranks, their states, and the last line of one in each."""
    last = {rank: f"rank {rank}: {plain(log.last)[:_TEXT_LINE]}" for rank, log in logs.items() if log.last}
    if snapshot.nprocs <= EACH:
        yield from last.values()
        return
    for group in alike(snapshot):
        yield f"{group.name} {group.state.value}{f': {group.words}' if group.words else ''}"
        if not group.words and group.ranks[0].rank in last:
            yield last[group.ranks[0].rank]


def _logs(ctx: PContext, ranks: Iterable[int]) -> dict[int, RankLog]:
    history = ctx.history
    if history is None:
        return {}
    logs: dict[int, RankLog] = {}
    left = FIGURE_BYTES
    for rank in ranks:
        rows = history.rows(rank)
        displays, kinds, left = _displays(ctx, rank, rows, left)
        older = sum(history.dropped(rank, stream) for stream in (Stream.OUT, Stream.ERR))
        logs[rank] = RankLog(rows, older, ctx.log_file(rank, "stdout"), displays, kinds)
    return logs


def _displays(
    ctx: PContext, rank: int, rows: Sequence[LineEvent], left: int
) -> tuple[dict[int, str], dict[int, str], int]:
    """Return HTML and kind by event number of what a rank displayed, and what is left of ``left`` bytes."""
    shown: dict[int, tuple[int, dict[str, Any]]] = {}
    html: dict[int, str] = {}
    for event in rows:
        if event.stream is not Stream.DISPLAY:
            continue
        record = _record(event.text)
        html[event.number] = ""
        if record.get("clear"):
            shown.clear()
        elif record.get("n") is None:
            html[event.number] = f"<p>{escape(str(record.get('text', '')), quote=False)}</p>"
        else:  # a later record replaces the display, at its place
            number = shown.get(record["n"], (event.number,))[0]
            shown[record["n"]] = (number, record)
    layout = ctx.layout
    for number, record in shown.values():
        if layout is None:
            continue
        made = _display(layout.files.display_dir(rank), record, left)
        if made is None:
            del html[number]  # said to be displayed, and not saved
        else:
            html[number] = made
            left -= len(made)
    kinds = {number: str(record.get("kind", "output")) for number, record in shown.values()}
    return html, {number: kind for number, kind in kinds.items() if kind}, left


def _record(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _display(folder: Path, record: dict[str, Any], left: int) -> str | None:
    files = record.get("files") or {}
    for mime in record.get("mime") or []:
        path = folder / Path(str(files.get(mime, record.get("file")))).name
        try:
            if path.stat().st_size * 4 // 3 > left:
                return None
            content = path.read_bytes()
        except OSError:
            continue
        if mime in _IMAGES:
            code = base64.b64encode(content).decode()
            return f'<p><img alt="{escape(str(record.get("text", "")))}" src="data:{mime};base64,{code}"></p>'
        text = content.decode(errors="replace")
        if mime == "text/html":
            return _frame(text, str(record.get("text", "")))
        if mime.startswith("text/") or mime.endswith("json"):
            return f"<pre>{escape(text, quote=False)}</pre>"
    return f"<pre>{escape(str(record.get('text', '')), quote=False)}</pre>"


def _frame(html: str, text: str) -> str:
    """HTML of a rank stands in a frame where no script runs; where frames are taken out, its text is left."""
    height = min(480, 48 + 26 * html.count("<tr"))
    return (
        f'<iframe sandbox="" style="border:0;width:100%;height:{height}px;background:#fff" '
        f'srcdoc="{escape(html)}"><pre>{escape(text, quote=False)}</pre></iframe>'
    )
