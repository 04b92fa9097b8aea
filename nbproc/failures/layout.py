"""A trace as the lines one wants to read: the user's code with source, library code folded.

Text and HTML are painted from these lines. The whole stack is in error.json.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nbproc.failures.callstack import skipped_words
from nbproc.failures.frames import Frame
from nbproc.failures.places import inside_library, package_of
from nbproc.failures.stacks import printable
from nbproc.failures.traces import Trace, cut_middle

_MESSAGE_BYTES = 6 * 1024
_MESSAGE_LINES = 40
_LIBRARY_BETWEEN = 1
_LIBRARY_AT_END = 2


class Kind(enum.Enum):
    """What a line of a laid out trace is."""

    FRAME = "frame"
    """Where a frame is."""
    SOURCE = "source"
    """A source line near the failing one."""
    FAILING = "failing"
    """The line that failed."""
    FOLDED = "folded"
    """Frames that are not shown."""
    ERROR = "error"
    """Type and message; the type's name has ``columns``."""
    MORE = "more"
    """A further line of the message."""
    NOTE = "note"
    LINK = "link"
    """The sentence between two exceptions of a chain."""
    MEMBER = "member"
    """The head of one exception of a group."""


@dataclass(frozen=True)
class Line:
    """One line.

    ``number`` is a source line's, ``width`` the digits of the largest number in its block. ``columns`` is the part
    of the text that is meant. ``level`` is the depth in exception groups.
    """

    kind: Kind
    text: str
    number: int | None = None
    columns: tuple[int, int] | None = None
    level: int = 0
    width: int = 1


def lay_out(trace: Trace, level: int = 0) -> Iterator[Line]:
    """Return the lines of an exception and of those it came from, oldest first."""
    for link, sentence in trace.chain():
        yield from lay_out_frames(link.frames, level)
        if link.syntax is not None:
            yield from _frame(link.syntax, True, level)
        yield from _error(link, level)
        for note in link.notes:
            yield from (Line(Kind.NOTE, text, level=level) for text in short(note).split("\n"))
        for number, member in enumerate(link.group, start=1):
            yield Line(Kind.MEMBER, f"exception {number} of {len(link.group)} in the group", level=level + 1)
            yield from lay_out(member, level + 1)
        if sentence:
            yield Line(Kind.LINK, sentence, level=level)


def lay_out_frames(frames: Sequence[Frame], level: int = 0) -> Iterator[Line]:
    """Return the lines of a stack, outermost frame first."""
    own = [index for index, frame in enumerate(frames) if not frame.is_library]
    if not own:
        for frame in frames:
            yield from _frame(frame, False, level)
        return
    index = 0
    for library, run in itertools.groupby(frames, lambda frame: frame.is_library):
        group = list(run)
        index += len(group)
        if not library:
            for offset, frame in enumerate(group, start=index - len(group)):
                yield from _frame(frame, offset == own[-1] and level == 0, level)
            continue
        shown = _LIBRARY_AT_END if index == len(frames) else _LIBRARY_BETWEEN
        if len(group) > shown:
            hidden = group[:-shown] if index == len(frames) else group
            count = sum(1 + frame.skipped for frame in hidden)
            yield Line(Kind.FOLDED, f"{skipped_words(count)} in {_packages(hidden)}", level=level)
            group = group[len(hidden) :]
        for frame in group:
            yield from _frame(frame, False, level)


def _packages(frames: Sequence[Frame]) -> str:
    names = []
    for frame in frames:
        name = package_of(frame.file) or "the standard library"
        if name not in names:
            names.append(name)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _frame(frame: Frame, context: bool, level: int) -> Iterator[Line]:
    if frame.skipped:
        yield Line(Kind.FOLDED, skipped_words(frame.skipped), level=level)
    place = f"Cell In[{frame.cell}]" if frame.cell is not None else inside_library(frame.file) or frame.file
    inside = f", in {frame.function}" if frame.function not in ("", "<module>") else ""
    yield Line(Kind.FRAME, f"{place}, line {frame.line}{inside}", level=level)
    source = [line for line in frame.source if context or line[0] == frame.line]
    indent = min((len(text) - len(text.lstrip()) for _, text in source if text.strip()), default=0)
    width = len(str(source[-1][0])) if source else 1
    for number, text in source:
        if number != frame.line:
            yield Line(Kind.SOURCE, text[indent:], number, level=level, width=width)
            continue
        columns = frame.columns and (max(frame.columns[0] - indent, 0), max(frame.columns[1] - indent, 0))
        yield Line(Kind.FAILING, text[indent:], number, columns, level, width)


def _error(trace: Trace, level: int) -> Iterator[Line]:
    head, *more = short(trace.message).split("\n")
    name = trace.full_name
    yield Line(Kind.ERROR, f"{name}: {head}" if head or more else name, columns=(0, len(name)), level=level)
    yield from (Line(Kind.MORE, text, level=level) for text in more)


def short(message: str) -> str:
    """Return a message as it may be shown: no control characters, at most 40 lines and 6 KB."""
    lines = printable(cut_middle(message, _MESSAGE_BYTES)).rstrip().split("\n")
    if len(lines) > _MESSAGE_LINES:
        half = _MESSAGE_LINES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines cut ...", *lines[-half:]]
    return "\n".join(lines)
