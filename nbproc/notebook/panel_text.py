"""What can be typed into a field of the launch panel, read without running it: a call's arguments, words. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbproc.errors import OptionError
from nbproc.notebook.expand import Field
from nbproc.notebook.words import Word, words

_CALL = "_"
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PLAIN = re.compile(r"[^\s'\"\\]+")


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, as they were written: the sources of the positional ones and of the keywords."""

    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    settled: bool
    """Whether they mean the same wherever and whenever they are evaluated: constants, and names by themselves."""
    names: frozenset[str]
    counted: tuple[int, tuple[str, ...]] | None
    """How many are positional and which keywords there are; None if ``*`` or ``**`` leaves that open."""

    @property
    def tuple_source(self) -> str:
        """The positional ones as the source of a tuple."""
        return f"({', '.join(self.positional)}{',' if len(self.positional) == 1 else ''})"

    @property
    def dict_source(self) -> str:
        """The keywords as the source of a dict."""
        return f"dict({', '.join(self.keywords)})"


def arguments(text: str) -> Arguments:
    """Read what stands between the parentheses of a call. Raises SyntaxError, with a sentence."""
    call = _parse(text)
    source = f"{_CALL}(\n{text}\n)"

    def written(node: ast.AST) -> str:
        return ast.get_source_segment(source, node) or ast.unparse(node)

    positional = tuple(written(node) for node in call.args)
    keywords = tuple(
        f"{node.arg}={written(node.value)}" if node.arg else f"**{written(node.value)}" for node in call.keywords
    )
    values = [*call.args, *(node.value for node in call.keywords)]
    starred = any(isinstance(node, ast.Starred) for node in call.args)
    named = tuple(node.arg for node in call.keywords if node.arg is not None)
    return Arguments(
        positional,
        keywords,
        settled=all(_settled(node) for node in values),
        names=frozenset(node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)),
        counted=None if starred or len(named) < len(keywords) else (len(positional), named),
    )


def evaluate(text: str, namespace: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Evaluate a call's arguments in a namespace, once; raises what they raise."""
    _parse(text)
    code = compile(f"(lambda *args, **kwargs: (args, kwargs))(\n{text}\n)", "<arguments>", "eval")
    found: tuple[tuple[Any, ...], dict[str, Any]] = eval(code, namespace)
    return found


def _parse(text: str) -> ast.Call:
    source = f"{_CALL}(\n{text}\n)"
    try:
        tree = ast.parse(source, mode="eval")
        compile(tree, "<arguments>", "eval")
    except SyntaxError as error:
        raise SyntaxError(_sentence(error, text)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(f"This cannot be read as Python: {error}.") from None
    call = tree.body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == _CALL):
        raise SyntaxError("A parenthesis is closed that was not opened.")
    if call.end_col_offset != 1 or call.end_lineno != source.count("\n") + 1:
        raise SyntaxError("A parenthesis is closed that was not opened.")
    return call


def _sentence(error: SyntaxError, text: str) -> str:
    line, column = (error.lineno or 0) - 1, error.offset or 0
    lines = text.splitlines()
    said = (error.msg or "it cannot be read").replace(". Perhaps you forgot a comma?", "; is a comma missing?")
    where = ""
    if 1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]):
        where = f" at {lines[line - 1][column - 1 :][:20]!r}"
    return f"Not valid Python{where}: {said}."


def _settled(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id not in ("rank", "world_size")
    if isinstance(node, ast.Starred):
        return isinstance(node.value, ast.Name) and _settled(node.value)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(_settled(each) for each in node.elts)
    if isinstance(node, ast.Dict):
        return all(each is not None and _settled(each) for each in (*node.keys, *node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.BinOp):
        return isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)
    return False


def cut(text: str) -> tuple[tuple[Word, str], ...]:
    """Cut a line into words, each with its source. Raises SyntaxError, with a sentence.

    The expressions in braces are parsed, not evaluated.
    """
    try:
        found = tuple((word, text[word.start : word.end]) for word in words(text))
    except OptionError as error:
        raise SyntaxError(f"{_capital(str(error))}.") from None
    for word, _ in found:
        for piece in word.pieces:
            if isinstance(piece, Field) and not piece.dollar:
                _check_expression(piece)
    return found


def settings(text: str) -> Iterator[str]:
    """Yield the sources of `NAME=value` words. Raises SyntaxError, with a sentence, for anything else."""
    for word, source in cut(text):
        first = word.pieces[0] if word.pieces and isinstance(word.pieces[0], str) else ""
        if not _ENV.match(first):
            raise SyntaxError(f"{source} is no setting; write NAME=value, and quotes round a value with spaces.")
        yield source


def quoted(text: str) -> str:
    """Write a text as one word of an option line; `$name` and `{expression}` in it stay what they are."""
    if _PLAIN.fullmatch(text) and not text.startswith(("-", "#")):
        return text
    try:
        found = tuple(words(text))
    except OptionError:
        found = ()
    if len(found) == 1 and found[0].start == 0 and found[0].end == len(text) and not text.startswith(("-", "#")):
        return text  # it was written with quotes, or a space stands in braces
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def choice_by_rank(values: list[str]) -> str:
    """Write a word that is another text in each rank: ``{['a', 'b'][rank]}``."""
    return "{[" + ", ".join(_literal(value) for value in values) + "][rank]}"


def _literal(text: str) -> str:
    """A Python string without the characters that mean something to a format field."""
    return "".join(f"\\x{ord(char):02x}" if char in "[]{}:!$" else char for char in repr(text))


def _check_expression(piece: Field) -> None:
    try:
        ast.parse(piece.expression.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SyntaxError(f"{piece.raw} is not valid Python: {said}.") from None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
