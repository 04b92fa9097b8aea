"""The reader thread: growing files to events, whatever happens to the files."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nbproc.errors import StateError
from nbproc.logs.lines import LineEvent, Stream
from nbproc.logs.tail import Source, Tail

OUT, ERR, DISPLAY = Stream.OUT, Stream.ERR, Stream.DISPLAY


class Seen:
    """A sink that remembers, and that one can wait for."""

    def __init__(self) -> None:
        self.events: list[LineEvent] = []
        self.calls: list[float] = []
        self._news = threading.Condition()

    def __call__(self, events: Sequence[LineEvent]) -> None:
        with self._news:
            self.events += events
            self.calls.append(time.monotonic())
            self._news.notify_all()

    def lines(self, rank: int = 0, stream: Stream = OUT) -> list[str]:
        latest = {event.number: event.text for event in list(self.events) if event[:2] == (rank, stream)}
        return [latest[number] for number in sorted(latest)]

    def until(self, true: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(true, 20), self.events[-5:]

    def until_line(self, text: str, rank: int = 0, stream: Stream = OUT) -> None:
        self.until(lambda: any(text in line for line in self.lines(rank, stream)))


class Files:
    """The files of one rank, and the tail of them."""

    def __init__(self, root: Path) -> None:
        self.out, self.err, self.display = root / "stdout.log", root / "stderr.log", root / "display.jsonl"
        self.seen = Seen()
        self.tails: list[Tail] = []

    def tail(self, *, lossless: bool = True, more: Sequence[Callable[[Sequence[LineEvent]], object]] = ()) -> Tail:
        sources = [Source(0, OUT, self.out), Source(0, ERR, self.err), Source(0, DISPLAY, self.display)]
        tail = Tail("run", sources, [*more, self.seen], lossless=lossless)
        self.tails.append(tail)
        tail.start()
        return tail

    def write(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def show(self, **record: object) -> None:
        self.write(self.display, json.dumps(record).encode() + b"\n")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    files = Files(tmp_path)
    yield files
    for tail in files.tails:
        tail.finish(10)


# ------------------------------------------------------------------------------------------------ growing files


def test_lines_arrive_while_the_file_grows(files: Files) -> None:
    tail = files.tail()
    files.write(files.out, b"one\ntw")
    files.seen.until_line("tw")
    files.write(files.out, b"o\n")
    files.seen.until_line("two")
    files.write(files.err, b"oops")
    files.seen.until_line("oops", stream=ERR)
    assert tail.finish()
    assert files.seen.lines() == ["one", "two"]
    assert files.seen.events[-1][:5] == (0, ERR, 0, "oops", True)


def test_finish_reads_everything_that_is_there(files: Files) -> None:
    tail = files.tail()
    files.write(files.out, b"".join(b"line %d\n" % n for n in range(200_000)) + b"no newline")
    assert tail.finish()
    assert len(files.seen.lines()) == 200_001
    assert files.seen.events[-1].text == "no newline"
    assert files.seen.events[-1].complete


def test_catching_up_gives_last_lines_as_they_are(files: Files) -> None:
    tail = files.tail()
    files.write(files.out, b"x" * 20_000_000 + b"\nno new")
    assert tail.catch_up(20)
    assert [(event.text, event.complete) for event in files.seen.events[-1:]] == [("no new", True)]
    files.write(files.out, b"line\nthen")
    files.seen.until_line("then")
    assert files.seen.lines()[1:] == ["no newline", "then"]
    assert not files.seen.events[-1].complete
    assert tail.catch_up(20)
    assert files.seen.events[-1].complete


def test_finish_does_not_wait_for_the_next_look(files: Files) -> None:
    tail = files.tail()
    files.write(files.out, b"x\n")
    files.seen.until_line("x")
    began = time.monotonic()
    assert tail.finish()
    assert time.monotonic() - began < 5
    assert tail.finish(), "again is the same"


def test_finish_without_start_and_start_twice(files: Files, tmp_path: Path) -> None:
    assert Tail("never", [Source(0, OUT, tmp_path / "x")], [], lossless=True).finish()
    tail = files.tail()
    with pytest.raises(StateError):
        tail.start()


def test_a_start_that_an_interrupt_cuts_short_is_finished_all_the_same(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start
    later: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        later.append(thread)
        raise KeyboardInterrupt

    tail = Tail("run", [Source(0, OUT, files.out)], [files.seen], lossless=True)
    files.write(files.out, b"a line\n")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tail.start()
    helper = threading.Thread(target=lambda: tail._finishing.wait(60) and begin(later[0]))
    helper.start()
    assert tail.finish()
    helper.join()
    assert [event.text for event in files.seen.events] == ["a line"]


def test_files_that_never_come_are_no_trouble(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    assert files.tail().finish()
    assert files.seen.events == []
    assert caplog.text == ""


def test_sinks_are_called_at_most_20_times_a_second(files: Files) -> None:
    files.tail()
    deadline = time.monotonic() + 1.0
    number = 0
    while time.monotonic() < deadline:
        files.write(files.out, b"%d\n" % number)
        number += 1
    calls = [call for call in files.seen.calls if call < deadline]
    assert len(calls) <= 21


def test_odd_bytes(files: Files) -> None:
    tail = files.tail()
    files.write(files.out, b"a\0b\n\xff\xfe\n<script>x</script>\n" + "größe".encode()[:3])
    files.seen.until_line("script")
    files.write(files.out, "größe".encode()[3:] + b"\n" + b"y" * 10_000_000 + b"\nend\n")
    assert tail.finish()
    lines = files.seen.lines()
    assert lines[:4] == ["ab", "\ufffd\ufffd", "<script>x</script>", "größe"]
    assert lines[4].endswith("[cut here: 9,934,464 more characters]")
    assert lines[5:] == ["end"]
    assert max(len(event.text) for event in files.seen.events) < 70_000


def test_a_redrawn_region_settles_when_the_stream_is_quiet(files: Files) -> None:
    files.tail()
    files.write(files.out, b"bar 1\nbar 2\x1b[A\rBAR 1\nbar 2")
    files.seen.until(lambda: any(event[:5] == (0, OUT, 0, "BAR 1", True) for event in files.seen.events))


# ------------------------------------------------------------------------------------------------ what happens to files


def test_a_removed_file_is_noted_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    tail = files.tail()
    with caplog.at_level(logging.WARNING):
        files.write(files.out, b"one\nhalf")
        files.seen.until_line("half")
        files.out.unlink()
        files.seen.until_line("was removed")
        files.write(files.err, b"the other goes on\n")
        files.seen.until_line("goes on", stream=ERR)
        assert tail.finish()
    assert files.seen.lines()[:2] == ["one", "half"]
    assert len(files.seen.lines()) == 3
    assert caplog.text.count("was removed") == 1


def test_a_removed_directory_is_never_fatal(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    files = Files(tmp_path / "0")
    tail = files.tail()
    files.write(files.out, b"one\n")
    files.seen.until_line("one")
    files.out.unlink()
    (tmp_path / "0").rmdir()
    files.seen.until_line("was removed")
    assert tail.finish(10)


def test_a_replaced_file_is_read_from_its_beginning(files: Files, tmp_path: Path) -> None:
    tail = files.tail()
    files.write(files.out, b"old 1\nold 2\n")
    files.seen.until_line("old 2")
    (tmp_path / "new").write_bytes(b"new 1\n" * 10)
    (tmp_path / "new").replace(files.out)
    files.seen.until_line("new 1")
    assert tail.finish()
    assert files.seen.lines()[2].startswith("[nbproc: stdout.log was replaced")
    assert files.seen.lines()[3:] == ["new 1"] * 10


def test_a_file_that_was_cut_is_read_from_its_beginning(files: Files) -> None:
    tail = files.tail()
    files.write(files.out, b"a long first line\n")
    files.seen.until_line("first line")
    os.truncate(files.out, 0)
    files.seen.until_line("was cut short")
    files.write(files.out, b"b\n")
    assert tail.finish()
    assert files.seen.lines()[-1] == "b"


def test_an_unreadable_file_is_noted_once(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: object, *args: object) -> int:
        if str(path) == str(files.out):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args)  # type: ignore[arg-type]

    real = os.open
    files.write(files.out, b"x\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        tail = files.tail()
        files.write(files.err, b"y\n")
        files.seen.until_line("y", stream=ERR)
        assert tail.finish(10)
    assert caplog.text.count("cannot be read: Permission denied") == 1


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stdout.log")
    files = Files(tmp_path)
    assert files.tail().finish(10)
    assert files.seen.events == []


# ------------------------------------------------------------------------------------------------ sinks


def test_a_sink_that_raises_is_dropped_and_the_others_go_on(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def broken(events: Sequence[LineEvent]) -> None:
        calls.append(len(events))
        raise OSError("disk full")

    tail = files.tail(more=[broken])
    with caplog.at_level(logging.ERROR):
        files.write(files.out, b"one\n")
        files.seen.until_line("one")
        files.write(files.out, b"two\n")
        files.seen.until_line("two")
        assert tail.finish()
    assert calls == [1]
    assert "disk full" in caplog.text


def test_a_sink_may_ask_the_tail_to_finish(files: Files) -> None:
    answers: list[bool] = []
    tail = files.tail(more=[lambda events: answers.append(files.tails[0].finish(5))])
    files.write(files.out, b"x\n")
    files.seen.until_line("x")
    assert tail.finish()
    assert answers == [False]


def test_finish_gives_up_on_a_sink_that_hangs(files: Files) -> None:
    going_on = threading.Event()
    tail = files.tail(more=[lambda events: going_on.wait(60)])
    files.write(files.out, b"x\n")
    try:
        assert not tail.finish(0.2)
    finally:
        going_on.set()


# ------------------------------------------------------------------------------------------------ bounded


def test_without_a_lossless_sink_the_reader_skips_and_says_so(files: Files) -> None:
    files.write(files.out, b"".join(b"%07d %s\n" % (n, b"x" * 91) for n in range(400_000)) + b"tail")
    assert files.tail(lossless=False).finish()
    lines = {event.number: event.text for event in files.seen.events}
    note = next(text for text in lines.values() if "left out" in text)
    assert "lines (" in note
    assert note.endswith("stdout.log]")
    assert len(lines) < 25_000
    assert lines[400_000] == "tail", "later lines keep their numbers"
    assert lines[399_999].startswith("0399999 ")


def test_a_lossless_reader_skips_nothing(files: Files) -> None:
    files.write(files.out, (b"x" * 99 + b"\n") * 300_000)
    assert files.tail().finish()
    assert len({event.number for event in files.seen.events}) == 300_000


def test_a_huge_line_is_not_skipped_but_cut(files: Files) -> None:
    files.write(files.out, b"x" * 30_000_000 + b"\nend\n")
    assert files.tail(lossless=False).finish()
    assert files.seen.lines()[0].endswith("more characters]")
    assert files.seen.lines()[1] == "end"


# ------------------------------------------------------------------------------------------------ displays


def kinds(events: Sequence[LineEvent]) -> list[str]:
    return [json.loads(event.text)["n"] if event.stream is DISPLAY else event.text for event in events]


def test_a_display_stands_after_what_was_written_before_it(files: Files) -> None:
    files.write(files.out, b"a\nb\nc\n")
    files.write(files.err, b"e\n")
    files.show(n="first", stdout=2, stderr=0)
    files.show(n="second", stdout=4, stderr=2)
    assert files.tail().finish()
    assert kinds(files.seen.events) == ["a", "first", "b", "e", "second", "c"]
    displays = [event for event in files.seen.events if event.stream is DISPLAY]
    assert [(event.rank, event.number, event.complete) for event in displays] == [(0, 0, True), (0, 1, True)]


def test_a_display_waits_for_output_that_comes_later(files: Files) -> None:
    files.tail()
    files.show(n="shown", stdout=4, stderr=0)
    files.write(files.err, b"e\n")
    files.write(files.out, b"one\n")
    files.seen.until(lambda: any(event.stream is DISPLAY for event in files.seen.events))
    order = kinds(files.seen.events)
    assert order.index("one") < order.index("shown")


def test_a_display_whose_output_never_comes_is_shown_all_the_same(files: Files) -> None:
    files.tail()
    files.show(n="shown", stdout=10_000)
    files.seen.until(lambda: any(event.stream is DISPLAY for event in files.seen.events))


def test_a_display_that_is_being_written_waits_and_nonsense_is_left_out(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    tail = files.tail()
    files.write(files.display, b'nonsense\n[1]\n\n\xff\n{"n": "who')
    files.write(files.out, b"x\n")
    files.seen.until_line("x")
    files.write(files.display, b'le", "stdout": "nonsense"}\n{"n": "cut')
    assert tail.finish()
    assert kinds([event for event in files.seen.events if event.stream is DISPLAY]) == ["whole"]
    assert caplog.text.count("no JSON object") == 3
