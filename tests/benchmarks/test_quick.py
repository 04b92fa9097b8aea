"""The benchmarks still run. Nothing here judges a time: machines differ, and others use them too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_RUN = Path(__file__).with_name("run.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_benchmark_comes_to_its_end(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, str(_RUN), "--quick", "--write", str(page)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    text = page.read_text()
    assert "Not measured" not in text
    assert "failed:" not in text
    assert text.count("| nbproc") >= 10
