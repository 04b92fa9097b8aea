"""How CPU tensors are shared between processes: torch's three functions, loaded when they are called."""

from __future__ import annotations


def get_all_sharing_strategies() -> set[str]:
    """Return the strategies that this system has. Raises ImportError if torch is not installed."""
    import torch.multiprocessing

    return set(torch.multiprocessing.get_all_sharing_strategies())  # type: ignore[no-untyped-call]  # torch has no types here


def get_sharing_strategy() -> str:
    """Return the strategy in use, which holds in ranks too. Raises ImportError if torch is not installed."""
    import torch.multiprocessing

    return str(torch.multiprocessing.get_sharing_strategy())  # type: ignore[no-untyped-call]  # torch has no types here


def set_sharing_strategy(new_strategy: str) -> None:
    """Set the strategy, for this process and the ranks it launches. Raises ImportError if torch is not installed."""
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy(new_strategy)  # type: ignore[no-untyped-call]  # torch has no types here
