"""Where a rank is while it runs: it is asked by a signal, and writes the stacks of its threads into a file of the run.

Asking must not harm the rank. So it is asked only if /proc says that it catches the signal, and that the file which
its handler writes to is still open under the number it had: a rank may have become another program, or have closed
descriptors that are not its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nbproc.failures import where_in_dump
from nbproc.ranks import worker
from nbproc.ranks.platform import proc_dir
from nbproc.ranks.process import RankProcess

PATIENCE = 0.5
"""Seconds in which a rank has to answer."""
FRESH = 1.0
"""Seconds for which an answer holds: several views may ask."""
_LOOK = 0.005
_QUIET = 0.02
_LARGE = 1 << 18


class Whereabouts:
    """Asks the ranks of one run where they are. Any thread but those that must not wait; one asks at a time."""

    def __init__(self, stack_file: Callable[[int], Path], cells: Mapping[str, int]) -> None:
        self._stack_file = stack_file
        self._cells = cells
        self._lock = threading.Lock()
        self._known: dict[int, tuple[float, str]] = {}
        self._descriptors: dict[int, int] = {}
        self._unanswered: dict[int, int] = {}

    def ask(self, rank: int, process: RankProcess) -> str:
        """Say where a rank is: ``in all_reduce, train, cell [3] line 19``; "" if it cannot be asked or does not answer.

        Blocks for at most `PATIENCE` beyond the others that ask.
        """
        with self._lock:
            asked, words = self._known.get(rank, (0.0, ""))
            if time.monotonic() - asked >= FRESH:
                words = ""
                with contextlib.suppress(OSError):
                    words = self._sample(rank, process)
                self._known[rank] = time.monotonic(), words
            return words

    def _sample(self, rank: int, process: RankProcess) -> str:
        path = self._stack_file(rank)
        if worker.SAMPLE_SIGNAL is None or process.identity is None:
            return ""
        if not self._hears(process.identity.pid, worker.SAMPLE_SIGNAL, path, rank):
            return ""
        size = path.stat().st_size
        if self._unanswered.get(rank) == size:
            return ""  # a process that is stopped would keep every signal and answer them all at once
        if size > _LARGE:
            os.truncate(path, size := 0)  # it is written at its end, wherever that is
        self._unanswered[rank] = size
        if not process.signal(worker.SAMPLE_SIGNAL):
            return ""
        text = _grown(path, size)
        if not text:
            return ""
        del self._unanswered[rank]
        where = where_in_dump(text, self._cells)
        if where is None:
            return ""
        if where.frame.file.startswith("<frozen importlib"):
            return "importing"
        if where.call:
            return f"in {where.call}, {where.frame.words}"
        return f"{'at' if where.frame.words == where.frame.place else 'in'} {where.frame.words}"

    def _hears(self, pid: int, signum: int, path: Path, rank: int) -> bool:
        proc = proc_dir(pid)
        if proc is None:
            return False
        known = self._descriptors.get(rank)
        names = os.listdir(proc / "fd") if known is None else [str(known)]
        name = next((name for name in names if _points_to(proc / "fd" / name, path)), None)
        if name is None:
            return False
        self._descriptors[rank] = int(name)
        status = (proc / "status").read_text(errors="replace")
        caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (signum - 1) & 1)


def _points_to(link: Path, path: Path) -> bool:
    try:
        return os.readlink(link) == str(path)
    except OSError:  # closed meanwhile
        return False


def _grown(path: Path, size: int) -> str:
    """Wait until something was written behind ``size`` and nothing more comes; return it, "" if nothing did."""
    deadline = time.monotonic() + PATIENCE
    seen, since = size, time.monotonic()
    while (now := time.monotonic()) < deadline:
        length = path.stat().st_size
        if length != seen:
            seen, since = length, now
        elif length > size and now - since >= _QUIET:
            break
        time.sleep(_LOOK)
    with open(path, "rb") as file:
        file.seek(size)
        return file.read().decode("utf-8", "replace")
