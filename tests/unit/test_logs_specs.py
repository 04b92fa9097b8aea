"""S8, S10, S12: where the files of a run go; torch's objects are asked what is right."""

from __future__ import annotations

import itertools
import logging
import os
import random
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from nbproc.errors import NbprocError
from nbproc.logs import private
from nbproc.logs.specs import (
    DefaultLogsSpecs,
    LogsDest,
    LogsSpecs,
    RunFiles,
    flat_dest,
    open_log,
    private_run_dir,
    reify,
    release_run_dir,
)
from nbproc.logs.std import Std

FIELDS = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")


def envs(n: int, **more: str) -> dict[int, dict[str, str]]:
    return {rank: {"RANK": str(rank), **more} for rank in range(n)}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the temporary directory of this process be ``tmp_path/tmp``."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setattr(private, "_ended", type(private._ended)())
    return directory


# ------------------------------------------------------------------------------------------------ log_dir=


def test_a_flat_log_dir_is_made_and_laid_out(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    dest = flat_dest(root, {0: Std.OUT}, {1: Std.ERR}, 2)
    assert dest == LogsDest(
        stdouts={0: f"{root}/0/stdout.log", 1: ""},
        stderrs={0: "", 1: f"{root}/1/stderr.log"},
        tee_stdouts={},
        tee_stderrs={1: f"{root}/1/stderr.log"},
        error_files={0: f"{root}/0/error.json", 1: f"{root}/1/error.json"},
    )
    assert sorted(path.name for path in root.iterdir()) == ["0", "1"]


def test_filtered_files_are_named_where_filters_are_given(tmp_path: Path) -> None:
    dest = flat_dest(tmp_path, Std.ALL, Std.NONE, 1, stdout_filters=["loss"])
    assert (dest.filtered_stdout, dest.filtered_stderr) == (f"{tmp_path}/filtered_stdout.log", "")


def test_a_relative_log_dir_stays_where_it_is_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flat_dest("logs", Std.OUT, Std.NONE, 1).stdouts == {0: f"{tmp_path}/logs/0/stdout.log"}


@pytest.mark.parametrize("make", [lambda path: flat_dest(path, Std.ALL, Std.NONE, 1), DefaultLogsSpecs])
def test_a_file_in_the_place_of_the_directory(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(NotADirectoryError, match=str(path)) as caught:
        make(str(path))
    assert isinstance(caught.value, NbprocError)
    assert path.read_text() == "precious"


def test_a_directory_that_holds_something_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("1,2")
    (tmp_path / "0").mkdir()
    with pytest.raises(RuntimeError, match=f"{tmp_path}.*not empty.*results.csv") as caught:
        flat_dest(tmp_path, Std.ALL, Std.ALL, 4)
    assert isinstance(caught.value, NbprocError)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0", "results.csv"]


# ------------------------------------------------------------------------------------------------ DefaultLogsSpecs


def test_attempts_lie_under_the_run_id(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path / "new"), Std.ALL)
    assert specs.root_log_dir == str(tmp_path / "new")
    given = envs(2, TORCHELASTIC_RUN_ID="exp", TORCHELASTIC_RESTART_COUNT="3")
    before = {rank: dict(env) for rank, env in given.items()}
    dest = specs.reify(given)
    attempt = tmp_path / "new" / "exp" / "attempt_3"
    assert dest.stdouts == {rank: str(attempt / str(rank) / "stdout.log") for rank in range(2)}
    assert dest.error_files[1] == str(attempt / "1" / "error.json")
    assert dest.filtered_stderr == str(attempt / "filtered_stderr.log")
    assert (attempt / "1").is_dir()
    assert given == before, "the caller's environments are not touched"


def test_without_a_run_id_each_run_gets_its_own(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), Std.OUT)
    paths = {specs.reify(envs(1)).stdouts[0] for _ in range(3)}
    assert len(paths) == 3
    assert all(Path(path).parents[1].name == "attempt_0" for path in paths)


def test_an_attempt_is_never_overwritten(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), Std.OUT)
    given = envs(1, TORCHELASTIC_RUN_ID="exp")
    first, second, third = (Path(specs.reify(given).stdouts[0]) for _ in range(3))
    first.write_text("first")
    assert [path.parents[2].name for path in (first, second, third)] == ["exp", "exp_2", "exp_3"]
    later = Path(specs.reify(envs(1, TORCHELASTIC_RUN_ID="exp", TORCHELASTIC_RESTART_COUNT="1")).stdouts[0])
    assert later.parents[1] == tmp_path / "exp" / "attempt_1"
    assert first.read_text() == "first"


@pytest.mark.parametrize("run_id", ["../../evil", "..", "a/b", "."])
def test_a_run_id_stays_inside_the_log_dir(tmp_path: Path, run_id: str) -> None:
    dest = DefaultLogsSpecs(str(tmp_path / "logs"), Std.OUT).reify(envs(1, TORCHELASTIC_RUN_ID=run_id))
    assert Path(dest.stdouts[0]).resolve().parents[3] == tmp_path / "logs"


def test_no_log_dir_is_a_temporary_one(temporary: Path) -> None:
    specs = DefaultLogsSpecs()
    root = Path(specs.root_log_dir)
    assert root.is_dir()
    assert temporary in root.parents
    assert root == Path(specs.root_log_dir)
    assert Path(specs.reify(envs(1)).error_files[0]).is_relative_to(root)


def test_equality_and_repr() -> None:
    one, same = DefaultLogsSpecs("/dev/null", Std.OUT), DefaultLogsSpecs("/dev/null", Std.OUT)
    assert one == same
    assert one != DefaultLogsSpecs("/dev/null", Std.ERR)
    assert (
        repr(one)
        == f"DefaultLogsSpecs(root_log_dir=/dev/null, redirects={Std.OUT}, tee={Std.NONE}, local_ranks_filter=None)"
    )


def test_specs_are_abstract() -> None:
    with pytest.raises(TypeError):
        LogsSpecs()  # type: ignore[abstract]


# ------------------------------------------------------------------------------------------------ as torch does it


@pytest.fixture(scope="module")
def torch_api() -> Any:
    return pytest.importorskip("torch.distributed.elastic.multiprocessing.api")


def relative(dest: Any, root: str) -> list[dict[int, str]]:
    return [
        {rank: path.replace(root, "ROOT") for rank, path in getattr(dest, field).items()}
        for field in FIELDS
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_every_file_is_where_torch_puts_it(tmp_path: Path, torch_api: Any, seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(1, 4)

    def masks(kind: Any) -> Any:
        return kind(value) if isinstance(value, int) else {rank: kind(mask) for rank, mask in value.items()}

    choices: list[Any] = []
    for _ in range(2):
        value: Any = rng.choice(
            [rng.randint(0, 3), {rank: rng.randint(0, 3) for rank in range(n) if rng.random() < 0.7}]
        )
        choices.append(value)
    only = rng.choice([None, set(), {0}, {1, 2}])

    def specs(module_specs: Any, std: Any, root: Path) -> Any:
        made = [std(v) if isinstance(v, int) else {r: std(m) for r, m in v.items()} for v in choices]
        return module_specs(str(root), made[0], made[1], only)

    theirs = specs(torch_api.DefaultLogsSpecs, torch_api.Std, tmp_path / "theirs").reify(envs(n))
    ours = specs(DefaultLogsSpecs, Std, tmp_path / "ours").reify(envs(n))
    mixed = specs(DefaultLogsSpecs, torch_api.Std, tmp_path / "mixed").reify(envs(n))

    def attempt(dest: Any) -> str:
        return str(Path(dest.error_files[0]).parents[1])

    assert relative(ours, attempt(ours)) == relative(theirs, attempt(theirs))
    assert relative(mixed, attempt(mixed)) == relative(theirs, attempt(theirs))


def test_dev_null_as_torch_has_it(torch_api: Any) -> None:
    theirs = torch_api.DefaultLogsSpecs("/dev/null", torch_api.Std.ALL, torch_api.Std.OUT).reify(envs(2))
    ours = DefaultLogsSpecs("/dev/null", Std.ALL, Std.OUT).reify(envs(2))
    assert relative(ours, "-") == relative(theirs, "-")
    assert ours.filtered_stdout == ""
    accepted, _ = reify(torch_api.DefaultLogsSpecs("/dev/null", torch_api.Std.ALL), envs(2))
    assert accepted.filtered_stdout == ""


def test_torchs_specs_are_accepted_and_cannot_change_the_callers_environments(tmp_path: Path, torch_api: Any) -> None:
    specs = torch_api.DefaultLogsSpecs(str(tmp_path), torch_api.Std.OUT, torch_api.Std.ERR)
    given = envs(2)
    dest, changed = reify(specs, given)
    assert type(dest) is LogsDest
    assert dest.tee_stderrs == dest.stderrs
    assert changed[1]["TORCHELASTIC_ERROR_FILE"] == dest.error_files[1]
    assert given == envs(2)


def test_a_users_own_specs(tmp_path: Path) -> None:
    class Mine(LogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            envs[0]["MINE"] = "1"
            return LogsDest(stdouts={0: tmp_path / "deep" / "out"}, error_files={1: "e"})  # type: ignore[dict-item]

        @property
        def root_log_dir(self) -> str:
            return str(tmp_path)

    dest, changed = reify(Mine(), envs(2))
    assert dest.stdouts == {0: str(tmp_path / "deep" / "out"), 1: ""}
    assert dest.stderrs == {0: "", 1: ""}
    assert dest.error_files == {0: "", 1: "e"}
    assert changed[0]["MINE"] == "1"
    assert (tmp_path / "deep").is_dir()


@pytest.mark.parametrize("specs", [None, "logs", Std.ALL, DefaultLogsSpecs])
def test_what_is_no_specs_is_refused(specs: object) -> None:
    with pytest.raises(TypeError, match="logs_specs"):
        reify(specs, envs(1))


def test_specs_that_return_no_dest_are_refused() -> None:
    class Broken:
        def reify(self, envs: object) -> None:
            return None

    with pytest.raises(TypeError, match="Broken"):
        reify(Broken(), envs(1))


# ------------------------------------------------------------------------------------------------ private directories


def test_files_and_directories_are_the_owners_alone(temporary: Path) -> None:
    old = os.umask(0)
    try:
        root = private_run_dir("my run/1: é")
        files = RunFiles(root)
        files.make(2, mode=0o700)
        os.close(open_log(files.stdout(1), private=True))
        os.close(open_log(files.stdout(0), private=False))
    finally:
        os.umask(old)
    assert [mode(path) for path in (root.parent, root, files.rank(1))] == [0o700, 0o700, 0o700]
    assert [mode(files.stdout(rank)) for rank in (0, 1)] == [0o666, 0o600]
    assert root.parent == temporary / f"nbproc-{os.getuid()}"
    assert root.name.startswith("my_run_1_")
    assert str(os.getpid()) in root.name


def test_logs_are_appended_to(tmp_path: Path) -> None:
    one, two = open_log(tmp_path / "log", private=False), open_log(tmp_path / "log", private=False)
    os.write(one, b"one ")
    os.write(two, b"two")
    os.close(one)
    os.close(two)
    assert (tmp_path / "log").read_bytes() == b"one two"


def test_the_names_of_all_files(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    names = [
        *(files.stdout(3), files.stderr(3), files.error(3), files.display(3), files.display_dir(3), files.stack(3)),
        *(files.filtered_stdout, files.filtered_stderr),
    ]
    assert [str(name.relative_to(tmp_path)) for name in names] == [
        *("3/stdout.log", "3/stderr.log", "3/error.json", "3/display.jsonl", "3/display", "3/stack.txt"),
        *("filtered_stdout.log", "filtered_stderr.log"),
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "...", "/", "x" * 300, "a\0b"])
def test_any_name_makes_a_directory(temporary: Path, name: str) -> None:
    assert private_run_dir(name).is_dir()


def test_a_loose_directory_of_ours_is_closed(temporary: Path) -> None:
    base = temporary / f"nbproc-{os.getuid()}"
    base.mkdir()
    base.chmod(0o755)
    private_run_dir("x")
    assert mode(base) == 0o700


def test_a_directory_that_is_a_link_is_not_used(
    temporary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "trap").mkdir()
    (temporary / f"nbproc-{os.getuid()}").symlink_to(tmp_path / "trap")
    with caplog.at_level(logging.WARNING):
        one, two = private_run_dir("x"), private_run_dir("y")
    assert not list((tmp_path / "trap").iterdir())
    assert one.parent == two.parent
    assert mode(one.parent) == 0o700
    assert "is not ours" in caplog.text


def test_the_last_runs_of_this_process_stay(temporary: Path) -> None:
    running = private_run_dir("running")
    ended = [private_run_dir(f"run{n}") for n in range(private.KEEP_RUNS + 3)]
    (ended[0] / "0").mkdir()
    (ended[0] / "0" / "stdout.log").write_text("x")
    for path in ended:
        release_run_dir(path)
        release_run_dir(path)
    assert [path.exists() for path in ended] == [False] * 3 + [True] * private.KEEP_RUNS
    assert running.exists()


def test_only_directories_of_this_process_are_released(temporary: Path, tmp_path: Path) -> None:
    precious = [tmp_path / f"logs-{os.getpid()}-abc{n}" for n in range(30)]
    for path in precious:
        path.mkdir()
        release_run_dir(path)
    assert all(path.exists() for path in precious)


def test_a_forked_child_leaves_its_parents_directories(temporary: Path) -> None:
    paths = [private_run_dir(f"run{n}") for n in range(private.KEEP_RUNS)]
    for path in paths:
        release_run_dir(path)
    child = os.fork()
    if child == 0:
        try:
            for n in range(5):
                release_run_dir(private_run_dir(f"child{n}"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert all(path.exists() for path in paths)


def test_old_directories_of_dead_processes_go(temporary: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    base = private_run_dir("x").parent
    long_ago = time.time() - 8 * 86400
    made: dict[str, Path] = {}
    for name, pid, fresh_file in (("old", dead.pid, False), ("alive", os.getpid(), False), ("used", dead.pid, True)):
        path = made[name] = base / f"{name}-{pid}-abcdefgh"
        (path / "0").mkdir(parents=True)
        (path / "0" / "stdout.log").write_text("x")
        for file in (path / "0" / "stdout.log", path / "0", path):
            if not (fresh_file and file.is_file()):
                os.utime(file, (long_ago, long_ago))
    recent = base / f"recent-{dead.pid}-abcdefgh"
    recent.mkdir()
    other = base / "somebody-elses"
    other.mkdir()
    os.utime(other, (long_ago, long_ago))
    private._swept.discard((os.getpid(), base))
    release_run_dir(private_run_dir("y"))
    assert not made["old"].exists()
    assert all(path.exists() for path in (made["alive"], made["used"], recent, other))


def test_pruning_never_raises(temporary: Path, tmp_path: Path) -> None:
    path = private_run_dir("x")
    path.rmdir()
    release_run_dir(path)
    release_run_dir(tmp_path / "never" / "was")
    for n in itertools.repeat("z", 25):
        release_run_dir(private_run_dir(n))
