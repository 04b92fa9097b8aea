"""What the magics say of their options: `--help`, and completion. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from nbproc.notebook.option_table import TABLE, Kind, Option, by_flag
from nbproc.notebook.options import flag_of

__all__ = ["complete", "help_text"]

_INTRODUCTIONS: dict[Kind, str] = {
    "%%spawn": """\
%%spawn -n N [options]

Run the cell on N processes. What the cell reads of the notebook is sent to them; `rank` and `world_size` are
defined, and RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set. The last expression is each rank's return value.

    %%spawn -n 4
    import torch.distributed as dist
    dist.init_process_group("gloo")
    train(cfg)

Afterwards `_` is the result: `_[0]` is rank 0's value.""",
    "%spawn": """\
%spawn -n N [options] call(...)
%spawn -n N [options] -- program arguments

Evaluate a call in each of N processes, its arguments included, or run a program N times.

    %spawn -n 4 train(cfg, seed=rank)
    %spawn -n 4 -- python train.py --lr {lr} --seed {rank}

{rank}, {world_size} and $RANK are the rank's; any other $name or {expression} is the notebook's.""",
    "%spawn_config": """\
%spawn_config [options]

Set what %%spawn and %spawn do where their own line says nothing. Without options: show what is set.

    %spawn_config -n 4 --timeout 600""",
}

_OUTRO = """\
$name and {expression} stand for values of the notebook; {{, }} and $$ for the characters themselves."""


def help_text(kind: Kind = "%%spawn") -> str:
    """Return what `--help` and `%%spawn?` show."""
    parts = [_INTRODUCTIONS[kind]]
    for group, title in (("run", "Options"), ("logs", "Logs")):
        lines = [title]
        for option in TABLE:
            if kind in option.kinds and option.group == group:
                usage = f"  {option.usage}"
                body = textwrap.wrap(option.help, 110 - 32)
                lines += [f"{usage:<32}{body[0]}"] if len(usage) < 31 else [usage, f"{'':32}{body[0]}"]
                lines += [f"{'':32}{text}" for text in body[1:]]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, _OUTRO])


def complete(before: str, kind: Kind = "%%spawn", names: Sequence[str] = ()) -> list[str]:
    """Return what the last word of ``before`` (the option line up to the cursor) may become.

    ``names`` are the notebook's variables, for `$` and `{`. Nothing once a call has begun: that is Python.
    """
    return sorted(set(_candidates(before, kind, names)))


def _candidates(before: str, kind: Kind, names: Sequence[str]) -> Iterator[str]:
    flags = by_flag(kind)
    head, _, last = before.rpartition(" ")
    earlier = head.split()
    if "--" in earlier:
        wanted = None
    else:
        wanted = flags.get(flag_of(earlier[-1], flags)[0]) if earlier and earlier[-1].startswith("-") else None
        if _call_began(earlier, flags):
            return
    opening = max(last.rfind("$"), last.rfind("{"))
    if opening >= 0 and (last[opening + 1 :].isidentifier() or not last[opening + 1 :]):
        start = last[: opening + 1]
        end = "}" if last[opening] == "{" else ""
        own = ("rank", "world_size") if end else ("RANK", "WORLD_SIZE")
        yield from (start + name + end for name in (*names, *own) if name.startswith(last[opening + 1 :]))
        return
    flag, equals, value = last.partition("=")
    if equals and flag in flags:
        yield from (f"{flag}={choice}" for choice in flags[flag].choices if choice.startswith(value))
    elif wanted is not None and wanted.metavar:
        yield from (choice for choice in wanted.choices if choice.startswith(last))
    elif "--" not in earlier:
        yield from (flag for flag in flags if flag.startswith(last) and (last or flag.startswith("--")))


def _call_began(earlier: Sequence[str], flags: Mapping[str, Option]) -> bool:
    takes_value = False
    for word in earlier:
        if takes_value:
            takes_value = False
        elif word.startswith("-"):
            flag, attached = flag_of(word, flags)
            takes_value = flag in flags and bool(flags[flag].metavar) and attached is None
        else:
            return True
    return False
