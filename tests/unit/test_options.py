"""Option lines, as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from nbproc.errors import OptionError
from nbproc.logs.std import Std
from nbproc.notebook.option_help import complete, help_text
from nbproc.notebook.option_table import KINDS, TABLE, Kind
from nbproc.notebook.options import Options, parse

NOTEBOOK: dict[str, Any] = {
    "n": 3,
    "lr": 0.125,
    "opts": "-n 2 --timeout 5",
    "files": ["a.txt", "b c.txt"],
    "where": "/data/my runs",
    "rank": 77,
    "cfg": {"depth": 4},
}
ENVIRON = {"HOME": "/home/ada", "WORLD_SIZE": "99"}


def options(line: str, kind: Kind = "%%spawn", base: Options | None = None) -> Options:
    return parse(line, kind, namespace=NOTEBOOK, environ=ENVIRON, base=base or Options())


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("-n 4", "nproc", 4),
        ("-n4", "nproc", 4),
        ("-n=4", "nproc", 4),
        ("--nproc-per-node 4", "nproc", 4),
        ("--nproc_per_node=4", "nproc", 4),
        ("-n gpu", "nproc", "gpu"),
        ("-n {n + 1}", "nproc", 4),
        ("-n $n", "nproc", 3),
        ("-n 2 --as out", "result_name", "out"),
        ("-n 2 --name trainer", "name", "trainer"),
        ("-n 2 --detach", "detach", True),
        ("-n 2 --timeout 1.5", "timeout", 1.5),
        ("-n 2 --grace 3", "grace", 3.0),
        ("-n 2 --shutdown-timeout 3", "grace", 3.0),
        ("-n 2 --log-dir $where", "log_dir", "/data/my runs"),
        ("-n 2 --log-dir ${HOME}/logs", "log_dir", "/home/ada/logs"),
        ("-n 2 --log-dir '$where'", "log_dir", "$where"),
        ("-n 2 --log-dir {where!r:.5}", "log_dir", "'/dat"),
        ("-n 2 -r 3", "redirects", Std.ALL),
        ("-n 2 -t 0:3,1:0", "tee", {0: Std.ALL, 1: Std.NONE}),
        ("-n 2 --local-ranks-filter 0,12", "local_ranks_filter", (0, 12)),
        ("-n 2 --filter loss --filter 'two words'", "filters", ("loss", "two words")),
        ('-n 2 --filter "{{" --filter $$', "filters", ("{", "$")),
        ("-n 2 --duplicate-stdout-filters apple,pear,,tree", "stdout_filters", ("apple", "pear,tree")),
        ("-n 2 --duplicate_stderr_filters apple", "stderr_filters", ("apple",)),
        ("-n 2 --start-method spawn", "start_method", "spawn"),
        ("-n 2 --numa-binding node", "numa_binding", "node"),
        ("-n 2 --exec bash", "interpreter", "bash"),
        ("-n 2 --no-check", "check", False),
        ("-n 2 --quiet", "quiet", True),
        ("$opts", "timeout", 5.0),
        ("{opts} --timeout 6", "timeout", 6.0),
        ("--help", "help", True),
        ("-n 2 -h", "help", True),
        ("-n 2 # don't count {these", "nproc", 2),
        ("-n 2\t#two ranks", "nproc", 2),
        ("-n 2 --name a#b", "name", "a#b"),
        ("-n 2 --filter '#' --filter \"# x\" --name z # it", "filters", ("#", "# x")),
    ],
)
def test_an_option_is_read(line: str, field: str, value: object) -> None:
    assert getattr(options(line), field) == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "how many ranks? Say -n 4, or -n gpu, or %spawn_config -n 4"),
        ("-n", "-n needs a value: -n N"),
        ("# -n 2", "how many ranks?"),
        ("-n # two", "-n needs a value: -n N (# begins a comment"),
        ("-n 2 --filter #tag # x", "--filter needs a value: --filter TEXT (# begins a comment; '#tag' does not)"),
        ("-n --detach", "-n needs a value"),
        ("-n 0", "-n 0: expected a number of ranks from 1, or gpu, cpu, auto"),
        ("-n 40000", "-n 40000: more than 1024 ranks on one machine cannot be meant"),
        ("-n -1", "-n -1: expected a number of ranks"),
        ("-n four", "-n four: expected a number"),
        ("-n 2 --fliter x", "there is no option --fliter; did you mean --filter?"),
        ("-n 2 --zzzzzz", "there is no option --zzzzzz; see --help"),
        ("--nproc 2", "there is no option --nproc; did you mean --nproc-per-node?"),
        ("-np 2", "there is no option -np: write -n"),
        ("-n 2 --nnodes=2", "there is no option --nnodes: all ranks are on this machine"),
        ("-n 2 --rdzv_backend c10d", "there is no option --rdzv-backend: leave it out, ranks find each other"),
        ("-n n", "-n n: expected a number of ranks from 1, or gpu, cpu, auto; did you mean $n?"),
        ("4", "'4' is no option; did you mean -n 4?"),
        ("gpu", "'gpu' is no option; did you mean -n gpu?"),
        ("-n 2 4", "'4' is no option; for a program write %spawn (one percent sign) ... -- 4"),
        ("-n 2 train", "'train' is no option; for a call write %spawn (one percent sign) ... train(...)"),
        ("-n 2 train(cfg, 1)", "for a call write %spawn (one percent sign) ... train(cfg, 1)"),
        (
            "-n 2 python train.py",
            "'python' is no option; for a program write %spawn (one percent sign) ... -- python train.py",
        ),
        ("-n 2 train.py", "'train.py' is no option; for a program write %spawn"),
        ("-n 2 -name x", "there is no option -name; did you mean --name?"),
        ("-n 2 -- python", "a program after -- is for %spawn (one percent sign)"),
        ("-n 2 --as 1st", "--as 1st: expected a name that a variable can have"),
        ("-n 2 --as class", "--as class: expected a name"),
        ("-n 2 --name a/b", "--name a/b: expected a name without a slash"),
        ("-n 2 --timeout soon", "--timeout soon: expected a number of seconds"),
        ("-n 2 --timeout nan", "--timeout nan: expected a number of seconds"),
        ("-n 2 --grace -1", "--grace -1: expected a number of seconds"),
        ("-n 2 -r 9", "-r 9: streams '9'"),
        ("-n 2 --start-method thread", "--start-method thread: expected one of forkserver, spawn, fork"),
        ("-n 2 --local-ranks-filter a", "--local-ranks-filter a: expected ranks, such as 0,2"),
        ("-n 2 --env A", "--env A: expected NAME=VALUE, or RANK:NAME=VALUE"),
        ("-n 2 --env 2:A=1", "--env 2:A: there is no rank 2, the last is 1"),
        ("-n 2 --detach=1", "--detach takes no value"),
        ("-n 2 --filter ''", "--filter '': expected a text that is not empty"),
        ("-n 2 --log-dir {nope}", "{nope}: nope is not defined in the notebook"),
        ("-n 2 --log-dir $nope/x", "$nope: nope is not defined in the notebook"),
        ("-n 2 --log-dir {1/0}", "{1/0}: ZeroDivisionError: division by zero"),
        ("-n 2 --log-dir {where:d}", "{where:d}: ValueError"),
        ("-n 2 --log-dir {where", "is not closed"),
        ("-n 2 --log-dir {}", "{} is empty"),
        ("-n 2 --log-dir 'x", "the quote ' in 'x is not closed"),
        ("-n 2 --name r{rank}", "--name r{rank}: {rank} differs from rank to rank"),
        ("-n 2 --env A={rank.x}", "{rank.x}: AttributeError"),
        ("-n 2 --env P=$MASTER_PORT", "$MASTER_PORT is not known before the ranks start"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_wrong(line: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        options(line)
    message = str(caught.value)
    assert words in message
    assert message.startswith("%%spawn: ")
    assert "\n" not in message


def test_environment_for_all_and_for_one_rank() -> None:
    read = options("-n 2 --env A=1 --env 1:A=2 --env SEED={rank * 10 + n} --env W=$WORLD_SIZE --env 'T=a {b}' --env E=")
    assert read.envs(2) == {
        0: {"A": "1", "SEED": "3", "W": "2", "T": "a {b}", "E": ""},
        1: {"A": "2", "SEED": "13", "W": "2", "T": "a {b}", "E": ""},
    }


def test_a_program_and_its_arguments() -> None:
    read = options(
        "-n 2 -- python train.py --lr {lr} --seed {rank} $files --of {world_size} $RANK '{x}' \"$n ranks\" $HOME",
        "%spawn",
    )
    assert read.arguments(2)[1] == (
        *("python", "train.py", "--lr", "0.125", "--seed", "1", "a.txt", "b c.txt"),
        *("--of", "2", "1", "{x}", "3 ranks", "/home/ada"),
    )
    assert read.call == ""
    assert options("-n 1 -- python train.py # all", "%spawn").arguments(1)[0] == ("python", "train.py", "#", "all")


@pytest.mark.parametrize(
    "call",
    [
        "train({\"a\": [1]}, f\"{rank}\", 'it''s')",
        "f({})",
        "{}",
        "4 or f(x)",
        "(lambda: -1)()",
        "f(x) -- 3",
        "'a' + \"b",
        "$x"[1:],
    ],
)
def test_a_call_is_left_as_it_was_written(call: str) -> None:
    assert options(f"-n 2 --quiet  {call} ", "%spawn").call == call


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-n 2", "nothing to run; write a call"),
        ("-n 2 # f(x)", "nothing to run; write a call"),
        ("-n 2 --", "no program after --"),
        ("-n 2 -- echo {nope}", "{nope}: nope is not defined"),
        ("f(x)", "how many ranks?"),
        ("4 f(x)", "'4' is no call; did you mean -n 4?"),
        ("-n 2 --exec bash", "--exec is an option of %%spawn only"),
    ],
)
def test_mistakes_of_the_line_magic(line: str, words: str) -> None:
    with pytest.raises(OptionError, match=r"^%spawn: ") as caught:
        options(line, "%spawn")
    assert words in str(caught.value)


def test_settings_of_the_session_hold_where_a_line_says_nothing() -> None:
    session = options("-n 4 --timeout 600 --env A=1", "%spawn_config")
    read = options("--timeout 3 --env B=2", base=session)
    assert (read.nproc, read.timeout) == (4, 3.0)
    assert options("", base=session).envs(4)[0] == {"A": "1"}


def test_what_a_session_added_up_is_added_to() -> None:
    session = options("--env A=1 --filter x", "%spawn_config")
    read = options("-n 1 --env B=2 --env A=3 --filter y", base=session)
    assert read.envs(1) == {0: {"A": "3", "B": "2"}}
    assert options("-n 1 --env B=2", base=session).envs(1) == {0: {"A": "1", "B": "2"}}
    assert read.filters == ("x", "y")


@pytest.mark.parametrize(
    "line",
    [
        "-n 4 --timeout 600",
        "-n gpu --env '1:A=b c' --env S={rank} --filter 'it'\\''s'",
        "-t 0:3,1:0 -r 1 --no-check",
        "--filter '#tag'",
        "",
    ],
)
def test_settings_are_shown_as_a_line_that_sets_them(line: str) -> None:
    session = options(line, "%spawn_config")
    assert options(session.settings(), "%spawn_config") == session


@pytest.mark.parametrize("kind", KINDS)
def test_help_tells_every_option(kind: Kind) -> None:
    text = help_text(kind)
    assert text.startswith(kind)
    for option in TABLE:
        assert (f"  {option.usage}" in text) == (kind in option.kinds)
    assert max(map(len, text.splitlines())) <= 115


def test_every_option_is_a_field() -> None:
    assert {option.field for option in TABLE} <= Options.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("before", "kind", "expected"),
    [
        ("--du", "%%spawn", ["--duplicate-stderr-filters", "--duplicate-stdout-filters"]),
        ("-n ", "%%spawn", ["auto", "cpu", "gpu"]),
        ("-n g", "%%spawn", ["gpu"]),
        ("-n 2 --start-method f", "%%spawn", ["fork", "forkserver"]),
        ("-n 2 --start-method=s", "%%spawn", ["--start-method=spawn"]),
        ("-n $l", "%%spawn", ["$lr"]),
        ("-n 2 --env A={l", "%%spawn", ["A={lr}"]),
        ("-n 2 -- python --seed {ra", "%spawn", ["{rank}"]),
        ("-n 2 -- python --se", "%spawn", []),
        ("-n 2 f(--qu", "%spawn", ["--quiet"][:0]),
        ("-n 2 train(cfg, l", "%spawn", []),
        ("--ex", "%spawn", []),
        ("--res", "%spawn_config", ["--reset"]),
    ],
)
def test_completion(before: str, kind: Kind, expected: list[str]) -> None:
    assert complete(before, kind, sorted(NOTEBOOK)) == expected


def test_completion_of_nothing_lists_the_long_options() -> None:
    found = complete("-n 2 ")
    assert "--timeout" in found
    assert "-n" not in found
