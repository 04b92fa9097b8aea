"""The kernel's side of the view, with a scripted run and a widget whose messages are kept."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeContext

from nbproc.logs.lines import Stream
from nbproc.notebook import view as views
from nbproc.notebook import wire
from nbproc.notebook.bundle import WIDGET_VIEW, bundle
from nbproc.notebook.silence import Silence
from nbproc.notebook.view import RunView
from nbproc.states import RunState


class Browser:
    """Stands for the page: keeps messages, and can ask."""

    def __init__(self) -> None:
        self.messages: list[tuple[float, dict[str, Any], bytes]] = []
        self.saved: list[dict[str, Any]] = []
        self.came = threading.Condition()
        self.view: RunView | None = None

    def take(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        with self.came:
            self.messages.append((time.monotonic(), message, b"".join(buffers)))
            self.came.notify_all()

    def wait(self, true: Any, timeout: float = 10) -> Any:
        with self.came:
            assert self.came.wait_for(lambda: true(self), timeout), [m for _, m, _ in self.messages][-5:]
            return true(self)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for _, message, _ in self.messages if message["t"] == kind]

    def lines(self, kind: str = "tick") -> list[str]:
        return [
            line
            for _, message, data in self.messages
            if message["t"] == kind and message["runs"]
            for line in data.decode().split("\n")
        ]

    def ask(self, **content: Any) -> None:
        assert self.view is not None
        self.view._receive(None, {"client": "page", **content}, [])


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    browser = Browser()
    monkeypatch.setattr(views, "asset", lambda name: f"/* {name} */")
    monkeypatch.setattr(views.RunWidget, "send", lambda _widget, message, buffers: browser.take(message, buffers))
    monkeypatch.setattr(views, "display", lambda data, **options: browser.saved.append({**data, "": options}))
    return browser


@pytest.fixture
def ctx(tmp_path: Path) -> FakeContext:
    return FakeContext(2, tmp_path / "run")


def show(ctx: FakeContext, browser: Browser) -> RunView:
    browser.view = view = RunView(ctx)  # type: ignore[arg-type]
    view.show()
    return view


def end(ctx: FakeContext, view: RunView) -> None:
    ctx.finish()
    view.finish()


def test_a_page_that_comes_late_is_given_what_was_said_before(ctx: FakeContext, browser: Browser) -> None:
    ctx.start()
    ctx.write(0, "early\n")
    view = show(ctx, browser)
    browser.wait(lambda b: "early" in b.lines())
    first = browser.of("tick")[0]
    assert first["seq"] == 1
    assert first["snap"]["state"] == "running"
    end(ctx, view)


def test_a_run_that_is_over_when_it_is_shown_is_shown_first_and_then_told(
    ctx: FakeContext, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody looks, the widget is taken out of the output at the end: that must be what comes last."""
    monkeypatch.setattr(views, "_has_reader", lambda: False)
    ctx.start()
    ctx.finish()
    subscribe = ctx.subscribe

    def subscribe_while_the_run_tells(listener: Any) -> Any:
        unsubscribe = subscribe(listener)
        listener(ctx.snapshot())
        if (thread := view._thread) is not None:
            thread.join(10)
        return unsubscribe

    monkeypatch.setattr(ctx, "subscribe", subscribe_while_the_run_tells)
    browser.view = view = RunView(ctx)  # type: ignore[arg-type]
    view.show()
    view.finish()
    assert [(WIDGET_VIEW in saved, saved[""]["update"]) for saved in browser.saved] == [(True, False), (False, True)]
    assert browser.of("tick")[-1]["snap"]["state"] == "succeeded"


def test_at_most_twenty_messages_a_second_of_256_kb(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    for k in range(100):
        ctx.write(k % 2, "".join(f"{k} {i} {'x' * 80}\n" for i in range(200)))
    end(ctx, view)
    times = [when for when, _, _ in browser.messages]
    for i in range(len(times) - 20):
        assert times[i + 20] - times[i] >= 0.95, "more than 20 messages within a second"
    assert all(len(data) <= wire.MESSAGE_BYTES for _, _, data in browser.messages)
    assert len(browser.lines()) == 20_000
    seqs = [message["seq"] for message in browser.of("tick")]
    assert seqs == list(range(1, len(seqs) + 1))


def test_all_is_sent_before_the_end(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    ctx.write(1, "last words\n")
    end(ctx, view)
    assert browser.lines()[-1] == "last words"
    assert browser.of("tick")[-1]["snap"]["state"] == "succeeded"
    view.finish()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("nbproc-view")] == []


def test_a_ping_is_answered_and_stop_asks(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    browser.ask(t="hello", seq=0)
    pong = browser.wait(lambda b: b.of("pong"))[0]
    assert pong["to"] == "page"
    browser.ask(t="stop")
    browser.ask(t="kill")
    assert ctx.asked == ["stop", "kill"]
    browser.ask(t="nonsense")
    browser.ask(t="page", rank="x")
    ctx.finish(RunState.STOPPED)
    view.finish()


def test_a_replay_holds_the_history_in_messages_that_fit(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    ctx.write(0, "".join(f"{k} {'y' * 150}\n" for k in range(3000)))
    end(ctx, view)
    browser.ask(t="replay")
    browser.wait(lambda b: b.of("replay") and len(b.of("replay")) == b.of("replay")[0]["parts"])
    parts = browser.of("replay")
    assert [part["part"] for part in parts] == list(range(len(parts)))
    assert len(parts) > 1
    assert len(browser.lines("replay")) == 3000
    assert parts[0]["snap"]["state"] == "succeeded"
    assert parts[0]["seq"] == browser.of("tick")[-1]["seq"]


def test_pages_come_from_the_log(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    ctx.write(0, "".join(f"line {k}\n" for k in range(9000)))
    browser.ask(t="page", rank=0, stream=0, first=100, count=50)
    browser.wait(lambda b: b.of("page"))
    assert browser.lines("page") == [f"line {k}" for k in range(100, 150)]
    end(ctx, view)


def test_displays_are_sent_in_pieces_and_from_their_folder_only(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    folder = ctx.layout.files.display_dir(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "000.png").write_bytes(bytes(600_000))
    browser.ask(t="display", rank=0, file="display/000.png", update=0)
    browser.wait(lambda b: len(b.of("display")) == 3)
    assert sum(len(data) for _, message, data in browser.messages if message["t"] == "display") == 600_000
    browser.ask(t="display", rank=0, file="../../../../etc/passwd", update=0)
    assert "error" in browser.wait(lambda b: b.of("display")[3:])[0]
    end(ctx, view)


def test_a_log_is_downloaded_piece_by_piece(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    ctx.write(0, b"z" * 400_000 + b"\n")
    browser.ask(t="file", rank=0, stream=0, offset=256_000)
    piece = browser.wait(lambda b: b.of("file"))[0]
    assert piece["size"] == 400_001
    assert [len(data) for _, message, data in browser.messages if message["t"] == "file"] == [144_001]
    end(ctx, view)


def test_without_a_page_the_saved_output_needs_none(ctx: FakeContext, browser: Browser) -> None:
    """Given nbclient, where no page says hello, then the last bundle has no widget, and the widget no code."""
    view = show(ctx.start(), browser)
    assert WIDGET_VIEW in browser.saved[0]
    ctx.write(0, "hello <world>\n")
    end(ctx, view)
    last = browser.saved[-1]
    assert WIDGET_VIEW not in last
    assert "hello &lt;world&gt;" in last["text/html"]
    assert "hello <world>" in last["text/plain"]
    assert last[""]["update"] is True
    assert view._widget is not None
    assert view._widget._esm == view._widget._css == ""


def test_a_run_that_is_over_before_its_page_says_hello_keeps_its_view(
    ctx: FakeContext, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a person's front end and a run of a few milliseconds, then the view is not taken away."""
    monkeypatch.setattr(views, "_has_reader", lambda: True)
    view = show(ctx.start(), browser)
    end(ctx, view)
    assert WIDGET_VIEW in browser.saved[-1]
    assert view._widget is not None
    assert view._widget._esm
    browser.ask(t="hello", seq=0)
    browser.wait(lambda b: b.of("pong"))


def test_with_a_page_the_view_stays(ctx: FakeContext, browser: Browser) -> None:
    view = show(ctx.start(), browser)
    browser.ask(t="hello", seq=0)
    end(ctx, view)
    assert WIDGET_VIEW in browser.saved[-1]


def test_the_saved_output_is_bounded(ctx: FakeContext) -> None:
    ctx.start()
    for rank in range(2):
        ctx.write(rank, "".join(f"{k} {'<&>' * 1000}\n" for k in range(400)))
        folder = ctx.layout.files.display_dir(rank)
        folder.mkdir(parents=True, exist_ok=True)
        for n in range(4):
            (folder / f"{n:03}.png").write_bytes(bytes(1_500_000))
            record = {"n": n, "file": f"display/{n:03}.png", "mime": ["image/png"], "text": "<Figure>"}
            ctx.write(rank, json.dumps(record) + "\n", Stream.DISPLAY)
    ctx.finish()
    saved = bundle(ctx, None)  # type: ignore[arg-type]
    figures = saved["text/html"].count("<img ")
    assert 1 <= figures <= 2
    assert "not saved" in saved["text/html"]
    assert len(saved["text/html"]) < 5_000_000
    assert len(saved["text/plain"]) < 500_000


def test_a_display_that_was_replaced_is_saved_once(ctx: FakeContext) -> None:
    folder = ctx.layout.files.display_dir(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "000.html").write_text("<script>bad()</script><table><tr><td>1</td></tr></table>")
    for update in range(3):
        record = {"n": 0, "file": "display/000.html", "mime": ["text/html"], "text": "a table", "update": update}
        ctx.write(0, json.dumps(record) + "\n", Stream.DISPLAY)
    saved = bundle(ctx, None)["text/html"]  # type: ignore[arg-type]
    assert saved.count("<iframe sandbox") == 1
    assert "<script" not in saved
    assert "not saved" not in saved


def test_what_a_rank_displayed_is_said_where_it_wrote_nothing(ctx: FakeContext) -> None:
    ctx.start()
    for n, kind in enumerate(("figure", "figure", "")):
        ctx.write(0, json.dumps({"n": n, "file": None, "text": "<Figure>", "kind": kind}) + "\n", Stream.DISPLAY)
    ctx.finish()
    saved = bundle(ctx, None)  # type: ignore[arg-type]
    assert "rank 0: displayed 2 figures" in saved["text/plain"].splitlines()
    assert ">displayed 2 figures</td>" in saved["text/html"]
    assert "<summary>rank 0: 2 figures</summary>" in saved["text/html"]


def test_of_many_ranks_only_those_that_change_are_told_and_at_the_end_all(tmp_path: Path, browser: Browser) -> None:
    """Given 256 ranks, when one fails and nothing else happens, then a message of it is small, and so is what is saved."""
    ctx = FakeContext(256, tmp_path / "run").start()
    view = show(ctx, browser)
    browser.ask(t="hello", seq=0)

    def told() -> list[list[int]]:
        return [[rank[0] for rank in tick["snap"]["ranks"]] for tick in browser.of("tick") if "snap" in tick]

    browser.wait(lambda _: told() == [[*range(256)]])
    ctx.fail(137)
    browser.wait(lambda b: any("failure" in tick for tick in b.of("tick")))
    ctx.tell(notes=("a note",))
    browser.wait(lambda b: b.of("tick")[-1].get("snap", {}).get("notes") == ["a note"])
    assert told()[1:] in ([[137], []], [[137], [], []])
    assert "failure" not in browser.of("tick")[-1]
    ctx.finish(RunState.FAILED)
    view.finish()
    assert told()[-1] == [*range(256)]
    assert len(browser.saved[-1]["text/html"]) < 10_000
    browser.ask(t="replay")
    replay = browser.wait(lambda b: b.of("replay"))[0]
    assert len(replay["snap"]["ranks"]) == replay["snap"]["size"] == 256


def test_a_silent_rank_is_shown_with_where_it_is(ctx: FakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a rank that has said nothing for a minute, then the view is told where it is; the one that talks is not."""
    looked: list[int] = []

    def where(rank: int) -> str:
        looked.append(rank)
        return "all_reduce"

    monkeypatch.setattr(ctx, "where", where)
    silence = Silence(ctx)  # type: ignore[arg-type]
    ctx.start(since=100)
    ctx.subscribe(lambda event: silence.heard(event) if isinstance(event, list) else None)
    ctx.write(1, "still here\n")
    assert silence.where(ctx.snapshot()) == [[0, "all_reduce"]]
    assert silence.where(ctx.snapshot()) == [[0, "all_reduce"]]
    assert looked == [0], "a stack is not looked at more than every ten seconds"


def test_all_views_are_of_one_class() -> None:
    """What anywidget adds to each widget is in the class: a class for each would cost a part of every cell."""
    widgets = [views.RunWidget(_esm="", _css="", run_id=name) for name in ("a", "b")]
    assert [type(one) for one in widgets] == [views.RunWidget, views.RunWidget]
    assert {"_esm", "_css", "run_id", "_anywidget_id"} <= set(widgets[0].keys)
    for one in widgets:
        one.close()
