"""Rows S1 to S5: what `start_processes` takes, what it refuses, and that nothing starts then."""

from __future__ import annotations

import inspect
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.elastic.multiprocessing as elastic

import nbproc
import victims
from nbproc import Std, start_processes
from nbproc.errors import ArgumentError, OptionError, PlanError


def double(value: Any) -> Any:
    return value * 2


def environ(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def touch(path: str) -> None:
    Path(path).touch()


ARGV = "import json, sys\nprint(json.dumps(sys.argv[1:]), flush=True)\n"


def argvs(context: nbproc.PContext) -> list[list[str]]:
    """Wait for programs that print their arguments as JSON, and return these."""
    stdouts = context.result().stdouts
    return [json.loads(Path(path).read_text()) for path in stdouts.values()]


# ---------------------------------------------------------------- S1


def test_s01_a_function_gives_a_multiprocess_context_with_one_process_per_key() -> None:
    context = start_processes("double", double, {0: (1,), 1: ("a",), 2: ([],)}, {0: {}, 1: {}, 2: {}})
    assert isinstance(context, nbproc.MultiprocessContext)
    assert isinstance(context, nbproc.PContext)
    assert len(set(context.pids().values())) == context.nprocs == 3
    assert context.result().return_values == {0: 2, 1: "aa", 2: []}


def test_s01_a_string_gives_a_subprocess_context() -> None:
    context = start_processes("true", "true", {0: (), 1: ()}, {0: {}, 1: {}})
    assert isinstance(context, nbproc.SubprocessContext)
    assert isinstance(context, nbproc.PContext)
    assert len(set(context.pids().values())) == 2
    assert context.result().return_values == {0: None, 1: None}


def test_s01_names_and_order_of_the_arguments_are_torchs() -> None:
    ours = list(inspect.signature(start_processes).parameters.values())
    theirs = list(inspect.signature(elastic.start_processes).parameters.values())
    assert [p.name for p in ours[: len(theirs)]] == [p.name for p in theirs]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in ours[: len(theirs)])
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(theirs) :])
    for name in ("PContext", "MultiprocessContext", "SubprocessContext", "RunProcsResult", "DefaultLogsSpecs"):
        theirs = list(inspect.signature(getattr(elastic, name)).parameters)
        assert list(inspect.signature(getattr(nbproc, name)).parameters) == theirs


def test_s01_every_name_of_torchs_module_is_there() -> None:
    assert [name for name in elastic.__all__ if not hasattr(nbproc, name)] == []


def test_s01_all_arguments_by_position(tmp_path: Path) -> None:
    specs = nbproc.DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)
    envs = {0: {"COLOUR": "red"}}
    context = start_processes("n", environ, {0: ("COLOUR",)}, envs, specs, {0: "> "}, "fork", None, ["x"], ["y"])
    assert context.result().return_values == {0: {"COLOUR": "red"}}


def test_s01_no_rank_at_all_is_a_run_that_has_succeeded() -> None:
    context = start_processes("none", double, {}, {})
    assert context.result() == nbproc.RunProcsResult()
    assert context.pids() == {}


# ---------------------------------------------------------------- S2


def test_s02_flat_arguments_in_place_of_logs_specs(tmp_path: Path) -> None:
    context = start_processes(
        "n",
        double,
        {0: (1,), 1: (2,)},
        log_dir=tmp_path / "a",
        redirects={1: Std.OUT},
        tee="0:2",
        local_ranks_filter={1},
    )
    result = context.result()
    assert result.stdouts == {0: "", 1: str(tmp_path / "a" / "1" / "stdout.log")}
    assert result.stderrs == {0: str(tmp_path / "a" / "0" / "stderr.log"), 1: ""}
    assert context.run_dir == tmp_path / "a"


@pytest.mark.parametrize(
    "flat", [{"log_dir": "x"}, {"redirects": Std.OUT}, {"tee": Std.ALL}, {"local_ranks_filter": [0]}]
)
def test_s02_both_is_a_type_error_that_says_so(flat: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=f"either logs_specs or {next(iter(flat))}, not both"):
        start_processes("n", double, {0: (1,)}, logs_specs=nbproc.DefaultLogsSpecs(str(tmp_path)), **flat)


# ---------------------------------------------------------------- S3


@pytest.mark.parametrize(
    ("args", "envs", "words"),
    [
        ({0: (1,), 1: (1,)}, {0: {}}, "envs .* rank 1 missing"),
        ({0: (1,)}, {0: {}, 1: {}}, "envs .* rank 1 not expected"),
        ({0: (1,), 2: (1,), 5: (1,)}, None, "args .* rank 1 missing; rank 5 not expected"),
        ({1: (1,), 2: (1,)}, None, "args .* rank 0 missing; rank 2 not expected"),
        ({"0": (1,)}, None, "args .* rank 0 missing; rank '0' not expected"),
        ({0: (1,)}, {}, "envs .* rank 0 missing"),
    ],
)
def test_s03_keys_must_be_the_ranks(args: Any, envs: Any, words: str, tmp_path: Path) -> None:
    marker = tmp_path / "started"
    args = {rank: (str(marker),) for rank in args}
    with pytest.raises(RuntimeError, match=words) as raised:
        start_processes("n", touch, args, envs)
    assert isinstance(raised.value, PlanError)
    assert "Nothing was started" in str(raised.value)
    assert not marker.exists()


def test_s03_envs_may_be_left_out_and_args_be_one_tuple() -> None:
    assert start_processes("n", double, ("a",), nprocs=3).result().return_values == {0: "aa", 1: "aa", 2: "aa"}
    assert start_processes("n", victims.rank, nprocs=2).result().return_values == {0: 0, 1: 1}
    assert start_processes("n", double, (1,), {0: {}, 1: {}}).result().return_values == {0: 2, 1: 2}


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"args": (1,)}, PlanError, "number of ranks is not known"),
        ({"args": (1,), "nprocs": 0}, PlanError, "at least 1, not 0"),
        ({"args": (1,), "nprocs": 1.5}, ArgumentError, "whole number"),
        ({"args": {0: (1,)}, "nprocs": 2}, PlanError, "rank 1 missing"),
        ({"args": {0: 5}}, ArgumentError, r"did you mean \(5,\)"),
        ({"args": {0: (1,)}, "envs": {0: [1]}}, ArgumentError, "envs of rank 0 must be a mapping"),
        ({"args": {0: (1,)}, "envs": {0: {"A=B": 1}}}, ArgumentError, "'A=B' cannot be the name"),
        ({"args": {0: (1,)}, "start_method": "thread"}, OptionError, "'thread' is not one of forkserver, spawn, fork"),
        ({"args": {0: (1,)}, "redirects": "9"}, OptionError, "redirects must be"),
        ({"args": {0: (1,)}, "log_line_prefixes": {3: "x"}}, PlanError, "names rank 3"),
        ({"args": {0: (1,)}, "duplicate_stdout_filters": [1]}, ArgumentError, "must be strings"),
        ({"args": {0: (1,)}, "numa_options": "node"}, ArgumentError, "must be torch.numa.binding.NumaOptions"),
        ({"args": {0: (1,)}, "logs_specs": "logs"}, ArgumentError, "expected a LogsSpecs"),
    ],
    ids=str,
)
def test_s03_wrong_arguments_are_named_before_anything_starts(kwargs: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        start_processes("n", double, **kwargs)


def test_s03_an_entrypoint_must_be_callable_or_a_path() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="a function or the path of an executable"):
        start_processes("n", 5, {0: ()})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"async function.*asyncio\.run"):
        start_processes("n", later, {0: ()})


# ---------------------------------------------------------------- S4


def test_s04_arguments_arrive_as_they_are_without_a_shell(tmp_path: Path) -> None:
    program = victims.program(tmp_path / "a program", ARGV)
    odd = (
        "two words",
        "'single' \"double\"",
        "$HOME `ls` ; | & > < *",
        "back\\slash",
        "ünïcödé 日本 🙂",
        "",
        "line\nbreak",
        "-n",
    )
    context = start_processes("args", program, {0: odd, 1: ()}, redirects=Std.OUT)
    assert argvs(context) == [list(odd), []]


def test_s04_each_argument_goes_through_str(tmp_path: Path) -> None:
    program = victims.program(tmp_path / "program", ARGV)
    args = {0: (1, 2, 3), 1: ([1, 2, 3],), 2: "word", 3: (None, 1.5, Path("/x"))}
    context = start_processes("args", program, args, redirects=Std.OUT)
    assert argvs(context) == [["1", "2", "3"], ["[1, 2, 3]"], ["word"], ["None", "1.5", "/x"]]


@pytest.mark.parametrize("kind", ["missing", "missing by path", "directory", "not executable"])
def test_s04_an_executable_that_is_none_is_named(kind: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("text")
    program, words = {
        "missing": ("no-such-program-here", "no-such-program-here.* on the PATH"),
        "missing by path": (str(tmp_path / "nothing"), "there is no executable .*nothing"),
        "directory": (str(tmp_path), "is a directory"),
        "not executable": (str(plain), "plain.txt' is not executable"),
    }[kind]
    with pytest.raises(FileNotFoundError, match=words) as raised:
        start_processes("n", program, {0: ("foo",), 1: ("bar",)}, log_dir=tmp_path / "logs")
    assert isinstance(raised.value, nbproc.LaunchError)
    assert "Nothing was started" in str(raised.value)


def test_s04_a_program_is_looked_up_in_the_ranks_own_path(tmp_path: Path) -> None:
    victims.program(tmp_path / "only-there", ARGV)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    context = start_processes("n", "only-there", {0: ("x",)}, {0: {"PATH": path}}, redirects=Std.OUT)
    assert argvs(context) == [["x"]]


def test_s04_a_relative_path_is_looked_up_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victims.program(tmp_path / "here", ARGV)
    monkeypatch.chdir(tmp_path)
    assert argvs(start_processes("n", "./here", {0: ("x",)}, redirects=Std.OUT)) == [["x"]]


# ---------------------------------------------------------------- S5


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_s05_values_become_strings_and_dicts_stay_as_they_are(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "caller's")
    args = {0: ("LOCAL_RANK", "EPOCHS", "KEPT"), 1: ("LOCAL_RANK", "EPOCHS", "KEPT")}
    envs: dict[int, dict[str, Any]] = {0: {"LOCAL_RANK": 0, "EPOCHS": 1.5}, 1: {"LOCAL_RANK": 1, "KEPT": None}}
    before = (dict(args), {rank: dict(env) for rank, env in envs.items()}, dict(os.environ))
    context = start_processes("n", environ, args, envs, start_method=method)
    assert context.result().return_values == {
        0: {"LOCAL_RANK": "0", "EPOCHS": "1.5", "KEPT": "caller's"},
        1: {"LOCAL_RANK": "1", "EPOCHS": None, "KEPT": "None"},
    }
    assert (args, envs, dict(os.environ)) == before
    assert [type(env["LOCAL_RANK"]) for env in envs.values()] == [int, int]


def test_s05_executables_get_the_same(tmp_path: Path) -> None:
    program = victims.program(tmp_path / "p", "import os, sys\nprint(os.environ['LOCAL_RANK'], os.environ['N'])\n")
    envs: dict[int, dict[str, Any]] = {0: {"LOCAL_RANK": 0, "N": [1]}}
    result = start_processes("n", program, {0: ()}, envs, redirects=Std.OUT).result()
    assert Path(result.stdouts[0]).read_text() == "0 [1]\n"
    assert envs == {0: {"LOCAL_RANK": 0, "N": [1]}}


def test_s05_a_run_leaves_the_callers_process_as_it_was() -> None:
    import multiprocessing
    import random
    import signal

    def state() -> tuple[Any, ...]:
        umask = os.umask(0)
        os.umask(umask)
        handlers = tuple(signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
        start = multiprocessing.get_start_method(allow_none=True)
        return handlers, umask, start, random.getstate(), os.getcwd(), dict(os.environ), time.tzname

    start_processes("n", double, {0: (1,)}).result()
    before = state()
    start_processes("n", double, {0: (1,)}).result()
    assert state() == before
