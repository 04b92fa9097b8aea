"""Row S39: a rank finds the environment that torchrun would give it, and the ports of runs never meet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import nbproc
import victims
from nbproc import Std, start_processes

METHODS = ("forkserver", "spawn", "fork")
ONE_NODE = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "TORCHELASTIC_RESTART_COUNT": "0"}


def environment() -> dict[str, str]:
    return dict(os.environ)


def torchruns_names(tmp_path: Path) -> set[str]:
    """Return the names of the variables that torchrun itself adds."""
    script = tmp_path / "names.py"
    script.write_text("import os\nprint(*os.environ, sep='\\n')\n")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=1",
        f"--log-dir={tmp_path}",
        str(script),
    ]
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with_it = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=clean).stdout
    without = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=clean).stdout
    return set(with_it.split()) - set(without.split())


@pytest.mark.parametrize("method", METHODS)
def test_s39_a_rank_has_what_torchrun_sets(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "of the caller")
    found = start_processes("n", environment, nprocs=3, start_method=method).result().return_values
    for rank, env in found.items():
        assert env["RANK"] == env["LOCAL_RANK"] == env["ROLE_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == env["ROLE_WORLD_SIZE"] == "3"
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert 1024 <= int(env["MASTER_PORT"]) < 65536
        assert env["TORCHELASTIC_MAX_RESTARTS"] == "0"
        assert {name: env[name] for name in ONE_NODE} == ONE_NODE
        assert env["TORCHELASTIC_ERROR_FILE"].endswith(f"{rank}/error.json")
    assert len({(env["MASTER_PORT"], env["TORCHELASTIC_RUN_ID"]) for env in found.values()}) == 1
    assert os.environ["RANK"] == "of the caller"


@pytest.mark.slow
def test_s39_no_variable_of_torchruns_is_missing(tmp_path: Path) -> None:
    ours = start_processes("n", environment, nprocs=1).result()[0]
    for_torchrun_itself = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
    assert torchruns_names(tmp_path) - set(ours) == for_torchrun_itself


@pytest.mark.parametrize("executable", [False, True])
def test_s39_envs_wins_over_ours_and_ours_over_the_callers(
    executable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "MASTER_PORT", "MINE"):
        monkeypatch.setenv(name, "caller")
    envs: dict[int, dict[str, Any]] = {0: {"MASTER_PORT": 1234, "RANK": 7}, 1: {}}
    names = ("WORLD_SIZE", "MASTER_PORT", "MINE", "RANK")
    text = f"import os\nprint([os.environ[name] for name in {names}])\n"
    entrypoint: Any = victims.program(tmp_path / "p", text) if executable else victims.print_list
    args = () if executable else names
    result = start_processes("n", entrypoint, args, envs, redirects=Std.OUT).result()
    first, second = (eval(Path(path).read_text()) for path in result.stdouts.values())
    assert first == ["2", "1234", "caller", "7"]
    assert second[0] == "2"
    assert second[1] not in ("1234", "caller")
    assert second[2:] == ["caller", "1"]


def test_s39_one_thread_each_for_several_ranks_if_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads() -> tuple[str | None, int]:
        import torch

        return os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()

    two = start_processes("n", threads, nprocs=2)
    assert two.result()[1] == ("1", 1)
    assert any("OMP_NUM_THREADS=1" in note for note in two.snapshot().notes)
    one = start_processes("n", threads, nprocs=1)
    assert one.result()[0] == (None, len(os.sched_getaffinity(0)))
    assert not any("OMP_NUM_THREADS" in note for note in one.snapshot().notes)
    assert start_processes("n", threads, nprocs=2, envs={0: {}, 1: {"OMP_NUM_THREADS": 2}}).result()[1] == ("2", 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert start_processes("n", threads, nprocs=2).result()[0] == ("2", 2)


def all_reduce(value: int) -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.tensor([value])
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return int(tensor)


def test_s39_init_process_group_in_runs_one_after_another_and_at_once() -> None:
    for _ in range(4):
        assert start_processes("n", all_reduce, {0: (1,), 1: (2,)}).result().return_values == {0: 3, 1: 3}
    contexts = [start_processes(f"n{n}", all_reduce, {0: (n,), 1: (n,)}) for n in range(4)]
    assert [context.result()[0] for context in contexts] == [0, 2, 4, 6]


def test_s39_nobody_else_is_given_the_port_during_a_run(tmp_path: Path) -> None:
    with start_processes("n", victims.print_and_hang, ("MASTER_PORT",), nprocs=1, log_dir=tmp_path, redirects=1):
        port = int(victims.first_line(tmp_path / "0" / "stdout.log"))
        held = []
        for _ in range(300):
            taken = socket.socket()
            taken.bind(("127.0.0.1", 0))
            held.append(taken)
        assert port not in {taken.getsockname()[1] for taken in held}
        for taken in held:
            taken.close()


def test_s39_a_rank_that_returned_waits_for_the_others() -> None:
    """Rank 0 hosts the store: if it were gone, the others could not meet."""
    assert start_processes("n", victims.meet_late, nprocs=2).result().return_values == {0: 2, 1: 2}
    assert threading.active_count() >= 1


@pytest.mark.parametrize("method", METHODS)
def test_s39_the_callers_state_now_holds_in_the_ranks(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["prog", "--flag"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    umask = os.umask(0o027)
    try:
        found = start_processes("n", victims.state, nprocs=1, start_method=method).result()[0]
    finally:
        os.umask(umask)
    assert found == {
        "cwd": str(tmp_path),
        "argv": ["prog", "--flag"],
        "path": str(tmp_path),
        "umask": 0o027,
        "zone": "JST",
    }


def test_s39_an_edited_module_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "edited_helper.py"
    for answer in (1, 22):
        module.write_text(f"ANSWER = {answer}\n")
        assert start_processes("n", victims.imported, ("edited_helper", "ANSWER"), nprocs=1).result()[0] == answer


def test_s39_random_numbers_differ_in_each_rank_and_run() -> None:
    drawn = [start_processes("n", victims.draw, nprocs=2).result() for _ in range(2)]
    numbers = [value for result in drawn for value in result]
    assert len(numbers) == 4
    for kind in range(3):
        assert len({number[kind] for number in numbers}) == 4


def test_s39_nbproc_itself_does_not_import_torch_in_the_caller() -> None:
    code = "import sys, nbproc, os; r = nbproc.start_processes('n', os.getpid, nprocs=1).result()[0]; print('torch' in sys.modules, 'IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False False\n"
    assert nbproc.__version__
