"""Where a process is or was: faulthandler's text, and the tail of stderr, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbproc.failures.frames import Frame, source_lines, thin_out
from nbproc.failures.places import is_library, is_machinery
from nbproc.failures.traces import Trace

_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 20
_TAIL_CHARS = 1000
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_LAST_LINE = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Group|Timeout)\b(?::\s.*)?$"
)

# Names of calls that block until something outside happens; a rank that is inside one is waiting.
_WAITING = re.compile(
    r"accept|acquire|all_gather\w*|all_reduce\w*|all_to_all\w*|barrier|broadcast\w*|communicate|connect|gather\w*|get|"
    r"init_process_group|i?recv\w*|i?send|join|monitored_barrier|poll|reduce\w*|rendezvous|result|scatter\w*|select|"
    r"sleep|synchronize|wait"
)
_WRAPPERS = frozenset({"wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "__call__"})


@dataclass(frozen=True)
class Where:
    """Where a rank is: the innermost frame of the user's code, and the library call that it is in ("" if none)."""

    frame: Frame
    call: str = ""

    @property
    def waiting(self) -> bool:
        """True if the call is one that waits for others: ``all_reduce``, ``barrier``, ``recv``."""
        return _WAITING.fullmatch(self.call) is not None

    @property
    def words(self) -> str:
        """Function and place, then the call: ``train, cell [3] line 19, in all_reduce``."""
        return f"{self.frame.words}, in {self.call}" if self.call else self.frame.words

    @property
    def stopped(self) -> str:
        """The same for a rank that was stopped there: ``stopped at train, cell [3] line 19, waiting in all_reduce``."""
        place = f"stopped at {self.frame.words}"
        return f"{place}, {'waiting ' if self.waiting else ''}in {self.call}" if self.call else place


def where_of(stack: Trace | Iterable[Frame]) -> Where | None:
    """Return where a stack (outermost frame first) or an exception's own frames end; None for an empty one."""
    frames = list(stack.frames if isinstance(stack, Trace) else stack)
    if not frames:
        return None
    own = [index for index, frame in enumerate(frames) if not frame.is_library]
    index = own[-1] if own else 0
    inner = frames[index + 1 :]
    call = _call_among(inner)
    if not call and inner and isinstance(stack, Trace) and stack.context is not None:
        call = _call_among(stack.context.frames)  # an Interrupt is raised once the library has taken in its own error
    return Where(frames[index], call)


def _call_among(frames: Iterable[Frame]) -> str:
    """Return the name of the outermost library call that says something to its user, "" for none."""
    names = (frame.function.rpartition(".")[2] for frame in frames if frame.is_library)
    return next((name for name in names if name not in _WRAPPERS and name[:1] not in ("_", "<")), "")


def where_in_dump(text: str, cells: Mapping[str, int] | None = None) -> Where | None:
    """Return where a process is according to the newest stack dump in ``text`` (faulthandler's); None without one."""
    return where_of(frames_in_dump(text, cells))


def frames_in_dump(text: str, cells: Mapping[str, int] | None = None) -> tuple[Frame, ...]:
    """Read the newest of faulthandler's stack dumps in ``text``: the current thread's frames, outermost first.

    Where the current thread has no Python frame, the last thread listed that has some (the main thread) counts.
    """
    threads: list[tuple[bool, list[tuple[str, int, str]]]] = []
    inside = False
    for line in text.splitlines():
        if head := _THREAD.match(line):
            inside = True
            current = head["current"] == "Current thread"
            if current and any(was_current for was_current, _ in threads):
                threads.clear()  # an older dump
            threads.append((current, []))
        elif inside and (frame := _FRAME.match(line)):
            number = 0 if frame["line"] == "???" else int(frame["line"])
            threads[-1][1].append((frame["file"], number, frame["function"]))
        else:
            inside = inside and line.startswith("  ")
    found = [levels for current, levels in threads if current and levels]
    found += [levels for current, levels in reversed(threads) if levels]
    return _as_frames(found[0][::-1], cells or {}) if found else ()


def _as_frames(levels: Sequence[tuple[str, int, str]], cells: Mapping[str, int]) -> tuple[Frame, ...]:
    outside = 0
    while outside < len(levels) - 1 and (
        (levels[outside][0] not in cells and is_machinery(levels[outside][0]))
        or (levels[outside][0] == "<string>" and is_machinery(levels[outside + 1][0]))  # the line that started us
    ):
        outside += 1
    return tuple(
        Frame(
            file=file,
            line=line,
            function=function,
            source=source_lines(file, line, context=0 if file not in cells and is_library(file) else 2),
            cell=cells.get(file),
            skipped=skipped,
        )
        for (file, line, function), skipped in thin_out(levels[outside:], lambda level: level)
    )


def fatal_in(text: str) -> str:
    """Return faulthandler's report of a crash in ``text``, from "Fatal Python error" on; "" if there is none."""
    start = text.rfind("Fatal Python error:")
    if start < 0:
        return ""
    return text[start:].split("\n\nExtension modules:", 1)[0].rstrip()


def exception_in(lines: Sequence[str]) -> str:
    """Return the last line of a Python traceback that ends the text ("ValueError: boom"); "" if none does."""
    heads = [index for index, line in enumerate(lines) if line.lstrip().startswith("Traceback (most recent call last)")]
    if not heads:
        return ""
    return next((line for line in lines[heads[-1] + 1 :] if _LAST_LINE.match(line)), "")


def read_tail(path: Path) -> str:
    """Return the last 64 KB of a log file as text; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return ""
    if size > _TAIL_BYTES:  # begin with a whole line, unless there is only a part of one
        data = data.partition(b"\n")[2] or data
    return data.decode("utf-8", "replace")


def last_lines(text: str, count: int = _TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines that say something, each as a terminal shows it last (after ``\\r``)."""
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in _ESCAPE.sub("", text).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    shown = lines[-count:]
    while shown and not shown[0]:
        shown.pop(0)
    return tuple(_printable(line) for line in shown)


def _printable(line: str) -> str:
    line = line if len(line) <= _TAIL_CHARS else f"{line[:_TAIL_CHARS]} ... ({len(line) - _TAIL_CHARS:,} more)"
    return printable(line)


def printable(text: str) -> str:
    """Return text of unknown origin as it may be shown: no escape sequences, other control characters spelled out."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(char: str) -> str:
    return char if char.isprintable() or char in "\t\n\u00a0\u3000" else repr(char)[1:-1]
