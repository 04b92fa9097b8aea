"""A cell as a value that runs in a rank."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from nbproc.notebook import show, timing

__all__ = ["CellCall"]


@dataclass(frozen=True)
class CellCall:
    """A compiled cell. Call it in a rank: it runs in the rank's `__main__` and returns the last expression's value.

    ``text`` is the whole cell as it stands in the notebook; line numbers of the code are lines of it. ``value`` is the
    last expression, None if the cell ends otherwise. ``missing`` says of names that could not be sent why, ``near``
    of names that are nowhere which one of the notebook may be meant. It is sent by a `Packer`, which knows how to send
    code and takes note of its file.
    """

    filename: str
    text: str
    execution_count: int | None
    body: CodeType
    value: CodeType | None
    timed: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    near: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> Any:
        """Run the cell; its variables are there already. Blocks; raises what the cell raises."""
        variables = sys.modules["__main__"].__dict__
        for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
            if variable in os.environ:
                variables[name] = int(os.environ[variable])
        lines = [line + "\n" for line in self.text.splitlines()]  # markers shift under a line without its end
        linecache.cache[self.filename] = (len(self.text), None, lines, self.filename)
        try:
            value = timing.timed(lambda: self._run(variables)) if self.timed else self._run(variables)
            show.show_value(value)
        except NameError as error:
            self._explain(error)
            raise
        finally:
            show.flush()
        return value

    def _run(self, variables: dict[str, Any]) -> Any:
        codes = [self.body] if self.value is None else [self.body, self.value]
        if any(code.co_flags & inspect.CO_COROUTINE for code in codes):
            return self._run_async(codes, variables)
        value = None
        for code in codes:
            value = eval(code, variables)
        return value if self.value is not None else None

    def _run_async(self, codes: list[CodeType], variables: dict[str, Any]) -> Any:
        async def run() -> Any:
            value = None
            for code in codes:
                value = eval(code, variables)
                if code.co_flags & inspect.CO_COROUTINE:
                    value = await value
            return value if self.value is not None else None

        try:
            return asyncio.run(run())
        except BaseException as error:  # asyncio's frames say nothing of the cell
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != self.filename:
                trace = trace.tb_next
            raise error.with_traceback(trace or error.__traceback__)  # noqa: B904  # the same one

    def _explain(self, error: NameError) -> None:
        name: str | None = error.name
        note = ""
        if name is not None and name in self.missing:
            note = f"{name} exists in the notebook, but was not sent: {self.missing[name]}"
        elif name is not None and name in self.near:
            note = f"the notebook has no {name} either; did you mean {self.near[name]}?"
        if note:
            error.__dict__["__notes__"] = [*getattr(error, "__notes__", ()), note]  # add_note() came with Python 3.11
