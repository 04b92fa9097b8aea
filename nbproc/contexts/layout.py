"""Where each stream of each rank goes: the file, what of it is copied to the console, what the result names.

Two things are put together: the destinations that the user asked for (redirects, tee, torch's LogsSpecs) and, where
somebody shows every stream, files of our own for the streams that the user did not redirect.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nbproc.errors import LaunchError, NbprocError
from nbproc.logs.lines import Stream
from nbproc.logs.specs import LogsDest, RunFiles, flat_dest, private_run_dir, reify
from nbproc.plan import FlatLogs, Plan

_NOWHERE = Path(os.devnull)


@dataclass(frozen=True)
class Layout:
    """The files of one run, made.

    ``files`` is the private run directory. ``paths`` says where a stream goes; None is the caller's own stream.
    ``shown`` are the streams whose lines reach the console as text, ``teed`` those of them that were teed.
    """

    files: RunFiles
    dest: LogsDest
    paths: Mapping[tuple[int, Stream], Path | None]
    teed: frozenset[tuple[int, Stream]]
    shown: frozenset[tuple[int, Stream]]
    error_files: Mapping[int, Path]
    run_dir: Path

    def reported(self, stream: Stream) -> dict[int, str]:
        """Return what `RunProcsResult` says: each rank's path, "" without a redirect."""
        paths = self.dest.stdouts if stream is Stream.OUT else self.dest.stderrs
        return {rank: "" if path == os.devnull else path for rank, path in paths.items()}

    def log_file(self, rank: int, stream: Stream) -> Path | None:
        """Return the file that a stream goes to, None if it goes to none."""
        path = self.paths.get((rank, stream))
        return None if path is None or path == _NOWHERE else path


def lay_out(
    plan: Plan, envs: Mapping[int, Mapping[str, str]], *, capture: bool
) -> tuple[Layout, dict[int, dict[str, str]]]:
    """Make the directories of a run. Returns them and the environments as the specs left them.

    Raises what `reify` and `flat_dest` raise (a directory that is a file, or not empty), and `LaunchError` if the
    system does not let them be made.
    """
    try:
        files = RunFiles(private_run_dir(plan.name))
    except OSError as error:
        raise LaunchError(
            f"no directory can be made for the run's files: {error}. Nothing was started. TMPDIR says where they go"
        ) from error
    try:
        return _lay_out(files, plan, envs, capture=capture)
    except BaseException as error:
        shutil.rmtree(files.root, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, NbprocError):
            raise LaunchError(f"the log directory cannot be made: {error}. Nothing was started") from error
        raise


def _lay_out(
    files: RunFiles, plan: Plan, envs: Mapping[int, Mapping[str, str]], *, capture: bool
) -> tuple[Layout, dict[int, dict[str, str]]]:
    n = plan.nprocs
    result: dict[int, dict[str, str]] = {rank: dict(env) for rank, env in envs.items()}
    if isinstance(plan.logs, FlatLogs):
        given = plan.logs
        dest = flat_dest(
            given.log_dir or files.root,
            given.redirects,
            given.tee,
            n,
            local_ranks_filter=given.local_ranks_filter,
            stdout_filters=plan.stdout_filters,
            stderr_filters=plan.stderr_filters,
            mode=0o777 if given.log_dir else 0o700,
        )
        run_dir = given.log_dir or files.root
        if given.log_dir:
            files.make(n, mode=0o700)
    else:
        dest, result = reify(plan.logs, envs)
        run_dir = files.root
        if error_file := next((path for path in dest.error_files.values() if path not in ("", os.devnull)), ""):
            run_dir = Path(error_file).parent.parent
        files.make(n, mode=0o700)
    paths: dict[tuple[int, Stream], Path | None] = {}
    teed, shown = set(), set()
    for stream, by_rank, tees, own in (
        (Stream.OUT, dest.stdouts, dest.tee_stdouts, files.stdout),
        (Stream.ERR, dest.stderrs, dest.tee_stderrs, files.stderr),
    ):
        for rank in range(n):
            path = by_rank.get(rank, "")
            key = (rank, stream)
            if path not in ("", os.devnull):
                paths[key] = Path(path)
                if rank in tees:
                    teed.add(key)
                    shown.add(key)
            elif capture:
                paths[key] = own(rank)
                if path == "":
                    shown.add(key)
            else:
                paths[key] = None if path == "" else _NOWHERE
    error_files = {}
    for rank in range(n):
        path = dest.error_files.get(rank, "")
        error_files[rank] = Path(path) if path not in ("", os.devnull) else files.error(rank)
        result[rank]["TORCHELASTIC_ERROR_FILE"] = str(error_files[rank])
    layout = Layout(files, dest, paths, frozenset(teed), frozenset(shown), error_files, Path(run_dir))
    return layout, result
