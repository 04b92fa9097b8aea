"""What `display()` and its kin do in a rank."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

from nbproc.notebook import formats
from nbproc.notebook.displays import Store, is_rich

__all__ = [
    "DisplayHandle",
    "clear_output",
    "display",
    "flush",
    "publish_display_data",
    "show_value",
    "update_display",
    "use",
]

_WHY_TEXT = "(a widget in a rank cannot reach the page, so its text is shown)"


class _State:
    """What this process has been given; there is one rank in a process."""

    store: Store | None = None
    figure_formats: tuple[str, ...] = ("png",)
    told_of_widgets = False


def use(directory: str | None, figure_formats: tuple[str, ...]) -> None:
    """Keep what is displayed from now on in ``directory``; print it if that is None."""
    _State.store = Store(Path(directory)) if directory else None
    _State.figure_formats = figure_formats


class DisplayHandle:
    """A display that can be replaced, as IPython's."""

    def __init__(self, display_id: str | None = None) -> None:
        self.display_id = display_id or uuid.uuid4().hex

    def display(self, value: object, **keywords: Any) -> None:
        """Show ``value`` under this name."""
        display(value, display_id=self.display_id, **keywords)

    def update(self, value: object, **keywords: Any) -> None:
        """Replace what is shown under this name."""
        update_display(value, display_id=self.display_id, **keywords)


def display(
    *values: object,
    include: object = None,
    exclude: object = None,
    metadata: dict[str, Any] | None = None,
    transient: dict[str, Any] | None = None,
    display_id: str | bool | None = None,
    raw: bool = False,
    clear: bool = False,
    **_keywords: object,
) -> DisplayHandle | None:
    """Show values, as IPython's `display` does: what is rich becomes a file of the rank, what is text is printed."""
    if display_id is None and transient:
        display_id = transient.get("display_id")
    handle = DisplayHandle(display_id if isinstance(display_id, str) else None) if display_id else None
    if clear:
        clear_output(wait=True)
    for value in values:
        if not raw and _shows_itself(value):
            continue
        _show(*_made(value, raw, metadata), handle.display_id if handle else None)
    return handle


def _made(value: object, raw: bool, metadata: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if raw and isinstance(value, dict):
        return {mime: formats.raw(mime, content) for mime, content in value.items()}, metadata or {}
    data, its_own = formats.bundle(value, _State.figure_formats)
    return data, {**its_own, **(metadata or {})}


def _shows_itself(value: object) -> bool:
    """Call the object's `_ipython_display_`, if it has one that works."""
    if isinstance(value, type) or _is_widget(value) or formats.answers_to_all(value):
        return False
    try:
        own = getattr(value, "_ipython_display_", None)
        if not callable(own):
            return False
        own()
    except Exception as error:
        sys.stderr.write(f"{type(value).__name__}._ipython_display_ raised {type(error).__name__}: {error}\n")
        return False
    return True


def _show(data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, *, update: bool = False) -> None:
    if (text := formats.widget_text(data)) is not None:
        data = {"text/plain": text}
        if not _State.told_of_widgets:
            _State.told_of_widgets = True
            data = {"text/plain": f"{text}\n{_WHY_TEXT}"}
    if _State.store is None or not (is_rich(data) or display_id):
        print(data.get("text/plain", "".join(f"<{mime}>" for mime in data)), flush=True)  # noqa: T201
        return
    try:
        if update and display_id and _State.store.update(display_id, data, metadata):
            return
        _State.store.add(data, metadata, display_id)
    except OSError as error:
        sys.stderr.write(f"a display could not be kept: {error}\n")


def _is_widget(value: object) -> bool:
    widgets = sys.modules.get("ipywidgets")
    return widgets is not None and isinstance(value, widgets.Widget)


def update_display(value: object, *, display_id: str, **keywords: Any) -> None:
    """Replace the display of that name."""
    _show(*_made(value, keywords.get("raw", False), keywords.get("metadata")), display_id, update=True)


def publish_display_data(
    data: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    *,
    transient: dict[str, Any] | None = None,
    update: bool = False,
    **_keywords: object,
) -> None:
    """Show a ready-made bundle, as IPython's function of this name."""
    _show(*_made(data, True, metadata), (transient or {}).get("display_id"), update=update)


def clear_output(wait: bool = False) -> None:
    """Take the rank's displays away, with ``wait`` when the next one comes. Its log stays."""
    if _State.store is not None:
        _State.store.clear(wait=wait)


def show_value(value: object) -> None:
    """Display the value of a cell's last expression if it is rich; plain values are only returned."""
    if _State.store is None or value is None or isinstance(value, (str, bytes, int, float, dict, list, tuple)):
        return
    if _shows_itself(value):
        return
    data, metadata = formats.rich(value, _State.figure_formats)
    if is_rich(data):
        _show({"text/plain": formats.text(value), **data}, metadata, None)


def flush() -> None:
    """Show the figures that are open and write what updates left unwritten. Does not raise."""
    if _State.store is None:
        return
    try:
        figures = sys.modules.get("nbproc.notebook.figures")
        if figures is not None:
            figures.show_open()
        _State.store.flush()
    except Exception as error:
        sys.stderr.write(f"a display could not be kept: {type(error).__name__}: {error}\n")
