"""Mistakes in a cell or on a line, as a user reads them."""

from __future__ import annotations

import re

import pytest

from kernels import Kernel


def test_a_name_that_is_nowhere_is_told_with_the_one_that_may_be_meant(kernel: Kernel) -> None:
    kernel.run("def divide(x):\n    return 1 / x")
    for cell in ("%spawn -n 1 divdie(1)", "%%spawn -n 1\ndef later():\n    return divdie(1)\nlater()"):
        ran = kernel.run(cell)
        assert ran.error.startswith("rank 0 failed: NameError: name 'divdie' is not defined")
        assert "the notebook has no divdie either; did you mean divide?" in ran.error
    assert "did you mean" not in kernel.run("%spawn -n 1 qqqqq").error
    assert "the notebook has no raank either; did you mean rank?" in kernel.run("%spawn -n 1 divide(raank)").error


@pytest.mark.parametrize(
    ("line", "at"),
    [("%spawn -n 2 round(1", "("), ("%spawn -n 2 --quiet round(1 2)", "1 2)"), ("%spawn -n 2 1 +", None)],
)
def test_a_mistake_in_a_call_is_marked_where_it_stands_in_its_line(kernel: Kernel, line: str, at: str | None) -> None:
    ran = kernel.run(line)
    shown = ran.error.splitlines()
    assert shown[1].strip() == line
    marker = shown[2].index("^") - shown[1].index("%")
    assert marker == (len(line) if at is None else line.index(at))
    assert shown[3].startswith("SyntaxError: ")


def test_a_cell_that_opens_files_does_so_as_python_does(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 1\nopen('/nowhere/at/all')")
    assert "FileNotFoundError" in ran.error
    assert "IPython" not in ran.error
    assert kernel.run("%%spawn -n 1\nopen.__module__").ok
    assert kernel.ask("_[0]") in ("io", "_io")


def test_values_that_do_not_come_back_are_told_once_with_what_to_do(kernel: Kernel) -> None:
    ran = kernel.run("%spawn -n 2 (i for i in range(3))")
    assert ran.ok
    assert ran.stdout == (
        "the return values of ranks 0, 1, a generator, cannot be read: `value`: a generator cannot be sent to the "
        "notebook. Return list(...) of it.\n"
    )
    kernel.run("async def later():\n    return 1")
    assert kernel.run("%spawn -n 1 later()").stdout.endswith("Await it: await f(...).\n")


def test_a_model_that_is_returned_with_its_process_group_is_told_at_once(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%spawn -n 1 --as trained\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n{'model': model, 'loss': 1}"
    )
    assert ran.stdout == (
        "the return value of rank 0, a dict, cannot be read: `value['model']`: a model under DistributedDataParallel "
        "cannot be sent to the notebook. Return its .module.\n"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%spawn -n 2 divide", "%spawn: divide is not called: write divide(...)"),
        ("%spawn -n 2 python train.py --lr 1", "%spawn: for a program write -- before it: -- python train.py --lr 1"),
        ("%spawn -n 2 ./train.sh", "%spawn: for a program write -- before it: -- ./train.sh"),
    ],
)
def test_what_is_no_call_is_told_in_one_line(kernel: Kernel, line: str, words: str) -> None:
    kernel.run("def divide(x):\n    return 1 / x")
    assert kernel.run(line).error == f"OptionError: {words}"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("start_processes('t', print, nprocs='x')", "ArgumentError: nprocs must be a whole number, not 'x' (str)"),
        ("start_processes('t', print, args={1: ()})", "PlanError: args must have exactly the keys 0 to 0"),
        ("start_processes('t', '/no/such', nprocs=1)", "ExecutableError: there is no executable '/no/such'"),
        ("start_processes('t', print, args=(open('/dev/null'),), nprocs=1)", "PayloadError: `args[0]`: an open file"),
        (
            "start_processes('t', 'python train.py', nprocs=1)",
            "ExecutableError: there is no executable 'python train.py' on the PATH; the program is 'python', what follows",
        ),
        ("spawn(print, args=1)", "ArgumentError: args must be a tuple of arguments, not 1; did you mean (1,)?"),
        ("spawn(divmod, args=(0,))", "ProcessRaisedException: rank 0 failed: ZeroDivisionError:"),
    ],
)
def test_a_call_with_a_mistake_shows_the_cells_lines_and_what_is_wrong(kernel: Kernel, call: str, error: str) -> None:
    ran = kernel.run(f"import nbproc\ndef launch():\n    nbproc.{call}\nlaunch()")
    assert f"----> 3     nbproc.{call}" in ran.error
    assert "----> 4 launch()" in ran.error
    assert re.search(rf"^{re.escape(error)}", ran.error, re.MULTILINE)
    assert "nbproc/" not in ran.error
    assert "direct cause" not in ran.error
    assert ran.ename == error.partition(":")[0]
    again = kernel.run("%tb").error
    assert f"----> 3     nbproc.{call}" in again
    assert re.search(r"nbproc/launch.py:\d+, in (spawn|start_processes)", again)


def test_what_the_user_was_handling_is_shown_with_his_mistake(kernel: Kernel) -> None:
    ran = kernel.run("import nbproc\ntry:\n    {}['key']\nexcept KeyError:\n    nbproc.spawn(print, nprocs=0)")
    assert "KeyError: 'key'" in ran.error
    assert ran.error.endswith("PlanError: nprocs must be at least 1, not 0")
    assert "nbproc/" not in ran.error


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_function_that_is_called_wrongly_is_no_fault_of_ours(kernel: Kernel, method: str) -> None:
    ran = kernel.run(f"import nbproc\ndef one(a): pass\nnbproc.spawn(one, args=(1,), start_method={method!r})")
    words = "TypeError: one() takes 1 positional argument but 2 were given"
    assert f"ProcessRaisedException: rank 0 failed: {words}\n" in ran.error
    assert ran.error.endswith("spawn calls the function with the rank first, then args: fn(rank, *args)")
    assert "worker.py" not in ran.text


def test_a_value_that_is_not_there_is_told_in_a_sentence(kernel: Kernel) -> None:
    kernel.run("%%spawn -n 2 --as lost --no-check\n1 / rank")
    ran = kernel.run("lost[0]")
    assert ran.error.endswith("NoValueError: rank 0 has no return value: ZeroDivisionError: division by zero")
    assert "nbproc/" not in ran.error
    assert kernel.run("try:\n    lost[7]\nexcept KeyError:\n    pass").ok


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_who_asks_in_a_rank_is_told_that_nobody_can_answer(kernel: Kernel, method: str) -> None:
    ran = kernel.run(f"%%spawn -n 1 --start-method {method} --timeout 50\ninput('name? ')", stdin=["Ada"])
    assert ran.error.startswith(f"rank 0 failed: EOFError: EOF when reading a line, at cell [{ran.count}] line 2\n")
    assert "\nnothing can be typed into a rank: its stdin is not connected. Ask before the launch" in ran.error


def test_who_debugs_in_a_rank_is_told_what_works(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 1\ndef look():\n    breakpoint()\n    return 1\nlook()")
    assert ran.error.startswith(f"rank 0 failed: BdbQuit, in look, cell [{ran.count}] line 4\n")
    assert "so pdb ends at once. Call the function outside ranks and debug it there" in ran.error


def test_other_ends_of_files_are_told_as_they_are(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 1\nimport pickle\npickle.loads(b'')")
    assert "EOFError: Ran out of input" in ran.error
    assert "stdin" not in ran.error


def test_what_failed_in_a_dataloaders_worker_is_said_first(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%spawn -n 1\nfrom torch.utils.data import DataLoader\nclass Items(list):\n    def __getitem__(self, number):\n"
        "        raise IndexError(f'no item {number}')\nlist(DataLoader(Items([1, 2]), num_workers=1))"
    )
    assert re.match(r"rank 0 failed: IndexError: no item 0 \(in DataLoader worker process 0\), at cell ", ran.error)
    assert "Original Traceback" in ran.error
