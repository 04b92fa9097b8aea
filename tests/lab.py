"""Drive a real JupyterLab or Notebook in headless Chromium, as a person would: open, run, look at the page."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
TESTS = Path(__file__).parent
KERNEL = """() => {
  const open = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  const kernel = open && open.sessionContext && open.sessionContext.session && open.sessionContext.session.kernel;
  return kernel && kernel.connectionStatus === 'connected' ? kernel.status : null }"""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser; there may be one at a time."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", CHROMIUM), args=CHROMIUM_ARGS, headless=True
        )
        yield browser
        browser.close()


class Notebook:
    """One notebook open in a page."""

    def __init__(self, lab: Lab, page: Page, name: str) -> None:
        self.lab, self.page, self.name = lab, page, name
        self.errors: list[str] = []
        self.received = 0
        page.on("console", lambda m: self.errors.append(m.text[:300]) if m.type == "error" else None)
        page.on("pageerror", lambda e: self.errors.append(str(e)[:300]))
        page.on("websocket", lambda ws: ws.on("framereceived", self._count))

    def _count(self, payload: Any) -> None:
        self.received += len(payload)

    def goto(self) -> None:
        """Open, or open again, and wait for the kernel."""
        if self.lab.app == "lab":
            path = f"lab/workspaces/{self.name}/tree/{self.name}.ipynb?reset"
        else:
            path = f"notebooks/{self.name}.ipynb"
        self.page.goto(f"{self.lab.url}/{path}")
        self.page.wait_for_function("window.jupyterapp && document.querySelector('.jp-Notebook')", timeout=90_000)
        self.until(lambda: self.status() is not None, "the kernel is connected")

    def status(self) -> str | None:
        """Return the kernel's status, None while there is no connection."""
        return self.page.evaluate(KERNEL)

    def until(self, true: Callable[[], object], words: str, timeout: float = 20) -> Any:
        """Wait until something is true of the page, looking again and again as a person does."""
        deadline = time.monotonic() + timeout
        while True:
            if value := true():
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"after {timeout} s it is not so that {words}; console: {self.errors[-5:]}")
            self.page.wait_for_timeout(50)

    def idle(self) -> None:
        """Wait until the kernel has nothing to do."""
        self.until(lambda: self.status() == "idle", "the kernel is idle")

    def command(self, name: str, args: str = "{}", wait: bool = True) -> None:
        """Run one of the application's commands."""
        run = f'window.jupyterapp.commands.execute("{name}", {args})'
        self.page.evaluate(f"async () => {{ await {run} }}" if wait else f"() => {{ {run} }}")

    def run(self, *, wait: bool = True) -> None:
        """Run the selected cell and go to the next one."""
        self.command("notebook:run-cell-and-select-next", wait=wait)

    def say(self, code: str) -> None:
        """Run code in the kernel, behind the page's back."""
        self.page.evaluate(
            """async (code) => {
              const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
              const reply = await kernel.requestExecute({code, silent: true}).done;
              if (reply.content.status !== "ok") throw new Error(reply.content.evalue);
            }""",
            code,
        )

    def theme(self, dark: bool) -> None:
        """Change the theme."""
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        self.command("apputils:change-theme", f'{{"theme": "{name}"}}')

    def outputs(self) -> list[str]:
        """Return the text of the cells' outputs."""
        return self.page.evaluate("() => [...document.querySelectorAll('.jp-OutputArea-output')].map(e => e.innerText)")

    def text(self, selector: str) -> str:
        """Return what a person reads there, "" if it is not there."""
        found = self.page.query_selector(selector)
        return found.inner_text() if found else ""

    def texts(self, selector: str) -> list[str]:
        """Return what a person reads in all elements that match."""
        return [element.inner_text() for element in self.page.query_selector_all(selector)]

    def close(self) -> None:
        """Shut the kernel down and close the page."""
        try:
            self.page.evaluate(
                "async () => { const open = window.jupyterapp.shell.currentWidget;"
                " if (open.sessionContext.session) await open.sessionContext.shutdown(); }"
            )
        finally:
            self.page.context.close()


class Lab:
    """A server with private folders, and notebooks open in a browser."""

    def __init__(self, root: Path, browser: Browser, app: str = "lab", env: dict[str, str] | None = None) -> None:
        self.root, self.app, self._browser = root, app, browser
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = env or {}
        self._count = 0

    def __enter__(self) -> Lab:
        home = self.root / "home"
        work = self.root / "work"
        for folder in (home, work):
            folder.mkdir(parents=True, exist_ok=True)
        overrides = home / "config" / "labconfig" / "default_setting_overrides.json"
        overrides.parent.mkdir(parents=True, exist_ok=True)
        overrides.write_text('{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}')
        env = {
            **os.environ,
            "HOME": str(home),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "IPYTHONDIR": str(home / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
            **self._env,
        }
        command = [sys.executable, "-m", "jupyter", self.app, "--no-browser", "--ip=127.0.0.1", f"--port={self.port}"]
        command += ["--IdentityProvider.token=", "--ServerApp.password=", f"--ServerApp.root_dir={work}"]
        command += ["--allow-root", "--expose-app-in-browser"]
        with open(home / "server.log", "wb") as log:
            self._server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        self._wait_for_server(home / "server.log")
        return self

    def _wait_for_server(self, log: Path) -> None:
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/api").close()
                return
            except (OSError, urllib.error.URLError):
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}") from None
                time.sleep(0.2)

    def __exit__(self, *_exc: object) -> None:
        self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def add_kernel(self, name: str, *folders: Path) -> str:
        """Make a kernel that imports from these folders first. Returns its name."""
        place = self.root / "home" / "data" / "kernels" / name
        if not place.exists():
            place.mkdir(parents=True)
            path = os.pathsep.join([*map(str, folders), str(TESTS.parent), str(TESTS)])
            spec = {
                "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": name,
                "language": "python",
                "env": {"PYTHONPATH": path},
            }
            (place / "kernel.json").write_text(json.dumps(spec))
        return name

    def open(
        self,
        cells: Sequence[str],
        *,
        kernel: str = "python3",
        width: int = 1300,
        height: int = 1000,
        pixels: float = 1,
    ) -> Notebook:
        """Write a notebook of these cells and open it. ``pixels`` of the screen make one of the page, in pictures."""
        self._count += 1
        name = f"n{self._count}"
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
        )
        nbformat.write(notebook, self.root / "work" / f"{name}.ipynb")
        context = self._browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=pixels)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        opened = Notebook(self, context.new_page(), name)
        opened.goto()
        opened.idle()
        return opened
