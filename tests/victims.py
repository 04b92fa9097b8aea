"""Functions that raise, crash, hang and ignore signals, for ranks to run. Every bug leaves a victim here."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent


def rank() -> int:
    return int(os.environ["RANK"])


def hang() -> None:
    """Wait until somebody ends it."""
    while True:
        time.sleep(600)


def ignore_all() -> None:
    """Wait, and react to no signal that can be ignored."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    print("ignoring", flush=True)
    hang()


def rank_1(how: str, *args: Any) -> Any:
    """Rank 1 does ``how``; the other ranks hang."""
    return globals()[how](*args) if rank() == 1 else hang()


def either(how: str, *args: Any) -> Any:
    """Do ``how``."""
    return globals()[how](*args)


def give_or_raise(i: int, go: Path) -> int:
    """Return ten times the rank; the rank 2 waits for a file, and raises."""
    if i < 2:
        return i * 10
    while not go.exists():
        time.sleep(0.002)
    raise ValueError("as told")


def first_line(path: Path) -> str:
    """Return the first line of a file that somebody writes, as soon as it is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if "\n" in text:
            return text.partition("\n")[0]
        time.sleep(0.005)
    raise TimeoutError(f"nothing was written to {path}")


def alive(pid: int | str) -> bool:
    """Say whether a process runs; one that nobody has waited for does not."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def say(words: list[str]) -> None:
    """Print each, a line each."""
    for word in words:
        print(word)


def write_raw(pieces: list[bytes]) -> None:
    """Write each to file descriptor 1, by itself."""
    for piece in pieces:
        while piece:
            piece = piece[os.write(1, piece) :]


def large(size: int) -> dict[int, str]:
    return {number: f"test{number}" for number in range(size)}


def has_modules() -> list[str]:
    return sorted(sys.modules)


def after(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value


def launch_inside(nprocs: int) -> list[int]:
    """Start a run inside a rank."""
    import nbproc

    return list(nbproc.start_processes("inner", rank, nprocs=nprocs).result())


def print_environ(name: str) -> None:
    print(os.environ.get(name))


def checkpoint(directory: str) -> None:
    """Write ``begun<rank>``, wait to be interrupted, and save what there is."""
    try:
        (Path(directory) / f"begun{rank()}").touch()
        while True:
            time.sleep(600)
    finally:
        (Path(directory) / f"saved{rank()}").touch()


def print_and_hang(name: str) -> None:
    print(os.environ[name], flush=True)
    hang()


def print_list(*names: str) -> None:
    print([os.environ[name] for name in names])


def state() -> dict[str, Any]:
    """Return what a new process inherits."""
    umask = os.umask(0)
    os.umask(umask)
    return {"cwd": os.getcwd(), "argv": sys.argv, "path": sys.path[0], "umask": umask, "zone": time.tzname[0]}


def imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def draw() -> tuple[float, float, float]:
    """Return a random number of Python's, numpy's and torch's."""
    import random

    import numpy as np
    import torch

    return random.random(), float(np.random.rand()), float(torch.rand(1))


def meet_late() -> int:
    """Rank 0 has returned when rank 1 asks the store that rank 0 hosts."""
    import torch.distributed as dist

    global _store
    _store = store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, is_master=rank() == 0, wait_for_workers=False
    )
    if rank() == 1:
        time.sleep(0.3)
        store.set("key", "value")
    return 2


# ---------------------------------------------------------------- exceptions


class OddConstructor(Exception):
    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Quiet(BaseException):
    """Not an Exception."""


def raise_value_error() -> None:
    raise ValueError("bad batch 17")


def print_and_raise() -> None:
    print("words")
    raise_value_error()


def raise_odd_constructor() -> None:
    raise OddConstructor(7, where="step 3")


def raise_unpicklable() -> None:
    raise Unpicklable


def raise_str_raises() -> None:
    raise StrRaises


def raise_base_exception() -> None:
    raise Quiet("not an Exception")


def raise_50_mb() -> None:
    raise ValueError("begin " + "x" * 50_000_000 + " end")


def raise_chain() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


def raise_deep() -> None:
    raise_deep()


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def let_go_and_hang(gate: str) -> None:
    """Let `remove_and_raise` of another rank go on, then wait until somebody ends it."""
    with open(gate, "w"):
        pass
    hang()


def remove_and_raise(path: str, gate: str) -> None:
    with open(gate):  # until the other rank is there, with its files open
        shutil.rmtree(path)
    raise_value_error()


def raise_stop_iteration() -> None:
    next(iter(()))


# ---------------------------------------------------------------- exits


def sys_exit(code: object = None) -> None:
    sys.exit(code)  # type: ignore[arg-type]


def os_exit(code: int) -> None:
    print("leaving", file=sys.stderr)
    os._exit(code)


def exit_while_threads_run(code: int) -> None:
    threading.Thread(target=hang, daemon=True).start()
    sys.exit(code)


# ---------------------------------------------------------------- signals and crashes


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def kill_myself(signum: int) -> None:
    _no_core()
    os.kill(os.getpid(), signum)
    hang()


def segfault() -> None:
    _no_core()
    ctypes.string_at(0)


def abort_in_c() -> None:
    _no_core()
    ctypes.CDLL(None).abort()


def segfault_in_thread() -> None:
    thread = threading.Thread(target=segfault)
    thread.start()
    thread.join()


# ---------------------------------------------------------------- pickling


class AtUnpickle:
    """Does something where it is unpickled; made where it does nothing."""

    def __init__(self, how: str, *args: Any) -> None:
        self.how = (how, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return at_unpickle, (os.getpid(), *self.how)


def at_unpickle(made_by: int, how: str, *args: Any) -> Any:
    return globals()[how](*args) if os.getpid() != made_by else None


class Trace:
    """Writes the rank into a file wherever it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _leave_trace, (self.path,)


def _leave_trace(path: str) -> None:
    with open(path, "a") as file:
        print(rank(), file=file)


def take_and_forget(value: object) -> None:
    """Return nothing of what came."""


class AtPickle:
    """Does something when it is pickled."""

    def __init__(self, how: str, *args: Any) -> None:
        self.how = (how, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        how, *args = self.how
        return globals()[how](*args) or (str, ())


def take(value: object) -> object:
    return value


def give_lock() -> object:
    return {"model": [threading.Lock()]}


def give(value: Any) -> Any:
    return value


def give_at_pickle(how: str, *args: Any) -> Any:
    return AtPickle(how, *args)


def give_at_unpickle(how: str, *args: Any) -> Any:
    return AtUnpickle(how, *args)


# ---------------------------------------------------------------- after the result


def then_at_exit(how: str, *args: Any) -> str:
    """Return, and do something when the process ends."""
    atexit.register(globals()[how], *args)
    return "result"


def then_thread_hangs() -> str:
    threading.Thread(target=hang).start()
    return "result"


def then_child_stays() -> int:
    """Return the pid of a child that goes on."""
    child = multiprocessing.get_context("fork").Process(target=ignore_all)
    child.start()
    assert child.pid is not None
    return child.pid


# ---------------------------------------------------------------- executables


def program(path: Path, text: str) -> str:
    """Write an executable Python program and return its path."""
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


# ---------------------------------------------------------------- eaters


def eat_memory() -> None:
    """Use 2 GB, touched."""
    eaten = bytearray(2 << 30)
    eaten[:: 1 << 12] = b"x" * (1 << 19)
    hang()


class _Eats:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        eat_memory()
        return index


def eat_in_worker() -> None:
    from torch.utils.data import DataLoader

    next(iter(DataLoader(_Eats(), num_workers=1)))


def eat_in_child() -> None:
    import subprocess

    code = f"import sys; sys.path[:0] = [{str(HERE)!r}]; import victims; victims.eat_memory()"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    raise subprocess.CalledProcessError(done.returncode, "eat")


def eat_descriptors() -> None:
    kept = []
    while True:
        kept.append(os.open(os.devnull, os.O_RDONLY))
