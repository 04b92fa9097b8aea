"""What views get that come late: the last lines of each rank, and older ones from the file."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from nbproc.logs.history import History, page
from nbproc.logs.lines import LineEvent, Stream

OUT, ERR, DISPLAY = Stream.OUT, Stream.ERR, Stream.DISPLAY


def line(number: int, text: str, *, rank: int = 0, stream: Stream = OUT, complete: bool = True) -> LineEvent:
    return LineEvent(rank, stream, number, text, complete, 0.0)


def test_lines_stand_where_they_first_came_with_their_latest_text() -> None:
    history = History(2)
    history([line(0, "a"), line(0, "bar 1", stream=ERR), line(1, "b")])
    history([line(0, "bar 2", stream=ERR), line(0, "other rank", rank=1), line(0, "no such rank", rank=7)])
    assert [event.text for event in history.rows(0)] == ["a", "bar 2", "b"]
    assert [event.text for event in history.rows(1)] == ["other rank"]


def test_equal_lines_all_stay() -> None:
    history = History(1)
    history([line(n, "same") for n in range(3)])
    assert len(history.rows(0)) == 3


def test_old_lines_are_dropped_and_counted() -> None:
    history = History(1, lines=10)
    history([line(n, f"{n}") for n in range(25)] + [line(0, "error", stream=ERR)])
    assert [event.text for event in history.rows(0)] == [*map(str, range(16, 25)), "error"]
    assert (history.dropped(0, OUT), history.dropped(0, ERR), history.dropped(0, DISPLAY)) == (16, 0, 0)


def test_long_lines_count_by_their_size() -> None:
    history = History(1, bytes=1000)
    history([line(n, "x" * 300) for n in range(10)])
    assert len(history.rows(0)) == 3
    history([line(9, "y" * 5000)])
    assert [event.text[0] for event in history.rows(0)] == ["y"], "the last line is held whatever its size"


def test_lines_that_the_reader_left_out_count_as_dropped() -> None:
    history = History(1)
    history([line(0, "a"), line(1000, "1000 lines are left out"), line(1001, "b")])
    assert history.dropped(0, OUT) == 999


def test_a_dropped_line_that_is_redrawn_does_not_come_back_at_the_end() -> None:
    history = History(1, lines=2)
    history([line(n, f"{n}") for n in range(4)])
    history([line(0, "redrawn")])
    assert [event.text for event in history.rows(0)] == ["2", "3"]


def test_the_last_line_is_the_one_that_changed_last_and_is_not_blank() -> None:
    history = History(1)
    assert history.last(0) is None
    history([line(0, "a"), line(0, "50 %", stream=ERR, complete=False), line(1, ""), line(2, "\x1b[31m  \x1b[0m")])
    history([line(0, '{"n": 0}', stream=DISPLAY)])
    assert history.last(0) == line(0, "50 %", stream=ERR, complete=False)
    history([line(0, "", stream=ERR)])
    assert history.last(0) == line(0, "a")
    history([line(0, "A")])
    assert history.last(0) == line(0, "A")


@pytest.mark.parametrize("seed", range(20))
def test_many_lines_at_once_are_as_many_lines_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    at_once, singly = History(2, lines=100, bytes=3000), History(2, lines=100, bytes=3000)
    numbers = {(rank, stream): 0 for rank in range(2) for stream in Stream}
    for _ in range(20):
        batch = []
        for key in rng.sample(list(numbers), 3):
            start = max(numbers[key] - rng.choice([0, 0, 1, 5]), 0)
            numbers[key] = max(start + rng.choice([1, 3, 40, 250]), numbers[key])
            texts = [rng.choice(["", "x", "y" * 60]) for _ in range(start, numbers[key])]
            batch += [line(start + n, text, rank=key[0], stream=key[1]) for n, text in enumerate(texts)]
        at_once(batch)
        for event in batch:
            singly([event])
        for rank in range(2):
            assert at_once.rows(rank)[-20:] == singly.rows(rank)[-20:]
            assert at_once.last(rank) == singly.last(rank)


def test_it_may_be_read_while_it_is_written() -> None:
    history = History(1, lines=100)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            history([line(number + n, "x") for n in range(50)])
            number += 50

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            numbers = [event.number for event in history.rows(0)]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
            assert history.dropped(0, OUT) >= 0
    finally:
        stop.set()
        writer.join()


def test_older_lines_are_read_from_the_file_by_number(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(5000)) + b"\rbar 1\rbar 2\x1b[31m!\x1b[0m\nlast")
    assert [event.text for event in page(path, 0, OUT, 10, 3)] == ["line 10", "line 11", "line 12"]
    assert [event.text for event in page(path, 0, OUT, 4999, 10)] == ["line 4999", "bar 2\x1b[31m!\x1b[0m", "last"]
    assert page(path, 3, ERR, 0, 1) == (LineEvent(3, ERR, 0, "line 0", True, path.stat().st_mtime),)
    assert page(path, 0, OUT, 9000, 10) == ()
    assert page(tmp_path / "missing", 0, OUT, 0, 10) == ()


def test_a_page_of_a_long_file_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"x\n" * 3_000_000)
    assert len(page(path, 0, OUT, 100, 5)) == 5
