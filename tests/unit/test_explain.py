"""A failed run in words: the first cause on top, the others folded, the files named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nbproc.explain import first_line, head, headline, launch_line, ranks_words, report, text
from nbproc.failures import Oom, ProcessFailure, Trace, failure_of
from nbproc.failures.frames import Frame
from nbproc.states import RankSnapshot, RankState, RunState, Snapshot

CHECK = Frame(
    "/tmp/c.py",
    30,
    "check",
    ((29, "def check(batch):"), (30, "    assert_finite(batch)"), (31, "    return batch")),
    cell=3,
    columns=(4, 17),
)
TORCH = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py"


def failing(rank: int, trace: Trace, time: float = 100.0) -> ProcessFailure:
    data = {
        "message": {"message": trace.words, "extraInfo": {"timestamp": "100", "py_callstack": ""}},
        "nbproc": {"version": 1, "time": time, "trace": trace.to_json()},
    }
    return failure_of(rank, 1, 1, None, None, data=data)


def bad_batch(rank: int, time: float = 100.0, message: str = "bad batch 17") -> ProcessFailure:
    return failing(rank, Trace("ValueError", message, frames=(CHECK,)), time)


def lost(rank: int, port: int) -> ProcessFailure:
    frames = (
        Frame("/tmp/c.py", 19, "train", ((19, "dist.all_reduce(x)"),), cell=3),
        Frame("/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper"),
        Frame("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce"),
    )
    return failing(rank, Trace("RuntimeError", f"Connection closed by peer [127.0.0.1]:{port}", frames=frames), 99.9)


def run(*states: RankState, words: dict[int, str] | None = None, state: RunState = RunState.FAILED) -> Snapshot:
    ranks = tuple(RankSnapshot(n, s, words=(words or {}).get(n, "")) for n, s in enumerate(states))
    return Snapshot("trainer", state, ranks, run_dir=Path("runs/trainer-3"))


F, S, OK = RankState.FAILED, RankState.STOPPED, RankState.SUCCEEDED


def test_the_first_cause_is_on_top_and_the_others_are_folded():
    where = "stopped at train, cell [3] line 19, waiting in all_reduce"
    shown = report(run(S, S, F, S, words={0: where, 1: where, 3: where}), {2: bad_batch(2)})
    assert headline(shown) == "rank 2 failed first: ValueError: bad batch 17, in check, cell [3] line 30"
    assert text(shown).splitlines() == [
        "rank 2 failed first: ValueError: bad batch 17, in check, cell [3] line 30",
        "ranks 0, 1, 3 stopped at train, cell [3] line 19, waiting in all_reduce",
        "",
        "Traceback of rank 2 (most recent call last):",
        "  Cell In[3], line 30, in check",
        "      29  def check(batch):",
        "    > 30      assert_finite(batch)",
        "              ^^^^^^^^^^^^^",
        "      31      return batch",
        "ValueError: bad batch 17",
        "",
        "logs: runs/trainer-3",
    ]


def test_lost_connections_are_one_line_whatever_the_port():
    shown = report(run(F, F, F, OK), {0: lost(0, 1111), 1: lost(1, 2222), 2: bad_batch(2)})
    assert text(shown).splitlines()[:3] == [
        "rank 2 failed first: ValueError: bad batch 17, in check, cell [3] line 30",
        "ranks 0, 1 then lost the connection at train, cell [3] line 19, in all_reduce (RuntimeError)",
        "rank 3 had returned",
    ]
    assert [failure.local_rank for failure in shown.consequences] == [0, 1]


def test_a_program_does_not_return_it_exits():
    shown = report(run(OK, F), {1: failure_of(1, 1, 3, None, None, is_function=False)})
    assert text(shown).splitlines()[:2] == ["rank 1 exited with code 3", "rank 0 had exited with code 0"]


@pytest.mark.parametrize(
    ("failures", "line"),
    [
        ({r: bad_batch(r) for r in range(4)}, "ranks 0-3 failed (same): ValueError: bad batch 17, in check, "),
        ({r: bad_batch(r, message=f"bad batch in {r}") for r in range(4)}, "ranks 0-3 failed (same): ValueError: "),
        (
            {0: bad_batch(0, 5.0), 1: bad_batch(1, 9.0, "other"), 3: bad_batch(3, 6.0)},
            "ranks 0, 3 failed first (same): ValueError: bad batch 17, ",
        ),
        ({1: failure_of(1, 1, -9, None, None, oom=Oom.YES)}, "rank 1 was killed by SIGKILL (out of memory)"),
        (
            {r: failure_of(r, 1, 3, None, None) for r in (0, 1)},
            "ranks 0, 1 exited with code 3 before returning",
        ),
    ],
)
def test_headlines(failures: dict[int, ProcessFailure], line: str):
    shown = report(run(*(F if rank in failures else S for rank in range(4))), failures)
    assert headline(shown).startswith(line)
    assert "".join(piece.text for piece in head(shown)) == headline(shown)


def test_one_rank_alone_did_not_fail_first():
    assert headline(report(run(F), {0: bad_batch(0)})).startswith("rank 0 failed: ValueError")


def test_other_causes_have_their_own_line_and_equal_ones_are_folded():
    failures = {0: bad_batch(0, 1.0), **{rank: bad_batch(rank, 2.0, "other") for rank in (1, 2, 3)}}
    assert text(report(run(F, F, F, F), failures)).splitlines()[1] == (
        "ranks 1-3 failed (same): ValueError: other, in check, cell [3] line 30"
    )


def test_stderr_stands_in_for_a_traceback(tmp_path: Path):
    log = tmp_path / "stderr.log"
    log.write_text("loading\nkilled by nobody\n")
    shown = text(report(run(F), {0: failure_of(0, 1, -9, None, log)}))
    assert f"Last lines of rank 0's stderr ({log}):\n  loading\n  killed by nobody\n" in shown


def test_torchs_error_file_shows_its_traceback():
    extra = {"timestamp": "1", "py_callstack": "Traceback (most recent call last):\n  ...\nValueError: \x1b[31mx\n"}
    failure = failure_of(0, 1, 1, None, None, data={"message": {"message": "ValueError: x", "extraInfo": extra}})
    assert "Error file of rank 0:\nTraceback (most recent call last):\n  ...\nValueError: x\n" in text(
        report(run(F), {0: failure})
    )


def test_a_run_without_failures():
    where = "stopped at train, cell [3] line 19"
    stopped = report(run(S, S, words={0: where, 1: where}, state=RunState.STOPPED), {})
    assert headline(stopped) == "ranks 0, 1 stopped at train, cell [3] line 19"
    assert text(stopped).splitlines()[:2] == [headline(stopped), ""]
    assert headline(report(run(OK, OK, state=RunState.SUCCEEDED), {})) == "ranks 0, 1 returned"
    assert headline(report(run(RankState.RUNNING, state=RunState.RUNNING), {})) == "running"


def test_colour_on_request_only_and_it_changes_no_letter():
    shown = report(run(S, F), {1: bad_batch(1)})
    assert "\x1b" not in text(shown)
    assert re.sub(r"\x1b\[[\d;]*m", "", text(shown, color=True)) == text(shown)
    assert "\x1b[0;1mrank 1 failed first:\x1b[0m" in text(shown, color=True)


def test_the_headline_can_be_read_on_any_background():
    """JupyterLab paints errors on light and on dark red; its two reds are below 3:1 on one of these each."""
    shown = report(run(S, F), {1: bad_batch(1)})
    assert set(re.findall(r"\x1b\[([\d;]*)m", first_line(shown, color=True))) <= {"0", "0;1", "1"}


def test_library_code_is_folded():
    own = Frame("/home/me/net.py", 7, "Net.forward", ((7, "    return self.body(x)"),))
    library = tuple(Frame(TORCH, 1700 + n, f"f{n}", ((1700 + n, "call()"),)) for n in range(5))
    shown = text(
        report(run(F), {0: failing(0, Trace("RuntimeError", "shapes", frames=(own, *library, own, *library)))})
    )
    assert shown.count("Net.forward") == 3
    assert "  ... 5 more frames in torch ..." in shown
    assert "  ... 3 more frames in torch ..." in shown
    assert "  torch/nn/modules/module.py, line 1704, in f4\n    > 1704  call()" in shown


def test_markers_stand_under_wide_characters():
    frame = Frame("/tmp/c.py", 1, "<module>", ((1, "x = '世界' + y"),), cell=1, columns=(11, 12))
    lines = text(report(run(F), {0: failing(0, Trace("NameError", "y", frames=(frame,)))})).splitlines()
    at = next(index for index, line in enumerate(lines) if "世界" in line)
    assert lines[at + 1].index("^") == lines[at].index("+ y") + 2 + 2  # each wide character takes one column more


def test_messages_are_short_and_do_nothing_to_the_terminal():
    message = "\x1b[2J\x07" + "\n".join(f"line {n}" for n in range(500))
    shown = text(report(run(F), {0: bad_batch(0, message=message)}))
    assert "\x1b" not in shown
    assert "\\x07line 0" in shown
    assert "... 460 lines cut ..." in shown
    assert shown.count("\n") < 70


def test_groups_of_exceptions_are_indented():
    inner = Trace("KeyError", "'k'", frames=(CHECK,))
    group = Trace("ExceptionGroup", "several (1 sub-exception)", group=(inner,), notes=("seen at night",))
    assert (
        "ExceptionGroup: several (1 sub-exception)\n"
        "seen at night\n"
        "  +- exception 1 of 1 in the group\n"
        "  |   Cell In[3], line 30, in check\n"
        "  |     > 30  assert_finite(batch)\n"
        "  |           ^^^^^^^^^^^^^\n"
        "  | KeyError: 'k'\n"
    ) in text(report(run(F), {0: failing(0, group)}))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0, 1"),
        ([3, 0, 1], "ranks 0, 1, 3"),
        ([0, 1, 2, 3, 7], "ranks 0-3, 7"),
        (range(0, 2048, 2), "1,024 ranks (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ...)"),
    ],
)
def test_ranks_in_words(ranks: list[int], words: str):
    assert ranks_words(ranks) == words


def test_ranks_that_ended_in_the_same_way_are_one_also_where_the_code_is_their_number(tmp_path: Path):
    ended = {rank: failure_of(rank, 5, 1, None, None, is_function=False) for rank in range(3)}
    shown = report(run(F, F, F), ended)
    assert shown.headline == "ranks 0-2 exited with code 1"
    assert shown.groups == ()


def test_several_ranks_were_killed():
    shown = report(run(F, F), {rank: failure_of(rank, 5, -15, None, None) for rank in range(2)})
    assert shown.headline == "ranks 0, 1 were killed by SIGTERM (from outside this run)"


def test_the_launch_is_one_line():
    snapshot = Snapshot("t", RunState.RUNNING, run(OK, OK).ranks, notes=("sent train (12 kB)", "OMP_NUM_THREADS=1"))
    assert launch_line(snapshot) == "2 ranks, sent train (12 kB), OMP_NUM_THREADS=1"
