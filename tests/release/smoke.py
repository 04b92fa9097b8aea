"""Try the nbproc that is installed for this interpreter, in a real kernel: each thing that a user does, once.

    python tests/release/smoke.py [--torch yes|no]

It needs what nbproc needs and nothing else (no pytest). What `--torch` says must be so: with torch, processes train
together and share a tensor; without it, what needs it must say so and everything else must work. The exit status is 1
at the first thing that is not as it should be.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # here only: what the kernel imports is what is installed

from kernels import PATIENCE, Kernel, Ran

WIDGET = "application/vnd.jupyter.widget-view+json"
OWN = """\
import os, threading
def tell(name):
    with open(name, "w") as file:
        file.write(str(os.getpid()))
def wait():
    threading.Event().wait()
"""


def main() -> int:
    """Return 0 if everything works."""
    options = argparse.ArgumentParser()
    options.add_argument("--torch", choices=("yes", "no"), help="whether torch must be there; default: as it is")
    torch = importlib.util.find_spec("torch") is not None
    wanted = options.parse_args().torch
    expect(wanted is None or torch == (wanted == "yes"), f"torch is {'' if torch else 'not '}installed")
    with tempfile.TemporaryDirectory(prefix="nbp-") as name:  # short: the path of a socket may have 107 bytes
        folder = Path(name)
        os.environ.update(surroundings(folder))
        os.chdir(folder)
        kernel = Kernel(folder)
        try:
            for step in [*STEPS, *(WITH_TORCH if torch else WITHOUT_TORCH), leaves_nothing]:
                began = time.monotonic()
                step(kernel)
                print(f"{time.monotonic() - began:6.2f} s  {step.__doc__}", flush=True)
        finally:
            if kernel.client.channels_running:
                kernel.close()
            said = (folder / "kernel.log").read_text()
            shutil.rmtree(folder / "runs", ignore_errors=True)
        expect("Traceback" not in said, f"the kernel's own output has a traceback:\n{said}")
    return 0


def surroundings(folder: Path) -> dict[str, str]:
    """Return variables that keep the user's settings and Python path out of the kernel."""
    os.environ.pop("PYTHONPATH", None)
    places = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR")
    for place in places:
        (folder / place[:9].lower()).mkdir(exist_ok=True)
    return {place: str(folder / place[:9].lower()) for place in places} | {
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or debugpy warns of how Python was built
    }


def expect(so: object, words: str) -> None:
    """End the program if something is not so."""
    if not so:
        print(f"It is not so: {words}", file=sys.stderr)
        sys.exit(1)


def fine(ran: Ran) -> Ran:
    """Return a cell that must have gone well."""
    expect(ran.ok, f"this cell goes well; it said:\n{ran.text}")
    return ran


def same(found: object, wanted: object) -> None:
    """End the program if something else was found than wanted."""
    expect(found == wanted, f"{found!r} is {wanted!r}")


def live_view(kernel: Kernel, ran: Ran) -> None:
    """Expect a view in the cell's output that a front end can draw: with a model, whose state is in the kernel."""
    views = [output["data"] for output in ran.of("display_data") if WIDGET in output["data"]]
    expect(len(views) == 1, f"one live view is shown; there are {len(views)}:\n{ran.text}")
    expect(views[0].get("text/plain"), "other readers get text")
    model = views[0][WIDGET]["model_id"]
    state = kernel.ask(f"__import__('ipywidgets').Widget.get_manager_state()['state'][{model!r}]")
    same(state["model_name"], "AnyModel")
    expect(len(state["state"]["_esm"]) > 10_000, "the view's bundle is in its state")


def saved_view(ran: Ran) -> str:
    """Return the HTML of a run that has ended, which needs no kernel."""
    (output,) = ran.of("display_data")
    same(set(output["data"]), {"text/html", "text/plain"})
    return str(output["data"]["text/html"])


# ------------------------------------------------------------------------------------------------------------- steps


def is_the_installed_one(kernel: Kernel) -> None:
    """The installed package is used, and loads"""
    fine(kernel.run("%load_ext nbproc"))
    fine(kernel.run("import nbproc\nlast = None\n" + OWN))
    where = Path(kernel.ask("nbproc.__file__"))
    site = Path(sysconfig.get_path("purelib"))
    expect(where.is_relative_to(site), f"{where} lies in {site}")
    same(kernel.ask("__import__('sys').executable"), sys.executable)
    same(kernel.ask("__import__('importlib.metadata').metadata.version('nbproc')"), kernel.ask("nbproc.__version__"))


def runs_a_cell(kernel: Kernel) -> None:
    """%%spawn: output, values by rank, and the saved view"""
    fine(kernel.run("scale = 10\ndef scaled(n):\n    return n * scale"))
    ran = fine(
        kernel.run("%%spawn -n 2 --as run --log-dir logs --redirects 3\nprint('hello from', rank)\nscaled(rank)")
    )
    same(kernel.ask("run.return_values"), {0: 0, 1: 10})
    for words in ("hello from 0", "hello from 1"):
        expect(words in saved_view(ran), f"the saved view holds {words!r}")
    logs = kernel.ask("[open(run.stdouts[rank]).read() for rank in (0, 1)]")
    same(logs, ["hello from 0\n", "hello from 1\n"])


def explains_a_failure(kernel: Kernel) -> None:
    """A rank that raises is named, with its traceback and the line of the cell"""
    ran = kernel.run("%%spawn -n 2\ndef check(n):\n    if n == 1:\n        raise ValueError(f'bad batch {n}')\n"
                     "    wait()\ncheck(rank)")  # fmt: skip
    same(ran.ename, "SpawnError")
    for words in (
        "rank 1 failed first: ValueError: bad batch 1",
        f"cell [{ran.count}]",
        "raise ValueError",
        "in check",
    ):
        expect(words in ran.error, f"the error says {words!r}:\n{ran.error}")
    expect(ran.seconds < PATIENCE / 2, "the other rank is ended at once")


def calls_functions(kernel: Kernel) -> None:
    """start_processes and spawn, with each start method"""
    for method in ("forkserver", "spawn", "fork"):
        ran = kernel.run(
            f"context = nbproc.start_processes('job', scaled, args={{0: (1,), 1: (2,)}}, envs={{0: {{}}, 1: {{}}}}, "
            f"start_method={method!r})\nresult = context.wait()\nresult.return_values"
        )
        same(fine(ran).value, "{0: 10, 1: 20}")
    fine(kernel.run("def write(i, name):\n    tell(f'{name}{i}')\nnbproc.spawn(write, ('by-spawn',), nprocs=2)"))
    expect(all((kernel.folder / f"by-spawn{i}").exists() for i in (0, 1)), "both ranks of spawn wrote")
    ran = kernel.run("def fail(i):\n    raise KeyError(i)\nnbproc.spawn(fail, nprocs=1)")
    same(ran.ename, "ProcessRaisedException")


def runs_programs(kernel: Kernel) -> None:
    """Programs as ranks: %spawn -- and start_processes with a path"""
    ran = fine(
        kernel.run(
            "%spawn -n 2 --as programs --log-dir logs --redirects 3 -- python -c \"import os; print('program', os.environ['RANK'])\" --seed {rank}"
        )
    )
    expect("program 1" in saved_view(ran), "the saved view holds what a program printed")
    same(kernel.ask("[open(programs.stdouts[rank]).read() for rank in (0, 1)]"), ["program 0\n", "program 1\n"])
    ran = kernel.run("%spawn -n 1 -- false")
    same(ran.ename, "SpawnError")
    expect("exited with code 1" in ran.error, f"the exit code is told:\n{ran.error}")


def shows_figures(kernel: Kernel) -> None:
    """What a rank displays arrives"""
    ran = fine(kernel.run("%%spawn -n 1\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>table</b>'))"))
    expect(html.escape("<b>table</b>") in saved_view(ran), "the saved view holds what was displayed")


def stops(kernel: Kernel) -> None:
    """The live view, Stop, and Interrupt: the ranks end, and the next run works"""
    ran = fine(kernel.run("%%spawn -n 2 --detach --as held\ntell(f'held{rank}')\nwait()"))
    kernel.take_in(lambda: all((kernel.folder / f"held{rank}").exists() for rank in (0, 1)), PATIENCE)
    live_view(kernel, ran)
    fine(kernel.run("held.stop()\nheld.wait()"))
    for rank in (0, 1):
        expect(gone(int((kernel.folder / f"held{rank}").read_text())), f"rank {rank} ended")
    ran = kernel.begin("%%spawn -n 2\ntell(f'busy{rank}')\nwait()")
    ran.until(lambda: all((kernel.folder / f"busy{rank}").exists() for rank in (0, 1)))
    kernel.interrupt()
    ran.end()
    same(ran.ename, "KeyboardInterrupt")
    expect("nothing left running" in ran.error, f"it is told as a stop:\n{ran.error}")
    fine(kernel.run("%%spawn -n 2 --as run\nrank"))
    same(kernel.ask("run.return_values"), {0: 0, 1: 1})


def gone(pid: int) -> bool:
    """Tell if no process has this id, or only a dead one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def shows_the_panel(kernel: Kernel) -> None:
    """nbproc.panel() shows the form"""
    live_view(kernel, fine(kernel.run("nbproc.panel()")))


def trains(kernel: Kernel) -> None:
    """With torch: DistributedDataParallel over gloo gives both ranks the same weights"""
    fine(
        kernel.run(
            "%%spawn -n 2 --as run\n"
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "torch.manual_seed(rank)\n"
            "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "for _ in range(3):\n"
            "    optimizer.zero_grad()\n"
            "    model(torch.randn(8, 4)).square().mean().backward()\n"
            "    optimizer.step()\n"
            "dist.destroy_process_group()\n"
            "model.module.weight.detach()",
            timeout=2 * PATIENCE,
        )
    )
    same(kernel.ask("run.return_values[0].tolist() == run.return_values[1].tolist()"), True)


def shares_a_tensor(kernel: Kernel) -> None:
    """With torch: ranks write to a shared tensor, and to a copy of an ordinary one"""
    fine(kernel.run("import torch\nours = torch.zeros(2).share_memory_()\ntheirs = torch.zeros(2)"))
    fine(kernel.run("%%spawn -n 2 --as run\nours[rank] = rank + 1\ntheirs += 1\ntheirs"))
    same(kernel.ask("(ours.tolist(), theirs.tolist())"), ([1.0, 2.0], [0.0, 0.0]))
    same(kernel.ask("run.return_values[1].tolist()"), [1.0, 1.0])
    fine(kernel.run("nbproc.set_sharing_strategy('file_system')"))
    fine(kernel.run("%%spawn -n 1 --as run\nnbproc.get_sharing_strategy()"))
    same(kernel.ask("run.return_values[0]"), "file_system")
    fine(kernel.run("nbproc.set_sharing_strategy('file_descriptor')"))


def says_that_torch_is_missing(kernel: Kernel) -> None:
    """Without torch: sharing strategies, torch's names and DDP raise an ImportError that names torch"""
    for call in (
        "nbproc.get_sharing_strategy()",
        "nbproc.get_all_sharing_strategies()",
        "nbproc.set_sharing_strategy('file_system')",
        "from nbproc.multiprocessing import Queue",
    ):
        ran = kernel.run(call)
        same(ran.ename, "DependencyError")
        expect("needs torch, which is not installed" in ran.error, f"{call} says what is missing:\n{ran.error}")
        expect("pip install torch" in ran.error, f"{call} says what to do:\n{ran.error}")
    same(kernel.ask("issubclass(nbproc.errors.DependencyError, ImportError)"), True)
    ran = kernel.run("%%spawn -n 2\nimport torch.distributed as dist\ndist.init_process_group('gloo')")
    expect("ModuleNotFoundError: No module named 'torch'" in ran.error, f"a rank's import is told:\n{ran.error}")
    ran = kernel.run("%%spawn -n 1 --numa-binding node\nrank")
    expect("--numa-binding needs torch" in ran.error, f"--numa-binding says what is missing:\n{ran.error}")
    same(kernel.ask("'torch' in __import__('sys').modules"), False)


def leaves_nothing(kernel: Kernel) -> None:
    """No process outlives the kernel"""
    import psutil  # nbproc needs it, so it is there

    processes = psutil.Process(kernel.pid).children(recursive=True)
    expect(processes, "there was something to end: the server of the ranks")
    kernel.close()
    _, left = psutil.wait_procs(processes, timeout=20)
    expect(not left, f"nothing is left: {left}")


STEPS: list[Callable[[Kernel], None]] = [
    is_the_installed_one,
    runs_a_cell,
    explains_a_failure,
    calls_functions,
    runs_programs,
    shows_figures,
    stops,
    shows_the_panel,
]
WITH_TORCH: list[Callable[[Kernel], None]] = [trains, shares_a_tensor]
WITHOUT_TORCH: list[Callable[[Kernel], None]] = [says_that_torch_is_missing]


if __name__ == "__main__":
    sys.exit(main())
