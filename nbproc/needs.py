"""torch's modules, imported when something is asked for that only torch can do, or an error that says what to do."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from nbproc.errors import DependencyError


def torch_module(name: str, wanted: str) -> Any:
    """Return the module of torch with this dotted name; ``wanted`` is what needs it, as the user wrote it.

    Raises `DependencyError` if torch is not installed or too old to have the module, and whatever importing a torch
    that is there but broken raises.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise DependencyError(
                f"{wanted} needs torch, which is not installed for {sys.executable}; pip install torch there, and "
                "start Python anew",
                name="torch",
            ) from None
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            version = importlib.import_module("torch").__version__
            raise DependencyError(
                f"{wanted} needs {error.name}, which torch {version} does not have; install a newer torch", name="torch"
            ) from None
        raise
