"""Functions, classes and values of a notebook on their way to the ranks and back."""

from __future__ import annotations

import pytest

from kernels import Kernel

METHODS = ["forkserver", "spawn", "fork"]


@pytest.mark.parametrize("method", METHODS)
def test_a_function_of_a_cell_under_every_start_method(kernel: Kernel, method: str) -> None:
    kernel.run(
        "import numpy as np, functools\n"
        "def inner(x):\n    return float(np.ones(3).sum()) * x\n"
        "def outer(x):\n    return inner(x) + 1"
    )
    assert kernel.run(f"%spawn -n 2 --start-method {method} outer(rank)").ok
    assert kernel.ask("list(_)") == [1.0, 4.0]
    ran = kernel.run(
        f"import nbproc\nnbproc.start_processes('t', outer, args={{0: (1,), 1: (2,)}}, start_method={method!r})"
        ".wait().return_values"
    )
    assert ran.value == "{0: 4.0, 1: 7.0}", ran.text


@pytest.mark.parametrize("method", METHODS)
def test_all_kinds_of_callables(kernel: Kernel, method: str) -> None:
    kernel.run(
        "import functools, nbproc\nBASE = 10\n"
        "def plus(a, b):\n    return BASE + a + b\n"
        "def twice(function):\n"
        "    @functools.wraps(function)\n    def wrapper(*args):\n        return 2 * function(*args)\n    return wrapper\n"
        "@twice\ndef decorated(x):\n    return BASE + x\n"
        "def make(n):\n    return lambda x: n + x + BASE\n"
        "class Adder:\n    def __init__(self, n):\n        self.n = n\n"
        "    def add(self, x):\n        return self.n + x + BASE\n"
        "    def __call__(self, x):\n        return self.add(x)\n"
        "many = [functools.partial(plus, 1), decorated, make(1), lambda x: BASE + x, Adder(1).add, Adder(1)]"
    )
    ran = kernel.run(
        f"[nbproc.start_processes('t', one, args={{0: (5,)}}, start_method={method!r}).wait()[0] for one in many]"
    )
    assert ran.value == "[16, 30, 16, 15, 16, 16]", ran.text


def test_classes_of_cells_hold_in_both_directions_also_when_their_cell_was_run_again(kernel: Kernel) -> None:
    cell = (
        "import dataclasses, enum, typing, torch\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n"
        "class Color(enum.Enum):\n    RED = 1\n"
        "class Pair(typing.NamedTuple):\n    a: int\n"
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = torch.nn.Linear(2, 1)\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
        "class Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 3\n"
        "    def __getitem__(self, i):\n        return i\n"
    )
    kernel.run(cell)
    for _ in range(2):
        ran = kernel.run(
            "net = Net()\nresult = None\n"
            "get_ipython().run_cell_magic('spawn', '-n 2 --as result', '''\n"
            "assert isinstance(Point(1), Point)\nassert Color(1) is Color.RED\n"
            "Point(rank), Color.RED, Pair(rank), Net(), Data(), net''')"
        )
        assert ran.ok, ran.text
        checked = kernel.run(
            "p, c, pair, made, data, same = result[1]\n"
            "[isinstance(p, Point), p == Point(1), c is Color.RED, type(pair) is Pair, isinstance(made, Net),\n"
            " list(torch.utils.data.DataLoader(data))[2].item() == 2, torch.equal(same.layer.weight, net.layer.weight),\n"
            " made(torch.ones(2)).shape == (1,)]"
        )
        assert checked.value.replace("\n", "") == str([True] * 8), checked.text
        kernel.run(cell)  # new classes under the old names
    assert kernel.run("isinstance(result[0][0], Point)").value == "False"  # as for any object made before


def test_classes_with_slots_and_cached_properties_travel_both_ways(kernel: Kernel) -> None:
    kernel.run(
        "import abc, dataclasses, functools, typing\n"
        "class Slim(abc.ABC):\n    __slots__ = ('a', '__b')\n    def __init__(self):\n        self.a = self.__b = 1\n"
        "class Slimmer(Slim):\n    __slots__ = 'c'\n"
        "@dataclasses.dataclass(slots=True)\nclass Spot:\n    x: int = 3\n"
        "class Two(typing.NamedTuple):\n    x: int\n"
        "class Costly:\n    @functools.cached_property\n    def nine(self):\n        return 9\n"
        "costly = Costly()\ncostly.nine"
    )
    ran = kernel.run(
        "%%spawn -n 1 --as slots\nslim = Slimmer()\nslim.c = rank\n"
        "class Own:\n    __slots__ = ('d',)\nown = Own()\nown.d = 4\n"
        "slim, Spot(), Two(5), own, Costly().nine, costly.nine, hasattr(slim, '__dict__')"
    )
    assert ran.ok, ran.text
    checked = kernel.run(
        "slim, spot, two, own, *rest = slots[0]\n"
        "[type(slim) is Slimmer, slim.a + slim._Slim__b, slim.c, spot == Spot(), two == Two(5), own.d, *rest]"
    )
    assert checked.value == "[True, 2, 0, True, True, 4, 9, 9, False]", checked.text


def test_a_loader_whose_workers_persist_is_sent_without_them(kernel: Kernel) -> None:
    kernel.run(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "steady = DataLoader([1, 2, 3], num_workers=1, persistent_workers=True)\nlist(steady)"
    )
    ran = kernel.run("%%spawn -n 1 --as loaded\n[batch.item() for batch in steady], steady")
    assert ran.ok, ran.text
    assert kernel.ask("(loaded[0][0], len(loaded[0][1]), steady._iterator is None)") == ([1, 2, 3], 3, False)
    assert kernel.run("steady._iterator._shutdown_workers()").ok


def test_a_base_class_that_was_run_again_is_used_in_its_new_form(kernel: Kernel) -> None:
    kernel.run("class Greeter:\n    def hello(self):\n        return 'old'\ndef greet():\n    return Greeter().hello()")
    assert kernel.run("%spawn -n 1 greet()").ok
    assert kernel.ask("_[0]") == "old"
    kernel.run("class Greeter:\n    def hello(self):\n        return 'new'")
    assert kernel.run("%spawn -n 1 greet()").ok
    assert kernel.ask("_[0]") == "new"


def test_a_value_that_cannot_be_sent_back_is_told_and_the_others_are_there(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2\nimport threading\nout = threading.Lock() if rank else 5\nout")
    assert ran.ok
    assert ran.stdout.startswith("the return value of rank 1, a _thread.lock, cannot be read: ")
    assert kernel.ask("_[0]") == 5
    assert kernel.run("_[1]").ename == "ResultError"


def test_a_value_that_does_not_unpickle_leaves_the_others(kernel: Kernel) -> None:
    kernel.run("import os\ndef only_there():\n    if 'RANK' not in os.environ: raise ValueError('not here')\n    return 1\n"
               "class Odd:\n    def __reduce__(self):\n        return only_there, ()")  # fmt: skip
    assert kernel.run("%%spawn -n 2 --as partly\nOdd() if rank else 'fine'").ok
    assert kernel.ask("partly[0]") == "fine"
    read = kernel.run("partly[1]")
    assert read.ename == "ResultError"
    assert "rank 1" in read.error
    assert "not here" in read.error
    shown = kernel.run("partly").value.splitlines()
    assert shown[:2] == ["RunProcsResult of 2 ranks", "  rank 0: 'fine'"]
    assert shown[2].startswith("  rank 1: <ResultError: ")


def test_results_read_well(kernel: Kernel) -> None:
    assert kernel.run("%%spawn -n 2 --as out\n{'loss': 0.5 - rank / 10, 'name': 'a' * 20}").ok
    assert kernel.run("out").value == (
        "RunProcsResult of 2 ranks\n"
        "  rank 0: {'loss': 0.5, 'name': 'aaaaaaaaaaaaaaaaaaaa'}\n"
        "  rank 1: {'loss': 0.4, 'name': 'aaaaaaaaaaaaaaaaaaaa'}"
    )
    assert kernel.run("%%spawn -n 1 --as large\n'x' * 100_000").ok
    assert len(kernel.run("large").value) < 3000
    assert kernel.run("%spawn -n 1 --as program -- echo hello").ok
    assert kernel.run("program").value == "RunProcsResult of 1 rank\n  rank 0: None"


def test_large_arrays_come_and_go(kernel: Kernel) -> None:
    kernel.run("import numpy as np\nlarge = np.arange(20_000_000)")
    ran = kernel.run("%%spawn -n 2 --as back\nlarge[rank:]")
    assert ran.ok, ran.text
    assert kernel.ask("[int(back[1][0]), back[1].shape[0], float(back[0].sum()) == float(large.sum())]") == [
        1,
        19_999_999,
        True,
    ]
    kernel.run("del large, back")


def test_equal_lines_of_different_ranks_all_stay_and_keep_their_order(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%spawn -n 3 --log-dir equal --name e --filter line\nfor i in range(100):\n    print('line', i)\n    print('line', i)"
    )
    assert ran.ok, ran.text
    wanted = [f"line {i}" for i in range(100) for _ in range(2)]
    found = (kernel.folder / "equal" / "e-1" / "filtered_stdout.log").read_text().splitlines()
    for rank in range(3):
        prefix = f"[e{rank}]:"
        assert [line.removeprefix(prefix) for line in found if line.startswith(prefix)] == wanted


def test_autograd_was_used_in_the_kernel_before(kernel: Kernel) -> None:
    kernel.run(
        "import torch\nw = torch.ones(3, requires_grad=True)\n(w * 2).sum().backward()\n"
        "def step():\n    v = torch.ones(2, requires_grad=True)\n    (v * 3).sum().backward()\n    return v.grad.tolist()"
    )
    assert kernel.run("%spawn -n 2 step()").ok
    assert kernel.ask("list(_)") == [[3.0, 3.0]] * 2


def test_a_generator_and_a_client_are_named_with_type_and_path(kernel: Kernel) -> None:
    kernel.run(
        "import threading, logging, socket\n"
        "class Client:\n    def __init__(self):\n        self.session = {'guard': threading.Lock()}\n"
        "api = Client()\nnumbers = (n for n in range(3))\nfile_ = open('/dev/null')\nlog_ = logging.getLogger('mine')\n"
        "log_.addHandler(logging.StreamHandler())\n"
        "def fetch():\n    return api\n"
    )
    wanted = {
        "fetch()": ["`api.session['guard']`", "a lock cannot be sent", "fetch"],
        "sum(numbers)": ["`numbers`", "generator"],
        "file_.read()": ["`file_`", "file"],
    }
    for cell, words in wanted.items():
        ran = kernel.run(f"%%spawn -n 2\n{cell}")
        assert ran.ename == "PayloadError", ran.text
        assert ran.shown == []
        assert [word for word in words if word not in ran.error] == [], ran.error
    logged = kernel.run("%%spawn -n 1\nlog_.warning('from the rank')\nlog_.name")
    assert logged.ok or "log_" in logged.error
