"""Try what was built: install each distribution in empty environments, and use it there in a real kernel.

    python tests/release/run.py dist/*          (make dist)

Each Python that the wheel names is tried with the newest versions of what nbproc needs, from the wheel and from the
sdist, and with the lowest versions that the wheel allows. What is tried is `smoke.py`, by the new environment's Python.

torch is installed where pip has a CPU build of it (a version that ends in "+cpu"; another build would bring CUDA along).
Where there is none, nbproc is installed without its dependencies and then all of them but torch: everything else has
to work. At the end a table says what was tried. A failure, or a Python that is not there, makes the exit status 1.
"""

from __future__ import annotations

import argparse
import email
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

TESTS = Path(__file__).resolve().parents[1]
CONSTRAINTS = TESTS / "constraints.txt"
PATIENCE = 900
"""Seconds after which an installation or the smoke test is given up; a slow line needs some for torch."""
NONE_TO_BE_HAD = ("No matching distribution found for torch", "Cannot install torch")
"""What pip says if no index has this version; the second, if it is told of constraints by its settings as well."""


@dataclass(frozen=True)
class Case:
    """One environment: which Python, which end of the versions, which distribution."""

    python: str
    ends: str
    distribution: Path

    def __str__(self) -> str:
        kind = "wheel" if self.distribution.suffix == ".whl" else "sdist"
        return f"Python {self.python}, {self.ends} versions, {kind}"


@dataclass(frozen=True)
class Tried:
    """What came of a case: the versions that were there, and "" or what failed."""

    case: Case
    versions: Mapping[str, str]
    seconds: float
    failure: str


class Failed(Exception):
    """A command failed; the message is what it said."""


def main() -> int:
    """Return 0 if everything was tried and passed."""
    options = argparse.ArgumentParser(description="Try built distributions in empty environments.")
    options.add_argument("distributions", nargs="+", type=Path, help="one wheel, and an sdist if there is one")
    options.add_argument("--python", nargs="+", metavar="3.X", help="only these; default: all that the wheel names")
    options.add_argument("--allow-missing", action="store_true", help="pass though a Python is not on this machine")
    options.add_argument("--constraint", type=Path, default=CONSTRAINTS, help=f"default: tests/{CONSTRAINTS.name}")
    given = options.parse_args()
    wheel, *sdists = sorted((path.resolve() for path in given.distributions), key=lambda path: path.suffix != ".whl")
    metadata = metadata_of(wheel)
    wanted = given.python or pythons_of(metadata)
    found = {version: interpreter for version in wanted if (interpreter := find(version)) is not None}
    missing = [version for version in wanted if version not in found]
    for version in missing:
        say(f"Python {version} is not on PATH and not among pyenv's: it is not tried")
    cases = [
        case
        for version in found
        for case in (
            Case(version, "newest", wheel),
            Case(version, "lowest", wheel),
            *(Case(version, "newest", sdist) for sdist in sdists),  # it differs by how it is built
        )
    ]
    install = Installer(requirements_of(metadata), given.constraint.resolve())
    tried = [try_one(case, found[case.python], install) for case in cases]
    print(table(tried, install.names, missing))
    without = given.python is None and not any("torch" in one.versions for one in tried)
    if without:
        say("torch was tried with no Python: pip has no CPU build of it (set PIP_EXTRA_INDEX_URL to torch's index)")
    failed = not tried or any(one.failure for one in tried)
    return int(failed or without or (bool(missing) and not given.allow_missing))


def try_one(case: Case, interpreter: Path, install: Installer) -> Tried:
    """Make an environment, install, use it, and throw it away."""
    say(f"--- {case}")
    began = time.monotonic()
    versions: Mapping[str, str] = {}
    failure = ""
    with tempfile.TemporaryDirectory(prefix="nbproc-dist-") as name:
        folder = Path(name)
        try:
            command([interpreter, "-m", "venv", folder / "env"], folder)
            python = folder / "env" / "bin" / "python"
            torch = install(python, case, folder)
            versions = {**versions_in(python, folder), "python": full_version(python)}
            say(command([python, TESTS / "release" / "smoke.py", "--torch", "yes" if torch else "no"], folder).rstrip())
        except Failed as error:
            failure = str(error).strip()
            say(failure)
    return Tried(case, versions, time.monotonic() - began, failure)


@dataclass(frozen=True)
class Installer:
    """Installs a distribution with one end of the versions that its metadata allows."""

    requirements: Sequence[Requirement]
    constraint: Path

    @property
    def names(self) -> list[str]:
        """The packages that nbproc needs, in the order of its metadata."""
        return [requirement.name for requirement in self.requirements]

    def __call__(self, python: Path, case: Case, folder: Path) -> bool:
        """Install, and return whether torch is among it. Raises `Failed`."""
        pip: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        others = [
            f"{requirement.name}=={lower_bound(requirement)}" if case.ends == "lowest" else str(requirement)
            for requirement in self.requirements
            if requirement.name != "torch"
        ]
        torch = any(self._install_torch(pip, version, folder) for version in self._torch_versions(case.ends))
        if torch:
            command([*pip, "--constraint", self.constraint_for(folder), case.distribution, *others], folder)
        else:
            command([*pip, "--no-deps", case.distribution], folder)
            command([*pip, *others], folder)
        return torch

    def _torch_versions(self, ends: str) -> Iterator[str]:
        """Yield the versions to try in turn: of the lowest, any may be had or none."""
        if ends == "lowest":
            (torch,) = (requirement for requirement in self.requirements if requirement.name == "torch")
            low = Version(lower_bound(torch))
            yield ".".join(map(str, (*low.release, 0, 0)[:3]))
        for line in self.constraint.read_text().splitlines():
            if match := re.match(r"torch\s*==\s*([\w.]+)", line):
                yield match[1]

    @staticmethod
    def _install_torch(pip: Sequence[str | Path], version: str, folder: Path) -> bool:
        """Install the CPU build of this version, without what it needs, if pip finds one; no other build matches a local version."""
        try:
            command([*pip, "--no-deps", f"torch=={version}+cpu"], folder)
        except Failed as error:
            if any(words in str(error) for words in NONE_TO_BE_HAD):
                return False
            raise
        return True

    def constraint_for(self, folder: Path) -> Path:
        """Return the constraints without torch, which is installed already, perhaps in its lowest version."""
        lines = [line for line in self.constraint.read_text().splitlines() if not line.startswith("torch==")]
        (folder / "constraints.txt").write_text("\n".join(lines))
        return folder / "constraints.txt"


# ------------------------------------------------------------------------------------------- what the wheel says of itself


def metadata_of(wheel: Path) -> Message:
    """Return the wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def pythons_of(metadata: Message) -> list[str]:
    """Return the versions of Python that the classifiers name: 3.10, 3.11 and so on."""
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
    return [match[1] for line in metadata.get_all("Classifier", []) if (match := pattern.match(line))]


def requirements_of(metadata: Message) -> list[Requirement]:
    """Return what nbproc needs without any extra."""
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return [one for one in requirements if one.marker is None]


def lower_bound(requirement: Requirement) -> str:
    """Return the version after >=. Raises ValueError if there is none."""
    for specifier in requirement.specifier:
        if specifier.operator == ">=":
            return specifier.version
    raise ValueError(f"{requirement} has no lower bound that could be tried")


# ----------------------------------------------------------------------------------------------- interpreters and commands


def find(version: str) -> Path | None:
    """Return an interpreter of this version: from PATH, the one that runs this, or one of pyenv's; None without one."""
    on_path = (Path(folder) / f"python{version}" for folder in os.environ.get("PATH", "").split(os.pathsep))
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for candidate in itertools.chain(on_path, [Path(sys.executable)], root.glob(f"versions/{version}.*/bin/python")):
        if candidate.is_file() and full_version(candidate).startswith(f"{version}."):
            return candidate
    return None


def full_version(python: Path) -> str:
    """Return an interpreter's version, "" if it cannot be run."""
    ask = [str(python), "-I", "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()


def versions_in(python: Path, folder: Path) -> Mapping[str, str]:
    """Return the version of each package in an environment."""
    listed = command(
        [python, "-m", "pip", "list", "--disable-pip-version-check", "--format=json"], folder, errors=False
    )
    return {package["name"].lower(): package["version"] for package in json.loads(listed)}


def command(words: Sequence[str | Path], folder: Path, *, errors: bool = True) -> str:
    """Run to the end, away from the checkout and the user's settings. Raises `Failed`."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(map(str, words))} did not end in {PATIENCE} s") from error
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}\nended with {done.returncode}:\n{(done.stdout or '')[-4000:]}")
    return done.stdout


# ------------------------------------------------------------------------------------------------------------------ words


def table(tried: Sequence[Tried], packages: Sequence[str], missing: Sequence[str]) -> str:
    """Return what was tried, a line for each environment."""
    rows = [["Python", "from", "versions", *packages, "seconds", "result"]]
    for one in tried:
        kind = "wheel" if one.case.distribution.suffix == ".whl" else "sdist"
        versions = [one.versions.get(package, "none") for package in packages]
        result = "failed" if one.failure else "passed"
        python = one.versions.get("python", one.case.python)
        rows.append([python, kind, one.case.ends, *versions, f"{one.seconds:.0f}", result])
    rows += [[python, *[""] * (len(packages) + 3), "not tried"] for python in missing]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def say(words: str) -> None:
    """Say how far it is."""
    print(words, flush=True)


if __name__ == "__main__":
    sys.exit(main())
