"""What kinds of things cannot be sent to another process, in words, and what to do instead."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

RANKS = "the ranks"
_INSIDE = "Make it inside the function or cell that the ranks run."
_OPEN_INSIDE = "Open it inside the function or cell that the ranks run."
_CONTEXT = 'multiprocessing.get_context("spawn")'
_SPAWN = f"Make it with {_CONTEXT}"
_FORK_ONLY = "of the fork context"


@dataclass(frozen=True)
class Kind:
    """A kind of thing: what to call it, and what to do instead (a sentence), also where it should come ``back``."""

    words: str
    advice: str = _INSIDE
    back: str = "Return what is needed of it."


_KINDS: dict[str, Kind] = {
    "_thread.lock": Kind("a lock", f"{_INSIDE} One lock for all ranks: {_CONTEXT}.Lock()."),
    "_thread.RLock": Kind("a lock", f"{_INSIDE} One lock for all ranks: {_CONTEXT}.RLock()."),
    "_thread._local": Kind("a threading.local"),
    "threading.Thread": Kind("a thread"),
    "threading.Event": Kind("a threading.Event", f"{_INSIDE} One event for all ranks: {_CONTEXT}.Event()."),
    "threading.Condition": Kind("a threading.Condition"),
    "threading.Semaphore": Kind("a threading.Semaphore"),
    "threading.Barrier": Kind("a threading.Barrier"),
    "builtins.generator": Kind("a generator", back="Return list(...) of it."),
    "builtins.coroutine": Kind("a coroutine", f"{_INSIDE[:-1]}, or send the function.", "Await it: await f(...)."),
    "builtins.async_generator": Kind("an asynchronous generator", back="Return a list of what it yields."),
    "builtins.frame": Kind("a stack frame", "Leave it out."),
    "builtins.traceback": Kind("a traceback", "Send its text: traceback.format_exc()."),
    "builtins.PyCapsule": Kind("a handle of a compiled library"),
    "weakref.ReferenceType": Kind("a weak reference", "Hold the object itself, or leave it out."),
    "_io.TextIOWrapper": Kind("an open file", _OPEN_INSIDE),
    "_io.BufferedReader": Kind("an open file", _OPEN_INSIDE),
    "_io.BufferedWriter": Kind("an open file", _OPEN_INSIDE),
    "_io.BufferedRandom": Kind("an open file", _OPEN_INSIDE),
    "_io.FileIO": Kind("an open file", _OPEN_INSIDE),
    "mmap.mmap": Kind("a mapped file", _OPEN_INSIDE),
    "logging.Handler": Kind("a logging handler"),
    "sqlite3.Connection": Kind("a database connection", _OPEN_INSIDE),
    "sqlite3.Cursor": Kind("a database cursor"),
    "ssl.SSLContext": Kind("a TLS context"),
    "ssl.SSLSocket": Kind("a TLS connection", _OPEN_INSIDE),
    "subprocess.Popen": Kind("a running program", "Start it inside the function or cell that the ranks run."),
    "concurrent.futures._base.Executor": Kind("an executor"),
    "concurrent.futures._base.Future": Kind("a future", "Send its result."),
    "asyncio.events.AbstractEventLoop": Kind("an event loop"),
    "_asyncio.Future": Kind("a task or future of asyncio", "Await it, and send its result."),
    "queue.Queue": Kind("a queue of threads", f"{_SPAWN}.Queue()."),
    "_queue.SimpleQueue": Kind("a queue of threads", f"{_SPAWN}.SimpleQueue()."),
    "multiprocessing.pool.Pool": Kind("a pool of processes"),
    "multiprocessing.process.BaseProcess": Kind("a process"),
    "multiprocessing.synchronize.SemLock": Kind(f"a multiprocessing lock or semaphore {_FORK_ONLY}", f"{_SPAWN}."),
    "multiprocessing.synchronize.Condition": Kind(
        f"a multiprocessing condition {_FORK_ONLY}", f"{_SPAWN}.Condition()."
    ),
    "multiprocessing.synchronize.Event": Kind(f"a multiprocessing event {_FORK_ONLY}", f"{_SPAWN}.Event()."),
    "multiprocessing.synchronize.Barrier": Kind(f"a multiprocessing barrier {_FORK_ONLY}", f"{_SPAWN}.Barrier(n)."),
    "multiprocessing.queues.Queue": Kind(f"a multiprocessing queue {_FORK_ONLY}", f"{_SPAWN}.Queue()."),
    "multiprocessing.queues.SimpleQueue": Kind(f"a multiprocessing queue {_FORK_ONLY}", f"{_SPAWN}.SimpleQueue()."),
    "multiprocessing.sharedctypes.SynchronizedBase": Kind(f"a shared value {_FORK_ONLY}", f"{_SPAWN}."),
    "IPython.core.interactiveshell.InteractiveShell": Kind("the notebook's shell", "Call get_ipython() in the rank."),
    "ipywidgets.widgets.widget.Widget": Kind("a widget", "It lives in the notebook: leave it out."),
    "torch.utils.data.dataloader._BaseDataLoaderIter": Kind("an iterator over a DataLoader", "Send the DataLoader."),
    "torch.jit._script.ScriptModule": Kind(
        "a scripted module", "Save it with torch.jit.save, and load it in the ranks."
    ),
    "torch.nn.parallel.distributed.DistributedDataParallel": Kind(
        "a model under DistributedDataParallel", "Send its .module.", "Return its .module."
    ),
    "tqdm.std.tqdm": Kind("a progress bar"),
    "torch.distributed.distributed_c10d.ProcessGroup": Kind("a process group", "Each rank makes its own."),
    "torch._C._distributed_c10d.ProcessGroup": Kind("a process group", "Each rank makes its own."),
    "torch._C._distributed_c10d.Store": Kind("a store", "Each rank makes its own."),
}


def kind_of(thing: Any) -> Kind | None:
    """Return the kind of a thing that cannot be sent, by its class or the nearest class above; None if unknown."""
    for base in type(thing).__mro__:
        known = _KINDS.get(f"{base.__module__}.{base.__qualname__}")
        if known is not None:
            return known
    return None


def sentence(thing: Any, error: BaseException, where: str) -> str:
    """Say what a thing is, that it cannot be sent to ``where``, and what to do instead."""
    kind = kind_of(thing)
    if kind is None:
        name = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
        name = name.removeprefix("__main__.")
        return f"{_with_article(name)} cannot be sent to {where} ({_reason(error)})."
    name = _file_name(thing)
    return f"{kind.words}{name} cannot be sent to {where}. {kind.advice if where == RANKS else kind.back}"


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _file_name(thing: Any) -> str:
    name = getattr(thing, "name", None) if type(thing).__module__ == "_io" else None
    return f" ({name})" if isinstance(name, str) and thing is not sys.stdin else ""


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no reason given"
    text = text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"
    return (
        text
        if type(error).__name__ in ("PicklingError", "TypeError", "CannotSend")
        else f"{type(error).__name__}: {text}"
    )
