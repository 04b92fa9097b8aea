"""What a job carries besides the user's objects: the caller's state now, and one rank's place in the run.

Everything here is a plain value of built-in types, so that it can be read before anything of the user is, and so
that a part of it could be sent elsewhere. `Settings.here()` is the only place that asks the calling process.
"""

from __future__ import annotations

import locale
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_LIMITS = tuple(
    getattr(resource, name)
    for name in (
        *("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_MEMLOCK"),
        *("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_STACK"),
    )
    if hasattr(resource, name)
)


@dataclass(frozen=True)
class Settings:
    """The state of the calling process that a new process would inherit (or that the user set in Python)."""

    cwd: str
    path: tuple[str, ...]
    argv: tuple[str, ...]
    umask: int | None
    limits: tuple[tuple[int, int, int], ...]
    affinity: frozenset[int] | None
    nice: int
    authkey: bytes
    start_method: str
    sharing_strategy: str | None
    locale: str | None

    @staticmethod
    def here() -> Settings:
        """Ask the calling process. Changes nothing in it (multiprocessing's default start method stays unset)."""
        try:
            cwd = os.getcwd()
        except OSError:
            cwd = ""
        method = multiprocessing.get_start_method(allow_none=True)
        torch_multiprocessing = sys.modules.get("torch.multiprocessing")
        return Settings(
            cwd=cwd,
            path=tuple(sys.path),
            argv=tuple(sys.argv),
            umask=_umask(),
            limits=tuple((which, *resource.getrlimit(which)) for which in _LIMITS),
            affinity=frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            nice=os.getpriority(os.PRIO_PROCESS, 0),
            authkey=bytes(multiprocessing.current_process().authkey),
            start_method=method or ("fork" if sys.platform == "linux" else "spawn"),
            sharing_strategy=torch_multiprocessing.get_sharing_strategy() if torch_multiprocessing else None,
            locale=locale.setlocale(locale.LC_ALL),
        )

    def apply(self) -> list[str]:
        """Make them hold in this process. Returns a sentence for each that the system refused."""
        troubles = []

        def attempt(what: str, change: Callable[..., object], *values: object) -> None:
            try:
                change(*values)
            except (OSError, ValueError) as error:
                troubles.append(f"{what} could not be set: {error}")

        if self.cwd:
            attempt(f"the working directory {self.cwd}", os.chdir, self.cwd)
        else:
            troubles.append("the caller's working directory does not exist any more")
        sys.path[:] = self.path
        sys.argv[:] = self.argv
        if self.umask is not None:
            os.umask(self.umask)
        for which, soft, hard in self.limits:
            if resource.getrlimit(which) != (soft, hard):
                attempt(f"resource limit {which}", resource.setrlimit, which, (soft, hard))
        if self.affinity is not None and os.sched_getaffinity(0) != self.affinity:
            attempt("the CPU affinity", os.sched_setaffinity, 0, self.affinity)
        if os.getpriority(os.PRIO_PROCESS, 0) != self.nice:
            attempt(f"nice {self.nice}", os.setpriority, os.PRIO_PROCESS, 0, self.nice)
        multiprocessing.current_process().authkey = self.authkey
        multiprocessing.set_start_method(self.start_method, force=True)
        return troubles


@dataclass(frozen=True)
class Job:
    """One rank's job, without the user's objects.

    ``environment`` is complete: it replaces the process's own. ``stdout`` and ``stderr`` are the files that the
    rank's descriptors 1 and 2 are pointed at, None for the caller's own, whose descriptors come with the job.
    ``directory`` is the rank's own, in the private run directory; ``sockets`` is there for all ranks,
    None if the path is too long for sockets. ``setup`` names a function ("module:function") and keyword arguments; it
    is called in the rank before anything of the user is unpickled, with ``directory`` too, and what it returns is
    called when user code has ended.
    """

    rank: int
    world_size: int
    process_name: str
    daemon: bool
    environment: Mapping[str, str]
    settings: Settings
    error_file: str
    stack_file: str
    stdout: str | None
    stderr: str | None
    directory: str
    sockets: str | None = None
    setup: tuple[str, Mapping[str, object]] | None = None


def _umask() -> int | None:
    """The umask, read without setting it where the system tells."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return None
