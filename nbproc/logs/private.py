"""Run directories for runs without a ``log_dir``: where they lie, who may read them, when they go.

``$TMPDIR/nbproc-<uid>/<name>-<pid>-<random>``, each 0700. A saved notebook names them, so they outlive their run: the
last 20 of this process stay, those of processes that are gone stay for 7 days.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

__all__ = ["KEEP_DAYS", "KEEP_RUNS", "private_run_dir", "release_run_dir"]

KEEP_RUNS = 20
"""So many directories of ended runs stay while their process lives."""
KEEP_DAYS = 7
"""So many days a directory stays after its process is gone and nothing in it changed."""

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9._]+-(\d+)-[a-z0-9_]+")
_lock = threading.Lock()
_ended: deque[tuple[int, Path]] = deque()
_swept: set[tuple[int, Path]] = set()
_elsewhere: dict[Path, Path] = {}


def private_run_dir(name: str) -> Path:
    """Make a new empty directory (0700) for a run called ``name``; call from any thread.

    It is not pruned before `release_run_dir` was called with it or this process is gone.
    """
    safe = re.sub(r"[^A-Za-z0-9._]+", "_", name)[:60].lstrip(".") or "run"
    return Path(tempfile.mkdtemp(prefix=f"{safe}-{os.getpid()}-", dir=_base()))


def release_run_dir(path: Path) -> None:
    """Say that the run of ``path`` has ended; then prune. Never raises; takes milliseconds, so call it off the hot path.

    A path that `private_run_dir` did not make is left alone.
    """
    match = _NAME.fullmatch(path.name)
    pid = os.getpid()
    if match is None or int(match[1]) != pid or not path.parent.name.startswith(f"nbproc-{os.getuid()}"):
        return
    with _lock:
        mine = [entry for entry in _ended if entry[0] == pid and entry[1] != path]
        _ended.clear()  # a forked child has inherited its parent's entries and may not touch them
        _ended.extend([*mine, (pid, path)])
        old = [_ended.popleft()[1] for _ in range(len(_ended) - KEEP_RUNS)]
        sweep = (pid, path.parent) not in _swept
        _swept.add((pid, path.parent))
    for directory in old:
        shutil.rmtree(directory, ignore_errors=True)
    if sweep:
        _sweep(path.parent)


def _base() -> Path:
    """Return this user's directory for run directories; it is ours alone, or a new one that is."""
    uid = os.getuid()
    base = Path(tempfile.gettempdir()) / f"nbproc-{uid}"
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    # Anybody may have made that name in a shared /tmp first: a link or a directory of theirs would give them our logs.
    info = base.lstat()
    if stat.S_ISDIR(info.st_mode) and info.st_uid == uid:
        if stat.S_IMODE(info.st_mode) & 0o077:
            base.chmod(0o700)
        return base
    with _lock:
        if base not in _elsewhere:
            _elsewhere[base] = Path(tempfile.mkdtemp(prefix=f"nbproc-{uid}-"))
            _log.warning("%s is not ours: run directories of this process lie in %s", base, _elsewhere[base])
        return _elsewhere[base]


def _sweep(base: Path) -> None:
    """Remove directories in ``base`` whose process is gone and that nobody changed for `KEEP_DAYS`."""
    oldest = time.time() - KEEP_DAYS * 86400
    for directory, pid in _owned(base):
        if not _alive(pid) and _changed(directory) < oldest:
            shutil.rmtree(directory, ignore_errors=True)


def _owned(base: Path) -> Iterator[tuple[Path, int]]:
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if (match := _NAME.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path), int(match[1])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _changed(directory: Path) -> float:
    """Return when something in ``directory`` was last written (now, if that cannot be found out)."""
    try:
        times = [directory.stat().st_mtime]
        for root, _, files in os.walk(directory):
            times += [os.stat(os.path.join(root, file), follow_symlinks=False).st_mtime for file in files]
    except OSError:
        return time.time()
    return max(times)
