"""The fields of the launch panel as code that does the same: a `%spawn` line, and what must stand above it. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import PurePath

from nbproc.notebook import panel_text as text
from nbproc.notebook.panel_text import Arguments
from nbproc.notebook.panel_values import Values

_SCRIPT = re.compile(r"[\w./][\w./-]*")
_NAME = re.compile(r"\w[\w.-]*")
_SAFE = re.compile(r"[\w./:=@%+,-]+")
_TEMPLATE = "%spawn {options} {what}"


def code(values: Values, taken: Container[str] = ()) -> str:
    """Return a cell's text. ``taken`` are names that the cell must not use. Raises SyntaxError for a field that is wrong.

    What a call's arguments need is evaluated in the notebook, once, before the line with `%spawn`, unless it means
    the same in each rank.
    """
    options = " ".join(part for _, part in option_parts(values))
    if values.program:
        return _TEMPLATE.format(options=options, what=f"-- {command(values)}")
    above, call = _call(values, taken)
    return "\n".join([*above, _TEMPLATE.format(options=options, what=call)])


def option_parts(values: Values) -> Iterator[tuple[str, str]]:
    """Yield the options, each with the field that it comes from (``"environment.2"`` is that of rank 2)."""
    yield "nprocs", f"-n {values.count}"
    yield "", "--detach"
    if variable := values.variable.strip():
        yield "variable", f"--as {text.quoted(variable)}"
    if values.name.strip() or variable:
        yield "name", f"--name {text.quoted(values.name.strip() or default_name(values))}"
    if values.start_method and not values.program:
        yield "start_method", f"--start-method {text.quoted(values.start_method)}"
    if timeout := values.timeout.strip():
        yield "timeout", f"--timeout {text.quoted(timeout)}"
    for source in text.settings(values.environment):
        yield "environment", f"--env {source}"
    for rank in range(values.count):
        for source in text.settings(values.of_rank(rank).environment):
            yield f"environment.{rank}", f"--env {rank}:{source}"
    for field, flag in (("redirects", "-r"), ("tee", "-t")):
        if mask := mask_of(values, field):
            yield field, f"{flag} {mask}"
    for word, source in text.cut(values.filters):
        yield "filters", f"--filter {source if not source.startswith(('-', '#')) else text.quoted(word.raw)}"
    if directory := values.log_dir.strip():
        yield "log_dir", f"--log-dir {text.quoted(directory)}"


def default_name(values: Values) -> str:
    """Return what a run is called if the user does not say: after its function, its script or its program."""
    if not values.program:
        return values.function.strip().rpartition(".")[2]
    program = values.executable.strip()
    first = values.arguments.split(maxsplit=1)[:1]
    if program in ("python", "python3") and first and _SCRIPT.fullmatch(first[0]):
        program = first[0]
    stem = PurePath(program).stem
    return stem if _NAME.fullmatch(stem) else "program"


def mask_of(values: Values, field: str) -> str:
    """Return ``redirects`` or ``tee`` as an option's value: one mask, or one by rank; "" for none."""
    for_all = getattr(values, field)
    if not values.by_rank(field):
        return str(for_all)
    return ",".join(f"{rank}:{getattr(values.of_rank(rank), field) or for_all or '0'}" for rank in range(values.count))


def command(values: Values) -> str:
    """Return the program and its arguments, as they stand after ``--``. Raises SyntaxError."""
    program = text.quoted(values.executable.strip())
    if not values.by_rank("arguments"):
        return " ".join([program, *(source for _, source in text.cut(values.arguments))])
    by_rank = [[word for word, _ in text.cut(arguments_of(values, rank))] for rank in range(values.count)]
    if len({len(row) for row in by_rank}) > 1:
        raise SyntaxError("A program gets as many arguments in each rank; fill in the same number of words.")
    written = [program]
    for words in zip(*by_rank, strict=True):
        if any(not isinstance(piece, str) for word in words for piece in word.pieces):
            raise SyntaxError("By rank these are plain words; {...} and $name go above, as in {rates[rank]}.")
        plain = ["".join(map(str, word.pieces)) for word in words]
        written.append(_word(plain[0]) if len(set(plain)) == 1 else text.choice_by_rank(plain))
    return " ".join(written)


def arguments_of(values: Values, rank: int) -> str:
    """Return the arguments of one rank as they were typed: its own, or those for all."""
    own = values.of_rank(rank).arguments
    return own if own.strip() else values.arguments


def _word(plain: str) -> str:
    """A word that is nothing but this text."""
    return plain if _SAFE.fullmatch(plain) else "'" + plain.replace("'", "'\\''") + "'"


def _call(values: Values, taken: Container[str]) -> tuple[list[str], str]:
    function = values.function.strip()
    stem = function.rpartition(".")[2]
    if not values.by_rank("arguments"):
        given = text.arguments(values.arguments)
        if given.settled:
            return [], f"{function}({', '.join((*given.positional, *given.keywords))})"
        return _above([given], stem, taken, function, "")
    rows = [text.arguments(arguments_of(values, rank)) for rank in range(values.count)]
    return _above(rows, stem, taken, function, "[rank]")


def _above(rows: list[Arguments], stem: str, taken: Container[str], function: str, index: str) -> tuple[list[str], str]:
    above, parts = [], []
    for used, suffix, stars, sources in (
        (any(row.positional for row in rows), "args", "*", [row.tuple_source for row in rows]),
        (any(row.keywords for row in rows), "kwargs", "**", [row.dict_source for row in rows]),
    ):
        if used:
            name = _free(f"{stem}_{suffix}", taken)
            above.append(f"{name} = {sources[0] if not index else '[' + ', '.join(sources) + ']'}")
            parts.append(f"{stars}{name}{index}")
    return above, f"{function}({', '.join(parts)})"


def _free(name: str, taken: Container[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found
