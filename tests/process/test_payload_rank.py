from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from payload_rank import Notebook, Rank

from nbproc.errors import PayloadError, ResultError
from nbproc.ranks import payload


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    rank.end()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "__main__", notebook.module)
    return notebook


def test_a_function_of_a_cell_calls_another_and_sees_its_globals(rank: Rank, notebook: Notebook) -> None:
    notebook.run("import math\nfactor = 3\ndef helper(x):\n    return x * factor + math.floor(0.5)\n")
    notebook.run("def train(x):\n    return helper(x)\n")
    assert rank.call(notebook["train"], 5) == 15


def test_an_assignment_in_main_is_seen_by_all_functions(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "factor = 3\ndef get():\n    return factor\ndef change(x):\n    global factor\n    factor = x\n    return get()\n"
    )
    assert rank.call(notebook["change"], 7) == 7
    assert notebook["factor"] == 3


def test_an_instance_comes_back_as_the_notebooks_own_class(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "import dataclasses, enum, typing\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n"
        "class Color(enum.Enum):\n    RED = 1\n"
        "class Pair(typing.NamedTuple):\n    a: int\n"
        "class Sub(Point):\n    pass\n"
        "def make(x):\n    return [Point(x), Color.RED, Pair(2), Sub(3), Point, make]\n"
    )
    before = notebook["Point"]
    result = rank.call(notebook["make"], 4)
    assert [type(one) for one in result[:4]] == [notebook[name] for name in ("Point", "Color", "Pair", "Sub")]
    assert result[0] == notebook["Point"](4)
    assert result[1] is notebook["Color"].RED
    assert result[4] is notebook["Point"] is before
    assert result[5] is notebook["make"]


def test_a_traceback_in_the_rank_shows_the_cell(rank: Rank, notebook: Notebook) -> None:
    notebook.run("def fail():\n    raise ValueError('bad batch')  # in the cell\n")
    with pytest.raises(AssertionError, match=r"(?s)cell_1\.py\", line 2.*# in the cell"):
        rank.call(notebook["fail"])


def test_a_value_that_does_not_pickle_is_a_result_error(rank: Rank, notebook: Notebook) -> None:
    notebook.run("import threading\ndef lock():\n    return threading.Lock()\n")
    with pytest.raises(ResultError, match="lock"):
        rank.call(notebook["lock"])


def test_what_cannot_be_sent_is_named(notebook: Notebook) -> None:
    notebook.run("import threading\nguard = threading.Lock()\ndef fetch():\n    return guard\n")
    with pytest.raises(PayloadError, match="lock"):
        payload.Packer().pack({"fn": notebook["fetch"]})


def test_tensors_arrive_and_come_back(rank: Rank, notebook: Notebook) -> None:
    import torch

    notebook.run("def double(x, y):\n    x *= 2\n    return x, y\n")
    x = torch.arange(100_000.0)
    values: Any = rank.call(notebook["double"], x, x[::2])
    assert torch.equal(values[0], x * 2)
    assert torch.equal(values[1], x[::2] * 2)
    assert x[1] == 1
