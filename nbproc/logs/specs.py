"""Where the logs of a run go: torch's ``LogsSpecs`` family, ``log_dir=``, and the names of all files of a run.

No other module knows a file name or builds a path inside a run directory.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from nbproc.errors import ArgumentError, LogDirError, PlanError
from nbproc.logs.private import private_run_dir, release_run_dir
from nbproc.logs.std import Std, StdLike, to_map

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "RunFiles",
    "flat_dest",
    "open_log",
    "private_run_dir",
    "reify",
    "release_run_dir",
]

_log = logging.getLogger(__name__)

Streams = StdLike | Mapping[int, StdLike]
_LONGEST_SOCKETS = 107 - len("/listener-xxxxxxxx")
"""So long may a directory for sockets be: the path of a socket may have 107 bytes."""


@dataclass(frozen=True)
class RunFiles:
    """The files of one run directory. Making one touches nothing.

    Paths are made from text: a launch makes a hundred, and ``/`` between paths takes three times as long.
    """

    root: Path

    def rank(self, rank: int) -> Path:
        """Return the directory of one rank."""
        return Path(f"{self.root}/{rank}")

    def stdout(self, rank: int) -> Path:
        """Return the file of a rank's stdout."""
        return Path(f"{self.root}/{rank}/stdout.log")

    def stderr(self, rank: int) -> Path:
        """Return the file of a rank's stderr."""
        return Path(f"{self.root}/{rank}/stderr.log")

    def error(self, rank: int) -> Path:
        """Return the file that says why a rank failed."""
        return Path(f"{self.root}/{rank}/error.json")

    def stack(self, rank: int) -> Path:
        """Return the file into which a rank writes where it is, when it is asked."""
        return Path(f"{self.root}/{rank}/stack.txt")

    def display(self, rank: int) -> Path:
        """Return the list of what a rank displayed: one JSON object a line."""
        return Path(f"{self.root}/{rank}/display.jsonl")

    def display_dir(self, rank: int) -> Path:
        """Return the directory of the figures and tables that a rank displayed."""
        return Path(f"{self.root}/{rank}/display")

    @property
    def sockets(self) -> Path:
        """The directory for sockets of the libraries in all ranks."""
        return Path(f"{self.root}/sockets")

    def make_sockets(self) -> Path | None:
        """Make the directory for sockets; None if its path is too long for a socket in it."""
        if len(os.fsencode(self.sockets)) > _LONGEST_SOCKETS:
            return None
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        return self.sockets

    def remove_sockets(self) -> None:
        """Remove this directory with what is in it."""
        # does nothing if this process is short of descriptors: it goes with the run directory
        shutil.rmtree(self.sockets, ignore_errors=True)

    @property
    def filtered_stdout(self) -> Path:
        """The matching lines of all ranks' stdout."""
        return self.root / "filtered_stdout.log"

    @property
    def filtered_stderr(self) -> Path:
        """The matching lines of all ranks' stderr."""
        return self.root / "filtered_stderr.log"

    def make(self, nprocs: int, *, mode: int = 0o777) -> None:
        """Make the directories of the ranks (``mode`` before the umask; 0o700 for a private run directory)."""
        for rank in range(nprocs):
            self.rank(rank).mkdir(mode=mode, parents=True, exist_ok=True)


def open_log(path: str | os.PathLike[str], *, private: bool) -> int:
    """Open a log for appending, made if missing (0600 if ``private``), and return its descriptor.

    Appending, so that several processes of a rank do not overwrite each other and a truncated log does not get a hole.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600 if private else 0o666)


@dataclass
class LogsDest:
    """Torch's: the files of each rank by stream, as strings.

    "" in ``stdouts`` and ``stderrs`` is the console, ``/dev/null`` is nowhere. The ranks in ``tee_stdouts`` and
    ``tee_stderrs`` are those whose file is also copied to the console.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """Torch's: says where the logs of each rank go. Subclass it and define `reify` and `root_log_dir`.

    ``redirects`` and ``tee`` are one `Std` for all ranks or a map of them by rank; ``local_ranks_filter`` names the
    ranks that reach the console (None, or none: all).
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Streams = Std.NONE,
        tee: Streams = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of the ranks in ``envs`` (rank -> its environment) and make their directories."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The directory under which all logs lie."""


class DefaultLogsSpecs(LogsSpecs):
    """Torch's: ``<log_dir>/<run id>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}``.

    ``log_dir`` is made if missing (`LogDirError`, a NotADirectoryError, if it is a file); None stands for a temporary
    one, ``/dev/null`` for no logs at all. Run id and attempt come from TORCHELASTIC_RUN_ID and
    TORCHELASTIC_RESTART_COUNT in rank 0's environment; without a run id each `reify` makes a new one. An attempt that
    exists already is never overwritten: the new one lies under ``<run id>_2``, and so on. Unlike torch's, `reify` does
    not change ``envs``.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Streams = Std.NONE,
        tee: Streams = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        if log_dir and log_dir != os.devnull:
            _make_dir(Path(log_dir))
        super().__init__(log_dir or None, redirects, tee, local_ranks_filter)

    @property
    def root_log_dir(self) -> str:
        """The directory under which all logs lie; made now if it is to be a temporary one."""
        if self._root_log_dir is None:
            self._root_log_dir = str(private_run_dir("logs"))
        return str(self._root_log_dir)

    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """Return the files of the ranks in ``envs`` (0 to n-1) and make the attempt's directories."""
        root: Path | None = None
        if self.root_log_dir != os.devnull:
            env = envs.get(0, {})
            root = _new_attempt(
                Path(os.path.abspath(self.root_log_dir)),
                env.get("TORCHELASTIC_RUN_ID") or time.strftime("run_%Y%m%d_%H%M%S_") + secrets.token_hex(3),
                f"attempt_{env.get('TORCHELASTIC_RESTART_COUNT') or 0}",
            )
            _log.info("logs: %s", root)
        dest = _destinations(root, len(envs), self._redirects, self._tee, self._local_ranks_filter)
        if root is not None:
            dest.filtered_stdout = str(RunFiles(root).filtered_stdout)
            dest.filtered_stderr = str(RunFiles(root).filtered_stderr)
        return dest

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, tee={self._tee}, "
            f"local_ranks_filter={self._local_ranks_filter})"
        )

    def _key(self) -> tuple[object, ...]:
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]  # its fields may be dicts, and may change


@runtime_checkable
class _Reifies(Protocol):
    def reify(self, envs: dict[int, dict[str, str]]) -> object: ...


def reify(specs: object, envs: Mapping[int, Mapping[str, str]]) -> tuple[LogsDest, dict[int, dict[str, str]]]:
    """Ask ``specs`` (ours, torch's, a user's own) for its files; return them and the environments.

    ``envs`` is never changed. Specs such as torch's write into the environments: they get copies, and what they wrote
    is in the environments returned. Each rank has an entry in ``stdouts``, ``stderrs`` ("" if specs named none) and
    ``error_files`` ("" likewise), and the directories of all files exist. Raises `ArgumentError` if ``specs`` has no
    ``reify``, or it returns something else than a LogsDest.
    """
    if isinstance(specs, type) or not isinstance(specs, _Reifies):
        raise ArgumentError(f"logs_specs: expected a LogsSpecs (nbproc's or torch's), got {specs!r}")
    copies = {rank: dict(env) for rank, env in envs.items()}
    given = specs.reify(copies)
    try:
        files = {
            key: {int(rank): os.fspath(path) for rank, path in getattr(given, key).items()}
            for key in ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ArgumentError(f"logs_specs: {type(specs).__name__}.reify() returned no LogsDest: {error}") from error
    for key in ("stdouts", "stderrs", "error_files"):
        files[key] = {rank: files[key].get(rank, "") for rank in sorted(envs)}
    dest = LogsDest(
        **files,
        filtered_stdout=_filtered(getattr(given, "filtered_stdout", "")),
        filtered_stderr=_filtered(getattr(given, "filtered_stderr", "")),
    )
    for path in (*dest.stdouts.values(), *dest.stderrs.values(), *dest.error_files.values()):
        if path:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return dest, copies


def _filtered(path: str | os.PathLike[str] | None) -> str:
    """Return ``path`` as a string; torch's under ``/dev/null`` is none."""
    text = os.fspath(path or "")
    return "" if os.path.dirname(text) == os.devnull else text


def flat_dest(
    log_dir: str | os.PathLike[str],
    redirects: Streams,
    tee: Streams,
    nprocs: int,
    *,
    local_ranks_filter: Collection[int] | None = None,
    stdout_filters: Collection[str] = (),
    stderr_filters: Collection[str] = (),
    mode: int = 0o777,
) -> LogsDest:
    """Return the files for ``log_dir=``: ``<log_dir>/<rank>/stdout.log`` and so on, and make their directories.

    ``mode`` is that of the ranks' directories, before the umask.

    ``filtered_stdout`` and ``filtered_stderr`` are "" without filters. Raises `LogDirError` (a NotADirectoryError) if
    ``log_dir`` is a file, `PlanError` (a RuntimeError) if it is not empty: nothing in it is touched.
    """
    root = Path(os.path.abspath(log_dir))
    _make_dir(root)
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries)
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise PlanError(f"log_dir {str(root)!r} is not empty (it holds {shown}): name a new or an empty directory")
    dest = _destinations(root, nprocs, redirects, tee, local_ranks_filter, mode)
    files = RunFiles(root)
    dest.filtered_stdout = str(files.filtered_stdout) if stdout_filters else ""
    dest.filtered_stderr = str(files.filtered_stderr) if stderr_filters else ""
    return dest


def _make_dir(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise LogDirError(f"log_dir {str(path)!r} is a file: name a directory")
    path.mkdir(parents=True, exist_ok=True)


def _new_attempt(base: Path, run_id: str, attempt: str) -> Path:
    """Make ``<base>/<run id>/<attempt>``, or under a run id with a number if that exists, and return it."""
    safe = run_id.replace(os.sep, "_") if run_id.strip(".") else "run"
    number = 1
    while True:
        path = base / (safe if number == 1 else f"{safe}_{number}") / attempt.replace(os.sep, "_")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def _destinations(
    root: Path | None,
    nprocs: int,
    redirects: Streams,
    tee: Streams,
    ranks: Collection[int] | None,
    mode: int = 0o777,
) -> LogsDest:
    """Apply torch's rules; without a root (``/dev/null``) everything goes to the console, and nothing is teed."""
    redirected, teed = to_map(redirects, nprocs), to_map(tee, nprocs)
    dest = LogsDest()
    if root is None:
        everywhere = dict.fromkeys(range(nprocs), os.devnull)
        console = dict.fromkeys(range(nprocs), "")
        return LogsDest(console, dict(console), dict(everywhere), dict(everywhere), dict(everywhere))
    files = RunFiles(root)
    files.make(nprocs, mode=mode)
    for rank in range(nprocs):
        heard = not ranks or rank in ranks
        dest.error_files[rank] = str(files.error(rank))
        for std, path, paths, tees in (
            (Std.OUT, files.stdout(rank), dest.stdouts, dest.tee_stdouts),
            (Std.ERR, files.stderr(rank), dest.stderrs, dest.tee_stderrs),
        ):
            in_file = std in redirected[rank] | teed[rank]  # a teed stream always has its file
            paths[rank] = str(path) if in_file else "" if heard else os.devnull
            if heard and std in teed[rank]:
                tees[rank] = str(path)
    return dest
