"""The one switch for what only Linux has: memory files, process descriptors and /proc.

Everything that uses one of them asks here, and has a way without it. ``NBPROC_PORTABLE=1`` in the environment turns
all three off, so that the other way is tested on Linux too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path


def use_linux_features() -> bool:
    """Return whether memory files, process descriptors and /proc may be used. Looks at the environment each time."""
    return sys.platform.startswith("linux") and os.environ.get("NBPROC_PORTABLE", "") in ("", "0")


def memfd(name: str) -> int:
    """Make an unnamed file to be mapped, and return its descriptor (close-on-exec, empty, readable and writable).

    In memory where there are memory files, else an unlinked file in the temporary directory. ``name`` is for
    whoever lists the descriptors. Raises OSError where neither can be made.
    """
    create = getattr(os, "memfd_create", None)
    if create is not None and use_linux_features():
        try:
            return int(create(f"nbproc-{name}", os.MFD_CLOEXEC))  # type: ignore[attr-defined,unused-ignore]
        except OSError:  # an old kernel or a sandbox without the call
            pass
    descriptor, path = tempfile.mkstemp(prefix=f"nbproc-{name}-")
    os.unlink(path)
    return descriptor


def pidfd_open(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, or None where there is no such thing.

    Raises ProcessLookupError if there is no such process.
    """
    if not use_linux_features() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # an old kernel, a sandbox without the call, no descriptor left
        return None


def proc_dir(pid: int | str = "self") -> Path | None:
    """Return /proc/<pid>, or None where /proc is not to be used or the process is gone."""
    path = Path("/proc", str(pid))
    return path if use_linux_features() and path.is_dir() else None


def name_process(name: str) -> None:
    """Name this process for ``top``, ``ps -e`` and their like (at most 15 bytes); nothing where that is not possible."""
    if use_linux_features():
        with contextlib.suppress(OSError):
            file = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)  # `open` takes longer than all the rest of it
            try:
                os.write(file, name.encode())
            finally:
                os.close(file)
