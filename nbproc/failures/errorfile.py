"""error.json: torch's schema and, under the key ``nbproc``, the trace as values.

```
{"message": {"message": "ValueError: bad batch 17",
             "extraInfo": {"py_callstack": "Traceback (most recent call last): ...", "timestamp": "1700000000"}},
 "nbproc":  {"version": 1, "rank": 2, "time": 1700000000.25, "trace": {...}}}
```
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbproc.failures.callstack import format_trace
from nbproc.failures.traces import Trace, from_exception

VERSION = 1


def error_data(exc: BaseException, cells: Mapping[str, int] | None = None, rank: int | None = None) -> dict[str, Any]:
    """Return what error.json holds for this exception. Never raises.

    ``cells`` names the execution count of notebook cells by the file name in their code objects.
    """
    now = time.time()
    own: dict[str, Any] = {"version": VERSION, "rank": rank, "time": now}
    try:
        trace = from_exception(exc, cells)
        own["trace"] = trace.to_json()
        message = f"{trace.type_name}: {trace.message}"
        stack = format_trace(trace)
    except BaseException as problem:  # a failure that cannot be described is still a failure
        message = f"{type(exc).__name__}: <it could not be described: {type(problem).__name__}>"
        stack = message
    return {
        "message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": str(int(now))}},
        "nbproc": own,
    }


def write_error(
    path: str | os.PathLike[str],
    exc: BaseException,
    cells: Mapping[str, int] | None = None,
    rank: int | None = None,
) -> bool:
    """Write error.json for an exception; return True if the file is there.

    Never raises, and the file appears whole or not at all. A ``ChildFailedError`` (ours or torch's) is not the cause
    of anything: the error file of its first failure is copied, if it has one.
    """
    try:
        data = _copied(exc)
        return write_data(path, error_data(exc, cells, rank) if data is None else data)
    except BaseException:
        return False


def _copied(exc: BaseException) -> dict[str, Any] | None:
    first = getattr(type(exc), "get_first_failure", None)
    if first is None:
        return None
    try:
        failure = first(exc)[1]
        data = read_data(failure.error_file)
        if data is not None:
            override_error_code(data, failure.exitcode)
    except Exception:
        return None
    return data


def override_error_code(data: dict[str, Any], code: int) -> bool:
    """Note the exit code in the data of an error file, as torch does; False if its message has no place for it."""
    if not isinstance(data.get("message"), dict):
        return False
    data["message"]["errorCode"] = code
    return True


def write_data(path: str | os.PathLike[str], data: Mapping[str, Any]) -> bool:
    """Write the file whole: beside its place, then moved there. Returns False if the disk does not take it."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        text = json.dumps(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(beside, target)
    except (OSError, ValueError, TypeError, RecursionError):
        with contextlib.suppress(OSError):
            beside.unlink()
        return False
    return True


def read_data(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return what an error file holds; None if it is missing, unreadable or of another shape.

    Understands torch's file, the older one with a plain string as message, and ours.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("message"), (str, dict)):
        return None
    return data


def read_trace(data: Mapping[str, Any]) -> Trace | None:
    """Return the trace in the data of an error file, None if it has none that can be read."""
    own = data.get("nbproc")
    if not isinstance(own, dict) or not isinstance(own.get("trace"), dict):
        return None
    try:
        return Trace.from_json(own["trace"])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def read_time(data: Mapping[str, Any]) -> float | None:
    """Return when it happened, by the rank's clock: fractions of a second in our files, whole seconds in torch's."""
    own = data.get("nbproc")
    message = data["message"]
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    candidates = [
        own.get("time") if isinstance(own, dict) else None,
        extra.get("timestamp") if isinstance(extra, dict) else None,
        data.get("timestamp"),
    ]
    for value in candidates:
        with contextlib.suppress(TypeError, ValueError):
            if value is not None:
                return float(value)
    return None
