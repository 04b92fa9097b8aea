"""An object -> the MIME bundle that IPython would make of it, without IPython."""

from __future__ import annotations

import base64
import io
import pprint
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["FIGURE_MIMES", "answers_to_all", "bundle", "raw", "rich", "text", "widget_text"]

_METHODS = {
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_pdf_": "application/pdf",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}
FIGURE_MIMES = {"png": "image/png", "svg": "image/svg+xml", "jpeg": "image/jpeg", "jpg": "image/jpeg", "pdf": "application/pdf"}  # fmt: skip
_WIDGET = "application/vnd.jupyter.widget-view+json"
_BINARY = frozenset({"image/png", "image/jpeg", "image/gif", "application/pdf"})


def bundle(value: object, figure_formats: tuple[str, ...] = ("png",)) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (data by MIME type, metadata) of ``value``. Does not raise: what fails is left out, and said on stderr."""
    data, metadata = rich(value, figure_formats)
    if "text/plain" not in data:
        data["text/plain"] = text(value)
    return data, metadata


def rich(value: object, figure_formats: tuple[str, ...] = ("png",)) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the same without a `repr`: nothing for an object that has no better form."""
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    if isinstance(value, type) or answers_to_all(value):
        return data, metadata
    made = _called(value, "_repr_mimebundle_", include=None, exclude=None)
    if isinstance(made, tuple) and len(made) == 2:
        made, metadata = made[0], dict(made[1] or {})
    if isinstance(made, Mapping):
        data.update(made)
    for method, mime in _METHODS.items():
        if mime not in data and (made := _called(value, method)) is not None:
            if isinstance(made, tuple) and len(made) == 2:
                made, metadata[mime] = made
            data[mime] = made
    if _is_figure(value):
        data.update(_figure(value, figure_formats))
    if _WIDGET in data:
        data = {"text/plain": data.get("text/plain", text(value)), _WIDGET: data[_WIDGET]}
    return {mime: raw(mime, content) for mime, content in data.items()}, metadata


def answers_to_all(value: object) -> bool:
    """Whether an object has an attribute of any name (a mock, a proxy), so that having one says nothing."""
    try:
        return getattr(value, "_ipython_canary_method_should_not_exist_", None) is not None
    except Exception:
        return True


def widget_text(data: Mapping[str, Any]) -> str | None:
    """Return the text of a widget, which cannot live in a rank; None if it is none."""
    return str(data.get("text/plain", "a widget")) if _WIDGET in data else None


def raw(mime: str, content: Any) -> Any:
    """Return the bytes of an image; in ready-made bundles they are base64, as in a notebook's file."""
    if mime in _BINARY and isinstance(content, str):
        try:
            return base64.b64decode(content, validate=False)
        except ValueError:
            return content
    return content


def _called(value: object, method: str, **keywords: Any) -> Any:
    try:
        function = getattr(value, method, None)
        return function(**keywords) if callable(function) else None
    except Exception as error:
        sys.stderr.write(f"{type(value).__name__}.{method} raised {type(error).__name__}: {error}\n")
        return None


def text(value: object) -> str:
    """Return its `repr`, containers on several lines. Does not raise."""
    try:
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            return pprint.pformat(value, sort_dicts=False, compact=True)
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}: {error}>"


def _is_figure(value: object) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def _figure(figure: Any, formats: tuple[str, ...]) -> dict[str, bytes]:
    """Draw it as the inline backend does: cut to what is drawn, in the figure's own colours."""
    data: dict[str, bytes] = {}
    for wanted in formats:
        retina = wanted in ("retina", "png2x")
        kind = "png" if retina else wanted
        if kind not in FIGURE_MIMES or not (figure.axes or figure.lines or figure.texts or figure.images):
            continue
        written = io.BytesIO()
        try:
            figure.savefig(
                written,
                format=kind,
                dpi=figure.dpi * (2 if retina else 1),
                bbox_inches="tight",
                facecolor=figure.get_facecolor(),
                edgecolor=figure.get_edgecolor(),
            )
        except Exception as error:
            sys.stderr.write(f"the figure cannot be drawn: {type(error).__name__}: {error}\n")
            continue
        data[FIGURE_MIMES[kind]] = written.getvalue()
    return data
