"""The pickler: cloudpickle, and what a notebook needs beyond it.

- Code keeps the name of its file, so tracebacks show the cell; the texts of cells are collected on the way.
- Functions of the notebook keep one common namespace, which in a rank is that of ``__main__``.
- Classes and functions of the notebook have keys (`nbproc.ranks.identity`): they come back as themselves.
- Large memory goes out of band (`nbproc.ranks.tensors`), and large bytes are not copied.
- Queues, connections and sockets travel as when multiprocessing starts a process (`nbproc.ranks.descriptors`).
- A module that no other process could import goes by value.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from nbproc.ranks import identity, modules, named
from nbproc.ranks.descriptors import Outgoing
from nbproc.ranks.tensors import Reduced, TensorReducers, array_reducers

_CODE = cloudpickle.Pickler.dispatch_table[types.CodeType]
_MULTIPROCESSING = frozenset(
    {"multiprocessing.connection", "multiprocessing.heap", "multiprocessing.reduction", "multiprocessing.sharedctypes"}
)
"""The modules whose reducers are taken over from multiprocessing. Not torch's: they move everything to shared memory."""


class CannotSend(pickle.PicklingError):
    """This object cannot be sent, for a reason known in advance."""


class _MainGlobals(dict[str, Any]):
    """Stands in a pickle for the namespace of the receiver's ``__main__``."""

    def __reduce__(self) -> tuple[object, ...]:
        return identity.main_namespace, ()


class _Chunks(list[Any]):
    """What the pickler writes, piece by piece: a large bytes object stays the object it is."""

    write = list.append


def make_code(args: tuple[Any, ...], filename: str) -> types.CodeType:
    """Return the code object with its own file name."""
    return types.CodeType(*args).replace(co_filename=filename)


def make_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Return an exception without calling its constructor, which may want other arguments than it kept."""
    return kind.__new__(kind, *args)


def take_notebook_object(thing: Any, state: tuple[Any, Callable[..., Any], str, str]) -> None:
    """Finish a class or function of the notebook that arrived in a rank."""
    inner, set_state, key, name = state
    set_state(thing, inner)
    identity.arrived(thing, key)
    if name:
        identity.main_namespace()[name] = thing


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle publishes no types
    """Pickles objects one after another; a later one may refer to what an earlier one holds.

    ``namespace`` is the caller's ``__main__``. With ``returning`` the pickle goes from a rank to the notebook.
    After a dump, ``chunks`` holds the pickle, ``buffers`` the memory beside it, ``filenames`` the files of all code.
    """

    def __init__(self, namespace: dict[str, Any], outgoing: Outgoing, *, returning: bool = False) -> None:
        self.chunks = _Chunks()
        self.buffers: list[memoryview] = []
        self.filenames: dict[str, None] = {}
        self.keep: list[Any] = []
        super().__init__(self.chunks, protocol=5, buffer_callback=self._take_buffer)
        self._namespace = namespace
        self._outgoing = outgoing
        self._returning = returning
        self._modules = modules.ByValue()
        if not returning:
            self.globals_ref[id(namespace)] = _MainGlobals()
        tensors = TensorReducers(outgoing, self.keep, returning=returning)
        self._tensor_class = tensors.base_class()
        self._reduce_subclass = tensors.subclass
        self._reducers: dict[type, Callable[[Any], Reduced]] = {
            types.CodeType: self._reduce_code,
            types.FunctionType: self._reduce_definition,
            types.ModuleType: self._reduce_module,
            functools.partial: _as_usual,  # multiprocessing's reducer would lose its attributes
            functools.cached_property: _reduce_cached_property,
            weakref.WeakKeyDictionary: _reduce_weak,
            weakref.WeakValueDictionary: _reduce_weak,
            io.TextIOWrapper: self._reduce_stream,
            type(sys.stdout): self._reduce_stream,
            type(sys.stderr): self._reduce_stream,
            **named.reducers(self._modules.look_at),
            **_locks(),
            **_parts_of_torch(),
            **array_reducers(),
            **tensors.by_type(),
        }
        self._from_multiprocessing: Mapping[type, Any] = ForkingPickler(io.BytesIO()).dispatch_table

    def dump(self, obj: Any) -> None:
        """Pickle one object. Raises whatever the object's own reducers raise."""
        try:
            with self._outgoing.pickling():
                super().dump(obj)
        finally:
            self._modules.restore()

    def dump_all(self, roots: Mapping[str, Any]) -> dict[str, int]:
        """Pickle objects one after another and return the number of bytes that each added."""
        sizes = {}
        for name, value in roots.items():
            chunks, buffers = len(self.chunks), len(self.buffers)
            self.dump(value)
            sizes[name] = sum(map(len, self.chunks[chunks:])) + sum(view.nbytes for view in self.buffers[buffers:])
        return sizes

    def reducer_override(self, obj: Any) -> Reduced:
        """Choose how an object is taken apart; called for everything but the plainest types."""
        kind = type(obj)
        reduce = self._reducers.get(kind)
        if reduce is not None:
            return reduce(obj)
        if isinstance(obj, type):
            return self._reduce_definition(obj)
        if isinstance(obj, BaseException):
            return self._reduce_exception(obj)
        if self._tensor_class is not None and isinstance(obj, self._tensor_class):
            return self._reduce_subclass(obj)
        reduce = self._from_multiprocessing.get(kind)
        if reduce is not None and reduce.__module__ in _MULTIPROCESSING and kind not in self.dispatch_table:
            return reduce(obj)
        return NotImplemented

    def _take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        self.buffers.append(buffer.raw())
        return False

    def _reduce_code(self, code: types.CodeType) -> Reduced:
        self.filenames[code.co_filename] = None
        _, args = _CODE(code)
        return make_code, (args, code.co_filename)

    def _reduce_definition(self, thing: Any) -> Reduced:
        if self._returning and identity.came_from_parent(thing) and not getattr(thing, "__closure__", None):
            return identity.find, (identity.key_of(thing), thing.__qualname__)
        self._modules.look_at(thing.__module__)
        reduced = _with_slots(thing, super().reducer_override(thing))
        if self._returning or reduced is NotImplemented or len(reduced) != 6:
            return reduced
        known = self._namespace.get(thing.__name__) is thing
        if not known and isinstance(thing, types.FunctionType):
            return reduced
        self.keep.append(thing)
        make, args, state, _, _, set_state = reduced
        state = (state, set_state, identity.key_of(thing), thing.__name__ if known else "")
        return make, args, state, None, None, take_notebook_object

    def _reduce_exception(self, error: BaseException) -> Reduced:
        kind = type(error)
        own = kind.__reduce__ is not BaseException.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__
        if own or not isinstance(kind.__init__, types.FunctionType) or _has_fields(kind):
            return NotImplemented
        return make_exception, (kind, error.args), vars(error) or None

    def _reduce_module(self, module: types.ModuleType) -> Reduced:
        self._modules.look_at(module.__name__)
        return NotImplemented

    def _reduce_stream(self, stream: Any) -> Reduced:
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            if stream is getattr(sys, name):
                return getattr, (sys, name.strip("_"))
        raise CannotSend("an open file")


def _with_slots(thing: Any, reduced: Reduced) -> Reduced:
    """Have a class made with its slots: cloudpickle's copy has a dict, and what its objects hold would not fit back."""
    slots = vars(thing).get("__slots__") if isinstance(thing, type) and not issubclass(thing, tuple) else None
    if slots is None or reduced is NotImplemented or reduced[0].__name__ != "_make_skeleton_class":
        return reduced
    make, (metaclass, name, bases, given, *rest), *more = reduced
    return make, (metaclass, name, bases, {**given, "__slots__": slots}, *rest), *more


def _reduce_cached_property(found: functools.cached_property[Any]) -> Reduced:
    """Leave out the lock that it has up to Python 3.11."""
    return type(found), (found.func,), {"attrname": found.attrname}


def _as_usual(_: Any) -> Reduced:
    return NotImplemented


def _has_fields(kind: type[BaseException]) -> bool:
    """Return whether a built-in exception above keeps more than ``args``, which its constructor has to set."""
    built_in = (base for base in kind.__mro__ if base.__module__ == "builtins" and base is not BaseException)
    return any(isinstance(one, types.MemberDescriptorType) for base in built_in for one in vars(base).values())


def _reduce_weak(items: Any) -> Reduced:
    return type(items), (dict(items),)


def _locks() -> dict[type, Callable[[Any], Reduced]]:
    """Return multiprocessing's locks with their reducer; empty if nobody imported them."""
    synchronize: Any = sys.modules.get("multiprocessing.synchronize")
    if synchronize is None:
        return {}

    def reduce_lock(lock: Any) -> Reduced:
        # Private: a lock of the fork context has no name by which another process could open it, and only this tells.
        if getattr(getattr(lock, "_semlock", None), "name", "") is None:
            raise CannotSend("it was made for processes that are forked")
        return NotImplemented

    kinds = (synchronize.Lock, synchronize.RLock, synchronize.Semaphore, synchronize.BoundedSemaphore)
    return dict.fromkeys(kinds, reduce_lock)


def _parts_of_torch() -> dict[type, Callable[[Any], Reduced]]:
    """Return what pickles in torch's way to something that is of no use elsewhere; empty if nobody imported torch."""

    def refuse(_: Any) -> Reduced:
        raise CannotSend("it belongs to its rank's process group")

    def without_workers(loader: Any) -> Reduced:
        make, args, state, *more = loader.__reduce_ex__(5)
        return make, args, {**state, "_iterator": None}, *more  # where workers persist: it is made anew

    distributed: Any = sys.modules.get("torch.nn.parallel.distributed")
    loading: Any = sys.modules.get("torch.utils.data.dataloader")
    found: dict[type, Callable[[Any], Reduced]] = {}
    if distributed is not None:
        found[distributed.DistributedDataParallel] = refuse
    if loading is not None:
        found[loading.DataLoader] = without_workers
    return found


def restore_builtins() -> None:
    """Give ``__main__`` its ``builtins`` module back, in whose place cloudpickle puts the module's dict."""
    identity.main_namespace()["__builtins__"] = builtins


def is_on_disk(filename: str) -> bool:
    """Return whether a traceback in another process of this machine finds this source file."""
    return not filename.startswith("<") and os.path.exists(filename)
