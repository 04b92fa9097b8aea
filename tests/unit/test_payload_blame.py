from __future__ import annotations

import functools
import logging
import queue
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from payload_rank import Notebook

from nbproc.errors import PayloadError
from nbproc.ranks import payload


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "__main__", notebook.module)
    return notebook


def words(**roots: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        payload.Packer().pack(roots)
    return str(caught.value)


def test_an_attribute_of_a_variable_that_a_function_uses(notebook: Notebook) -> None:
    notebook.run(
        "import threading\n"
        "class Client:\n"
        "    def __init__(self):\n"
        "        self.url = 'x'\n"
        "        self.guard = threading.Lock()\n"
        "client_obj = Client()\n"
        "def fetch():\n"
        "    return client_obj.url\n"
        "def train():\n"
        "    return fetch()\n"
    )
    said = words(fn=notebook["train"])
    assert said.startswith("`client_obj.guard`, used by `fetch`: a lock cannot be sent to the ranks. Make it inside")
    assert "\n" not in said


def test_all_guilty_variables_are_named_at_once(notebook: Notebook) -> None:
    notebook.run(
        "import threading\n"
        "one = threading.Lock()\n"
        "many = {'a': [1, (x for x in range(3))]}\n"
        "def f():\n    return one, many\n"
    )
    lines = words(fn=notebook["f"], extra=threading.Event()).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "`one`, used by `f`",
        "`many['a'][1]`, used by `f`",
        "`extra`",
    ]
    assert "a generator cannot be sent" in lines[1]
    assert "a threading.Event cannot be sent" in lines[2]


def test_kinds(tmp_path: Path) -> None:
    with open(tmp_path / "log.txt", "w") as file:
        assert f"an open file ({tmp_path}/log.txt) cannot be sent" in words(x=file)
        assert "Open it inside" in words(x={"f": file})
    with open(tmp_path / "log.txt") as file:
        assert "an open file" in words(x=file)
    with open(tmp_path / "log.txt", "rb") as raw:
        assert "an open file" in words(x=raw)
    connection = sqlite3.connect(":memory:")
    assert "a database connection" in words(x=connection)
    connection.close()
    assert "a logging handler" in words(x=logging.StreamHandler())
    assert "a queue of threads" in words(x=queue.Queue())
    assert "a stack frame" in words(x=sys._getframe())
    assert "a thread cannot" in words(x=threading.current_thread())


def test_a_logger_goes_by_name() -> None:
    logger = logging.getLogger("some.logger")
    logger.addHandler(logging.NullHandler())
    payload.Packer().pack({"x": logger})


def test_closures_defaults_methods_and_partials() -> None:
    guard = threading.Lock()

    def closure() -> Any:
        return guard

    def default(x: Any = guard) -> Any:
        return x

    class Holder:
        def __init__(self) -> None:
            self.guard = guard

        def method(self) -> None:
            pass

    assert words(fn=closure).startswith(
        "`guard`, used by `test_closures_defaults_methods_and_partials.<locals>.closure`"
    )
    assert "a default value of" in words(fn=default)
    assert "guard`: a lock" in words(fn=Holder().method)
    assert words(args=(1, Holder())).startswith("`args[1].guard`: a lock")
    assert "a lock" in words(fn=functools.partial(print, guard))
    assert words(x={"k": {1: guard}}).startswith("`x['k'][1]`")


def test_what_is_left_out_of_the_state_is_not_blamed() -> None:
    class Careful:
        def __init__(self) -> None:
            self.hidden = threading.Lock()
            self.shown = iter(x for x in ())

        def __getstate__(self) -> dict[str, Any]:
            return {"shown": self.shown}

    assert words(x=Careful()).startswith("`x.shown`: a generator")


def test_cycles_and_deep_things() -> None:
    a: dict[str, Any] = {}
    b: dict[str, Any] = {"a": a}
    a["b"] = b
    a["guard"] = threading.Lock()
    assert words(x=a).startswith(("`x['guard']`", "`x['b']['a']"))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "`deep" in words(deep=deep)


def test_an_object_that_refuses(notebook: Notebook) -> None:
    notebook.run("class No:\n    def __reduce__(self):\n        raise RuntimeError('not me')\nno = [No()]\n")
    assert words(no=notebook["no"]) == "`no[0]`: a No cannot be sent to the ranks (RuntimeError: not me)."


def test_each_rank_is_named() -> None:
    with pytest.raises(PayloadError) as caught:
        payload.Packer().pack_each({"fn": len}, [{"args": ()}, {"args": (threading.Lock(),)}])
    assert str(caught.value).startswith("rank 1: `args[0]`: a lock")


def test_what_is_said_of_several_ranks_is_said_once() -> None:
    bad: list[dict[str, Any]] = [{"args": (threading.Lock(),)} for _ in range(3)]
    with pytest.raises(PayloadError) as caught:
        payload.Packer().pack_each({"fn": len}, bad)
    assert str(caught.value).startswith("`args[0]`: a lock")
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(PayloadError) as caught:
        payload.Packer().pack_each({"fn": len}, [{"args": ()}, *bad])
    assert str(caught.value).startswith("ranks 1-3: `args[0]`: a lock")


def test_soft_variables_are_left_out() -> None:
    values = {"keep": 1, "guard": threading.Lock(), "gen": (x for x in ())}
    packed = payload.Packer().pack({"fn": len}, variables=values, soft=["guard", "gen"])
    assert packed.names == ("fn", "keep")
    assert set(packed.dropped) == {"guard", "gen"}
    assert packed.variables == {"keep"}
    with pytest.raises(PayloadError, match="`gen`: a generator"):
        payload.Packer().pack({"fn": len}, variables=values, soft=["guard"])


def test_labels() -> None:
    with pytest.raises(PayloadError, match="`the cell`: a lock"):
        payload.Packer().pack({"fn": threading.Lock()}, labels={"fn": "the cell"})
