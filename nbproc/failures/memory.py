"""Did the kernel kill a process because memory ran out? Counters read before and after tell."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class Oom(enum.Enum):
    """What is known of a death by SIGKILL."""

    YES = "out of memory"
    MAYBE = "may have run out of memory"


@dataclass(frozen=True)
class OomWatch:
    """The out-of-memory kills counted up to one moment.

    ``count`` is None where no counter can be read (macOS, a hidden ``/proc``). Take one with `now` at the launch and
    ask it with `since` when a rank was killed by SIGKILL.
    """

    source: str = ""
    count: int | None = None
    root: Path = Path("/")

    @classmethod
    def now(cls, root: Path = Path("/")) -> OomWatch:
        """Read the counter that is nearest to this process. Does not block and does not raise.

        Its cgroup's (v2 ``memory.events``, v1 ``memory.oom_control``), else the machine's (``/proc/vmstat``).
        """
        for path in _candidates(root):
            count = _read(path)
            if count is not None:
                return cls(str(path), count, root)
        return cls(root=root)

    def since(self) -> Oom:
        """Return `Oom.YES` if the counter moved since, else `Oom.MAYBE`."""
        if self.count is None:
            return Oom.MAYBE
        count = _read(Path(self.source))
        return Oom.YES if count is not None and count > self.count else Oom.MAYBE


def _candidates(root: Path) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    for group in groups:
        _, controllers, path = (*group.split(":", 2), "", "")[:3]
        inside = path.lstrip("/")
        if controllers == "":
            for base in (mount, mount / "unified"):
                yield base / inside / "memory.events"
                yield base / "memory.events"
        elif "memory" in controllers.split(","):
            base = mount / "memory"
            yield base / inside / "memory.oom_control"
            yield base / "memory.oom_control"
    yield root / "proc/vmstat"


def _read(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
