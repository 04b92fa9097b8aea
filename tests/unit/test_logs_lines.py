"""Lines as a terminal would show them: pyte is the judge."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pyte
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from log_recordings import RECORDINGS

from nbproc.logs.lines import LineDiscipline, LineEvent, LineFilter, Stream, Update, plain

Lines = dict[int, tuple[str, bool]]


def fed(chunks: Iterable[bytes], *, settle: bool = False) -> Lines:
    """Return each line's last text after all chunks."""
    discipline = LineDiscipline()
    lines: Lines = {}
    for chunk in chunks:
        apply(lines, discipline.feed(chunk))
        if settle:
            apply(lines, discipline.settle())
    apply(lines, discipline.close())
    return lines


def apply(lines: Lines, updates: list[Update]) -> None:
    numbers = [update.number for update in updates]
    assert numbers == sorted(set(numbers)), "a line is said once a call, in order"
    lines.update({number: (text, complete) for number, text, complete in updates})


def texts(*chunks: bytes) -> list[str]:
    return [text for _, (text, _) in sorted(fed(chunks).items())]


def split(data: bytes, seed: int, size: int) -> list[bytes]:
    rng = random.Random(seed)
    out = []
    while data:
        n = rng.randint(1, size)
        out.append(data[:n])
        data = data[n:]
    return out


def terminal(text: str) -> pyte.Screen:
    screen = pyte.Screen(columns=400, lines=120)
    pyte.Stream(screen).feed(text.replace("\r\n", "\n").replace("\n", "\r\n"))
    return screen


def painted(screen: pyte.Screen) -> list[list[tuple[object, ...]]]:
    """Return the visible characters with their looks, by row."""
    rows: list[list[tuple[object, ...]]] = []
    for y in range(screen.lines):
        cells: list[tuple[object, ...]] = [
            (x, c.data, c.fg, c.bg, c.bold, c.italics, c.underscore, c.strikethrough, c.reverse)
            for x, c in sorted(screen.buffer[y].items())
            if c.data.strip()
        ]
        rows.append(cells)
    while rows and not rows[-1]:
        rows.pop()
    return rows


# ------------------------------------------------------------------------------------------------ against a terminal


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("size", [1, 7, 80, 100_000])
def test_recordings_look_as_in_a_terminal(name: str, size: int) -> None:
    recorded = RECORDINGS[name]()
    lines = fed(split(recorded.encode(), size, size))
    assert sorted(lines) == list(range(max(lines) + 1)), "no number is left out"
    ours = "\n".join(text for _, (text, _) in sorted(lines.items()))
    assert painted(terminal(ours)) == painted(terminal(recorded))
    assert all(complete for _, complete in lines.values())
    assert all("\x1b" not in plain(text) for text, _ in lines.values())


MOVES = st.sampled_from(
    [
        *("\r", "\n", "\b", "\x1b[A", "\x1b[2A", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[3C", "\x1b[2D", "\x1b[7G"),
        *("\x1b[31m", "\x1b[0m", "\x1b[1;4m", "\x1b[22m", "\x1b[38;5;7m", "\x1b[48;2;1;2;3m", "\x1b[39;49m"),
        *("\x1b[F", "\x1b[X", "\x1b[J", "\x1b[?25l", "\x1b]0;title\x07", "\x1b(B"),
    ]
)
WORDS = st.text(st.sampled_from("abcdefgh 0123█"), min_size=1, max_size=9)


@given(st.lists(MOVES | WORDS, max_size=40).map("".join), st.integers(1, 9), st.integers(0, 9))
@example("abc\rx\n\ny\x1b[2A\x1b[K", 1, 1)
def test_any_movement_looks_as_in_a_terminal(text: str, size: int, seed: int) -> None:
    # Erased cells take the colour of the brush in pyte; only what is written counts here.
    screen = terminal(text)
    ours = "\n".join(text for _, (text, _) in sorted(fed(split(text.encode(), seed, size)).items()))
    assert painted(terminal(ours)) == painted(screen)


# ------------------------------------------------------------------------------------------------ any bytes at all

BYTES = st.lists(
    st.binary(max_size=20)
    | st.text(max_size=10).map(str.encode)
    | st.sampled_from(
        [b"\x1b", b"\x1b[", b"\x1b[3", b"1m", b"\x1b]8;;", b"\x1b\\", b"\a", b"\r", b"\n", b"\r\n", b"\0"]
    )
    | st.sampled_from([b"\x1b[A", b"\x1b[5A", b"\x1b[9999999B", b"\x1b[99999999C", b"\x1b[K", b"\x1b[J", b"\xf0\x9f"])
    | st.sampled_from(
        ["漢字".encode(), "e\u0301".encode(), "👩‍🔬".encode(), b"\xc2\x9b31m", b"\x1b[1;31m", b"\b", b"\x18"]
    ),
    max_size=30,
).map(b"".join)


def unblanked(lines: Lines) -> Lines:
    """Leave out empty lines at the end: whether they were ever said depends on whether anybody saw them with a text."""
    end = max((n for n, (text, _) in lines.items() if text), default=-1)
    return {n: line for n, line in lines.items() if n <= end}


@given(BYTES, st.integers(0, 1000), st.integers(1, 12))
def test_any_split_gives_the_same_lines(data: bytes, seed: int, size: int) -> None:
    whole = unblanked(fed([data]))
    assert unblanked(fed(split(data, seed, size))) == whole
    assert unblanked(fed(split(data, seed, size), settle=True)) == whole
    assert unblanked(fed(bytes([byte]) for byte in data)) == whole
    for text, complete in whole.values():
        assert complete
        bare = plain(text)
        assert not any(char in bare for char in "\0\x07\b\n\v\f\r\x1b\x7f\x85\x9b")
        assert text.count("\x1b") == 0 or text.endswith("\x1b[0m") or "\x1b[0m" in text


def test_long_streams_are_split_independent() -> None:
    rng = random.Random(5)
    parts = [
        b"line %d\n",
        b"\x1b[32mgreen %d\x1b[0m\n",
        b"\rbar %d",
        b"\x1b[2A\rup %d\n\n",
        "größe %d 漢\n".encode(),
        b"\n",
    ]
    data = b"".join((part % n if b"%" in part else part) for n in range(5000) for part in [rng.choice(parts)])
    whole = fed([data])
    assert len(whole) > 2000
    for size in (13, 999, 50_000):
        assert fed(split(data, size, size)) == whole


# ------------------------------------------------------------------------------------------------ what a line is


def test_plain_lines() -> None:
    discipline = LineDiscipline()
    assert discipline.feed(b"one\ntwo\nthr") == [(0, "one", True), (1, "two", True), (2, "thr", False)]
    assert discipline.feed(b"ee\n") == [(2, "three", True)]
    assert discipline.feed(b"\n") == [(3, "", True)]
    assert discipline.feed(b"last") == [(4, "last", False)]
    assert discipline.close() == [(4, "last", True)]
    assert discipline.close() == []


def test_a_bar_is_one_line_and_coalesces() -> None:
    discipline = LineDiscipline()
    assert discipline.feed(b"".join(b"\r%3d %%" % n for n in range(100))) == [(0, " 99 %", False)]
    assert discipline.feed(b"\r100 %\n") == [(0, "100 %", True)]


def test_a_shorter_text_leaves_the_rest_of_the_longer_one() -> None:
    assert texts(b"abcdef\rxy\n") == ["xycdef"]
    assert texts(b"abcdef\r", b"xy\x1b[K\n") == ["xy"]


def test_the_cursor_goes_up_by_another_sequence() -> None:
    assert texts(b"one\ntwo\x1bMX\n") == ["oneX", "two"]


def test_blanks_that_erase_are_no_text_and_blanks_that_were_printed_are() -> None:
    assert texts(b"100%\r    \rok\nkept   \n") == ["ok", "kept   "]


def test_a_character_cut_in_two_and_bytes_that_are_no_text() -> None:
    assert texts(b"gr\xc3", b"\xb6\xc3", b"\x9fe\n") == ["größe"]
    assert texts(b"a\xffb\n\xe2\x82") == ["a\ufffdb", "\ufffd"]


def test_nul_bells_and_titles_are_dropped_and_markup_is_text() -> None:
    assert texts(b"a\0b\x07c\x1b]0;evil\nd<script>alert(1)</script>\n") == ["abc", "d<script>alert(1)</script>"]
    assert texts(b"\x1b]8;;javascript:x\x07link\x1b]8;;\x07\n") == ["link"]


def test_each_line_carries_its_own_colour() -> None:
    assert texts(b"\x1b[1;31mone\ntwo\x1b[0m\n") == ["\x1b[1;31mone\x1b[0m", "\x1b[1;31mtwo\x1b[0m"]
    assert texts(b"\x1b[31ma\x1b[32mb\x1b[mc\n") == ["\x1b[31ma\x1b[0;32mb\x1b[0mc"]


def test_wide_and_combining_characters_keep_the_columns() -> None:
    assert texts("漢字ab\r\x1b[4Cx\n".encode()) == ["漢字xb"]
    assert texts("漢字\rx\n".encode()) == ["x 字"]
    assert texts("e\u0301f\r\x1b[1Cg\n".encode()) == ["e\u0301g"]


def test_a_line_of_10_mb_is_cut_and_says_so() -> None:
    for chunks in ([b"x" * 10_000_000 + b"\nshort\n"], [b"x" * 100_000] * 100 + [b"\nshort\n"]):
        lines = fed(chunks)
        assert len(lines[0][0]) < 66_000
        assert lines[0][0].endswith("x… [cut here: 9,934,464 more characters]")
        assert lines[1] == ("short", True)
    assert texts(b"x" * 10_000_000, b"\r\x1b[Kok\n") == ["ok"]
    assert len(texts(("漢" * 100_000).encode())[0]) < 66_000


def test_lines_that_are_being_redrawn_are_not_complete() -> None:
    discipline = LineDiscipline()
    lines: Lines = {}
    apply(lines, discipline.feed(b"start\nbar 1\nbar 2\nbar 3\x1b[2A\rbar 1\nbar 2\nbar 3"))
    assert lines == {0: ("start", True), 1: ("bar 1", False), 2: ("bar 2", False), 3: ("bar 3", False)}
    assert discipline.held
    apply(lines, discipline.settle())
    assert [complete for _, complete in lines.values()] == [True, True, True, False]
    assert not discipline.held
    apply(lines, discipline.feed(b"\x1b[2A\rBAR"))
    assert lines[1] == ("BAR 1", False)
    apply(lines, discipline.feed(b"\n\n\n" + b"line\n" * 6))
    assert all(complete for _, complete in lines.values())


def test_a_pause_completes_what_may_be_continued_after_all() -> None:
    discipline = LineDiscipline()
    lines: Lines = {}
    apply(lines, discipline.feed(b"one\n\x1b[31mre"))
    apply(lines, discipline.pause())
    assert lines == {0: ("one", True), 1: ("\x1b[31mre\x1b[0m", True)}
    assert discipline.pause() == []
    apply(lines, discipline.feed(b"d\x1b[0m caf\xc3"))
    assert lines[1] == ("\x1b[31mred\x1b[0m caf", False)
    apply(lines, discipline.pause())
    apply(lines, discipline.feed(b"\xa9\nend"))
    assert lines == {0: ("one", True), 1: ("\x1b[31mred\x1b[0m café", True), 2: ("end", False)}


def test_the_cursor_reaches_only_so_far_back() -> None:
    data = b"".join(b"%d\n" % n for n in range(1000)) + b"\x1b[999Aup"
    lines = fed([data])
    assert lines[1000 - 128] == ("up2", True)
    assert [lines[n][0] for n in (0, 870, 999)] == ["0", "870", "999"]


def test_movements_cannot_fill_the_memory() -> None:
    discipline = LineDiscipline()
    updates = discipline.feed(b"\x1b[99999999Cx\n" * 1000 + b"\x1b[99999999Gx\n" * 1000 + b"\x1b[99999999B\n" * 10)
    assert max(len(update.text) for update in updates) <= 301
    assert len(updates) == 2010


def test_styled_rows_give_their_memory_back() -> None:
    data = b"".join(b"\x1b[%dm%s\x1b[0m\rx\n" % (31 + n % 7, b"y" * 9000) for n in range(100))
    assert fed(split(data, 1, 20_000)) == fed([data])


def test_skipped_lines_are_counted() -> None:
    discipline = LineDiscipline()
    lines: Lines = {}
    apply(lines, discipline.feed(b"zero\none\nhal"))
    apply(lines, discipline.skip(10, "10 lines are left out"))
    apply(lines, discipline.feed(b"twelve\n"))
    assert lines == {
        **{0: ("zero", True), 1: ("one", True), 2: ("hal", True)},
        **{11: ("10 lines are left out", True), 12: ("twelve", True)},
    }


def test_a_note_stands_on_a_line_of_its_own() -> None:
    discipline = LineDiscipline()
    lines: Lines = {}
    apply(lines, discipline.feed(b"\x1b[31mhal"))
    apply(lines, discipline.note("the file is gone"))
    apply(lines, discipline.feed(b"more\n"))
    assert lines == {0: ("\x1b[31mhal\x1b[0m", True), 1: ("the file is gone", True), 2: ("more", True)}


# ------------------------------------------------------------------------------------------------ small things


def test_filters_ignore_colours() -> None:
    accept = LineFilter(["loss 0", "ERROR"])
    assert accept.matches("epoch 1 \x1b[31mloss\x1b[0m 0.5")
    assert not accept.matches("loss 1")
    assert not LineFilter([]).matches("anything")


def test_events_are_values() -> None:
    event = LineEvent(0, Stream.OUT, 3, "x", True, 1.5)
    assert event == LineEvent(rank=0, stream=Stream("stdout"), number=3, text="x", complete=True, time=1.5)
    with pytest.raises(AttributeError):
        event.text = "y"  # type: ignore[misc]
