"""``nbproc.start_processes`` in a kernel: its text where no view stands, and launches from all kinds of places."""

from __future__ import annotations

import pytest

from kernels import Kernel


@pytest.fixture(scope="module", autouse=True)
def names(kernel: Kernel) -> None:
    ran = kernel.always(
        "import nbproc, os, sys, threading\n"
        "ALL = nbproc.Std.ALL\n"
        "def say(*words):\n    print('out', *words)\n    print('err', *words, file=sys.stderr)\n    return words[0]\n"
        "def after(path, *words):\n    open(path).read()\n    return say(*words)\n"
    )
    assert ran.ok, ran.text


def test_lines_that_are_not_redirected_go_to_one_output_of_the_cell(kernel: Kernel) -> None:
    ran = kernel.run("ctx = nbproc.start_processes('a', say, args={0: (1,), 1: (2,)})\nctx.wait().return_values")
    assert ran.value == "{0: 1, 1: 2}"
    (shown,) = ran.shown
    assert sorted(shown.splitlines()) == ["[a0]:err 1", "[a0]:out 1", "[a1]:err 2", "[a1]:out 2"]
    assert ran.stdout == ran.stderr == ""


def test_redirected_streams_are_not_shown_and_teed_ones_are(kernel: Kernel) -> None:
    ran = kernel.run("nbproc.start_processes('b', say, args={0: (1,)}, redirects=ALL).wait()[0]")
    assert ran.value == "1"
    assert ran.shown == []
    ran = kernel.run(
        "nbproc.start_processes('b', say, args={0: (1,), 1: (2,)}, redirects=ALL, tee={1: nbproc.Std.ERR},\n"
        "                       log_line_prefixes={1: '<one> '}).wait()[0]"
    )
    assert [shown for shown in ran.shown if shown] == ["<one> err 2"]
    ran = kernel.run("nbproc.start_processes('b', say, args=(7,), nprocs=3, tee=ALL, local_ranks_filter=[2]).wait()[0]")
    (shown,) = ran.shown
    assert sorted(shown.splitlines()) == ["[b2]:err 7", "[b2]:out 7"]


def test_where_a_view_stands_there_is_no_text(kernel: Kernel) -> None:
    ran = kernel.run("ctx = nbproc.start_processes('c', say, args={0: (1,)})\nctx.wait()\nctx")
    first, view = ran.shown
    assert first == ""
    assert view.startswith("c: ")


def test_many_lines_leave_the_last_ones(kernel: Kernel) -> None:
    kernel.run("def many():\n    for i in range(1000):\n        print('line', i)")
    ran = kernel.run("nbproc.start_processes('d', many, args={0: ()}).wait()[0]")
    (shown,) = ran.shown
    assert "800 older lines in " in shown
    assert shown.endswith("[d0]:line 999")


def test_a_context_reads_well_and_its_failure_is_explained(kernel: Kernel) -> None:
    kernel.run("ctx = nbproc.start_processes('e', 'false', args={0: ()})\nresult = ctx.wait()")
    ran = kernel.run("result")
    assert ran.value == "RunProcsResult of 1 rank, rank 0 failed\n  rank 0: exited with code 1"
    failed = kernel.run("ctx.result()")
    assert failed.ename == "SpawnError"
    assert failed.error.startswith("rank 0 exited with code 1\n")
    assert "Traceback" not in failed.error


def test_wrong_arguments_are_told(kernel: Kernel) -> None:
    ran = kernel.run("nbproc.start_processes('f', say, args={0: (), 2: ()})")
    assert ran.ename == "PlanError"
    assert "rank 1 missing; rank 2 not expected" in ran.error


def test_two_detached_runs_keep_their_lines_apart(kernel: Kernel) -> None:
    kernel.run("for name in ('p', 'q'): os.mkfifo(name)")
    p = kernel.run("p = nbproc.start_processes('p', after, args={r: ('p', r) for r in range(1)})")
    q = kernel.run("q = nbproc.start_processes('q', after, args={r: ('q', r) for r in range(1)})")
    for name in ("q", "p"):
        (kernel.folder / name).write_text("go")
    last = kernel.run("[run.wait()[0] for run in (p, q)]")
    assert last.value == "[0, 0]"
    p.until(lambda: p.shown[0] and q.shown[0])
    assert sorted(p.shown[0].splitlines()) == ["[p0]:err 0", "[p0]:out 0"]
    assert sorted(q.shown[0].splitlines()) == ["[q0]:err 0", "[q0]:out 0"]
    assert last.shown == []


def test_another_cell_runs_while_a_detached_one_goes_on(kernel: Kernel) -> None:
    kernel.run("os.mkfifo('r')")
    first = kernel.run("%%spawn -n 1 --detach --as r\nopen('r').read()\nprint('of the first')\n1")
    other = kernel.run("%%spawn -n 1\nprint('of the second')\n2")
    assert kernel.ask("_[0]") == 2
    (kernel.folder / "r").write_text("go")
    assert kernel.run("r.wait()[0]").value == "1"
    assert "of the first" not in other.text
    assert "of the second" not in first.text


def test_from_a_thread_that_ends(kernel: Kernel) -> None:
    ran = kernel.run(
        "found = []\n"
        "thread = threading.Thread(target=lambda: found.append(nbproc.start_processes('t', say, args={0: (3,)})))\n"
        "thread.start()\nthread.join()\nfound[0].wait()[0]"
    )
    assert ran.value == "3", ran.text


def test_from_asyncio(kernel: Kernel) -> None:
    ran = kernel.run(
        "import asyncio\nasync def launch():\n"
        "    context = nbproc.start_processes('t', say, args={0: (4,)})\n"
        "    return (await asyncio.to_thread(context.wait))[0]\nawait launch()"
    )
    assert ran.value == "4", ran.text


def test_from_a_button(kernel: Kernel) -> None:
    ran = kernel.run(
        "import ipywidgets\nfound = []\nbutton = ipywidgets.Button()\n"
        "button.on_click(lambda _: found.append(nbproc.start_processes('t', say, args={0: (5,)})))\n"
        "button.click()\nfound[0].wait()[0]"
    )
    assert ran.value == "5", ran.text


def test_a_magic_from_a_function_and_from_a_loop(kernel: Kernel) -> None:
    ran = kernel.run(
        "def launch(n):\n    get_ipython().run_line_magic('spawn', f'-n {n} say(rank)')\n    return _\n"
        "for n in (1, 2):\n    launch(n)\nlist(_)"
    )
    assert ran.value == "[0, 1]", ran.text


def test_two_runs_at_once_from_threads(kernel: Kernel) -> None:
    ran = kernel.run(
        "import concurrent.futures\n"
        "def one(i):\n    return nbproc.start_processes(f't{i}', say, args={0: (i,), 1: (i,)}).wait().return_values\n"
        "with concurrent.futures.ThreadPoolExecutor(4) as pool:\n    found = list(pool.map(one, range(4)))\nfound"
    )
    assert ran.value == str([{0: i, 1: i} for i in range(4)]), ran.text


def test_a_run_inside_a_rank(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%spawn -n 1\nimport nbproc\nnbproc.start_processes('inner', abs, args={0: (-rank - 3,), 1: (-1,)}).wait()[0]"
    )
    assert ran.ok, ran.text
    assert kernel.ask("_[0]") == 3


def test_spawn_of_torchs_kind(kernel: Kernel) -> None:
    kernel.run("def third(i, x):\n    if i == 2: raise ValueError(f'bad {x}')")
    assert kernel.run("nbproc.spawn(third, args=('batch',), nprocs=2)").ok
    ran = kernel.run("nbproc.spawn(third, args=('batch',), nprocs=3)")
    assert ran.ename == "ProcessRaisedException"
    assert "ValueError: bad batch" in ran.error
