"""What the kernel is at the moment of the launch, the ranks are too."""

from __future__ import annotations

import os

from kernels import Kernel


def test_a_helper_module_is_found_and_its_edits_are_seen(kernel: Kernel) -> None:
    (kernel.folder / "helper_mod.py").write_text("def answer():\n    return 1\n")
    kernel.run("import helper_mod, importlib\ndef ask():\n    return helper_mod.answer()")
    assert kernel.run("%spawn -n 2 ask()").ok
    assert kernel.ask("list(_)") == [1, 1]
    (kernel.folder / "helper_mod.py").write_text("def answer():\n    return 'edited'\n")
    os.utime(kernel.folder / "helper_mod.py", (1, 1))  # a time stamp of its own, whatever the clock's grain
    assert kernel.run("importlib.reload(helper_mod)\nhelper_mod.answer()").value == "'edited'"
    assert kernel.run("%spawn -n 2 ask()").ok
    assert kernel.ask("list(_)") == ["edited", "edited"]
    assert kernel.run("%%spawn -n 1\nfrom helper_mod import answer\nanswer()").ok
    assert kernel.ask("_[0]") == "edited"


def test_path_directory_and_environment_of_the_moment(kernel: Kernel) -> None:
    other = kernel.folder / "other"
    other.mkdir()
    (other / "lib_there.py").write_text("NAME = 'there'\n")
    kernel.run(f"import sys, os\nsys.path.append({str(other)!r})\nos.environ['SET_NOW'] = 'yes'\nhere = os.getcwd()")
    kernel.run("%cd other")
    try:
        ran = kernel.run(
            "%%spawn -n 2\nimport lib_there\n[lib_there.NAME, os.environ['SET_NOW'], os.path.basename(os.getcwd())]"
        )
        assert ran.ok, ran.text
        assert kernel.ask("list(_)") == [["there", "yes", "other"]] * 2
    finally:
        kernel.run("%cd -q {here}\ndel os.environ['SET_NOW']")
    assert kernel.run("%%spawn -n 1\nos.environ.get('SET_NOW'), os.getcwd() == here").ok
    assert kernel.ask("_[0]") == (None, True)


def test_random_numbers_differ_between_ranks_and_runs(kernel: Kernel) -> None:
    cell = "import random, torch\n(random.random(), torch.rand(1).item())"
    seen = set()
    for _ in range(2):
        assert kernel.run(f"%%spawn -n 2\n{cell}").ok
        for first, second in kernel.ask("list(_)"):
            seen |= {first, second}
    assert len(seen) == 8


def test_a_change_in_a_rank_does_not_reach_the_kernel(kernel: Kernel) -> None:
    kernel.run("state = {'a': 1}\nimport os")
    assert kernel.run("%%spawn -n 2\nstate['a'] = rank\nos.environ['LEAK'] = '1'\nos.chdir('/')\nstate").ok
    assert kernel.ask("(state, 'LEAK' in os.environ, os.getcwd() != '/')") == ({"a": 1}, False, True)


def test_what_a_rank_displays_is_kept(kernel: Kernel) -> None:
    kernel.run("from IPython.display import HTML, display\nimport pandas as pd")
    ran = kernel.run(
        "%%spawn -n 2 --detach --as shown\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"
        "display(HTML('<b>rank</b>'))\npd.DataFrame({'a': [rank]})"
    )
    assert ran.ok, ran.text
    assert kernel.run("shown.wait().is_failed()").value == "False"
    files = kernel.ask("sorted(p.name for p in shown.files.root.glob('1/display/*'))")
    assert [name for name in files if name.endswith(".png")]
    assert len([name for name in files if name.endswith(".html")]) == 2


def test_ddp_and_data_loaders_in_the_ranks(kernel: Kernel) -> None:
    kernel.run(
        "import torch, torch.distributed as dist\n"
        "class Numbers(torch.utils.data.Dataset):\n    def __len__(self):\n        return 8\n"
        "    def __getitem__(self, i):\n        return torch.full((2,), float(i))\n"
        "def fit():\n"
        "    dist.init_process_group('gloo')\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)\n"
        "    for batch in loader:\n        model(batch).sum().backward()\n"
        "    grad = model.module.weight.grad.clone()\n    dist.destroy_process_group()\n    return grad"
    )
    assert kernel.run("%spawn -n 2 --as fitted fit()").ok
    assert kernel.run("torch.equal(fitted[0], fitted[1])").value == "True"
