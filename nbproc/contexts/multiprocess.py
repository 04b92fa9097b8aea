"""MultiprocessContext: ranks that call a function."""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbproc import surroundings
from nbproc.contexts import numa
from nbproc.contexts.base import PContext
from nbproc.contexts.crew import Crew
from nbproc.contexts.layout import Layout
from nbproc.contexts.reader import Reader
from nbproc.contexts.whereabouts import Whereabouts
from nbproc.errors import ArgumentError
from nbproc.failures import ProcessFailure, failure_of, where_in_dump, where_of
from nbproc.failures.errorfile import read_data, read_trace
from nbproc.failures.stacks import read_tail
from nbproc.logs.lines import Stream
from nbproc.plan import Plan, make_plan
from nbproc.ranks import parcel, payload, process, results, standby, streams, wire, worker
from nbproc.ranks.job import Job, Settings
from nbproc.ranks.process import RankProcess
from nbproc.states import RankState


class MultiprocessContext(PContext):
    """A run whose ranks call a function. Return values are what it returned, by rank."""

    _whereabouts: Whereabouts | None = None

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., object],
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        start_method: str,
        logs_specs: object,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
    ) -> None:
        if not callable(entrypoint):
            raise ArgumentError(f"a MultiprocessContext needs a function, not {entrypoint!r}")
        self._adopt(
            make_plan(
                name,
                entrypoint,
                args,
                envs,
                logs=logs_specs,
                log_line_prefixes=log_line_prefixes,
                start_method=start_method,
                duplicate_stdout_filters=duplicate_stdout_filters,
                duplicate_stderr_filters=duplicate_stderr_filters,
                numa=numa_options,
            )
        )

    @property
    def start_method(self) -> str:
        """How the ranks are made: ``"forkserver"``, ``"spawn"`` or ``"fork"``."""
        return self.plan.start_method

    def _crew(self, layout: Layout, envs: Mapping[int, Mapping[str, str]], reader: Reader) -> Crew:
        crew = Functions(self.plan, layout, envs, reader)
        self.notes += crew.notes
        self._whereabouts = Whereabouts(layout.files.stack, crew.cells)
        return crew

    def where(self, rank: int) -> str:
        """Say where a rank is now: ``in all_reduce, train, cell [3] line 19``; "" if that is not known.

        The rank writes its stack for that, whatever it is doing, and goes on. Waits for it at most half a second; not for a
        thread that must not wait.
        """
        process = self._ranks[rank].process
        if self._whereabouts is None or process is None or self.snapshot().ranks[rank].state is not RankState.RUNNING:
            return ""
        return self._whereabouts.ask(rank, process)


class Functions(Crew):
    """Ranks that call a function, made by the fork server, by fork or as fresh interpreters."""

    answers = True

    def __init__(self, plan: Plan, layout: Layout, envs: Mapping[int, Mapping[str, str]], reader: Reader) -> None:
        self._plan = plan = numa.bind(plan)
        self._layout = layout
        self._envs = envs
        self._reader = reader
        self._settings = Settings.here()
        self._setup = plan.setup or surroundings.current().setup()
        self._open: list[RankProcess] = []
        self._ahead = min(plan.nprocs, standby.limit())
        self.cells: dict[str, int] = {}
        """The notebook's cells among the files that the ranks' functions come from, by their execution counts."""
        self.notes: tuple[str, ...] = ()
        self._unsent = {rank.rank for rank in plan.ranks}
        if plan.start_method == "fork":
            self.cells = _cells()
        self._shipment = None if plan.start_method == "fork" else self._pack()
        self._sockets = layout.files.make_sockets()

    def _pack(self) -> payload.Shipment:
        plan = self._plan
        if not plan.ranks:
            return payload.store(())
        around = surroundings.current()
        packer = payload.Packer(around.namespace(), around.describe)
        function = getattr(plan.entrypoint, "__qualname__", None) or type(plan.entrypoint).__name__
        labels = {worker.ENTRYPOINT: function, worker.ARGUMENTS: "args"}
        own: list[dict[str, object]] = [{worker.ARGUMENTS: rank.args} for rank in plan.ranks]

        def pack(entrypoint: object, roots: Mapping[str, object], soft: frozenset[str]) -> list[payload.Payload]:
            common = {worker.ENTRYPOINT: entrypoint}
            if plan.shared_args:
                one = packer.pack({**common, **own[0]}, variables=roots, soft=soft, labels=labels)
                return [one] * len(own)
            return list(packer.pack_each(common, own, variables=roots, soft=soft, labels=labels))

        packed = pack(plan.entrypoint, plan.roots, plan.soft)
        dropped = packed[0].dropped
        if dropped and plan.without is not None:
            left = {name: value for name, value in plan.roots.items() if name not in dropped}
            packed = pack(plan.without(dropped), left, frozenset())
            self.notes += tuple(f"not sent: {name} ({why})" for name, why in dropped.items())
        self.cells = {
            name: source.cell for one in packed for name, source in one.sources.items() if source.cell is not None
        }
        self.notes += _sent(packed[0], plan.roots)
        return payload.store(packed)

    def start(self, rank: int) -> RankProcess:
        """Ask for the process of a rank."""
        method = self._plan.start_method
        if method == "spawn":
            made = process.spawned(self._envs[rank])
        elif method == "fork":
            inherited = (self._plan.entrypoint, self._plan.ranks[rank].args)
            assert callable(inherited[0])
            made = process.forked(lambda sock: worker.run(sock, inherited=inherited, cells=self.cells))  # type: ignore[arg-type]
        else:
            made = standby.take(self._envs[rank])
        self._open.append(made)
        return made

    def hand_over(self, rank: int, process: RankProcess) -> None:
        """Send the rank its job."""
        assert process.job is not None
        files = self._layout.files
        job = Job(
            rank=rank,
            world_size=self._plan.nprocs,
            process_name=f"{self._plan.name}-{rank}",
            daemon=self._plan.daemon,
            environment=self._envs[rank],
            settings=self._settings,
            error_file=str(self._layout.error_files[rank]),
            stack_file=str(files.stack(rank)),
            stdout=_text(self._layout.paths[rank, Stream.OUT]),
            stderr=_text(self._layout.paths[rank, Stream.ERR]),
            directory=str(files.rank(rank)),
            sockets=_text(self._sockets),
            setup=self._setup,
        )
        own = streams.own(job.stdout, job.stderr)
        try:
            wire.send(process.job, wire.Kind.JOB, pickle.dumps(job, protocol=5), own)
        finally:
            for fd in own:
                os.close(fd)
        if self._shipment is not None:
            parcel.send(process.job, self._shipment[rank])
            self._unsent.discard(rank)
            if not self._unsent:
                self._shipment.close()

    def result(self, rank: int, process: RankProcess) -> Callable[[], Any]:
        """Receive what a rank returned."""
        assert process.job is not None
        return results.receive_result(process.job, rank).value

    def failure(self, rank: int, pid: int | None, exitcode: int | None, **more: Any) -> ProcessFailure:
        """Say why a rank ended badly."""
        stderr = self._layout.log_file(rank, Stream.ERR)
        return failure_of(rank, pid, exitcode, self._layout.error_files[rank], stderr, cells=self.cells, **more)

    def where(self, rank: int, told: bool) -> str:
        """Say where a rank was when it was stopped."""
        error_file = self._layout.error_files[rank]
        data = read_data(error_file) if told else None
        trace = read_trace(data) if data else None
        with contextlib.suppress(OSError):
            os.unlink(error_file)  # a rank that was stopped has not failed
        where = where_of(trace) if trace else None
        if where is None:
            where = where_in_dump(read_tail(self._layout.files.stack(rank)), self.cells)
        return where.stopped if where else ""

    def sample(self, process: RankProcess) -> None:
        """Make a rank write where it is."""
        if worker.SAMPLE_SIGNAL is not None:
            process.signal(worker.SAMPLE_SIGNAL)

    def catch_up(self) -> None:
        """Return when what was written so far was read."""
        self._reader.catch_up()

    def close(self) -> None:
        """Let go of everything that the run held."""
        if self._shipment is not None and self._unsent:
            self._shipment.close()
        self._shipment = None
        self._open.clear()
        self._reader.finish()
        self._layout.files.remove_sockets()
        if self._plan.start_method == "forkserver" and self._ahead:
            standby.fill(self._ahead)


def _cells() -> dict[str, int]:
    """Return the execution counts of all cells of the notebook, by file name: a forked rank has all of them."""
    counts = {name: surroundings.current().describe(name) for name in list(linecache.cache)}
    return {name: count for name, count in counts.items() if count is not None}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _sent(packed: payload.Payload, roots: Mapping[str, object]) -> tuple[str, ...]:
    """Say what was sent: ``sent train, Net, SCALE (12 kB)``. What the ranks import themselves is not named."""
    names = [name for name in packed.names if name in roots and not _imported(roots[name])]
    notes = []
    if names:
        shown = names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"]
        notes.append(f"sent {', '.join(shown)} ({_bytes(packed.size)})")
    elif packed.size >= 1 << 20:
        notes.append(f"sent {_bytes(packed.size)}")
    large = {name: size for name, size in packed.sizes.items() if size >= 10 << 20}
    if large and len(names) > 1:
        notes.append("large: " + ", ".join(f"{name} {_bytes(size)}" for name, size in large.items()))
    for name, why in packed.dropped.items():
        notes.append(f"not sent: {name} ({why})")
    return tuple(notes)


def _imported(value: object) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(value, ModuleType | type | FunctionType | BuiltinFunctionType) and home not in (None, "__main__")


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
