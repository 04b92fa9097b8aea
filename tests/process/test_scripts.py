"""Plain scripts and threads: U1 to U7, U9, U24, U26 without a notebook."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import jobs
import plain
import psutil
import pytest

METHODS = ("forkserver", "spawn", "fork")
method = pytest.mark.parametrize("start_method", METHODS)


@method
@pytest.mark.parametrize("portable", ["", "1"], ids=["linux", "portable"])
def test_u1_u3_u7_an_unguarded_script_with_everything_in_main(tmp_path: Path, start_method: str, portable: str) -> None:
    script = f"""
        import dataclasses, enum, functools, sys, typing
        import nbproc

        print("once")
        SCALE = 3

        class Color(enum.Enum):
            RED = 1

        @dataclasses.dataclass
        class Point:
            x: int
            color: Color = Color.RED

            def scaled(self):
                return Point(self.x * SCALE, self.color)

        class Pair(typing.NamedTuple):
            a: Point
            b: object

        def helper(point):
            return point.scaled()

        def traced(function):
            @functools.wraps(function)
            def call(*args):
                return function(*args)
            return call

        @traced
        def work(i, point):
            return Pair(helper(point), (i, point.color))

        class Callable:
            def __call__(self, i, point):
                return work(i, point)

            method = __call__

        for call in (work, lambda *a: work(*a), functools.partial(work), Callable(), Callable().method):
            context = nbproc.start_processes(
                "t", call, {{i: (i, Point(i)) for i in range(2)}}, start_method="{start_method}"
            )
            values = context.wait().return_values
            assert [values[i] for i in range(2)] == [Pair(Point(3 * i), (i, Color.RED)) for i in range(2)], values
            assert type(values[1]) is Pair and isinstance(values[1].a, Point) and values[1].a.color is Color.RED

        def spawned(i, point):
            assert isinstance(point, Point) and point.color is Color.RED

        nbproc.spawn(spawned, (Point(1),), 2, start_method="{start_method}")
        assert getattr(sys.modules["__main__"], "SCALE") == 3
        print("done")
    """
    assert plain.lines(tmp_path, script, env={"NBPROC_PORTABLE": portable}) == ["once", "done"]


def test_u5_u6_the_callers_state_and_modules_as_they_are_now(tmp_path: Path) -> None:
    for folder in ("lib", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "helper.py").write_text("VALUE = 1\n")
    (tmp_path / "lib" / "late.py").write_text("VALUE = 'late'\n")
    script = """
        import importlib, os, sys
        import nbproc
        import helper

        def look(i):
            import helper
            import late
            return helper.VALUE, late.VALUE, os.getcwd(), os.environ.get("SETTING"), helper.__dict__.get("OLD")

        def values(start_method):
            return nbproc.start_processes("t", look, {0: (0,)}, start_method=start_method).wait()[0]

        here = os.getcwd()
        for number, start_method in enumerate(("forkserver", "spawn", "fork", "forkserver")):
            with open(os.path.join(here, "helper.py"), "w") as file:
                file.write(f"VALUE = {number + 1000}\\n")
            importlib.invalidate_caches()
            importlib.reload(helper)
            if number == 0:
                sys.path.append(os.path.join(here, "lib"))
                sys.path.insert(0, here)
                os.environ["SETTING"] = "on"
                os.chdir("other")
            if number == 3:
                os.environ.pop("SETTING")
            expected = "on" if number < 3 else None
            assert values(start_method) == (number + 1000, "late", os.path.join(here, "other"), expected, None)
        print("ok")
    """
    # the same size and the same second: a compiled file must not be taken for the new source
    assert plain.lines(tmp_path, script, env={"PYTHONDONTWRITEBYTECODE": "1"}) == ["ok"]


def test_u26_threads_two_runs_at_once_and_runs_in_runs(tmp_path: Path) -> None:
    script = """
        import os, threading, warnings
        import nbproc

        warnings.simplefilter("error")

        def inner(i, deep):
            return os.getppid()

        def outer(i, start_method):
            values = nbproc.start_processes("inner", inner, {0: (0, 0), 1: (1, 0)}, start_method=start_method).wait()
            return os.getppid(), set(values.return_values.values())

        results = {}

        def launch(number, start_method):
            context = nbproc.start_processes("outer", outer, {0: (0, start_method)}, start_method=start_method)
            results[number] = context.wait().return_values[0]

        threads = [
            threading.Thread(target=launch, args=(number, "forkserver")) for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        servers = {parent for parent, _ in results.values()}
        assert len(servers) == 1 and all(inners == servers for _, inners in results.values()), results
        for start_method in ("spawn", "fork"):
            launch(9, start_method)
            assert results[9][0] == os.getpid() and os.getpid() not in results[9][1], results

        # a thread that ends: its run goes on
        started = []
        def begin(i, path):
            while not os.path.exists(path):
                pass
            return "went on"
        path = os.path.abspath("go")
        thread = threading.Thread(
            target=lambda: started.append(nbproc.start_processes("t", begin, {0: (0, path)}))
        )
        thread.start()
        thread.join()
        open(path, "w").close()
        assert started[0].wait()[0] == "went on"
        started[0].pids()
        for thread in set(threading.enumerate()) - {threading.main_thread()}:
            thread.join(30)  # a run's thread tidies up after its result is there
        assert threading.active_count() == 1, threading.enumerate()
        print("ok")
    """
    assert plain.lines(tmp_path, script) == ["ok"]


def test_the_caller_is_as_it_was_before(tmp_path: Path) -> None:
    script = """
        import locale, multiprocessing, os, pathlib, random, resource, signal, sys, threading
        import nbproc

        def state():
            return {
                "handlers": {n: signal.getsignal(n) for n in signal.valid_signals()},
                "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
                "wakeup": signal.set_wakeup_fd(-1),
                "environment": dict(os.environ),
                "cwd": os.getcwd(),
                "path": list(sys.path),
                "argv": list(sys.argv),
                "umask": pathlib.Path("/proc/self/status").read_text().split("Umask:")[1].split()[0],
                "random": random.getstate(),
                "start method": multiprocessing.get_start_method(allow_none=True),
                "locale": locale.setlocale(locale.LC_ALL),
                "limits": [resource.getrlimit(n) for n in range(16)],
                "affinity": os.sched_getaffinity(0),
                "nice": os.nice(0),
                "main": sys.modules["__main__"],
                "name": multiprocessing.current_process().name,
                "sid": os.getsid(0),
                "streams": (sys.stdin, sys.stdout, sys.stderr),
                "children": multiprocessing.active_children(),
                "torch": "torch" in sys.modules,
            }

        before = state()

        def work(i):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.environ["X"] = "1"
            os.umask(0)
            return i

        def fail(i):
            raise ValueError

        for start_method in ("forkserver", "spawn", "fork"):
            nbproc.spawn(work, nprocs=2, start_method=start_method)
            try:
                nbproc.spawn(fail, nprocs=2, start_method=start_method)
            except nbproc.ProcessRaisedException:
                pass
            after = state()
            for key, value in before.items():
                assert after[key] == value, (start_method, key, value, after[key])
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            thread.join(10)
        assert threading.enumerate() == [threading.current_thread()], threading.enumerate()
        print("ok")
    """
    done = plain.run(tmp_path, script, "-W", "error")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert "Warning" not in done.stderr


@method
def test_what_was_printed_before_is_written_once(tmp_path: Path, start_method: str) -> None:
    script = f"""
        import ctypes, logging, sys
        import nbproc

        handler = logging.StreamHandler(sys.stdout)
        logging.getLogger("x").addHandler(handler)
        print("before", end=" ")  # held in a buffer, as stdout is a pipe
        ctypes.CDLL(None).printf(b"c\\n")

        def work(i):
            logging.getLogger("x").warning("rank")
            print("work")
            ctypes.CDLL(None).printf(b"c in a rank\\n")

        nbproc.spawn(work, nprocs=1, start_method="{start_method}")
        print("after")
    """
    done = plain.run(tmp_path, script)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    for word, times in {"before": 1, "after": 1, "work": 1, "in": 1, "c": 2}.items():
        assert words.count(word) == times, done.stdout


def test_u9_autograd_was_used_before(tmp_path: Path) -> None:
    script = """
        import sys
        import nbproc, torch

        def train(i):
            x = torch.ones(300, 300, requires_grad=True)
            (x @ x).sum().backward()
            return float(x.grad.sum())

        expected = train(0)
        torch.set_num_threads(2)
        for start_method in ("forkserver", "spawn"):
            values = nbproc.start_processes("t", train, {0: (0,), 1: (1,)}, start_method=start_method).wait()
            assert list(values) == [expected, expected]

        def forward(i):
            x = torch.ones(300, 300)
            return float((x @ x).sum()), torch.get_num_threads()

        torch.ones(2000, 2000).mul(2).sum()  # threads of OpenMP run now
        assert nbproc.start_processes("t", forward, {0: (0,)}, start_method="fork").wait()[0][0] == 300.0**3
        print("ok")
    """
    done = plain.run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_a_script_that_does_not_wait_ends_when_its_ranks_do(tmp_path: Path) -> None:
    script = """
        import time
        import nbproc

        def work(i):
            time.sleep(0.3)
            print("rank is done", flush=True)

        context = nbproc.start_processes("t", work, {0: (0,)})
        nbproc.spawn(work, nprocs=1, join=False)
        print("script is done", flush=True)
    """
    assert plain.lines(tmp_path, script, "-W", "error") == ["script is done", "rank is done", "rank is done"]


def test_a_script_that_ends_leaves_daemons_no_time(tmp_path: Path) -> None:
    script = """
        import signal
        import nbproc

        def work(i):
            signal.pause()

        nbproc.spawn(work, nprocs=2, daemon=True, join=False)
        print("script is done", flush=True)
    """
    assert plain.lines(tmp_path, script, "-X", "dev") == ["script is done"]


def test_what_a_rank_does_at_its_end_changes_nothing(tmp_path: Path) -> None:
    script = """
        import atexit, threading, time
        import nbproc

        def hook():
            print("hook", flush=True)
            raise OSError("in a hook")

        def work(i):
            atexit.register(hook)
            threading.Thread(target=lambda: (time.sleep(0.2), print("thread", flush=True))).start()
            return "value"

        def caller_hook():
            print("the caller's", flush=True)

        atexit.register(caller_hook)
        for start_method in ("forkserver", "spawn", "fork"):
            context = nbproc.start_processes("t", work, {0: (0,)}, start_method=start_method)
            result = context.wait()
            assert result.return_values == {0: "value"} and not result.failures
            context.pids()  # waits until they are gone
    """
    done = plain.run(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["thread", "hook"] * 3 + ["the caller's"]
    assert done.stderr.count("OSError: in a hook") == 3


@pytest.mark.parametrize("portable", ["", "1"], ids=["linux", "portable"])
@method
def test_u24_a_script_that_is_killed_leaves_nothing(tmp_path: Path, start_method: str, portable: str) -> None:
    script = f"""
        import os, signal, subprocess, sys
        import nbproc

        def work(i):
            subprocess.Popen(["sleep", "600"])
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN)
            print(f"rank {{i}}", flush=True)
            if i == 0:
                3 ** (10 ** 9)  # stuck in C
            while True:
                signal.pause()

        nbproc.spawn(work, nprocs=2, start_method="{start_method}")
    """
    with plain.started(tmp_path, script, env={"NBPROC_PORTABLE": portable}) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["rank 0\n", "rank 1\n"]
        everything = plain.descendants(process.pid)
        assert sum("sleep" in one.name() for one in everything) == 2
        began = time.monotonic()
        process.send_signal(signal.SIGKILL)
        jobs.vanish(one.pid for one in everything)  # and not psutil's wait: the first process may be slow to reap them
        assert time.monotonic() - began < 2
        assert not [one for one in everything if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_an_interrupt_of_a_script_ends_it_as_it_should(tmp_path: Path) -> None:
    script = """
        import signal
        import nbproc

        def work(i):
            try:
                print("works", flush=True)
                signal.pause()
            finally:
                print("cleaned up", flush=True)

        try:
            nbproc.spawn(work, nprocs=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    with plain.started(tmp_path, script) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["works\n"] * 2
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.read().split("\n") == ["cleaned up", "cleaned up", "interrupted", ""]
        assert process.wait(20) == 0
