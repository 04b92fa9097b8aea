"""How CPU tensors are shared between processes: torch's three functions, loaded when they are called."""

from __future__ import annotations

from nbproc.needs import torch_module

_HOME = "torch.multiprocessing"


def get_all_sharing_strategies() -> set[str]:
    """Return the strategies that this system has. Raises ImportError if torch is not installed."""
    return set(torch_module(_HOME, "get_all_sharing_strategies()").get_all_sharing_strategies())


def get_sharing_strategy() -> str:
    """Return the strategy in use, which holds in ranks too. Raises ImportError if torch is not installed."""
    return str(torch_module(_HOME, "get_sharing_strategy()").get_sharing_strategy())


def set_sharing_strategy(new_strategy: str) -> None:
    """Set the strategy, for this process and the ranks it launches. Raises ImportError if torch is not installed."""
    torch_module(_HOME, f"set_sharing_strategy({new_strategy!r})").set_sharing_strategy(new_strategy)
