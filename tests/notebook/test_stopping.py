"""Stop: the ranks' own code for it runs, nothing is left, it is told as a Stop, and the next run works."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

import psutil
import pytest

from kernels import PATIENCE, Kernel, Ran


def wait_for_files(kernel: Kernel, ran: Ran, *names: str) -> None:
    ran.until(lambda: all((kernel.folder / name).exists() for name in names))


def pids(kernel: Kernel, prefix: str, count: int) -> list[psutil.Process]:
    return [psutil.Process(int((kernel.folder / f"{prefix}{rank}").read_text())) for rank in range(count)]


BEGIN = """\
import os, threading, time
def tell(name, text=""):
    with open(name + ".part", "w") as file:
        file.write(text or str(os.getpid()))
    os.replace(name + ".part", name)
def wait():
    threading.Event().wait()
"""


@pytest.fixture(scope="module", autouse=True)
def names(kernel: Kernel) -> None:
    assert kernel.always(BEGIN).ok


def test_interrupt_lets_ranks_save_and_is_told_in_one_neutral_line(kernel: Kernel) -> None:
    ran = kernel.begin(
        "%%spawn -n 3\n"
        "try:\n    tell(f'a{rank}')\n    wait()\n"
        "except KeyboardInterrupt:\n    tell(f'saved{rank}', 'checkpoint')\n    raise\n"
        "finally:\n    tell(f'finally{rank}', 'ran')"
    )
    wait_for_files(kernel, ran, "a0", "a1", "a2")
    ranks = pids(kernel, "a", 3)
    kernel.interrupt()
    ran.end()
    assert ran.ename == "KeyboardInterrupt"
    (line,) = ran.error.splitlines()
    assert line.startswith("stopped by you in ")
    assert line.endswith(
        f"nothing left running; ranks 0-2 stopped at wait, cell [{home(kernel)}] line 7, waiting in wait"
    )
    for rank in range(3):
        assert (kernel.folder / f"saved{rank}").read_text() == "checkpoint"
        assert (kernel.folder / f"finally{rank}").read_text() == "ran"
    assert not any(rank.is_running() for rank in ranks)
    again = kernel.run("%%spawn -n 3\nrank")
    assert again.ok
    assert again.seconds < 5


def home(kernel: Kernel) -> int:
    """The execution count of the cell that defined `wait`."""
    return int(
        kernel.ask("get_ipython().compile.format_code_name(wait.__code__.co_filename)[1]").strip("[]").split("[")[-1]
    )


def test_a_rank_that_handles_the_interrupt_and_returns_is_no_failure(kernel: Kernel) -> None:
    ran = kernel.begin(
        "%%spawn -n 2\ntry:\n    tell(f'b{rank}')\n    wait()\nexcept KeyboardInterrupt:\n    pass\nrank"
    )
    wait_for_files(kernel, ran, "b0", "b1")
    kernel.interrupt()
    ran.end()
    assert ran.ename in ("KeyboardInterrupt", "")
    assert "Traceback" not in ran.text


def test_a_second_interrupt_kills_at_once(kernel: Kernel) -> None:
    ran = kernel.begin(
        "%%spawn -n 2 --grace 300\nimport signal\n"
        "def note(*_):\n    tell(f'asked{rank}')\n"
        "signal.signal(signal.SIGINT, note)\ntell(f'c{rank}')\nwhile True:\n    time.sleep(60)"
    )
    wait_for_files(kernel, ran, "c0", "c1")
    ranks = pids(kernel, "c", 2)
    kernel.interrupt()
    wait_for_files(kernel, ran, "asked0", "asked1")
    assert not ran.reply
    began = time.monotonic()
    kernel.interrupt()
    ran.end()
    assert time.monotonic() - began < 5
    assert ran.ename == "KeyboardInterrupt"
    assert len(ran.error.splitlines()) == 1
    assert not any(rank.is_running() for rank in ranks)


def test_ranks_that_wait_notice_an_interrupt_every_time(kernel: Kernel) -> None:
    for number in range(6):
        ran = kernel.begin(f"%%spawn -n 2 --name again{number}\ntell(f'd{{rank}}-{number}')\nwait()")
        wait_for_files(kernel, ran, f"d0-{number}", f"d1-{number}")
        kernel.interrupt()
        ran.end()
        assert ran.ename == "KeyboardInterrupt"
        assert ran.seconds < 5


def test_a_stop_from_elsewhere_is_told_as_a_stop(kernel: Kernel) -> None:
    kernel.run(
        "import gc, nbproc\n"
        "def stop_when(name):\n"
        "    while not os.path.exists(name): time.sleep(0.02)\n"
        "    for one in gc.get_objects():\n"
        "        if type(one) is nbproc.MultiprocessContext and one.snapshot().state.value == 'running':\n"
        "            one.stop()\n"
        "thread = threading.Thread(target=stop_when, args=('e0',))\nthread.start()"
    )
    ran = kernel.run("%%spawn -n 1\ntell(f'e{rank}')\nwait()")
    kernel.run("thread.join()")
    assert ran.ename == "KeyboardInterrupt"
    assert ran.error.startswith("stopped by you in ")


def test_a_detached_run_gives_the_prompt_back_and_is_the_context(kernel: Kernel) -> None:
    ran = kernel.run("%%spawn -n 2 --detach --as job\ntell(f'f{rank}')\nwait()\nrank")
    assert ran.ok
    assert ran.value == ""
    assert kernel.ask("(type(job).__name__, job is _)") == ("MultiprocessContext", True)
    kernel.run("1 + 1").until(lambda: (kernel.folder / "f0").exists() and (kernel.folder / "f1").exists())
    assert kernel.ask("job.wait(0) is None") is True
    assert kernel.run("job.stop()\nresult = job.wait()\nstate = job.snapshot().state.value").ok
    assert kernel.ask("state") == "stopped"


def test_an_interrupt_of_wait_is_told_in_one_line_too(kernel: Kernel) -> None:
    kernel.run("%%spawn -n 1 --detach --as waited\ntell('w0')\nwait()")
    ran = kernel.begin("tell('waiting')\nwaited.wait()")
    wait_for_files(kernel, ran, "w0", "waiting")
    kernel.interrupt()
    ran.end()
    assert ran.ename == "KeyboardInterrupt"
    assert len(ran.error.splitlines()) == 1
    assert ran.error.startswith("stopped by you in ")


def test_a_detached_run_ends_with_its_result(kernel: Kernel) -> None:
    assert kernel.run("%%spawn -n 2 --detach --as quick\nrank + 5").ok
    assert kernel.run("quick.wait().return_values").value == "{0: 5, 1: 6}"


def test_interrupt_does_not_end_a_detached_run(kernel: Kernel) -> None:
    os.mkfifo(kernel.folder / "go-on.fifo")
    assert kernel.run("%%spawn -n 1 --detach --as stays\ntell('g0')\nopen('go-on.fifo').read()").ok
    busy = kernel.begin("tell('busy')\ntime.sleep(60)")
    wait_for_files(kernel, busy, "g0", "busy")
    kernel.interrupt()
    busy.end()
    assert kernel.ask("stays.snapshot().state.value") == "running"
    (kernel.folder / "go-on.fifo").write_text("done")
    assert kernel.run("stays.wait()[0]").value == "'done'"


def test_a_rank_that_ignores_everything_is_killed_after_the_grace(kernel: Kernel) -> None:
    ran = kernel.begin(
        "%%spawn -n 1 --grace 0.2\nimport signal\n"
        "for one in (signal.SIGINT, signal.SIGTERM):\n    signal.signal(one, signal.SIG_IGN)\n"
        "tell('h0')\nwait()"
    )
    wait_for_files(kernel, ran, "h0")
    kernel.interrupt()
    ran.end()
    assert ran.ename == "KeyboardInterrupt"
    assert "nothing left running" in ran.error


def test_a_rank_that_waits_for_another_is_said_to_wait(kernel: Kernel) -> None:
    ran = kernel.begin(
        "%%spawn -n 2\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "tell(f'j{rank}')\nif rank == 1:\n    wait()\ndist.barrier()"
    )
    wait_for_files(kernel, ran, "j0", "j1")
    time.sleep(0.3)  # rank 0 goes from one line to the next; nothing tells that it has arrived
    kernel.interrupt()
    ran.end()
    assert f"rank 0 stopped at cell [{ran.count}] line 7, waiting in barrier" in ran.error


def test_what_ranks_started_goes_with_them(kernel: Kernel) -> None:
    ran = kernel.begin(
        "%%spawn -n 1\nimport subprocess\nchild = subprocess.Popen(['sleep', '600'])\ntell('i0', str(child.pid))\nwait()"
    )
    wait_for_files(kernel, ran, "i0")
    child = psutil.Process(int((kernel.folder / "i0").read_text()))
    kernel.interrupt()
    ran.end()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_nothing_outlives_its_kernel(fresh: Callable[..., Kernel], how: str) -> None:
    kernel = fresh()
    kernel.run(BEGIN)
    ran = kernel.begin("%%spawn -n 2\ntell(f'k{rank}')\nwait()")
    wait_for_files(kernel, ran, "k0", "k1")
    family = psutil.Process(kernel.pid).children(recursive=True)
    assert len(family) >= 4  # server, guardian, ranks
    getattr(kernel, how)()
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nbproc.contexts.reader.Reader.start", "stopped by you before anything was started"),
        ("nbproc.contexts.base.PContext._await", "stopped by you in "),
        ("nbproc.notebook.magic.Spawn._plan", "stopped by you$"),
    ],
)
def test_an_interrupt_in_the_middle_of_a_launch_is_told_in_one_line(kernel: Kernel, where: str, words: str) -> None:
    kernel.run(
        "import importlib, time, nbproc, unittest.mock\n"
        "def cut(path):\n"
        "    home, owner, name = path.rsplit('.', 2)\n"
        "    owner = getattr(importlib.import_module(home), owner)\n"
        "    real = getattr(owner, name)\n"
        "    def cut_short(*args, **more):\n"
        "        real(*args, **more)\n        raise KeyboardInterrupt\n"
        "    return unittest.mock.patch.object(owner, name, cut_short)\n"
        "def rest(number=0):\n    time.sleep(600)\n"
    )
    for call in ("get_ipython().run_line_magic('spawn', '-n 1 rest()')", "nbproc.spawn(rest)"):
        if "magic" in where and "magic" not in call:
            continue
        ran = kernel.run(f"with cut({where!r}):\n    {call}")
        assert ran.ename == "KeyboardInterrupt", ran.text
        assert re.match(words, ran.error)
        assert len(ran.error.splitlines()) == 1
    assert kernel.run("%spawn -n 2 1 + 1").ok


def test_an_interrupt_before_the_launch_is_over(fresh: Callable[..., Kernel]) -> None:
    kernel = fresh(env={"NBPROC_STANDBY": "0"})
    kernel.run(BEGIN)
    for delay in (0.0, 0.05, 0.2):
        ran = kernel.begin("tell('began')\nget_ipython().run_cell_magic('spawn', '-n 4', 'wait()')")
        wait_for_files(kernel, ran, "began")
        os.unlink(kernel.folder / "began")
        time.sleep(delay)
        kernel.interrupt()
        ran.end(PATIENCE)
        assert ran.ename == "KeyboardInterrupt", ran.text
    assert kernel.run("%%spawn -n 4\nrank").ok
