"""An exception as plain values: frames with source and notebook cell, the chain of causes, notes, groups.

Everything is bounded (message length, number of frames, depth of the chain, width of a group), cycles end, and no
attribute of the exception is trusted: a ``str()`` that raises becomes a sentence that says so.
"""

from __future__ import annotations

import builtins
import itertools
import linecache
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbproc.failures.places import is_library, is_machinery, short_name

MESSAGE_BYTES = 64 * 1024
"""A message longer than this loses its middle."""
_LINKED_BYTES = 8 * 1024
_LINE_CHARS = 500
_CONTEXT = 2
_FRAMES_HEAD = 12
_FRAMES_TAIL = 24
_DEPTH = 12
_WIDTH = 15
_NOTES = 20
_CONTROL = dict.fromkeys([*range(9), *range(10, 32), 127], "?")  # as many bytes as before: columns are counted in them


@dataclass(frozen=True)
class Frame:
    """One level of a stack.

    ``source`` holds numbered lines around ``line`` (only that line for library code, nothing if unknown).
    ``cell`` is the execution count of the notebook cell that ``file`` stands for. ``columns`` are the 0-based
    character columns of the failing expression in the line's source. ``skipped`` is the number of frames left out
    just before this one.
    """

    file: str
    line: int
    function: str
    source: tuple[tuple[int, str], ...] = ()
    cell: int | None = None
    columns: tuple[int, int] | None = None
    skipped: int = 0

    @property
    def place(self) -> str:
        """Where this is, in few words: ``cell [3] line 30`` or ``train.py line 12``."""
        if self.cell is not None:
            return f"cell [{self.cell}] line {self.line}"
        return f"{short_name(self.file)} line {self.line}"

    @property
    def location(self) -> str:
        """Where this is, in full: ``Cell In[3], line 30`` or ``File "/home/me/train.py", line 12``."""
        if self.cell is not None:
            return f"Cell In[{self.cell}], line {self.line}"
        return f'File "{self.file}", line {self.line}'

    @property
    def words(self) -> str:
        """Function and place: ``train, cell [3] line 30``; the place alone at a module's or cell's top level."""
        return self.place if self.function in ("", "<module>") else f"{self.function}, {self.place}"

    @property
    def text(self) -> str:
        """The source of the line itself, "" if unknown."""
        return next((text for number, text in self.source if number == self.line), "")

    @property
    def is_library(self) -> bool:
        """True for code of the standard library or an installed package."""
        return self.cell is None and is_library(self.file)


@dataclass(frozen=True)
class Trace:
    """One exception and those it came from.

    ``cause`` is its ``__cause__``; ``context`` its ``__context__`` unless suppressed (``suppressed``) or hidden by a
    cause. ``group`` holds the exceptions of an exception group. ``syntax`` is the place that a SyntaxError points at.
    """

    type_name: str
    message: str
    module: str = ""
    frames: tuple[Frame, ...] = ()
    notes: tuple[str, ...] = ()
    cause: Trace | None = None
    context: Trace | None = None
    suppressed: bool = False
    group: tuple[Trace, ...] = ()
    syntax: Frame | None = None

    @property
    def words(self) -> str:
        """Type and message, as Python prints them: ``ValueError: bad batch 17``."""
        return f"{self.type_name}: {self.message}" if self.message else self.type_name

    @property
    def full_name(self) -> str:
        """The type with its module, except for built-in classes and those of ``__main__``."""
        return self.type_name if self.module in ("", "builtins", "__main__") else f"{self.module}.{self.type_name}"

    @property
    def where(self) -> Frame | None:
        """The innermost frame of the user's own code; without one, the innermost frame."""
        if self.syntax is not None:
            return self.syntax
        own = [frame for frame in self.frames if not frame.is_library]
        frames = own or list(self.frames)
        return frames[-1] if frames else None

    def chain(self) -> list[tuple[Trace, str]]:
        """This exception and those it came from, oldest first, each with the sentence that leads to the next."""
        links: list[tuple[Trace, str]] = [(self, "")]
        trace = self
        while True:
            if trace.cause is not None:
                links.append((trace.cause, "The above exception was the direct cause of the following exception:"))
                trace = trace.cause
            elif trace.context is not None:
                links.append((trace.context, "During handling of the above exception, another exception occurred:"))
                trace = trace.context
            else:
                return links[::-1]

    def to_json(self) -> dict[str, Any]:
        """Return a value that ``json`` can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        """Read what `to_json` returned; keys that are unknown or missing do no harm.

        Raises TypeError, ValueError or KeyError if the data is of another shape.
        """
        return cls(
            type_name=str(data["type_name"]),
            message=str(data["message"]),
            module=str(data.get("module", "")),
            frames=tuple(_frame_from_json(frame) for frame in data.get("frames", ())),
            notes=tuple(str(note) for note in data.get("notes", ())),
            cause=cls.from_json(data["cause"]) if data.get("cause") else None,
            context=cls.from_json(data["context"]) if data.get("context") else None,
            suppressed=bool(data.get("suppressed", False)),
            group=tuple(cls.from_json(member) for member in data.get("group", ())),
            syntax=_frame_from_json(data["syntax"]) if data.get("syntax") else None,
        )


def _frame_from_json(data: Mapping[str, Any]) -> Frame:
    cell, columns = data.get("cell"), data.get("columns")
    return Frame(
        file=str(data["file"]),
        line=int(data["line"]),
        function=str(data["function"]),
        source=tuple((int(number), str(text)) for number, text in data.get("source", ())),
        cell=None if cell is None else int(cell),
        columns=None if columns is None else (int(columns[0]), int(columns[1])),
        skipped=int(data.get("skipped", 0)),
    )


def cut_middle(text: str, limit: int = MESSAGE_BYTES) -> str:
    """Return the text, its middle replaced by a remark if it has more than ``limit`` bytes of UTF-8.

    Lone surrogates are spelled out, so the result can be encoded.
    """
    if len(text) > 2 * limit:  # look at no more of a huge text than can be kept
        head, tail = text[:limit], text[-limit:]
    else:
        whole = text.encode("utf-8", "backslashreplace")
        if len(whole) <= limit:
            return whole.decode()
        head = tail = text
    first = head.encode("utf-8", "backslashreplace")[: limit // 2].decode("utf-8", "ignore")
    last = tail.encode("utf-8", "backslashreplace")[-(limit // 2) :].decode("utf-8", "ignore")
    return f"{first}\n... {len(text) - len(first) - len(last):,} characters cut ...\n{last}"


def from_exception(exc: BaseException, cells: Mapping[str, int] | None = None) -> Trace:
    """Describe an exception.

    ``cells`` names the execution count of notebook cells by the file name in their code objects. Frames of nbproc,
    ``multiprocessing`` and the like on the outside are left out. Runs no code of the exception except ``__str__``
    and ``__notes__``.
    """
    return _describe(exc, cells or {}, set(), 0)


def _describe(exc: BaseException, cells: Mapping[str, int], seen: set[int], depth: int) -> Trace:
    seen.add(id(exc))
    notes = _notes(exc)
    message = _message(exc, MESSAGE_BYTES if depth == 0 else _LINKED_BYTES)
    cause = _attribute(exc, "__cause__", BaseException)
    context = _attribute(exc, "__context__", BaseException)
    suppressed = bool(_attribute(exc, "__suppress_context__", bool))
    if cause is not None or suppressed:
        context = None
    members = _members(exc)
    if depth >= _DEPTH and (cause or context or members):
        notes = (*notes, "... what led to this is not shown: the chain is too long")
        cause, context, members = None, None, ()
    if len(members) > _WIDTH:
        notes = (*notes, f"... and {len(members) - _WIDTH} more exceptions in this group")

    def linked(other: BaseException | None) -> Trace | None:
        return None if other is None or id(other) in seen else _describe(other, cells, seen, depth + 1)

    return Trace(
        type_name=type(exc).__qualname__.replace("<locals>.", ""),
        message=message,
        module=str(type(exc).__module__),
        frames=_frames(_attribute(exc, "__traceback__", types.TracebackType), cells),
        notes=notes,
        cause=linked(cause),
        context=linked(context),
        suppressed=suppressed,
        group=tuple(trace for trace in map(linked, members[:_WIDTH]) if trace is not None),
        syntax=_syntax(exc, cells),
    )


def _attribute(exc: BaseException, name: str, kind: type[Any]) -> Any:
    try:
        value = getattr(exc, name, None)
    except Exception:  # a property of the user's class
        return None
    return value if isinstance(value, kind) else None


def _message(exc: BaseException, limit: int) -> str:
    try:
        text = exc.msg if isinstance(exc, SyntaxError) and isinstance(exc.msg, str) else str(exc)
    except BaseException as problem:
        try:
            reason = f"{type(problem).__name__}: {problem}"
        except BaseException:
            reason = type(problem).__name__
        text = f"<no message: its str() raised {reason}>"
    return cut_middle(text, limit)


def _notes(exc: BaseException) -> tuple[str, ...]:
    notes = []
    for note in (_attribute(exc, "__notes__", Sequence) or ())[:_NOTES]:
        try:
            notes.append(cut_middle(note if isinstance(note, str) else repr(note), _LINKED_BYTES))
        except Exception as problem:
            notes.append(f"<a note whose repr() raised {type(problem).__name__}>")
    return tuple(notes)


def _members(exc: BaseException) -> Sequence[BaseException]:
    kinds = [getattr(builtins, "BaseExceptionGroup", None)]  # Python 3.11
    kinds.append(getattr(sys.modules.get("exceptiongroup"), "BaseExceptionGroup", None))
    if not any(isinstance(exc, kind) for kind in kinds if kind is not None):
        return ()
    members = _attribute(exc, "exceptions", Sequence) or ()
    return [member for member in members if isinstance(member, BaseException)]


def _syntax(exc: BaseException, cells: Mapping[str, int]) -> Frame | None:
    if not isinstance(exc, SyntaxError) or not isinstance(exc.lineno, int) or not isinstance(exc.filename, str):
        return None
    text = exc.text.rstrip("\n") if isinstance(exc.text, str) else ""
    source = source_lines(exc.filename, exc.lineno, context=_CONTEXT)
    if text and not any(number == exc.lineno for number, _ in source):
        source = ((exc.lineno, text[:_LINE_CHARS]),)
    columns = None
    if isinstance(exc.offset, int) and exc.offset > 0:
        start = exc.offset - 1
        end = getattr(exc, "end_offset", None)
        same_line = getattr(exc, "end_lineno", None) in (None, exc.lineno)
        columns = (start, end - 1 if same_line and isinstance(end, int) and end - 1 > start else start + 1)
    return Frame(exc.filename, exc.lineno, "", source, cells.get(exc.filename), columns)


def _frames(traceback: types.TracebackType | None, cells: Mapping[str, int]) -> tuple[Frame, ...]:
    levels: list[types.TracebackType] = []
    while traceback is not None:
        levels.append(traceback)
        traceback = traceback.tb_next
    outside = len(list(itertools.takewhile(_is_outside(cells), levels)))
    levels = levels[outside:] if outside < len(levels) else levels
    return tuple(
        _frame(level, skipped, cells)
        for level, skipped in thin_out(levels, lambda level: (level.tb_frame.f_code, level.tb_lineno))
    )


def _is_outside(cells: Mapping[str, int]) -> Any:
    def outside(level: types.TracebackType) -> bool:
        file = level.tb_frame.f_code.co_filename
        return file not in cells and is_machinery(file)

    return outside


def thin_out(levels: Iterable[Any], key: Any) -> list[tuple[Any, int]]:
    """Drop frames that repeat the one before (recursion), then the middle of a very long stack.

    Returns each kept level with the number of levels left out before it.
    """
    kept: list[tuple[Any, int]] = []
    for _, run in itertools.groupby(levels, key):
        same = list(run)
        if len(same) <= 3:
            kept.extend((level, 0) for level in same)
        else:
            kept.extend([(same[0], 0), (same[-1], len(same) - 2)])
    if len(kept) > _FRAMES_HEAD + _FRAMES_TAIL:
        tail = kept[-_FRAMES_TAIL:]
        gone = sum(1 + skipped for _, skipped in kept[_FRAMES_HEAD:-_FRAMES_TAIL]) + tail[0][1]
        kept = [*kept[:_FRAMES_HEAD], (tail[0][0], gone), *tail[1:]]
    return kept


def _frame(level: types.TracebackType, skipped: int, cells: Mapping[str, int]) -> Frame:
    code = level.tb_frame.f_code
    file = code.co_filename
    function = str(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")  # co_qualname: Python 3.11
    context = 0 if file not in cells and is_library(file) else _CONTEXT
    source = source_lines(file, level.tb_lineno, level.tb_frame.f_globals, context=context)
    line = next((text for number, text in source if number == level.tb_lineno), "")
    return Frame(file, level.tb_lineno, function, source, cells.get(file), _columns(level, line), skipped)


def source_lines(
    file: str, line: int, module: Mapping[str, Any] | None = None, *, context: int
) -> tuple[tuple[int, str], ...]:
    """Return the numbered source lines around ``line``, () if the source cannot be read."""
    try:
        lines = linecache.getlines(file, dict(module) if module and "__loader__" in module else None)
    except Exception:
        return ()
    if not 1 <= line <= len(lines):
        return ()
    first = max(1, line - context)
    shown = [(number, cut_line(text)) for number, text in enumerate(lines[first - 1 : line + context], start=first)]
    while shown and not shown[0][1].strip() and shown[0][0] < line:
        shown.pop(0)
    while shown and not shown[-1][1].strip() and shown[-1][0] > line:
        shown.pop()
    return tuple(shown)


def cut_line(text: str) -> str:
    """Return one line of source without its end, encodable, no control character in it, at most 500 characters."""
    text = text.rstrip("\r\n").translate(_CONTROL)
    text = text if len(text) <= _LINE_CHARS else text[: _LINE_CHARS - 3] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def _columns(level: types.TracebackType, line: str) -> tuple[int, int] | None:
    positions = getattr(level.tb_frame.f_code, "co_positions", None)  # Python 3.11
    if positions is None or level.tb_lasti < 0 or not line:
        return None
    found = next(itertools.islice(positions(), level.tb_lasti // 2, None), (None,) * 4)
    first, last, start_byte, end_byte = found
    if first != level.tb_lineno or start_byte is None or end_byte is None:
        return None
    encoded = line.encode()
    start = len(encoded[:start_byte].decode("utf-8", "replace"))
    end = len(encoded[:end_byte].decode("utf-8", "replace")) if last == first else len(line.rstrip())
    indent = len(line) - len(line.lstrip())
    if not start < end <= len(line) or (start <= indent and end >= len(line.rstrip())):
        return None
    return start, end
