"""An option line -> words, with the notebook's values in it. Pure."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nbproc.errors import OptionError
from nbproc.notebook import expand
from nbproc.notebook.expand import Field

__all__ = ["RANK_VARIABLES", "Template", "Word", "words"]

RANK_VARIABLES = {
    "rank": "rank",
    "world_size": "world_size",
    "RANK": "rank",
    "LOCAL_RANK": "rank",
    "ROLE_RANK": "rank",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "world_size",
    "LOCAL_WORLD_SIZE": "world_size",
    "ROLE_WORLD_SIZE": "world_size",
    "GROUP_WORLD_SIZE": "1",
}
"""Names that are the rank's own, whatever the notebook calls so -> what they are, from `rank` and `world_size`."""

_LATE = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_")


@dataclass(frozen=True)
class Template:
    """A text with places for what each rank has of its own; the notebook's values are in it already.

    ``values`` are the notebook's variables that the expressions of the places use.
    """

    pieces: tuple[str | Field, ...]
    values: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def by_rank(self) -> bool:
        """Whether it differs from rank to rank."""
        return any(isinstance(piece, Field) for piece in self.pieces)

    def text(self, rank: int | None = None, world_size: int | None = None) -> str:
        """Return the text of one rank; without a rank it has to be the same for all.

        Raises `OptionError` if an expression fails.
        """
        return "".join(p if isinstance(p, str) else self._filled(p, rank, world_size) for p in self.pieces)

    def _filled(self, piece: Field, rank: int | None, world_size: int | None) -> str:
        if rank is None:
            raise OptionError(f"{piece.raw} differs from rank to rank, which means nothing here")
        own = {"rank": rank, "world_size": world_size}
        if piece.dollar:
            return str(own.get(RANK_VARIABLES[piece.expression], RANK_VARIABLES[piece.expression]))
        return _value(piece, {**self.values, **own})


@dataclass(frozen=True)
class Word:
    """One word of a line, from ``start`` to ``end``. ``plain``: it has no quotes."""

    pieces: tuple[str | Field, ...]
    start: int
    end: int
    plain: bool

    @property
    def raw(self) -> str:
        """The word with its fields as they were written."""
        return "".join(piece if isinstance(piece, str) else piece.raw for piece in self.pieces)

    @property
    def whole(self) -> Field | None:
        """The field that is all of the word, if it is one without quotes."""
        only = self.pieces[0] if len(self.pieces) == 1 and self.plain else None
        return only if isinstance(only, Field) else None

    def template(self, namespace: Mapping[str, object], environ: Mapping[str, str]) -> Template:
        """Fill in what is the notebook's. Raises `OptionError` that names an unknown name."""
        pieces: list[str | Field] = []
        values: dict[str, object] = {}
        for piece in self.pieces:
            if isinstance(piece, str) or is_ranks(piece):
                pieces.append(piece)
                if isinstance(piece, Field):
                    names = expand.names_in(piece.expression) & namespace.keys() - {"rank", "world_size"}
                    values.update({name: namespace[name] for name in names})
            else:
                pieces.append(filled(piece, namespace, environ))
        return Template(tuple(_joined(pieces)), values)


def _joined(pieces: list[str | Field]) -> Iterator[str | Field]:
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
        else:
            yield from (text, piece) if text else (piece,)
            text = ""
    if text:
        yield text


def is_ranks(piece: Field) -> bool:
    """Whether a field is the rank's to fill in."""
    if piece.dollar:
        return piece.expression in RANK_VARIABLES
    return not expand.names_in(piece.expression).isdisjoint(("rank", "world_size"))


def filled(piece: Field, namespace: Mapping[str, object], environ: Mapping[str, str]) -> str:
    """Return the notebook's value of a field as text; of `$NAME` also the environment's."""
    name = piece.expression
    if piece.dollar and name.partition(".")[0] not in namespace:
        if name in environ:
            return environ[name]
        if name.startswith(_LATE):
            raise OptionError(f"{piece.raw} is not known before the ranks start; read {name} in the program")
    return _value(piece, namespace)


def value_of(piece: Field, namespace: Mapping[str, object]) -> object:
    """Evaluate a field; raises `OptionError` in one line."""
    try:
        return expand.evaluate(piece, namespace)
    except NameError as error:
        name = str(error.name or piece.expression)
        raise OptionError(f"{piece.raw}: {name} is not defined in the notebook") from None
    except Exception as error:
        raise OptionError(f"{piece.raw}: {type(error).__name__}: {error}") from None


def _value(piece: Field, namespace: Mapping[str, object]) -> str:
    value = value_of(piece, namespace)
    try:
        return expand.render(piece, value)
    except Exception as error:
        raise OptionError(f"{piece.raw}: {type(error).__name__}: {error}") from None


def words(line: str, start: int = 0) -> Iterator[Word]:
    """Yield the words of ``line``: cut at spaces outside quotes and braces.

    Quotes and backslashes are the shell's; nothing is filled in between single quotes. Raises `OptionError` for a
    quote or a brace that is not closed, when it comes to that word.
    """
    at = start
    while True:
        while at < len(line) and line[at] in string.whitespace:
            at += 1
        if at >= len(line):
            return
        word = _word(line, at)
        yield word
        at = word.end


def _word(line: str, start: int) -> Word:
    pieces: list[str | Field] = []
    at, quote, plain = start, "", True
    while at < len(line):
        char = line[at]
        if not quote and char in string.whitespace:
            break
        if quote == "'":
            if char == "'":
                quote = ""
            else:
                pieces.append(char)
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote, plain = char, False
        elif char == "\\" and at + 1 < len(line) and (not quote or line[at + 1] in '"\\$`'):
            at += 1
            pieces.append(line[at])
        elif char in "{}$" and line[at : at + 2] == char * 2:
            at += 1
            pieces.append(char)
        elif char in "{$" and (found := _field(line, at)):
            pieces.append(found[0])
            at = found[1]
            continue
        else:
            pieces.append(char)
        at += 1
    if quote:
        raise OptionError(f"the quote {quote} in {line[start:]} is not closed")
    return Word(tuple(_joined(pieces)), start, at, plain)


def _field(line: str, at: int) -> tuple[Field, int] | None:
    try:
        return expand.field_at(line, at, shell_braces=True)
    except ValueError as error:
        raise OptionError(str(error)) from None
