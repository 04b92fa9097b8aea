"""The options of `%%spawn`, `%spawn` and `%spawn_config`: their names, values and help. One table for all of it."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nbproc.errors import OptionError
from nbproc.logs.std import Std

__all__ = ["KINDS", "TABLE", "Kind", "Option", "by_flag"]

Kind = Literal["%%spawn", "%spawn", "%spawn_config"]
KINDS: tuple[Kind, ...] = ("%%spawn", "%spawn", "%spawn_config")

START_METHODS = ("forkserver", "spawn", "fork")
MOST_RANKS = 1024
"""More ranks than this are taken for a slip of the hand, which would take the kernel with it."""
NUMA_MODES = ("node", "socket", "exclusive", "core-complex")


@dataclass(frozen=True)
class Option:
    """One option. ``metavar`` is "" for a switch, whose value is ``switch``. ``repeats``: it may come several times."""

    flags: tuple[str, ...]
    field: str
    metavar: str
    help: str
    read: Callable[[str], Any] = str
    switch: object = None
    repeats: bool = False
    choices: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = KINDS
    group: str = "run"
    by_rank: bool = False

    @property
    def name(self) -> str:
        """The flag that messages call it by."""
        return self.flags[-1]

    @property
    def usage(self) -> str:
        """Its flags and what follows them."""
        return ", ".join(self.flags) + (f" {self.metavar}" if self.metavar else "")


def _number_of_ranks(text: str) -> int | str:
    if text in ("gpu", "cpu", "auto"):
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionError("expected a number of ranks from 1, or gpu, cpu, auto")
    if int(text) > MOST_RANKS:
        raise OptionError(f"more than {MOST_RANKS} ranks on one machine cannot be meant")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise OptionError("expected a number of seconds")
    return value


def _identifier(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise OptionError("expected a name that a variable can have")
    return text


def _name(text: str) -> str:
    if not text or "/" in text or text in (".", ".."):
        raise OptionError("expected a name without a slash")
    return text


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise OptionError(f"expected one of {', '.join(choices)}")
        return text

    return read


def _ranks(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise OptionError("expected ranks, such as 0,2")
    return tuple(sorted({int(part) for part in parts}))


def _nonempty(text: str) -> str:
    if not text:
        raise OptionError("expected a text that is not empty")
    return text


def _list(text: str) -> tuple[str, ...]:
    """Texts between commas; two commas are one in a text (as torchrun reads them)."""
    return tuple(part.replace("\0", ",").strip() for part in text.replace(",,", "\0").split(",") if part.strip())


_CELL: tuple[Kind, ...] = ("%%spawn",)
_RUNS: tuple[Kind, ...] = ("%%spawn", "%spawn")

TABLE: Sequence[Option] = (
    Option(
        ("-n", "--nproc-per-node"),
        "nproc",
        "N",
        "how many ranks: a number; gpu: one for each GPU; cpu: one for each core; auto: gpu if there is one, else cpu",
        _number_of_ranks,
        choices=("auto", "cpu", "gpu"),
    ),
    Option(
        ("--as",), "result_name", "NAME", "keep the result in this variable as well as in _", _identifier, kinds=_RUNS
    ),
    Option(("--name",), "name", "NAME", "what the run is called, in the view and in its directory's name", _name),
    Option(
        ("--detach",),
        "detach",
        "",
        "give the prompt back at once; NAME and _ are then the running context",
        switch=True,
        kinds=_RUNS,
    ),
    Option(
        ("--timeout",), "timeout", "SECONDS", "stop the run when it takes longer, from when its ranks started", _seconds
    ),
    Option(
        ("--shutdown-timeout", "--grace"),
        "grace",
        "SECONDS",
        "how long ranks may take to end after an interrupt, before they are killed (10 s; 2 s after another rank failed)",
        _seconds,
    ),
    Option(
        ("--start-method",),
        "start_method",
        "METHOD",
        "forkserver (the default), spawn or fork",
        _one_of(*START_METHODS),
        choices=START_METHODS,
    ),
    Option(
        ("--env",),
        "env",
        "K=V",
        "set an environment variable in the ranks; 2:K=V sets it in rank 2 only (may be repeated)",
        repeats=True,
        by_rank=True,
    ),
    Option(
        ("--numa-binding",),
        "numa_binding",
        "MODE",
        "bind ranks to the cores near their GPUs, as torchrun does: node, socket, exclusive or core-complex",
        _one_of(*NUMA_MODES),
        choices=NUMA_MODES,
    ),
    Option(
        ("--exec",),
        "interpreter",
        "PROGRAM",
        "run the cell's text as a script of this program in each rank (bash, python, ...)",
        _nonempty,
        kinds=_CELL,
    ),
    Option(("--no-check",), "check", "", "the cell does not fail when a rank does; look at the result", switch=False),
    Option(("--check",), "check", "", "the cell fails when a rank does (the default)", switch=True),
    Option(("--quiet",), "quiet", "", "show only failures and the line of the result", switch=True),
    Option(("--no-quiet",), "quiet", "", "show the run (the default)", switch=False),
    Option(
        ("--log-dir",),
        "log_dir",
        "DIR",
        "keep the logs, all unless -r or -t say which: each run makes NAME-<number>/ in this directory",
        _nonempty,
        group="logs",
    ),
    Option(
        ("-r", "--redirects"),
        "redirects",
        "MASK",
        "streams that go to files only: 1 stdout, 2 stderr, 3 both; by rank: 0:3,1:0",
        Std.from_str,
        choices=("0", "1", "2", "3"),
        group="logs",
    ),
    Option(
        ("-t", "--tee"),
        "tee",
        "MASK",
        "streams that go to files and to the console; written as for --redirects",
        Std.from_str,
        choices=("0", "1", "2", "3"),
        group="logs",
    ),
    Option(
        ("--local-ranks-filter",),
        "local_ranks_filter",
        "RANKS",
        "only these ranks write to the console, such as 0,2",
        _ranks,
        group="logs",
    ),
    Option(
        ("--filter",),
        "filters",
        "TEXT",
        "collect the lines of all ranks that hold TEXT in filtered_stdout.log and filtered_stderr.log (may be repeated)",
        _nonempty,
        repeats=True,
        group="logs",
    ),
    Option(
        ("--duplicate-stdout-filters",),
        "stdout_filters",
        "TEXTS",
        "the same for the teed stdout alone; texts between commas (torchrun's spelling)",
        _list,
        group="logs",
    ),
    Option(
        ("--duplicate-stderr-filters",),
        "stderr_filters",
        "TEXTS",
        "the same for the teed stderr alone",
        _list,
        group="logs",
    ),
    Option(("--reset",), "reset", "", "forget the session's settings", switch=True, kinds=("%spawn_config",)),
    Option(("-h", "--help"), "help", "", "show this text", switch=True),
)


def by_flag(kind: Kind) -> dict[str, Option]:
    """Return the options of a magic, by each of their flags."""
    return {flag: option for option in TABLE if kind in option.kinds for flag in option.flags}
