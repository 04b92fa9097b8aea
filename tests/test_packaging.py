"""What is built from a checkout: complete, and importable where nothing else is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRONTEND = ROOT / "nbproc" / "notebook" / "frontend"


def build(kind: str, source: Path, target: Path) -> Path:
    """Build with the tools that are installed, so that nothing is fetched."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", f"--{kind}"]
    answer = subprocess.run(
        [*command, "--outdir", str(target), str(source)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from the unpacked sdist, as an installer does, with no node on PATH."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent))
        return build("wheel", source, tmp_path_factory.mktemp("wheel"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_and_nothing_of_the_front_ends_source(wheel: Path) -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "nbproc").rglob("*.py")
        if FRONTEND not in path.parents and "__pycache__" not in path.parts
    }
    packed = {name for name in names(wheel) if name.startswith("nbproc/")}
    assert modules | {"nbproc/py.typed"} <= packed
    assert not {name for name in packed if "frontend" in name}


def test_the_wheel_carries_the_front_ends_bundle(wheel: Path) -> None:
    bundle = {f"nbproc/notebook/static/{part}" for part in ("view.js", "view.css", "panel.js", "panel.css")}
    assert bundle <= names(wheel)


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, cwd=folder)
    return python


@pytest.mark.slow
def test_the_wheel_imports_in_an_empty_environment(empty: Path, tmp_path: Path) -> None:
    look = (
        "import nbproc, sys, importlib.metadata as m; print(nbproc.__version__ == m.version('nbproc'), nbproc.__file__)"
    )
    answer = subprocess.run([str(empty), "-I", "-c", look], check=True, capture_output=True, text=True, cwd=tmp_path)
    same, where = answer.stdout.split()
    assert same == "True"
    assert Path(where).is_relative_to(empty.parents[1])


@pytest.mark.slow
def test_the_wheel_works_in_a_kernel_where_torch_is_missing(empty: Path, tmp_path: Path) -> None:
    """`make dist` runs the same with every Python, with torch and without, in environments made by pip."""
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"torch|functorch|nbproc|.*\.pth$", package.name):
            (borrowed / package.name).symlink_to(package)
    site = subprocess.run(
        [str(empty), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (Path(site.stdout.strip()) / "borrowed.pth").write_text(f"{borrowed}\n")
    smoke = [str(empty), str(ROOT / "tests" / "release" / "smoke.py"), "--torch", "no"]
    answer = subprocess.run(smoke, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
