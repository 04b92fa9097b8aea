"""D4: a rank has the caller's state as it is at the launch, whatever made it and whenever."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import plain
import pytest

METHODS = ("forkserver", "spawn", "fork")

LOOK = """
import faulthandler, json, locale, multiprocessing, os, resource, signal, sys, time
import nbproc

def look(i):
    import tempfile, threading
    return {
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "umask": os.umask(0o77),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "affinity": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "zone": time.strftime("%z", time.localtime(0)),
        "locale": locale.setlocale(locale.LC_ALL),
        "authkey": bytes(multiprocessing.current_process().authkey).hex(),
        "name": multiprocessing.current_process().name,
        "main thread": threading.current_thread() is threading.main_thread(),
        "daemonic threads": threading.Thread().daemon,
        "start method": multiprocessing.get_start_method(allow_none=True),
        "faulthandler": faulthandler.is_enabled(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "environment": {k: os.environ.get(k) for k in ("ADDED", "REMOVED", "LATER", "RANK")},
        "child's": os.popen("echo $ADDED/$REMOVED/$LATER/$RANK").read().strip(),
        "tmp": tempfile.gettempdir(),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "session": os.getsid(0) == os.getpid(),
    }

def looks(start_method, **more):
    context = nbproc.start_processes("looker", look, {0: (0,), 1: (1,)}, start_method=start_method, **more)
    return context.wait()[1]
"""


@pytest.mark.parametrize("start_method", METHODS)
def test_settings_are_those_of_the_caller_now(start_method: str, tmp_path: Path) -> None:
    script = LOOK + inspect.cleandoc(
        f"""
        os.environ["REMOVED"] = "1"
        first = looks("{start_method}")
        os.mkdir("below")
        os.chdir("below")
        sys.argv[:] = ["other.py", "--option"]
        os.umask(0o27)
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        os.nice(3)
        os.environ.update(ADDED="1", TZ="UTC-5", TMPDIR=os.getcwd())
        time.tzset()
        del os.environ["REMOVED"]
        locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
        multiprocessing.current_process().authkey = b"key"
        multiprocessing.set_start_method("spawn")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        second = looks("{start_method}", envs={{0: {{}}, 1: {{"LATER": 5}}}})
        os.chdir("..")
        os.rmdir("below")
        print(json.dumps([first, second, os.getcwd()]))
        """
    )
    first, second, here = json.loads(plain.lines(tmp_path, script)[-1])
    assert first["cwd"] == here
    assert first["start method"] == "fork"
    assert first["environment"] == {"ADDED": None, "REMOVED": "1", "LATER": None, "RANK": "1"}
    assert second["environment"] == {"ADDED": "1", "REMOVED": None, "LATER": "5", "RANK": "1"}
    assert second["child's"] == "1//5/1"
    assert second["cwd"] == second["tmp"] == here + "/below"
    assert second["argv"] == ["other.py", "--option"]
    assert second["umask"] == 0o27
    assert second["limit"][0] == 500
    assert second["core"] == [0, 0]
    assert len(second["affinity"]) == 1
    assert second["nice"] == first["nice"] + 3
    assert second["zone"] == "+0500"
    assert "LC_NUMERIC=C.UTF-8" in second["locale"] or second["locale"] == "C.UTF-8"
    assert second["authkey"] == b"key".hex()
    assert second["start method"] == "spawn"
    for seen in (first, second):
        assert seen["name"] == "looker-1"
        assert seen["main thread"]
        assert not seen["daemonic threads"]
        assert seen["faulthandler"]
        assert seen["stdin"] == "/dev/null"
        assert seen["mask"] == []
        assert seen["session"]


@pytest.mark.parametrize("start_method", METHODS)
def test_a_rank_holds_no_descriptors_of_other_ranks_and_runs(start_method: str, tmp_path: Path) -> None:
    script = f"""
        import os, time
        import nbproc

        def hold(i):
            while not os.path.exists("go"):
                time.sleep(0.002)

        def targets(i):
            found = []
            for fd in os.listdir("/proc/self/fd"):
                try:
                    found.append(os.readlink("/proc/self/fd/" + fd))
                except OSError:
                    pass
            return found

        others = [
            nbproc.start_processes("hold", hold, {{0: (0,), 1: (1,)}}, start_method=one) for one in {METHODS}
        ]
        ranks = [rank.process for context in others for rank in context._ranks]
        forbidden = {{
            os.readlink(f"/proc/self/fd/{{fd}}") for rank in ranks for fd in (rank.fileno(), rank.job.fileno())
        }}
        forbidden.discard("anon_inode:[pidfd]")  # all process descriptors have this one name
        assert len(forbidden) == 6 + 2, forbidden
        values = nbproc.start_processes("t", targets, {{i: (i,) for i in range(2)}}, start_method="{start_method}").wait()
        open("go", "w").close()
        for value in values:
            assert not forbidden & set(value), forbidden & set(value)
        for other in others:
            assert not other.wait().failures
        print("ok")
        """
    assert plain.lines(tmp_path, script) == ["ok"]


@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_random_numbers_differ_between_ranks_and_runs(start_method: str, tmp_path: Path) -> None:
    script = f"""
        import json
        import nbproc
        import numpy, random, torch

        def draw(i):
            import numpy, random, torch
            return random.random(), float(numpy.random.rand()), float(torch.rand(1)), torch.initial_seed()

        numpy.random.seed(1), random.seed(1), torch.manual_seed(1)
        before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        drawn = []
        for run in range(2):
            context = nbproc.start_processes("t", draw, {{0: (0,), 1: (1,)}}, start_method="{start_method}")
            drawn += context.wait().return_values.values()
        assert before == (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        print(json.dumps([len(set(column)) for column in zip(*drawn)]))
    """
    assert plain.lines(tmp_path, script) == ["[4, 4, 4, 4]"]


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_thread_counts_take_effect(start_method: str, tmp_path: Path) -> None:
    script = f"""
        import json, os
        import nbproc

        def counts(i):
            import numpy, torch, threadpoolctl
            numpy.ones((2, 2)) @ numpy.ones((2, 2))
            blas = [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
            return torch.get_num_threads(), blas, os.environ["OMP_NUM_THREADS"], "KMP_DUPLICATE_LIB_OK" in os.environ

        def of(nprocs, **variables):
            envs = {{rank: variables for rank in range(nprocs)}}
            context = nbproc.start_processes(
                "t", counts, {{rank: (rank,) for rank in range(nprocs)}}, envs, start_method="{start_method}"
            )
            return context.wait()[0]

        print(json.dumps([of(2), of(2, OMP_NUM_THREADS=2), of(1, OMP_NUM_THREADS=2, OPENBLAS_NUM_THREADS=1)]))
    """
    several, two, blas = json.loads(plain.lines(tmp_path, script)[-1])
    assert several[:3] == [1, [1], "1"]
    assert two[:3] == [2, [2], "2"]
    assert blas[:3] == [2, [1], "2"]


def test_variables_that_are_read_when_torch_is_loaded_take_effect(tmp_path: Path) -> None:
    """For these a rank gets a server that was started with them; others are set in the rank."""
    script = """
        import json, os
        import nbproc

        def look(i):
            import torch.distributed
            return torch.distributed.get_debug_level().name, hash("a"), os.getppid(), os.environ.get("CUDA_VISIBLE_DEVICES")

        def of(**variables):
            return nbproc.start_processes("t", look, {0: (0,)}, {0: variables}).wait()[0]

        seen = [of(), of(TORCH_DISTRIBUTED_DEBUG="DETAIL"), of(), of(CUDA_VISIBLE_DEVICES="7")]
        os.environ["PYTHONHASHSEED"] = "5"
        seen += [of(), of()]
        print(json.dumps(seen))
    """
    seen = json.loads(plain.lines(tmp_path, script)[-1])
    levels, hashes, servers, devices = zip(*seen, strict=True)
    assert levels == ("OFF", "DETAIL", "OFF", "OFF", "OFF", "OFF")
    assert len({servers[0], servers[1], servers[4]}) == 3
    assert servers[0] == servers[2] == servers[3]
    assert servers[4] == servers[5]
    assert hashes[4] == hashes[5] != hashes[0]
    assert devices[3] == "7"


@pytest.mark.parametrize("start_method", METHODS)
def test_options_of_the_interpreter_hold_in_ranks(start_method: str, tmp_path: Path) -> None:
    script = f"""
        import sys, json
        import nbproc

        def look(i):
            import sys
            return sys.flags.optimize, sys.warnoptions, sys.flags.dont_write_bytecode, sys.flags.utf8_mode

        print(json.dumps(nbproc.start_processes("t", look, {{0: (0,)}}, start_method="{start_method}").wait()[0]))
    """
    options = ["-O", "-B", "-W", "error::FutureWarning", "-X", "utf8=1"]
    assert json.loads(plain.lines(tmp_path, script, *options)[-1]) == [1, ["error::FutureWarning"], 1, 1]


@pytest.mark.parametrize("start_method", METHODS)
def test_default_timeouts_of_sockets_and_odd_streams_do_no_harm(start_method: str, tmp_path: Path) -> None:
    script = f"""
        import contextlib, io, os, signal, socket, sys
        import nbproc

        socket.setdefaulttimeout(0.01)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])

        def work(i, folder):
            import time
            time.sleep(0.05)
            print("out")
            return bytes(3_000_000)

        with contextlib.redirect_stdout(io.StringIO()) as caught:
            sys.__stdout__.flush()
            nbproc.start_processes("t", work, {{0: (0, ".")}}, start_method="{start_method}").wait()[0]
        assert caught.getvalue() == ""
        os.close(0)
        result = nbproc.start_processes("t", work, {{0: (0, ".")}}, start_method="{start_method}").wait()
        assert len(result[0]) == 3_000_000
        context = nbproc.start_processes("t", lambda i: signal.pause(), {{0: (0,)}}, start_method="{start_method}")
        context.stop()
        context.wait()
        sys.stderr.write(context.snapshot().ranks[0].words)
    """
    done = plain.run(tmp_path, script)
    assert done.stdout == "out\nout\n", done.stderr
    assert done.stderr.startswith("stopped"), done.stderr


@pytest.mark.parametrize("start_method", METHODS)
def test_lines_of_c_are_written_at_once(start_method: str, tmp_path: Path) -> None:
    """Also in a rank that was made in a rank which had it otherwise."""
    script = f"""
        import json
        import nbproc

        def size(i):
            import ctypes, os
            ctypes.CDLL(None).puts(b"from C")
            return os.fstat(1).st_size

        def inside(i):
            import ctypes
            library = ctypes.CDLL(None)
            library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, 0, ctypes.c_size_t(4096))
            return of(size, "{start_method}")

        def of(function, method):
            context = nbproc.start_processes(
                "t", function, {{0: (0,)}}, start_method=method, redirects=nbproc.Std.OUT
            )
            return context.wait()[0]

        print(json.dumps([of(size, "{start_method}"), of(inside, "forkserver")]))
    """
    assert json.loads(plain.lines(tmp_path, script)[-1]) == [7, 7]


@pytest.mark.parametrize("known", ["yes", "no"], ids=["threadpoolctl", "without"])
def test_thread_counts_of_a_server_without_threadpoolctl(known: str, tmp_path: Path) -> None:
    script = f"""
        import json, sys
        import nbproc
        from nbproc.ranks import threads

        def counts(i):
            import numpy, threadpoolctl
            def count():
                return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
            if "{known}" == "no":
                sys.modules["threadpoolctl"] = None
            threads.look()
            seen = [count()]
            for wanted in ("2", "1", "2"):
                threads.set_counts({{"OMP_NUM_THREADS": wanted}}, forked=False)
                seen.append(count())
                threads.look()
            return seen

        print(json.dumps(nbproc.start_processes("t", counts, {{0: (0,), 1: (1,)}}).wait()[0]))
    """
    assert json.loads(plain.lines(tmp_path, script)[-1]) == [[1], [2], [1], [2]]
