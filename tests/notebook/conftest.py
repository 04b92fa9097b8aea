"""Real kernels for the tests of this folder: one for each module, and fresh ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kernels import Kernel
from leftovers import GRACE

_opened: list[Kernel] = []
_FAILED = pytest.StashKey[bool]()


def _open(folder: Path, *, load: bool = True, **more: object) -> Kernel:
    made = Kernel(folder, **more)  # type: ignore[arg-type]
    _opened.append(made)
    if load:
        made.always("%load_ext nbproc")
    return made


def _close(kernel: Kernel) -> None:
    _opened.remove(kernel)
    processes = psutil.Process(kernel.pid).children(recursive=True) if psutil.pid_exists(kernel.pid) else []
    kernel.close()
    _, left = psutil.wait_procs(processes, timeout=GRACE)
    assert left == [], "outlived their kernel"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, private_places: Path) -> Iterator[Kernel]:
    """A kernel with the extension loaded, for all tests of the module: each uses names of its own.

    A test that fails gets it replaced: what it left would fail the next ones, and itself when it is run again.
    """
    made = _open(tmp_path_factory.mktemp("kernel"))
    yield made
    _close(made)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[..., Kernel]]:
    """Make kernels for this test alone; keywords are `Kernel`'s."""
    made: list[Kernel] = []

    def make(**more: object) -> Kernel:
        made.append(_open(tmp_path, **more))
        return made[-1]

    yield make
    for one in made:
        _close(one)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[_FAILED] = call.excinfo is not None
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, private_places: Path) -> Iterator[None]:
    """Fail the test that leaves a rank, what a rank started, or a thread behind.

    A kernel keeps its fork server, its guardian and the ranks that stand by; they are counted, not named.
    """
    threads = set(threading.enumerate())
    yield
    if request.node.stash.get(_FAILED, False):
        for kernel in _opened:
            kernel.renew()
        return
    for kernel in _opened:
        try:
            _only_what_stands_by(kernel)
        except AssertionError:
            kernel.renew()
            raise
    deadline = time.monotonic() + GRACE
    for thread in set(threading.enumerate()) - threads:
        if type(thread).__name__ not in ("IOThread", "HeartBeat", "HistorySavingThread", "TMonitor"):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"left behind: thread {thread.name}"


def _only_what_stands_by(kernel: Kernel) -> None:
    """The kernel's processes are its server, its guardian, and as many ranks as stand by."""
    deadline = time.monotonic() + GRACE
    while True:
        if not psutil.pid_exists(kernel.pid):
            return
        found = psutil.Process(kernel.pid).children(recursive=True)
        allowed = 2 + kernel.ask("__import__('nbproc.ranks.standby', fromlist=['']).count()")
        if len([one for one in found if _alive(one)]) <= allowed:
            return
        words = "\n".join(f"{one.pid} {' '.join(one.cmdline())[:150]}" for one in found if _alive(one))
        assert time.monotonic() < deadline, f"left behind by the kernel, {allowed} allowed:\n{words}"
        psutil.wait_procs(found, timeout=0.1)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
