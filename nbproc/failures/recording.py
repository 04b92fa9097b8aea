"""record, ErrorHandler, ChildFailedError: torch's way for a program to leave its error behind.

After https://docs.pytorch.org/docs/stable/elastic/errors.html; works without torch.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from nbproc.errors import NbprocError
from nbproc.failures.causes import first_cause
from nbproc.failures.errorfile import error_data, override_error_code, read_data, write_data
from nbproc.failures.process import NOT_AVAILABLE, ProcessFailure

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ErrorHandler:
    """Write an exception to the file that TORCHELASTIC_ERROR_FILE names; without that variable, do nothing.

    May be subclassed: override `initialize` and `record_exception`.
    """

    def _get_error_file_path(self) -> str | None:
        return os.environ.get("TORCHELASTIC_ERROR_FILE")

    def initialize(self) -> None:
        """Prepare the process: a crash in native code shall leave its stack on stderr."""
        try:
            faulthandler.enable(all_threads=True)
        except Exception as problem:  # stderr may have no descriptor
            warnings.warn(f"Unable to enable fault handler. {type(problem).__name__}: {problem}", stacklevel=2)

    def record_exception(self, e: BaseException) -> None:
        """Write the error file for an exception."""
        file = self._get_error_file_path()
        if file and not write_data(file, error_data(e, rank=_rank())):
            logger.warning("the error file %s cannot be written", file)

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Note the exit code in the data of a child's error file, if its message has a place for it."""
        if not override_error_code(rootcause_error, error_code):
            logger.warning(
                "the message of the child's error file %s is no dict: exit code %s is not noted in it",
                rootcause_error_file,
                error_code,
            )

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Make a child's error file this process's own, with the child's exit code noted in it."""
        data = read_data(rootcause_error_file)
        if data is None:
            logger.warning("the child's error file %s cannot be read", rootcause_error_file)
            return
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        file = self._get_error_file_path()
        if not file:
            logger.error("no error file is named for this process to copy the child's %s to", rootcause_error_file)
            return
        if Path(file).exists():
            logger.warning("the error file %s exists and is overwritten", file)
        if not write_data(file, data):
            logger.warning("the error file %s cannot be written", file)


def _rank() -> int | None:
    value = os.environ.get("RANK", "")
    return int(value) if value.isdigit() else None


def get_error_handler() -> ErrorHandler:
    """Return the handler that `record` uses by default."""
    return ErrorHandler()


class ChildFailedError(NbprocError):
    """A process that only watches others raises this: under `record` the first failing child's error file is kept.

    Attributes: ``name``, ``failures`` (rank -> `ProcessFailure`, at least one).
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        if not failures:
            raise AssertionError("a ChildFailedError needs a failure")  # torch raises the same
        self.name = name
        self.failures = dict(failures)
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the failure that came first, and its rank."""
        first = first_cause(self.failures)
        return next((rank, failure) for rank, failure in self.failures.items() if failure is first)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return torch's table: the other failures, then the root cause."""
        root, _ = self.get_first_failure()
        shown = {rank: _table(index, rank, failure) for index, (rank, failure) in enumerate(self.failures.items())}
        title = f"{self.name} FAILED"
        width = min(60, max(len(line) for text in (title, *shown.values()) for line in text.split("\n")))
        border, section = boarder_delim * width, section_delim * width
        others = [text for rank, text in shown.items() if rank != root]
        return "\n".join(
            [
                "",
                border,
                title,
                section,
                "Failures:",
                "\n".join(others or ["  <NO_OTHER_FAILURES>"]),
                section,
                "Root Cause (first observed failure):",
                shown[root],
                border,
            ]
        )


def _table(index: int, rank: int, failure: ProcessFailure) -> str:
    name = failure.signal_name()
    rows = {
        "time": failure.timestamp_isoformat(),
        "host": socket.getfqdn(),
        "rank": f"{rank} (local_rank: {failure.local_rank})",
        "exitcode": f"{failure.exitcode} (pid: {failure.pid})" + (f" ({name})" if name != NOT_AVAILABLE else ""),
        "error_file": failure.error_file,
        "traceback": _message(failure.message).replace("\n", "\n  "),
    }
    text = "\n".join([f"[{index}]:", *(f"  {label:<10}: {value}" for label, value in rows.items())])
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _message(message: Any) -> str:
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack if stack is not None else message.get("message", NOT_AVAILABLE))


def record(fn: Callable[_P, _R], error_handler: ErrorHandler | None = None) -> Callable[_P, _R | None]:
    """Decorate a program's main function: an exception that leaves it is written to its error file, and raised on.

    ``sys.exit(0)`` in it becomes a return of None. A `ChildFailedError` (ours or torch's) copies the error file of
    the child that failed first. A handler of one's own replaces the default one.
    """
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as ended:
            if ended.code == 0:
                return None
            raise
        except Exception as exc:
            if not isinstance(exc, _child_failed_errors()):
                handler.record_exception(exc)
                raise
            rank, failure = exc.get_first_failure()  # type: ignore[attr-defined]
            if failure.error_file != NOT_AVAILABLE:
                handler.dump_error_file(failure.error_file, failure.exitcode)
            else:
                logger.info("rank %s failed and left no error file; put its main function under record", rank)
            raise

    return wrapper


def _child_failed_errors() -> tuple[type[BaseException], ...]:
    torchs = getattr(sys.modules.get("torch.distributed.elastic.multiprocessing.errors"), "ChildFailedError", None)
    return (ChildFailedError,) if torchs is None else (ChildFailedError, torchs)
