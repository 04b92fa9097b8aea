"""S23: `spawn` calls ``fn(i, *args)``, honours the start method, and tells of the rank that failed."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import pytest

import nbproc
import nbproc.multiprocessing
from nbproc.errors import NbprocError, OptionError

METHODS = ("forkserver", "spawn", "fork")
DOORS: dict[str, Callable[..., Any]] = {
    "nbproc.spawn": nbproc.spawn,
    "nbproc.multiprocessing.spawn": nbproc.multiprocessing.spawn,
    "nbproc.multiprocessing.start_processes": nbproc.multiprocessing.start_processes,
}
door = pytest.mark.parametrize("spawn", DOORS.values(), ids=DOORS)
method = pytest.mark.parametrize("start_method", METHODS)


@method
@door
def test_calls_the_function_with_the_rank_and_the_arguments(spawn: Any, start_method: str, tmp_path: Path) -> None:
    assert spawn(jobs.note, (tmp_path, "a", 1), 2, start_method=start_method) is None
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "a 1", "1": "a 1"}


@method
def test_works_for_a_function_that_no_module_has(start_method: str, tmp_path: Path) -> None:
    words = ["of", "the", "notebook"]

    def write(i: int) -> None:
        (tmp_path / str(i)).write_text(" ".join(words))

    nbproc.spawn(write, nprocs=2, start_method=start_method)
    assert (tmp_path / "1").read_text() == "of the notebook"


@method
@pytest.mark.parametrize("guilty", [0, 1])
def test_a_rank_that_raises_ends_the_others(start_method: str, guilty: int) -> None:
    with pytest.raises(
        nbproc.ProcessRaisedException, match=f"\nValueError: legitimate exception from process {guilty}$"
    ) as caught:
        nbproc.spawn(jobs.raise_in, (guilty,), 2, start_method=start_method)
    message = str(caught.value)
    assert f"-- Process {guilty} terminated with the following error:\nTraceback (most recent call last):" in message
    assert 'jobs.py", line' in message
    assert message.count("Traceback") == 1
    assert caught.value.error_index == guilty
    assert caught.value.error_pid == caught.value.pid > 0


@method
def test_when_all_raise_the_first_is_told(start_method: str) -> None:
    with pytest.raises(nbproc.ProcessRaisedException, match=r"\nValueError: legitimate exception from process (0|1)$"):
        nbproc.spawn(jobs.raise_in_all, nprocs=2, start_method=start_method)


@method
def test_a_missing_argument_is_raised_in_the_rank(start_method: str) -> None:
    with pytest.raises(nbproc.ProcessRaisedException, match=r"missing 1 required positional argument: 'guilty'"):
        nbproc.spawn(jobs.raise_in, nprocs=1, start_method=start_method)


@method
def test_a_rank_that_is_killed_is_told_with_its_signal(start_method: str) -> None:
    with pytest.raises(nbproc.ProcessExitedException, match="process 0 terminated with signal SIGABRT") as caught:
        nbproc.spawn(jobs.abort_first, nprocs=2, start_method=start_method)
    assert (caught.value.error_index, caught.value.exit_code, caught.value.signal_name) == (0, -6, "SIGABRT")


@method
@pytest.mark.parametrize("leave", [jobs.exit_first, jobs.leave_first])
def test_a_rank_that_exits_is_told_with_its_code(start_method: str, leave: Any) -> None:
    with pytest.raises(nbproc.ProcessExitedException, match="process 0 terminated with exit code 123") as caught:
        nbproc.spawn(leave, (123,), 2, start_method=start_method)
    assert (caught.value.error_index, caught.value.exit_code, caught.value.signal_name) == (0, 123, None)


@method
def test_an_exit_with_code_0_is_a_return(start_method: str) -> None:
    nbproc.spawn(jobs.exit_first, (0,), 1, start_method=start_method)


def test_a_text_as_exit_code_is_1_and_the_text(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(nbproc.ProcessExitedException, match="exit code 1"):
        nbproc.spawn(jobs.exit_first, ("no data",), 1)
    assert capfd.readouterr().err == "no data\n"


def test_the_start_method_is_honoured(tmp_path: Path) -> None:
    for start_method in METHODS:
        folder = tmp_path / start_method
        folder.mkdir()

        def parent(i: int, folder: Path = folder) -> None:
            (folder / str(i)).write_text(str(os.getppid()))

        nbproc.spawn(parent, nprocs=1, start_method=start_method)
    here = str(os.getpid())
    parents = {name: (tmp_path / name / "0").read_text() for name in METHODS}
    assert parents["fork"] == parents["spawn"] == here
    assert parents["forkserver"] != here


def test_an_unknown_start_method_is_said_before_anything_starts() -> None:
    with pytest.raises(OptionError, match="forksever"):
        nbproc.spawn(jobs.nothing, start_method="forksever")


@pytest.mark.parametrize(
    ("args", "nprocs", "words"),
    [
        ("abc", 1, r"did you mean \('abc',\)"),
        (5, 1, "tuple of arguments"),
        ((), "2", "whole number"),
        ((), 0, "at least 1"),
    ],
)
def test_wrong_arguments_are_named(args: Any, nprocs: Any, words: str) -> None:
    with pytest.raises(NbprocError, match=words):
        nbproc.spawn(jobs.nothing, args, nprocs)


@door
def test_the_signature_is_torchs(spawn: Any) -> None:
    parameters = list(inspect.signature(spawn).parameters.values())
    assert [parameter.name for parameter in parameters] == ["fn", "args", "nprocs", "join", "daemon", "start_method"]
    assert [parameter.default for parameter in parameters[1:]] == [(), 1, True, False, "forkserver"]


@pytest.mark.parametrize(
    "error",
    [
        nbproc.ProcessRaisedException("oh no", 1, 2),
        nbproc.ProcessExitedException("oh no", 1, 2, 3),
        nbproc.ProcessExitedException("oh no", 1, 2, -6, "SIGABRT"),
    ],
)
def test_the_exceptions_pickle(error: Any) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
