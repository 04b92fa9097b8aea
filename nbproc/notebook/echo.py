"""Lines of a run as text, in one output of the launching cell that is updated in place, where no view stands."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from IPython.display import DisplayHandle, display

from nbproc.states import Snapshot

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

_LINES = 200
_PERIOD = 0.25

_standing: weakref.WeakKeyDictionary[PContext, Echo] = weakref.WeakKeyDictionary()


class Echo:
    """The last lines that were teed or not redirected. Writers may be called from any thread.

    The output is made at once, because only now the launching cell is known; it is empty until there is a line.
    """

    def __init__(self, context: PContext) -> None:
        self._directory = context.run_dir
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._older = 0
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._wanted = True
        self._handle: DisplayHandle | None = display({"text/plain": ""}, raw=True, display_id=True)
        self._unsubscribe = context.subscribe(self._listen)
        _standing[context] = self

    def writers(self) -> Mapping[str, Callable[[str], object]]:
        """Return a writer for each stream."""
        return {"stdout": self.write, "stderr": self.write}

    def write(self, text: str) -> None:
        """Take in lines; the output follows within a quarter of a second."""
        with self._lock:
            for line in text.splitlines():
                self._older += len(self._lines) == self._lines.maxlen
                self._lines.append(line)
            if self._timer is None and self._wanted:
                self._timer = threading.Timer(_PERIOD, self._update)
                self._timer.daemon = True
                self._timer.start()

    def make_way(self) -> None:
        """Empty the output for good: a view shows the run now."""
        with self._lock:
            self._wanted = False
            self._cancel()
            said = bool(self._lines)
        if said and self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)

    def _listen(self, event: object) -> None:
        if isinstance(event, Snapshot) and event.state.ended:  # whoever waits for the run finds all lines there
            self._unsubscribe()
            with self._lock:
                self._cancel()
            self._update()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _update(self) -> None:
        with self._lock:
            self._timer = None
            lines = list(self._lines)
            if not (lines and self._wanted):
                return
            if self._older:
                lines.insert(0, f"({self._older:,} older lines in {self._directory})")
        if self._handle is not None:
            self._handle.update({"text/plain": "\n".join(lines)}, raw=True)


def make_way(context: PContext) -> None:
    """Let a view of the run take the place of its text."""
    echo = _standing.get(context)
    if echo is not None:
        echo.make_way()
