"""A run's end in words: which rank failed first and why, what followed from it, where the files are."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nbproc.failures.callstack import markers
from nbproc.failures.causes import first_cause, follows, same
from nbproc.failures.layout import Kind, Line, lay_out, lay_out_frames, short
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
        consequences: failures that only say that the connection to another rank was lost.
        stopped: ranks that were ended by this library, and where they were.
        returned: ranks that had returned.
        run_dir: where the run's files are, None if nowhere.
    """

    name: str
    headline: str
    first: ProcessFailure | None = None
    first_ranks: tuple[int, ...] = ()
    others: tuple[Group, ...] = ()
    consequences: tuple[ProcessFailure, ...] = ()
    stopped: tuple[Group, ...] = ()
    returned: tuple[int, ...] = ()
    run_dir: Path | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is to be said of the other ranks, one line each, in the order of worth."""
        first = self.first
        words = "had returned" if first is None or first.is_function else "had exited with code 0"
        returned = (Group(self.returned, words),) if self.returned and first else ()
        lost = _fold((failure.local_rank, f"then {consequence_words(failure)}") for failure in self.consequences)
        return (*self.others, *lost, *self.stopped, *returned)


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
    return Report(
        snapshot.name,
        _headline(first, equal, alone=len(equal) == snapshot.nprocs or (len(equal) > 1 and not rest)),
        first=first,
        first_ranks=equal,
        others=_fold_same({rank: failure for rank, failure in rest.items() if not follows(failure, first)}),
        consequences=tuple(failure for failure in rest.values() if follows(failure, first)),
        stopped=stopped,
        returned=returned,
        run_dir=snapshot.run_dir,
    )


def launch_line(snapshot: Snapshot) -> str:
    """Return what a run says of its launch: ``4 ranks, sent train (12 kB), OMP_NUM_THREADS=1 (unset; ...)``."""
    ranks = f"{snapshot.nprocs} rank{'' if snapshot.nprocs == 1 else 's'}"
    return ", ".join([ranks, *snapshot.notes])


def headline(report: Report) -> str:
    """Return the one line: ``rank 2 failed first: ValueError: bad batch, in fail, cell [3] line 30``."""
    return report.headline


def _headline(first: ProcessFailure, ranks: Sequence[int], *, alone: bool) -> str:
    subject = ranks_words(ranks)
    if not first.raised:
        return f"{subject} {_of_several(_predicate(first), len(ranks))}"
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
    return str(snapshot.state.value)


def consequence_words(failure: ProcessFailure) -> str:
    """Say of a rank that lost its connection where it was: ``lost the connection at train, cell [3] line 19``."""
    where = where_of(failure.trace) if failure.trace is not None else None
    name = failure.trace.type_name if failure.trace is not None else failure.words.partition(":")[0]
    place = f" at {where.words}" if where is not None else ""
    return f"lost the connection{place} ({name})"


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
        words = failure.headline if failure.raised else _of_several(_predicate(failure), len(group))
        said.append(Group(tuple(group), f"{verb}{words}"))
    return tuple(said)


def _predicate(failure: ProcessFailure) -> str:
    """Return what follows the subject in a sentence on a failure that is no exception."""
    if failure.reason and not failure.reason.startswith(("could ", "did ")):
        return f"failed: {failure.headline}"  # its reason is a sentence of its own: "the fork server has ended"
    return failure.headline


def _of_several(words: str, count: int) -> str:
    """Make "was killed" of one rank the "were killed" of several."""
    return f"were{words[3:]}" if count > 1 and words.startswith("was ") else words


def ranks_words(ranks: Iterable[int], most: int | None = 12) -> str:
    """Name ranks: ``rank 2``, ``ranks 0, 1, 3``, ``ranks 0-3, 7``.

    Where these are more than ``most`` numbers and ranges, the first are named: ``128 ranks (0, 2, 4, 6, ...)``.
    """
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    if most is not None and len(parts) > most:
        return f"{len(numbers):,} ranks ({', '.join(parts[:most])}, ...)"
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(parts)}"


# ----------------------------------------------------------------------------------------------------------------- text


class Style(enum.Enum):
    """How a piece of the explanation is meant; the values are ANSI codes."""

    PLAIN = ""
    ERROR = "0;1"
    """Bold and not red: on the background of an error in JupyterLab no red of its own can be read in both themes."""
    STRONG = "1"
    FAINT = "2"
    MARK = "31"
    FAILING = "0"
    """The source line that failed: for those who can paint its background."""


class Piece(NamedTuple):
    """A part of a line."""

    text: str
    style: Style = Style.PLAIN


def text(report: Report, *, color: bool = False) -> str:
    """Return the explanation as text: the headline, the other ranks, the first failure's traceback, the files.

    ``color`` adds ANSI colours. The text ends without a newline.
    """
    lines: list[Sequence[Piece]] = [head(report)]
    lines += [[Piece(group.sentence)] for group in report.groups if group.sentence not in report.headline]
    if report.first is not None:
        told = list(body(report.first))
        lines += [(), *told] if told else []
    if report.run_dir is not None:
        lines += [(), [Piece(f"logs: {report.run_dir}", Style.FAINT)]]
    return "\n".join("".join(_ansi(piece, color) for piece in line).rstrip() for line in lines)


def first_line(report: Report, *, color: bool = False) -> str:
    """Return the headline as `text` begins with it."""
    return "".join(_ansi(piece, color) for piece in head(report))


def _ansi(piece: Piece, color: bool) -> str:
    if not color or not piece.text or piece.style in (Style.PLAIN, Style.FAILING):
        return piece.text
    return f"\x1b[{piece.style.value}m{piece.text}\x1b[0m"


def head(report: Report) -> list[Piece]:
    """Return the headline in pieces: who failed, then why."""
    if report.first is None:
        return [Piece(report.headline)]
    who, colon, why = report.headline.partition(": ")
    if not report.first.raised or not colon:
        return [Piece(report.headline, Style.ERROR)]
    return [Piece(f"{who}:", Style.ERROR), Piece(" "), Piece(why, Style.STRONG)]


def body(first: ProcessFailure) -> Iterator[Sequence[Piece]]:
    """Return the lines that show a failure: its traceback, a crash's stack, or the last lines of its stderr."""
    rank = first.local_rank
    if first.trace is not None:
        if any(link.frames or link.syntax for link, _ in first.trace.chain()):
            yield [Piece(f"Traceback of rank {rank} (most recent call last):", Style.FAINT)]
        yield from _paint(lay_out(first.trace))
        yield from [[]] if first.told_by_stderr else []
    elif isinstance(first.message, dict):  # torch's own record: a text only
        yield [Piece(f"Error file of rank {rank}:", Style.FAINT)]
        yield from ([Piece(line)] for line in _message_text(first.message).split("\n"))
        return
    elif first.stack:
        yield [Piece(f"Stack of rank {rank} when it crashed (most recent call last):", Style.FAINT)]
        yield from _paint(lay_out_frames(first.stack))
        yield [Piece(first.fatal.partition("\n")[0], Style.ERROR)]
        yield from [[]] if first.stderr_tail else []
    if first.told_by_stderr:
        where = f" ({first.stderr_file})" if first.stderr_file is not None else ""
        yield [Piece(f"Last lines of rank {rank}'s stderr{where}:", Style.FAINT)]
        yield from ([Piece(f"  {line}")] for line in first.stderr_tail)


def _message_text(message: Mapping[str, Any]) -> str:
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return short(str(stack or message.get("message", "")))


def _paint(lines: Iterable[Line]) -> Iterator[Sequence[Piece]]:
    for line in lines:
        indent = "  | " * line.level
        number = "" if line.number is None else f"{line.number:>{line.width}}"
        if line.kind is Kind.FRAME:
            yield [Piece(f"{indent}  "), Piece(line.text, Style.STRONG)]
        elif line.kind is Kind.SOURCE:
            yield [Piece(f"{indent}      {number}  {line.text}", Style.FAINT)]
        elif line.kind is Kind.FAILING:
            yield [
                Piece(f"{indent}    "),
                Piece(">", Style.MARK),
                Piece(f" {number}  {line.text}", Style.FAILING),
            ]
            if line.columns is not None:
                yield [
                    Piece(f"{indent}{' ' * (line.width + 8)}"),
                    Piece(markers(line.text, line.columns), Style.MARK),
                ]
        elif line.kind is Kind.FOLDED:
            yield [Piece(f"{indent}  ... {line.text} ...", Style.FAINT)]
        elif line.kind is Kind.ERROR and line.columns is not None:
            end = line.columns[1]
            yield [Piece(indent), Piece(line.text[:end], Style.ERROR), Piece(line.text[end:], Style.STRONG)]
        elif line.kind is Kind.MEMBER:
            yield [Piece(f"{indent[4:]}  +- {line.text}", Style.FAINT)]
        elif line.kind is Kind.LINK:
            yield from ([Piece(indent)], [Piece(f"{indent}{line.text}", Style.FAINT)], [Piece(indent)])
        else:
            yield [Piece(f"{indent}{line.text}")]
