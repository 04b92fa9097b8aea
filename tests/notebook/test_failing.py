"""A run that fails explains itself: what the reader sees for each kind of failure."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kernels import Kernel, Ran


def lines(ran: Ran) -> list[str]:
    return ran.error.splitlines()


def said_first(ran: Ran) -> str:
    """The headline; where both ranks fail alike, the slower one may have been stopped on its way to its failure."""
    first = lines(ran)[0].replace(f"[{ran.count}]", "[N]").replace(" were ", " was ")
    first = re.sub(r"^(ranks 0, 1 failed \(same\)|rank \d failed( first)?): ", "FAILED: ", first)
    return first


@pytest.fixture(scope="module", autouse=True)
def names(kernel: Kernel) -> None:
    kernel.always(
        "import os, signal, sys, threading, torch.distributed as dist\n"
        "def wait():\n    threading.Event().wait(60)\n"
        "def divide(x):\n    y = 1\n    return y / x\n"
        "def train(x):\n"
        "    dist.init_process_group('gloo')\n"
        "    if dist.get_rank() == 2:\n"
        "        divide(x)\n"
        "    dist.barrier()\n"
    )


def test_the_first_cause_is_on_top_with_the_cells_source_and_what_followed_is_folded(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 4\n\ntrain(0)")
    home = kernel.ask("divide.__code__.co_filename")
    assert home
    found = lines(ran)
    assert re.fullmatch(
        r"rank 2 failed first: ZeroDivisionError: division by zero, in divide, cell \[\d+\] line 6", found[0]
    )
    others = found[1 : found.index("")]  # in one line, or in more where they were not equally quick
    for line in others:
        assert re.match(r"ranks? [013](, [013])* (then lost the connection|stopped)", line)
    assert sorted(re.findall(r"[013](?=[ ,])", " ".join(line.partition(" at ")[0] + " " for line in others)))[:3] == [
        *"013"
    ]
    rest = found[len(others) + 1 :]
    assert rest[:3] == ["", "Traceback of rank 2 (most recent call last):", f"  Cell In[{ran.count}], line 3"]
    assert "    >  6      return y / x" in found or "    > 6      return y / x" in found
    marked = found[found.index(next(line for line in found if "return y / x" in line)) + 1]
    assert marked.strip() == "^^^^^" or sys.version_info < (3, 11)
    assert found[-1].startswith("logs: ")
    assert "nbproc/" not in "\n".join(found[:-1])
    assert "multiprocessing" not in ran.error
    assert ran.ename == "SpawnError"
    assert ran.seconds < 10


@pytest.mark.parametrize(
    ("cell", "headline", "more"),
    [
        ("if rank == 1: os._exit(7)\nwait()", "rank 1 exited with code 7 before returning", ["rank 0 stopped at wait"]),
        ("os._exit(0)", "EACH exited with code 0 before returning", []),
        (
            "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nwait()",
            "rank 1 was killed by SIGKILL (may have run out of memory)",
            [],
        ),
        (
            "print('about to crash', file=sys.stderr)\nimport ctypes\nif rank == 1: ctypes.string_at(0)\nwait()",
            "rank 1 was killed by SIGSEGV (invalid memory access in native code), at cell [N] line 4",
            [
                "Stack of rank 1 when it crashed",
                "    > 4  if rank == 1: ctypes.string_at(0)",
                "Fatal Python error: Segmentation fault",
                "  about to crash",
            ],
        ),
        (
            "import ctypes\nprint('it says why', file=sys.stderr)\nif rank: ctypes.CDLL(None).abort()\nwait()",
            "rank 1 was killed by SIGABRT (native code called abort()), at cell [N] line 4",
            ["  it says why"],
        ),
        (
            "if rank: sys.exit('no data')\nwait()",
            "rank 1 exited with code 1 before returning: no data, at cell [N] line 2",
            [],
        ),
        ("sys.exit(3)", "EACH exited with code 3 before returning, at cell [N] line 2", []),
        (
            "import argparse\nargparse.ArgumentParser(prog='train').parse_args(['--lr'])",
            "EACH exited with code 2 before returning, at cell [N] line 3",
            ["'s stderr (/", "  train: error: unrecognized arguments: --lr"],
        ),
        (
            "try:\n    {}['key']\nexcept KeyError as error:\n    raise RuntimeError('cannot look up') from error",
            "FAILED: RuntimeError: cannot look up, at cell [N] line 5",
            [
                "    > 3      {}['key']",
                "KeyError: 'key'",
                "The above exception was the direct cause of the following exception:",
                "RuntimeError: cannot look up",
            ],
        ),
        (
            "raise KeyboardInterrupt",
            "EACH was interrupted (KeyboardInterrupt), at cell [N] line 2",
            ["    > 2  raise KeyboardInterrupt"],
        ),
        (
            "eval('1 +')",
            "FAILED: SyntaxError: invalid syntax, at <string> line 1",
            ["    > 1  1 +"],
        ),
        (
            "class Odd(Exception):\n    def __init__(self, a, b): pass\n    def __str__(self): 1/0\nraise Odd(1, 2)",
            "FAILED: Odd: <no message: its str() raised ZeroDivisionError: division by zero>, at cell [N] line 5",
            [],
        ),
        (
            "raise ValueError('x' * 5_000_000)",
            "FAILED: ValueError: xxx",
            ["characters"],
        ),
    ],
)
def test_what_is_said_first(kernel: Kernel, cell: str, headline: str, more: list[str]) -> None:
    ran = kernel.run(f"%%spawn -n 2\n{cell}")
    assert ran.ename == "SpawnError"
    first = said_first(ran)
    if headline.startswith("EACH"):
        first = re.sub(r"^(ranks 0, 1|rank \d) ", "EACH ", first)
    assert first.startswith(headline)
    for words in more:
        assert words in ran.error
    assert "logs: /" in ran.error
    assert len(ran.error) < 200_000


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups and notes came with Python 3.11")
def test_groups_and_notes(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%spawn -n 2\nif rank:\n    error = ExceptionGroup('several', [ValueError('a'), TypeError('b')])\n"
        "    error.add_note('of the second batch')\n    raise error"
    )
    assert said_first(ran) == "FAILED: ExceptionGroup: several (2 sub-exceptions), at cell [N] line 5"
    for words in ("of the second batch", "ValueError: a", "TypeError: b"):
        assert words in ran.error


def test_an_unpicklable_exception_of_a_class_of_the_cell_is_told_like_any_other(kernel: Kernel) -> None:
    kernel.run(
        "class Broken(Exception):\n    def __init__(self, where, guard):\n"
        "        super().__init__(f'broken at {where}')\n        self.guard = guard"
    )
    ran = kernel.run("%%spawn -n 2\nraise Broken('x', threading.Lock())")
    assert said_first(ran) == "FAILED: Broken: broken at x, at cell [N] line 2"


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_cells_are_named_however_ranks_are_made(kernel: Kernel, method: str) -> None:
    home = kernel.run("def halve(x):\n    return 1 / (x - x)").count
    ran = kernel.run(f"%%spawn -n 1 --start-method {method}\nhalve(2)")
    assert said_first(ran) == f"FAILED: ZeroDivisionError: division by zero, in halve, cell [{home}] line 2"
    ran = kernel.run(f"%%spawn -n 1 --start-method {method}\nimport ctypes\nctypes.string_at(0)")
    assert f"at cell [{ran.count}] line 3" in lines(ran)[0]


def test_a_rank_that_exits_well_has_returned_nothing(kernel: Kernel) -> None:
    assert kernel.run("%%spawn -n 2\nsys.exit(0)").ok
    assert kernel.ask("list(_)") == [None, None]


def test_a_call_is_marked_where_it_stands_in_its_line(kernel: Kernel) -> None:
    ran = kernel.run("%spawn -n 2 divide(0)")
    if sys.version_info >= (3, 11):
        at = lines(ran).index("    > 1  %spawn -n 2 divide(0)")
        assert lines(ran)[at + 1] == " " * 9 + " " * len("%spawn -n 2 ") + "^" * len("divide(0)")


def test_programs_see_the_failures(kernel: Kernel) -> None:
    kernel.run("%%spawn -n 2\nif rank: raise ValueError('bad batch')")
    caught = kernel.run(
        "import nbproc\n"
        "try:\n    get_ipython().run_cell_magic('spawn', '-n 2', \"if rank: raise ValueError('bad batch')\")\n"
        "except nbproc.SpawnError as error:\n    told = error"
    )
    assert caught.ok, caught.text
    assert kernel.ask("sorted(told.failures)") == [1]
    assert kernel.ask("told.failures[1].words") == "ValueError: bad batch"
    assert kernel.ask("told.result.is_failed()") is True
    assert kernel.ask("str(told).splitlines()[0]").startswith("rank 1 failed first: ValueError: bad batch")
    assert "\x1b[" in kernel.ask("told.colored")


def test_a_magic_that_a_function_calls_leaves_the_functions_cell_as_it_is(kernel: Kernel) -> None:
    kernel.run(
        "def fails():\n    raise ValueError('inside')\n"
        "def launch():\n    get_ipython().run_cell_magic('spawn', '-n 1', '# first\\nfails()')"
    )
    ran = kernel.run("launch()")
    assert "    > 2      raise ValueError('inside')" in ran.error
    assert "    > 3  fails()" in ran.error
    assert f"<cell {ran.count}>, line 3" in ran.error


def test_run_cell_gives_a_normal_error(kernel: Kernel) -> None:
    ran = kernel.run("told = get_ipython().run_cell('%%spawn -n 2\\n1/0')")
    assert "ZeroDivisionError" in ran.text
    assert kernel.ask("(told.success, type(told.error_in_exec).__name__)") == (False, "SpawnError")


def test_tb_and_debug_do_not_break(kernel: Kernel) -> None:
    failed = kernel.run("%spawn -n 2 divide(0)")
    assert "ZeroDivisionError: division by zero, in divide" in kernel.run("%tb").text
    for mode in ("Plain", "Verbose", "Context"):
        assert kernel.run(f"%xmode {mode}").ok
        assert kernel.run("%tb").error == failed.error
    assert "SpawnError" not in kernel.run("%debug", stdin=["q"]).error


def test_colours_only_where_they_are_wanted(kernel: Kernel) -> None:
    ran = kernel.run("%spawn -n 2 divide(0)")
    assert "\x1b[" in "\n".join(ran.of("error")[0]["traceback"])
    assert "\x1b[" not in ran.of("error")[0]["evalue"]
    kernel.run("before = get_ipython().colors\nget_ipython().colors = 'nocolor'")
    ran = kernel.run("%spawn -n 2 divide(0)")
    assert "\x1b[" not in "\n".join(ran.of("error")[0]["traceback"])
    kernel.run("get_ipython().colors = before")


def test_a_result_that_failed_reads_by_rank(kernel: Kernel) -> None:
    kernel.run("%%spawn -n 2 --no-check\nimport time\n1 / (rank - 1) if rank else wait()")
    assert kernel.run("_").value.splitlines()[0] == "RunProcsResult of 2 ranks, rank 1 failed"
    told = kernel.run("_").value.splitlines()
    assert told[1] == "  rank 0: no value"
    assert told[2].startswith("  rank 1: ZeroDivisionError: division by zero, at cell [")


def test_what_some_ranks_returned_is_at_hand_after_a_failure(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kernel.run(
        f"%%spawn -n 2 --detach --as some\nwhile rank and not os.path.exists({str(go)!r}):\n    pass\n1 / (1 - rank)"
    )
    kernel.run(f"while some.snapshot().ranks[0].state.value != 'succeeded': pass\nopen({str(go)!r}, 'w').close()")
    told = kernel.run("some.wait()").value.splitlines()
    assert told[1] == "  rank 0: 1.0"
    assert told[3] == "what some ranks returned is in .partial_values"
    assert kernel.run("some.wait().partial_values[0]").value == "1.0"


def test_after_a_failure_the_next_run_works(kernel: Kernel) -> None:
    assert not kernel.run("%%spawn -n 2\nos._exit(3)").ok
    assert kernel.run("%%spawn -n 2\nrank").ok
    assert kernel.ask("list(_)") == [0, 1]
