"""Where lines go besides the views: the console, and files of matching lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from nbproc.logs.lines import LineEvent, LineFilter, Stream

__all__ = ["ConsoleTee", "FilterFile", "prefixes"]

_REMEMBERED = 256
"""Lines that may still be redrawn after they were written; more than `nbproc.logs.lines.WINDOW`."""


def prefixes(name: str, nprocs: int, given: Mapping[int, str] | None = None) -> dict[int, str]:
    """Return what stands before each rank's lines: ``[name<rank>]:``, or its entry in ``given``."""
    return {rank: (given or {}).get(rank, f"[{name}{rank}]:") for rank in range(nprocs)}


class _Lines:
    """Picks the lines of some streams once they are complete, and puts the prefix before each.

    A line that is redrawn after it was complete is picked again, with its new text.
    """

    def __init__(self, prefixes: Mapping[int, str], sources: Collection[tuple[int, Stream]]) -> None:
        self._prefixes = dict(prefixes)
        self._picked: dict[tuple[int, Stream], dict[int, str]] = {source: {} for source in sources}

    def pick(self, events: Iterable[LineEvent]) -> list[str]:
        out: list[str] = []
        for rank, stream, number, text, complete, _ in events:
            if complete and (picked := self._picked.get((rank, stream))) is not None and picked.get(number) != text:
                picked[number] = text
                if len(picked) > 2 * _REMEMBERED:
                    for old in sorted(picked)[:-_REMEMBERED]:
                        del picked[old]
                out.append(f"{self._prefixes.get(rank, '')}{text}\n")
        return out


class ConsoleTee:
    """A sink that writes the complete lines of ``sources`` to a console, each with its rank's prefix.

    ``write`` gets whole lines, all of a look in one call, on the reader thread. Ranks that ``prefixes`` does not name
    get none. See `prefixes` for torch's.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        prefixes: Mapping[int, str],
        sources: Collection[tuple[int, Stream]],
    ) -> None:
        self._write = write
        self._lines = _Lines(prefixes, sources)

    def __call__(self, events: Sequence[LineEvent]) -> None:
        """Write what became complete; raises what ``write`` raises."""
        if lines := self._lines.pick(events):
            self._write("".join(lines))


class FilterFile:
    """A sink that adds the complete lines of ``sources`` that contain any of ``filters`` to the file ``path``.

    Each has its rank's prefix and its colours. The file is made at once, since it is there where filters are given,
    and is not held open. ``private``: 0600. Making it, and calling it, raises OSError if the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        filters: Iterable[str],
        prefixes: Mapping[int, str],
        sources: Collection[tuple[int, Stream]],
        *,
        private: bool = False,
    ) -> None:
        self.path = Path(path)
        self._filter = LineFilter(filters)
        self._lines = _Lines(prefixes, sources)
        self._mode = 0o600 if private else 0o666
        self._add(b"")

    def __call__(self, events: Sequence[LineEvent]) -> None:
        """Write the lines that became complete and match."""
        if lines := self._lines.pick(event for event in events if event.complete and self._filter.matches(event.text)):
            self._add("".join(lines).encode("utf-8", "replace"))

    def _add(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._mode)
        with open(descriptor, "wb") as file:
            file.write(data)
