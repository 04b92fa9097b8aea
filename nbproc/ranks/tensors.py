"""How tensors and arrays leave their memory out of the pickle.

torch pickles a tensor as its storage and a description. Only the storage needs care: it goes out of band, each once,
however many views of it there are. So every kind of tensor that torch can pickle (quantized, sparse, nested,
subclasses) travels this way without being named here. Shared memory stays shared, and so do tensors on a GPU, by
torch's own reducers. This module imports neither torch nor numpy; it looks whether the caller did.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

from nbproc.ranks.descriptors import Outgoing

Reduced = Any
"""A tuple as ``__reduce__`` returns it, or NotImplemented for "as usual"."""
_WORTH_A_COPY = 1 << 16
"""Bytes from which a strided array is copied to go out of band instead of into the pickle."""


def same(thing: Any) -> Any:
    """Return the argument. In a pickle, a second object that stands for one already there is a call of this."""
    return thing


def storage_from(buffer: Any) -> Any:
    """Return a torch storage over a writable buffer, without a copy. It cannot be resized: torch raises then."""
    torch: Any = importlib.import_module("torch")
    if not memoryview(buffer).nbytes:
        return torch.UntypedStorage(0)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def storage_on(device: str, buffer: Any) -> Any:
    """Return a torch storage on a device, copied from a buffer."""
    torch: Any = importlib.import_module("torch")
    if not memoryview(buffer).nbytes:
        return torch.UntypedStorage(0, device=device)
    return torch.frombuffer(buffer, dtype=torch.uint8).to(device).untyped_storage()


def array_reducers() -> dict[type, Callable[[Any], Reduced]]:
    """Return numpy's types with their reducers; empty if numpy was not imported."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return {}

    def reduce_array(array: Any) -> Reduced:
        flags = array.flags
        if flags.c_contiguous or flags.f_contiguous or array.nbytes < _WORTH_A_COPY or array.dtype.hasobject:
            return NotImplemented
        return numpy.ascontiguousarray(array).__reduce_ex__(5)

    return {numpy.ndarray: reduce_array}


def tensor_from(storage: Any, dtype: Any, offset: int, size: Any, stride: Any, requires_grad: bool) -> Any:
    """Return a plain tensor that views a storage."""
    torch: Any = importlib.import_module("torch")
    return (
        torch.empty(0, dtype=dtype, device=storage.device)
        .set_(storage, offset, size, stride)
        .requires_grad_(requires_grad)
    )


def set_attributes(thing: Any, attributes: dict[str, Any]) -> None:
    """Give a tensor the attributes that somebody had set on it."""
    vars(thing).update(attributes)


class TensorReducers:
    """Reducers for torch's types, for one pickle or several that share their storages.

    ``keep`` gets what must stay alive until the receivers have mapped or opened it. With ``returning`` the sender
    may be gone before the pickle is read, so nothing is left to be fetched from it: what lies on a GPU is copied.
    """

    def __init__(self, outgoing: Outgoing, keep: list[Any], *, returning: bool) -> None:
        self._outgoing = outgoing
        self._keep = keep
        self._returning = returning
        self._storages: dict[tuple[str, int, int], Any] = {}
        self._torch: Any = sys.modules.get("torch")

    def by_type(self) -> dict[type, Callable[[Any], Reduced]]:
        """Return torch's types with their reducers; empty if torch was not imported."""
        torch = self._torch
        if torch is None or not hasattr(torch, "UntypedStorage") or not hasattr(torch, "nn"):
            return {}  # not imported, or just being imported on another thread
        return {
            torch.Tensor: self._tensor,
            torch.nn.Parameter: self._tensor,
            torch.UntypedStorage: self._storage,
            torch.TypedStorage: self._typed_storage,
        }

    def base_class(self) -> type | None:
        """Return torch.Tensor if torch was imported."""
        return getattr(self._torch, "Tensor", None) if self.by_type() else None

    def _tensor(self, tensor: Any) -> Reduced:
        if tensor.is_cuda and not self._returning:
            self._keep.append(tensor)
            with self._outgoing.borrowing():
                return _torch_reductions().reduce_tensor(tensor)
        plain = type(tensor) is self._torch.Tensor and tensor.layout is self._torch.strided
        if (
            not plain
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_meta
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return self.subclass(tensor)
        storage = self._only(tensor.untyped_storage())
        size, stride = tuple(tensor.size()), tensor.stride()
        args = (storage, tensor.dtype, tensor.storage_offset(), size, stride, tensor.requires_grad)
        if vars(tensor):
            return tensor_from, args, vars(tensor), None, None, set_attributes
        return tensor_from, args

    def subclass(self, tensor: Any) -> Reduced:
        """Reduce a tensor as torch does, but so that torch can rebuild one of its newer dtypes.

        For those torch hands over an untyped storage and, rebuilding, expects a typed one.
        """
        reduced = tensor.__reduce_ex__(5)
        if not isinstance(reduced, tuple) or len(reduced) < 2:
            return reduced
        function, args, *rest = reduced
        if args and args[0] is _rebuild_v3(self._torch):  # wrapped: (function, class, its arguments, state)
            args = (args[0], args[1], self._typed_first(args[2]), *args[3:])
        elif function is _rebuild_v3(self._torch):
            args = self._typed_first(args)
        return function, args, *rest

    def _typed_first(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if type(args[0]) is not self._torch.UntypedStorage:
            return args
        return _torch_reductions().rebuild_typed_storage(args[0], self._torch.uint8), *args[1:]

    def _typed_storage(self, storage: Any) -> Reduced:
        rebuild, (untyped, *rest) = _torch_reductions().reduce_typed_storage(storage)
        return rebuild, (self._only(untyped), *rest)

    def _only(self, storage: Any) -> Any:
        """Return the one object that stands for this memory: torch may make a new one each time it is asked."""
        if storage.device.type == "meta" or not storage.data_ptr():
            return storage
        return self._storages.setdefault((str(storage.device), storage.data_ptr(), storage.nbytes()), storage)

    def _storage(self, storage: Any) -> Reduced:
        only = self._only(storage)
        if only is not storage:
            return same, (only,)
        device = storage.device
        if device.type == "meta":
            return NotImplemented
        self._keep.append(storage)
        if device.type != "cpu":
            on_cpu = storage.cpu()
            self._keep.append(on_cpu)
            return storage_on, (str(device), _buffer(on_cpu))
        if storage.is_shared() and storage.nbytes() and not (self._returning and _by_file_name()):
            with self._outgoing.borrowing():
                return _torch_reductions().reduce_storage(storage)
        return storage_from, (_buffer(storage),)


def _buffer(storage: Any) -> pickle.PickleBuffer:
    size = storage.nbytes()
    return pickle.PickleBuffer((ctypes.c_char * size).from_address(storage.data_ptr()) if size else bytearray())


def _rebuild_v3(torch: Any) -> Any:
    # Private, and named in pickles; where it is missing there is nothing to mend.
    return getattr(torch._utils, "_rebuild_tensor_v3", None)


def _by_file_name() -> bool:
    """Return whether torch shares memory by the name of a file, which ends with the process that made it."""
    return bool(importlib.import_module("torch.multiprocessing").get_sharing_strategy() == "file_system")


def _torch_reductions() -> Any:
    return importlib.import_module("torch.multiprocessing.reductions")
