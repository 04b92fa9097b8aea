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


def launch(folder: Path, name: str, entrypoint: object, args: tuple[object, ...], nprocs: int) -> nbproc.PContext:
    (folder / name).mkdir()
    return nbproc.start_processes(
        name,
        entrypoint,  # type: ignore[arg-type]  # a function
        args,
        nprocs=nprocs,
        log_dir=folder / f"logs-{name}",
        redirects=nbproc.Std.ALL,
        grace=0.3,
    )


def main(folder: Path) -> None:
    each = launch(folder, "each", states.enter_each, (ALONE, str(folder / "each")), len(ALONE))
    launch(folder, "forking", states.enter_each, (["forking"], str(folder / "forking")), 1)
    barrier = launch(folder, "barrier", states.enter, ("in a barrier", str(folder / "barrier")), 2)
    print(each.wait(), barrier.wait(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
