"""What is wrong with the fields of the launch panel, said at each field; without running anything of the user's. Pure."""

from __future__ import annotations

import functools
import inspect
import keyword
import math
import os
import re
import shutil
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbproc.notebook import functions, panel_code
from nbproc.notebook import panel_text as text
from nbproc.notebook.option_table import MOST_RANKS
from nbproc.notebook.panel_values import MASKS, Values
from nbproc.plan import START_METHODS


@dataclass(frozen=True)
class Checked:
    """What is said of the fields.

    ``errors`` and ``notes`` are sentences by field (``"arguments.2"``: of rank 2), ``wants`` says what is still to be
    filled in, ``code`` is the equivalent code, ``button`` what Launch will do, ``about`` describes the function.
    """

    errors: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    wants: str = ""
    code: str = ""
    button: str = "Launch"
    about: functions.Function | None = None
    takes_arguments: bool = False

    @property
    def ready(self) -> bool:
        """Whether it can be launched as it stands."""
        return not self.errors and not self.wants


def check(values: Values, namespace: Mapping[str, object]) -> Checked:
    """Look at all fields. Evaluates nothing, imports nothing."""
    errors: dict[str, str] = dict(_plain_fields(values))
    wants, about, signature = "", None, None
    if values.program:
        wants = _program(values, errors)
    elif not values.function.strip():
        wants = "Choose a function"
    else:
        about, signature = _function(values, namespace, errors)
    if "nprocs" not in errors and "function" not in errors:
        wants = wants or _arguments(values, signature, errors)
    code = ""
    if not errors and not wants:
        try:
            code = panel_code.code(values, namespace)
        except SyntaxError as error:
            errors["arguments.0" if values.by_rank("arguments") else "arguments"] = str(error)
    return Checked(
        errors,
        dict(_notes(values, namespace)),
        wants,
        code,
        button_words(values.count),
        about,
        takes_arguments=values.program
        or bool(signature and signature.parameters)
        or (about is not None and not signature),
    )


def button_words(count: int) -> str:
    """Return what the button says."""
    return f"Launch {count} rank{'' if count == 1 else 's'}" if count else "Launch"


def _plain_fields(values: Values) -> Iterator[tuple[str, str]]:
    if not 1 <= values.count <= MOST_RANKS:
        yield "nprocs", f"How many ranks? A whole number from 1 to {MOST_RANKS}."
    for name, check_one in _CHECKS.items():
        value = getattr(values, name).strip()
        if value and (said := check_one(value)):
            yield name, said
    for name, source in (("environment", values.environment), ("filters", values.filters)):
        yield from _syntax(name, source, text.settings if name == "environment" else text.cut)
    for rank in range(values.count):
        yield from _syntax(f"environment.{rank}", values.of_rank(rank).environment, text.settings)
        for column in ("redirects", "tee"):
            if getattr(values.of_rank(rank), column) not in ("", *MASKS):
                yield f"{column}.{rank}", "Choose one from the list."


def _syntax(name: str, source: str, read: Callable[[str], Any]) -> Iterator[tuple[str, str]]:
    try:
        tuple(read(source))
    except SyntaxError as error:
        yield name, str(error)


def _one_name(value: str) -> str:
    if "/" in value or value in (".", ".."):
        return "A name of a run has no slash: it is a part of its directory's name."
    return ""


def _variable(value: str) -> str:
    if not value.isidentifier() or keyword.iskeyword(value):
        return f"{value} cannot be a variable's name."
    return ""


def _seconds(value: str) -> str:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    return "" if math.isfinite(seconds) and seconds > 0 else "A number of seconds, such as 60."


def _one_of(*choices: str) -> Callable[[str], str]:
    return lambda value: "" if value in choices else "Choose one from the list."


def _directory(value: str) -> str:
    if "{" in value or "$" in value:
        said = dict(_syntax("", value, text.cut))
        return said.get("", "")
    path = os.path.expanduser(value)
    if os.path.exists(path) and not os.path.isdir(path):
        return f"{value} is a file; name a directory."
    above = os.path.abspath(path)
    while not os.path.exists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{above} is a file, so nothing can lie in it."
    return "" if os.access(above, os.W_OK | os.X_OK) else f"You may not write to {above}."


_CHECKS: Mapping[str, Callable[[str], str]] = {
    "name": _one_name,
    "variable": _variable,
    "start_method": _one_of(*START_METHODS),
    "redirects": _one_of(*MASKS),
    "tee": _one_of(*MASKS),
    "log_dir": _directory,
    "timeout": _seconds,
}


def _program(values: Values, errors: dict[str, str]) -> str:
    program = values.executable.strip()
    if not program:
        return "Name a program"
    try:
        words = text.cut(text.quoted(program))
    except SyntaxError as error:
        errors["executable"] = str(error)
        return ""
    pieces = words[0][0].pieces
    plain = "".join(map(str, pieces)) if all(isinstance(piece, str) for piece in pieces) else ""
    if not plain or plain in ("python", "python3"):
        return ""
    if shutil.which(os.path.expanduser(plain)) is None:
        if os.path.isdir(plain):
            errors["executable"] = f"{plain} is a directory."
        elif os.path.exists(plain):
            hint = f"; write python here and {plain} as its first argument" if plain.endswith(".py") else ""
            errors["executable"] = f"{plain} may not be executed{hint}."
        else:
            errors["executable"] = f"There is no program {plain}; arguments go into the next field."
    return ""


def _function(
    values: Values, namespace: Mapping[str, object], errors: dict[str, str]
) -> tuple[functions.Function | None, inspect.Signature | None]:
    name = values.function.strip()
    try:
        found = functions.look_up(name, namespace)
    except LookupError as error:
        errors["function"] = f"{error.args[0]}."
        return None, None
    if said := not_a_function(name, found):
        errors["function"] = said
        return None, None
    own = getattr(found, "__module__", None) == "__main__"
    return functions.describe(name, found, own=own), functions.signature_of(found)


def not_a_function(name: str, value: object) -> str:
    """Return why a value cannot be launched, "" if it can."""
    if not callable(value):
        kind = type(value).__name__
        article = "an" if kind[:1].lower() in "aeio" else "a"
        return f"{name} is {article} {kind}, not a function."
    inner = value.func if isinstance(value, functools.partial) else value
    if inspect.iscoroutinefunction(inner):
        return f"{name} is async; launch a function that calls asyncio.run({name}(...))."
    return ""


def _arguments(values: Values, signature: inspect.Signature | None, errors: dict[str, str]) -> str:
    """Look at the arguments for all, then at each rank's own. Returns what is missing, if nothing was typed yet."""
    wants = ""
    overridden = values.by_rank("arguments") and all(
        values.of_rank(rank).arguments.strip() for rank in range(values.count)
    )
    sources = [] if overridden else [("arguments", values.arguments)]
    sources += [
        (f"arguments.{rank}", own) for rank in range(values.count) if (own := values.of_rank(rank).arguments).strip()
    ]
    for name, source in sources:
        try:
            if values.program:
                text.cut(source)
                continue
            said = _binding(text.arguments(source), signature)
        except SyntaxError as error:
            errors[name] = str(error)
            continue
        if said and not source.strip():
            wants = said.rstrip(".")
        elif said:
            errors[name] = said
    return wants


def _binding(given: text.Arguments, signature: inspect.Signature | None) -> str:
    """Say why a call with these arguments would not fit, as far as that can be seen."""
    if signature is None or given.counted is None:
        return ""
    count, named = given.counted
    try:
        signature.bind(*[None] * count, **dict.fromkeys(named))
    except TypeError as error:
        said = str(error)
        if said.startswith("missing a required"):
            bound = signature.bind_partial(*[None] * count, **dict.fromkeys(named)).arguments
            lacking = [
                name
                for name, parameter in signature.parameters.items()
                if name not in bound
                and parameter.default is inspect.Parameter.empty
                and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            ]
            return f"Give {_listed(lacking)}."
        if "too many positional" in said:
            most = sum(
                p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for p in signature.parameters.values()
            )
            return f"These are {count} positional arguments; the function takes {most or 'none'}."
        if found := re.search(r"unexpected keyword argument '(\w+)'", said):
            return f"The function has no argument {found[1]}."
        return f"{said[:1].upper()}{said[1:]}."
    return ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _notes(values: Values, namespace: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    variable = values.variable.strip()
    if variable in namespace and not _is_run(namespace[variable]):
        yield (
            "variable",
            f"{variable} holds a value of type {type(namespace[variable]).__name__}; the launch replaces it.",
        )


def _is_run(value: object) -> bool:
    return any(base.__name__ in ("PContext", "RunProcsResult") for base in type(value).__mro__)


def free_variable(namespace: Container[str], wanted: str = "run") -> str:
    """Return a name for the run's variable that does not take the place of something else."""
    number, name = 1, wanted
    while name in namespace and not _is_run(namespace[name]):  # type: ignore[index]
        number += 1
        name = f"{wanted}{number}"
    return name
