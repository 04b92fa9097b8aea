"""What a rank gets and what it gives back: objects to bytes, memory and descriptors, and back.

    notebook                                            rank
    Packer.pack(roots) -> Payload
    store(payloads) -> Shipment;  send(sock, parcel) -> receive(sock) -> Arrival.load()
                                                        pack_result(value) -> Packed
    receive_result(sock, rank) -> Result             <- send(sock, packed.parcel)

Small things travel in the message. Larger ones lie in one unnamed file for all ranks, which each maps for itself.
"""

from __future__ import annotations

import linecache
import pickle
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from nbproc.errors import PayloadError
from nbproc.explain import ranks_words
from nbproc.ranks import blame, identity, tracker
from nbproc.ranks.descriptors import Incoming, Outgoing
from nbproc.ranks.parcel import Contents, Opened, Parcel, lay_out, send
from nbproc.ranks.parcel import receive as receive_parcel
from nbproc.ranks.pickler import Pickler, is_on_disk, restore_builtins

__all__ = ["Arrival", "CellSource", "Packer", "Payload", "Shipment", "receive", "send", "store"]


@dataclass(frozen=True)
class CellSource:
    """The text of a source file that is not on disk; ``cell`` is the execution count of a notebook's cell."""

    filename: str
    text: str
    cell: int | None = None


@dataclass(frozen=True)
class Payload:
    """Objects, packed. Nothing of it was written or sent yet; buffers are still the caller's own memory.

    Attributes: ``sizes`` says how many bytes each root added (what two roots share counts for the first);
    ``dropped`` the soft roots that were left out, each with the reason; ``sources`` the texts of cells by file name.
    Keep the payload until the run has ended: it keeps shared tensors and the notebook's classes alive.
    """

    names: tuple[str, ...]
    chunks: tuple[Any, ...] = field(repr=False)
    buffers: tuple[memoryview, ...] = field(repr=False)
    descriptors: tuple[int, ...]
    sources: Mapping[str, CellSource]
    sizes: Mapping[str, int]
    dropped: Mapping[str, str]
    variables: frozenset[str]
    keep: tuple[Any, ...] = field(repr=False)
    outgoing: Outgoing = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class Shipment:
    """The messages for some payloads, in their order, and the files they share. Close it when all were sent."""

    parcels: tuple[Parcel, ...]
    payloads: tuple[Payload, ...] = field(repr=False)

    def __getitem__(self, index: int) -> Parcel:
        return self.parcels[index]

    def __len__(self) -> int:
        return len(self.parcels)

    def __enter__(self) -> Shipment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors that were held for sending. Once only; receivers keep what they have."""
        for files in {parcel.files for parcel in self.parcels if parcel.files is not None}:
            files.close()
        for payload in self.payloads:
            payload.outgoing.close()


class Packer:
    """Packs what ranks need, by value where they could not import it.

    ``namespace`` holds the notebook's variables (default: those of ``__main__``); functions whose globals it is run
    in the rank's ``__main__``. ``describe`` gives the execution count of the cell that a file name stands for.
    """

    def __init__(
        self,
        namespace: dict[str, Any] | None = None,
        describe: Callable[[str], int | None] | None = None,
    ) -> None:
        self._namespace = identity.main_namespace() if namespace is None else namespace
        self._describe = describe

    def pack(
        self,
        roots: Mapping[str, Any],
        *,
        variables: Mapping[str, Any] | None = None,
        soft: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
    ) -> Payload:
        """Pack some objects, each under a name; what two of them share is shared in the rank.

        ``variables`` are roots that become variables of the rank's ``__main__``. Names in ``soft`` are left out if
        they cannot be packed (`Payload.dropped`). ``labels`` says how a message should call a root.
        Raises PayloadError, a line for each guilty part. Large memory is not copied, so this is fast.
        """
        return self.pack_each(roots, [{}], variables=variables, soft=soft, labels=labels)[0]

    def pack_each(
        self,
        roots: Mapping[str, Any],
        each: Sequence[Mapping[str, Any]],
        *,
        variables: Mapping[str, Any] | None = None,
        soft: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
    ) -> list[Payload]:
        """Pack common roots once, and for each rank some of its own. As `pack` otherwise."""
        common = {**roots, **(variables or {})}
        try:
            return self._pack_each(common, each, frozenset(variables or ()), {})
        except Exception as error:
            found = blame.find(common, self._pickler, labels or {})
            lines = [line for name, line in found.items() if name not in soft]
            said: dict[str, list[int]] = {}
            for rank, own in enumerate(each):
                for line in blame.find(own, self._pickler, labels or {}).values():
                    said.setdefault(line, []).append(rank)
            for line, ranks in said.items():
                lines.append(line if len(ranks) == len(each) else f"{ranks_words(ranks)}: {line}")
            if lines or not found:
                raise PayloadError("\n".join(lines) or f"this cannot be sent to the ranks: {error}") from error
        kept = {name: value for name, value in common.items() if name not in found}
        return self._pack_each(kept, each, frozenset(variables or ()) & set(kept), found)

    def _pickler(self) -> Pickler:
        return Pickler(self._namespace, Outgoing(trial=True))

    def _pack_each(
        self,
        common: Mapping[str, Any],
        each: Sequence[Mapping[str, Any]],
        variables: frozenset[str],
        dropped: Mapping[str, str],
    ) -> list[Payload]:
        outgoing = Outgoing()
        pickler = Pickler(self._namespace, outgoing)
        try:
            common_sizes = pickler.dump_all(common)
            start = (len(pickler.chunks), len(pickler.buffers), len(outgoing.descriptors))
            memo = pickler.memo.copy() if len(each) > 1 else None
            payloads: list[Payload] = []
            for own in each:
                if payloads:
                    pickler.memo = memo
                    del pickler.chunks[start[0] :], pickler.buffers[start[1] :], outgoing.descriptors[start[2] :]
                sizes = {**common_sizes, **pickler.dump_all(own)}
                payloads.append(
                    Payload(
                        names=(*common, *own),
                        chunks=tuple(pickler.chunks),
                        buffers=tuple(pickler.buffers),
                        descriptors=tuple(outgoing.descriptors),
                        sources=self._sources(pickler.filenames),
                        sizes=sizes,
                        dropped=dropped,
                        variables=variables,
                        keep=(common, own, pickler.keep),
                        outgoing=outgoing,
                    )
                )
        except BaseException:
            outgoing.close()
            raise
        finally:
            pickler.clear_memo()  # it is in cycles, and before Python 3.11 their memo hides what it holds from gc
        return payloads

    def _sources(self, filenames: Collection[str]) -> dict[str, CellSource]:
        sources = {}
        for filename in filenames:
            if not is_on_disk(filename) and (lines := linecache.getlines(filename)):
                cell = self._describe(filename) if self._describe else None
                sources[filename] = CellSource(filename, "".join(lines), cell)
        return sources


def store(payloads: Sequence[Payload]) -> Shipment:
    """Copy payloads out of the caller's memory, what several share once, and make their messages.

    The same payload may stand for several ranks. Blocks for about 0.4 s a gigabyte, divided by the number of free cores; call it before
    the caller can change what was packed. Raises PayloadError if there is not enough memory.
    """
    distinct = {id(payload): payload for payload in payloads}
    contents = []
    for payload in distinct.values():
        note = (payload.names, payload.variables, tuple(payload.sources.values()), tracker.current())
        descriptors = payload.descriptors
        if note[3] is not None:
            descriptors = (*descriptors, note[3])
        contents.append(Contents(note, payload.chunks, payload.buffers, descriptors))
    try:
        parcels = dict(zip(distinct, lay_out(contents, "payload"), strict=True))
    except OSError as error:
        size = max(payload.size for payload in payloads)
        raise PayloadError(f"{size / 1e6:,.1f} MB for the ranks do not fit into memory: {error}") from error
    return Shipment(tuple(parcels[id(payload)] for payload in payloads), tuple(distinct.values()))


class Arrival:
    """What a rank received and has not unpickled yet. ``sources`` are the texts of cells by file name."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._names, self._variables, sources, tracked = opened.note
        self.sources: dict[str, CellSource] = {source.filename: source for source in sources}
        if tracked is not None:
            tracker.adopt(opened.descriptors.pop())
        self._incoming = Incoming(opened.descriptors)

    def load(self) -> dict[str, Any]:
        """Unpickle the roots; ``__main__`` gets the variables that came along, tracebacks the texts of cells.

        Once only. Raises whatever unpickling raises, such as ImportError for a module that is not here.
        """
        for source in self.sources.values():
            lines = source.text.splitlines(keepends=True)
            linecache.cache[source.filename] = (len(source.text), None, lines, source.filename)
        try:
            with self._incoming.unpickling():
                roots = dict(self._objects())
        finally:
            self._incoming.close()
        restore_builtins()
        identity.main_namespace().update({name: roots[name] for name in self._variables})
        return roots

    def _objects(self) -> Iterator[tuple[str, Any]]:
        unpickler = pickle.Unpickler(self._opened.pickle, buffers=self._opened.buffers)
        for name in self._names:
            try:
                value = unpickler.load()
            except Exception as error:
                if hasattr(error, "add_note"):  # Python 3.11
                    error.add_note(f"(raised while the rank unpacked `{name}`)")
                raise
            yield name, value


def receive(sock: socket.socket) -> Arrival:
    """Receive what a `Packer` packed. Blocks until it is there; EOFError if the sender is gone. Nothing is unpickled."""
    return Arrival(receive_parcel(sock))
