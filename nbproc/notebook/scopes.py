"""What is bound for certain at a point of a cell, and what was read of the notebook up to there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Scopes"]


@dataclass
class _Scope:
    """Names bound for certain, in the cell itself, a class body or a comprehension."""

    kind: str
    bound: set[str] = field(default_factory=set)


class Scopes:
    """The state of a walk in the order of execution; a branch works on copies that are joined after it.

    ``hard``, ``soft`` and ``assigned`` are those of `names.Reads`.
    """

    def __init__(self) -> None:
        self.hard: set[str] = set()
        self.soft: set[str] = set()
        self.assigned: set[str] = set()
        self._scopes = [_Scope("cell")]
        self._dead = False
        self._waiting: dict[str, set[str]] = {}
        """Functions and classes of the cell -> what their bodies read; counts once somebody reads their name."""
        self._early: dict[str, set[str]] = {}
        """The same, less what was bound where they were defined."""
        self._woken: set[str] = set()
        self._class_reads: list[set[str]] = []

    def bind(self, name: str, *, walrus: bool = False) -> None:
        """A name is assigned here."""
        scope = next(s for s in reversed(self._scopes) if not (walrus and s.kind == "comprehension"))
        scope.bound.add(name)
        if scope.kind == "cell":
            self.assigned.add(name)

    def load(self, name: str) -> None:
        """A name is read here."""
        inner = self._scopes[-1]
        for scope in self._scopes[1:]:
            if name in scope.bound and (scope.kind == "comprehension" or scope is inner):
                return  # a class body is seen by its own statements only
        if name not in self._scopes[0].bound:
            (self.soft if name in self.assigned else self.hard).add(name)
        self._wake(name, set())

    def load_later(self, names: Iterable[str], seen: set[str] | None = None) -> None:
        """Names are read when a function is called, which may be now."""
        seen = set() if seen is None else seen
        for name in names:
            if name not in self._scopes[0].bound:
                self.soft.add(name)
            self._wake(name, seen)

    def _wake(self, name: str, seen: set[str]) -> None:
        if name in self._waiting and name not in seen:
            seen.add(name)
            self._woken.add(name)
            self.load_later(self._waiting[name], seen)

    def ways(self, *ways: Callable[[], object]) -> None:
        """Walk each of the ways from here; go on with what all of them bound that come out at their end."""
        before = [set(scope.bound) for scope in self._scopes]
        start = self._dead
        ends: list[list[set[str]]] = []
        for way in ways:
            for scope, bound in zip(self._scopes, before, strict=True):
                scope.bound = set(bound)
            self._dead = start
            way()
            if not self._dead:
                ends.append([scope.bound for scope in self._scopes])
        self._dead = start or not ends
        for number, scope in enumerate(self._scopes):
            scope.bound = set.intersection(*(end[number] for end in ends)) if ends else set(before[number])

    def end(self) -> None:
        """The way ends here: what comes next is not reached."""
        self._dead = True

    def bound(self) -> list[set[str]]:
        """Return what is bound here, for `from_there`."""
        return [set(scope.bound) for scope in self._scopes]

    def from_there(self, before: list[set[str]], walk: Callable[[], object]) -> None:
        """Walk what may be reached with no more bound than ``before`` (a `finally`); what it binds, stays bound."""
        after, dead = self.bound(), self._dead
        for scope, bound in zip(self._scopes, before, strict=True):
            scope.bound = bound
        self._dead = False
        walk()
        for scope, bound in zip(self._scopes, after, strict=True):
            scope.bound |= bound
        self._dead = dead or self._dead

    @contextmanager
    def inner(self, names: Iterable[str] = ()) -> Iterator[None]:
        """The scope of a comprehension, or of type parameters."""
        self._scopes.append(_Scope("comprehension", set(names)))
        yield
        self._scopes.pop()

    @contextmanager
    def class_body(self) -> Iterator[set[str]]:
        """The scope of a class body. The set is filled with what the bodies of its functions read."""
        self._scopes.append(_Scope("class"))
        self._class_reads.append(set())
        yield self._class_reads[-1]
        self._class_reads.pop()
        self._scopes.pop()

    def define(self, name: str, body: set[str], *, at_once: bool) -> None:
        """Bind a function or a class whose bodies read ``body``."""
        if self._class_reads:
            self._class_reads[-1] |= body
        elif self._scopes[-1].kind == "cell":
            self._waiting[name] = self._waiting.get(name, set()) | body
            self._early[name] = self._early.get(name, set()) | (body - self._scopes[0].bound - {name})
        else:
            at_once = True
        self.bind(name)
        if at_once:
            self.load_later(body)

    def finish(self) -> None:
        """Count the functions that nobody in the cell read: functions of the notebook may call them by name."""
        for name in self._waiting.keys() - self._woken:
            self.soft |= self._early[name]
