"""Which variable cannot be sent, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def find(roots: Mapping[str, Any], make: Callable[[], Any], labels: Mapping[str, str]) -> dict[str, str]:
    """Return the roots that cannot be pickled, each with a line that says why."""
    found = {}
    for name, value in roots.items():
        try:
            make().dump(value)
        except Exception as error:
            found[name] = f"`{labels.get(name, name)}` cannot be sent to the ranks: {error}"
    return found


def of_result(value: Any, make: Callable[[], Any], error: Exception) -> str:
    """Return why a return value cannot be pickled."""
    return str(error)
