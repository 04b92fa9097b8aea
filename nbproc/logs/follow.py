"""Follow one growing file without holding it open, whatever happens to it."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

__all__ = ["Follower"]

_log = logging.getLogger(__name__)
_BLOCK = 1 << 20


class Follower:
    """Reads what is added to ``path``. Between two calls no descriptor is held; nothing here raises an OSError.

    Attributes: ``offset`` (where the next read begins), ``behind`` (bytes from there to the end, as last looked).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.behind = 0
        self._identity: tuple[int, int] | None = None
        self._said: set[str] = set()

    def look(self) -> str | None:
        """Find out how much there is to read. Return what went wrong with the file, each kind of trouble once."""
        self.behind = 0
        try:
            info = os.stat(self.path)
        except OSError as error:
            return self._failed(error)
        if not stat.S_ISREG(info.st_mode):
            return None
        identity = info.st_dev, info.st_ino
        trouble = None
        if self._identity not in (None, identity):
            trouble = "was replaced by another file; its lines follow"
        elif info.st_size < self.offset:
            trouble = "was cut short; what is written from now on follows"
        if trouble is not None:
            self.offset = 0
        self._identity = identity
        self.behind = info.st_size - self.offset
        return self._once(trouble)

    def read(self, limit: int) -> bytes:
        """Return the next bytes, at most ``limit`` and at most what `look` saw; b"" if they cannot be read."""
        size = min(limit, self.behind)
        if size <= 0:
            return b""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                data = os.pread(descriptor, size, self.offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._log_once(error)
            data = b""
        self.offset += len(data)
        self.behind = self.behind - len(data) if data else 0
        return data

    def skip(self, keep: int) -> tuple[int, int]:
        """Leave out whole lines until about ``keep`` bytes are left; return how many bytes and lines those were.

        They are read to be counted, which is far cheaper than making lines of them.
        """
        target = self.offset + self.behind - keep
        position, lines, end = self.offset, 0, self.offset
        buffer = bytearray(_BLOCK)
        view = memoryview(buffer)
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(position)
                while position < target:
                    size = file.readinto(view[: min(_BLOCK, target - position)])
                    if not size:
                        break
                    lines += buffer.count(b"\n", 0, size)
                    end = position + last + 1 if (last := buffer.rfind(b"\n", 0, size)) >= 0 else end
                    position += size
        except OSError as error:
            self._log_once(error)
            return 0, 0
        skipped = end - self.offset
        self.offset, self.behind = end, self.behind - skipped
        return skipped, lines

    def _failed(self, error: OSError) -> str | None:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            if self._identity is None:
                return None  # not made yet
            return self._once("was removed; what is written to it from now on cannot be shown")
        return self._once(f"cannot be read: {error.strerror}")

    def _log_once(self, error: OSError) -> None:
        if trouble := self._failed(error):
            _log.warning("%s %s", self.path, trouble)

    def _once(self, trouble: str | None) -> str | None:
        if trouble is None or trouble in self._said:
            return None
        self._said.add(trouble)
        return trouble
