"""S7, S9, S10: the text of the ranks on a console and in filtered files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nbproc.logs.lines import LineDiscipline, LineEvent, Stream
from nbproc.logs.sinks import ConsoleTee, FilterFile, prefixes

OUT, ERR = Stream.OUT, Stream.ERR


def line(rank: int, number: int, text: str, *, stream: Stream = OUT, complete: bool = True) -> LineEvent:
    return LineEvent(rank, stream, number, text, complete, 0.0)


def test_prefixes_are_torchs_or_the_callers() -> None:
    assert prefixes("trainer", 2) == {0: "[trainer0]:", 1: "[trainer1]:"}
    assert prefixes("trainer", 2, {1: "(one) "}) == {0: "[trainer0]:", 1: "(one) "}


def test_complete_lines_are_written_in_one_call_with_their_prefix() -> None:
    written: list[str] = []
    tee = ConsoleTee(written.append, prefixes("t", 2), {(0, OUT), (1, OUT)})
    tee([line(0, 0, "a"), line(1, 0, "par", complete=False), line(1, 0, "b", stream=ERR), line(0, 1, "")])
    tee([line(1, 0, "part", complete=False)])
    tee([line(1, 0, "partial")])
    assert written == ["[t0]:a\n[t0]:\n", "[t1]:partial\n"]


def test_equal_lines_all_stay() -> None:
    written: list[str] = []
    tee = ConsoleTee(written.append, {}, {(0, OUT), (1, OUT)})
    tee([line(rank, number, "same") for rank in range(2) for number in range(3)])
    assert written == ["same\n" * 6]


def test_a_line_is_written_again_only_if_it_changed() -> None:
    written: list[str] = []
    tee = ConsoleTee(written.append, {}, {(0, OUT)})
    tee([line(0, 0, "50 %")])
    tee([line(0, 0, "50 %", complete=False)])
    tee([line(0, 0, "50 %")])
    tee([line(0, 0, "100 %")])
    assert written == ["50 %\n", "100 %\n"]


def test_what_is_remembered_is_bounded() -> None:
    tee = ConsoleTee(lambda text: None, {}, {(0, OUT)})
    for number in range(10_000):
        tee([line(0, number, "x")])
    assert len(tee._lines._picked[0, OUT]) <= 512


def test_a_prefix_is_never_in_the_middle_of_a_line() -> None:
    """Nested bars, as the tee of a script shows them: whole lines, each once."""
    written: list[str] = []
    tee = ConsoleTee(written.append, prefixes("t", 1), {(0, ERR)})
    discipline = LineDiscipline()
    for step in range(3):
        data = f"\router {step}\n\rinner {step}\x1b[A".encode()
        tee([LineEvent(0, ERR, *update, 0.0) for update in discipline.feed(data)])
    tee([LineEvent(0, ERR, *update, 0.0) for update in discipline.close()])
    assert "".join(written) == "[t0]:outer 2\n[t0]:inner 2\n"


def test_filtered_files_hold_matching_lines_of_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "filtered_stdout.log"
    sink = FilterFile(path, ["loss", "ERROR"], prefixes("t", 2), {(0, OUT), (1, OUT)})
    assert path.read_text() == "", "it is there even if no line matches"
    sink([line(0, 0, "loss 0.5"), line(1, 0, "hello"), line(0, 1, "lo", complete=False), line(1, 1, "an ERROR")])
    sink([line(1, 2, "\x1b[31mlo\x1b[0mss ü"), line(0, 0, "loss on stderr", stream=ERR)])
    assert path.read_text() == "[t0]:loss 0.5\n[t1]:an ERROR\n[t1]:\x1b[31mlo\x1b[0mss ü\n"


def test_a_private_filtered_file_is_the_owners_alone(tmp_path: Path) -> None:
    FilterFile(tmp_path / "f", ["x"], {}, set(), private=True)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


def test_a_filtered_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        FilterFile(tmp_path / "missing" / "f", ["x"], {}, set())
