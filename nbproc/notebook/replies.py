"""What a view asks for: a replay, older lines, a figure, a whole log; each as messages that fit the limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbproc.logs.history import page
from nbproc.logs.lines import Stream
from nbproc.notebook import wire

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext
    from nbproc.logs.lines import LineEvent

Message = tuple[dict[str, Any], list[bytes]]

REPLAY_BYTES = 8_000_000
PAGE_LINES = 5_000
DOWNLOAD_BYTES = 200_000_000


class Replies:
    """Answers from a run's history and files. Each method may be called from any thread."""

    def __init__(self, ctx: PContext) -> None:
        self._ctx = ctx

    def reply(self, kind: str, asked: dict[str, Any]) -> Iterator[Message]:
        """Yield the answers to one question; an unknown one has none."""
        if kind == "page":
            return self._page(asked)
        if kind == "display":
            return self._display(asked)
        if kind == "file":
            return self._file(asked)
        return iter(())

    def replay(self, seq: int, snapshot: dict[str, Any], failure: dict[str, Any] | None) -> list[Message]:
        """Return all that is held of the run, as it was after message `seq`."""
        history, nprocs = self._ctx.history, self._ctx.nprocs
        events: list[LineEvent] = []
        if history is not None:
            for rank in range(nprocs):
                events += _newest(history.rows(rank), REPLAY_BYTES // nprocs)
        batches = wire.batches(events) or [[]]
        messages: list[Message] = []
        for part, batch in enumerate(batches):
            runs, text = wire.encode_lines(batch)
            message = {"t": "replay", "seq": seq, "part": part, "parts": len(batches), "runs": runs}
            if part == 0:
                message |= {"snap": snapshot, "failure": failure}
            messages.append((message, [text]))
        return messages

    def _page(self, asked: dict[str, Any]) -> Iterator[Message]:
        rank, stream, first = int(asked["rank"]), int(asked["stream"]), max(0, int(asked["first"]))
        count = min(PAGE_LINES, max(0, int(asked["count"])))
        events = self._older(rank, stream, first, count)
        batches = wire.batches(events) or [[]]
        for part, batch in enumerate(batches):
            runs, text = wire.encode_lines(batch)
            yield (
                {
                    "t": "page",
                    "rank": rank,
                    "stream": stream,
                    "first": first,
                    "count": count,
                    "part": part,
                    "parts": len(batches),
                    "runs": runs,
                },
                [text],
            )

    def _older(self, rank: int, stream: int, first: int, count: int) -> Sequence[LineEvent]:
        path = self._ctx.log_file(rank, wire.STREAMS[stream])
        return page(path, rank, Stream(wire.STREAMS[stream]), first, count) if path is not None else ()

    def _display(self, asked: dict[str, Any]) -> Iterator[Message]:
        rank, name = int(asked["rank"]), str(asked["file"])
        answer = {"t": "display", "rank": rank, "file": name, "update": asked.get("update")}
        try:
            data = (self._display_dir(rank) / Path(name).name).read_bytes()
        except OSError as error:
            yield {**answer, "error": error.strerror or "cannot be read", "part": 0, "parts": 1}, [b""]
            return
        pieces = _pieces(data)
        for part, piece in enumerate(pieces):
            yield {**answer, "part": part, "parts": len(pieces)}, [piece]

    def _display_dir(self, rank: int) -> Path:
        layout = self._ctx.layout
        if layout is None:
            raise FileNotFoundError
        return layout.files.display_dir(rank)

    def _file(self, asked: dict[str, Any]) -> Iterator[Message]:
        rank, stream, offset = int(asked["rank"]), int(asked["stream"]), max(0, int(asked["offset"]))
        answer = {"t": "file", "rank": rank, "stream": stream, "offset": offset}
        path = self._ctx.log_file(rank, wire.STREAMS[stream])
        try:
            with open(path or "", "rb") as file:
                size = file.seek(0, 2)
                file.seek(offset)
                piece = file.read(wire.MESSAGE_BYTES)
        except OSError as error:
            yield {**answer, "error": error.strerror or "cannot be read", "size": 0}, [b""]
            return
        yield {**answer, "size": min(size, DOWNLOAD_BYTES), "whole": size, "path": str(path)}, [piece]


def _pieces(data: bytes) -> list[bytes]:
    return [data[i : i + wire.MESSAGE_BYTES] for i in range(0, len(data), wire.MESSAGE_BYTES)] or [b""]


def _newest(events: Sequence[LineEvent], limit: int) -> Sequence[LineEvent]:
    size = 0
    for at in range(len(events) - 1, -1, -1):
        size += len(events[at].text) + 1
        if size > limit:
            return events[at + 1 :]
    return events
