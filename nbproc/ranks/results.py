"""Return values: packed in the rank, unpickled in the notebook when somebody reads them."""

from __future__ import annotations

import pickle
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from nbproc.errors import ResultError
from nbproc.ranks import blame, identity
from nbproc.ranks.descriptors import Incoming, Outgoing
from nbproc.ranks.parcel import Contents, Opened, Parcel, lay_out
from nbproc.ranks.parcel import receive as receive_parcel
from nbproc.ranks.parcel import send as send_parcel
from nbproc.ranks.pickler import Pickler


@dataclass(frozen=True)
class Packed:
    """A packed return value. Close it when it was sent; ``keep`` must live until then."""

    parcel: Parcel
    outgoing: Outgoing
    keep: tuple[Any, ...]

    def __enter__(self) -> Packed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors that were held for sending."""
        if self.parcel.files is not None:
            self.parcel.files.close()
        self.outgoing.close()


def pack_result(value: Any) -> Packed:
    """Pack a return value, in the rank. Never raises an Exception: one that cannot be packed is packed as the reason."""
    outgoing = Outgoing()
    kind = _type_name(value)
    try:
        pickler = Pickler(identity.main_namespace(), outgoing, returning=True)
        pickler.dump(value)
        contents = Contents((kind, ""), tuple(pickler.chunks), tuple(pickler.buffers), outgoing.descriptors)
        return Packed(lay_out([contents], "result")[0], outgoing, (value, *pickler.keep))
    except Exception as error:
        outgoing.close()
        found = blame.find({"value": value}, _returning, {}, where="the notebook")
        why = found.get("value") or f"{type(error).__name__}: {error}"
        return Packed(lay_out([Contents((kind, why))], "result")[0], Outgoing(), ())


def send(sock: socket.socket, packed: Packed) -> None:
    """Send a packed return value and let go of it. Does not block for small ones; OSError if nobody receives it."""
    with packed:
        send_parcel(sock, packed.parcel)


def _returning() -> Pickler:
    return Pickler(identity.main_namespace(), Outgoing(trial=True), returning=True)


class Result:
    """A rank's return value, in the notebook. ``size`` is in bytes; ``type_name`` is known without unpickling."""

    def __init__(self, rank: int, opened: Opened | None = None) -> None:
        self.rank = rank
        self.type_name: str = "NoneType"
        self._why: str = ""
        if opened is not None:
            self.type_name, self._why = opened.note
        self.size = 0 if opened is None else opened.size
        self._opened = opened if not self._why else None
        self._incoming = Incoming([] if opened is None else opened.descriptors)
        self._value: Any = None
        self._lock = threading.Lock()

    @property
    def trouble(self) -> str:
        """Why the value cannot be read, as far as that is known without unpickling it; "" if it may be."""
        return str(self._error()) if self._why else ""

    def value(self) -> Any:
        """Return the value, unpickled at the first call. Raises ResultError, each time, if that is not possible."""
        with self._lock:
            if self._opened is not None:
                opened, self._opened = self._opened, None
                try:
                    with self._incoming.unpickling():
                        self._value = pickle.Unpickler(opened.pickle, buffers=opened.buffers).load()
                except Exception as error:
                    self._why = f"it does not unpickle here: {type(error).__name__}: {error}"
                    raise self._error() from error
                finally:
                    self._incoming.close()
            if self._why:
                raise self._error()
            return self._value

    def _error(self) -> ResultError:
        message = f"the return value of rank {self.rank}, a {self.type_name}, cannot be read: {self._why}"
        return ResultError(message, self.rank, self.type_name)

    def close(self) -> None:
        """Let go of what was not read."""
        with self._lock:
            self._incoming.close()

    def __del__(self) -> None:
        self._incoming.close()


def receive_result(sock: socket.socket, rank: int) -> Result:
    """Receive a return value. Blocks until it is there; EOFError if the rank is gone. Nothing is unpickled."""
    return Result(rank, receive_parcel(sock))


def _type_name(value: Any) -> str:
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
