"""Launch many runs, end one in three of them in a random way at a random moment, and count what is left.

    python tests/soak.py [RUNS] [SEED]

Prints what was done and what there was before and after; exits with 1 if anything was left or a launch failed that
should not have. The counts before are taken after some runs, when what all runs use is there.
"""

from __future__ import annotations

import collections
import gc
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import states

import nbproc
from nbproc.plan import Plan, flat_logs, make_plan
from nbproc.ranks import client, standby, warden
from nbproc.states import RunState

WARM = 25
RANKS = 2
MEMORY = 32 << 20
"""Bytes by which the process may be larger after all runs."""
SLOWEST = 20.0
"""Seconds that no run may take, killed or not."""


# ---------------------------------------------------------------- what ranks do


def nothing() -> int:
    return int(os.environ["RANK"])


def talk() -> int:
    for number in range(200):
        print("line", number)
    return int(os.environ["RANK"])


def agree() -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    return int(os.environ["RANK"])


def have_children() -> int:
    import subprocess

    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    time.sleep(0.02)
    return int(os.environ["RANK"])


def load() -> int:
    from torch.utils.data import DataLoader

    for _ in DataLoader(range(8), num_workers=1):  # type: ignore[arg-type]  # it has a length and items
        pass
    return int(os.environ["RANK"])


def rest() -> int:
    time.sleep(0.05)
    return int(os.environ["RANK"])


JOBS: dict[Callable[[], int], int] = {nothing: 5, talk: 4, rest: 4, have_children: 3, agree: 2, load: 1}

# ---------------------------------------------------------------- ways to end a run


def interrupt(context: nbproc.PContext) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def stop(context: nbproc.PContext) -> None:
    context.stop()


def kill(context: nbproc.PContext) -> None:
    context.kill()


def close(context: nbproc.PContext) -> None:
    context.close(timeout=1)


def kill_a_rank(context: nbproc.PContext) -> None:
    context.send_signal(random.randrange(RANKS), signal.SIGKILL)


def terminate_a_rank(context: nbproc.PContext) -> None:
    context.send_signal(random.randrange(RANKS), signal.SIGTERM)


def stop_a_stopped_rank(context: nbproc.PContext) -> None:
    context.send_signal(random.randrange(RANKS), signal.SIGSTOP)
    context.stop()


def kill_the_server(context: nbproc.PContext) -> None:
    """Kill it, and wait for its death: it may come after this run, and would be the next one's then."""
    pid = client.current().pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        states.until(lambda: not states.living([pid]), "the server is gone")


def kill_the_guardian(context: nbproc.PContext) -> None:
    pid = warden.current().pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


WAYS: dict[Callable[[nbproc.PContext], None], int] = {
    interrupt: 6,
    stop: 4,
    kill: 4,
    close: 3,
    kill_a_rank: 6,
    terminate_a_rank: 3,
    stop_a_stopped_rank: 2,
    kill_the_server: 1,
    kill_the_guardian: 3,
}


# ---------------------------------------------------------------- counting


@dataclass(frozen=True)
class Count:
    """What there is at one moment."""

    processes: int
    threads: int
    descriptors: int
    files: int
    shared: int
    memory: int

    @staticmethod
    def now(seen: set[int]) -> Count:
        """Count, when what is on its way out is gone: the same twice, and as many ranks standing by as should."""
        me = psutil.Process()
        states.until(lambda: standby.count() == RANKS, "ranks stand by again", 60)
        before: tuple[int, ...] = ()
        deadline = time.monotonic() + 30
        while True:
            gc.collect()
            now = len(states.living(_of_us())), threading.active_count(), me.num_fds()
            if now == before or time.monotonic() > deadline:
                break
            before = now
            time.sleep(0.5)
        folder = Path(tempfile.gettempdir())
        files = sum(1 for path in folder.iterdir() if not path.name.startswith("nbproc-"))
        kept = sum(len(list(path.iterdir())) for path in folder.glob("nbproc-*"))
        assert kept <= 20 + 1, f"{kept} run directories"
        shared = len(states.in_shared_memory(list(seen), []))
        return Count(*now, files, shared, me.memory_info().rss)


def _of_us() -> list[int]:
    mark = os.environ["NBPROC_SOAK"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("NBPROC_SOAK") == mark:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


# ---------------------------------------------------------------- the soak


def once(end: Callable[[nbproc.PContext], None] | None, moment: float, seen: set[int]) -> str:
    """Run once, and end it that way after ``moment`` seconds. Returns what became of it."""
    job = random.choices(list(JOBS), list(JOBS.values()))[0]
    begun: list[nbproc.PContext] = []
    killer = None
    if end is not None:

        def kill() -> None:
            time.sleep(moment)
            if begun:
                end(begun[0])

        killer = threading.Thread(target=kill)
    context = nbproc.MultiprocessContext.of(plan(job))
    try:
        try:
            begun.append(context)
            if killer is not None:
                killer.start()
            context.start()
            context.wait()
        finally:
            if killer is not None:
                killer.join()
            context.close()
    except KeyboardInterrupt:
        context.close()
        return "interrupted"
    except nbproc.LaunchError as error:
        return f"not launched: {str(error)[:150]}"
    seen.update(context.pids().values())
    if (state := context.snapshot().state) is RunState.FAILED:
        return context.report().headline
    return state.value


def plan(job: Callable[[], int]) -> Plan:
    logs = flat_logs(log_dir=None, redirects=nbproc.Std.ALL, tee=None, local_ranks_filter=None)
    return make_plan("soak", job, dict.fromkeys(range(RANKS), ()), logs=logs, grace=1)


def main(runs: int, seed: int) -> int:
    random.seed(seed)
    os.environ["NBPROC_SOAK"] = os.urandom(8).hex()
    trouble: list[str] = []
    ends: collections.Counter[str] = collections.Counter()
    ways: collections.Counter[str] = collections.Counter()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        seen: set[int] = set()
        for _ in range(WARM):
            once(None, 0, seen)
        before = Count.now(seen)
        began = time.monotonic()
        for number in range(runs):
            end = random.choices(list(WAYS), list(WAYS.values()))[0] if random.random() < 1 / 3 else None
            moment = random.expovariate(1 / 0.05)
            at = time.monotonic()
            told = once(end, moment, seen)
            seconds.append(time.monotonic() - at)
            ways["none" if end is None else end.__name__] += 1
            ends[told.partition(":")[0] if "rank" in told else told] += 1
            if end is None and told != "succeeded":
                trouble.append(f"run {number}, which nobody ended: {told}")
            if seconds[-1] > SLOWEST:
                trouble.append(f"run {number} ({end and end.__name__}) took {seconds[-1]:.1f} s: {told}")
        took = time.monotonic() - began
        after = Count.now(seen)
        print(f"{runs} runs of {RANKS} ranks in {took:.0f} s, seed {seed}")
        print(f"a run: median {statistics.median(seconds):.3f} s, longest {max(seconds):.1f} s")
        print("ended by:", ", ".join(f"{name} {count}" for name, count in ways.most_common()))
        print("told:", *(f"  {count:5} {told}" for told, count in ends.most_common()), sep="\n")
        print(f"{'':12}{'before':>12}{'after':>12}")
        for name in Count.__dataclass_fields__:
            print(f"{name:12}{getattr(before, name):>12}{getattr(after, name):>12}")
        counted = ("processes", "threads", "descriptors", "files", "shared")
        more = {name: getattr(after, name) - getattr(before, name) for name in counted}
        trouble += [f"{count} {name} more than before" for name, count in more.items() if count > 0]
        trouble += states.living(_of_us()) if more["processes"] > 0 else []
        if after.memory - before.memory > MEMORY:
            trouble.append(f"{(after.memory - before.memory) >> 20} MB more memory than before")
        standby.close()
        client.close(5)
    print(*trouble, sep="\n")
    return 1 if trouble else 0


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*given, *(1000, 0)[len(given) :]))
