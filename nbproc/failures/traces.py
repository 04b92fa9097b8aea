"""An exception as plain values: frames with source and notebook cell, the chain of causes, notes, groups.

Everything is bounded (message length, number of frames, depth of the chain, width of a group), cycles end, and no
attribute of the exception is trusted: a ``str()`` that raises becomes a sentence that says so.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbproc.failures.frames import CONTEXT, LINE_CHARS, Frame, frame_from_json, frames_of, source_lines

MESSAGE_BYTES = 64 * 1024
"""A message longer than this loses its middle."""
_LINKED_BYTES = 8 * 1024
_TRACEBACK = "Traceback (most recent call last):\n"
_CARRIED = re.compile(r"Caught \w+ in (.+)\.\nOriginal " + re.escape(_TRACEBACK))
"""How torch begins the message of an exception that it raises again: ``Caught ValueError in DataLoader worker ...``."""
_DEPTH = 12
_WIDTH = 15
_NOTES = 20
_NO_STDIN = "nothing can be typed into a rank: its stdin is not connected"
_ASK_BEFORE = f"{_NO_STDIN}. Ask before the launch, and pass the answer on in a variable, an argument or envs."
_DEBUG = (
    f"{_NO_STDIN}, so pdb ends at once. Call the function outside ranks and debug it there, or let an editor attach to "
    "the rank: debugpy.listen(5678); debugpy.wait_for_client()"
)


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
        """Type and message, as Python prints them: ``ValueError: bad batch 17``.

        Of an exception that torch carries over from another process or thread (a DataLoader's worker), the original's.
        """
        if carried := _CARRIED.match(self.message):
            original = self.message.rpartition(_TRACEBACK)[2].split("\n")
            said = next((line for line in original if line[:1].strip()), self.type_name)
            return f"{said.rstrip('.')} (in {carried[1]})"
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
            frames=tuple(frame_from_json(frame) for frame in data.get("frames", ())),
            notes=tuple(str(note) for note in data.get("notes", ())),
            cause=cls.from_json(data["cause"]) if data.get("cause") else None,
            context=cls.from_json(data["context"]) if data.get("context") else None,
            suppressed=bool(data.get("suppressed", False)),
            group=tuple(cls.from_json(member) for member in data.get("group", ())),
            syntax=frame_from_json(data["syntax"]) if data.get("syntax") else None,
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
    notes = (*_notes(exc), *_advice(exc))
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
        frames=frames_of(_attribute(exc, "__traceback__", types.TracebackType), cells),
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


def _advice(exc: BaseException) -> tuple[str, ...]:
    """Say what to do instead, to who waited for somebody to type."""
    place = f"{type(exc).__module__}.{type(exc).__qualname__}"
    if place not in ("builtins.EOFError", "bdb.BdbQuit") or not _nobody_types():
        return ()
    if place == "bdb.BdbQuit":
        return (_DEBUG,)
    # input() says this; other EOFErrors are of connections and pickles
    return (_ASK_BEFORE,) if exc.args == ("EOF when reading a line",) else ()


def _nobody_types() -> bool:
    """Whether this process's stdin is the null device, as a rank's is."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(0), os.stat(os.devnull))
    return False


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
    source = source_lines(exc.filename, exc.lineno, context=CONTEXT)
    if text and not any(number == exc.lineno for number, _ in source):
        source = ((exc.lineno, text[:LINE_CHARS]),)
    columns = None
    if isinstance(exc.offset, int) and exc.offset > 0:
        start = exc.offset - 1
        end = getattr(exc, "end_offset", None)
        same_line = getattr(exc, "end_lineno", None) in (None, exc.lineno)
        columns = (start, end - 1 if same_line and isinstance(end, int) and end - 1 > start else start + 1)
    return Frame(exc.filename, exc.lineno, "", source, cells.get(exc.filename), columns)
