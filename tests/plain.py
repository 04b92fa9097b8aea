"""Plain scripts, run as a user runs them: a file, a fresh interpreter, no notebook."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]


def write(folder: Path, source: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:  # only read
    """Return the environment of a script: no ranks ahead of time, so that what is counted is the script's own."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": paths, "NBPROC_STANDBY": "0", **more}


def run(
    folder: Path,
    source: str,
    *options: str,
    env: Mapping[str, str] = {},
    limits: str = "",
    args: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, with options of the interpreter, and with ``ulimit`` first if limits are given."""
    command = [sys.executable, *options, str(write(folder, source)), *args]
    if limits:
        command = ["bash", "-c", f'ulimit {limits} && exec "$0" "$@"', *command]
    return subprocess.run(
        command, cwd=folder, env=environment(env), capture_output=True, text=True, timeout=120, check=False
    )


def lines(folder: Path, source: str, *options: str, env: Mapping[str, str] = {}, limits: str = "") -> list[str]:
    """Run a script that is to succeed in silence on stderr. Returns the lines that it printed."""
    done = run(folder, source, *options, env=env, limits=limits)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@contextlib.contextmanager
def started(folder: Path, source: str, env: Mapping[str, str] = {}) -> Iterator[subprocess.Popen[str]]:
    """Start a script whose standard output is read by the test; it is killed at the end."""
    command = [sys.executable, str(write(folder, source))]
    with subprocess.Popen(
        command, cwd=folder, env=environment(env), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)


def descendants(pid: int) -> list[psutil.Process]:
    """Return a process's children and theirs."""
    return psutil.Process(pid).children(recursive=True)
