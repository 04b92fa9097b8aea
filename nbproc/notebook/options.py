"""The option line of `%%spawn`, `%spawn` and `%spawn_config` -> `Options`, a value. Pure: knows no shell."""

from __future__ import annotations

import difflib
import keyword
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbproc.errors import OptionError
from nbproc.logs.std import Std
from nbproc.notebook.option_table import KINDS, TABLE, Kind, Option, by_flag
from nbproc.notebook.words import Template, Word, is_ranks, value_of, words

__all__ = ["EnvSetting", "Options", "flag_of", "parse"]

_ENV = re.compile(r"(?:(\d+):)?([A-Za-z_][A-Za-z0-9_]*)=")


@dataclass(frozen=True)
class EnvSetting:
    """`--env K=V`, for all ranks or for one."""

    rank: int | None
    key: str
    value: Template


@dataclass(frozen=True)
class Options:
    """What an option line says; None and () where it says nothing.

    ``call`` is the expression after `%spawn`'s options, as it was written; ``program`` what follows `--`.
    """

    nproc: int | str | None = None
    result_name: str | None = None
    name: str | None = None
    detach: bool = False
    timeout: float | None = None
    grace: float | None = None
    start_method: str | None = None
    env: tuple[EnvSetting, ...] = ()
    numa_binding: str | None = None
    interpreter: str | None = None
    check: bool = True
    quiet: bool = False
    log_dir: str | None = None
    redirects: Std | dict[int, Std] | None = None
    tee: Std | dict[int, Std] | None = None
    local_ranks_filter: tuple[int, ...] | None = None
    filters: tuple[str, ...] = ()
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    reset: bool = False
    help: bool = False
    call: str = ""
    program: tuple[Template, ...] = ()

    def envs(self, nprocs: int) -> dict[int, dict[str, str]]:
        """Return each rank's own environment variables. Raises `OptionError` for a rank that is not there."""
        for setting in self.env:
            if setting.rank is not None and setting.rank >= nprocs:
                raise OptionError(
                    f"--env {setting.rank}:{setting.key}: there is no rank {setting.rank}, the last is {nprocs - 1}"
                )
        return {
            rank: {
                setting.key: setting.value.text(rank, nprocs) for setting in self.env if setting.rank in (None, rank)
            }
            for rank in range(nprocs)
        }

    def arguments(self, nprocs: int) -> dict[int, tuple[str, ...]]:
        """Return the program and its arguments for each rank."""
        return {rank: tuple(word.text(rank, nprocs) for word in self.program) for rank in range(nprocs)}

    def settings(self) -> str:
        """Return the options that differ from their defaults as an option line."""
        shown: list[str] = []
        for option in TABLE:
            value = getattr(self, option.field)
            if option.field in ("help", "reset") or value == getattr(_NOTHING, option.field):
                continue
            if not option.metavar:
                shown += [option.name] if value == option.switch else []
            else:
                shown += [f"{option.flags[0]} {each}" for each in _written(option, value)]
        return " ".join(shown)


_NOTHING = Options()
_OF_OTHERS = {
    "--nnodes": "all ranks are on this machine",
    "--node-rank": "all ranks are on this machine",
    "--max-restarts": "failed ranks are not restarted",
    "--master-addr": "leave it out, ranks find each other",
    "--master-port": "leave it out, a free port is taken",
    "--standalone": "leave it out, it is always so",
    "--rdzv": "leave it out, ranks find each other",
    "--num-processes": "write -n",
    "-np": "write -n",
}
"""What other launchers call it, by how it begins."""
_REPEATED = frozenset(option.field for option in TABLE if option.repeats)


def _written(option: Option, value: Any) -> list[str]:
    if option.field == "env":
        return [
            ("" if one.rank is None else f"{one.rank}:")
            + _quoted(f"{one.key}={''.join(p if isinstance(p, str) else p.raw for p in one.value.pieces)}")
            for one in value
        ]
    if isinstance(value, dict):
        return [",".join(f"{rank}:{int(mask)}" for rank, mask in value.items())]
    if isinstance(value, Std):
        return [str(int(value))]
    if isinstance(value, float):
        return [f"{value:g}"]
    if option.repeats:
        return [_quoted(one) for one in value]
    if isinstance(value, tuple):
        return [_quoted(",".join(str(one).replace(",", ",,") for one in value))]
    return [_quoted(str(value))]


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"(?!#)[^\s'\"\\$]+", text) else "'" + text.replace("'", "'\\''") + "'"


def parse(
    line: str,
    kind: Kind = "%%spawn",
    *,
    namespace: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    base: Options = _NOTHING,
) -> Options:
    """Read an option line; what it does not say is as in ``base``, the session's settings.

    ``namespace`` are the notebook's variables for `$name` and `{expression}`, ``environ`` the environment (by default
    this process's). Raises `OptionError`, in one line that names the magic and the option.
    """
    reader = _Reader(kind, {} if namespace is None else namespace, os.environ if environ is None else environ)
    try:
        found = reader.read(line)
        for field in _REPEATED & found.keys():
            found[field] = (*getattr(base, field), *found[field])
        options = replace(base, **{"call": "", "program": (), "help": False, "reset": False, **found})
        return options if options.help or options.reset else _checked(options, kind)
    except OptionError as error:
        raise OptionError(f"{kind}: {error}") from None


def _checked(options: Options, kind: Kind) -> Options:
    if kind == "%spawn_config":
        return options
    if kind == "%spawn" and not (options.call or options.program):
        raise OptionError("nothing to run; write a call, as in %spawn -n 4 train(cfg), or -- python train.py")
    if options.nproc is None:
        raise OptionError("how many ranks? Say -n 4, or -n gpu, or %spawn_config -n 4 once for all cells")
    if isinstance(options.nproc, int):
        options.envs(options.nproc)
        options.arguments(options.nproc)
    return options


class _Reader:
    """Reads one line. Options come first; the rest of a `%spawn` line is the call, untouched."""

    def __init__(self, kind: Kind, namespace: Mapping[str, object], environ: Mapping[str, str]) -> None:
        self._kind = kind
        self._flags = by_flag(kind)
        self._namespace = namespace
        self._environ = environ
        self._found: dict[str, Any] = {}

    def read(self, line: str) -> dict[str, Any]:
        at = 0
        while not _comment(line, at) and not self._call_begins(line, at):
            if (word := next(words(line, at), None)) is None:
                break
            if word.raw == "--":
                self._program(line, word.end)
                break
            if (more := self._line_in(word)) is not None:
                line, at = f"{more} {line[word.end :]}", 0
                continue
            if not (word.plain and word.raw.startswith("-") and len(word.raw) > 1):
                raise self._stray(word, line)
            at = self._option(line, word)
        return self._found

    def _call_begins(self, line: str, at: int) -> bool:
        """Take the rest of a `%spawn` line as it stands, if it is no option: it is Python, not words."""
        rest = line[at:].strip()
        if self._kind != "%spawn" or not rest or rest[0] in "-$":
            return False
        number = re.match(r"(\d+)\s+([^\W\d]\w*)", rest)
        if number and "nproc" not in self._found and not keyword.iskeyword(number[2]):
            raise OptionError(f"{number[1]!r} is no call; did you mean -n {number[1]}?")
        self._found["call"] = rest
        return True

    def _line_in(self, word: Word) -> str | None:
        """The text of a `$name` that stands where an option should: it may be several options."""
        if word.whole is None or is_ranks(word.whole):
            return None
        return str(value_of(word.whole, self._namespace))

    def _stray(self, word: Word, line: str) -> OptionError:
        """Say what to write for what stands where an option should: a number, a call, a program."""
        rest = line[word.start :].strip()
        hint = ""
        if "nproc" not in self._found and (word.raw.isdigit() or word.raw in self._flags["-n"].choices):
            hint = f"; did you mean -n {word.raw}?"
        elif self._kind == "%%spawn" and (rest.isidentifier() or re.match(r"[\w.]+\(", rest)):
            hint = f"; for a call write %spawn (one percent sign) ... {rest if '(' in rest else f'{rest}(...)'}"
        elif self._kind == "%%spawn":
            hint = f"; for a program write %spawn (one percent sign) ... -- {rest}"
        return OptionError(f"{word.raw!r} is no option{hint}")

    def _program(self, line: str, at: int) -> None:
        if self._kind != "%spawn":
            raise OptionError("a program after -- is for %spawn (one percent sign), or use --exec with the cell's text")
        program: list[Template] = []
        for word in words(line, at):
            value = value_of(word.whole, self._namespace) if word.whole and self._is_variable(word) else None
            if isinstance(value, (list, tuple)):
                program += [Template((str(each),)) for each in value]
            else:
                program.append(word.template(self._namespace, self._environ))
        if not program:
            raise OptionError("no program after --")
        self._found["program"] = tuple(program)

    def _is_variable(self, word: Word) -> bool:
        field = word.whole
        return field is not None and not is_ranks(field) and field.expression in self._namespace

    def _option(self, line: str, word: Word) -> int:
        flag, attached = flag_of(word.raw, self._flags)
        wanted = word.raw.partition("=")[0].replace("_", "-")
        if why := next((why for begin, why in _OF_OTHERS.items() if wanted.startswith(begin)), None):
            raise OptionError(f"there is no option {wanted}: {why}")
        if (longer := f"-{word.raw}") in self._flags:
            raise OptionError(f"there is no option {word.raw}; did you mean {longer}?")
        option = self._flags.get(flag)
        if option is None:
            kinds = [kind for kind in KINDS if flag in by_flag(kind)]
            if kinds:
                raise OptionError(f"{flag} is an option of {' and '.join(kinds)} only")
            near = difflib.get_close_matches(flag, self._flags, 1)
            raise OptionError(f"there is no option {flag}" + (f"; did you mean {near[0]}?" if near else "; see --help"))
        if not option.metavar:
            if attached is not None:
                raise OptionError(f"{flag} takes no value")
            self._found[option.field] = option.switch
            return word.end
        if attached is not None:
            value, end = _after(word, len(word.raw) - len(attached)), word.end
        else:
            if comment := _comment(line, word.end):
                quoted = _quoted(comment.split()[0])
                raise OptionError(
                    f"{flag} needs a value: {flag} {option.metavar} (# begins a comment; {quoted} does not)"
                )
            following = next(words(line, word.end), None)
            if following is None or (following.plain and _is_flag(following.raw, self._flags)):
                raise OptionError(f"{flag} needs a value: {flag} {option.metavar}")
            value, end = following, following.end
        self._set(option, flag, value.template(self._namespace, self._environ))
        return end

    def _set(self, option: Option, flag: str, value: Template) -> None:
        if option.by_rank:
            self._found[option.field] = (*self._found.get(option.field, ()), _env_setting(value))
            return
        text = ""
        try:
            text = value.text()
            read = option.read(text)
        except OptionError as error:
            hint = f"; did you mean ${text}?" if text.isidentifier() and text in self._namespace else ""
            raise OptionError(f"{flag} {_shown(value)}: {error}{hint}") from None
        self._found[option.field] = (*self._found.get(option.field, ()), read) if option.repeats else read


def _comment(line: str, at: int) -> str:
    """Return the rest of the line if it is a comment, else ""."""
    rest = line[at:].lstrip()
    return rest if rest.startswith("#") and (at == 0 or line[at].isspace()) else ""


def _shown(value: Template) -> str:
    text = "".join(piece if isinstance(piece, str) else piece.raw for piece in value.pieces)
    return (repr(text) if not text or " " in text else text)[:100]


def flag_of(raw: str, flags: Mapping[str, Option]) -> tuple[str, str | None]:
    """Cut `--name=value` and `-n4` in two; `--nproc_per_node` is `--nproc-per-node`."""
    if raw.startswith("--"):
        name, equals, value = raw.partition("=")
        return name.replace("_", "-"), value if equals else None
    if raw in flags or raw[:2] not in flags:
        return raw, None
    return raw[:2], raw[2:].removeprefix("=")


def _is_flag(raw: str, flags: Mapping[str, Option]) -> bool:
    return raw == "--" or flag_of(raw, flags)[0] in flags


def _after(word: Word, length: int) -> Word:
    """The word without its first ``length`` characters, which are literal."""
    first = word.pieces[0]
    assert isinstance(first, str)  # it begins with the flag
    rest = (first[length:], *word.pieces[1:]) if first[length:] else word.pieces[1:]
    return replace(word, pieces=rest)


def _env_setting(value: Template) -> EnvSetting:
    first = value.pieces[0] if value.pieces and isinstance(value.pieces[0], str) else ""
    found = _ENV.match(first)
    if found is None:
        raise OptionError(f"--env {_shown(value)}: expected NAME=VALUE, or RANK:NAME=VALUE for one rank")
    rest = first[found.end() :]
    pieces = (rest, *value.pieces[1:]) if rest else value.pieces[1:]
    return EnvSetting(None if found[1] is None else int(found[1]), found[2], replace(value, pieces=pieces))
