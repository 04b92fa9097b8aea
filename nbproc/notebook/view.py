"""The live view of a run in a notebook: one widget, fed by one thread of ours.

The run calls `RunView` from its own threads; they only put what is new into a backlog. The view's thread sends it:
one message at most every 50 ms, of at most 256 kB. Nothing here prints, and a message from the browser only sets
something: it may be handled on any thread, also while a cell blocks the kernel.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nbproc.notebook import front_ends, wire
from nbproc.notebook.bundle import bundle
from nbproc.notebook.busy import answer_while_busy, pump
from nbproc.notebook.replies import Replies
from nbproc.notebook.silence import Silence
from nbproc.notebook.usage import Usage
from nbproc.states import Snapshot

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext
    from nbproc.logs.lines import LineEvent

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
TICK = 1 / wire.MESSAGES_PER_SECOND
USAGE_PERIOD = 1.0
SAVE_PERIODS = (10.0, 20.0, 40.0, 60.0)
DRAIN = 20.0
HURRIED = 3


@cache
def asset(name: str) -> str:
    """Return the text of a file that the front end's build has made."""
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{STATIC / name} is missing: build it with `npm ci && npm run build` in nbproc/notebook/frontend"
        ) from None


class RunWidget(anywidget.AnyWidget):
    """The view's model: it holds its code and a name; everything else travels in messages."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    _anywidget_id = traitlets.Unicode(f"{__name__}.RunWidget").tag(sync=True)
    run_id = traitlets.Unicode().tag(sync=True)

    def add_traits(self, **traits: Any) -> None:
        """Add what the class does not have: a widget that anywidget adds something to gets a class of its own."""
        missing = {name: trait for name, trait in traits.items() if not self.has_trait(name)}
        if missing:
            super().add_traits(**missing)


_layouts: list[ipywidgets.Layout] = []


def _layout() -> ipywidgets.Layout:
    """Return the layout of all views, which says nothing: each would make its own, for 3 ms of every cell."""
    if not _layouts or _layouts[0].comm is None:  # closed, as `Widget.close_all()` does
        _layouts[:] = [ipywidgets.Layout()]
    return _layouts[0]


class RunView:
    """Show one run in the output of a cell. Two views of one run are two of these."""

    def __init__(self, ctx: PContext) -> None:
        self._ctx = ctx
        self._lock = threading.Condition()
        self._backlog = wire.Backlog()
        self._replies = Replies(ctx)
        self._outbox: deque[tuple[dict[str, Any], list[bytes]]] = deque()
        self._usage = Usage()
        self._silence = Silence(ctx)
        self._seq = 0
        self._news: dict[str, Any] = {}
        self._changed: Snapshot | None = None
        self._told: Snapshot | None = None
        self._told_failure: dict[str, Any] | None = None
        self._due = 0.0
        self._answers_turn = False
        self._saves = 0
        self._save_due = 0.0
        self._hello = False
        self._front_end = ""
        self._reader = True
        self._saved_whole = False
        self._shown = False
        self._thread: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._widget: RunWidget | None = None
        self._display_id = f"nbproc-{uuid.uuid4().hex}"

    def show(self) -> None:
        """Display the view in the current output. Call it once, on the thread that runs the cell; does not block."""
        self._shown = True
        self._reader = _has_reader()
        self._front_end = front_ends.current()
        self._widget = self._made()
        self._publish(update=False)  # before anything is sent: of a run that is over already the end is sent at once
        self._follow()

    def attach(self) -> RunWidget:
        """Return the view's widget, to stand in another widget: nothing is displayed here, and nothing is saved.

        Call it once, in place of `show`, on any thread; does not block.
        """
        self._widget = widget = self._made()
        self._follow()
        return widget

    def _made(self) -> RunWidget:
        widget = RunWidget(_esm=asset("view.js"), _css=asset("view.css"), run_id=uuid.uuid4().hex, layout=_layout())
        answer_while_busy(widget)
        widget.on_msg(self._receive)
        return widget

    def _follow(self) -> None:
        unsubscribe = self._ctx.subscribe(self._listen)
        with self._lock:
            self._unsubscribe = unsubscribe
            self._take_history()
            self._changed = self._ctx.snapshot()
            self._save_due = time.monotonic() + SAVE_PERIODS[0]
        self._run_thread()

    def finish(self) -> None:
        """Send what is left and save the run's final text in the output. May be called twice; blocks for moments."""
        self._listen(self._ctx.snapshot())
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(DRAIN)
        self._save_final()

    def pump(self) -> None:
        """Handle messages of the browser while the caller's loop blocks a kernel that cannot (ipykernel 6)."""
        pump()

    # What the run tells, on its threads

    def _listen(self, event: Sequence[LineEvent] | Snapshot) -> None:
        with self._lock:
            if isinstance(event, Snapshot):
                self._changed = event
            else:
                self._backlog.add(event)
                self._silence.heard(event)
            self._lock.notify()
        self._run_thread()

    def _take_history(self) -> None:
        history = self._ctx.history
        if history is None:
            return
        for rank in range(self._ctx.nprocs):
            self._backlog.add(history.rows(rank))

    def _failure(self) -> dict[str, Any] | None:
        failures = dict(self._ctx.failures)
        return wire.encode_report(self._ctx.report(), failures) if failures else None

    # What the browser asks, on whatever thread the kernel handles it

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        try:
            self._answer(content)
        except Exception:  # a view must not end a run, and ipywidgets would print this into some cell
            log.exception("a message of the view was not understood: %.200r", content)

    def _answer(self, content: dict[str, Any]) -> None:
        kind, client = str(content.get("t")), str(content.get("client", ""))
        if kind == "stop":
            self._ctx.stop()
        elif kind == "kill":
            self._ctx.kill()
        elif kind in ("hello", "ping"):
            self._say({"t": "pong", "to": client, "seq": self._seq})
            if kind == "hello":
                self._hello = True
                front_ends.note(self._front_end)
        elif kind == "replay":
            with self._lock:
                seq, snapshot = self._seq, wire.encode_snapshot(self._ctx.snapshot())
            replay = self._replies.replay(seq, snapshot, self._failure())
            for message, buffers in replay:
                self._say({**message, "to": client}, buffers)
        else:
            for message, buffers in self._replies.reply(kind, content):
                self._say({**message, "to": client}, buffers)

    def _say(self, message: dict[str, Any], buffers: Sequence[bytes] = ()) -> None:
        with self._lock:
            if message["t"] == "pong":
                self._outbox.appendleft((message, list(buffers)))
            else:
                self._outbox.append((message, list(buffers)))
            self._lock.notify()
        self._run_thread()

    # The thread

    def _run_thread(self) -> None:
        with self._lock:
            if self._unsubscribe is None or (self._thread is not None and self._thread.is_alive()):
                return  # it follows nothing yet, or is at it
            if self._idle() and self._over():
                return
            self._thread = threading.Thread(target=self._loop, name=f"nbproc-view-{self._ctx.name}", daemon=True)
            self._thread.start()

    def _over(self) -> bool:
        return self._ctx.snapshot().state.ended

    def _idle(self) -> bool:
        return not (self._new() or self._outbox)

    def _new(self) -> bool:
        return bool(self._backlog or self._news or self._changed)

    def _loop(self) -> None:
        usage_due = time.monotonic() + USAGE_PERIOD / 2
        hurried = 0
        try:
            while True:
                over = self._over()
                now = time.monotonic()
                if not over and now >= usage_due:
                    usage_due = now + USAGE_PERIOD
                    self._look()
                with self._lock:
                    if self._idle():
                        if over:
                            break
                        self._lock.wait(max(0.0, usage_due - time.monotonic()))
                        continue
                    if (early := self._due - now) > 0:  # the end of the run is told at once: the cell waits for it
                        hurried += self._lock.wait_for((lambda: False) if hurried >= HURRIED else self._over, early)
                    message, buffers = self._next()
                    self._due = time.monotonic() + TICK
                self._send(message, buffers)
                if time.monotonic() >= self._save_due and not over:
                    self._save_now_and_then()
            self._save_final()
        except Exception:
            log.exception("the view of %s has ended early", self._ctx.name)
        finally:
            with self._lock:
                self._thread = None

    def _look(self) -> None:
        snapshot = self._ctx.snapshot()
        pids = {r.rank: r.pid for r in snapshot.ranks if r.pid is not None and not r.state.ended}
        where = self._silence.where(snapshot)
        usage = [[rank, *sample] for rank, sample in self._usage.sample(pids).items()]
        with self._lock:
            self._news["usage"] = usage
            self._news["where"] = where

    def _next(self) -> tuple[dict[str, Any], list[bytes]]:
        # Answers and ticks take turns, so that neither a flood of lines nor a long download holds up the other.
        if self._outbox and (not self._new() or self._outbox[0][0]["t"] == "pong" or self._turn()):
            return self._outbox.popleft()
        self._seq += 1
        events = self._backlog.take()
        runs, text = wire.encode_lines(events)
        message = {"t": "tick", "seq": self._seq, "now": time.time(), "runs": runs, **self._news}
        if self._changed is not None:
            # The last one is whole: it is what a view that could not ask for a replay is left with.
            told = None if self._changed.state.ended else self._told
            message["snap"] = wire.encode_snapshot(self._changed, told)
            failure = self._failure()
            if failure != self._told_failure:
                message["failure"] = failure
            self._told, self._told_failure = self._changed, failure
        self._news, self._changed = {}, None
        return message, [text] if runs else []

    def _turn(self) -> bool:
        self._answers_turn = not self._answers_turn
        return self._answers_turn

    def _send(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        assert self._widget is not None
        self._widget.send(message, buffers)

    # What is saved

    def _publish(self, *, update: bool, widget: bool = True) -> None:
        if not self._shown:
            return
        model_id = self._widget.model_id if widget and self._widget is not None else None
        display(bundle(self._ctx, model_id), raw=True, display_id=self._display_id, update=update)

    def _save_now_and_then(self) -> None:
        self._saves += 1
        self._save_due = time.monotonic() + SAVE_PERIODS[min(self._saves, len(SAVE_PERIODS) - 1)]
        self._publish(update=True)

    def _save_final(self) -> None:
        with self._lock:
            if self._saved_whole or self._widget is None:
                return
            self._saved_whole = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        # Where a person sits the view may only be slow to say hello: the run may have taken milliseconds.
        seen = self._hello or self._reader or not self._shown
        self._publish(update=True, widget=seen)
        if not seen:  # a saved widget state would hold the program; emptied first, it does not
            with self._widget.hold_sync():
                self._widget._esm = self._widget._css = ""
            self.close()

    def close(self) -> None:
        """Give up the widget: the browser's view stays as it is, and cannot ask any more."""
        if self._widget is not None:
            self._widget.close()


def _has_reader() -> bool:
    """Return whether the cell that runs was sent by a person's front end.

    Programs that run notebooks (nbclient, papermill, nbconvert) say that nobody can answer ``input()``.
    """
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    content = (kernel.get_parent("shell") or {}).get("content") or {}
    return bool(content.get("allow_stdin", True))
