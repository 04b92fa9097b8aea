"""What a saved notebook keeps of a run: one bundle of a widget view, HTML and text."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def bundle(ctx: PContext, model_id: str | None) -> dict[str, Any]:
    """Return the MIME bundle of a run as it is now; without a widget view if `model_id` is None."""
    text = _text(ctx)
    data: dict[str, Any] = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
    if model_id is not None:
        data[WIDGET_VIEW] = {"model_id": model_id, "version_major": 2, "version_minor": 1}
    return data


def _text(ctx: PContext) -> str:
    snapshot = ctx.snapshot()
    ranks = f"{snapshot.nprocs} rank{'s' if snapshot.nprocs != 1 else ''}"
    lines = [f"{snapshot.name}: {snapshot.state.value}, {ranks}", snapshot.headline, *snapshot.notes]
    return "\n".join(line for line in lines if line)
