"""S16: each start method, with functions of modules, of main and of nowhere; what a rank is to multiprocessing."""

from __future__ import annotations

import atexit
import inspect
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import jobs
import plain
import pytest

import nbproc
import nbproc.multiprocessing
from nbproc.ranks import client, process

METHODS = ("forkserver", "spawn", "fork")
method = pytest.mark.parametrize("start_method", METHODS)


@pytest.mark.parametrize(
    "door", [nbproc.start_processes, nbproc.spawn, nbproc.multiprocessing.spawn, nbproc.multiprocessing.start_processes]
)
def test_the_default_is_forkserver_at_every_door(door: object) -> None:
    assert inspect.signature(door).parameters["start_method"].default == "forkserver"  # type: ignore[arg-type]


@method
def test_functions_of_modules_and_of_nowhere(start_method: str, tmp_path: Path) -> None:
    local = 5

    def nested(i: int) -> int:
        return i + local

    for function, expected in ((abs, 1), (os.path.abspath, os.getcwd()), (nested, 6), (lambda i: i, 1)):
        argument = "." if function is os.path.abspath else 1
        context = nbproc.start_processes("t", function, {0: (argument,)}, start_method=start_method)
        result = context.wait()
        assert result is not None
        assert result[0] == expected


@method
def test_what_a_rank_is_to_multiprocessing(start_method: str) -> None:
    def look(i: int) -> dict[str, object]:
        import multiprocessing
        import os
        import signal
        import threading

        child = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
        child.start()
        child.join()
        return {
            "name": multiprocessing.current_process().name,
            "daemon": multiprocessing.current_process().daemon,
            "others": len(multiprocessing.active_children()),
            "child": child.exitcode,
            "threads": threading.active_count(),
            "main": threading.current_thread() is threading.main_thread(),
            "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "terminate": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        }

    sleeper = multiprocessing.get_context("fork").Process(target=jobs.hang, daemon=True)
    sleeper.start()  # a child of the caller is none of the rank's
    try:
        result = nbproc.start_processes("looker", look, {0: (0,)}, start_method=start_method).wait()
        assert result is not None
        assert result[0] == {
            "name": "looker-0",
            "daemon": False,
            "others": 0,
            "child": 7,
            "threads": 1,
            "main": True,
            "interrupt": True,
            "terminate": True,
        }
        assert sleeper.is_alive()
    finally:
        sleeper.kill()
        sleeper.join()
        sleeper.close()


def test_ranks_made_by_fork_come_out_of_a_process_full_of_locks(tmp_path: Path) -> None:
    """Other threads hold the locks of logging and of ours while a rank is forked, and the rank needs them too."""
    script = """
        import logging, threading
        import nbproc

        logging.getLogger("noise").addHandler(logging.NullHandler())
        stop = threading.Event()

        def make_noise():
            while not stop.is_set():
                logging.getLogger("noise").warning("x")

        def launch():
            while not stop.is_set():
                assert nbproc.start_processes("other", abs, {0: (-1,)}, start_method="forkserver").wait()[0] == 1

        def work(i):
            logging.getLogger("noise").warning("in a rank")
            return nbproc.start_processes("inner", abs, {0: (-3,)}, start_method="fork").wait()[0]

        threads = [threading.Thread(target=target) for target in (make_noise, launch, launch)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(8):
                result = nbproc.start_processes("t", work, {0: (0,), 1: (1,)}, start_method="fork").wait()
                assert list(result) == [3, 3], result
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        print("ok")
    """
    done = plain.run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-3000:]


def test_private_names_that_are_used_are_still_there() -> None:
    """Each is used behind a guard; this is how somebody notices that what it did is gone."""
    assert callable(atexit._clear)
    assert callable(atexit._run_exitfuncs)
    assert callable(threading._shutdown)  # type: ignore[attr-defined]
    assert callable(multiprocessing.get_context("fork").Process(target=abs)._bootstrap)  # type: ignore[attr-defined]
    assert subprocess._args_from_interpreter_flags() is not None  # type: ignore[attr-defined]
    assert client.interpreter()[1:] == subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]


@pytest.mark.parametrize("portable", ["", "1"], ids=["linux", "portable"])
@pytest.mark.parametrize("make", [lambda: process.forked(lambda sock: 0), process.Forked], ids=["fork", "forkserver"])
def test_a_copy_of_this_process_closes_no_descriptor_that_has_a_number_of_a_rank_anew(
    make: Callable[[], process.RankProcess], portable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is forked while another thread lets go of a rank, whose number has been given away meanwhile."""
    monkeypatch.setenv("NBPROC_PORTABLE", portable)
    rank = make()
    number, codes, close = rank.fileno(), [], os.close

    def close_and_fork(descriptor: int) -> None:
        close(descriptor)
        if descriptor != number or codes:
            return
        pipe = os.pipe()
        assert number in pipe
        pid = os.fork()
        if pid == 0:
            try:
                os.fstat(number)
                os._exit(0)
            finally:
                os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        for one in pipe:
            close(one)

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_and_fork)
        rank.close()
    if isinstance(rank, process.Child):
        assert rank.identity is not None
        os.waitpid(rank.identity.pid, 0)
    assert codes == [0]
