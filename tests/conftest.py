"""What every test gets: a place of its own, and a check that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from leftovers import MARK, left_behind, look

ALLOWED_SKIPS = (
    # (what the reason says, why that is no hole in the continuous integration)
    ("needs a CUDA device", "the machines of the continuous integration have none"),
    ("needs Python 3.11", "exception groups and notes came with it; the oldest version that we support is 3.10"),
    ("is for macOS", "the machines of the continuous integration run Linux"),
    (
        "needs root that may mount",
        "a container may lack the right; disks that are full or read-only are tested where not",
    ),
    ("needs root that may make", "the same for control groups, with which memory and processes run out"),
    ("needs root that may become", "the same for another user, who must be kept out"),
)


# ------------------------------------------------------------------------------------------- skips are failures in CI


def _reason_against(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    if os.environ.get("NBPROC_CI") != "1" or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return None
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(allowed in reason for allowed, _ in ALLOWED_SKIPS):
        return None
    return f"{reason}\nNothing may be skipped in CI, except for the reasons in ALLOWED_SKIPS of tests/conftest.py."


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    if (words := _reason_against(report)) is not None:
        report.outcome = "failed"
        report.longrepr = words


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    _fail(report)
    return report


# -------------------------------------------------------------------------------------- why a test had to be run again


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what a test that was run again had failed on, which pytest-rerunfailures keeps to itself."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"run again: {report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)


# ---------------------------------------------------------------------------------------------------------------- order


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the browser's tests last: Playwright keeps an event loop running in this thread for as long as it is open."""
    items.sort(key=lambda item: "browser" in item.path.relative_to(item.config.rootpath).parts)


# --------------------------------------------------------------------------------------------------- a place of its own


@pytest.fixture(scope="session", autouse=True)
def private_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's Jupyter, IPython and matplotlib settings out of the tests, and our files out of his folders."""
    home = tmp_path_factory.mktemp("home", numbered=False)
    temporary = tmp_path_factory.mktemp("t", numbered=False)  # short: the path of a socket may have 107 bytes
    places = {
        "TMPDIR": temporary,
        "IPYTHONDIR": home / "ipython",
        "JUPYTER_CONFIG_DIR": home / "jupyter-config",
        "JUPYTER_DATA_DIR": home / "jupyter-data",
        "JUPYTER_RUNTIME_DIR": home / "jupyter-runtime",
        "MPLCONFIGDIR": home / "matplotlib",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, path in places.items():
            path.mkdir(exist_ok=True)
            patch.setenv(name, str(path))
        patch.setenv(MARK, uuid.uuid4().hex)
        patch.setattr(tempfile, "tempdir", None)
        yield home


@pytest.fixture(scope="session", autouse=True)
def signals_as_usual() -> None:
    """Hear SIGHUP and SIGINT: under ``nohup`` and behind a shell's ``&`` they are ignored, and that is inherited."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, private_places: Path) -> Iterator[None]:
    """Fail the test that leaves a process, thread, socket or directory behind.

    What a fixture of a wider scope holds (a kernel, a browser) was there before and is not counted. A test that
    really must leave something says why with ``@pytest.mark.leaves(reason)``.
    """
    before = look()
    yield
    if request.node.get_closest_marker("leaves") is None and (words := left_behind(before)):
        pytest.fail("left behind:\n  " + "\n  ".join(words), pytrace=False)
