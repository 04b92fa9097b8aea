"""HTML for the saved notebook: escaped, bounded, readable without styles, without scripts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nbproc.explain import report, text
from nbproc.failures import ProcessFailure, Trace, failure_of
from nbproc.failures.frames import Frame
from nbproc.logs.lines import LineEvent, Stream
from nbproc.notebook.alike import alike
from nbproc.notebook.html import LIMIT, RankLog, duration, lines_html, report_html, run_html, summary_html
from nbproc.notebook.sgr import sgr_to_html
from nbproc.states import RankSnapshot, RankState, RunState, Snapshot

ALLOWED = {"div", "p", "pre", "span", "strong", "code", "br", "table", "tbody", "tr", "td", "details", "summary"}
NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)>&amp;\"'"


class Reader(HTMLParser):
    """Reads HTML as a page without styles; refuses what does not belong there."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= {"class", "style"}
        if tag == "br":
            self.text += "\n"
            return
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("p", "pre", "tr", "summary"):
            self.text += "\n"
        elif tag == "td":
            self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


def failure(rank: int, message: str = "bad batch") -> ProcessFailure:
    frame = Frame("/tmp/c.py", 30, "check", ((29, f"# {NASTY}"), (30, "fail(x)")), cell=3, columns=(0, 4))
    trace = Trace("ValueError", message, frames=(frame,))
    data = {
        "message": {"message": trace.words, "extraInfo": {"timestamp": "1", "py_callstack": ""}},
        "nbproc": {"version": 1, "time": 1.0, "trace": trace.to_json()},
    }
    return failure_of(rank, 1, 1, None, None, data=data)


def snapshot(n: int = 3, failed: int | None = 2, name: str = "trainer") -> Snapshot:
    ranks = tuple(
        RankSnapshot(
            rank,
            RankState.FAILED if rank == failed else RankState.SUCCEEDED if failed is None else RankState.STOPPED,
            started=100.0,
            ended=109.5,
            words="ValueError: bad batch" if rank == failed else "" if failed is None else "stopped at train",
        )
        for rank in range(n)
    )
    state = RunState.SUCCEEDED if failed is None else RunState.FAILED
    return Snapshot(name, state, ranks, Path("runs/<1>"), 100.0, 109.5, failed)


def lines(rank: int, count: int, words: str = "epoch", stream: Stream = Stream.OUT) -> list[LineEvent]:
    return [LineEvent(rank, stream, number, f"{words} {number}", True, 0.0) for number in range(count)]


def test_a_report_reads_the_same_as_its_text():
    shown = report(snapshot(), {2: failure(2)})
    read = Reader(report_html(shown)).text
    for line in text(shown).splitlines()[:-2]:
        assert line in read


def test_everything_from_a_run_is_escaped():
    state = snapshot(name=NASTY)
    state = Snapshot(**{**state.__dict__, "headline": NASTY, "notes": (NASTY,)})
    logs = {2: RankLog(lines(2, 3, NASTY) + lines(2, 1, NASTY, Stream.ERR), older=5, file=Path(f"/tmp/{NASTY}"))}
    html = run_html(state, report(state, {2: failure(2, NASTY)}), logs, launch=NASTY)
    read = Reader(html)
    assert read.text.count(NASTY) >= 8
    assert "alert" not in re.sub(r">[^<]*<", "><", html)
    assert "alert" in Reader(run_html(state, None, logs)).text


def test_bare_it_has_an_order_and_says_all():
    state = snapshot()
    logs = {rank: RankLog(lines(rank, 2)) for rank in range(3)}
    read = Reader(run_html(state, report(state, {2: failure(2)}), logs, launch="3 ranks, sent train")).text
    parts = [
        "failed trainer 3 ranks, 0:09",
        "rank 2 failed first: ValueError: bad batch, in check, cell [3] line 30",
        "ranks 0, 1 stopped at train",
        "    > 30  fail(x)",
        "3 ranks, sent train",
        "rank 0 stopped 0:09 stopped at train",
        "rank 2 failed 0:09 ValueError: bad batch",
        "rank 2: 2 lines\nepoch 0\nepoch 1",
        "rank 0: 2 lines",
        "rank 1: 2 lines",
        "logs: runs/<1>",
    ]
    at = [read.index(part) for part in parts]
    assert at == sorted(at)


def test_a_run_that_succeeded_shows_each_ranks_last_line():
    state = snapshot(2, None)
    read = Reader(run_html(state, None, {0: RankLog(lines(0, 3))})).text
    assert "succeeded trainer 2 ranks, 0:09" in read
    assert "rank 0 succeeded 0:09 epoch 2" in read
    assert "rank 1 succeeded 0:09" in read


def test_a_large_run_is_bounded_and_says_what_is_cut():
    state = snapshot(64)
    logs = {
        rank: RankLog(lines(rank, 1000, "\x1b[31mred <&>\x1b[0m" * 40), older=7, file=Path("stdout.log"))
        for rank in range(64)
    }
    html = run_html(state, report(state, {2: failure(2, "x\n" * 5000)}), logs)
    assert len(html.encode()) <= LIMIT
    read = Reader(html).text
    assert "older lines in stdout.log" in read
    kept = {int(rank): int(count) for rank, count in re.findall(r"rank (\d+): last (\d+) line", read)}
    assert list(kept) == [2, 0, 1, *range(3, 16)]
    assert kept[2] > 2 * kept[3] >= 2
    assert "The last lines of 16 ranks are kept here; those of the other 48 are in runs/<1>" in read


def test_one_huge_line_is_cut():
    state = snapshot(1, None)
    html = run_html(state, None, {0: RankLog(lines(0, 1, "<" * 10_000_000))})
    assert len(html.encode()) <= LIMIT
    assert "(line cut)" in html


def test_many_ranks_that_are_alike_share_rows_the_first_failure_before_all():
    read = Reader(summary_html(snapshot(1000, 137))).text.splitlines()
    assert read == [
        "rank 137 failed 0:09 ValueError: bad batch ",
        "ranks 0-136, 138-999 999 stopped 0:09 stopped at train ",
    ]


def test_a_long_list_of_ranks_is_folded_and_whole():
    ranks = tuple(RankSnapshot(rank, words="" if rank % 2 else "waits") for rank in range(64))
    read = Reader(summary_html(Snapshot("trainer", RunState.RUNNING, ranks))).text
    assert read.count("32 ranks\nranks ") == 2
    assert f"ranks {', '.join(map(str, range(0, 64, 2)))} waiting  waits" in read


def test_many_ranks_have_a_row_for_each_state_however_they_ended():
    """Given 300 ranks that all say something else, then some are told apart, and no rank is without its state."""
    ranks = [RankSnapshot(rank, list(RankState)[rank % 6], words=f"words {rank}") for rank in range(300)]
    state = Snapshot("trainer", RunState.FAILED, tuple(ranks), first_failed=10)
    groups = alike(state)
    assert groups[0].name == "rank 10"
    assert len(groups) <= 40
    assert sorted(rank.rank for group in groups for rank in group.ranks) == list(range(300))
    assert all({rank.state for rank in group.ranks} == {group.state} for group in groups)
    assert [group.words.split()[-1] for group in groups[-6:]] == ["ways"] * 6
    assert summary_html(state).count("<tr ") == len(groups)


def test_the_logs_of_some_of_many_ranks_stand_for_all():
    """Given 256 ranks that write, then the log that failed, one of each other kind and the lowest ranks are kept."""
    state = snapshot(256, 137)
    ranks = [*state.ranks]
    ranks[200] = RankSnapshot(200, RankState.SUCCEEDED, words="returned")
    state = Snapshot(**{**state.__dict__, "ranks": tuple(ranks)})
    logs = {rank: RankLog(lines(rank, 20)) for rank in range(256)}
    html = run_html(state, report(state, {137: failure(137)}), logs)
    read = Reader(html).text
    assert re.findall(r"^rank (\d+): 20 lines$", read, re.M) == [str(rank) for rank in (137, *range(14), 200)]
    assert "rank 200 succeeded  epoch 19" in " ".join(read.split(" "))
    assert "those of the other 240 are in runs/<1>" in read
    assert len(html) < 20_000
    assert html.count("<") < 300


def test_what_many_ranks_said_last_is_told_of_one():
    state = snapshot(64, None)
    read = Reader(run_html(state, None, {rank: RankLog(lines(rank, 3)) for rank in range(64)})).text
    assert "ranks 0-63 64 succeeded 0:09 rank 0: epoch 2" in read


def test_colours_count_as_what_they_cost_the_page():
    """Given logs full of colours, then fewer lines are kept: JupyterLab parses the style of each piece."""
    coloured = {rank: RankLog(lines(rank, 200, "\x1b[31mred\x1b[0m " * 20)) for rank in range(4)}
    html = run_html(snapshot(4, None), None, coloured)
    assert html.count("<span") < 4_000
    assert "rank 0: last" in html


def test_what_was_displayed_is_counted_and_is_no_line():
    shown = [LineEvent(0, Stream.DISPLAY, number, "{}", True, 0.0) for number in range(3)]
    kinds = {0: "figure", 1: "figure", 2: "table"}
    logs = {
        0: RankLog(shown, displays={0: "<p>FIGURE</p>"}, kinds=kinds),
        1: RankLog([*lines(1, 1), *shown[:1]], kinds={0: "output"}),
    }
    read = Reader(run_html(snapshot(2, None), None, logs)).text
    assert "rank 0 succeeded 0:09 displayed 2 figures, 1 table" in read
    assert "rank 0: 2 figures, 1 table\n" in read
    assert "rank 1 succeeded 0:09 epoch 0" in read
    assert "rank 1: 1 line, 1 output\n" in read


def test_what_was_displayed_stands_in_its_place():
    events = [*lines(0, 1), LineEvent(0, Stream.DISPLAY, 0, "{}", True, 0.0), *lines(0, 2)[1:]]
    html = lines_html(events, {0: "<p>FIGURE</p>"})
    assert html.index("epoch 0") < html.index("FIGURE") < html.index("epoch 1")
    assert "(displayed: not saved)" in lines_html(events)


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0.0 s"), (0.42, "0.4 s"), (9.9, "0:09"), (75, "1:15"), (3723, "1:02:03")]
)
def test_durations(seconds: float, words: str):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("plain <b>", "plain &lt;b&gt;"),
        ("\x1b[1mbold\x1b[0m", '<span style="font-weight:bold">bold</span>'),
        ("\x1b[1;4;9mx\x1b[22my\x1b[mz", None),
        ("\x1b[37mwhite\x1b[39m", "white"),
        ("\x1b[90mgrey\x1b[31mred", None),
        ("\x1b[38;5;226mx", None),
        ("\x1b[38;5mx", "x"),
        ("\x1b[38;2;1mx", "x"),
        ("\x1b[999;;mx", "x"),
        ("\x1b[2Jx", "[2Jx"),
        ("\x1b]8;;javascript:alert(1)\x07x", "]8;;javascript:alert(1)\x07x"),
        ("\x1b[41mx", '<span style="background:rgb(205,49,49);color:#fff">x</span>'),
        ("\x1b[48;2;255;255;0mx", '<span style="background:rgb(255,255,0);color:#000">x</span>'),
    ],
)
def test_colours(source: str, html: str | None):
    shown = sgr_to_html(source)
    Reader(shown)
    assert html is None or shown == html


@pytest.mark.parametrize("rgb", [(255, 255, 0), (0, 0, 0), (255, 255, 255), (0, 0, 90), (128, 128, 128), (0, 255, 0)])
def test_any_colour_can_be_read_on_white_and_on_black(rgb: tuple[int, int, int]):
    shown = sgr_to_html(f"\x1b[38;2;{';'.join(map(str, rgb))}mx")
    found = re.search(r"#(..)(..)(..)", shown)
    if found is None:
        assert shown == "x"  # the page's own colour
        return
    linear = [
        (value / 12.92 if (value := int(part, 16) / 255) <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
        for part in found.groups()
    ]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    assert 1.05 / (light + 0.05) > 3
    assert (light + 0.05) / 0.0556 > 3
