"""Every state that a rank can be in when its run is ended from outside, and a look at what is left of it."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NoReturn

import psutil

LAST_WORDS = b"last words without a newline"
PATIENCE = 30.0

Ready = Callable[..., None]


def enter(state: str, folder: str) -> object:
    """Be rank 0 of a run of two: enter a state, and tell of it in a file. Rank 1 sleeps."""
    rank = int(os.environ["RANK"])
    if state != "in a barrier":
        return STATES[state](_ready(folder)) if rank == 0 else asleep(_ready(folder))
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if rank == 0:
        _ready(folder)()
        dist.barrier()
    return asleep(_ready(folder))


def enter_each(states: list[str], folder: str) -> object:
    """Be one rank of many: rank n enters the n-th state. Returns a value for those that come back."""
    return {**STATES, **OTHERS}[states[int(os.environ["RANK"])]](_ready(folder))


def _ready(folder: str) -> Ready:
    def ready(**more: object) -> None:
        """Say the last words, note what there is, and then (as a whole) that this rank is in its state."""
        me = psutil.Process()
        children = [child.pid for child in me.children(recursive=True)]
        os.write(1, b"first words\n" + LAST_WORDS)
        os.write(2, LAST_WORDS)
        told = {"pid": me.pid, "children": children, "port": os.environ["MASTER_PORT"], **more}
        file = Path(folder, os.environ["RANK"])
        file.with_suffix(".part").write_text(json.dumps(told))
        file.with_suffix(".part").rename(file)

    return ready


def in_python(ready: Ready) -> NoReturn:
    ready()
    while True:
        pass


def asleep(ready: Ready) -> NoReturn:
    ready()
    while True:
        time.sleep(600)


def in_c(ready: Ready) -> None:
    """Hold the GIL in C and wait there for ever; a signal's handler in Python never gets to run."""
    library = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(256)
    ready()
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def deaf(ready: Ready) -> NoReturn:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    asleep(ready)


def stopped(ready: Ready) -> NoReturn:
    ready()
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(600)


def with_workers(ready: Ready) -> NoReturn:
    from torch.utils.data import DataLoader

    for _ in DataLoader(_Numbers(), num_workers=2, persistent_workers=True):
        asleep(ready)
    raise AssertionError("the loader gave nothing")


class _Numbers:
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return index


def with_children(ready: Ready) -> NoReturn:
    """Have children, one of them deaf, one with a child of its own."""
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    heard, said = os.pipe()
    subprocess.Popen([sys.executable, "-S", "-c", _DEAF, str(said)], pass_fds=[said])
    os.read(heard, 1)
    asleep(ready)


_DEAF = """
import os, signal, sys, time
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
os.write(int(sys.argv[1]), b".")
time.sleep(600)
"""


def with_sessions(ready: Ready) -> NoReturn:
    """Have a grandchild that leads a session of its own."""
    subprocess.Popen(["setsid", "--fork", "sleep", "600"]).wait()
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    until(_orphans, "the grandchild is there")
    ready(children=[child.pid, *_orphans()])
    while True:
        time.sleep(600)


def with_clean_child(ready: Ready) -> NoReturn:
    """Have a child in a session of its own whose environment says nothing of the run: only its parent tells."""
    subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    asleep(ready)


def with_daemon(ready: Ready) -> NoReturn:
    """Have made a daemon that hides: forked twice, a session of its own, a clean environment."""
    made = subprocess.run(
        ["env", "-i", "/bin/sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"],
        check=True,
        capture_output=True,
        text=True,
    )
    ready(daemon=int(made.stdout))
    while True:
        time.sleep(600)


def forking(ready: Ready) -> NoReturn:
    """Be just between the fork and the exec of a child that leads a session of its own, when the rank is killed."""

    def in_the_child() -> None:
        ready(children=[os.getpid()])
        parent = os.getppid()
        until(lambda: os.getppid() != parent, "the rank is gone")
        time.sleep(0.1)  # it takes so long to begin its program, which is what is tried here

    subprocess.Popen(["sleep", "600"], start_new_session=True, preexec_fn=in_the_child)
    raise AssertionError("the rank was to be killed before")


def _orphans() -> list[int]:
    mark = os.environ["NBPROC_RUN"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.ppid() == 1 and process.environ().get("NBPROC_RUN") == mark:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def with_shared_memory(ready: Ready) -> NoReturn:
    """Hold memory and a semaphore that have a name, and a shared tensor, which has none."""
    import torch

    block = SharedMemory(create=True, size=4096)
    kept = (torch.ones(1000).share_memory_(), multiprocessing.get_context("spawn").Semaphore())
    ready(memory=block.name, kept=repr(kept)[:20])
    while True:
        time.sleep(600)


def with_named_tensors(ready: Ready) -> NoReturn:
    """Hold a tensor that is shared by name, as torch does where descriptors are few."""
    import torch
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy("file_system")
    tensor = torch.ones(1000).share_memory_()
    ready(kept=len(tensor))
    while True:
        time.sleep(600)


PLACES = {
    "in Python": "in_python",
    "in C, holding the GIL": "in_c",
    "stopped": "stopped",
    "with children in sessions of their own": "with_sessions",
    "with named shared memory": "with_shared_memory",
    "in a barrier": "enter",
}
"""The function in which a rank in this state is; in ``asleep`` where there is none."""

STATES: dict[str, Callable[[Ready], object]] = {
    "in Python": in_python,
    "asleep": asleep,
    "in C, holding the GIL": in_c,
    "ignoring signals": deaf,
    "stopped": stopped,
    "with DataLoader workers": with_workers,
    "with subprocess children": with_children,
    "with children in sessions of their own": with_sessions,
    "with a child that hides": with_clean_child,
    "with named shared memory": with_shared_memory,
    "in a barrier": asleep,  # by `enter`, which has two ranks for it
}

OTHERS: dict[str, Callable[[Ready], object]] = {
    "with a daemon": with_daemon,
    "with named tensors": with_named_tensors,
    "forking": forking,
}
"""States that need a test of their own."""

# ---------------------------------------------------------------------------------------- from outside


class Told(dict[str, Any]):
    """What the ranks told when they were in their state, by rank."""

    @property
    def pids(self) -> list[int]:
        """Every process of the run."""
        return [pid for told in self.values() for pid in (told["pid"], *told["children"])]

    @property
    def names(self) -> list[str]:
        """Every name in shared memory."""
        return [told["memory"] for told in self.values() if "memory" in told]


def until(true: Callable[[], Any], words: str, timeout: float = PATIENCE) -> Any:
    """Wait until something outside of this process is so; return what it is."""
    deadline = time.monotonic() + timeout
    while not (value := true()):
        assert time.monotonic() < deadline, f"after {timeout} s it is not so that {words}"
        time.sleep(0.005)
    return value


def told(folder: Path, ranks: int) -> Told:
    """Wait until so many ranks are in their state; return what they told."""
    files = [folder / str(rank) for rank in range(ranks)]
    until(lambda: all(file.exists() for file in files), "all ranks are in their state")
    return Told({file.name: json.loads(file.read_text()) for file in files})


def living(pids: Mapping[int, float] | list[int]) -> list[str]:
    """Name the processes of these that live."""
    found = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{pid} {' '.join(process.cmdline())[:100]} ({process.status()})")
        except psutil.Error:
            continue
    return found


def port_is_free(port: str | int) -> bool:
    """Say whether a port can be bound as any program would bind it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", int(port)))
        except OSError:
            return False
        return True


def in_shared_memory(pids: list[int], names: list[str]) -> list[str]:
    """Name what these processes left in /dev/shm: torch's by the pid in the name, Python's by what they told."""
    return sorted(
        name
        for name in os.listdir("/dev/shm")
        if name in names or any(part.isdigit() and int(part) in pids for part in name.split("_"))
    )
