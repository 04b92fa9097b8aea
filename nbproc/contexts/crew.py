"""What a supervisor needs to know of the ranks of one kind of run: of functions, of executables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from nbproc.failures import ProcessFailure
from nbproc.ranks.process import RankProcess


class Crew(ABC):
    """How the ranks of one kind of run are made and understood. Used by one thread, the supervisor's."""

    answers: bool
    """True if a rank says itself that it runs, and returns a value."""

    @abstractmethod
    def start(self, rank: int) -> RankProcess:
        """Ask for the process of a rank. Raises `OSError` or `LaunchError`; nothing is left then."""

    @abstractmethod
    def hand_over(self, rank: int, process: RankProcess) -> None:
        """Send the rank its job. Called once its pid is known."""

    @abstractmethod
    def result(self, rank: int, process: RankProcess) -> Callable[[], Any]:
        """Receive what a rank returned; the reader that is returned unpickles it."""

    @abstractmethod
    def failure(self, rank: int, pid: int | None, exitcode: int | None, **more: Any) -> ProcessFailure:
        """Say why a rank ended badly, from what it left."""

    @abstractmethod
    def where(self, rank: int, told: bool) -> str:
        """Say where a rank was when it was stopped, "" if that is not known; ``told`` if it says so itself."""

    def sample(self, process: RankProcess) -> None:  # noqa: B027 - an executable cannot be asked
        """Make a rank write where it is, in case it never gets to say so."""

    @abstractmethod
    def catch_up(self) -> None:
        """Return when everything that the ranks wrote so far was seen by whoever reads it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that the run held: files, sockets, the reader thread."""
