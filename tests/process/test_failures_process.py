"""What real processes leave behind when they crash, raise or are recorded."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nbproc.failures import ProcessFailure, failure_of, first_cause, follows


def run(tmp_path: Path, source: str, *, rank: int = 0) -> ProcessFailure:
    """Run a script as a rank; return its failure."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    with open(tmp_path / "stderr.log", "wb") as log:
        done = subprocess.run(
            [sys.executable, str(script)],
            stderr=log,
            env={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"), "PATH": "/usr/bin:/bin"},
            cwd=Path(__file__).parents[2],
            timeout=60,
            check=False,
        )
    return failure_of(rank, 1, done.returncode, tmp_path / "error.json", tmp_path / "stderr.log", is_function=False)


@pytest.mark.parametrize(
    ("crash", "signal"),
    [("ctypes.string_at(8)", "SIGSEGV"), ("os.abort()", "SIGABRT"), ("os.kill(os.getpid(), 8)", "SIGFPE")],
)
def test_a_crash_shows_its_stack(tmp_path: Path, crash: str, signal: str):
    failure = run(
        tmp_path,
        f"""
        import ctypes, faulthandler, os, sys
        faulthandler.enable()
        def dive():
            print("before", file=sys.stderr)
            {crash}
        dive()
        """,
    )
    assert failure.words.startswith(f"was killed by {signal} (")
    assert failure.headline.endswith(", in dive, script.py line 6")
    assert failure.stderr_tail == ("before",)


def test_an_executable_under_record(tmp_path: Path):
    failure = run(
        tmp_path,
        """
        import sys
        sys.path.insert(0, "")
        from nbproc.failures import record
        @record
        def main():
            raise ValueError("bad batch")
        main()
        """,
    )
    assert failure.headline == "ValueError: bad batch, in main, script.py line 7"
    assert failure.trace is not None
    assert [frame.place for frame in failure.trace.frames] == ["script.py line 7"]  # the wrapper's frame is left out


def test_an_executable_without_record(tmp_path: Path):
    failure = run(tmp_path, "raise ValueError('bad batch')")
    assert failure.words == "exited with code 1: ValueError: bad batch"
    assert failure.trace is None


def test_exits(tmp_path: Path):
    assert run(tmp_path, "import os; os._exit(7)").words == "exited with code 7"
    assert run(tmp_path, "import os; os.kill(os.getpid(), 9)").words.startswith("was killed by SIGKILL (")


PEER = """
import os, sys
sys.path.insert(0, "")
import torch, torch.distributed as dist
from nbproc.failures import write_error
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
dist.barrier()
if rank == 1:
    os.kill(os.getpid(), 9)
try:
    dist.all_reduce(torch.ones(3))
except Exception as exc:
    write_error(sys.argv[3], exc, {}, rank)
    os._exit(1)
"""


@pytest.mark.timeout(120)
def test_gloos_error_at_a_killed_rank_is_a_consequence(tmp_path: Path):
    (tmp_path / "peer.py").write_text(PEER)
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(tmp_path / "peer.py"),
                str(rank),
                str(tmp_path / "store"),
                str(tmp_path / f"{rank}.json"),
            ],
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    codes = [process.wait(90) for process in ranks]
    failures = [failure_of(rank, 1, codes[rank], tmp_path / f"{rank}.json", None) for rank in range(2)]
    assert codes == [1, -9]
    assert first_cause(failures) is failures[1]
    assert follows(failures[0], failures[1])
