"""A notebook and its ranks, as far as payloads are concerned: cells run here, real processes receive."""

from __future__ import annotations

import linecache
import os
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from nbproc.ranks import payload, results

_RANK = """
import os, socket, sys, traceback
from nbproc.ranks import payload, results
sock = socket.socket(fileno=int(sys.argv[1]))
while True:
    try:
        arrival = payload.receive(sock)
    except EOFError:
        break
    try:
        roots = arrival.load()
        value = roots["fn"](*roots["args"])
    except BaseException:
        value = {"error": traceback.format_exc()}
    with results.pack_result(value) as packed:
        payload.send(sock, packed.parcel)
    del arrival, value, packed
    roots = None
"""


class Rank:
    """A process that calls what it receives and sends back what that returns."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.sock, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RANK, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )

    def call(self, fn: Callable[..., Any], *args: Any, namespace: dict[str, Any] | None = None, **more: Any) -> Any:
        """Call a function in the rank and return its value, or raise the rank's traceback as AssertionError."""
        value = self.result(payload.Packer(namespace).pack({"fn": fn, "args": args}, **more)).value()
        if isinstance(value, dict) and set(value) == {"error"}:
            raise AssertionError(value["error"])
        return value

    def result(self, packed: payload.Payload) -> results.Result:
        """Send a payload, and receive the result."""
        with payload.store([packed]) as shipment:
            payload.send(self.sock, shipment[0])
        return results.receive_result(self.sock, 0)

    def end(self) -> None:
        """Close the connection and wait for the process."""
        self.sock.close()
        self.process.wait(60)


class Notebook:
    """A ``__main__`` of its own, and cells that run in it."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.names = vars(self.module)
        self.count = 0

    def run(self, source: str) -> None:
        """Run a cell as IPython does: its text is known to linecache under a name that is no file."""
        self.count += 1
        name = f"/nowhere/ipykernel_1/cell_{self.count}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), self.names)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]
