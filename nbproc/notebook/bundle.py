"""What a saved notebook keeps of a run: one bundle of a widget view, HTML and text."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbproc import explain
from nbproc.logs.lines import LineEvent, Stream, plain
from nbproc.notebook.html import RankLog, duration, run_html

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
    report = ctx.report()
    data: dict[str, Any] = {
        "text/plain": _text(ctx, report),
        "text/html": run_html(ctx.snapshot(), report, _logs(ctx, report)),
    }
    if model_id is not None:
        data[WIDGET_VIEW] = {"model_id": model_id, "version_major": 2, "version_minor": 1}
    return data


def _text(ctx: PContext, report: explain.Report) -> str:
    snapshot = ctx.snapshot()
    lasted = ""
    if snapshot.started is not None and snapshot.ended is not None:
        lasted = f", {duration(snapshot.ended - snapshot.started)}"
    lines = [f"{snapshot.name}: {snapshot.state.value}{lasted}"]
    if report.first is not None:
        lines.append(explain.text(report))
    elif snapshot.headline:
        lines.append(snapshot.headline)
    lines.append(explain.launch_line(snapshot))
    history = ctx.history
    if history is not None and report.first is None:
        for rank in range(min(ctx.nprocs, 64)):
            last = history.last(rank)
            if last is not None:
                lines.append(f"rank {rank}: {plain(last.text)[:_TEXT_LINE]}")
    return "\n".join(lines)


def _logs(ctx: PContext, report: explain.Report) -> dict[int, RankLog]:
    history = ctx.history
    if history is None:
        return {}
    logs: dict[int, RankLog] = {}
    left = FIGURE_BYTES
    for rank in sorted(range(ctx.nprocs), key=lambda r: (r not in report.first_ranks, r)):
        rows = history.rows(rank)
        displays, left = _displays(ctx, rank, rows, left)
        older = sum(history.dropped(rank, stream) for stream in (Stream.OUT, Stream.ERR))
        logs[rank] = RankLog(rows, older=older, file=ctx.log_file(rank, "stdout"), displays=displays)
    return logs


def _displays(ctx: PContext, rank: int, rows: Sequence[LineEvent], left: int) -> tuple[dict[int, str], int]:
    """Return HTML by event number for what a rank displayed, and what is left of ``left`` bytes."""
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
    return html, left


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
