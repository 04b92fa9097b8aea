"""Every example of the page on torch.distributed.elastic.multiprocessing, as printed.

Only its misprints are mended (a missing comma, ``args:{`` for ``args={``), the import line is changed, and /tmp/foobar
and /tmp/test are directories of the test.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TRAINER = """
from nbproc import Std, start_processes


def trainer(a, b, c):
    pass  # train


# runs two trainers
# LOCAL_RANK=0 trainer(1,2,3)
# LOCAL_RANK=1 trainer(4,5,6)
ctx = start_processes(
    name="trainer",
    entrypoint=trainer,
    args={0: (1, 2, 3), 1: (4, 5, 6)},
    envs={0: {"LOCAL_RANK": 0}, 1: {"LOCAL_RANK": 1}},
    log_dir="/tmp/foobar",
    redirects=Std.ALL,  # write all worker stdout/stderr to a log file
    tee={0: Std.ERR},  # tee only local rank 0's stderr to console
)

# waits for all copies of trainer to finish
ctx.wait()
"""

ECHO = """
from nbproc import Std, start_processes

# same as invoking
# echo hello
# echo world > stdout.log
ctx = start_processes(
        name="echo",
        entrypoint="echo",
        log_dir="/tmp/foobar",
        args={0: "hello", 1: "world"},
        redirects={1: Std.OUT},
       )
"""

FOO = """
from nbproc import start_processes

def foo(bar):
    print("foo", bar)

log_dir = "/tmp/test"
"""

FOO_OK = """
# ok; two copies of foo: foo("bar0"), foo("bar1")
start_processes(
   name="trainer",
   entrypoint=foo,
   args={0:("bar0",), 1:("bar1",)},
   envs={0:{}, 1:{}},
   log_dir=log_dir
)
"""

FOO_INVALID = """
# invalid; envs missing for local rank 1
start_processes(
   name="trainer",
   entrypoint=foo,
   args={0:("bar0",), 1:("bar1",)},
   envs={0:{}},
   log_dir=log_dir
)
"""

TOUCH = """
# ok; two copies of /usr/bin/touch: touch file1, touch file2
start_processes(
   name="trainer",
   entrypoint="/usr/bin/touch",
   args={0:("file1",), 1:("file2",)},
   envs={0:{}, 1:{}},
   log_dir=log_dir
 )
"""

CASTS = """
# caution; arguments casted to string, runs:
# echo "1" "2" "3" and echo "[1, 2, 3]"
start_processes(
   name="trainer",
   entrypoint="/usr/bin/echo",
   args={0:(1,2,3), 1:([1,2,3],)},
   envs={0:{}, 1:{}},
   log_dir=log_dir
 )
"""

WAIT = "\nprint(_.wait())\n"


def run(text: str, tmp_path: Path, *, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Run an example as a script of its own. The page does not wait for each: a script's end does."""
    logs = tmp_path / "logs"
    text = text.replace("/tmp/foobar", str(logs)).replace("/tmp/test", str(logs))
    (tmp_path / "example.py").write_text(text)
    command = [sys.executable, "example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode != 0) == fails, done.stderr
    return done


def kept(text: str) -> str:
    """Return the example with what its last call returns kept, waited for and printed."""
    head, _, tail = text.rpartition("\nstart_processes(")
    return f"{head}\n_ = start_processes({tail}{WAIT}"


def test_trainer(tmp_path: Path) -> None:
    done = run(TRAINER + "print(ctx.wait().return_values)\n", tmp_path)
    assert (done.stdout, done.stderr) == ("{0: None, 1: None}\n", "")
    files = sorted(str(path.relative_to(tmp_path / "logs")) for path in (tmp_path / "logs").glob("*/*"))
    assert files == ["0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"]


def test_echo(tmp_path: Path) -> None:
    done = run(ECHO + "ctx.wait()\n", tmp_path)
    assert (done.stdout, done.stderr) == ("hello\n", "")
    assert (tmp_path / "logs" / "1" / "stdout.log").read_text() == "world\n"
    assert not (tmp_path / "logs" / "0" / "stdout.log").exists()


def test_foo_ok(tmp_path: Path) -> None:
    done = run(FOO + FOO_OK, tmp_path)
    assert sorted(done.stdout.splitlines()) == ["foo bar0", "foo bar1"]
    assert done.stderr == ""
    done = run(kept(FOO + FOO_OK).replace("/tmp/test", str(tmp_path / "other")), tmp_path)
    assert "return_values={0: None, 1: None}" in done.stdout


def test_foo_invalid_names_rank_1(tmp_path: Path) -> None:
    done = run(FOO + FOO_INVALID, tmp_path, fails=True)
    assert (
        "envs must have exactly the keys 0 to 1, one for each rank: rank 1 missing. Nothing was started." in done.stderr
    )
    assert done.stdout == ""
    assert not (tmp_path / "logs").exists()


def test_touch(tmp_path: Path) -> None:
    run(kept(FOO + TOUCH), tmp_path)
    assert (tmp_path / "file1").exists()
    assert (tmp_path / "file2").exists()


def test_echo_with_casts(tmp_path: Path) -> None:
    done = run(kept(FOO + CASTS), tmp_path)
    assert {"1 2 3", "[1, 2, 3]"} <= set(done.stdout.splitlines())
