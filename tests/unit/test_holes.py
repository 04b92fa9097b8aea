"""What a process makes after its holes were filled lies together."""

from __future__ import annotations

import sys
from pathlib import Path

import plain
import pytest

_SCRIPT = """
    from nbproc.ranks import holes

    def pages(make):
        made = [make() for _ in range(200)]
        return len({id(one) >> 12 for one in made})

    for size in (100, 3000):
        make = lambda: bytes(size)
        full = [make() for _ in range(20_000)]
        del full[::20]
        before = pages(make)
        holes.fill()
        after, least = pages(make), 200 * size // 4096
        assert before > after, (size, before, after)
        assert after <= least + 10, (size, after, least)
    print("together")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what another system's allocator does is its own affair")
def test_what_is_made_afterwards_lies_together(tmp_path: Path) -> None:
    assert plain.lines(tmp_path, _SCRIPT) == ["together"]


def test_little_is_taken_whatever_the_allocator_does(tmp_path: Path) -> None:
    script = """
        import resource
        from nbproc.ranks import holes

        def used():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = used()
        holes.fill()
        print("little" if used() - before < 40_000 else used() - before)
    """
    assert plain.lines(tmp_path, script, env={"PYTHONMALLOC": "malloc"}) == ["little"]
