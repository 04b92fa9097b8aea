"""Programs as ranks: ``%spawn -- program`` and cells that are scripts."""

from __future__ import annotations

import sys

from kernels import Kernel

TRAIN = """\
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
given = parser.parse_args()
print(given.lr, given.seed, os.environ["RANK"], os.environ["WORLD_SIZE"], sys.executable)
"""


def logs(kernel: Kernel, name: str, ranks: int, stream: str = "stdout") -> list[str]:
    return [(kernel.folder / "logs" / name / str(rank) / f"{stream}.log").read_text() for rank in range(ranks)]


def test_a_script_with_arguments_of_the_notebook_and_of_the_rank(kernel: Kernel) -> None:
    (kernel.folder / "train.py").write_text(TRAIN)
    kernel.run("lr, extra = 0.1, ['--seed', 7]")
    ran = kernel.run("%spawn -n 2 --log-dir logs -r 3 -- python train.py --lr {lr * 2} --seed {rank}")
    assert ran.ok, ran.text
    assert logs(kernel, "train-1", 2) == [f"0.2 {rank} {rank} 2 {sys.executable}\n" for rank in range(2)]
    assert kernel.ask("list(_)") == [None, None]
    assert "the result is in _" in ran.text
    assert kernel.run("%spawn -n 1 --log-dir logs -r 3 -- python train.py --lr $lr $extra").ok
    assert logs(kernel, "train-2", 1) == [f"0.1 7 0 1 {sys.executable}\n"]


def test_a_cell_as_a_script_of_an_interpreter(kernel: Kernel) -> None:
    script = 'echo "$RANK of $WORLD_SIZE {not} $HOME_OF_NOTHING."\nexit 0'
    ran = kernel.run(f"%%spawn -n 2 --exec bash --name sh --log-dir logs -r 3\n{script}")
    assert ran.ok, ran.text
    assert logs(kernel, "sh-1", 2) == ["0 of 2 {not} .\n", "1 of 2 {not} .\n"]
    ran = kernel.run("%%spawn -n 2 --exec python --name py --log-dir logs -r 3\nimport os\nprint(os.environ['RANK'])")
    assert ran.ok, ran.text
    assert logs(kernel, "py-1", 2) == ["0\n", "1\n"]
    failed = kernel.run("%%spawn -n 1 --exec bash\necho sorry >&2\nexit 3")
    assert failed.error.splitlines()[0] == "rank 0 exited with code 3"
    assert "  sorry" in failed.error
    assert "there is no executable 'nosuchshell'" in kernel.run("%%spawn -n 2 --exec nosuchshell\n1").error


def test_a_program_that_fails_shows_its_last_lines_and_under_record_its_traceback(kernel: Kernel) -> None:
    ran = kernel.run("%spawn -n 1 -- python -c \"print('before'); raise ValueError('in the program')\"")
    assert ran.ename == "SpawnError"
    assert ran.error.splitlines()[0] == "rank 0 exited with code 1: ValueError: in the program"
    assert "  ValueError: in the program" in ran.error
    for number, package in enumerate(("nbproc", "torch.distributed.elastic.multiprocessing.errors")):
        (kernel.folder / f"recorded{number}.py").write_text(
            f"from {package} import record\n@record\ndef main():\n    raise ValueError('told')\nmain()\n"
        )
        ran = kernel.run(f"%spawn -n 1 -- python recorded{number}.py")
        assert "ValueError: told" in ran.error.splitlines()[0], ran.error
        assert "line 4" in ran.error
        assert "raise ValueError('told')" in ran.error


def test_a_program_that_is_missing_or_no_program(kernel: Kernel) -> None:
    (kernel.folder / "plain.txt").write_text("no program")
    for program, words in {
        "nosuchprogram": "there is no executable 'nosuchprogram' on the PATH. Nothing was started.",
        "./plain.txt": "is not executable (chmod +x makes it so). Nothing was started.",
        ".": "Nothing was started.",
    }.items():
        ran = kernel.run(f"%spawn -n 2 -- {program}")
        assert words in ran.error
        assert len(ran.error.splitlines()) == 1


def test_a_program_that_ignores_sigterm_goes_too(kernel: Kernel) -> None:
    script = "trap '' INT TERM\ntouch ignoring\nwhile true; do sleep 0.1; done"
    ran = kernel.begin(f"%%spawn -n 1 --exec bash --grace 0.3\n{script}")
    ran.until(lambda: (kernel.folder / "ignoring").exists())
    kernel.interrupt()
    ran.end()
    assert ran.ename == "KeyboardInterrupt"
    assert "nothing left running" in ran.error


def test_a_program_reads_no_input_of_the_kernel(kernel: Kernel) -> None:
    assert kernel.run("%spawn -n 1 --timeout 20 -- cat").ok


def test_a_detached_program(kernel: Kernel) -> None:
    assert kernel.run("%spawn -n 2 --detach --as job -- echo {rank}").ok
    assert kernel.run("job.wait().return_values").value == "{0: None, 1: None}"
