"""What a view and its kernel say to each other."""

from __future__ import annotations

from typing import Any

from nbproc.logs.lines import LineEvent, Stream
from nbproc.notebook import wire


def event(number: int, text: str, *, rank: int = 0, stream: Stream = Stream.OUT, complete: bool = True) -> LineEvent:
    return LineEvent(rank, stream, number, text, complete, 1.0)


def decode(runs: list[wire.Run], buffer: bytes) -> list[LineEvent]:
    lines = buffer.decode().split("\n")
    events = []
    for rank, stream, first, count, is_open, time in runs:
        for k in range(count):
            complete = not (is_open and k == count - 1)
            events.append(LineEvent(rank, Stream(wire.STREAMS[stream]), first + k, lines.pop(0), complete, time))
    assert lines in ([], [""])
    return events


def test_lines_arrive_as_they_were_sent() -> None:
    events = [
        event(0, "a"),
        event(1, "b \x1b[31mred\x1b[0m"),
        event(2, "10%", complete=False),
        event(0, "err ä", stream=Stream.ERR),
        event(7, "", rank=3),
        event(8, "漢", rank=3),
    ]
    runs, buffer = wire.encode_lines(events)
    assert len(runs) == 3
    assert decode(runs, buffer) == events


def test_a_lone_surrogate_does_not_stop_the_view() -> None:
    runs, buffer = wire.encode_lines([event(0, "\udcff")])
    assert decode(runs, buffer)[0].text == "?"


def test_the_backlog_keeps_the_latest_text_of_a_line_at_its_place() -> None:
    backlog = wire.Backlog()
    backlog.add([event(0, "10%", complete=False), event(0, "other", stream=Stream.ERR)])
    backlog.add([event(0, "100%")])
    assert [e.text for e in backlog.take()] == ["100%", "other"]
    assert len(backlog) == 0


def test_a_message_holds_no_more_than_it_may() -> None:
    backlog = wire.Backlog(limit=10_000_000)
    backlog.add(event(k, "ä" * 1000) for k in range(300))
    taken = backlog.take(100_000)
    _, buffer = wire.encode_lines(taken)
    assert 90_000 < len(buffer) <= 100_000
    assert taken[0].number == 0
    backlog = wire.Backlog()
    backlog.add([event(0, "x" * 300_000)])
    assert len(backlog.take(1000)) == 1, "a line that is longer than a message is sent alone"


def test_a_flood_leaves_the_newest_lines() -> None:
    backlog = wire.Backlog(limit=10_000)
    for k in range(1000):
        backlog.add([event(k, "x" * 99)])
    assert [e.number for e in backlog.take(1_000_000)] == list(range(900, 1000))


def test_batches_fit_and_keep_the_order() -> None:
    events = [event(k, "x" * 999) for k in range(1000)]
    cut = wire.batches(events, 50_000)
    assert [e for batch in cut for e in batch] == events
    assert all(len(wire.encode_lines(batch)[1]) <= 50_000 for batch in cut)
    assert wire.batches([]) == []


def raised(depth: int = 0) -> Any:
    if depth:
        raised(depth - 1)
    raise ValueError("bad <b>batch</b>")


def test_a_failure_tells_what_and_where(tmp_path: Any) -> None:
    import json

    from nbproc import explain
    from nbproc.failures import ProcessFailure
    from nbproc.failures.errorfile import write_error
    from nbproc.failures.process import failure_of
    from nbproc.states import RankSnapshot, RankState, RunState, Snapshot

    failures: dict[int, ProcessFailure] = {}
    for rank in (1, 2):
        path = tmp_path / f"{rank}.json"
        try:
            raised(2)
        except ValueError as error:
            write_error(path, error, {raised.__code__.co_filename: 3}, rank)
        failures[rank] = failure_of(rank, 10 + rank, 1, path, None)
    failures[0] = failure_of(0, 10, -9, None, None)
    ranks = tuple(RankSnapshot(r, RankState.FAILED) for r in range(3))
    snapshot = Snapshot("run", RunState.FAILED, ranks, run_dir=tmp_path)
    encoded = wire.encode_report(explain.report(snapshot, failures), failures)
    assert encoded is not None
    json.dumps(encoded)
    cause, errors = words(encoded["cause"]), words(encoded["errors"])
    assert cause.startswith("ranks 1, 2 failed first (same): ValueError: bad <b>batch</b>\nin raised, cell [3] line ")
    assert "; called from raised, cell [3] line " in cause
    assert 'raise ValueError("bad <b>batch</b>")' in cause
    assert "rank 0 was killed by SIGKILL" in cause
    assert errors.index("ranks 1, 2") < errors.index("rank 0")
    assert "ValueError: bad <b>batch</b>" in errors.splitlines()
    assert wire.encode_report(explain.report(snapshot, {}), {}) is None


def words(element: list[Any]) -> str:
    """What a reader sees of an element: those that are laid out as lines end with a line's end."""
    selector, *parts = element
    inner = "".join(part if isinstance(part, str) else words(part) for part in parts if not isinstance(part, dict))
    return inner + "\n" * (selector.partition(".")[0] in ("div", "p", "pre", "h4", "summary"))


def test_text_of_a_run_is_never_a_selector_or_an_attribute_that_runs_something() -> None:
    from nbproc.failures.frames import Frame
    from nbproc.failures.traces import Trace
    from nbproc.notebook import failed

    hostile = "button onclick=alert(1)"
    frame = Frame(hostile, 1, hostile, source=((1, hostile),))
    shown = failed._traceback(Trace(hostile, hostile, (frame,), notes=(hostile,)), 1)

    def visit(element: list[Any]) -> None:
        assert element[0].replace(".", "").isalnum()
        for part in element[1:]:
            if isinstance(part, dict):
                assert set(part) <= {"tabindex", "aria-label", "title", "data-library"}
            elif not isinstance(part, str):
                visit(part)

    visit(shown)
    assert words(shown).count(hostile) >= 4
