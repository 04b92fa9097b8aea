"""An exception becomes plain values, whatever it is."""

from __future__ import annotations

import builtins
import json
import linecache
import sys
from typing import Any

import pytest

from nbproc.failures import Trace, format_trace, from_exception, where_of
from nbproc.failures.traces import MESSAGE_BYTES, cut_middle

CELL = "/tmp/ipykernel_1/123.py"


def caught(source: str, file: str = CELL, **names: Any) -> BaseException:
    """Run source as the code of a cell and return what it raises."""
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    try:
        exec(compile(source, file, "exec"), {"__name__": "__main__", **names})
    except BaseException as exc:
        return exc
    raise AssertionError("it raised nothing")


def trace_of(source: str, **names: Any) -> Trace:
    return from_exception(caught(source, **names), {CELL: 5})


def test_frames_name_the_cell_and_hold_its_source():
    trace = trace_of("def train(n):\n    x = 1\n    return x / n\n\ntrain(0)\n")
    inner = trace.frames[-1]
    assert trace.words == "ZeroDivisionError: division by zero"
    assert (inner.cell, inner.line, inner.function) == (5, 3, "train")
    assert inner.source == ((1, "def train(n):"), (2, "    x = 1"), (3, "    return x / n"), (4, ""), (5, "train(0)"))
    assert inner.words == "train, cell [5] line 3"
    assert inner.location == "Cell In[5], line 3"
    assert trace.frames[-2].words == "cell [5] line 5"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")
def test_columns_point_at_the_failing_expression_in_characters():
    frame = trace_of("d = {}\nx = 'é', d['ключ'] + 1\n").frames[-1]
    assert frame.columns is not None
    assert frame.text[slice(*frame.columns)] == "d['ключ']"


def test_the_chain_is_kept_and_its_sentences_are_pythons():
    trace = trace_of("try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('b') from e\n")
    assert trace.cause is not None
    assert trace.cause.type_name == "ZeroDivisionError"
    assert trace.context is None
    assert "direct cause" in format_trace(trace)
    context = trace_of("try:\n    1 / 0\nexcept Exception:\n    int('x')\n")
    assert context.context is not None
    assert "During handling" in format_trace(context)
    hidden = trace_of("try:\n    1 / 0\nexcept Exception:\n    raise ValueError('b') from None\n")
    assert hidden.suppressed
    assert hidden.context is None


def test_cycles_end():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    trace = from_exception(one)
    assert trace.cause is not None
    assert trace.cause.cause is None


def test_a_long_chain_is_cut_and_says_so():
    exc = ValueError("last")
    inner: BaseException = exc
    for number in range(5000):
        inner.__cause__ = KeyError(number)
        inner = inner.__cause__
    links = from_exception(exc).chain()
    assert len(links) < 20
    assert "too long" in links[0][0].notes[-1]


def test_a_message_of_50_mb_loses_its_middle():
    trace = from_exception(ValueError("a" * 25_000_000 + "b" * 25_000_000))
    assert len(trace.message.encode()) < MESSAGE_BYTES + 100
    assert trace.message.startswith("aaa")
    assert trace.message.endswith("bbb")
    assert "49,934,464 characters cut" in trace.message


@pytest.mark.parametrize("text", ["é" * 40_000, "\ud800" * 70_000, "x" * (MESSAGE_BYTES + 1)])
def test_cutting_never_breaks_a_character(text: str):
    cut = cut_middle(text)
    assert "characters cut" in cut
    assert len(cut.encode()) <= MESSAGE_BYTES + 100


def test_a_short_message_stays_as_it_is():
    assert cut_middle("Grüße, 世界") == "Grüße, 世界"
    assert cut_middle("x" * MESSAGE_BYTES) == "x" * MESSAGE_BYTES


class Odd(Exception):
    def __init__(self, a: int, *, b: int) -> None:
        self.lock = open  # not to be sent
        self.a, self.b = a, b


class Mute(Exception):
    def __str__(self) -> str:
        raise TypeError("no words")


class WorseThanMute(Exception):
    def __str__(self) -> str:
        raise Mute


class NoText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class Liar(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise RuntimeError


@pytest.mark.parametrize(
    ("exc", "words"),
    [
        (Odd(1, b=2), "Odd: 1"),
        (Mute(), "Mute: <no message: its str() raised TypeError: no words>"),
        (WorseThanMute(), "WorseThanMute: <no message: its str() raised Mute>"),
        (NoText(), "NoText: <no message: its str() raised TypeError: __str__ returned non-string (type int)>"),
        (Liar("x"), "Liar: x"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), None),
        (ValueError("\ud800"), "ValueError: \\ud800"),
    ],
)
def test_odd_exceptions(exc: BaseException, words: str | None):
    trace = from_exception(exc)
    assert words is None or trace.words == words
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")
def test_groups_and_notes():
    source = "e = ExceptionGroup('several', [ValueError(1), ExceptionGroup('in', [KeyError(2)])])\n"
    trace = trace_of(f"{source}e.add_note('seen at night')\nraise e\n")
    assert [member.type_name for member in trace.group] == ["ValueError", "ExceptionGroup"]
    assert trace.group[1].group[0].words == "KeyError: 2"
    assert trace.notes == ("seen at night",)
    text = format_trace(trace)
    assert "  | ValueError: 1" in text
    assert "seen at night" in text
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")
def test_a_wide_group_is_cut_and_says_so():
    group = vars(builtins)["ExceptionGroup"]("many", [ValueError(i) for i in range(100)])
    trace = from_exception(group)
    assert len(trace.group) == 15
    assert trace.notes == ("... and 85 more exceptions in this group",)


def test_the_backport_of_groups_counts(monkeypatch: pytest.MonkeyPatch):
    class BaseExceptionGroup(Exception):
        exceptions = (ValueError("inner"),)

    module = type(sys)("exceptiongroup")
    module.BaseExceptionGroup = BaseExceptionGroup  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "exceptiongroup", module)
    assert from_exception(BaseExceptionGroup("outer")).group[0].message == "inner"


def test_notes_that_are_no_text():
    exc = ValueError("x")
    exc.__notes__ = ["one", 2, object()]  # type: ignore[attr-defined]
    notes = from_exception(exc).notes
    assert notes[:2] == ("one", "2")


def test_recursion_keeps_both_ends():
    trace = trace_of("def down(n):\n    return down(n + 1)\ndown(0)\n")
    assert trace.type_name == "RecursionError"
    assert len(trace.frames) < 12
    assert sum(frame.skipped for frame in trace.frames) > 500
    assert "more frames" in format_trace(trace)


def test_mutual_recursion_keeps_both_ends():
    trace = trace_of("def a(n):\n    return b(n)\ndef b(n):\n    return a(n)\na(0)\n")
    assert len(trace.frames) <= 40
    assert sum(frame.skipped for frame in trace.frames) > 500


def test_a_syntax_error_points_at_its_place():
    source = "x = 1\ny = = 2\n"
    linecache.cache[CELL] = (len(source), None, source.splitlines(True), CELL)
    with pytest.raises(SyntaxError) as raised:
        compile(source, CELL, "exec")
    trace = from_exception(raised.value, {CELL: 5})
    assert trace.syntax is not None
    assert trace.syntax.words == "cell [5] line 2"
    assert trace.message == "invalid syntax"
    assert trace.where is trace.syntax
    text = format_trace(trace)
    assert "Cell In[5], line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax" in text


def test_a_syntax_error_without_a_place():
    assert from_exception(SyntaxError("made by hand")).words == "SyntaxError: made by hand"


def test_where_prefers_the_users_own_code():
    trace = trace_of("import json\ndef load(text):\n    return json.loads(text)\nload('{')\n")
    assert trace.frames[-1].is_library
    assert trace.where is not None
    assert trace.where.words == "load, cell [5] line 3"
    where = where_of(trace)
    assert where is not None
    assert where.words == "load, cell [5] line 3, in loads"
    assert not where.waiting


def test_machinery_on_the_outside_is_left_out(tmp_path):
    import runpy

    script = tmp_path / "script.py"
    script.write_text("def f():\n    raise ValueError('x')\nf()\n")
    try:
        runpy.run_path(str(script))
    except ValueError as exc:
        exc.__traceback__ = exc.__traceback__.tb_next if exc.__traceback__ else None  # this test's own frame
        trace = from_exception(exc)
    assert [frame.place for frame in trace.frames] == ["script.py line 3", "script.py line 2"]


def test_an_error_in_machinery_alone_keeps_its_frames():
    import multiprocessing.util

    code = compile("def f():\n    raise ValueError\n", multiprocessing.util.__file__, "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    try:
        names["f"]()
    except ValueError as exc:
        exc.__traceback__ = exc.__traceback__.tb_next if exc.__traceback__ else None
        trace = from_exception(exc)
    assert len(trace.frames) == 1


@pytest.mark.parametrize("data", [{}, {"type_name": "X"}, {"type_name": "X", "message": "m", "frames": [{"file": 1}]}])
def test_json_of_another_shape_is_refused(data: dict[str, Any]):
    with pytest.raises((TypeError, ValueError, KeyError)):
        Trace.from_json(data)


def test_markers_follow_tabs_and_control_characters_are_harmless():
    trace = trace_of("def f():\n\tif 1:\n\t\tx = '\x1b[2J' + g\nf()\n")
    text = format_trace(trace)
    assert "\x1b" not in text
    if sys.version_info >= (3, 11):
        frame = trace.frames[-1]
        assert frame.columns is not None
        assert frame.text[slice(*frame.columns)] == "g"


def test_what_torch_carries_over_from_a_worker_is_said_not_that_it_was_caught():
    inner = 'Traceback (most recent call last):\n  File "a.py", line 6, in get\n    raise KeyError(1)\nKeyError: 1\n'
    carried = "Caught IndexError in DataLoader worker process 0.\nOriginal "
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 7, in get\n    raise IndexError\n'
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    for message, words in (
        (carried + inner, "KeyError: 1"),
        (carried + inner + during + traceback + "IndexError: no item 0.\nAt all.\n", "IndexError: no item 0"),
        (carried + traceback, "IndexError"),
    ):
        assert Trace("IndexError", message).words == f"{words} (in DataLoader worker process 0)"
