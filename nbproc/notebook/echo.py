"""Lines of a run as text, in one output of the launching cell that is updated in place, where no view stands."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from IPython.display import DisplayHandle, display

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

_LINES = 200
_PERIOD = 0.25


class Echo:
    """The last lines that were teed or not redirected. Writers may be called from any thread."""

    def __init__(self, context: PContext) -> None:
        self._context = context
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._dropped = 0
        self._lock = threading.Lock()
        self._handle: DisplayHandle | None = None
        self._timer: threading.Timer | None = None

    def writers(self) -> Mapping[str, Callable[[str], object]]:
        """Return a writer for each stream."""
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        return {"stdout": self.write, "stderr": self.write}

    def write(self, text: str) -> None:
        """Take in lines; the output follows within a quarter of a second."""
        with self._lock:
            for line in text.splitlines():
                self._dropped += len(self._lines) == self._lines.maxlen
                self._lines.append(line)
            if self._timer is None:
                self._timer = threading.Timer(_PERIOD, self._update)
                self._timer.daemon = True
                self._timer.start()

    def _update(self) -> None:
        with self._lock:
            self._timer = None
            lines = list(self._lines)
            if self._dropped:
                lines.insert(0, f"({self._dropped:,} older lines in {self._context.run_dir})")
        if self._handle is not None:
            self._handle.update({"text/plain": "\n".join(lines)}, raw=True)
