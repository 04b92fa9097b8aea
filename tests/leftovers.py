"""What a test left behind: processes, threads, open descriptors, files outside its own folder."""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
MARK = "NBPROC_TEST_SESSION"
"""In the environment of this process and so of everything that it starts, orphans of orphans included."""

GRACE = 10.0
"""Seconds that what a test started may take to go away once the test is over."""

PERMANENT = re.compile(r"nbproc[./]ranks[./](server|guardian)")
"""Command lines of the processes that serve all runs of their owner and end with it."""

PERMANENT_THREADS = {"TMonitor", "HistorySavingThread"}
"""Classes of threads that libraries start once and end with the process: tqdm's and IPython's."""


@dataclass(frozen=True)
class World:
    """What there is outside the test at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread] = field(default_factory=frozenset)
    descriptors: frozenset[tuple[int, str]] = field(default_factory=frozenset)
    paths: frozenset[Path] = field(default_factory=frozenset)


def _processes() -> frozenset[psutil.Process]:
    """Return the living descendants of this process and everything that carries the mark."""
    me = psutil.Process()
    found = set(me.children(recursive=True))
    mark = os.environ.get(MARK, "-")
    for process in psutil.process_iter():
        try:
            if process != me and process not in found and process.environ().get(MARK) == mark:
                found.add(process)
        except psutil.Error:
            continue
    return frozenset(process for process in found if _alive(process))


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _serves_all_runs(process: psutil.Process, known: frozenset[psutil.Process]) -> bool:
    """Tell if this is a fork server or guardian whose owner lives: neither a rank (a fork of the server) nor an orphan."""
    try:
        parent = process.parent()
        if not PERMANENT.search(" ".join(process.cmdline())):
            return False
        owned = parent is not None and (parent.pid == os.getpid() or parent in known)
        return owned and not PERMANENT.search(" ".join(parent.cmdline()))
    except psutil.NoSuchProcess:
        return True  # it has just ended


def _descriptors() -> frozenset[tuple[int, str]]:
    """Return the open sockets, pipes, memory files and pidfds of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("socket:", "pipe:", "/memfd:", "anon_inode:[pidfd]")):
            found.add((int(name), target))
    return frozenset(found)


def _paths() -> frozenset[Path]:
    """Return what lies in the checkout's top folder and in the temporary one, run directories excepted."""
    found = set(ROOT.iterdir()) | set(Path(tempfile.gettempdir()).iterdir())
    caches = re.compile(  # torch keeps what it compiled in torchinductor_<user>
        r"\.(pytest|ruff|mypy|hypothesis|import_linter|coverage|git).*|__pycache__|nbproc-\d+|torchinductor_.*"
    )
    return frozenset(path for path in found if not caches.fullmatch(path.name))


def look() -> World:
    """Return what there is now."""
    return World(_processes(), frozenset(threading.enumerate()), _descriptors(), _paths())


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} (child of {process.ppid()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"process {process.pid}"


def left_behind(before: World) -> list[str]:
    """Say what is there now and was not before; wait a little for what is about to go.

    Ranks that stand by for the next run in this process are let go of first: what stays then was forgotten.
    """
    words = []
    for thread in set(threading.enumerate()) - before.threads:
        if type(thread).__name__ not in PERMANENT_THREADS:
            thread.join(GRACE)
            if thread.is_alive():
                words.append(f"thread {thread.name}")

    if (standby := sys.modules.get("nbproc.ranks.standby")) is not None:
        standby.close()
    now = _processes()
    fresh = now - before.processes
    served = {process for process in fresh if _serves_all_runs(process, now)}
    psutil.wait_procs(fresh - served, timeout=GRACE)
    words += [_describe(process) for process in sorted(fresh - served, key=lambda p: p.pid) if _alive(process)]

    if not served:  # the first run of a process opens what all its runs use
        fresh_descriptors = _descriptors() - before.descriptors
        if fresh_descriptors:
            gc.collect()
            fresh_descriptors &= _descriptors()
        words += [f"descriptor {number}: {target}" for number, target in sorted(fresh_descriptors)]

    words += [f"path {path}" for path in sorted(_paths() - before.paths)]
    return words
