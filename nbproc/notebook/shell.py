"""The small `get_ipython()` of a rank: `!`, `%cd`, `%env`, `%time`, `%timeit`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from nbproc.errors import ArgumentError
from nbproc.notebook import expand, timing

__all__ = ["CommandOutput", "RankShell"]


class CommandOutput(list[str]):
    """The lines that `x = !command` gives, with the views that IPython's has."""

    @property
    def l(self) -> list[str]:  # noqa: E743  # IPython's name for it
        """The lines."""
        return self

    @property
    def n(self) -> str:
        """One text, with line ends."""
        return "\n".join(self)

    @property
    def s(self) -> str:
        """One text, with spaces between the lines."""
        return " ".join(self)

    @property
    def p(self) -> list[Path]:
        """The lines that are paths of something that exists."""
        return [Path(line) for line in self if os.path.exists(line)]

    nlstr, spstr, paths = n, s, p

    def grep(self, pattern: str, prune: bool = False) -> CommandOutput:
        """Return the lines that match a regular expression (with ``prune``, those that do not)."""
        found = re.compile(pattern, re.IGNORECASE).search
        return CommandOutput(line for line in self if (found(line) is None) == prune)

    def fields(self, *numbers: int) -> CommandOutput:
        """Return these words of each line, all of them if none is named."""
        rows = [line.split() for line in self]
        if not numbers:
            return CommandOutput(" ".join(row) for row in rows)
        return CommandOutput(" ".join(row[n] for n in numbers if -len(row) <= n < len(row)) for row in rows)


class RankShell:
    """What `get_ipython()` returns in a rank. It has no history, no kernel and no other magics."""

    def __init__(self) -> None:
        self.config: dict[str, object] = {}
        self._visited = [os.getcwd()]

    @property
    def user_ns(self) -> dict[str, Any]:
        """The rank's variables."""
        return sys.modules["__main__"].__dict__

    def system(self, command: str) -> None:
        """Run a shell command (`!command`); its output goes to the rank's own streams. Blocks."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.user_ns["_exit_code"] = subprocess.call(_expanded(command, self.user_ns), shell=True)

    system_piped = system_raw = system

    def getoutput(self, command: str, split: bool = True, depth: int = 0) -> CommandOutput | str:
        """Run a shell command (`x = !command`) and return what it writes, stderr included. Blocks."""
        done = subprocess.run(
            _expanded(command, self.user_ns), shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        self.user_ns["_exit_code"] = done.returncode
        text = done.stdout.decode(errors="replace")
        return CommandOutput(text.splitlines()) if split else text

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """Run a `%` line; raises `ArgumentError` for one that ranks do not have."""
        local = sys._getframe(_stack_depth).f_locals
        if magic_name in ("time", "timeit"):
            run = timing.run_time if magic_name == "time" else timing.run_timeit
            return run(line, self.user_ns, None if local is self.user_ns else dict(local))
        if magic_name in ("cd", "env"):
            line = expand.expand(line, {**self.user_ns, **local}).strip()
            return self._cd(line) if magic_name == "cd" else self._env(line)
        raise ArgumentError(
            f"%{magic_name} does not work in a rank (these do: !, %cd, %env, %time, %timeit); "
            "run it in a cell of its own"
        )

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        """Raise `ArgumentError`: ranks have no cell magics."""
        raise ArgumentError(f"%%{magic_name} does not work in a rank")

    def ev(self, expression: str) -> Any:
        """Evaluate an expression among the rank's variables."""
        return eval(expression, self.user_ns)

    def ex(self, code: str) -> None:
        """Run statements among the rank's variables."""
        exec(code, self.user_ns)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"get_ipython() in a rank has no {name!r}: it runs !, %cd, %env, %time and %timeit only")

    def _cd(self, line: str) -> None:
        quiet = line.startswith("-q")
        target = line.removeprefix("-q").strip().strip("'\"")
        before = os.getcwd()
        if target == "-":
            if len(self._visited) < 2:
                raise ArgumentError("%cd -: no directory was visited before this one")
            target = self._visited[-2]
        os.chdir(os.path.expanduser(target or "~"))
        if os.getcwd() != before:
            self._visited.append(os.getcwd())
        if not quiet:
            print(os.getcwd())  # noqa: T201

    def _env(self, line: str) -> Any:
        if not line:
            return dict(os.environ)
        name, separator, value = line.partition("=" if "=" in line else " ")
        name, value = name.strip(), value.strip()
        if not separator:
            if name not in os.environ:
                raise ArgumentError(f"%env: the environment has no {name}")
            return os.environ[name]
        os.environ[name] = value
        print(f"env: {name}={value}")  # noqa: T201
        return None


def _expanded(command: str, variables: dict[str, Any]) -> str:
    """Expand the command by the variables of whoever called the method that calls this."""
    return expand.expand(command, {**variables, **sys._getframe(2).f_locals})
