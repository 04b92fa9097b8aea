"""Messages of the browser while a cell blocks the kernel.

ipykernel 7 handles them on a thread that JupyterLab opens for them. ipykernel 6 has one thread for all: there the loop
that blocks has to look for them now and then (`pump`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

if TYPE_CHECKING:
    from anywidget import AnyWidget

log = logging.getLogger(__name__)

PUMP_PERIOD = 0.1

_ours: set[str] = set()


def answer_while_busy(widget: AnyWidget) -> None:
    """Let the browser's messages to a widget be handled while a cell blocks the kernel, where a kernel can do that."""
    comm = widget.comm
    if comm is None:
        return
    _ours.add(comm.comm_id)
    # ipykernel 7.4 sends the browser's messages to the thread that sent last, which is the one that blocks; this
    # keeps them on the thread that JupyterLab opened for them. A private name, so only where it is there.
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default


def pump_period() -> float | None:
    """Return how often `pump` should be called while a cell blocks this kernel, None if there is no need."""
    return PUMP_PERIOD if _one_thread(_kernel()) else None


def pump() -> None:
    """Handle what the browser has sent to our widgets; everything else waits for its turn. Main thread only."""
    kernel = _kernel()
    if not _one_thread(kernel):
        return
    try:
        kernel.shell_stream.flush()  # what has come in goes to the kernel's queue
        kept = []
        while kernel.msg_queue.qsize():
            item = kernel.msg_queue.get_nowait()
            if not _handle(kernel, item):
                kept.append(item)
        for item in kept:
            kernel.msg_queue.put_nowait(item)
    except Exception:  # then Stop works when the cell is over, and the kernel's Interrupt at any time
        log.debug("messages of the browser cannot be handled now", exc_info=True)


def _kernel() -> Any:
    return getattr(get_ipython(), "kernel", None)


def _one_thread(kernel: Any) -> bool:
    return hasattr(kernel, "msg_queue") and getattr(kernel, "shell_stream", None) is not None


def _handle(kernel: Any, item: tuple[Any, ...]) -> bool:
    """Handle a message of the queue if it is for one of our widgets."""
    frames = item[-1][0] if item[-1] else None
    if not isinstance(frames, list):
        return False
    session = kernel.session
    identities, parts = session.feed_identities(frames, copy=False)
    # Looked at before it is deserialized, which may be done once only: signature, header, parent, metadata, content.
    if session.unpack(parts[1].bytes)["msg_type"] != "comm_msg":
        return False
    if session.unpack(parts[4].bytes).get("comm_id") not in _ours:
        return False
    message = session.deserialize(parts, content=True, copy=False)
    kernel.comm_manager.comm_msg(kernel.shell_stream, identities, message)
    return True
