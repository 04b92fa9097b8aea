"""Rows S6 to S12: where the streams of a rank go. In a script; a notebook shows every stream besides."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.elastic.multiprocessing as elastic

import nbproc
import victims
from nbproc import Std, start_processes

METHODS = ("forkserver", "spawn", "fork")


def speak(*words: str) -> None:
    """Write each word to stdout and to stderr, through Python and below it."""
    rank = victims.rank()
    for word in words or ("hello",):
        print(f"{word} out {rank}")
        print(f"{word} err {rank}", file=sys.stderr)
    os.write(1, f"raw out {rank}\n".encode())
    os.write(2, f"raw err {rank}\n".encode())


SPEAK = """
import os, sys
for word in sys.argv[1:] or ("hello",):
    print(f"{word} out", os.environ["RANK"])
    print(f"{word} err", os.environ["RANK"], file=sys.stderr)
"""


def tree(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}


# ---------------------------------------------------------------- S6


def test_s06_masks() -> None:
    assert [Std.NONE, Std.OUT, Std.ERR, Std.ALL] == [0, 1, 2, 3]
    assert Std.OUT | Std.ERR == Std.ALL
    assert [Std.from_str(digit) for digit in "0123"] == [Std.NONE, Std.OUT, Std.ERR, Std.ALL]
    assert Std.from_str("0:3,1:0,12:1") == {0: Std.ALL, 1: Std.NONE, 12: Std.OUT}
    for bad in ("0:1,", "11", "0:1,1", "1,0:1", "", "4", "a"):
        with pytest.raises(ValueError, match="expected a mask"):
            Std.from_str(bad)
    assert nbproc.to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert nbproc.to_map({1: Std.OUT}, 2) == {0: Std.NONE, 1: Std.OUT}


@pytest.mark.parametrize(
    ("mask", "files"),
    [
        (Std.NONE, set()),
        (Std.OUT, {"0/stdout.log", "1/stdout.log"}),
        (Std.ERR, {"0/stderr.log", "1/stderr.log"}),
        (3, {"0/stdout.log", "1/stdout.log", "0/stderr.log", "1/stderr.log"}),
        ({1: Std.OUT}, {"1/stdout.log"}),
        ("0:2,1:1", {"0/stderr.log", "1/stdout.log"}),
        (elastic.Std.OUT, {"0/stdout.log", "1/stdout.log"}),
        ({0: elastic.Std.ALL}, {"0/stdout.log", "0/stderr.log"}),
    ],
    ids=str,
)
def test_s06_a_mask_for_all_or_by_rank(mask: Any, files: set[str], tmp_path: Path) -> None:
    result = start_processes("n", speak, nprocs=2, log_dir=tmp_path, redirects=mask).result()
    assert tree(tmp_path) == files
    for rank in range(2):
        for stream, paths in (("out", result.stdouts), ("err", result.stderrs)):
            path = tmp_path / str(rank) / f"std{stream}.log"
            assert paths[rank] == (str(path) if path.exists() else "")
            if path.exists():
                assert path.read_text() == f"hello {stream} {rank}\nraw {stream} {rank}\n"


# ---------------------------------------------------------------- S7


@pytest.mark.parametrize("method", METHODS)
def test_s07_redirects_and_tee(method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    context = start_processes(
        "trainer",
        speak,
        nprocs=2,
        start_method=method,
        log_dir=tmp_path,
        redirects={0: Std.ERR},
        tee={0: Std.OUT, 1: Std.ERR},
    )
    result = context.result()
    context.close()
    out, err = capfd.readouterr()
    # rank 0's stdout is teed, rank 1's is the caller's own
    teed = {"[trainer0]:hello out 0", "[trainer0]:raw out 0"}
    assert set(out.splitlines()) == teed | {"hello out 1", "raw out 1"}
    # rank 0's stderr is redirected, rank 1's is teed
    assert err.splitlines() == ["[trainer1]:hello err 1", "[trainer1]:raw err 1"]
    assert tree(tmp_path) == {"0/stdout.log", "0/stderr.log", "1/stderr.log"}
    assert Path(result.stdouts[0]).read_text() == "hello out 0\nraw out 0\n"
    assert result.stdouts[1] == ""


def test_s07_the_text_is_on_the_console_when_wait_returns(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        start_processes("n", speak, nprocs=2, tee=Std.ALL).result()
        out, err = capfd.readouterr()
        assert sorted(out.splitlines()) == ["[n0]:hello out 0", "[n0]:raw out 0", "[n1]:hello out 1", "[n1]:raw out 1"]
        assert len(err.splitlines()) == 4


def test_s07_prefixes_of_ones_own(capfd: pytest.CaptureFixture[str]) -> None:
    prefixes = {0: "[default0]:", 1: ""}
    start_processes("n", speak, nprocs=2, tee=Std.OUT, redirects=Std.ERR, log_line_prefixes=prefixes).result()
    out = capfd.readouterr().out
    assert set(out.splitlines()) == {"[default0]:hello out 0", "[default0]:raw out 0", "hello out 1", "raw out 1"}


def test_s07_executables_tee_and_redirect_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = victims.program(tmp_path / "speak", SPEAK)
    context = start_processes(
        "p", program, {0: ("a",), 1: ("b",)}, log_dir=tmp_path / "l", redirects={0: Std.ERR}, tee={0: 1, 1: 2}
    )
    context.result()
    context.close()
    out, err = capfd.readouterr()
    assert set(out.splitlines()) == {"[p0]:a out 0", "b out 1"}
    assert err.splitlines() == ["[p1]:b err 1"]
    assert (tmp_path / "l" / "0" / "stderr.log").read_text() == "a err 0\n"


def test_s07_equal_lines_of_ranks_all_stay_and_keep_their_order(capfd: pytest.CaptureFixture[str]) -> None:
    words = [f"step {n}" for n in range(200)]
    start_processes("n", victims.say, (words,), nprocs=3, tee=Std.OUT).result()
    lines = capfd.readouterr().out.splitlines()
    for rank in range(3):
        assert [line for line in lines if line.startswith(f"[n{rank}]:")] == [f"[n{rank}]:{word}" for word in words]


def test_s07_whatever_is_written_arrives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pieces = [
        b"x" * 10_000_000 + b"\n",
        b"caf\xc3",
        b"\xa9 \xff\xfe\n",
        b"a\0b\n",
        b"<script>alert(1)</script>\n",
        b"no end",
    ]
    result = start_processes("n", victims.write_raw, (pieces,), nprocs=2, tee=Std.OUT, log_dir=tmp_path).result()
    assert Path(result.stdouts[0]).read_bytes() == b"".join(pieces)
    lines = capfd.readouterr().out.split("\n")
    mine = [line for line in lines if line.startswith("[n1]:")]
    assert len(mine) == 5
    assert mine[0].startswith("[n1]:xxx")
    assert mine[1].startswith("[n1]:café ")
    assert mine[3:] == ["[n1]:<script>alert(1)</script>", "[n1]:no end"]


# ---------------------------------------------------------------- S8


def test_s08_the_directory_is_made_and_holds_what_the_page_says(tmp_path: Path) -> None:
    logs = tmp_path / "not" / "there"
    args = {0: ("say", ["hi"]), 1: ("raise_value_error",)}
    context = start_processes(
        "n", victims.either, args, log_dir=str(logs), redirects={0: 1}, tee={1: 2}, duplicate_stderr_filters=["bad"]
    )
    assert context.wait() is not None
    assert tree(logs) == {"0/stdout.log", "1/stderr.log", "1/error.json", "filtered_stderr.log"}


def test_s08_a_file_is_not_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(NotADirectoryError, match="file' is a file"):
        start_processes("n", speak, nprocs=1, log_dir=file)
    assert file.read_text() == "mine"


def test_s08_a_directory_that_is_not_empty_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "stdout.log").write_text("of another run")
    with pytest.raises(RuntimeError, match="is not empty") as raised:
        start_processes("n", speak, nprocs=2, log_dir=tmp_path, redirects=Std.ALL)
    assert str(tmp_path) in str(raised.value)
    assert tree(tmp_path) == {"0/stdout.log"}
    assert (tmp_path / "0" / "stdout.log").read_text() == "of another run"


def test_s08_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((OSError, nbproc.LaunchError), match="file"):
        start_processes("n", speak, nprocs=1, log_dir=tmp_path / "file" / "below")


def test_s08_without_a_directory_the_files_are_private() -> None:
    result = start_processes("n", speak, nprocs=1, redirects=Std.ALL).result()
    path = Path(result.stdouts[0])
    assert path.read_text() == "hello out 0\nraw out 0\n"
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.parent.stat().st_mode & 0o077 == 0


# ---------------------------------------------------------------- S9


def test_s09_filters_collect_lines_of_teed_streams_of_all_teed_ranks(tmp_path: Path) -> None:
    words = ["loss 1", "noise", "acc 2", "loss and acc"]
    result = start_processes(
        "n",
        speak,
        tuple(words),
        nprocs=3,
        log_dir=tmp_path,
        tee={0: Std.ALL, 1: Std.OUT},
        redirects={2: Std.ALL},
        duplicate_stdout_filters=["loss", "acc"],
        duplicate_stderr_filters=["raw"],
    ).result()
    assert not result.is_failed()
    lines = (tmp_path / "filtered_stdout.log").read_text().splitlines()
    kept = ["loss 1", "acc 2", "loss and acc"]
    assert sorted(lines) == sorted(f"[n{rank}]:{word} out {rank}" for rank in (0, 1) for word in kept)
    assert (tmp_path / "filtered_stderr.log").read_text() == "[n0]:raw err 0\n"


# ---------------------------------------------------------------- S10


@pytest.mark.parametrize("chosen", [{1}, [1], "1"], ids=str)
def test_s10_only_these_ranks_reach_the_console(chosen: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    context = start_processes("n", speak, nprocs=2, log_dir=tmp_path, tee=Std.OUT, local_ranks_filter=chosen)
    result = context.result()
    context.close()
    out, err = capfd.readouterr()
    assert out.splitlines() == ["[n1]:hello out 1", "[n1]:raw out 1"]
    assert err.splitlines() == ["hello err 1", "raw err 1"]
    assert Path(result.stdouts[0]).read_text() == "hello out 0\nraw out 0\n"
    assert result.stderrs == {0: "", 1: ""}


# ---------------------------------------------------------------- S11


@pytest.mark.parametrize("method", METHODS)
def test_s11_a_failing_function_always_leaves_error_json(method: str, tmp_path: Path) -> None:
    context = start_processes("n", victims.raise_value_error, nprocs=1, start_method=method, log_dir=tmp_path)
    result = context.wait()
    assert result is not None
    failure = result.failures[0]
    assert failure.error_file == str(tmp_path / "0" / "error.json")
    data = json.loads(Path(failure.error_file).read_text())
    assert data["message"]["message"] == "ValueError: bad batch 17"
    assert set(data["message"]["extraInfo"]) == {"py_callstack", "timestamp"}
    assert int(data["message"]["extraInfo"]["timestamp"]) == failure.timestamp
    assert "raise_value_error" in data["message"]["extraInfo"]["py_callstack"]


@pytest.mark.parametrize(
    "record", ["", "from nbproc import record", "from torch.distributed.elastic.multiprocessing.errors import record"]
)
def test_s11_an_executable_leaves_it_under_record_only(record: str, tmp_path: Path) -> None:
    text = f"{record}\n{'@record' if record else ''}\ndef main():\n    raise ValueError('bad batch 17')\nmain()\n"
    program = victims.program(tmp_path / "main", text)
    context = start_processes("n", program, nprocs=1, log_dir=tmp_path / "logs", redirects=Std.ERR)
    result = context.wait()
    assert result is not None
    failure = result.failures[0]
    assert failure.exitcode == 1
    if record:
        assert failure.error_file == str(tmp_path / "logs" / "0" / "error.json")
        assert failure.error_file_data["message"]["message"] == "ValueError: bad batch 17"
    else:
        assert failure.error_file == "<N/A>"
        assert failure.error_file_data["message"] == "<NONE>"
        assert failure.words == "exited with code 1: ValueError: bad batch 17"


@pytest.mark.parametrize("executable", [False, True])
def test_s11_the_path_is_in_the_environment_and_the_callers_is_not(
    executable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/caller/error.json")
    envs: dict[int, dict[str, str]] = {0: {}, 1: {}}
    entry: Any = (
        victims.program(tmp_path / "p", "import os\nprint(os.environ['TORCHELASTIC_ERROR_FILE'])")
        if executable
        else victims.print_environ
    )
    args = () if executable else ("TORCHELASTIC_ERROR_FILE",)
    result = start_processes("n", entry, args, envs, log_dir=tmp_path / "l", redirects=Std.OUT).result()
    for rank in range(2):
        assert Path(result.stdouts[rank]).read_text().strip() == str(tmp_path / "l" / str(rank) / "error.json")
    assert envs == {0: {}, 1: {}}


# ---------------------------------------------------------------- S12


def specs_of(kind: str, **given: Any) -> Any:
    return nbproc.DefaultLogsSpecs(**given) if kind == "ours" else elastic.DefaultLogsSpecs(**given)


@pytest.mark.parametrize(
    ("kind", "std"), [("ours", Std), ("ours", elastic.Std), ("torch's", elastic.Std)], ids=["ours", "mixed", "torch's"]
)
def test_s12_default_logs_specs(kind: str, std: Any, tmp_path: Path) -> None:
    specs = specs_of(kind, log_dir=str(tmp_path / "logs"), redirects=std.ALL, tee={0: std.OUT})
    envs = {rank: {"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": 2} for rank in range(2)}
    context = start_processes("n", victims.rank_1, ("raise_value_error",), envs, specs)
    result = context.wait()
    assert result is not None
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name == "abc" if kind == "ours" else run.name.startswith("abc_")
    root = run / "attempt_2"
    assert result.stdouts == {rank: str(root / str(rank) / "stdout.log") for rank in range(2)}
    assert result.failures[1].error_file == str(root / "1" / "error.json")
    assert context.run_dir == root
    assert envs[0] == {"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": 2}


@pytest.mark.parametrize("kind", ["ours", "torch's"])
def test_s12_without_a_run_id_each_context_has_its_own(kind: str, tmp_path: Path) -> None:
    specs = specs_of(kind, log_dir=str(tmp_path), redirects=Std.ALL if kind == "ours" else elastic.Std.ALL)
    for _ in range(2):
        start_processes("n", speak, nprocs=1, logs_specs=specs).result()
    texts = [path.read_text() for path in tmp_path.rglob("stdout.log")]
    if kind == "ours":
        assert texts == ["hello out 0\nraw out 0\n"] * 2
    else:  # torch's object keeps one directory, and empties an attempt that exists
        assert texts == ["hello out 0\nraw out 0\n"]


def test_s12_an_attempt_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    specs = nbproc.DefaultLogsSpecs(str(tmp_path), Std.ALL)
    for _ in range(2):
        start_processes("n", speak, nprocs=1, envs={0: {"TORCHELASTIC_RUN_ID": "abc"}}, logs_specs=specs).result()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["abc", "abc_2"]


@pytest.mark.parametrize("kind", ["ours", "torch's"])
def test_s12_no_directory_and_dev_null(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    std = Std if kind == "ours" else elastic.Std
    specs = specs_of(kind, redirects=std.OUT)
    result = start_processes("n", speak, nprocs=1, logs_specs=specs).result()
    assert Path(result.stdouts[0]).read_text() == "hello out 0\nraw out 0\n"
    if kind == "torch's":
        import shutil

        shutil.rmtree(specs.root_log_dir)
    capfd.readouterr()
    nowhere = specs_of(kind, log_dir=os.devnull, redirects=std.ALL)
    context = start_processes("n", speak, nprocs=1, logs_specs=nowhere)
    result = context.result()
    context.close()
    assert result.stdouts == {0: ""}
    assert "hello out 0" in capfd.readouterr().out
    failed = start_processes("n", victims.raise_value_error, nprocs=1, logs_specs=nowhere).wait()
    assert failed is not None
    assert failed.failures[0].words == "ValueError: bad batch 17"


@pytest.mark.parametrize(
    ("base", "dest"),
    [(nbproc.LogsSpecs, nbproc.LogsDest), (elastic.LogsSpecs, elastic.LogsDest)],
    ids=["ours", "torch's"],
)
def test_s12_a_subclass_of_ones_own(base: Any, dest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match="abstract"):
        base()

    class Flat(base):  # type: ignore[misc]
        """All files in one directory."""

        root_log_dir = str(tmp_path)

        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            for rank, env in envs.items():
                env["FROM_SPECS"] = str(rank)
            return dest(
                stdouts={rank: str(tmp_path / f"out{rank}") for rank in envs},
                stderrs=dict.fromkeys(envs, ""),
                tee_stdouts={1: str(tmp_path / "out1")},
                error_files={rank: str(tmp_path / f"error{rank}.json") for rank in envs},
                filtered_stdout=str(tmp_path / "filtered"),
            )

    envs: dict[int, dict[str, str]] = {0: {}, 1: {}}
    args = {0: ("print_environ", "FROM_SPECS"), 1: ("print_environ", "FROM_SPECS")}
    context = start_processes("n", victims.either, args, envs, Flat(), duplicate_stdout_filters=["1"])
    result = context.result()
    assert result.stdouts == {0: str(tmp_path / "out0"), 1: str(tmp_path / "out1")}
    assert [Path(path).read_text() for path in result.stdouts.values()] == ["0\n", "1\n"]
    context.close()
    assert (tmp_path / "filtered").read_text() == "[n1]:1\n"
    assert capfd.readouterr().out == "[n1]:1\n"
    assert envs == {0: {}, 1: {}}
    failed = start_processes("n", victims.raise_value_error, nprocs=1, logs_specs=Flat()).wait()
    assert failed is not None
    assert failed.failures[0].error_file == str(tmp_path / "error0.json")
