"""Which line of a cell a line of its transformed code comes from."""

from __future__ import annotations

import ast
import difflib

__all__ = ["LineMap"]


class LineMap:
    """Moves places in ``code`` (what the input transformers made) back to ``source`` (what was written).

    Lines are counted from ``first``. A line that was rewritten (`!ls`) keeps no columns: its whole is meant.
    """

    def __init__(self, source: str, code: str, first: int) -> None:
        self._first = first
        self._written = source.splitlines() or [""]
        self._code = code.splitlines() or [""]
        self._origin = self._origins()

    def _origins(self) -> list[int]:
        if len(self._written) == len(self._code):
            return list(range(len(self._code)))
        written, code = ([line.strip() for line in lines] for lines in (self._written, self._code))
        origins = [0] * len(code)
        for _, i1, i2, j1, j2 in difflib.SequenceMatcher(None, written, code, autojunk=False).get_opcodes():
            # a `!` or `%` line that goes on over several becomes one
            starts = [i for i in range(i1, i2) if i == i1 or not written[i - 1].endswith("\\")]
            for offset in range(j2 - j1):
                if len(starts) == j2 - j1:
                    origins[j1 + offset] = starts[offset]
                else:
                    origins[j1 + offset] = min(i1 + offset, max(i1, i2 - 1), len(written) - 1)
        return origins

    def line(self, number: int) -> int:
        """Return the written line for a line of the code."""
        index = min(max(number - self._first, 0), len(self._origin) - 1)
        return self._origin[index] + self._first

    def _texts(self, number: int) -> tuple[str, str]:
        index = min(max(number - self._first, 0), len(self._origin) - 1)
        return self._code[index], self._written[self._origin[index]]

    def _column(self, number: int, column: int, *, end: bool) -> int:
        code, written = self._texts(number)
        if code == written:
            return column
        if code.strip() == written.strip():
            shift = len(written) - len(written.lstrip()) - len(code) + len(code.lstrip())
            return max(column + shift, 0)
        return len(written.encode()) if end else len(written) - len(written.lstrip())

    def relocate(self, tree: ast.Module) -> ast.Module:
        """Move the nodes of ``tree``, in place, and return it."""
        if self._written == self._code:
            return tree
        for node in ast.walk(tree):
            if isinstance(node, (ast.expr, ast.stmt, ast.excepthandler, ast.pattern, ast.arg, ast.keyword, ast.alias)):
                end, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
                node.end_lineno, node.end_col_offset = self.line(end), self._column(end, end_column, end=True)
                node.col_offset = self._column(node.lineno, node.col_offset, end=False)
                node.lineno = self.line(node.lineno)
        return tree

    def relocated(self, error: SyntaxError, filename: str) -> SyntaxError:
        """Return the error with the place and the text as they were written."""
        error.filename = filename
        if error.lineno is None:
            return error
        code, written = self._texts(error.lineno)
        if code != written:
            if code.strip() == written.strip() and error.offset:
                shift = len(written) - len(written.lstrip()) - len(code) + len(code.lstrip())
                error.offset += shift
                error.end_offset = error.end_offset + shift if error.end_offset else error.end_offset
            else:
                error.offset, error.end_offset = 1, len(written) + 1
        error.text = written + "\n"
        error.end_lineno = None if error.end_lineno is None else self.line(error.end_lineno)
        error.lineno = self.line(error.lineno)
        return error

    def completed(self, error: SyntaxError, filename: str) -> SyntaxError:
        """Return an error whose place is right already, with its text."""
        error.filename = filename
        index = (error.lineno or 0) - self._first
        if 0 <= index < len(self._written):
            error.text = self._written[index] + "\n"
        return error
