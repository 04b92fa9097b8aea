"""SubprocessContext: ranks that are executables."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbproc import surroundings
from nbproc.contexts import numa
from nbproc.contexts.base import PContext
from nbproc.contexts.crew import Crew
from nbproc.contexts.layout import Layout
from nbproc.contexts.reader import Reader
from nbproc.errors import ArgumentError, ExecutableError
from nbproc.failures import ProcessFailure, failure_of
from nbproc.logs.lines import Stream
from nbproc.logs.specs import open_log
from nbproc.plan import Plan, make_plan
from nbproc.ranks import process
from nbproc.ranks.process import RankProcess
from nbproc.states import RankState


class SubprocessContext(PContext):
    """A run whose ranks are executables, started without a shell. Return values are None."""

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: object,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(entrypoint, str):
            raise ArgumentError(f"a SubprocessContext needs the path of an executable, not {entrypoint!r}")
        self._adopt(
            make_plan(
                name,
                entrypoint,
                args,
                envs,
                logs=logs_specs,
                log_line_prefixes=log_line_prefixes,
                duplicate_stdout_filters=duplicate_stdout_filters,
                duplicate_stderr_filters=duplicate_stderr_filters,
                numa=numa_options,
            )
        )

    def _crew(self, layout: Layout, envs: Mapping[int, Mapping[str, str]], reader: Reader) -> Crew:
        return Executables(self.plan, layout, envs, reader)

    def _values(self) -> dict[int, Any]:
        ranks = self.snapshot().ranks
        return {rank.rank: None for rank in ranks if rank.state is RankState.SUCCEEDED}


class Executables(Crew):
    """Ranks that are executables; one runs as soon as it was started, and its exit code is its result."""

    answers = False

    def __init__(self, plan: Plan, layout: Layout, envs: Mapping[int, Mapping[str, str]], reader: Reader) -> None:
        self._plan = plan
        self._layout = layout
        self._envs = envs
        self._reader = reader
        self._stdin = subprocess.DEVNULL if surroundings.current().captures else None
        self._programs = {rank: _find(str(plan.entrypoint), env) for rank, env in envs.items()}

    def start(self, rank: int) -> RankProcess:
        """Ask for the process of a rank."""
        words = [self._programs[rank], *map(str, self._plan.ranks[rank].args)]
        command = numa.command(rank, self._plan.numa, words)
        streams: dict[Stream, int | None] = {}
        try:
            for stream in (Stream.OUT, Stream.ERR):
                path = self._layout.paths[rank, stream]
                streams[stream] = None if path is None else open_log(path, private=True)
            return process.executed(
                command, self._envs[rank], None, self._stdin, streams[Stream.OUT], streams[Stream.ERR]
            )
        except PermissionError as error:
            raise ExecutableError(f"{command[0]!r} cannot be executed: {error.strerror}") from error
        except FileNotFoundError as error:
            raise ExecutableError(f"{command[0]!r} cannot be executed: {error}") from error
        finally:
            for fd in streams.values():
                if fd is not None:
                    os.close(fd)

    def hand_over(self, rank: int, process: RankProcess) -> None:
        """Do nothing: it has its job from the start."""

    def result(self, rank: int, process: RankProcess) -> Callable[[], Any]:
        """Receive what a rank returned."""
        return lambda: None

    def failure(self, rank: int, pid: int | None, exitcode: int | None, **more: Any) -> ProcessFailure:
        """Say why a rank ended badly."""
        stderr = self._layout.log_file(rank, Stream.ERR)
        error_file = self._layout.error_files[rank]
        return failure_of(rank, pid, exitcode, error_file, stderr, is_function=False, **more)

    def where(self, rank: int, told: bool) -> str:
        """Say where a rank was when it was stopped."""
        return ""

    def catch_up(self) -> None:
        """Return when what was written so far was read."""
        self._reader.catch_up()

    def close(self) -> None:
        """Let go of everything that the run held."""
        self._reader.finish()


def _find(program: str, env: Mapping[str, str]) -> str:
    """Return the path of a program, looked up in the rank's PATH. Raises `ExecutableError` if there is none."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is not None:
        return program if os.path.dirname(program) else found
    if os.path.isdir(program):
        raise ExecutableError(f"{program!r} is a directory, not an executable. Nothing was started.")
    if os.path.dirname(program) and os.path.exists(program):
        raise ExecutableError(f"{program!r} is not executable (chmod +x makes it so). Nothing was started.")
    where = "" if os.path.dirname(program) else " on the PATH"
    first, *arguments = program.split()
    if arguments and shutil.which(first, path=env.get("PATH", os.defpath)):
        where += f"; the program is {first!r}, what follows it belongs in args"
    raise ExecutableError(f"there is no executable {program!r}{where}. Nothing was started.")
