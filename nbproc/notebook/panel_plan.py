"""The fields of the launch panel -> a `Plan`: what they mean is evaluated now, once, in the notebook's namespace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbproc.errors import NbprocError, OptionError
from nbproc.notebook import functions, panel_code, panel_text, planning
from nbproc.notebook.options import Options, parse
from nbproc.notebook.panel_check import not_a_function
from nbproc.notebook.panel_values import Values
from nbproc.plan import Plan

_NOWHERE = planning.Place("", "<panel>", None)


class FieldError(NbprocError, ValueError):
    """A field of the panel is wrong; ``field`` is its name, as in `Checked.errors`."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class WithKeywords:
    """A function that takes its arguments as a tuple and a dict, so that they can differ by rank."""

    function: Any

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def plan(values: Values, namespace: dict[str, Any], defaults: Options | None = None) -> Plan:
    """Plan the run. Runs the user's expressions; makes the log directory.

    Raises `FieldError` for what is wrong in a field, and what `make_plan` raises.
    """
    options = _options(values, namespace, defaults or Options())
    if values.program:
        return planning.of_program(options, _NOWHERE)
    name = values.function.strip()
    function = _function(name, namespace)
    shared = not values.by_rank("arguments")
    given: dict[int, tuple[tuple[Any, ...], dict[str, Any]]]
    if shared:
        given = dict.fromkeys(range(values.count), _evaluated("arguments", values.arguments, namespace))
    else:
        given = dict(_evaluated_by_rank(values, namespace))
    if any(kwargs for _, kwargs in given.values()):
        return planning.of_function(options, name.rpartition(".")[2], WithKeywords(function), given, shared=shared)
    args = {rank: args for rank, (args, _) in given.items()}
    return planning.of_function(options, name.rpartition(".")[2], function, args, shared=shared)


def _options(values: Values, namespace: dict[str, Any], defaults: Options) -> Options:
    """Read the same option line as the equivalent code, so that it means the same."""
    parts = list(panel_code.option_parts(values))
    what = f"-- {panel_code.command(values)}" if values.program else "f()"
    try:
        return parse(f"{' '.join(part for _, part in parts)} {what}", "%spawn", namespace=namespace, base=defaults)
    except OptionError as error:
        for field, part in parts:
            try:
                parse(f"-n {values.count} {part} f()", "%spawn", namespace=namespace)
            except OptionError as guilty:
                raise FieldError(field, _sentence(guilty)) from None
        raise FieldError("arguments" if values.program else "", _sentence(error)) from None


def _sentence(error: OptionError) -> str:
    said = str(error).removeprefix("%spawn: ")
    return f"{said[:1].upper()}{said[1:]}."


def _function(name: str, namespace: dict[str, Any]) -> Any:
    first, *rest = name.split(".")
    try:
        functions.look_up(first, namespace)
        value = namespace[first]
        for part in rest:
            value = getattr(value, part)
    except LookupError as error:
        raise FieldError("function", f"{error.args[0]}.") from None
    except AttributeError:
        raise FieldError("function", f"There is no {name} in the notebook.") from None
    if said := not_a_function(name, value):
        raise FieldError("function", said)
    return value


def _evaluated_by_rank(
    values: Values, namespace: dict[str, Any]
) -> Iterator[tuple[int, tuple[tuple[Any, ...], dict[str, Any]]]]:
    for rank in range(values.count):
        own = values.of_rank(rank).arguments
        field = f"arguments.{rank}" if own.strip() else "arguments"
        yield rank, _evaluated(field, own if own.strip() else values.arguments, namespace)


def _evaluated(field: str, source: str, namespace: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return panel_text.evaluate(source, namespace)
    except NameError as error:
        name = getattr(error, "name", None)
        if name in ("rank", "world_size"):
            raise FieldError(field, f"{name} is known in the ranks only; give arguments by rank below.") from None
        raise FieldError(field, f"{name} is not defined in the notebook." if name else f"{error}.") from None
    except Exception as error:
        raise FieldError(field, f"{type(error).__name__}: {error}") from None
