from __future__ import annotations

import array
import functools
import gc
import importlib
import importlib.util
import math
import os
import socket
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from payload_rank import Notebook, Rank

from nbproc.errors import PayloadError, ResultError
from nbproc.ranks import identity, payload, results


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


def test_an_old_result_finds_the_class_when_its_cell_was_run_again(rank: Rank, notebook: Notebook) -> None:
    cell = "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int\ndef make():\n    return Point(1)\n"
    notebook.run(cell)
    old = weakref.ref(notebook["Point"])
    result = rank.result(payload.Packer().pack({"fn": notebook["make"], "args": ()}))
    notebook.run(cell)
    gc.collect()
    assert old() is None
    assert type(result.value()) is notebook["Point"]
    assert type(rank.call(notebook["make"])) is notebook["Point"]


def test_while_the_old_class_lives_its_instances_are_its_own(rank: Rank, notebook: Notebook) -> None:
    cell = "class Point:\n    pass\ndef make():\n    return Point()\n"
    notebook.run(cell)
    old = notebook["Point"]
    packed = payload.Packer().pack({"fn": notebook["make"], "args": ()})
    result = rank.result(packed)
    notebook.run(cell)
    assert type(result.value()) is old


def test_a_class_that_is_gone_is_a_result_error(rank: Rank, notebook: Notebook) -> None:
    notebook.run("class Point:\n    pass\ndef make():\n    return Point()\n")
    result = rank.result(payload.Packer().pack({"fn": notebook["make"], "args": ()}))
    del notebook.names["Point"], notebook.names["make"]
    gc.collect()
    with pytest.raises(ResultError, match="Point is no longer defined in the notebook"):
        result.value()


def test_a_result_changes_nothing_in_the_notebook(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "factor = 3\n"
        "class Model:\n    limit = 1\n    def go(self):\n        return factor\n"
        "def make():\n"
        "    global factor\n"
        "    factor = 99\n"
        "    Model.limit = 5\n"
        "    class Local:\n        def get(self):\n            return factor\n"
        "    return Model(), (lambda: factor), Local()\n"
    )
    model, function, local = rank.call(notebook["make"])
    assert (notebook["factor"], notebook["Model"].limit) == (3, 1)
    assert model.go() == 3
    assert function() == 99
    assert local.get() == 99
    assert notebook["factor"] == 3


def test_decorators_closures_lambdas_partials_methods_and_callable_objects(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "import functools\n"
        "def twice(f):\n"
        "    @functools.wraps(f)\n"
        "    def inner(*args):\n        return f(*args) * 2\n"
        "    return inner\n"
        "@twice\ndef add(x):\n    return x + 1\n"
        "def outer(n):\n"
        "    def inner(x):\n        nonlocal n\n        n += x\n        return n\n"
        "    return inner\n"
        "class Call:\n"
        "    base = 10\n"
        "    def __init__(self, n):\n        self.n = n\n"
        "    def __call__(self, x):\n        return self.base + self.n + x\n"
        "    @classmethod\n    def make(cls, x):\n        return cls(x).n\n"
        "    @staticmethod\n    def plain(x):\n        return x\n"
        "    @property\n    def double(self):\n        return self.n * 2\n"
        "@functools.lru_cache\ndef cached(x):\n    return x * 5\n"
        "def recursive(x):\n    return 1 if x < 2 else x * recursive(x - 1)\n"
    )
    assert rank.call(notebook["add"], 3) == 8
    assert rank.call(notebook["outer"](5), 1) == 6
    assert rank.call(lambda x: x + 1, 1) == 2
    assert rank.call(functools.partial(notebook["add"], 5)) == 12
    assert rank.call(notebook["Call"](1), 2) == 13
    assert rank.call(notebook["Call"](1).__call__, 2) == 13
    assert rank.call(notebook["Call"].make, 2) == 2
    assert rank.call(notebook["Call"].plain, 2) == 2
    assert rank.call(lambda one: one.double, notebook["Call"](4)) == 8
    assert rank.call(notebook["recursive"], 5) == 120
    assert rank.call(notebook["cached"], 5) == 25


def test_names_of_types(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "import functools, typing\n"
        "UserId = typing.NewType('UserId', int)\n"
        "T = typing.TypeVar('T')\n"
        "P = typing.ParamSpec('P')\n"
        "class Box(typing.Generic[T]):\n"
        "    def get(self, x: T) -> T:\n        return x\n"
        "    @functools.cache\n    def slow(self, x: UserId):\n        return x * 2\n"
        "class Shape(typing.Protocol):\n    def area(self) -> float: ...\n"
        "class Config(typing.TypedDict):\n    a: int\n"
        "def use(x: UserId, f: typing.Callable[P, T], c: Config, s: Shape | None = None) -> Box[int]:\n"
        "    assert isinstance(functools.lru_cache(len), object)\n"
        "    return Box().get(UserId(x)) + Box().slow(x)\n"
    )
    assert rank.call(notebook["use"], 2, None, None) == 6


def test_variables_become_those_of_main(rank: Rank, notebook: Notebook) -> None:
    notebook.run("import math\ndef names():\n    import __main__\n    return sorted(vars(__main__)), x\n")
    value = rank.call(notebook["names"], variables={"x": 5, "rate": 0.1, "math": math})
    assert {"x", "rate", "math"} <= set(value[0])
    assert value[1] == 5
    assert "__builtins__" in value[0]


def test_main_has_its_builtins_module(rank: Rank, notebook: Notebook) -> None:
    notebook.run("def kind():\n    import __main__\n    return type(__main__.__builtins__).__name__\n")
    assert rank.call(notebook["kind"]) == "module"


def test_definitions_are_found_in_main_by_pickle(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "import pickle\nclass Item:\n    pass\n"
        "def use(item):\n    return type(pickle.loads(pickle.dumps(item))) is type(item)\n"
    )
    assert rank.call(notebook["use"], notebook["Item"]())


def test_the_texts_of_cells_come_along(notebook: Notebook) -> None:
    notebook.run("def helper():\n    pass\n")
    notebook.run("def train():\n    helper()\n")
    packer = payload.Packer(describe=lambda name: int(name[-4]) if "cell_" in name else None)
    packed = packer.pack({"fn": notebook["train"]})
    assert {source.cell: source.text for source in packed.sources.values()} == {
        1: "def helper():\n    pass\n",
        2: "def train():\n    helper()\n",
    }


def test_what_is_not_used_is_not_sent(notebook: Notebook) -> None:
    notebook.run("big = bytes(10_000_000)\ndef f():\n    return 1\ndef g():\n    return big\n")
    assert payload.Packer().pack({"fn": notebook["f"]}).size < 5000
    assert payload.Packer().pack({"fn": notebook["g"], "big": notebook["big"]}).sizes["big"] < 100
    assert payload.Packer().pack({"fn": notebook["g"]}).sizes["fn"] > 10_000_000


def test_a_module_made_at_run_time_goes_by_value(
    rank: Rank, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("made_here")
    monkeypatch.setitem(sys.modules, "made_here", module)
    exec("limit = 4\nclass Thing:\n    size = 2\ndef area(x):\n    return x * limit\n", vars(module))
    notebook.run(
        "import made_here\ndef use(x):\n    return made_here.area(x), made_here.Thing().size, made_here.limit\n"
    )
    assert rank.call(module.area, 2) == 8
    assert rank.call(notebook["use"], 3) == (12, 2, 4)
    assert rank.call(lambda thing: thing.size, module.Thing()) == 2
    import cloudpickle

    assert "made_here" not in cloudpickle.list_registry_pickle_by_value()


def test_a_file_off_the_path_goes_by_value(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aside.py").write_text("def f(x):\n    return x + 100\n")
    spec = importlib.util.spec_from_file_location("aside", tmp_path / "aside.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "aside", module)
    spec.loader.exec_module(module)
    assert rank.call(module.f, 1) == 101


def test_a_file_on_the_path_goes_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("def f(x):\n    return x + 100\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("beside")
    packed = payload.Packer().pack({"fn": module.f})
    assert b"beside" in b"".join(packed.chunks)
    assert packed.size < 100
    monkeypatch.delitem(sys.modules, "beside")


def test_a_value_that_does_not_unpickle(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "def explode():\n    raise KeyError('gone')\n"
        "class Bad:\n    def __reduce__(self):\n        return explode, ()\n"
        "def make():\n    return Bad()\n"
    )
    result = rank.result(payload.Packer().pack({"fn": notebook["make"], "args": ()}))
    for _ in range(2):
        with pytest.raises(
            ResultError, match=r"rank 0, a Bad, cannot be read: it does not unpickle here: KeyError"
        ) as caught:
            result.value()
        assert (caught.value.rank, caught.value.type_name) == (0, "Bad")


def test_large_and_small_values(rank: Rank) -> None:
    for size in (0, 1, 1000, 30_000, 33_000, 65_536, 1_000_000, 200_000_000):
        assert len(rank.call(lambda data: data, b"x" * size)) == size
    many = {str(i): bytearray(i % 7) for i in range(20_000)}
    assert rank.call(lambda one: one, many) == many
    buffers = [array.array("d", [float(i)] * 10) for i in range(5000)]
    assert rank.call(lambda one: one, buffers) == buffers


def test_packing_imports_neither_torch_nor_numpy(tmp_path: Path) -> None:
    script = (
        "import socket, sys\n"
        "from nbproc.ranks import payload, results\n"
        "def f(x):\n    return x\n"
        "packed = payload.Packer().pack({'fn': f, 'args': (1, b'x' * 100_000)})\n"
        "left, right = socket.socketpair()\n"
        "with payload.store([packed]) as shipment:\n"
        "    payload.send(left, shipment[0])\n"
        "roots = payload.receive(right).load()\n"
        "results.send(left, results.pack_result(roots['args']))\n"
        "results.receive_result(right, 0).value()\n"
        "print(sorted({'torch', 'numpy', 'IPython'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[]\n"


def test_a_plain_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from payload_rank import Rank\n"
        "import dataclasses\n"
        "@dataclasses.dataclass\nclass Config:\n    rate: float\n"
        "scale = 2\n"
        "def train(config):\n    return Config(config.rate * scale)\n"
        "rank = Rank()\n"
        "result = rank.call(train, Config(0.5))\n"
        "print(result, isinstance(result, Config))\n"
        "rank.end()\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout == "Config(rate=1.0) True\n"


def test_a_forked_rank_returns_the_notebooks_own_classes(rank: Rank, notebook: Notebook) -> None:
    notebook.run("class Point:\n    pass\nclass Other:\n    pass\n")
    rank.call(lambda one: None, notebook["Point"]())  # from now on cloudpickle knows the class
    left, right = socket.socketpair()
    with left, right:
        pid = os.fork()
        if pid == 0:
            try:
                identity.inherit()
                results.send(left, results.pack_result([notebook["Point"](), notebook["Other"]()]))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        values = results.receive_result(right, 0).value()
    assert [type(one) for one in values] == [notebook["Point"], notebook["Other"]]


def test_a_run_inside_a_rank_returns_the_ranks_classes(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "class Point:\n    pass\n"
        "def inner():\n    return Point()\n"
        "def outer(paths):\n"
        "    import sys\n"
        "    sys.path[:0] = paths\n"
        "    from payload_rank import Rank\n"
        "    below = Rank()\n"
        "    value = below.call(inner)\n"
        "    below.end()\n"
        "    assert type(value) is Point\n"
        "    return value\n"
    )
    assert (
        type(rank.call(notebook["outer"], [path for path in sys.path if path.endswith("tests")])) is notebook["Point"]
    )


def test_exceptions_whatever_their_constructor_wants(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "class Odd(Exception):\n"
        "    def __init__(self, code, *, path):\n"
        "        super().__init__(f'{code} at {path}')\n"
        "        self.code = code\n"
        "def work():\n"
        "    try:\n        raise Odd(5, path='x')\n"
        "    except Odd as error:\n        return error, FileNotFoundError(2, 'no', 'f'), UnicodeDecodeError('a', b'b', 0, 1, 'c')\n"
    )
    odd, missing, decode = rank.call(notebook["work"])
    assert type(odd) is notebook["Odd"]
    assert (str(odd), odd.code) == ("5 at x", 5)
    assert missing.filename == "f"
    assert decode.reason == "c"


def test_single_dispatch(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "import functools\n"
        "@functools.singledispatch\ndef show(x):\n    return 'thing'\n"
        "@show.register\ndef _(x: int):\n    return 'number'\n"
        "def use():\n    return show(1), show('x')\n"
    )
    assert rank.call(notebook["use"]) == ("number", "thing")


def test_what_does_not_unpickle_in_a_rank_is_named(rank: Rank, notebook: Notebook) -> None:
    notebook.run(
        "def explode():\n    raise KeyError('gone')\nclass Bad:\n    def __reduce__(self):\n        return explode, ()\n"
    )
    with pytest.raises(
        AssertionError, match=r"(?s)KeyError: 'gone'" + (r".*unpacked `bad`" if sys.version_info >= (3, 11) else "")
    ):
        rank.call(len, (), variables={"bad": notebook["Bad"]()})
