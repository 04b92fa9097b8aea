"""Runs in a terminal IPython: lines with their rank, bars in place, the same explanation."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest
from fakes import FakeContext

from nbproc.logs.lines import LineDiscipline, LineEvent, Stream
from nbproc.notebook.terminal import Painter, TerminalRun
from terminal import Terminal


def events(rank: int, discipline: LineDiscipline, text: str) -> list[LineEvent]:
    return [LineEvent(rank, Stream.ERR, u.number, u.text, u.complete, 0.0) for u in discipline.feed(text.encode())]


def screen(*texts: str, columns: int = 40, rows: int = 20) -> list[str]:
    shown = pyte.Screen(columns, rows)
    pyte.Stream(shown).feed("".join(texts).replace("\n", "\r\n"))
    lines = [line.rstrip() for line in shown.display]
    return [line for line in lines if line]


def test_bars_stay_under_the_lines_and_are_painted_in_place() -> None:
    painter = Painter(live=True, color=True)
    bars = [LineDiscipline(), LineDiscipline()]
    said = [painter.paint(events(rank, bars[rank], "\r 10%"), 40, 20) for rank in range(2)]
    said.append(painter.paint(events(0, bars[0], "\r 20%"), 40, 20))
    assert screen(*said) == ["rank 0:  20%", "rank 1:  10%"]
    lines = LineDiscipline()
    said.append(painter.paint([e._replace(stream=Stream.OUT) for e in events(1, lines, "a line\n")], 40, 20))
    assert screen(*said) == ["rank 1: a line", "rank 0:  20%", "rank 1:  10%"]
    said.append(painter.paint(events(0, bars[0], "\r100%\n"), 40, 20, said="stopping\n"))
    assert screen(*said) == ["rank 1: a line", "rank 0: 100%", "stopping", "rank 1:  10%"]
    said.append(painter.end())
    assert screen(*said) == ["rank 1: a line", "rank 0: 100%", "stopping", "rank 1:  10%"]


def test_a_long_bar_is_cut_at_the_edge_so_that_it_can_be_painted_over() -> None:
    painter = Painter(live=True, color=True)
    bar = LineDiscipline()
    said = [painter.paint(events(0, bar, f"\r\x1b[31m{number}{'#' * 100}\x1b[0m"), 40, 20) for number in range(3)]
    assert screen(*said) == ["rank 0: 2" + "#" * 30]


def test_more_bars_than_rows_are_bounded() -> None:
    painter = Painter(live=True, color=False)
    said = [painter.paint(events(rank, LineDiscipline(), f"\r{rank}%"), 40, 10) for rank in range(12)]
    assert screen(*said, rows=10) == [f"rank {rank}: {rank}%" for rank in range(6)]


def test_without_a_terminal_each_line_is_written_once() -> None:
    painter = Painter(live=False, color=False)
    outer = LineDiscipline()
    said = [
        painter.paint(events(0, outer, text), 40, 20)
        for text in ("\r 10%", "\r 20%", "\r100%\n", "\x1b[31mred\x1b[0m\n")
    ]
    assert "".join(said) == "rank 0: 100%\nrank 0: red\n"
    assert painter.paint(events(0, outer, "\x1b[2A\rdone"), 40, 20) == ""  # a line that was written is redrawn
    assert painter.end() == "rank 0: done\n"


@pytest.mark.parametrize("detached", [False, True])
def test_what_a_short_run_said_before_it_was_shown_is_shown(tmp_path: Path, detached: bool) -> None:
    context = FakeContext(2, tmp_path, headline="it is over")
    context.layout.shown = {(rank, Stream.OUT) for rank in range(2)}  # type: ignore[attr-defined]
    context.start().write(1, "early\n")
    if detached:
        context.finish()
    written = io.StringIO()
    run = TerminalRun(context, written, live=False, color=False, detached=detached)  # type: ignore[arg-type]
    run.begin()
    if not detached:
        context.write(1, "late\n")
        run.finish()
    said = ["rank 1: early", "trainer: it is over"] if detached else ["rank 1: early", "rank 1: late"]
    assert written.getvalue().splitlines() == ["2 ranks", *said]


@pytest.fixture(scope="module")
def ipython(tmp_path_factory: pytest.TempPathFactory, private_places: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path_factory.mktemp("terminal"))
    made.run("%load_ext nbproc")
    made.run("def f(x): print('hello from', x); return x")
    made.run("from tqdm import tqdm; import time, nbproc")
    yield made
    made.close()


LAUNCH = "OMP_NUM_THREADS=1 (unset; change with --env)"
RESULT = "results in _; _[0] is rank 0's; --as NAME keeps them"


def test_lines_have_their_rank_in_its_colour(ipython: Terminal) -> None:
    shown = ipython.run("%spawn -n 2 f(rank)")
    assert shown[0].startswith("2 ranks, sent f (")
    assert shown[0].endswith(LAUNCH)
    assert sorted(shown[1:3]) == ["rank 0: hello from 0", "rank 1: hello from 1"]
    assert shown[3:] == [RESULT]
    assert b"\x1b[36mrank 0: " in ipython.raw
    assert b"\x1b[33mrank 1: " in ipython.raw
    assert ipython.run("_")[-3:] == ["RunProcsResult of 2 ranks", "  rank 0: 0", "  rank 1: 1"]


def test_bars_are_one_line_a_rank_and_an_interrupt_is_told(ipython: Terminal) -> None:
    ipython.run("def bars(n): [time.sleep(0.05) for i in tqdm(range(n))]")
    shown = ipython.run("%spawn -n 2 bars(4)")
    assert sorted(line.partition("|")[0] for line in shown[1:-1]) == ["rank 0: 100%", "rank 1: 100%"]
    ipython.begin("%spawn -n 2 bars(10_000)")
    ipython.until(lambda: len([line for line in ipython.lines if "/10000" in line and " 0/" not in line]) == 2)
    ipython.type("\x03")
    shown = ipython.end()
    assert shown[-1].startswith("stopped by you in ")
    assert "ranks 0, 1 stopped at bars" in shown[-1]
    assert len(shown) == 4


def test_a_failure_is_explained_in_colour(ipython: Terminal) -> None:
    shown = ipython.run("%spawn -n 2 1/rank")
    count = ipython.last.partition("[")[2].partition("]")[0]
    assert f"rank 0 failed first: ZeroDivisionError: division by zero, at cell [{int(count) - 1}] line 1" in shown
    assert "    > 1  %spawn -n 2 1/rank" in shown
    assert shown[-1].startswith("logs: ")
    assert b"\x1b[0;1mrank 0 failed first:" in ipython.raw


def test_a_context_is_text(ipython: Terminal) -> None:
    shown = ipython.run("ctx = nbproc.start_processes('t', f, args={0: (1,), 1: (2,)}); r = ctx.wait()")
    assert sorted(shown) == ["hello from 1", "hello from 2"]  # as in a script: the streams are the terminal's own
    shown = ipython.run("ctx")
    assert shown[-3].startswith("t: succeeded, 2 ranks")
    assert shown[-2:] == ["  rank 0  returned", "  rank 1  returned"]
    failed = ipython.run("ctx = nbproc.start_processes('t', f, args={0: ()}); r = ctx.wait(); ctx")
    assert any(line.startswith("rank 0 failed: TypeError: f() missing 1 required") for line in failed)


@pytest.mark.parametrize("colors", ["NoColor", "Linux"])
def test_an_explanation_has_colours_where_the_shell_has_them(tmp_path: Path, private_places: Path, colors: str) -> None:
    code = "import nbproc\nnbproc.start_processes('t', lambda: 1 / 0, nprocs=1).result()"
    done = subprocess.run(
        [sys.executable, "-m", "IPython", f"--InteractiveShell.colors={colors}", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr).rpartition("rank 0 failed")[2]
    assert "ZeroDivisionError: division by zero" in said.replace("\x1b[0m", "").replace("\x1b[1m", "")
    assert ("\x1b[" in said) == (colors == "Linux")


def test_a_detached_run_tells_its_end(ipython: Terminal) -> None:
    ipython.begin("%spawn -n 1 --detach --as job f(5)")  # the prompt comes before, between or after the run's lines
    ipython.until(lambda: all(any(words in line for line in ipython.lines) for words in ("job: results in ", "In [")))
    assert any("rank 0: hello from 5" in line for line in ipython.lines), ipython.lines
    ipython.type("\n")
    ipython.end()


def test_what_is_displayed_is_named(ipython: Terminal) -> None:
    ipython.run("from IPython.display import HTML")
    shown = ipython.run("%spawn -n 1 HTML('<b>')")
    assert "rank 0: <IPython.core.display.HTML object> (display/000.html in its directory)" in shown


def test_quiet_is_quiet(ipython: Terminal) -> None:
    assert ipython.run("%spawn -n 2 --quiet f(rank)") == [RESULT]


def test_a_dumb_terminal_gets_no_escapes(tmp_path: Path) -> None:
    made = Terminal(tmp_path, term="dumb")
    try:
        made.run("%load_ext nbproc")
        shown = made.run("%spawn -n 1 print('hi')")
        assert shown[1:] == ["rank 0: hi", RESULT]
        assert b"\x1b[36m" not in made.raw
    finally:
        made.close()
    assert os.path.isdir(tmp_path)
