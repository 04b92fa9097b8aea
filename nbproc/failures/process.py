"""ProcessFailure: why one rank ended badly, in torch's shape and in words."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nbproc.failures import stacks
from nbproc.failures.errorfile import read_data, read_time, read_trace
from nbproc.failures.frames import Frame
from nbproc.failures.memory import Oom
from nbproc.failures.traces import Trace

NOT_AVAILABLE = "<N/A>"
_NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
_WORDS_CHARS = 300

_SIGNAL_HINTS = {
    "SIGSEGV": "invalid memory access in native code",
    "SIGABRT": "native code called abort()",
    "SIGBUS": "memory that is not there: often /dev/shm or a mapped file's disk is full",
    "SIGILL": "an instruction that this processor does not have",
    "SIGFPE": "an arithmetic error in native code",
    "SIGTERM": "from outside this run",
    "SIGHUP": "from outside this run",
    "SIGQUIT": "from outside this run",
    "SIGINT": "from outside this run",
    "SIGXCPU": "its limit of CPU time",
    "SIGXFSZ": "its limit of file size",
    "SIGPIPE": "it wrote to a pipe that nobody reads",
}


@dataclass
class ProcessFailure:
    """One rank that ended badly.

    The first four fields, ``error_file_data``, ``message`` and ``timestamp`` are
    `torch's <https://docs.pytorch.org/docs/stable/elastic/errors.html>`_. The other fields are given by `failure_of`.
    Without an error file the message says what the exit code tells. Constructing it
    raises ValueError if the error file is there but of another shape.

    Attributes:
        error_file: ``"<N/A>"`` if there is none.
        error_file_data: what the error file holds.
        message: the message in the error file (a str, or torch's dict), or one made from the exit code.
        timestamp: whole seconds since the epoch, by the rank's clock if it wrote an error file.
        time: the same with fractions.
        own_clock: False if ``time`` is when the end was noticed.
        trace: the exception as values, None if there is none.
        stderr_tail: the last lines of its stderr.
        fatal: faulthandler's report of a crash, "" without one; ``stack`` are its frames, outermost first.
        hint: what the end most likely means ("out of memory"), "" if nothing can be said.
        reason: a sentence of the engine that stands in for an exception ("could not be started: ..."), else "".
        returned: True if the rank had given its result before.
        is_function: False for an executable.
        stderr_file: where all of its stderr is, None if nowhere.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False, repr=False)
    message: Any = field(init=False, repr=False)
    timestamp: int = field(init=False)
    time: float = field(init=False, repr=False)
    own_clock: bool = field(init=False, repr=False)
    trace: Trace | None = field(init=False, repr=False)
    stderr_tail: tuple[str, ...] = field(default=(), repr=False, kw_only=True)
    fatal: str = field(default="", repr=False, kw_only=True)
    stack: tuple[Frame, ...] = field(default=(), repr=False, kw_only=True)
    hint: str = field(default="", kw_only=True)
    reason: str = field(default="", kw_only=True)
    returned: bool = field(default=False, repr=False, kw_only=True)
    is_function: bool = field(default=True, repr=False, kw_only=True)
    stderr_file: Path | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        data = None
        if not self.error_file or not os.path.isfile(self.error_file):
            self.error_file = NOT_AVAILABLE
        elif (data := read_data(self.error_file)) is None:
            raise ValueError(f"{self.error_file} is not an error file")  # torch raises here too; failure_of does not
        self._take(data, time.time())

    def _take(self, data: dict[str, Any] | None, noticed: float) -> None:
        happened = read_time(data) if data is not None else None
        self.error_file_data = {"message": "<NONE>"} if data is None else data
        self.message = "" if data is None else data["message"]
        self.trace = read_trace(data) if data is not None else None
        self.own_clock = happened is not None
        self.time = noticed if happened is None else happened
        self.timestamp = int(self.time)
        if self.message:
            return
        if self.exitcode < 0:
            self.message = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        else:
            self.error_file_data["errorTraits"] = {"category": "system_terminated_error", "retryability": "False"}
            self.message = _NO_TRACEBACK

    def signal_name(self) -> str:
        """Return the name of the signal that ended the process, ``"<N/A>"`` if it was none."""
        return _signal_name(-self.exitcode) or NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return the time as ``YYYY-MM-DD_HH:MM:SS``, local time."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")  # noqa: DTZ006 - torch's format is local time

    @property
    def words(self) -> str:
        """What happened, in one line.

        ``ValueError: bad batch 17``, ``was killed by SIGKILL (out of memory)``, ``exited with code 3 before
        returning``.
        """
        return _one_line(self._words())

    def _words(self) -> str:
        if self.reason:
            return self.reason
        if self.trace is not None and self.trace.type_name == "KeyboardInterrupt":
            return "was interrupted (KeyboardInterrupt)"
        if self.trace is not None and self.trace.type_name == "SystemExit":
            told = self.trace.message if not self.trace.message.lstrip("-").isdigit() else ""
            return f"{self._ended()}: {told}" if told and told != "None" else self._ended()
        if self.trace is not None:
            return self.trace.words
        if isinstance(self.message, dict):
            return str(self.message.get("message", "")).removesuffix(": ") or self._ended()
        if self.error_file != NOT_AVAILABLE:
            return str(self.message)
        told = stacks.exception_in(self.stderr_tail) if self.exitcode > 0 else ""
        return f"{self._ended()}: {told}" if told else self._ended()

    def _ended(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        when = "" if not self.is_function else " after returning" if self.returned else " before returning"
        if self.exitcode < 0:
            when = " after returning" if self.returned else ""
            return f"was killed by {_signal_name(-self.exitcode) or f'signal {-self.exitcode}'}{hint}{when}"
        return f"exited with code {self.exitcode}{hint}{when}"

    @property
    def raised(self) -> bool:
        """True if `words` are an exception's; False if they are a sentence without its subject ("was killed by")."""
        if self.reason or (self.trace is not None and self.trace.type_name in ("KeyboardInterrupt", "SystemExit")):
            return False
        return bool(self.error_file_data["message"] != "<NONE>")

    @property
    def told_by_stderr(self) -> bool:
        """True if the last lines of stderr may say why: there is no trace, or one of an exit with a code alone."""
        bare = self.trace is None or (self.trace.type_name == "SystemExit" and self.trace.message.isdigit())
        return bare and bool(self.stderr_tail)

    @property
    def where(self) -> Frame | None:
        """The innermost frame of the user's own code, from the trace or the crash's stack; None if unknown."""
        if self.trace is not None:
            return self.trace.where
        found = stacks.where_of(self.stack)
        return found.frame if found else None

    @property
    def headline(self) -> str:
        """Words and place: ``ValueError: bad batch, in fail, cell [3] line 30``."""
        where = self.where
        if where is None:
            return self.words
        link = ", at " if where.function in ("", "<module>") else ", in "
        return f"{self.words.rstrip('.')}{link}{where.words}"


def failure_of(
    rank: int,
    pid: int | None,
    exitcode: int | None,
    error_file: str | os.PathLike[str] | None,
    stderr_file: str | os.PathLike[str] | None,
    *,
    returned: bool = False,
    oom: Oom | None = None,
    is_function: bool = True,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
    cells: Mapping[str, int] | None = None,
    noticed: float | None = None,
) -> ProcessFailure:
    """Build the failure of a rank whose process is gone, from what it left behind.

    Args:
        rank: the rank.
        pid: its process id; None if it never started.
        exitcode: negative for a signal; None if unknown or never started.
        error_file: its error.json, there or not.
        stderr_file: the log of its stderr, there or not.
        returned: whether its result had arrived.
        oom: what `OomWatch.since` says; only used for SIGKILL.
        is_function: False for an executable.
        reason: a sentence that stands in for the exception, where there was none ("could not be started: ...").
        data: what `error_data` returned in the rank, for a rank that could not write its file.
        cells: execution count by file name, to name cells in a crash's stack.
        noticed: when the end was noticed (seconds since the epoch), now by default.

    Never raises; reads at most the error file and the last 64 KB of stderr.
    """
    code = 1 if exitcode is None else exitcode
    file = "" if error_file is None or read_data(error_file) is None else os.fspath(error_file)
    failure = ProcessFailure(rank, pid or 0, code, file, reason=reason, returned=returned, is_function=is_function)
    if failure.error_file == NOT_AVAILABLE:
        usable = data is not None and isinstance(data.get("message"), (str, dict))
        failure._take(dict(data) if usable and data is not None else None, time.time() if noticed is None else noticed)
    failure.stderr_file = None if stderr_file is None else Path(stderr_file)
    text = stacks.read_tail(failure.stderr_file) if failure.stderr_file is not None else ""
    failure.fatal = stacks.fatal_in(text) if code < 0 else ""
    if failure.fatal:
        failure.stack = stacks.frames_in_dump(failure.fatal, cells)
        text = text[: text.rfind("Fatal Python error:")]
    failure.stderr_tail = stacks.last_lines(text)
    failure.hint = _hint(code, oom)
    return failure


def _hint(code: int, oom: Oom | None) -> str:
    if code < 0:
        name = _signal_name(-code)
        return (oom or Oom.MAYBE).value if name == "SIGKILL" else _SIGNAL_HINTS.get(name, "")
    if code > 128 and _signal_name(code - 128):
        return f"128 + {code - 128}: a process it waited for was killed by {_signal_name(code - 128)}"
    return {126: "what it was told to run is not executable", 127: "what it was told to run was not found"}.get(
        code, ""
    )


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return ""


def _one_line(text: str) -> str:
    lines = [line.strip() for line in stacks.printable(text[:20_000]).split("\n") if line.strip()]
    first = lines[0] if lines else ""
    return first if len(first) <= _WORDS_CHARS else first[: _WORDS_CHARS - 4].rstrip() + " ..."


def exit_status(exc: SystemExit) -> tuple[int, str]:
    """Return the exit code that Python gives for a SystemExit, and the text that it prints to stderr before."""
    if exc.code is None:
        return 0, ""
    if isinstance(exc.code, int):
        return int(exc.code) & 0xFF, ""
    try:
        return 1, str(exc.code)
    except Exception as problem:
        return 1, f"<SystemExit with a value whose str() raised {type(problem).__name__}>"
