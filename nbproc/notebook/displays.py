"""What a rank displays, as files beside its logs: bounded, whole, and in step with the streams."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MAX_BYTES", "MAX_DISPLAYS", "RANKED", "Store", "counted", "is_rich"]

MAX_BYTES = 2_000_000
"""The most that one display may hold."""
MAX_DISPLAYS = 50
"""The most displays of one rank at a time."""
MAX_RECORDS = 20_000
"""The most lines of `display.jsonl`: a display that is updated for ever does not fill the disk."""
UPDATE_PERIOD = 0.2
"""Seconds between two writes of one display that is updated."""

RANKED = {
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "text/html": "html",
    "text/markdown": "md",
    "text/latex": "tex",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "js",
    "text/plain": "txt",
}
"""MIME types, the richest first, and how their files end. Any other type that ends in "json" is kept as JSON."""

Bundle = Mapping[str, Any]


def is_rich(bundle: Bundle) -> bool:
    """Whether it holds more than plain text."""
    return any(mime != "text/plain" for mime in bundle)


def counted(kinds: Iterable[str]) -> str:
    """Count what was displayed in words: ``2 figures``, ``1 figure, 3 tables``."""
    counts = Counter(kinds).items()
    return ", ".join(f"{count:,} {kind}{'' if count == 1 else 's'}" for kind, count in counts)


def _kind(contents: Mapping[str, bytes]) -> str:
    """Name what a display is, as far as its types tell."""
    if any(mime.startswith(("image/", "application/pdf")) or "plotly" in mime or "vega" in mime for mime in contents):
        return "figure"
    return "table" if b"<table" in contents.get("text/html", b"") else "output"


def _extension(mime: str) -> str | None:
    return RANKED.get(mime) or ("json" if mime.endswith("json") else None)


def _order(mime: str) -> int:
    known = list(RANKED)
    return known.index(mime) if mime in RANKED else known.index("image/svg+xml") - 1


def _encoded(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, default=str).encode()


@dataclass
class _Slot:
    """One display: its last content, and when it was written."""

    number: int
    written: float = float("-inf")
    pending: tuple[Bundle, Mapping[str, Any]] | None = None
    updates: int = 0


@dataclass
class Store:
    """The displays of one rank, in ``directory`` (made when the first one comes).

    Each display is `display/NNN.<type>`, one file for each MIME type, and one line of `display.jsonl`:
    ``{"n", "file", "files": {mime: path}, "mime": [...], "kind", "text", "metadata", "update", "stdout", "stderr"}``.
    Paths are relative to ``directory``; ``file`` and the first of ``mime`` are the richest; ``kind`` is "figure",
    "table" or "output", "" for a remark of ours; ``stdout`` and ``stderr`` are how long the rank's logs were. A later
    line with the same ``n`` replaces the display; a line ``{"clear": true}`` takes all displays before it away.
    """

    directory: Path
    _slots: list[_Slot] = field(default_factory=list)
    _by_id: dict[str, _Slot] = field(default_factory=dict)
    _records: int = 0
    _clear: bool = False

    def add(self, bundle: Bundle, metadata: Mapping[str, Any] | None = None, display_id: str | None = None) -> None:
        """Keep a display; a ``display_id`` names it for `update`."""
        if self._clear:
            self._drop_all()
        if len(self._slots) > MAX_DISPLAYS:
            return
        slot = _Slot(len(self._slots))
        self._slots.append(slot)
        if slot.number == MAX_DISPLAYS:
            full = f"{MAX_DISPLAYS} displays are kept of a rank; what it displays from here on is not"
            bundle, metadata, display_id = {"text/plain": full}, {}, None
        if display_id is not None:
            self._by_id[display_id] = slot
        self._write(slot, bundle, metadata or {})

    def update(self, display_id: str, bundle: Bundle, metadata: Mapping[str, Any] | None = None) -> bool:
        """Replace the display of that name; False if there is none. Written at most every `UPDATE_PERIOD`."""
        slot = self._by_id.get(display_id)
        if slot is None:
            return False
        slot.pending = (bundle, metadata or {})
        if time.monotonic() - slot.written >= UPDATE_PERIOD:
            self._settle(slot)
        return True

    def clear(self, *, wait: bool) -> None:
        """Take all displays away, with ``wait`` when the next one comes."""
        self._clear = True
        if not wait:
            self._drop_all()

    def flush(self) -> None:
        """Write what updates left unwritten. Does not block."""
        for slot in self._slots:
            self._settle(slot)

    def _settle(self, slot: _Slot) -> None:
        if slot.pending is not None:
            content, slot.pending = slot.pending, None
            slot.updates += 1
            self._write(slot, *content)

    def _drop_all(self) -> None:
        self._clear = False
        if self._slots:
            self._slots.clear()
            self._by_id.clear()
            self._record({"clear": True})

    def _write(self, slot: _Slot, bundle: Bundle, metadata: Mapping[str, Any]) -> None:
        slot.written = time.monotonic()
        contents = self._bounded(bundle)
        folder = self.directory / "display"
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        for mime, content in contents.items():
            extension = _extension(mime) or "bin"
            same = sum(path.endswith(f".{extension}") for path in files.values())
            path = folder / (f"{slot.number:03d}-{same}.{extension}" if same else f"{slot.number:03d}.{extension}")
            beside = path.with_name(f".{path.name}.new")
            beside.write_bytes(content)
            os.replace(beside, path)
            files[mime] = f"display/{path.name}"
        text = contents.get("text/plain", b"").decode("utf-8", "replace")
        self._record(
            {
                "n": slot.number,
                "file": next(iter(files.values()), None),
                "files": files,
                "mime": list(files),
                "kind": _kind(contents) if slot.number < MAX_DISPLAYS else "",
                "text": text if len(text) <= 1000 else f"{text[:1000]}...",
                "metadata": metadata,
                "update": slot.updates,
            }
        )

    def _bounded(self, bundle: Bundle) -> dict[str, bytes]:
        """Encode the bundle, the richest type first, and leave out what is too large, with a sentence in its place."""
        kept: dict[str, bytes] = {}
        left, refused = MAX_BYTES, []
        for mime in sorted((m for m in bundle if _extension(m) and bundle[m] is not None), key=_order):
            content = _encoded(bundle[mime])
            if len(content) <= left:
                kept[mime] = content
                left -= len(content)
            elif mime == "text/plain":
                kept[mime] = content[:10_000] + f"\n... ({len(content):,} bytes in all)".encode()
            else:
                refused.append(f"{mime} of {len(content) / 1e6:.1f} MB")
        if refused and not is_rich(kept):
            words = f"[not kept: {', '.join(refused)}; a display of a rank may hold {MAX_BYTES // 1_000_000} MB]\n"
            kept["text/plain"] = words.encode() + kept.get("text/plain", b"")
        return kept

    def _record(self, record: dict[str, Any]) -> None:
        if self._records >= MAX_RECORDS:
            if self._records == MAX_RECORDS:
                sys.stderr.write(f"[displays of this rank are not listed any more after {MAX_RECORDS:,} changes]\n")
                self._records += 1
            return
        self._records += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        line = json.dumps({**record, **_offsets()}, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
        descriptor = os.open(self.directory / "display.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _offsets() -> dict[str, int]:
    """How long the files are that this process writes its streams to; 0 for a stream that goes elsewhere."""
    lengths: dict[str, int] = {}
    for name, stream, descriptor in (("stdout", sys.stdout, 1), ("stderr", sys.stderr, 2)):
        try:
            stream.flush()
            state = os.fstat(descriptor)
            lengths[name] = state.st_size if stat.S_ISREG(state.st_mode) else 0
        except (OSError, ValueError, AttributeError):  # closed, or replaced by the user
            lengths[name] = 0
    return lengths
