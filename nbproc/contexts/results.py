"""What a run leaves: return values that are read when asked for, failures, log files."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Any

from nbproc.errors import NoValueError
from nbproc.failures import ProcessFailure, first_cause


class ReturnValues(dict[int, Any]):
    """A dict rank -> return value; each is unpickled when it is first read.

    Reading one that does not unpickle raises `ResultError` with the rank, the type and the reason; the others are not
    affected. `ready` says which can be read for free.
    """

    def __init__(self, readers: Mapping[int, Callable[[], Any]]) -> None:
        super().__init__(dict.fromkeys(readers))
        self._readers = dict(readers)

    def __getitem__(self, rank: int) -> Any:
        reader = self._readers.get(rank)
        if reader is not None:
            super().__setitem__(rank, reader())
            del self._readers[rank]
        return super().__getitem__(rank)

    def __setitem__(self, rank: int, value: Any) -> None:
        self._readers.pop(rank, None)
        super().__setitem__(rank, value)

    def __delitem__(self, rank: int) -> None:
        self._readers.pop(rank, None)
        super().__delitem__(rank)

    def ready(self, rank: int) -> bool:
        """Return whether this rank's value was read before."""
        return rank in self and rank not in self._readers

    def peek(self, rank: int) -> tuple[str, int] | None:
        """Return the type name and the bytes of a value without reading it, None if they are not known."""
        result = getattr(self._readers.get(rank), "__self__", None)
        kind, size = getattr(result, "type_name", None), getattr(result, "size", None)
        return (kind, size) if isinstance(kind, str) and isinstance(size, int) else None

    def trouble(self, rank: int) -> str:
        """Return why a value cannot be read, as far as that is known without reading it; "" if it may be."""
        return str(getattr(getattr(self._readers.get(rank), "__self__", None), "trouble", ""))

    def get(self, rank: int, default: Any = None) -> Any:
        """Return the rank's value, ``default`` if it has none."""
        return self[rank] if rank in self else default  # noqa: SIM401 - dict.get would not read it

    def pop(self, rank: int, *default: Any) -> Any:
        """Remove the rank's value and return it."""
        if rank in self:
            value = self[rank]
            del self[rank]
            return value
        return super().pop(rank, *default)

    def __iter__(self) -> Iterator[int]:  # keeps dict(values) from copying values that were not read
        return super().__iter__()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view is a view
        """Return the values in rank order, all read."""
        self._read_all()
        return super().values()

    def items(self) -> ItemsView[int, Any]:  # type: ignore[override]  # a view is a view
        """Return the pairs in rank order, all read."""
        self._read_all()
        return super().items()

    def copy(self) -> dict[int, Any]:
        """Return an ordinary dict of all values."""
        return dict(self.items())

    def __eq__(self, other: object) -> bool:
        self._read_all()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # a dict

    def __repr__(self) -> str:
        try:
            self._read_all()
        except Exception:
            parts = (
                f"{rank}: {super(ReturnValues, self).__getitem__(rank)!r}" if self.ready(rank) else f"{rank}: ..."
                for rank in self
            )
            return "{" + ", ".join(parts) + "}"
        return super().__repr__()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def _read_all(self) -> None:
        for rank in list(self._readers):
            self[rank]


@dataclass
class RunProcsResult:
    """What a run left, by rank, in rank order. The first four are
    `torch's <https://docs.pytorch.org/docs/stable/elastic/multiprocessing.html>`_.

    Attributes:
        return_values: a function's values; ``{rank: None}`` for executables. Empty unless all ranks succeeded.
        failures: every rank that failed, each with exit code, signal, message, traceback and stderr's last lines.
        stdouts: the path of each rank's stdout.log, "" without a redirect.
        stderrs: the path of each rank's stderr.log, "" without a redirect.
        partial_values: the values of the ranks that returned, also when others failed or were stopped.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    partial_values: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def is_failed(self) -> bool:
        """Return whether a rank failed."""
        return len(self.failures) > 0

    @property
    def first_failure(self) -> ProcessFailure | None:
        """The failure from which the others follow; None if no rank failed."""
        return first_cause(self.failures) if self.failures else None

    def __getitem__(self, rank: int) -> Any:
        """Return the rank's return value.

        Raises `NoValueError` (a KeyError) for a rank that returned nothing, and for all if one failed.
        """
        if rank in self.return_values:
            return self.return_values[rank]
        if rank in self.partial_values:
            raise NoValueError(f"not all ranks succeeded; what rank {rank} returned is in partial_values[{rank}]")
        if rank in self.failures:
            raise NoValueError(f"rank {rank} has no return value: {self.failures[rank].words}")
        known = ", ".join(map(str, self.return_values)) or "none"
        raise NoValueError(f"rank {rank} has no return value; ranks that have one: {known}")

    def __len__(self) -> int:
        return len(self.return_values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.return_values.values())
