"""A real kernel, driven as a front end drives it: run a cell, watch its outputs come, press Interrupt."""

from __future__ import annotations

import ast
import os
import queue
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

PATIENCE = 60.0
"""Seconds after which a test gives up on a cell."""
_SGR = re.compile(r"\x1b\[[\d;]*m")


@dataclass
class Ran:
    """A cell and what it left: each output as it stands now, updates applied."""

    kernel: Kernel
    msg_id: str
    outputs: list[dict[str, Any]] = field(default_factory=list)
    idle: bool = False
    reply: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if the cell did not fail."""
        return self.reply.get("status") == "ok"

    @property
    def count(self) -> int:
        """The cell's execution count."""
        return int(self.reply["execution_count"])

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the outputs of one kind: stream, display_data, execute_result, error."""
        return [output for output in self.outputs if output["kind"] == kind]

    @property
    def stdout(self) -> str:
        """What was printed."""
        return "".join(output["text"] for output in self.of("stream") if output["name"] == "stdout")

    @property
    def stderr(self) -> str:
        """What was printed as an error."""
        return "".join(output["text"] for output in self.of("stream") if output["name"] == "stderr")

    @property
    def value(self) -> str:
        """The text of ``Out[n]``, "" without one."""
        return "".join(output["data"]["text/plain"] for output in self.of("execute_result"))

    @property
    def shown(self) -> list[str]:
        """The text of each display, as it stands now."""
        return [output["data"].get("text/plain", "") for output in self.of("display_data")]

    @property
    def error(self) -> str:
        """The error as a reader without colours sees it, "" without one."""
        return "\n".join(plain("\n".join(output["traceback"])) for output in self.of("error"))

    @property
    def ename(self) -> str:
        """The class of the error."""
        return "".join(output["ename"] for output in self.of("error"))

    @property
    def text(self) -> str:
        """All that a reader sees, in the order of the outputs."""
        parts = []
        for output in self.outputs:
            if output["kind"] == "stream":
                parts.append(output["text"])
            elif output["kind"] == "error":
                parts.append(plain("\n".join(output["traceback"])))
            else:
                parts.append(output["data"].get("text/plain", ""))
        return "\n".join(parts)

    def until(self, true: Callable[[], object], timeout: float = PATIENCE) -> Ran:
        """Wait until something is so, messages of the kernel being taken in meanwhile."""
        self.kernel.take_in(true, timeout)
        return self

    def says(self, words: str, timeout: float = PATIENCE) -> Ran:
        """Wait until the outputs hold these words."""
        return self.until(lambda: words in self.text, timeout)

    def end(self, timeout: float = PATIENCE) -> Ran:
        """Wait until the cell has ended and all that it published is here."""
        return self.until(lambda: self.idle and self.reply, timeout)


class Kernel:
    """One IPython kernel in a process of its own.

    Attributes:
        folder: Its working directory; another one after `renew`.
    """

    def __init__(self, folder: Path, *, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self._home, self._arguments, self._env = folder, list(arguments), {**os.environ, **(env or {})}
        self._beginnings: list[str] = []
        self._start(folder)

    def _start(self, folder: Path) -> None:
        self.folder = folder
        self._manager = KernelManager(kernel_name="python3")
        self._log = open(folder / "kernel.log", "ab")  # noqa: SIM115 - closed with the kernel
        self._manager.start_kernel(
            cwd=str(folder),
            env=self._env,
            extra_arguments=self._arguments,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.client = self._manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        self._cells: dict[str, Ran] = {}
        self._displays: dict[str, list[dict[str, Any]]] = {}
        self._typed: list[str] = []

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        return int(self._manager.provisioner.pid)  # type: ignore[union-attr]

    def begin(self, code: str, *, stdin: Sequence[str] | None = None) -> Ran:
        """Send a cell; do not wait for it. ``stdin`` are the lines to be typed when it asks."""
        ran = Ran(self, self.client.execute(code, allow_stdin=stdin is not None))
        self._typed = list(stdin or ())
        self._cells[ran.msg_id] = ran
        return ran

    def run(self, code: str, timeout: float = PATIENCE, *, stdin: Sequence[str] | None = None) -> Ran:
        """Run a cell to its end."""
        return self.begin(code, stdin=stdin).end(timeout)

    def always(self, code: str) -> Ran:
        """Run a cell now, and again in what `renew` makes."""
        self._beginnings.append(code)
        return self.run(code)

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the kernel, by its ``repr``; no history is kept of it."""
        message = self.client.execute(
            "", silent=True, user_expressions={"it": f"repr({expression})"}, allow_stdin=False
        )
        told = self._shell_reply(message)["user_expressions"]["it"]
        assert told["status"] == "ok", told
        return ast.literal_eval(ast.literal_eval(told["data"]["text/plain"]))

    def complete(self, code: str, at: int | None = None) -> list[str]:
        """Return what Tab offers at the cursor."""
        return list(self._shell_reply(self.client.complete(code, len(code) if at is None else at))["matches"])

    def inspect(self, code: str) -> str:
        """Return what Shift-Tab shows, without colours."""
        return plain(self._shell_reply(self.client.inspect(code, len(code)))["data"]["text/plain"])

    def interrupt(self) -> None:
        """Press Interrupt."""
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """End the kernel's process with SIGKILL, as the system does when memory runs out."""
        os.kill(self.pid, signal.SIGKILL)

    def restart(self) -> None:
        """Press Restart."""
        self._manager.restart_kernel(now=True)
        self.client.stop_channels()
        self.client = self._manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def renew(self) -> None:
        """Put a new kernel in an empty folder in this one's place, and run in it what `always` has run."""
        self.close()
        self._start(Path(tempfile.mkdtemp(prefix="renewed-", dir=self._home)))
        for code in self._beginnings:
            self.run(code)

    def close(self) -> None:
        """Shut the kernel down."""
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._log.close()

    # ------------------------------------------------------------------------------------------------ messages

    def take_in(self, true: Callable[[], object], timeout: float) -> None:
        """Take in messages until something is so. Raises AssertionError when time is up."""
        deadline = time.monotonic() + timeout
        while not true():
            left = deadline - time.monotonic()
            if left <= 0:
                seen = "\n".join(ran.text for ran in self._cells.values() if not ran.idle)
                raise AssertionError(f"it is not so after {timeout} s; outputs of running cells:\n{seen[-4000:]}")
            self._shell_messages()
            if self._typed and self.client.stdin_channel.msg_ready():
                self.client.get_stdin_msg(timeout=0)
                self.client.input(self._typed.pop(0))
            try:
                message = self.client.get_iopub_msg(timeout=min(left, 0.1))
            except queue.Empty:
                continue
            self._iopub(message)

    def _shell_reply(self, msg_id: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = self.client.get_shell_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == msg_id:
                return dict(message["content"])
            self._shell(message)
        raise AssertionError("the kernel does not answer")

    def _shell_messages(self) -> None:
        while True:
            try:
                self._shell(self.client.get_shell_msg(timeout=0))
            except queue.Empty:
                return

    def _shell(self, message: Mapping[str, Any]) -> None:
        ran = self._cells.get(message["parent_header"].get("msg_id"))
        if ran is not None and message["msg_type"] == "execute_reply":
            ran.reply = dict(message["content"])

    def _iopub(self, message: Mapping[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        ran = self._cells.get(message["parent_header"].get("msg_id", ""))
        if kind == "update_display_data":
            for output in self._displays.get(content["transient"]["display_id"], ()):
                output["data"] = content["data"]
                output["updates"] += 1
        elif ran is None:
            return
        elif kind == "status" and content["execution_state"] == "idle":
            ran.idle = True
            ran.seconds = time.monotonic() - ran.began
        elif kind == "stream":
            last = ran.outputs[-1] if ran.outputs else {}
            if last.get("kind") == "stream" and last["name"] == content["name"]:
                last["text"] += content["text"]
            else:
                ran.outputs.append({"kind": kind, "name": content["name"], "text": content["text"]})
        elif kind in ("display_data", "execute_result"):
            output = {"kind": kind, "data": content["data"], "updates": 0}
            if display_id := content.get("transient", {}).get("display_id"):
                self._displays.setdefault(display_id, []).append(output)
            ran.outputs.append(output)
        elif kind == "error":
            ran.outputs.append({"kind": kind, **content})


def plain(text: str) -> str:
    """Return text without colours."""
    return _SGR.sub("", text)
