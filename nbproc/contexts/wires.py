"""All that a supervisor waits on, in one wait: what its ranks say, their ends, the guardian's, what other threads ask.

A rank is watched from its start to its end. Used by the supervisor's thread, but for `post`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from nbproc.contexts.rank import Rank
from nbproc.ranks.process import RankProcess
from nbproc.ranks.wire import Kind

_PATIENCE = 30.0
"""Seconds in which a rank must take or give a message that was begun."""


class News(enum.Enum):
    """What there is to look at."""

    EXIT = enum.auto()
    """Of a rank: its process is known, or it has ended."""
    JOB = enum.auto()
    """Of a rank: it says something."""
    GUARDIAN = enum.auto()
    """The guardian has ended."""


class Wires:
    """The descriptors of one run, and what was asked of it."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], object]] = deque()
        self._posting = threading.Lock()
        self._wake_read = self._wake_write = -1  # nothing is opened before `open`: an Interrupt could land here
        self._selector = selectors.PollSelector()  # it needs no descriptor of its own
        self._guardian = -1

    def open(self) -> None:
        """Let threads ask. Raises OSError if the system has no descriptor."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def close(self) -> None:
        """Wait on nothing any more; what is asked from now on is not heard."""
        self._selector.close()
        with self._posting:
            if self._wake_write >= 0:
                os.close(self._wake_read)
                os.close(self._wake_write)
            self._wake_read = self._wake_write = -1

    def post(self, task: Callable[[], object]) -> None:
        """Have the supervisor's thread call this; does not wait. From any thread; nothing when the run is over."""
        with self._posting:
            if self._wake_write >= 0:
                self._posted.append(task)
                with contextlib.suppress(OSError):
                    os.write(self._wake_write, b"w")

    def do_what_was_posted(self) -> None:
        """Call what other threads have asked for."""
        while self._posted:
            self._posted.popleft()()

    def watch(self, rank: Rank, process: RankProcess) -> None:
        """Wait for what a rank says and for its end."""
        self._selector.register(process.fileno(), selectors.EVENT_READ, (News.EXIT, rank))
        if process.job is not None:
            process.job.settimeout(_PATIENCE)
            self._selector.register(process.job, selectors.EVENT_READ, (News.JOB, rank))
            rank.listening = True

    def forget(self, rank: Rank, process: RankProcess) -> None:
        """Its process is gone."""
        self._unregister(process.fileno())
        self._hang_up(rank, process)

    def watch_guardian(self, guardian: int) -> None:
        """Wait for the end of this guardian (-1: of none) and no other."""
        if self._guardian >= 0:
            self._unregister(self._guardian)
        self._guardian = guardian
        if guardian >= 0:
            self._selector.register(guardian, selectors.EVENT_READ, (News.GUARDIAN, None))

    def wait(self, timeout: float | None) -> Iterator[tuple[News, Any]]:
        """Wait for something; return what there is, with the rank that it is about (None for the guardian).

        Nothing is returned of a rank that was forgotten meanwhile.
        """
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                continue
            news, rank = key.data
            if rank is None or (rank.listening if news is News.JOB else not rank.exited):
                yield news, rank

    def hear(self, rank: Rank) -> Iterator[tuple[Kind, bytes]]:
        """Return what a rank has said, message by message; each is taken when it is asked for."""
        process = rank.process
        while rank.listening and process is not None and process.job is not None:
            process.job.setblocking(False)
            try:
                message = rank.inbox.read(process.job)
            except (OSError, ValueError):  # it is gone, or what arrived is not a message
                self._hang_up(rank, process)
                return
            finally:
                process.job.settimeout(_PATIENCE)
            if message is None:
                return
            yield message

    def _hang_up(self, rank: Rank, process: RankProcess) -> None:
        if rank.listening and process.job is not None:
            self._unregister(process.job)
        rank.listening = False

    def _unregister(self, fileobj: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fileobj)
