"""What the numbers are made of, and what was decided by them. Put into the page by `run`."""

from __future__ import annotations

LIMITS: dict[str, str] = {}
DECISIONS: list[str] = []
