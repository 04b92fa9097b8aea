from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbproc.errors import PayloadError
from nbproc.ranks import memory, parcel, payload, platform, threads


@pytest.fixture(params=["", "1"], ids=["linux", "portable"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NBPROC_PORTABLE", request.param)
    return str(request.param)


def test_what_is_mapped_is_private_and_shared_until_written(way: str) -> None:
    layout = memory.Layout()
    data = bytearray(b"a" * 10_000)
    first, second = layout.add(memoryview(data)), layout.add(b"b" * 5)
    files = layout.write("test")
    one, two = memory.Mapping(files, [first, second]), memory.Mapping(files, [second])
    files.close()
    one.view(second)[0] = ord("x")
    assert bytes(one.view(second)) == b"xbbbb"
    assert bytes(two.view(second)) == b"bbbbb"
    assert bytes(one.view(first)) == data


def test_the_same_memory_lies_there_once() -> None:
    layout = memory.Layout()
    data, fixed = bytearray(1000), b"c" * 1000
    assert layout.add(memoryview(data)) == layout.add(memoryview(data))
    assert layout.add(fixed) == layout.add(fixed)
    assert layout.add(memoryview(data)[:500]) != layout.add(memoryview(data))
    assert layout.add(b"") == (0, 0)
    assert all(position % memory.ALIGNMENT == 0 for position, _ in layout.pieces)


@pytest.mark.parametrize("numpy", [True, False])
def test_parts_of_one_read_only_memory_are_kept_apart(numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if numpy:
        pytest.importorskip("numpy")
    else:
        monkeypatch.delitem(sys.modules, "numpy", raising=False)
    whole = memoryview(bytes(range(200)))
    layout = memory.Layout()
    spans = [layout.add(whole[:100]), layout.add(whole[100:])]
    assert spans[0] != spans[1]
    files = layout.write("test")
    mapping = memory.Mapping(files, spans)
    files.close()
    assert bytes(mapping.view(spans[1])) == bytes(range(100, 200))


def test_more_than_one_write_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_PART", 1000)
    monkeypatch.setattr(memory, "_MOST_FILES", 1)
    data = os.urandom(10_500)
    layout = memory.Layout()
    span = layout.add(data)
    files = layout.write("test")
    assert len(files.descriptors) == 1
    assert bytes(memory.Mapping(files, [span]).view(span)) == data
    files.close()


PAGE = memory._PAGE
SIZES = [1, 100, PAGE - 64, PAGE, PAGE + 1, 3 * PAGE, 10 * PAGE + 17]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=8), st.integers(1, 5), st.data())
def test_what_lies_in_several_files_is_one_memory(sizes: list[int], cores: int, data: st.DataObject) -> None:
    some = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    contents = [os.urandom(size) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_PART", 2 * PAGE)
        patch.setattr(threads, "available", lambda: cores)
        layout = memory.Layout()
        spans = [layout.add(one) for one in contents]
        files = layout.write("test")
    assert (len(files.descriptors) > 1) == (cores > 1 and layout.size >= 4 * PAGE)
    one, other = (memory.Mapping(files, [spans[i] for i in some]) for _ in range(2))
    files.close()
    for i in some:
        view = one.view(spans[i])
        assert view == contents[i]
        view[-1] ^= 1
        assert other.view(spans[i]) == contents[i]
        assert view[:-1] == contents[i][:-1]


def test_cores_write_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each to a file of its own: the system lets one thread write to a file."""
    monkeypatch.setattr(memory, "_PART", PAGE)
    monkeypatch.setattr(threads, "available", lambda: 3)
    together = threading.Barrier(3, timeout=30)
    write, seen = os.pwrite, set()

    def pwrite(descriptor: int, view: memoryview, position: int) -> int:
        seen.add(descriptor)
        if position == 0:
            together.wait()
        return write(descriptor, view, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    layout = memory.Layout()
    layout.add(bytes(30 * PAGE))
    files = layout.write("test")
    files.close()
    assert seen == set(files.descriptors)
    assert len(seen) == 3


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="is for Linux")
def test_memory_is_given_back_with_its_last_view() -> None:
    layout = memory.Layout()
    span = layout.add(b"x" * 1_000_000)
    files = layout.write("given-back")
    mapping = memory.Mapping(files, [span])
    files.close()
    view = mapping.view(span)[5:]
    del mapping
    gc.collect()
    assert "given-back" in Path("/proc/self/maps").read_text()
    assert view[0] == ord("x")
    del view
    gc.collect()
    assert "given-back" not in Path("/proc/self/maps").read_text()


def test_a_file_that_cannot_be_mapped_is_an_error() -> None:
    read, write = os.pipe()
    with pytest.raises(OSError, match=r"."):
        memory.Mapping(memory.Files((read,), 1 << 20), [(0, 10)])
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("cores", [1, 4])
def test_not_enough_memory_is_a_payload_error(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: object, position: int) -> int:
        raise OSError(28, "No space left on device")

    packed = payload.Packer().pack({"x": b"x" * 1_000_000})
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(memory, "_PART", PAGE)
    monkeypatch.setattr(threads, "available", lambda: cores)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(PayloadError, match=r"1\.0 MB for the ranks do not fit .*No space left"):
        payload.store([packed])
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(0, 40)))
def test_pieces_read_like_one_file(pieces: list[bytes], sizes: list[int]) -> None:
    whole, at = b"".join(pieces), 0
    reader = parcel.PieceReader([memoryview(piece) for piece in pieces])
    for number, size in enumerate(sizes):
        if number % 2:
            got = reader.read(size)
        else:
            target = bytearray(size)
            got = bytes(target[: reader.readinto(target)])
        assert got == whole[at : at + size]
        at += len(got)
    assert reader.read() == whole[at:]
    assert reader.read(5) == b""


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 63, 64, 1000, 40_000, 70_000])), st.integers(1, 3))
def test_every_size_arrives(sizes: list[int], copies: int) -> None:
    value = [bytes([i % 256]) * size for i, size in enumerate(sizes)]
    left, right = socket.socketpair()
    with left, right:
        packed = payload.Packer().pack({"value": value})
        with payload.store([packed] * copies) as shipment:
            assert len(shipment) == copies
            for one in shipment.parcels:
                payload.send(left, one)
                assert payload.receive(right).load() == {"value": value}


def test_a_long_table_lies_in_the_file() -> None:
    buffers = [memoryview(bytearray(b"%d" % i)) for i in range(10_000)]
    (one,) = parcel.lay_out([parcel.Contents("note", [b"head"], buffers)], "test")
    assert len(one.message) < parcel.INLINE
    left, right = socket.socketpair()
    with left, right:
        parcel.send(left, one)
        opened = parcel.receive(right)
    assert one.files is not None
    one.files.close()
    assert opened.note == "note"
    assert opened.pickle.read() == b"head"
    assert [bytes(view) for view in opened.buffers] == [bytes(view) for view in buffers]


def test_a_sender_that_is_gone() -> None:
    packed = payload.Packer().pack({"value": b"x" * 1000})
    (one,) = payload.store([packed]).parcels
    for cut in (0, 10, len(one.message) - 1):
        left, right = socket.socketpair()
        with right:
            with left:
                left.sendall(one.message[:cut])
            with pytest.raises(EOFError):
                payload.receive(right)


def test_something_else_arrives() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"GET / HTTP/1.1\r\n" * 10)
        with pytest.raises(EOFError, match="not a message"):
            payload.receive(right)


def test_the_switch(way: str, tmp_path: Path) -> None:
    assert platform.use_linux_features() is (way == "")
    if way:
        assert platform.pidfd_open(os.getpid()) is None
        assert platform.proc_dir() is None
    else:
        descriptor = platform.pidfd_open(os.getpid())
        assert descriptor is not None
        os.close(descriptor)
        assert platform.proc_dir() == Path("/proc/self")
        assert platform.proc_dir(2**22 + 1) is None
        with pytest.raises(ProcessLookupError):
            platform.pidfd_open(2**22 + 1)
    descriptor = platform.memfd("x")
    assert not os.get_inheritable(descriptor)
    os.write(descriptor, b"x")
    os.close(descriptor)
