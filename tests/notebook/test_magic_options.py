"""Each option of ``%%spawn`` and ``%spawn``, in a real kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels import Kernel


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%%spawn\n1", "how many ranks? Say -n 4, or -n gpu, or %spawn_config -n 4 once for all cells"),
        ("%%spawn -n 0\n1", "-n 0: expected a number of ranks from 1"),
        ("%%spawn -n many\n1", "-n many: expected a number of ranks"),
        ("%%spawn -n\n1", "-n needs a value: -n N"),
        ("%%spawn -n 2 --frob\n1", "there is no option --frob"),
        ("%%spawn -n 2 --detatch\n1", "did you mean --detach?"),
        ("%%spawn -n 2 --as 1x\n1", "--as 1x: expected a name"),
        ("%%spawn -n 2 --timeout soon\n1", "--timeout soon: expected a number of seconds"),
        ("%%spawn -n 2 -r 9\n1", "-r 9"),
        ("%%spawn -n 2 --env NAME\n1", "expected NAME=VALUE"),
        ("%%spawn -n 2 --env 7:A=1\n1", "there is no rank 7"),
        ("%%spawn -n 2 --start-method thread\n1", "expected one of forkserver, spawn, fork"),
        ("%%spawn -n 2 train.py\n1", "'train.py' is no option"),
        ("%%spawn -n $nothing\n1", "nothing"),
        ("%%spawn -n gpu\n1", "no GPU was found"),
        ("%spawn -n 2", "nothing to run"),
        ("%spawn f(1)", "how many ranks?"),
        ("%spawn -n 2 --", "no program after --"),
        ("%spawn -n 2 -- nosuchprogram", "there is no executable 'nosuchprogram' on the PATH"),
        ("%spawn -n 2 -- echo {nothing}", "nothing"),
        ("%spawn_config --frob", "there is no option --frob"),
        ("%%spawn -n 2 --log-dir kernel.log\n1", "it is a file; name a directory"),
        ("%%spawn -n 2 --log-dir /proc/none\n1", "--log-dir /proc/none: no directory can be made there: No such file"),
        ("%spawn_config --as x", "--as is an option of %%spawn and %spawn only"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_starts(kernel: Kernel, line: str, words: str) -> None:
    if "gpu" in line and os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU")
    ran = kernel.run(line)
    assert not ran.ok
    assert words in ran.error
    assert len(ran.error.splitlines()) == 1
    assert ran.shown == []


def test_an_empty_cell_is_told(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2\n")
    assert not ran.ok
    assert "empty" in ran.text
    spaces = kernel.run("%%spawn -n 2\n   \n")
    assert "the cell is empty" in spaces.error


def test_number_of_ranks_by_variable_by_cores_and_by_torchruns_name(kernel: Kernel) -> None:
    kernel.run("n1 = 3")
    for line in ("-n $n1", "-n{n1}", "--nproc-per-node {n1}", "--nproc_per_node=3", "-n {n1 + 0}"):
        assert kernel.run(f"%%spawn {line}\nworld_size").ok
        assert kernel.ask("_[2]") == 3
    assert kernel.run("%%spawn -n cpu\nworld_size").ok
    assert kernel.ask("_[0]") == len(os.sched_getaffinity(0))


def test_as_names_the_result_also_after_a_failure(kernel: Kernel) -> None:
    assert kernel.run("%%spawn -n 2 --as good\nrank").ok
    assert kernel.ask("good is _ and list(good) == [0, 1]") is True
    assert not kernel.run("%%spawn -n 2 --as bad\n1/0").ok
    assert kernel.ask("(type(bad).__name__, bad.is_failed(), sorted(bad.failures))") in (
        ("RunProcsResult", True, [0, 1]),
        ("RunProcsResult", True, [0]),
        ("RunProcsResult", True, [1]),
    )
    assert kernel.ask("bad is _") is True


def test_env_for_all_and_for_one_rank(kernel: Kernel) -> None:
    kernel.run("word = 'of the notebook'")
    cell = "import os\n[os.environ.get(name) for name in ('A1', 'B1', 'OMP_NUM_THREADS')]"
    ran = kernel.run(f"%%spawn -n 2 --env A1=x --env 1:B1='$word' --env OMP_NUM_THREADS=2\n{cell}")
    assert ran.ok, ran.text
    assert kernel.ask("list(_)") == [["x", None, "2"], ["x", "$word", "2"]]
    assert kernel.run(f"%%spawn -n 2 --env A1={{word.upper()}} --env 1:B1=$word-{{rank}}\n{cell}").ok
    assert kernel.ask("list(_)") == [
        ["OF THE NOTEBOOK", None, "1"],
        ["OF THE NOTEBOOK", "of the notebook-1", "1"],
    ]


def test_name_is_the_runs_and_its_directorys(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 1 --name probe --log-dir named -r 3\nprint('said')")
    assert ran.ok, ran.text
    assert "probe" in ran.text
    assert (kernel.folder / "named" / "probe-1" / "0" / "stdout.log").read_text() == "said\n"


def test_log_dir_is_a_parent_so_that_a_cell_can_be_run_again(kernel: Kernel) -> None:
    for number in (1, 2):
        assert kernel.run(f"%%spawn -n 2 --as again --log-dir runs -r 3\nprint({number}, rank)").ok
        root = kernel.folder / "runs" / f"again-{number}"
        assert [(root / str(rank) / "stdout.log").read_text() for rank in range(2)] == [
            f"{number} {r}\n" for r in (0, 1)
        ]
        assert kernel.ask("again.stdouts[1]") == str(root / "1" / "stdout.log")


def test_redirects_and_tee_say_what_the_result_names(kernel: Kernel) -> None:
    assert kernel.run("%%spawn -n 2 --as masks --log-dir masks -r 0:1 -t 1:2\nimport sys\nprint(1, file=sys.stderr)").ok
    assert kernel.ask("[bool(p) for p in masks.stdouts.values()]") == [True, False]
    assert kernel.ask("[bool(p) for p in masks.stderrs.values()]") == [False, True]


def test_a_log_directory_alone_keeps_everything(kernel: Kernel) -> None:
    cell = "import sys\nprint('out', rank)\nprint('err', rank, file=sys.stderr)"
    ran = kernel.run(f"%%spawn -n 2 --as whole --log-dir whole\n{cell}")
    assert ran.ok, ran.text
    root = kernel.folder / "whole" / "whole-1"
    assert (root / "1" / "stdout.log").read_text() == "out 1\n"
    assert (root / "0" / "stderr.log").read_text() == "err 0\n"
    assert kernel.ask("whole.stdouts[0]") == str(root / "0" / "stdout.log")


def test_filter_collects_the_lines_of_all_ranks_in_files(kernel: Kernel) -> None:
    cell = "import sys\nprint('loss', rank)\nprint('other')\nprint('a warning', rank, file=sys.stderr)"
    ran = kernel.run(f"%%spawn -n 3 --name f --log-dir filtered --filter loss --filter warning\n{cell}")
    assert ran.ok, ran.text
    root = kernel.folder / "filtered" / "f-1"
    out, err = ((root / name).read_text().splitlines() for name in ("filtered_stdout.log", "filtered_stderr.log"))
    assert sorted(out) == [f"[f{rank}]:loss {rank}" for rank in range(3)]
    assert sorted(err) == [f"[f{rank}]:a warning {rank}" for rank in range(3)]


def test_torchruns_filters_take_teed_streams_alone(kernel: Kernel) -> None:
    options = "--name t --log-dir torchrun -t 1:1 --duplicate-stdout-filters loss,acc --duplicate-stderr-filters=x"
    ran = kernel.run(f"%%spawn -n 2 {options}\nprint('loss', rank)\nprint('acc', rank)\nprint('no')")
    assert ran.ok, ran.text
    root = kernel.folder / "torchrun" / "t-1"
    assert (root / "filtered_stdout.log").read_text().splitlines() == ["[t1]:loss 1", "[t1]:acc 1"]
    assert (root / "filtered_stderr.log").read_text() == ""


def test_local_ranks_filter_is_accepted(kernel: Kernel) -> None:
    assert kernel.run("%%spawn -n 3 -t 3 --local-ranks-filter 0,2\nprint(rank)").ok


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_start_methods(kernel: Kernel, method: str) -> None:
    kernel.run("def double(x):\n    return 2 * x")
    ran = kernel.run(f"%%spawn -n 2 --start-method {method}\ndouble(rank)")
    assert ran.ok, ran.text
    assert kernel.ask("list(_)") == [0, 2]


def test_timeout_stops_the_run_and_says_so(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2 --timeout 0.3\nimport threading\nthreading.Event().wait()")
    assert ran.ename == "SpawnError"
    assert re.fullmatch(r"timed out after 0.3 s, stopped in \d\.\d s; nothing left running", ran.error.splitlines()[0])
    assert ran.error.splitlines()[1].startswith("rank")
    assert " stopped" in ran.error.splitlines()[1]


@pytest.mark.parametrize("option", ["--grace 0", "--shutdown-timeout=0"])
def test_grace_zero_ends_ranks_at_once(kernel: Kernel, option: str) -> None:
    cell = "import signal, threading\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nthreading.Event().wait()"
    ran = kernel.run(f"%%spawn -n 1 --timeout 0.5 {option}\n{cell}")
    assert "timed out after 0.5 s" in ran.error
    assert ran.seconds < 9  # without the option it would be 10 and more


def test_numa_binding_is_applied_or_told(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 1 --numa-binding node\nimport os\nlen(os.sched_getaffinity(0))")
    if ran.ok:
        assert kernel.ask("_[0]") >= 1
    else:
        assert "numa" in ran.error.lower()


def test_no_check_leaves_the_failure_in_the_result(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2 --no-check --as unchecked\n1/rank")
    assert ran.ok
    assert kernel.ask("unchecked.is_failed()") is True
    assert "ZeroDivisionError" in ran.text


def test_quiet_shows_only_the_result_line_and_failures(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2 --quiet\nprint('noise')\nrank")
    assert ran.ok
    assert ran.shown == []
    assert ran.text == "results in _; _[0] is rank 0's; --as NAME keeps them\n"
    failed = kernel.run("%%spawn -n 2 --quiet\n1/0")
    assert failed.shown == []
    assert "ZeroDivisionError" in failed.error
    told = kernel.run("%%spawn -n 2 --quiet --no-check\n1/0")
    assert told.ok
    assert "ZeroDivisionError: division by zero" in told.text


def test_help_is_printed_and_nothing_runs(kernel: Kernel) -> None:
    for line in ("%%spawn --help\n1", "%spawn -h", "%spawn_config --help"):
        ran = kernel.run(line)
        assert ran.ok
        assert "--nproc-per-node" in ran.stdout


def test_settings_of_the_session(fresh: Callable[..., Kernel]) -> None:
    kernel = fresh()
    assert kernel.run("%spawn_config").stdout == "nothing is set\n"
    assert kernel.run("%spawn_config -n 2 --timeout 600 --env A1=x").stdout == "-n 2 --timeout 600 --env A1=x\n"
    assert kernel.run("%%spawn\nimport os\nworld_size, os.environ['A1']").ok
    assert kernel.ask("list(_)") == [(2, "x"), (2, "x")]
    assert kernel.run("%%spawn -n 1\nworld_size").ok
    assert kernel.ask("list(_)") == [1]
    assert kernel.run("%spawn_config --reset").stdout == "nothing is set\n"
    assert "how many ranks?" in kernel.run("%%spawn\n1").error


def test_settings_are_traits_of_the_profile(fresh: Callable[..., Kernel], private_places: Path) -> None:
    profile = private_places / "ipython-traits"
    (profile / "profile_default").mkdir(parents=True)
    settings = "c.Spawn.nproc_per_node = 2\nc.Spawn.env = ['A1=from a profile', '1:B1=2']\nc.Spawn.timeout = 60\n"
    (profile / "profile_default" / "ipython_config.py").write_text(settings)
    kernel = fresh(env={"IPYTHONDIR": str(profile)})
    assert kernel.run("%spawn_config").stdout == "-n 2 --timeout 60 --env 'A1=from a profile' --env 1:B1=2\n"
    assert kernel.run("%%spawn\nimport os\nos.environ['A1']").ok
    assert kernel.ask("list(_)") == ["from a profile"] * 2
    assert "-n, --nproc-per-node N" in kernel.run("%spawn_config --help").stdout
    listed = kernel.run("%config Spawn")
    assert "Spawn.nproc_per_node=<Any>" in listed.stdout
    kernel.run("%config Spawn.nproc_per_node = 3\n%config Spawn.env = ['C=3']")
    assert kernel.run("%spawn_config").stdout == "-n 3 --timeout 60 --env C=3\n"
    assert kernel.run("%config Spawn.timeout = None").ok
    assert kernel.run("%spawn_config").stdout == "-n 3 --env C=3\n"


def test_a_wrong_setting_in_a_profile_is_told(fresh: Callable[..., Kernel], private_places: Path) -> None:
    profile = private_places / "ipython-wrong"
    (profile / "profile_default").mkdir(parents=True)
    (profile / "profile_default" / "ipython_config.py").write_text("c.Spawn.nproc_per_node = 'lots'\n")
    kernel = fresh(env={"IPYTHONDIR": str(profile)})
    ran = kernel.run("%load_ext nbproc")
    assert "OptionError: c.Spawn.nproc_per_node = lots: expected a number of ranks" in ran.text
