"""S26: `nbproc.multiprocessing` stands in for torch.multiprocessing when the import line is changed."""

from __future__ import annotations

from pathlib import Path

import plain
import pytest
import torch.multiprocessing

import nbproc
import nbproc.multiprocessing as mp

OURS = {
    "ProcessContext": nbproc.ProcessContext,
    "SpawnContext": nbproc.SpawnContext,
    "ProcessRaisedException": nbproc.ProcessRaisedException,
    "ProcessExitedException": nbproc.ProcessExitedException,
    "spawn": nbproc.spawn,
}


@pytest.mark.parametrize("name", sorted(set(dir(torch.multiprocessing)) - set(dir(mp.__spec__)) - {"__all__"}))
def test_every_name_of_torchs_is_there(name: str) -> None:
    value = getattr(mp, name)
    if name in OURS:
        assert value is OURS[name]
    elif not name.startswith("__") and name not in ("start_processes",) and "sharing_strateg" not in name:
        assert value is getattr(torch.multiprocessing, name)


def test_a_name_that_torch_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'nbproc\.multiprocessing' has no attribute 'nonsense'"):
        _ = mp.nonsense
    assert not hasattr(mp, "nonsense")


def test_it_lists_both() -> None:
    assert {"spawn", "start_processes", "Queue", "get_context", "ProcessContext"} <= set(dir(mp))
    names: dict[str, object] = {}
    exec("from nbproc.multiprocessing import *", names)
    assert names["spawn"] is nbproc.spawn
    assert {"Queue", "Process", "get_context", "set_sharing_strategy"} <= set(names)


def test_torch_is_imported_when_it_is_needed_only(tmp_path: Path) -> None:
    script = """
        import sys
        import nbproc
        import nbproc.multiprocessing as mp

        def work(i, word):
            assert word == "x"

        def fail(i):
            raise KeyError(i)

        mp.spawn(work, ("x",), nprocs=2)
        context = mp.start_processes(work, args=("x",), nprocs=2, join=False, daemon=True, start_method="spawn")
        while not context.join():
            pass
        try:
            mp.start_processes(fail, nprocs=1, start_method="fork")
        except mp.ProcessRaisedException as error:
            assert str(error).endswith("KeyError: 0\\n"), str(error)
        assert nbproc.multiprocessing is mp
        assert "torch" not in sys.modules
        mp.get_context("spawn")
        assert "torch" in sys.modules
        print("ok")
    """
    done = plain.run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_an_example_of_torchs_page_with_the_import_line_changed(tmp_path: Path) -> None:
    script = """
        import nbproc.multiprocessing as mp
        import torch

        def train(rank, model, queue):
            with torch.no_grad():
                model.weight += 1
            queue.put(rank)

        if __name__ == "__main__":
            mp.set_start_method("spawn")
            model = torch.nn.Linear(1, 1)
            model.share_memory()
            before = model.weight.item()
            queue = mp.get_context("spawn").SimpleQueue()
            mp.spawn(train, args=(model, queue), nprocs=2, join=True)
            assert sorted([queue.get(), queue.get()]) == [0, 1]
            assert before < model.weight.item() < before + 2.01  # two additions, of which one may be lost
            print("ok")
    """
    assert plain.lines(tmp_path, script) == ["ok"]
