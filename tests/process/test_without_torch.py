"""Where torch is not installed, or an old one is: what needs it says so, and everything else works."""

from __future__ import annotations

from pathlib import Path

import plain

NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())

def words(call):
    try:
        return f"nothing was raised: {call()!r}"
    except ImportError as error:
        return f"{error.name}: {error}"
"""


def test_each_thing_that_only_torch_can_do_raises_an_import_error_that_names_it(tmp_path: Path) -> None:
    plain.write(tmp_path, NO_TORCH, "without.py")
    script = """
        import inspect, sys
        from without import words
        import nbproc
        import nbproc.multiprocessing as mp

        def queue():
            from nbproc.multiprocessing import Queue

        told = [
            words(nbproc.get_all_sharing_strategies),
            words(nbproc.get_sharing_strategy),
            words(lambda: nbproc.set_sharing_strategy("file_system")),
            words(queue),
            words(lambda: mp.get_context("spawn")),
            words(lambda: mp.__all__),
        ]
        for line in told:
            assert line.startswith("torch: "), line
            assert line.endswith(f" needs torch, which is not installed for {sys.executable}; pip install torch "
                                 "there, and start Python anew"), line
        assert told[2].startswith("torch: set_sharing_strategy('file_system') needs")
        assert told[3].startswith("torch: nbproc.multiprocessing.Queue needs")
        assert not hasattr(mp, "__wrapped__")
        assert "spawn" in dir(mp)
        assert issubclass(nbproc.errors.DependencyError, nbproc.NbprocError)
        mp.spawn(print, ("in a rank",), nprocs=1)
    """
    assert plain.lines(tmp_path, script) == ["0 in a rank"]


def test_a_torch_without_a_module_is_told_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.4.1'")
    script = """
        from nbproc.needs import torch_module
        try:
            torch_module("torch.numa.binding", "--numa-binding")
        except ImportError as error:
            print(error)
    """
    told = "--numa-binding needs torch.numa, which torch 2.4.1 does not have; install a newer torch"
    assert plain.lines(tmp_path, script) == [told]


def test_a_torch_that_is_there_but_broken_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import no_such_package")
    script = """
        import nbproc
        try:
            nbproc.get_sharing_strategy()
        except ImportError as error:
            print(error)
    """
    assert plain.lines(tmp_path, script) == ["No module named 'no_such_package'"]
