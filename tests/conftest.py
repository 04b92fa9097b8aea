"""What every test gets: a place of its own, and a check that it leaves nothing behind."""

from __future__ import annotations

import gc
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
MARK = "NBPROC_TEST_SESSION"
"""In the environment of this process and so of everything that it starts, orphans of orphans included."""

GRACE = 10.0
"""Seconds that what a test started may take to go away once the test is over."""

PERMANENT = re.compile(r"nbproc[./]ranks[./](server|guardian)")
"""Command lines of the processes that serve all runs of their owner and end with it."""

PERMANENT_THREADS = re.compile(
    r"nbproc-(server|guardian|standby)|pytest_timeout|tqdm|IOThread|Thread-\d+ \(_thread_main\)"
)

ALLOWED_SKIPS = (
    # (what the reason says, why that is no hole in the continuous integration)
    ("needs a CUDA device", "the machines of the continuous integration have none"),
    ("needs Python 3.11", "exception groups and notes came with it; the oldest version that we support is 3.10"),
    ("is for macOS", "the machines of the continuous integration run Linux"),
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


# ------------------------------------------------------------------------------------------------- nothing left behind


@dataclass(frozen=True)
class World:
    """What there is outside the test at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread] = field(default_factory=frozenset)
    descriptors: frozenset[tuple[int, str]] = field(default_factory=frozenset)
    paths: frozenset[Path] = field(default_factory=frozenset)


def _processes() -> frozenset[psutil.Process]:
    """Return the living descendants of this process and everything that carries the mark."""
    me = psutil.Process()
    found = set(me.children(recursive=True))
    mark = os.environ.get(MARK, "-")
    for process in psutil.process_iter():
        try:
            if process != me and process not in found and process.environ().get(MARK) == mark:
                found.add(process)
        except psutil.Error:
            continue
    return frozenset(process for process in found if _alive(process))


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _serves_all_runs(process: psutil.Process) -> bool:
    """Tell if this is a fork server or guardian, and not a rank (a fork of the server, with its command line)."""
    try:
        parent = process.parent()
        return bool(PERMANENT.search(" ".join(process.cmdline()))) and not (
            parent is not None and PERMANENT.search(" ".join(parent.cmdline()))
        )
    except psutil.Error:
        return True  # it has just ended


def _descriptors() -> frozenset[tuple[int, str]]:
    """Return the open sockets, pipes, memory files and pidfds of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("socket:", "pipe:", "/memfd:", "anon_inode:[pidfd]")):
            found.add((int(name), target))
    return frozenset(found)


def _paths() -> frozenset[Path]:
    """Return what lies in the checkout's top folder and in the temporary one, run directories excepted."""
    found = set(ROOT.iterdir()) | set(Path(tempfile.gettempdir()).iterdir())
    caches = re.compile(r"\.(pytest|ruff|mypy|hypothesis|import_linter|coverage|git).*|nbproc-\d+|__pycache__")
    return frozenset(path for path in found if not caches.fullmatch(path.name))


def _look() -> World:
    return World(_processes(), frozenset(threading.enumerate()), _descriptors(), _paths())


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} (child of {process.ppid()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"process {process.pid}"


def left_behind(before: World) -> list[str]:
    """Say what is there now and was not before; wait a little for what is about to go."""
    fresh = _processes() - before.processes
    served = {process for process in fresh if _serves_all_runs(process)}
    psutil.wait_procs(fresh - served, timeout=GRACE)
    words = [_describe(process) for process in sorted(fresh - served, key=lambda p: p.pid) if _alive(process)]

    for thread in set(threading.enumerate()) - before.threads:
        if not PERMANENT_THREADS.search(thread.name):
            thread.join(GRACE)
            if thread.is_alive():
                words.append(f"thread {thread.name}")

    if not served:  # the first run of a process opens what all its runs use
        fresh_descriptors = _descriptors() - before.descriptors
        if fresh_descriptors:
            gc.collect()
            fresh_descriptors &= _descriptors()
        words += [f"descriptor {number}: {target}" for number, target in sorted(fresh_descriptors)]

    words += [f"path {path}" for path in sorted(_paths() - before.paths)]
    return words


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, private_places: Path) -> Iterator[None]:
    """Fail the test that leaves a process, thread, socket or directory behind.

    What a fixture of a wider scope holds (a kernel, a browser) was there before and is not counted. A test that
    really must leave something says why with ``@pytest.mark.leaves(reason)``.
    """
    before = _look()
    yield
    if request.node.get_closest_marker("leaves") is None and (words := left_behind(before)):
        pytest.fail("left behind:\n  " + "\n  ".join(words), pytrace=False)
