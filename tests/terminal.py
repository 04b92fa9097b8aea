"""A terminal IPython in a pseudo-terminal: lines are typed, and the screen is looked at as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

COLUMNS, ROWS = 110, 60
_PROMPT = re.compile(r"In \[\d+\]: $")


class Terminal:
    """IPython with the plain prompt, for which a pseudo-terminal is terminal enough."""

    def __init__(self, folder: Path, term: str = "xterm-256color") -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        command = [sys.executable, "-m", "IPython", "--no-banner", "--no-confirm-exit", "--simple-prompt"]
        command += ["--InteractiveShell.colors=linux"]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**os.environ, "TERM": term, "IPYTHONDIR": str(folder / "ipython")},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Control-C goes to who sits at this terminal
        )
        os.close(slave)
        self.raw = b""
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.until(lambda: _PROMPT.search(self.last))

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, without the empty lines under it."""
        shown = [line.rstrip() for line in self._screen.display]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    @property
    def last(self) -> str:
        """The line that the cursor is in, up to the cursor."""
        return self._screen.display[self._screen.cursor.y][: self._screen.cursor.x]

    def until(self, true: Callable[[], object], timeout: float = 60) -> None:
        """Wait until something is so of the screen."""
        deadline = time.monotonic() + timeout
        while not true():
            assert time.monotonic() < deadline, "\n".join(self.lines)
            if select.select([self._master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    data = os.read(self._master, 65536)
                    self.raw += data
                    self._stream.feed(data)

    def type(self, text: str) -> None:
        """Type without waiting."""
        os.write(self._master, text.encode())

    def run(self, line: str) -> list[str]:
        """Type a line on a screen that is clear, wait for the next prompt; return the lines between."""
        self.begin(line)
        return self.end()

    def begin(self, line: str) -> None:
        """Type a line on a screen that is clear."""
        self._screen.reset()
        self.raw = b""
        self.type(line + "\n")

    def end(self) -> list[str]:
        """Wait for the prompt; return the lines above it, the typed one left out."""
        self.until(lambda: _PROMPT.search(self.last))
        return [line for line in self.lines[1:-1] if line]

    def close(self) -> None:
        """End it."""
        self.type("exit\n")
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._master)
