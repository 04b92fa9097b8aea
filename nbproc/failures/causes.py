"""Which failure came first, which ones only follow from it, and which ones are the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nbproc.failures.process import ProcessFailure
from nbproc.failures.traces import Trace

GRACE = 10.0
"""Errors about lost connections this many seconds around another failure are its consequences."""

_LOST = re.compile(
    r"connection (?:was )?(?:closed|reset|aborted|refused|lost)|broken pipe|socket (?:closed|timeout)|"
    r"(?:peer|remote(?: process)?) (?:\w+ )*(?:closed|exited|gone|disconnected|terminated)|"
    r"closed by (?:peer|the remote)|network error|timed out|timeout|wait timeout|unexpected eof|"
    r"failed to (?:recv|send|receive|connect)|(?:recv|send|read|write)\w* (?:failed|returned)|"
    r"watchdog|collective operation|heartbeat|ncclremoteerror|ncclsystemerror|no route to host|"
    r"store (?:is )?(?:closed|unavailable|shut)|end of file|sock.*errno",
    re.IGNORECASE,
)
_LOST_TYPES = frozenset(
    {
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "BrokenPipeError",
        "EOFError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
    }
)
_GENERAL_TYPES = frozenset({"RuntimeError", "OSError", "TimeoutError", "gaierror"})
_COMMUNICATION = ("/torch/", "/multiprocessing/", "/socket.py")
_LIBRARIES = re.compile(r"gloo|nccl|c10d|\bmpi\b|\bucc\b|tcpstore", re.IGNORECASE)


def lost_connection(failure: ProcessFailure) -> bool:
    """Return True if the failure says only that somebody else is gone or silent.

    It must be an error of the communication itself: by its type, or one of the general types whose words tell and
    that came out of a communication library. What the user's own line raises is never one.
    """
    trace = failure.trace
    if trace is None:
        return _lost_in_text(failure)
    if _raised_by_user(trace):
        return False
    if trace.type_name.rpartition(".")[2] in _LOST_TYPES:
        return True
    message = trace.message[:4000]
    if trace.type_name not in _GENERAL_TYPES or not _LOST.search(message):
        return False
    files = [frame.file for frame in trace.frames]
    return bool(_LIBRARIES.search(message)) or any(part in file for file in files for part in _COMMUNICATION)


def _lost_in_text(failure: ProcessFailure) -> bool:
    """The same for an error file without frames (torch's own record)."""
    if failure.exitcode < 0 or not isinstance(failure.message, dict):
        return False
    name, _, text = str(failure.message.get("message", ""))[:4000].partition(":")
    return name in _LOST_TYPES or (name == "RuntimeError" and bool(_LOST.search(text)))


def _raised_by_user(trace: Trace) -> bool:
    """True if the innermost line is a ``raise`` in the user's own code: then its words are the user's."""
    frames = trace.frames
    return bool(frames) and not frames[-1].is_library and frames[-1].text.strip().startswith("raise ")


def first_cause(
    failures: Mapping[int, ProcessFailure] | Iterable[ProcessFailure], grace: float = GRACE
) -> ProcessFailure:
    """Return the failure from which the others follow. Raises ValueError if there is none at all.

    The earliest by the ranks' own clocks; but an error about a lost connection, up to ``grace`` seconds before
    another failure, is taken as following from that one (a process that was killed is noticed only after its peers
    have noticed). This is the one place that compares times of different ranks.
    """
    known: list[ProcessFailure] = list(failures.values() if isinstance(failures, Mapping) else failures)
    if not known:
        raise ValueError("there is no failure to choose from")
    causes = [failure for failure in known if not lost_connection(failure)]
    earliest = min(known, key=_order)
    if not causes:
        return earliest
    cause = min(causes, key=_order)
    return cause if cause.time <= earliest.time + grace else earliest


def _order(failure: ProcessFailure) -> tuple[float, int]:
    return failure.time, failure.local_rank


def follows(failure: ProcessFailure, first: ProcessFailure, grace: float = GRACE) -> bool:
    """Return True if a failure is a consequence of the first one."""
    return failure is not first and lost_connection(failure) and failure.time >= first.time - grace


def same(one: ProcessFailure, other: ProcessFailure) -> bool:
    """Return True if two failures differ in their ranks only (a message may name its rank)."""
    if _signature(one) != _signature(other):
        return False
    return one.words == other.words or _without_rank(one) == _without_rank(other)


def _signature(failure: ProcessFailure) -> tuple[bool, str, int]:
    where = failure.where
    return failure.raised, "" if where is None else f"{where.file}:{where.line}", failure.exitcode


def _without_rank(failure: ProcessFailure) -> str:
    if not failure.raised:  # of "exited with code 1" the 1 is no rank
        return failure.words
    return re.sub(rf"(?<!\d){failure.local_rank}(?!\d)", "#", failure.words)
