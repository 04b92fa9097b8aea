"""The exceptions that nbproc raises, as one tree.

Each mistake of the user is a subclass of `NbprocError` and also of the built-in class that torch raises for it, so
programs written for torch keep catching what they caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbproc.contexts.results import RunProcsResult
    from nbproc.failures import ProcessFailure


class NbprocError(Exception):
    """Whatever nbproc raises is one of these."""


class PlanError(NbprocError, RuntimeError):
    """The run cannot be as asked for: ranks are missing, a value is out of range. Nothing was started."""


class ArgumentError(NbprocError, TypeError):
    """The call itself is wrong: arguments that exclude each other, a wrong type. Nothing was started."""


class OptionError(NbprocError, ValueError):
    """An option of a magic or a value of a setting is wrong. Nothing was started."""


class PayloadError(NbprocError, TypeError):
    """Something that the ranks need cannot be sent to them. Nothing was started."""


class LaunchError(NbprocError, RuntimeError):
    """The ranks could not be started; those that were are gone."""


class ExecutableError(LaunchError, FileNotFoundError):
    """The executable that the ranks should be is missing or cannot be executed."""


class DependencyError(NbprocError, ImportError):
    """A package that this needs is not installed, or is too old. Attribute: ``name`` (str), the package."""


class StateError(NbprocError, RuntimeError, ValueError):
    """The context cannot do this in its present state (started twice, a result that is not there yet)."""


class ResultError(NbprocError, RuntimeError):
    """A rank's return value cannot be read. The other ranks' values are not affected.

    Attributes: ``rank`` (int), ``type_name`` (str, "" if unknown).
    """

    def __init__(self, message: str, rank: int, type_name: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.type_name = type_name


class NoValueError(NbprocError, KeyError):
    """A rank has no return value: it or another one failed, or there is no such rank."""

    __str__ = Exception.__str__  # a KeyError's would put the sentence in quotes


class SpawnError(NbprocError, RuntimeError):
    """A run failed. ``str(error)`` is the whole explanation, the first cause on top.

    Attributes: ``failures`` (rank -> `ProcessFailure`), ``result`` (the `RunProcsResult`), ``colored`` (the
    explanation for a terminal with colours), ``brief`` (what IPython shows the first time, where the explanation
    stands on the screen already; "" for all of it).
    """

    def __init__(
        self,
        message: str,
        failures: Mapping[int, ProcessFailure],
        result: RunProcsResult | None = None,
        colored: str = "",
    ) -> None:
        super().__init__(message)
        self.failures = dict(failures)
        self.result = result
        self.colored = colored
        self.brief = ""

    def _render_traceback_(self) -> list[str]:
        """Give IPython the explanation in place of the stack of the call that waited."""
        brief, self.brief = self.brief, ""
        return (brief or self.colored or str(self)).splitlines()


class ProcessException(NbprocError):
    """A rank of `nbproc.spawn` ended badly. Attributes: ``error_index`` (rank), ``error_pid``."""

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = pid

    @property
    def pid(self) -> int:
        """The process id of the rank that ended badly."""
        return self.error_pid

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """A rank raised; the message holds its traceback."""


class ProcessExitedException(ProcessException):
    """A rank exited with a code or by a signal. Attributes: ``exit_code``, ``signal_name`` (None without one)."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)


class SignalException(NbprocError):
    """A process was told by a signal to end. Attribute: ``sigval`` (the `signal.Signals`)."""

    def __init__(self, msg: str, sigval: object) -> None:
        super().__init__(msg)
        self.sigval = sigval


class LogDirError(NbprocError, NotADirectoryError):
    """Where the log directory should be there is something else. Nothing was started."""
