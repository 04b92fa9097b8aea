"""The tail on files that real processes write: many ranks, few descriptors, bounded memory, no lag."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nbproc.logs.history import History
from nbproc.logs.lines import LineEvent, Stream
from nbproc.logs.sinks import ConsoleTee, prefixes
from nbproc.logs.specs import RunFiles, open_log
from nbproc.logs.tail import Sink, Source, Tail

OUT, ERR = Stream.OUT, Stream.ERR


def run(path: Path, *command: str) -> subprocess.Popen[bytes]:
    descriptor = open_log(path, private=True)
    try:
        return subprocess.Popen(command, stdout=descriptor, stderr=descriptor)
    finally:
        os.close(descriptor)


def test_python_c_and_grandchildren_write_into_one_log(tmp_path: Path) -> None:
    code = (
        "import os, subprocess\n"
        "print('from python', flush=True)\n"
        "os.write(1, b'from C\\n')\n"
        "subprocess.run(['sh', '-c', 'echo from a shell; printf half'])\n"
    )
    history = History(1)
    arrived = threading.Event()

    def sink(events: Sequence[LineEvent]) -> None:
        history(events)
        if any(event.text == "half" for event in events):
            arrived.set()

    tail = Tail("run", [Source(0, OUT, tmp_path / "log")], [sink], lossless=True)
    tail.start()
    with run(tmp_path / "log", sys.executable, "-c", code + "import sys; sys.stdin.read()"):
        pass
    assert arrived.wait(20)
    assert tail.finish(20)
    assert [event.text for event in history.rows(0)] == ["from python", "from C", "from a shell", "half"]


def test_lines_are_seen_while_the_process_runs(tmp_path: Path) -> None:
    seen, lag = threading.Event(), []

    def sink(events: Sequence[LineEvent]) -> None:
        for event in events:
            if event.complete:
                lag.append(time.time() - float(event.text))
                seen.set()

    tail = Tail("run", [Source(0, OUT, tmp_path / "log")], [sink], lossless=True)
    tail.start()
    code = "import time, sys; print(time.time(), flush=True); sys.stdin.read()"
    descriptor = open_log(tmp_path / "log", private=True)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=descriptor) as process:
        os.close(descriptor)
        assert seen.wait(20), "while it still runs"
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
    assert tail.finish(20)
    assert len(lag) == 1


def test_256_ranks_with_few_descriptors(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.make(256, mode=0o700)
    for rank in range(256):
        files.stdout(rank).write_text(f"hello from {rank}\n")
    most = 0

    def sink(events: Sequence[LineEvent]) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    history = History(256)
    sources = [Source(rank, stream, path) for rank in range(256) for stream, path in (
        (OUT, files.stdout(rank)), (ERR, files.stderr(rank)), (Stream.DISPLAY, files.display(rank)))]  # fmt: skip
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before + 40), limits[1]))
    try:
        tail = Tail("run", sources, [history, sink], lossless=True)
        tail.start()
        for rank in range(256):
            with files.stderr(rank).open("a") as file:
                file.write(f"rank {rank} says more\n")
        assert tail.finish(60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for rank in range(256):
        assert [event.text for event in history.rows(rank)] == [f"hello from {rank}", f"rank {rank} says more"]
    assert most <= before + 4


WRITER = """
import sys
rank = sys.argv[1]
for n in range(1_000_000):
    sys.stdout.write(f"rank {rank} step {n} loss 0.123456 lr 0.001 and some more words\\n")
"""


def memory() -> int:
    """Return the memory of this process that is in use, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("lossless", [False, True])
def test_a_million_lines_of_each_of_four_ranks_in_little_memory(tmp_path: Path, lossless: bool) -> None:
    files = RunFiles(tmp_path)
    files.make(4)
    history = History(4)
    written, most = 0, memory()
    first = most

    def write(text: str) -> None:
        nonlocal written
        written += text.count("\n")

    def watch(events: Sequence[LineEvent]) -> None:
        nonlocal most
        most = max(most, memory())

    sinks: list[Sink] = [history, watch]
    if lossless:
        sinks.append(ConsoleTee(write, prefixes("t", 4), {(rank, OUT) for rank in range(4)}))
    tail = Tail("run", [Source(rank, OUT, files.stdout(rank)) for rank in range(4)], sinks, lossless=lossless)
    tail.start()
    processes = [run(files.stdout(rank), sys.executable, "-c", WRITER, str(rank)) for rank in range(4)]
    for process in processes:
        assert process.wait() == 0
    assert tail.finish(120)
    for rank in range(4):
        assert history.rows(rank)[-1].text.startswith(f"rank {rank} step 999999 ")
        assert history.rows(rank)[-1].number == 999_999
        assert history.dropped(rank, OUT) == 1_000_000 - len(history.rows(rank))
    assert not lossless or written == 4_000_000
    assert most - first < 150 << 20
