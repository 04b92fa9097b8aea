"""Benchmarks of calls in a plain process: B2, B5, B6, B7, B10."""

from __future__ import annotations

from typing import Any

from measure import Table, missing, script

_TORCH = """\
import tempfile
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
def torchs(method, function, *rest, n=4, wait=True):
    ctx = start_processes("work", function, {i: (i, *rest) for i in range(n)}, {i: {} for i in range(n)},
                          DefaultLogsSpecs(tempfile.mkdtemp(), Std.ALL), start_method=method)
    return ctx.wait(period=0.01) if wait else ctx
"""
_OURS = """\
import nbproc
def ours(function, *rest, n=4, wait=True):
    ctx = nbproc.start_processes("work", function, {i: (i, *rest) for i in range(n)}, {i: {} for i in range(n)},
                                 redirects=nbproc.Std.ALL)
    return ctx.wait() if wait else ctx
def timed(call, times, pause=0.0):
    taken = []
    for _ in range(times):
        time.sleep(pause)
        began = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - began))
    return taken
"""
_FORKS = """
import os, torch
torch.ones(1)
def forks():
    children = []
    for _ in range(4):
        children.append(os.fork())
        if not children[-1]: os._exit(0)
    for child in children: os.waitpid(child, 0)
tell(timed(forks, A[0], 0.25))
"""
_INTO_MEMORY = """
import os
def into_memory(data):
    fd = os.memfd_create("benchmark")
    left = memoryview(data)
    while left: left = left[os.write(fd, left):]
    return fd
"""


def b2(quick: bool) -> list[Table]:
    """Four ranks that print and return, called from a script, warm."""
    few, many = (1, 2) if quick else (3, 30)
    code = _OURS + "ours(hello); time.sleep(A[2])\nours(hello)\n"
    code += "results = {'nbproc': timed(lambda: ours(hello), A[1], 0.25), 'nbproc, back to back': timed(lambda: ours(hello), A[1])}\n"
    results: dict[str, Any] = script(code + "tell(results)", few, many, 0.1 if quick else 2)
    methods = ("forkserver",) if quick else ("fork", "forkserver", "spawn")
    for method in methods:
        results[f"torch start_processes, {method}"] = script(
            _OURS + _TORCH + "tell(timed(lambda: torchs(A[1], hello), A[0]))", few, method
        )
    if not quick:
        code = "import torch.multiprocessing as mp\ntell(timed(lambda: mp.spawn(hello, nprocs=4), A[0]))"
        results["torch.multiprocessing.spawn"] = script(_OURS + code, few)
    if not missing("torch"):
        results["os.fork and waitpid, four times, in a process with torch"] = script(_OURS + _FORKS, many)
    absent = missing("loky")
    code = "from loky import get_reusable_executor as get\nrun = lambda: list(get(max_workers=4).map(hello, range(4)))\nrun()\n"
    results["loky, processes that run already"] = absent or script(_OURS + code + "tell(timed(run, A[0]))", many)
    return [Table("start_processes(...).wait()", "50x of torch's; loky's", results)]


_VALUES = {
    "tensor": "torch.ones(size // 4)",
    "array": "torch.ones(size // 4).numpy()",
    "DataFrame": "__import__('pandas').DataFrame(torch.ones(size // 4).numpy().reshape(-1, 8))",
}


def b5(quick: bool) -> list[Table]:
    """A large value as an argument of four ranks, each of which reads one number of it."""
    size, times = (20 << 20, 2) if quick else (1 << 30, 5)
    tables = []
    for kind, made in _VALUES.items():
        if kind == "DataFrame" and missing("pandas"):
            continue
        code = f"""
import torch
size = A[0]
value = {made}
args = {{i: (i, value) for i in range(4)}}
def call():
    nbproc.start_processes("work", first, args, {{i: {{}} for i in range(4)}}).wait()
ours(hello); time.sleep(1); ours(hello)
def shared():
    with open("/proc/meminfo") as info:
        return next(int(line.split()[1]) for line in info if line.startswith("Shmem:")) / 1000
before = shared()
most = [before]
import threading
over = threading.Event()
def watch():
    while not over.wait(0.005): most[0] = max(most[0], shared())
threading.Thread(target=watch).start()
results = {{"nbproc": timed(call, A[1], 0.3)}}
over.set()
time.sleep(0.5)
used, left = most[0] - before, shared() - before
raw = bytearray(b"1") * size
def written():
    began = time.perf_counter()
    fd = into_memory(raw)
    took = time.perf_counter() - began
    os.close(fd)
    return 1000 * took
results["os.write of as much into a memory file, one thread"] = [written() for _ in range(A[1])]
del raw
results["value.copy(), one"] = timed((lambda: value.clone()) if hasattr(value, "clone") else (lambda: value.copy()), A[1])
import cloudpickle, pickle
def plain():
    for _ in range(4): pickle.loads(cloudpickle.dumps(value))
results["cloudpickle alone, four times there and back"] = timed(plain, 1 if A[0] > 1e8 else A[1])
if hasattr(value, "clone"):
    import torch.multiprocessing as mp
    ctx = mp.get_context("fork")
    tasks, answers = [ctx.SimpleQueue() for _ in range(4)], ctx.SimpleQueue()
    def serve(mine):
        while (got := mine.get()) is not None: answers.put(first(0, got))
    ranks = [ctx.Process(target=serve, args=(one,)) for one in tasks]
    for one in ranks: one.start()
    def reducers():
        fresh = value.clone()
        began = time.perf_counter()
        for one in tasks: one.put(fresh)
        for _ in tasks: answers.get()
        return 1000 * (time.perf_counter() - began)
    results["torch's reducers, processes that run already"] = [reducers() for _ in range(A[1])]
    for one in tasks: one.put(None)
    for one in ranks: one.join()
tell([results, used, left])
"""
        results, used, left = script(_OURS + _INTO_MEMORY + code, size, times)
        facts = {
            "memory in files, of the whole machine": f"{used:,.0f} MB more at most while it ran, for four ranks; "
            f"{max(left, 0):,.0f} MB more after it",
        }
        goal = "30x of cloudpickle, faster than torch's reducers, under 1.6x of a copy"
        tables.append(Table(f"{size / 1e6:,.0f} MB: {kind}", goal, results, facts=facts))
    return tables


def b6(quick: bool) -> list[Table]:
    """Four ranks that return tensors, together a gigabyte, read in the caller."""
    size, times = (5 << 20, 2) if quick else (256 << 20, 9)
    code = """
def read(values):
    assert [float(values[i][-1]) for i in range(4)] == [0.0, 1.0, 2.0, 3.0]
"""
    code_ours = "import torch; ours(hello); time.sleep(1); ours(hello)\ntell(timed(lambda: read(ours(large, A[0]).return_values), A[1], 0.3))"
    code_torch = "tell(timed(lambda: read(torchs('fork', large, A[0]).return_values), A[1], 0.3))"
    code_raw = """
data = bytearray(b"1") * A[0]
def writers():
    read, write = os.pipe()
    began, left = time.perf_counter(), 4
    for _ in range(4):
        if not os.fork():
            into_memory(data)
            os.write(write, b"w")
            os._exit(0)
    while left: left -= len(os.read(read, left))
    took = time.perf_counter() - began
    for _ in range(4): os.wait()
    os.close(read), os.close(write)
    time.sleep(0.3)
    return 1000 * took
tell([writers() for _ in range(A[1])])
"""
    results = {
        "nbproc": script(_OURS + code + code_ours, size, times),
        "os.write of as much into memory files, four processes": script(_OURS + _INTO_MEMORY + code_raw, size, times),
        "torch start_processes, fork": script(_OURS + _TORCH + code + code_torch, size, times),
    }
    return [Table(f"4 x {size / 1e6:,.0f} MB", "3x of torch's", results)]


_HOLD = """
import os, tempfile, psutil
from measure import memory
def measured(launch, end):
    folder = tempfile.mkdtemp()
    os.mkfifo(folder + "/gate")
    began = time.perf_counter()
    running = launch(folder)
    while len(os.listdir(folder)) < A[0] + 1: time.sleep(0.002)
    started = time.perf_counter() - began
    ranks = [p for p in psutil.Process().children(recursive=True)]
    pss = sum(memory(p.pid) for p in ranks)
    began = time.perf_counter()
    gate = os.open(folder + "/gate", os.O_WRONLY)
    end(running)
    os.close(gate)
    return [1000 * started, pss / A[0], 1000 * (time.perf_counter() - began)]
"""


def b7(quick: bool) -> list[Table]:
    """Many ranks: from the call until the last one runs; memory for each of them, with all helpers; to the end of all."""
    tables = []
    for count in (8,) if quick else (16, 64, 256):
        # until the server has seen to itself, as it has some seconds after a kernel's last run
        ours = _OURS + _HOLD + f"ours(hello, n=1); time.sleep({0 if quick else 8})\n"
        ours += "def end(ctx): ctx.wait(); ctx.pids()\n"
        ours += "tell([measured(lambda folder: ours(hold, folder, n=A[0], wait=False), end) for _ in range(A[1])])"
        theirs = (
            _OURS
            + _TORCH
            + _HOLD
            + (
                "import multiprocessing, torch.multiprocessing as mp\n"
                "multiprocessing.set_forkserver_preload(['torch', 'work'])\n"
                "mp.start_processes(hello, nprocs=1, start_method='forkserver')\n"
                "def launch(folder): return mp.start_processes(hold, (folder,), A[0], join=False, start_method='forkserver')\n"
                "def end(ctx):\n    while not ctx.join(): pass\n"
                "tell([measured(launch, end) for _ in range(A[1])])"
            )
        )
        times = 1 if quick or count == 256 else 3
        mine, other = script(ours, count, times), script(theirs, count, times)
        peer = "torch forkserver, preloaded"
        for number, (what, goal, unit) in enumerate(
            (
                (f"{count} ranks: start", "never slower", "ms"),
                (f"{count} ranks: memory for each (PSS)", "under 45 MB", "MB"),
                (f"{count} ranks: end", "never slower", "ms"),
            )
        ):
            results = {"nbproc": [one[number] for one in mine], peer: [one[number] for one in other]}
            tables.append(Table(what, goal, results, unit))
    return tables


def b10(quick: bool) -> list[Table]:
    """A rank raises while the three others would sleep for a minute: until the call has returned and all are gone."""
    times = 1 if quick else 2
    results: dict[str, Any] = {
        "nbproc": script(
            _OURS + "ours(hello); time.sleep(1)\ntell(timed(lambda: ours(fail), A[0], 0.3))", 2 if quick else 15
        )
    }
    for method in ("fork",) if quick else ("fork", "forkserver", "spawn"):
        code = "def call():\n    ctx = torchs(A[1], fail, wait=False)\n    ctx.wait()\n    ctx.close()\n"
        results[f"torch start_processes, {method}"] = script(
            _OURS + _TORCH + code + "tell(timed(call, A[0]))", times, method
        )
    return [Table("A rank fails", "5x of torch's", results)]
