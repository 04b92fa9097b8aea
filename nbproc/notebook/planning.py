"""What was asked for in a cell -> a `Plan`: options with a cell's source, a call, a script or a program."""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

from nbproc.errors import OptionError, PlanError
from nbproc.logs.specs import private_run_dir, release_run_dir
from nbproc.logs.std import Std
from nbproc.needs import torch_module
from nbproc.notebook import cell as cells
from nbproc.notebook.options import Options
from nbproc.plan import Plan, flat_logs, make_plan
from nbproc.ranks import threads

_PYTHONS = ("python", "python3")
_PROGRAM = re.compile(r"(python\d?|bash|sh|torchrun|\S+\.(py|sh))\s|[.~]?/")
"""What begins like a program rather than like a call."""


@dataclass(frozen=True)
class Place:
    """The cell that is being run: its whole text, its file name for tracebacks, its execution count."""

    text: str
    filename: str
    execution_count: int | None


def place_of(shell: Any, body: str, magic: str, describe: Callable[[str], int | None]) -> Place:
    """Find the running cell. For a magic that is called by code, or without a history, its text is made up."""
    recent = getattr(shell.history_manager, "input_hist_raw", None) or [""]
    running = list(_cells_on_the_stack(describe))
    if running and recent[-1].rstrip("\n").endswith(body.rstrip("\n")):
        place = Place(recent[-1], *running[0])
    else:
        count = running[-1][1] if running else shell.execution_count
        place = Place(f"{magic}\n{body}", f"<cell {count}>", count)
    # IPython keeps the cell with its magic turned into a call; a crash in a rank has lines of the cell as it was typed
    linecache.cache[place.filename] = (len(place.text), None, place.text.splitlines(keepends=True), place.filename)
    return place


def _cells_on_the_stack(describe: Callable[[str], int | None]) -> Iterator[tuple[str, int]]:
    """Yield file name and execution count of the cells whose code called this, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        count = describe(frame.f_code.co_filename)
        if count is not None:
            yield frame.f_code.co_filename, count
        frame = frame.f_back


def of_cell(options: Options, shell: Any, body: str, place: Place) -> Plan:
    """Plan a run of a cell's source. Raises `PlanError` for an empty one and for magics that a rank does not have."""
    if not body.strip():
        raise PlanError("the cell is empty: write the code that each rank runs under %%spawn. Nothing was started.")
    line = cells.first_line(place.text, body)
    return _of_source(options, shell, body, place, line, options.name or options.result_name or _cell_name(place))


def of_call(options: Options, shell: Any, place: Place) -> Plan:
    """Plan a run of the call on a `%spawn` line, evaluated in each rank.

    Raises `OptionError` where a function stands without being called, or a program without `--` before it.
    """
    if options.call.isidentifier() and callable(shell.user_ns.get(options.call)):
        raise OptionError(f"%spawn: {options.call} is not called: write {options.call}(...)")
    name = options.name or options.result_name or _leading_name(options.call) or _cell_name(place)
    found = ((number, text.find(options.call)) for number, text in enumerate(place.text.splitlines(), 1))
    line, column = next(((number, column) for number, column in found if column >= 0), (1, 0))
    try:
        return _of_source(options, shell, options.call, place, line, name, column)
    except SyntaxError:
        if not _PROGRAM.match(options.call):
            raise
        raise OptionError(f"%spawn: for a program write -- before it: -- {options.call}") from None


def _of_source(options: Options, shell: Any, source: str, place: Place, line: int, name: str, column: int = 0) -> Plan:
    nprocs = count_ranks(options.nproc)

    def transform_tree(tree: ast.Module) -> ast.Module:
        before = place.text.splitlines()[line - 1][:column] if column else ""
        return cast(ast.Module, shell.transform_ast(_shifted(tree, len(before.encode()))))

    try:
        found = cells.analyse(
            source,
            shell.user_ns,
            transform=shell.transform_cell,
            transform_tree=transform_tree,
            text=place.text,
            line=line,
            filename=place.filename,
            execution_count=place.execution_count,
            flags=shell.compile.flags,
        )
    except SyntaxError as error:
        if error.lineno == line and error.offset:  # a call stands in its line
            error.offset += column
            error.end_offset = error.end_offset and error.end_offset + column
        raise
    return _plan(
        options,
        name,
        found.call,
        dict.fromkeys(range(nprocs), ()),
        shared=True,
        start_method=options.start_method,
        roots=found.roots(shell.user_ns),
        soft=frozenset(found.soft),
        without=lambda missing: found.without(missing).call,
        notes=found.notes,
    )


def _shifted(tree: ast.Module, columns: int) -> ast.Module:
    """Move all columns to the right, to where the source stands in its line."""
    for node in ast.walk(tree):
        for name in ("col_offset", "end_col_offset"):
            if isinstance(column := getattr(node, name, None), int):
                setattr(node, name, column + columns)
    return tree


def of_program(options: Options, place: Place) -> Plan:
    """Plan a run of a program; ``python`` is the interpreter of this kernel."""
    commands = options.arguments(count_ranks(options.nproc))
    programs = {command[0] for command in commands.values()}
    if len(programs) > 1:
        raise OptionError("the program must be the same in all ranks; only its arguments may differ")
    program = programs.pop()
    arguments = {rank: command[1:] for rank, command in commands.items()}
    name = options.name or options.result_name or _program_name(program, arguments[0]) or _cell_name(place)
    return _plan(options, name, _program(program), arguments)


def of_function(
    options: Options, name: str, function: Callable[..., object], args: Mapping[int, Any], *, shared: bool
) -> Plan:
    """Plan a run of a function with values that are there already, by rank; ``shared``: all ranks have the same."""
    named = options.name or options.result_name or name
    return _plan(options, named, function, args, shared=shared, start_method=options.start_method)


def of_script(options: Options, body: str, place: Place) -> Plan:
    """Plan a run of a cell's text as a script of the interpreter in ``--exec``."""
    if not body.strip():
        raise PlanError("the cell is empty: write the script under %%spawn. Nothing was started.")
    name = options.name or options.result_name or _cell_name(place)
    directory = private_run_dir(f"{name}-script")
    script = directory / "script"
    script.write_text(body, encoding="utf-8")
    release_run_dir(directory)
    arguments = dict.fromkeys(range(count_ranks(options.nproc)), (str(script),))
    return _plan(options, name, _program(str(options.interpreter)), arguments)


def _plan(
    options: Options, name: str, entrypoint: Any, args: Mapping[int, Any], *, shared: bool = False, **more: Any
) -> Plan:
    nprocs = len(args)
    return make_plan(
        name,
        entrypoint,
        next(iter(args.values()), ()) if shared else args,
        options.envs(nprocs),
        nprocs=nprocs,
        logs=flat_logs(_run_dir(options.log_dir, name), options.redirects, _tee(options), options.local_ranks_filter),
        duplicate_stdout_filters=(*options.filters, *options.stdout_filters),
        duplicate_stderr_filters=(*options.filters, *options.stderr_filters),
        filter_all=bool(options.filters),
        grace=options.grace,
        timeout=options.timeout,
        numa=_numa(options.numa_binding),
        capture=True,
        shown=True,
        done_words=_done_words(options, values=callable(entrypoint)),
        **more,
    )


def _done_words(options: Options, *, values: bool) -> str:
    named = options.result_name or "_"
    if options.detach:  # the variable holds the context
        return f"results in {named}.result(); {named}.result()[0] is rank 0's" if values else ""
    hint = "" if options.result_name else "; --as NAME keeps them"
    return f"results in {named}; {named}[0] is rank 0's{hint}" if values else f"the result is in {named}"


def count_ranks(wanted: int | str | None) -> int:
    """Return the number of ranks for ``-n``: a number, ``gpu``, ``cpu`` or ``auto``. Imports no torch."""
    if isinstance(wanted, int):
        return wanted
    cores = threads.available()
    if wanted == "cpu":
        return cores
    gpus = count_gpus()
    if wanted == "gpu" and not gpus:
        raise OptionError("-n gpu: no GPU was found; -n cpu starts one rank for each core")
    return gpus or cores


def count_gpus() -> int:
    """Count the GPUs that a rank would see. May ask nvidia-smi, which takes up to seconds."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.cuda.device_count())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return 0
    try:
        listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", listed.stdout, re.MULTILINE))


def _numa(mode: str | None) -> object | None:
    if mode is None:
        return None
    binding = torch_module("torch.numa.binding", "--numa-binding")
    numa: object = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    return numa


def _program(program: str) -> str:
    return sys.executable if program in _PYTHONS else program


def _run_dir(parent: str | None, name: str) -> Path | None:
    """Make ``<parent>/<name>-<n>/`` with the first number that is free."""
    if parent is None:
        return None
    base = Path(parent).expanduser()
    if base.exists() and not base.is_dir():
        raise OptionError(f"--log-dir {parent}: it is a file; name a directory")
    try:
        base.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                (base / f"{name}-{number}").mkdir()
                return base / f"{name}-{number}"
    except OSError as error:
        raise OptionError(f"--log-dir {parent}: no directory can be made there: {error.strerror}") from None
    return None


def _tee(options: Options) -> object:
    """Keep every stream in the log directory that was asked for, unless the line says which."""
    unsaid = options.redirects is None and options.tee is None
    return Std.ALL if unsaid and options.log_dir is not None else options.tee


def _cell_name(place: Place) -> str:
    return f"cell{place.execution_count}" if place.execution_count is not None else "cell"


def _program_name(program: str, arguments: Sequence[str]) -> str:
    """Name a run after its program, or after the script or module that python runs."""
    if program in _PYTHONS and arguments and not arguments[0].startswith("-"):
        return Path(arguments[0]).stem
    if program in _PYTHONS and arguments[:1] == ("-m",) and len(arguments) > 1:
        return arguments[1].rpartition(".")[2]
    return Path(program).stem


def _leading_name(call: str) -> str:
    found = re.match(r"\s*([\w.]+)\s*\(", call)
    return found[1].rpartition(".")[2] if found else ""
