"""A trace as the text that Python prints, with ``Cell In[5], line 3`` where the code is a notebook's."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from nbproc.failures.frames import Frame
from nbproc.failures.traces import Trace


def format_trace(trace: Trace) -> str:
    """Return the whole chain, oldest first, like ``traceback.format_exc()``."""
    lines: list[str] = []
    for link, sentence in trace.chain():
        lines += _one(link)
        if sentence:
            lines += ["", sentence, ""]
    return "\n".join(lines) + "\n"


def _one(trace: Trace) -> list[str]:
    lines: list[str] = []
    if trace.frames:
        lines.append("Traceback (most recent call last):")
        lines += format_frames(trace.frames)
    if trace.syntax is not None:
        lines += _frame(trace.syntax)
    lines += f"{trace.full_name}: {trace.message}".removesuffix(": ").split("\n")
    for note in trace.notes:
        lines += note.split("\n")
    for number, member in enumerate(trace.group, start=1):
        lines.append(f"  +---------------- {number} ----------------")
        lines += [f"  | {line}" for line in format_trace(member).rstrip("\n").split("\n")]
    return lines


def format_frames(frames: Sequence[Frame]) -> list[str]:
    """Return the lines of a stack, two or three for each frame."""
    return [line for frame in frames for line in _frame(frame)]


def _frame(frame: Frame) -> list[str]:
    lines = [f"  ... {skipped_words(frame.skipped)} ..."] if frame.skipped else []
    lines.append(f"  {frame.location}" + (f", in {frame.function}" if frame.function else ""))
    text = frame.text
    if text.strip():
        lines.append(f"    {text.strip()}")
        if frame.columns is not None:
            lines.append(f"    {markers(text.lstrip(), frame.columns, len(text) - len(text.lstrip()))}")
    return lines


def skipped_words(count: int) -> str:
    """Return how many frames are not shown, in words."""
    return f"{count:,} more frame{'s' if count > 1 else ''}"


def markers(text: str, columns: tuple[int, int], indent: int = 0) -> str:
    """Return the line of ``^`` under a part of ``text``, from which ``indent`` leading columns were removed."""
    start, end = max(columns[0] - indent, 0), max(columns[1] - indent, 0)
    indentation = "".join("\t" if char == "\t" else " " * _cells(char) for char in text[:start])
    return indentation + "^" * max(_cells(text[start:end]), 1)


def _cells(text: str) -> int:
    """The width on a terminal: wide characters take two columns, combining ones none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
