from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Iterator
from multiprocessing import shared_memory
from typing import Any

import pytest
from payload_rank import Notebook, Rank

from nbproc.errors import PayloadError, ResultError
from nbproc.ranks import payload, tracker


@pytest.fixture(scope="module", autouse=True)
def resource_tracker() -> None:
    """Start the standard library's resource tracker: it belongs to the whole process, and stays."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()


@pytest.fixture
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    rank.end()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_queues_and_locks(rank: Rank, method: str) -> None:
    context = multiprocessing.get_context(method)
    queue, simple, lock, event = context.Queue(), context.SimpleQueue(), context.Lock(), context.Event()
    value, array = context.Value("i", 5), context.Array("d", [1.0, 2.0])

    def use() -> tuple[Any, ...]:
        got = queue.get(timeout=30)
        with lock:
            value.value += 1
            array[0] = 9
        simple.put({"got": got})
        event.set()
        return value.value, list(array)

    queue.put([1, 2])
    assert rank.call(use) == (6, [9.0, 2.0])
    assert simple.get() == {"got": [1, 2]}
    assert event.wait(30)
    assert value.value == 6
    assert array[0] == 9
    queue.close()
    queue.join_thread()
    simple.close()


@pytest.mark.parametrize(
    "make", ["Queue", "SimpleQueue", "JoinableQueue", "Lock", "RLock", "Event", "Condition", "Semaphore", "Value"]
)
def test_those_of_the_fork_context_are_refused(make: str) -> None:
    context = multiprocessing.get_context("fork")
    thing = context.Value("i") if make == "Value" else getattr(context, make)()

    def use() -> Any:
        return thing

    expected = r"`thing`, used by `.*use`: a .* of the fork context .*get_context\(\"spawn\"\)"
    with pytest.raises(PayloadError, match=expected):
        payload.Packer().pack({"fn": use})
    if hasattr(thing, "close"):
        thing.close()


def test_a_pipe_whose_end_is_closed_before_it_was_sent(rank: Rank) -> None:
    ours, theirs = multiprocessing.Pipe()
    packed = payload.Packer().pack({"fn": lambda pipe: pipe.send(pipe.recv() + 1), "args": (theirs,)})
    theirs.close()
    ours.send(41)
    assert rank.result(packed).value() is None
    assert ours.recv() == 42
    with pytest.raises(EOFError):
        ours.recv()
    ours.close()


def test_sockets(rank: Rank) -> None:
    left, right = socket.socketpair()
    with left, right:
        rank.call(lambda one: one.sendall(b"hello"), right)
        assert left.recv(5) == b"hello"


def test_a_socket_comes_back(rank: Rank) -> None:
    def make() -> Any:
        import socket

        left, right = socket.socketpair()
        left.sendall(b"from the rank")
        return right

    with rank.call(make) as received:
        assert received.recv(20) == b"from the rank"


def test_a_lock_that_ends_with_its_rank_is_a_result_error(rank: Rank) -> None:
    def make() -> Any:
        import multiprocessing

        return multiprocessing.get_context("spawn").Lock()

    result = rank.result(payload.Packer().pack({"fn": make, "args": ()}))
    rank.end()
    with pytest.raises(ResultError, match=r"multiprocessing\.synchronize\.Lock"):
        result.value()
    with pytest.raises(ResultError):
        result.value()


def test_shared_memory_is_still_there_when_a_rank_that_used_it_has_ended(rank: Rank) -> None:
    block = shared_memory.SharedMemory(create=True, size=100)
    try:
        assert tracker.current() is not None

        def write(name: str) -> None:
            from multiprocessing import shared_memory

            there = shared_memory.SharedMemory(name)
            there.buf[0] = 7
            there.close()

        rank.call(write, block.name)
        rank.end()
        assert block.buf[0] == 7
        again = shared_memory.SharedMemory(block.name)
        again.close()
    finally:
        block.close()
        block.unlink()


def test_many_descriptors(rank: Rank) -> None:
    pairs = [os.pipe() for _ in range(300)]
    from multiprocessing.connection import Connection

    readers = [Connection(read, writable=False) for read, _ in pairs]
    writers = [Connection(write, readable=False) for _, write in pairs]
    rank.call(lambda writers: [writer.send(i) for i, writer in enumerate(writers)], writers)
    assert [reader.recv() for reader in readers] == list(range(300))
    for one in (*readers, *writers):
        one.close()


def test_nothing_is_left_open(rank: Rank) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        packer = payload.Packer()
        payloads = packer.pack_each({"fn": len, "data": b"x" * 100_000}, [{"args": (theirs,)}, {"args": (ours,)}])
        assert len(payloads[1].descriptors) == 1
        payload.store(payloads).close()
        with pytest.raises(PayloadError):
            packer.pack({"args": (ours, threading.Lock())})
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_streams_of_the_caller_are_those_of_the_rank(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "__main__", notebook.module)
    notebook.run("import sys\nout = sys.stdout\ndef same():\n    return out is sys.stdout\n")
    assert rank.call(notebook["same"])
