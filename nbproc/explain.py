"""A run's end in words: which rank failed first and why, what followed from it, where the files are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nbproc.failures.callstack import markers
from nbproc.failures.causes import first_cause, follows, same
from nbproc.failures.layout import Kind, Line, lay_out, lay_out_frames
from nbproc.failures.process import ProcessFailure
from nbproc.failures.stacks import where_of
from nbproc.states import RankState, RunState, Snapshot


class Group(NamedTuple):
    """Ranks of which the same can be said. ``words`` is a sentence without its subject."""

    ranks: tuple[int, ...]
    words: str

    @property
    def sentence(self) -> str:
        """The whole sentence: ``ranks 0, 1, 3 stopped at train, cell [3] line 19, waiting in all_reduce``."""
        return f"{ranks_words(self.ranks)} {self.words}"


@dataclass(frozen=True)
class Report:
    """Why a run ended as it did.

    Attributes:
        name: of the run.
        headline: the whole in one line.
        first: the failure from which the others follow, None if no rank failed.
        first_ranks: its rank and those that failed in the same way.
        others: failures of another kind, which may have causes of their own.
        consequences: ranks that only lost their connection to one that had failed.
        stopped: ranks that were ended by this library, and where they were.
        returned: ranks that had returned.
        run_dir: where the run's files are, None if nowhere.
    """

    name: str
    headline: str
    first: ProcessFailure | None = None
    first_ranks: tuple[int, ...] = ()
    others: tuple[Group, ...] = ()
    consequences: tuple[Group, ...] = ()
    stopped: tuple[Group, ...] = ()
    returned: tuple[int, ...] = ()
    run_dir: Path | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is to be said of the other ranks, one line each, in the order of worth."""
        returned = (Group(self.returned, "had returned"),) if self.returned and self.first else ()
        return (*self.others, *self.consequences, *self.stopped, *returned)


def report(snapshot: Snapshot, failures: Mapping[int, ProcessFailure]) -> Report:
    """Explain a run, ended or not, from its snapshot and the failures known so far. Reads no file, never blocks."""
    stopped = _fold(
        (rank.rank, rank.words or "stopped")
        for rank in snapshot.ranks
        if rank.state is RankState.STOPPED and rank.rank not in failures
    )
    returned = tuple(rank.rank for rank in snapshot.ranks if rank.state is RankState.SUCCEEDED)
    if not failures:
        return Report(
            snapshot.name, _quiet(snapshot, stopped), stopped=stopped, returned=returned, run_dir=snapshot.run_dir
        )
    first = first_cause(failures)
    equal = tuple(sorted(rank for rank, failure in failures.items() if failure is first or same(failure, first)))
    rest = {rank: failures[rank] for rank in sorted(failures) if rank not in equal}
    consequences = _fold((rank, _consequence(failure)) for rank, failure in rest.items() if follows(failure, first))
    return Report(
        snapshot.name,
        _headline(first, equal, alone=len(equal) == snapshot.nprocs or (len(equal) > 1 and not rest)),
        first=first,
        first_ranks=equal,
        others=_fold_same({rank: failure for rank, failure in rest.items() if not follows(failure, first)}),
        consequences=consequences,
        stopped=stopped,
        returned=returned,
        run_dir=snapshot.run_dir,
    )


def headline(report: Report) -> str:
    """Return the one line: ``rank 2 failed first: ValueError: bad batch, in fail, cell [3] line 30``."""
    return report.headline


def _headline(first: ProcessFailure, ranks: Sequence[int], *, alone: bool) -> str:
    subject = ranks_words(ranks)
    if not first.raised:
        return f"{subject} {first.headline}"
    if len(ranks) > 1:
        return f"{subject} failed {'' if alone else 'first '}(same): {first.headline}"
    return f"{subject} failed{'' if alone else ' first'}: {first.headline}"


def _quiet(snapshot: Snapshot, stopped: Sequence[Group]) -> str:
    if snapshot.headline:
        return snapshot.headline
    if stopped:
        return "; ".join(group.sentence for group in stopped)
    if snapshot.state is RunState.SUCCEEDED:
        return f"{ranks_words(range(snapshot.nprocs))} returned"
    return snapshot.state.value


def _consequence(failure: ProcessFailure) -> str:
    where = where_of(failure.trace) if failure.trace is not None else None
    name = failure.trace.type_name if failure.trace is not None else failure.words.partition(":")[0]
    place = f" at {where.words}" if where is not None else ""
    return f"then lost the connection{place} ({name})"


def _fold(said: Iterable[tuple[int, str]]) -> tuple[Group, ...]:
    groups: dict[str, list[int]] = {}
    for rank, words in said:
        groups.setdefault(words, []).append(rank)
    return tuple(Group(tuple(ranks), words) for words, ranks in groups.items())


def _fold_same(failures: Mapping[int, ProcessFailure]) -> tuple[Group, ...]:
    groups: list[list[int]] = []
    for rank, failure in failures.items():
        for group in groups:
            if same(failures[group[0]], failure):
                group.append(rank)
                break
        else:
            groups.append([rank])
    said = []
    for group in groups:
        failure = failures[group[0]]
        verb = ("failed (same): " if len(group) > 1 else "failed: ") if failure.raised else ""
        said.append(Group(tuple(group), f"{verb}{failure.headline}"))
    return tuple(said)


def ranks_words(ranks: Iterable[int]) -> str:
    """Name ranks: ``rank 2``, ``ranks 0, 1, 3``, ``ranks 0-3, 7``."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(parts)}"


# ----------------------------------------------------------------------------------------------------------------- text


class _Ink:
    """Marks parts of a line by ANSI colours, or not at all."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, style: str, text: str) -> str:
        codes = {"error": "1;31", "strong": "1", "faint": "2", "mark": "31"}
        return f"\x1b[{codes[style]}m{text}\x1b[0m" if self._color and text else text


def text(report: Report, *, color: bool = False) -> str:
    """Return the explanation as text: the headline, the other ranks, the first failure's traceback, the files.

    ``color`` adds ANSI colours. The text ends without a newline.
    """
    ink = _Ink(color)
    first = report.first
    head, _, tail = report.headline.partition(": ") if first is not None and first.raised else ("", "", "")
    lines = [f"{ink('error', head + ':')} {ink('strong', tail)}" if tail else ink("error", report.headline)]
    if first is None:
        lines = [report.headline]
        told = [group for group in report.groups if group.sentence not in report.headline]
        lines += [group.sentence for group in told]
    else:
        lines += [group.sentence for group in report.groups]
        body = list(_body(first, ink))
        lines += ["", *body] if body else []
    if report.run_dir is not None:
        lines += ["", ink("faint", f"logs: {report.run_dir}")]
    return "\n".join(lines)


def _body(first: ProcessFailure, ink: _Ink) -> Iterator[str]:
    if first.trace is not None:
        yield ink("faint", f"Traceback of rank {first.local_rank} (most recent call last):")
        yield from _paint(list(lay_out(first.trace)), ink)
        return
    if isinstance(first.message, dict):  # torch's own record: a text only
        yield ink("faint", f"Error file of rank {first.local_rank}:")
        yield from message_text(first).split("\n")
        return
    if first.stack:
        yield ink("faint", f"Stack of rank {first.local_rank} when it crashed (most recent call last):")
        yield from _paint(list(lay_out_frames(first.stack)), ink)
        yield ink("error", first.fatal.partition("\n")[0])
        if first.stderr_tail:
            yield ""
    if first.stderr_tail:
        yield ink("faint", f"{stderr_words(first)}:")
        yield from (f"  {line}" for line in first.stderr_tail)


def message_text(failure: ProcessFailure) -> str:
    """Return the traceback or message in an error file that has no frames of ours."""
    message = failure.message
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or (message.get("message", "") if isinstance(message, dict) else message)).rstrip("\n")


def stderr_words(failure: ProcessFailure) -> str:
    """Return what the lines of a failure's stderr are, and where the rest is."""
    where = f" ({failure.stderr_file})" if failure.stderr_file is not None else ""
    return f"Last lines of rank {failure.local_rank}'s stderr{where}"


def _paint(lines: Sequence[Line], ink: _Ink) -> Iterator[str]:
    for line in lines:
        indent = "  | " * line.level
        if line.kind is Kind.FRAME:
            yield f"{indent}  {ink('strong', line.text)}"
        elif line.kind is Kind.SOURCE:
            yield ink("faint", f"{indent}      {line.number:>{line.width}}  {line.text}".rstrip())
        elif line.kind is Kind.FAILING:
            yield f"{indent}    {ink('mark', '>')} {line.number:>{line.width}}  {line.text}"
            if line.columns is not None:
                yield f"{indent}{' ' * (line.width + 8)}{ink('mark', markers(line.text, line.columns))}"
        elif line.kind is Kind.FOLDED:
            yield ink("faint", f"{indent}  ... {line.text} ...")
        elif line.kind is Kind.ERROR and line.columns is not None:
            yield f"{indent}{ink('error', line.text[: line.columns[1]])}{line.text[line.columns[1] :]}"
        elif line.kind is Kind.MEMBER:
            yield ink("faint", f"{indent[4:]}  +- {line.text}")
        elif line.kind is Kind.LINK:
            yield from (indent.rstrip(), ink("faint", f"{indent}{line.text}"), indent.rstrip())
        else:
            yield f"{indent}{line.text}"
