"""Do what Binder does, in an empty environment, and run the quickstart in it.

    python binder/check.py            (make binder-check)

Binder's own build is repo2docker: an environment with JupyterLab in which `pip install -r binder/requirements.txt` is
run in the repository's root. Then JupyterLab is asked for the quickstart, and the notebook is run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "node_modules", "_build", "__pycache__", ".jupyter_cache", "static")


def main() -> int:
    """Return 0 if the notebook runs."""
    with tempfile.TemporaryDirectory(prefix="binder-") as folder:
        home = Path(folder)
        clone = home / "repository"
        shutil.copytree(ROOT, clone, ignore=LEFT_OUT)
        say("an empty environment")
        subprocess.run([sys.executable, "-m", "venv", str(home / "env")], check=True)
        python = home / "env" / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        without_unreachable_indexes(clone / "binder" / "requirements.txt")
        say("pip install -r binder/requirements.txt")
        subprocess.run([*pip, "-r", "binder/requirements.txt"], cwd=clone, check=True)
        shutil.rmtree(clone / "nbproc")  # what is installed is used, not what lies beside
        say("JupyterLab with notebooks/quickstart.ipynb")
        opens_in_lab(python, clone, home)
        say("the quickstart")
        command = [str(python), "notebooks/run_demo.py", "--output", str(home / "out")]
        return subprocess.run(command, cwd=clone, check=False).returncode


def without_unreachable_indexes(requirements: Path) -> None:
    """Leave out the indexes that this machine cannot reach; pip would ask them for each package, again and again."""
    lines = []
    for line in requirements.read_text().splitlines():
        option, _, address = line.partition(" ")
        if option == "--extra-index-url":
            try:
                socket.create_connection((urllib.parse.urlsplit(address).hostname, 443), timeout=10).close()
            except OSError as error:
                say(f"without {address}: {error}")
                continue
        lines.append(line)
    requirements.write_text("\n".join(lines) + "\n")


def opens_in_lab(python: Path, clone: Path, home: Path) -> None:
    """Ask JupyterLab for the address that Binder opens. Raises RuntimeError if it does not answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex()
    command = [str(python), "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ip=127.0.0.1", f"--ServerApp.root_dir={clone}"]
    environment = {**os.environ, "HOME": str(home), "JUPYTER_TOKEN": token}
    with open(home / "lab.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        for path in ("lab/tree/notebooks/quickstart.ipynb", "api/contents/notebooks/quickstart.ipynb"):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}?token={token}")
            while True:
                try:
                    with urllib.request.urlopen(request):
                        break
                except (OSError, urllib.error.URLError) as error:
                    if time.monotonic() > deadline or server.poll() is not None:
                        raise RuntimeError(f"{path}: {error}\n{(home / 'lab.log').read_text()[-3000:]}") from error
                    time.sleep(0.3)
    finally:
        server.terminate()
        server.wait()


def say(words: str) -> None:
    """Say what comes next."""
    print(f"--- {words}", flush=True)  # noqa: T201 - a command speaks


if __name__ == "__main__":
    sys.exit(main())
