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


def test_what_failed_in_a_dataloaders_worker_is_said_first(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%spawn -n 1\nfrom torch.utils.data import DataLoader\nclass Items(list):\n    def __getitem__(self, number):\n"
        "        raise IndexError(f'no item {number}')\nlist(DataLoader(Items([1, 2]), num_workers=1))"
    )
    assert re.match(r"rank 0 failed: IndexError: no item 0 \(in DataLoader worker process 0\), at cell ", ran.error)
    assert "Original Traceback" in ran.error
