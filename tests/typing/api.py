"""What a user's type checker sees of nbproc. Checked by `make lint`, never run.

A line with ``type: ignore`` is a mistake that the checker must notice: one that goes unnoticed is an error itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

import nbproc
from nbproc import PContext, ProcessFailure, RunProcsResult, RunState, Snapshot, Std
from nbproc.logs.lines import LineEvent


def train(rate: float, seed: int = 0) -> float:
    return rate * seed


@nbproc.record
def main(arguments: Sequence[str]) -> int:
    return len(arguments)


def functions() -> None:
    context = nbproc.start_processes("trainer", train, args={0: (0.1,), 1: (0.2, 1)}, envs={0: {}, 1: {"A": 1}})
    assert_type(context, PContext)
    nbproc.start_processes("trainer", train, (0.1,), nprocs=2, redirects=Std.ALL, tee={0: Std.ERR}, log_dir=Path("a"))
    nbproc.start_processes("echo", "/bin/echo", {0: ("hello", 1)}, start_method="spawn", duplicate_stdout_filters=["a"])
    nbproc.start_processes("trainer", train, nprocs="2")  # type: ignore[arg-type]
    nbproc.start_processes("trainer", 3, nprocs=2)  # type: ignore[arg-type]
    nbproc.start_processes("trainer", train, log_directory="a")  # type: ignore[call-arg]


def a_run(context: PContext) -> None:
    result = context.wait(timeout=5)
    assert_type(result, RunProcsResult | None)
    whole = context.result()
    assert_type(whole, RunProcsResult)
    assert_type(whole.return_values, dict[int, Any])
    assert_type(whole.partial_values, dict[int, Any])
    assert_type(whole.failures, dict[int, ProcessFailure])
    assert_type(whole.stdouts, dict[int, str])
    assert_type(whole.is_failed(), bool)
    assert_type(context.pids(), dict[int, int])
    assert_type(context.snapshot(), Snapshot)
    assert_type(context.snapshot().state, RunState)
    assert_type(context.run_dir, Path | None)
    assert_type(context.log_file(0, "stdout"), Path | None)
    context.stop(grace=3)
    context.close(timeout=2)
    with context as same:
        assert_type(same, PContext)

    def listen(event: Sequence[LineEvent] | Snapshot) -> None:
        if isinstance(event, Snapshot):
            assert_type(event.first_failed, int | None)

    context.subscribe(listen)
    result.is_failed()  # type: ignore[union-attr]


def failures(failure: ProcessFailure) -> None:
    assert_type(failure.exitcode, int)
    assert_type(failure.words, str)
    assert_type(failure.signal_name(), str)
    assert_type(failure.timestamp, int)
    error = nbproc.ChildFailedError("trainer", {0: failure})
    assert_type(error.get_first_failure(), tuple[int, ProcessFailure])


def spawning() -> None:
    context = nbproc.spawn(train, args=(1,), nprocs=2, join=False)
    assert_type(context, nbproc.ProcessContext | None)
    if context is not None:
        assert_type(context.join(timeout=1), bool)
        assert_type(context.pids(), list[int])
    try:
        nbproc.spawn(train, nprocs=2)
    except nbproc.ProcessRaisedException as error:
        assert_type(error.error_index, int)
    except nbproc.ProcessExitedException as error:
        assert_type(error.exit_code, int)


def masks() -> None:
    assert_type(Std.from_str("0:3,1:0"), Std | dict[int, Std])
    assert_type(nbproc.to_map(Std.ALL, 2), dict[int, Std])
    assert_type(main(["a"]), int | None)
    main(1)  # type: ignore[arg-type]
