"""Interrupt, restart, and the end of a kernel in any way, with ranks in every state: what a person sees, and what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import states
from jupyter_client.blocking.client import BlockingKernelClient

from kernels import Kernel, Ran

TESTS = Path(__file__).parents[1]
ALONE = [state for state in states.STATES if state != "in a barrier"]
SOON = 2.0
"""Seconds after the end of its kernel in which everything of a run is gone."""
IMPORT = f"import sys; sys.path.append({str(TESTS)!r}); import states"
TOOK = r"stopped by you in \d+\.\d s; nothing left running"


def launch(kernel: Kernel, state: str, folder: Path, options: str = "--grace 0.3") -> tuple[Ran, states.Told]:
    """Run a cell whose rank 0 is in this state; return when it is."""
    kernel.run(IMPORT)
    ran = kernel.begin(f"%spawn -n 2 {options} states.enter({state!r}, {str(folder)!r})")
    kernel.take_in(lambda: (folder / "0").exists() and (folder / "1").exists(), 60)
    return ran, states.told(folder, 2)


def works(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2\nrank")
    assert ran.ok, ran.text
    assert kernel.ask("list(_)") == [0, 1]


# ---------------------------------------------------------------- Interrupt


@pytest.mark.parametrize("state", states.STATES)
def test_interrupt_once(state: str, kernel: Kernel, tmp_path: Path) -> None:
    ran, told = launch(kernel, state, tmp_path)
    kernel.interrupt()
    ran.end()
    assert states.living(told.pids) == []  # when the cell has ended, not later
    assert states.in_shared_memory(told.pids, told.names) == []
    assert ran.ename == "KeyboardInterrupt"
    assert re.search(TOOK, ran.error), ran.error
    place = rf"ranks? 0.* stopped at {states.PLACES.get(state, 'asleep')}, states\.py line \d+"
    if state != "with DataLoader workers":  # their own end may be where it was
        assert re.search(place, ran.error), ran.error
    assert "Traceback" not in ran.error
    works(kernel)


@pytest.mark.parametrize("state", ["in C, holding the GIL", "ignoring signals"])
def test_interrupt_twice(state: str, kernel: Kernel, tmp_path: Path) -> None:
    """Whoever presses again has no patience left: ten minutes of grace do not count then."""
    ran, told = launch(kernel, state, tmp_path, "--grace 600")
    kernel.interrupt()
    states.until(lambda: not states.living([told["1"]["pid"]]), "the other rank has stopped")
    assert states.living([told["0"]["pid"]])
    kernel.interrupt()
    ran.end()
    assert states.living(told.pids) == []
    assert ran.ename == "KeyboardInterrupt"
    assert re.search(TOOK, ran.error), ran.error
    works(kernel)


@pytest.mark.parametrize("moment", ["at once", "while torch is imported", "when its ranks are there"])
def test_interrupt_during_the_start(moment: str, fresh: Callable[..., Kernel]) -> None:
    kernel = fresh(env={"NBPROC_STANDBY": "0"})
    process = psutil.Process(kernel.pid)
    kernel.run("from nbproc.ranks import client; client.close(5)")  # the first launch finds no server
    ran = kernel.begin("%%spawn -n 2 --grace 0.3\nimport time\ntime.sleep(600)")

    def servers() -> list[psutil.Process]:
        return [one for one in process.children(recursive=True) if any("server_main" in word for word in one.cmdline())]

    if moment == "while torch is imported":
        kernel.take_in(lambda: len(servers()) == 1, 30)
    elif moment == "when its ranks are there":
        kernel.take_in(lambda: len(servers()) == 3, 60)
    deadline = time.monotonic() + 60
    while not (ran.idle and ran.reply):  # one that comes before the cell began is dropped by the kernel itself
        assert time.monotonic() < deadline
        kernel.interrupt()
        pressed = time.monotonic()
        kernel.take_in(lambda pressed=pressed: time.monotonic() > pressed + 5 or (ran.idle and ran.reply), 10)  # type: ignore[misc]
    assert ran.ename == "KeyboardInterrupt"
    assert re.search(f"{TOOK}|stopped by you before anything was started", ran.error), ran.error
    states.until(lambda: len(servers()) <= 1, "no rank is left", SOON)
    works(kernel)


# ---------------------------------------------------------------- the end of a kernel


def launch_all(kernel: Kernel, folder: Path, options: str = "") -> list[int]:
    """Run a cell with a rank in each state, and one in a barrier; return all processes when they are."""
    for name in ("each", "barrier"):
        (folder / name).mkdir()
    kernel.run(f"{IMPORT}\nALONE = {ALONE!r}")
    kernel.run(f"%spawn -n 2 --detach states.enter('in a barrier', {str(folder / 'barrier')!r})")
    cell = f"%spawn -n {len(ALONE)} {options} states.enter_each(ALONE, {str(folder / 'each')!r})"
    (kernel.run if "--detach" in options else kernel.begin)(cell)
    each = states.told(folder / "each", len(ALONE))
    return [*each.pids, *states.told(folder / "barrier", 2).pids]


def gone_after(owner: psutil.Process, pids: list[int]) -> float:
    """Wait for the end of the owner; return how many seconds later everything else is gone."""
    states.until(lambda: not states.living([owner.pid]), "the kernel has ended")
    died = time.monotonic()
    states.until(lambda: not states.living(pids), "everything is gone", 3 * SOON)
    return time.monotonic() - died


ENDINGS: dict[str, Callable[[Kernel], None]] = {
    "SIGKILL": lambda kernel: os.kill(kernel.pid, signal.SIGKILL),
    "SIGTERM": lambda kernel: os.kill(kernel.pid, signal.SIGTERM),
    "restart": lambda kernel: kernel.restart(),
}


@pytest.mark.parametrize("detached", ["", "--detach"], ids=["in a cell", "detached"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_outlives_its_kernel(
    ending: str, detached: str, fresh: Callable[..., Kernel], tmp_path: Path, bystander: None
) -> None:
    kernel = fresh()
    pids = launch_all(kernel, tmp_path, detached)
    old = psutil.Process(kernel.pid)
    around = [child.pid for child in old.children(recursive=True)]
    end = threading.Thread(target=ENDINGS[ending], args=[kernel])
    end.start()
    seconds = gone_after(old, [*pids, *around])
    end.join()
    assert seconds < SOON
    assert states.in_shared_memory(pids, []) == []
    if ending == "restart":
        kernel.run("%load_ext nbproc")
        works(kernel)


@pytest.fixture
def bystander() -> Iterator[None]:
    """Something that looks like a rank and is none."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)", "nbproc/ranks/server_main.py"],
        env={"NBPROC_RUN": "another"},
        start_new_session=True,
    )
    yield
    assert process.poll() is None
    process.kill()
    process.wait()


SERVER = """
import sys
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="python3")
manager.start_kernel(cwd=sys.argv[1])
print(manager.connection_file, manager.provisioner.pid, flush=True)
sys.stdin.read()
"""


def test_nothing_outlives_the_notebook_server(tmp_path: Path, bystander: None) -> None:
    """A kernel whose server was killed notices within a second, and ends; the rest follows."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    file, pid = server.stdout.readline().split()
    client = BlockingKernelClient(connection_file=file)
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    client.execute(f"{IMPORT}\n%load_ext nbproc\nALONE = {ALONE!r}")
    client.execute(f"%spawn -n {len(ALONE)} states.enter_each(ALONE, {str(tmp_path)!r})")
    told = states.told(tmp_path, len(ALONE))
    kernel = psutil.Process(int(pid))
    around = [child.pid for child in kernel.children(recursive=True)]
    server.kill()
    server.wait()
    seconds = gone_after(kernel, [*told.pids, *around])
    client.stop_channels()
    server.stdin.close()
    server.stdout.close()
    assert seconds < SOON
    assert states.in_shared_memory(told.pids, told.names) == []


def test_a_saved_run_is_whole_when_the_kernel_was_killed(fresh: Callable[..., Kernel], tmp_path: Path) -> None:
    """The logs of a run whose kernel was killed are on disk to the last byte that its ranks wrote."""
    kernel = fresh()
    kernel.run(IMPORT)
    logs = tmp_path / "logs"
    kernel.begin(f"%spawn -n 2 --log-dir {logs} states.enter('asleep', {str(tmp_path)!r})")
    told = states.told(tmp_path, 2)
    kernel.kill()
    states.until(lambda: not states.living(told.pids), "everything is gone", 3 * SOON)
    kept = list(logs.rglob("stdout.log")) or list(Path(os.environ["TMPDIR"]).rglob("stdout.log"))
    assert sum(path.read_bytes().endswith(states.LAST_WORDS) for path in kept) >= 2
