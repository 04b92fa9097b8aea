"""Colours of a terminal (SGR sequences) as HTML that can be read on a light and on a dark page."""

from __future__ import annotations

import colorsys
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape

_SEQUENCE = re.compile(r"\x1b\[([0-9;:]*)m")

# Each has the same contrast on white and on near black. Black and white are the page's own text colour.
_PALETTE = ("", "#d9403f", "#248a40", "#a86f12", "#3f7cdb", "#b45cb4", "#12858d", "")
_GREY = "var(--jp-ui-font-color2, #767676)"
_RGB = (
    (0, 0, 0),
    (205, 49, 49),
    (13, 150, 70),
    (190, 140, 0),
    (36, 114, 200),
    (188, 63, 188),
    (17, 148, 170),
    (229, 229, 229),
)
_TARGET = (0.13, 0.26)


@dataclass(frozen=True)
class _Look:
    color: str = ""  # CSS, "" for the page's own
    background: tuple[int, int, int] | None = None
    on: frozenset[str] = frozenset()  # of bold, faint, italic, underline, struck, inverse


def sgr_to_html(text: str) -> str:
    """Return one line of a log as HTML: escaped, its colours as ``<span style=...>``, nothing else.

    Escape sequences other than SGR lose their ESC and so do nothing.
    """
    if "\x1b" not in text:
        return escape(text, quote=False)
    look = _Look()
    parts: list[str] = []
    pieces = _SEQUENCE.split(text)
    for index, piece in enumerate(pieces):
        if index % 2:
            look = _apply(look, piece)
        elif piece:
            shown = escape(piece.replace("\x1b", ""), quote=False)
            style = _css(look)
            parts.append(f'<span style="{style}">{shown}</span>' if style else shown)
    return "".join(parts)


def _apply(look: _Look, parameters: str) -> _Look:
    codes = [int(code) if code.isdigit() else 0 for code in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            look = _Look()
        elif code in _SWITCHES:
            add, remove = _SWITCHES[code]
            look = replace(look, on=look.on.difference(remove).union(add))
        elif 30 <= code <= 37 or 90 <= code <= 97:
            look = replace(look, color=_GREY if code == 90 else _PALETTE[code % 10])
        elif 40 <= code <= 47 or 100 <= code <= 107:
            look = replace(look, background=_RGB[code % 10])
        elif code == 39:
            look = replace(look, color="")
        elif code == 49:
            look = replace(look, background=None)
        elif code in (38, 48):
            rgb = _extended(codes)
            if rgb is not None:
                look = replace(look, color=_readable(rgb)) if code == 38 else replace(look, background=rgb)
    return look


# code -> what it turns on, what it turns off
_SWITCHES: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    1: (("bold",), ()),
    2: (("faint",), ()),
    3: (("italic",), ()),
    4: (("underline",), ()),
    7: (("inverse",), ()),
    9: (("struck",), ()),
    22: ((), ("bold", "faint")),
    23: ((), ("italic",)),
    24: ((), ("underline",)),
    27: ((), ("inverse",)),
    29: ((), ("struck",)),
}


def _extended(codes: list[int]) -> tuple[int, int, int] | None:
    """Take ``5;n`` or ``2;r;g;b`` from the front of the codes."""
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:
        return _indexed(min(codes.pop(0), 255))
    if kind == 2 and len(codes) >= 3:
        red, green, blue = (min(codes.pop(0), 255) for _ in range(3))
        return red, green, blue
    codes.clear()
    return None


def _indexed(number: int) -> tuple[int, int, int]:
    if number < 16:
        return _RGB[number % 8]
    if number >= 232:
        grey = 8 + (number - 232) * 10
        return grey, grey, grey
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return levels[number // 36], levels[number // 6 % 6], levels[number % 6]


def _luminance(red: float, green: float, blue: float) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@lru_cache(maxsize=512)
def _readable(rgb: tuple[int, int, int]) -> str:
    """Return the colour, made darker or lighter until it can be read on a white and on a black page."""
    red, green, blue = (part / 255 for part in rgb)
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    if saturation < 0.05 and not 0.2 < lightness < 0.8:
        return ""
    for _ in range(40):
        luminance = _luminance(red, green, blue)
        if _TARGET[0] <= luminance <= _TARGET[1]:
            break
        lightness = min(1.0, max(0.0, lightness + (0.025 if luminance < _TARGET[0] else -0.025)))
        red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _css(look: _Look) -> str:
    rules = []
    if look.background is not None:
        red, green, blue = look.background
        dark = _luminance(red / 255, green / 255, blue / 255) < 0.3
        rules += [f"background:rgb({red},{green},{blue})", f"color:{'#fff' if dark else '#000'}"]
    elif "inverse" in look.on:
        rules += [f"background:{look.color or '#767676'}", "color:#fff"]
    elif look.color:
        rules.append(f"color:{look.color}")
    rules += [css for name, css in _RULES.items() if name in look.on]
    lines = [css for name, css in (("underline", "underline"), ("struck", "line-through")) if name in look.on]
    if lines:
        rules.append(f"text-decoration:{' '.join(lines)}")
    return ";".join(rules)


_RULES = {"bold": "font-weight:bold", "faint": "opacity:.7", "italic": "font-style:italic"}
