"""A program that owns runs, to be ended from outside: one rank in each state, and two for the barrier.

    python owner.py FOLDER

What its ranks told lies in FOLDER/each and FOLDER/barrier, the logs in FOLDER/logs-each and FOLDER/logs-barrier.
"""

from __future__ import annotations

import sys
from pathlib import Path

import states

import nbproc

ALONE = [state for state in states.STATES if state != "in a barrier"]


def main(folder: Path) -> None:
    for name in ("each", "barrier"):
        (folder / name).mkdir()
    each = nbproc.start_processes(
        "each",
        states.enter_each,
        (ALONE, str(folder / "each")),
        nprocs=len(ALONE),
        log_dir=folder / "logs-each",
        redirects=nbproc.Std.ALL,
    )
    barrier = nbproc.start_processes(
        "barrier",
        states.enter,
        ("in a barrier", str(folder / "barrier")),
        nprocs=2,
        log_dir=folder / "logs-barrier",
        redirects=nbproc.Std.ALL,
    )
    print("launched", flush=True)
    print(each.wait(), barrier.wait(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
