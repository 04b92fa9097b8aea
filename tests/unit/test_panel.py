"""The launch panel's pure part: what stands in its fields, what is wrong with it, the code and the plan it makes."""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import nbproc
from nbproc.errors import ArgumentError, StateError
from nbproc.logs.std import Std
from nbproc.notebook import functions, panel_code, panel_text
from nbproc.notebook.options import Options, parse
from nbproc.notebook.panel_check import check, free_variable
from nbproc.notebook.panel_given import given_values
from nbproc.notebook.panel_plan import FieldError, WithKeywords, plan
from nbproc.notebook.panel_runs import call_words
from nbproc.notebook.panel_values import RankValues, Values
from nbproc.plan import FlatLogs, Plan


def train(cfg: object, epochs: int = 3, *, lr: float = 0.1) -> object:
    """Train it.

    And more.
    """
    return cfg, epochs, lr


train.__module__ = "__main__"


async def later() -> None:
    await asyncio.sleep(0)


class Model:
    def fit(self, steps: int) -> int:
        return steps

    @property
    def ready(self) -> bool:
        raise RuntimeError("looking at a model must not run this")


class Made:
    """Counts how often it was made."""

    count = 0

    def __init__(self) -> None:
        Made.count += 1


def notebook(**more: Any) -> dict[str, Any]:
    return {"train": train, "cfg": {"a": 1}, "json": json, "later": later, "model": Model(), "Made": Made, **more}


def errors(**fields: Any) -> dict[str, str]:
    return dict(check(Values(**fields), notebook()).errors)


# --------------------------------------------------------------------------------------------------------- functions


def test_the_notebooks_own_functions_come_first_with_signature_and_first_line() -> None:
    """Given functions of cells and imported ones, when they are listed, then one sees how to call each."""
    found = functions.functions(
        {
            "dumps": json.dumps,
            "_hidden": train,
            "train": train,
            "half": functools.partial(train, 1),
            "n": 3,
            "Model": Model,
        }
    )
    assert [each.name for each in found] == ["train", "half", "dumps"]
    assert found[0] == functions.Function("train", "(cfg, epochs=3, *, lr=0.1)", "Train it.", True)
    assert not found[2].own


def test_a_name_that_the_shell_has_put_there_is_not_listed() -> None:
    assert functions.functions({"get_ipython": train}, {"get_ipython"}) == ()


def test_the_functions_of_a_module_are_listed_by_their_dotted_names() -> None:
    assert "json.dumps" in [each.name for each in functions.members("json.", notebook())]
    assert [each.name for each in functions.members("json.UMPS", notebook())] == ["json.dumps"]
    assert functions.members("nowhere.x", notebook()) == functions.members("train", notebook()) == ()


def test_a_dotted_name_is_looked_up_without_running_anything() -> None:
    assert functions.look_up("json.dumps", notebook()) is json.dumps
    assert functions.look_up("model.fit", notebook())(3) == 3
    with pytest.raises(LookupError, match=r"model\.ready is a property"):
        functions.look_up("model.ready", notebook())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trian", "trian is not defined in the notebook"),
        ("numpy.sum", "numpy is not defined in the notebook; run import numpy in a cell first"),
        ("json.dumsp", "the module json has no dumsp"),
        ("train(3)", "is not the name of a function"),
    ],
)
def test_a_name_that_means_nothing_is_told(name: str, words: str) -> None:
    with pytest.raises(LookupError) as caught:
        functions.look_up(name, notebook())
    assert words in str(caught.value)


def test_a_function_has_a_name_in_the_notebook_or_none() -> None:
    assert functions.name_of(train, notebook()) == "train"
    assert functions.name_of(train, {"other": train}) == "other"
    assert functions.name_of(json.dumps, notebook()) == "json.dumps"
    assert functions.name_of(lambda: None, notebook()) is None


# -------------------------------------------------------------------------------------------------------- a call's text


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("", True),
        ("3, 'a', -1, 2 * 3", True),
        ("cfg, lr=0.1, [1, (cfg,)], **more", False),
        ("cfg, *xs", True),
        ("cfg.lr", False),
        ("make()", False),
        ("rank", False),
        ("{'a': cfg}, None", True),
        ("[x for x in y]", False),
    ],
)
def test_only_names_and_constants_mean_the_same_everywhere(text: str, settled: bool) -> None:
    if "**more" in text:
        text = "cfg, lr=0.1, **more()"
    assert panel_text.arguments(text).settled is settled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cfg, lr=(", "'(' was never closed"),
        ("cfg) + (3", "A parenthesis is closed that was not opened."),
        ("3), (4", "A parenthesis is closed that was not opened."),
        ("1 2", "Not valid Python at '1 2'"),
        ("lr=1, 3", "positional argument follows keyword argument"),
        ("(yield)", "outside function"),
    ],
)
def test_what_is_no_argument_list_is_a_sentence(text: str, words: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        panel_text.arguments(text)
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_arguments_are_evaluated_only_when_asked_for() -> None:
    before = Made.count
    panel_text.arguments("Made(), x=Made()")
    assert not errors(function="train", arguments="Made()")
    assert Made.count == before
    args, kwargs = panel_text.evaluate("Made(), *[1, 2], x=cfg  # a comment", notebook())
    assert Made.count == before + 1
    assert args[1:] == (1, 2)
    assert kwargs == {"x": {"a": 1}}


# ----------------------------------------------------------------------------------------------------- what is wrong


def test_an_empty_form_wants_a_function_and_marks_nothing() -> None:
    found = check(Values(), notebook())
    assert (dict(found.errors), found.wants, found.code, found.ready) == ({}, "Choose a function", "", False)


def test_arguments_that_were_not_given_are_asked_for() -> None:
    assert check(Values(function="train"), notebook()).wants == "Give cfg"
    assert check(Values(function="json.dumps", arguments="1"), notebook()).ready


@pytest.mark.parametrize(
    ("field", "fields", "words"),
    [
        ("function", {"function": "cfg"}, "cfg is a dict, not a function."),
        ("function", {"function": "later"}, "later is async; launch a function that calls asyncio.run(later(...))."),
        ("function", {"function": "nope"}, "nope is not defined in the notebook."),
        ("nprocs", {"nprocs": "0"}, "A whole number from 1"),
        ("nprocs", {"nprocs": "two"}, "A whole number from 1"),
        ("arguments", {"arguments": "cfg, 1, 2"}, "These are 3 positional arguments; the function takes 2."),
        ("arguments", {"arguments": "cfg, lrr=2"}, "The function has no argument lrr."),
        ("arguments", {"arguments": "lr=2"}, "Give cfg."),
        ("arguments", {"arguments": "cfg,, 2"}, "Not valid Python at"),
        ("arguments.1", {"ranks": {1: RankValues("cfg, (")}}, "never closed"),
        ("environment", {"environment": "A"}, "write NAME=value"),
        ("environment", {"environment": "A={cfg +}"}, "not valid Python"),
        ("environment.0", {"ranks": {0: RankValues(environment="1A=2")}}, "write NAME=value"),
        ("name", {"name": "a/b"}, "no slash"),
        ("variable", {"variable": "for"}, "for cannot be a variable's name."),
        ("start_method", {"start_method": "thread"}, "Choose one"),
        ("redirects", {"redirects": "7"}, "Choose one"),
        ("tee.1", {"ranks": {1: RankValues(tee="x")}}, "Choose one"),
        ("filters", {"filters": "'a"}, "is not closed"),
        ("log_dir", {"log_dir": __file__}, "is a file; name a directory."),
        ("log_dir", {"log_dir": f"{__file__}/logs"}, "so nothing can lie in it."),
        ("timeout", {"timeout": "soon"}, "A number of seconds"),
        ("timeout", {"timeout": "-1"}, "A number of seconds"),
        ("timeout", {"timeout": "nan"}, "A number of seconds"),
    ],
)
def test_each_wrong_field_is_marked_with_a_sentence(field: str, fields: dict[str, Any], words: str) -> None:
    found = errors(**{"function": "train", "arguments": "cfg", **fields})
    assert list(found) == [field]
    assert words in found[field]
    assert found[field].endswith(".")


def test_all_wrong_fields_are_marked_at_once() -> None:
    found = errors(function="train", arguments="(", timeout="x", filters="'", nprocs="2")
    assert set(found) == {"arguments", "timeout", "filters"}


@pytest.mark.parametrize(
    ("executable", "words"),
    [
        ("no-such-program", "There is no program no-such-program"),
        ("/", "is a directory"),
        (__file__, "write python here"),
    ],
)
def test_a_program_that_cannot_be_run_is_marked(executable: str, words: str) -> None:
    assert words in errors(program=True, executable=executable)["executable"]


def test_a_program_has_as_many_arguments_in_each_rank() -> None:
    found = errors(program=True, executable="echo", ranks={0: RankValues("a b"), 1: RankValues("a")})
    assert "the same number of words" in found["arguments.0"]


def test_a_variable_that_holds_something_else_is_mentioned() -> None:
    assert "type dict" in check(Values(variable="cfg"), notebook()).notes["variable"]
    assert free_variable(notebook()) == "run"
    assert free_variable(notebook(run=3, run2=4)) == "run3"


# ------------------------------------------------------------------------------------------------ the equivalent code

FORMS = {
    "plain": Values(function="train", arguments="cfg, lr=0.3", nprocs="4"),
    "a module's": Values(function="json.dumps", arguments="[1, 2]"),
    "computed": Values(function="train", arguments="dict(cfg), lr=0.1 + 0.2"),
    "by rank": Values(
        function="train",
        arguments="cfg",
        tee="3",
        ranks={1: RankValues("cfg, 7, lr=1", "A=1 B='x y'", "3", "2")},
    ),
    "everything": Values(
        function="train",
        arguments="cfg",
        nprocs="3",
        environment='A={cfg["a"]} "B=two words" C=$HOME',
        name="a run",
        variable="kept",
        start_method="spawn",
        redirects="1",
        tee="2",
        filters="loss 'val acc' -x #y",
        timeout="60",
    ),
    "a program": Values(program=True, executable="python", arguments="-c 'print(1)' --lr {cfg['a']} --rank {rank}"),
    "a program by rank": Values(
        program=True,
        executable="echo",
        ranks={0: RankValues("same a:b]!{{x}} 1"), 1: RankValues("same 'it''s' \"y z\"")},
    ),
}


@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS)
def test_the_options_of_the_code_are_those_of_the_plan(values: Values) -> None:
    """Given a form, when its code is read as the magic reads it, then it asks for what the form's plan does."""
    namespace = notebook()
    *above, line = panel_code.code(values, namespace).splitlines()
    exec("\n".join(above), namespace)
    made = plan(values, namespace)
    options = parse(line.removeprefix("%spawn "), "%spawn", namespace=namespace)
    assert options.detach
    assert options.nproc == made.nprocs == values.count
    assert options.result_name == values.variable
    assert options.name == made.name
    assert options.timeout == made.timeout
    assert [options.envs(values.count)[rank.rank] for rank in made.ranks] == [dict(rank.env) for rank in made.ranks]
    assert isinstance(made.logs, FlatLogs)
    assert options.filters == made.stdout_filters == made.stderr_filters
    assert (options.redirects or Std.NONE) == made.logs.redirects
    assert (options.tee or Std.NONE) == made.logs.tee
    if values.program:
        commands = options.arguments(values.count)
        assert [commands[rank.rank][1:] for rank in made.ranks] == [rank.args for rank in made.ranks]
        return
    assert made.start_method == (options.start_method or "forkserver")
    for rank in made.ranks:
        here = {**namespace, "rank": rank.rank}
        there = made.entrypoint(*rank.args)  # type: ignore[operator]  # a function
        assert eval(options.call, here) == there


def test_a_simple_call_stands_on_one_line() -> None:
    assert panel_code.code(FORMS["plain"]) == "%spawn -n 4 --detach --as run --name train train(cfg, lr=0.3)"


def test_what_is_computed_is_computed_once_above() -> None:
    code = panel_code.code(FORMS["computed"], {"train_args": 1})
    assert code.splitlines()[:2] == ["train_args_2 = (dict(cfg),)", "train_kwargs = dict(lr=0.1 + 0.2)"]
    assert code.endswith("train(*train_args_2, **train_kwargs)")


def test_a_run_is_called_after_what_it_runs() -> None:
    for values, name in (
        (Values(function="lib.train"), "train"),
        (Values(program=True, executable="python", arguments="jobs/train.py --lr 1"), "train"),
        (Values(program=True, executable="python", arguments="-m http.server"), "python"),
        (Values(program=True, executable="./run.sh"), "run"),
        (Values(program=True, executable="{program}"), "program"),
    ):
        assert panel_code.default_name(values) == name


# --------------------------------------------------------------------------------------------------------- the plan


def test_arguments_are_the_same_objects_for_all_ranks_and_evaluated_once() -> None:
    before = Made.count
    made = plan(Values(function="train", arguments="Made()", nprocs="3"), notebook())
    assert Made.count == before + 1
    assert made.shared_args
    assert made.entrypoint is train
    assert len({id(rank.args[0]) for rank in made.ranks}) == 1


def test_keywords_travel_with_the_arguments() -> None:
    made: Plan = plan(FORMS["by rank"], notebook())
    assert made.entrypoint == WithKeywords(train)
    assert [rank.args for rank in made.ranks] == [(({"a": 1},), {}), (({"a": 1}, 7), {"lr": 1})]


def test_the_log_directory_is_a_parent(tmp_path: Path) -> None:
    values = Values(function="train", arguments="cfg", log_dir=str(tmp_path / "my logs"))
    assert check(values, notebook()).ready
    assert not (tmp_path / "my logs").exists()
    for number in (1, 2):
        made = plan(values, notebook())
        assert isinstance(made.logs, FlatLogs)
        assert made.logs.log_dir == tmp_path / "my logs" / f"train-{number}"


def test_what_the_session_has_set_holds_here_too() -> None:
    made = plan(FORMS["plain"], notebook(), Options(grace=3.0, filters=("x",)))
    assert (made.grace, made.stdout_filters) == (3.0, ("x",))


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"arguments": "nope"}, "arguments", "nope is not defined in the notebook."),
        ({"arguments": "rank"}, "arguments", "rank is known in the ranks only"),
        ({"arguments": "cfg['b']"}, "arguments", "KeyError: 'b'"),
        ({"ranks": {1: RankValues("1 / 0")}}, "arguments.1", "ZeroDivisionError"),
        ({"environment": "A={nope}"}, "environment", "nope is not defined"),
        ({"ranks": {0: RankValues(environment="A={nope}")}}, "environment.0", "nope is not defined"),
        ({"log_dir": "{nope}"}, "log_dir", "nope is not defined"),
    ],
)
def test_what_shows_only_at_the_launch_is_told_at_its_field(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        plan(Values(**{"function": "train", "arguments": "cfg", **fields}), notebook())
    assert caught.value.field == field
    assert words in str(caught.value)


def test_a_function_that_is_gone_is_told_at_its_field() -> None:
    with pytest.raises(FieldError) as caught:
        plan(Values(function="train"), {})
    assert caught.value.field == "function"


# -------------------------------------------------------------------------------------------------------- the fields


def test_fields_survive_the_way_to_the_browser_and_back() -> None:
    for values in FORMS.values():
        assert Values.from_json(json.loads(json.dumps(values.to_json()))) == values
    assert Values.from_json({"ranks": {"x": 1, "2": {"tee": None}}, "nprocs": 3}) == Values(nprocs="3")


def test_what_the_call_gives_stands_in_the_fields(tmp_path: Path) -> None:
    given = given_values(
        train,
        4,
        {
            "args": {0: (1, "a"), 1: "cfg"},
            "envs": {"A": 1, "B": "two words"},
            "redirects": Std.OUT,
            "tee": {1: Std.ALL},
            "filters": ["loss", "it's"],
            "log_dir": tmp_path,
            "timeout": 60,
            "name": None,
        },
        notebook(),
    )
    assert Values(**given) == Values(
        function="train",
        nprocs="4",
        environment="A=1 'B=two words'",
        redirects="1",
        filters="loss 'it'\\''s'",
        log_dir=str(tmp_path),
        timeout="60",
        ranks={0: RankValues("1, 'a'"), 1: RankValues("cfg", tee="3")},
    )
    made = plan(Values(**given), notebook())
    assert dict(made.ranks[0].env) == {"A": "1", "B": "two words"}
    assert made.stdout_filters == ("loss", "it's")


def test_a_program_may_be_given_with_its_arguments() -> None:
    assert given_values("python train.py", None, {}, notebook()) == {
        "program": True,
        "executable": "python",
        "arguments": "train.py",
    }
    assert given_values("json.dumps", None, {}, notebook()) == {"function": "json.dumps"}


@pytest.mark.parametrize(
    ("fn", "given", "words"),
    [
        (lambda: None, {}, "no name for this function"),
        (3, {}, "give a function"),
        (train, {"args": (object(),)}, "write the arguments as in a call"),
        (train, {"args": 3}, "write the arguments as in a call"),
        (train, {"tee": 9}, "panel(tee=9)"),
        (train, {"envs": [1]}, "as a dict"),
    ],
)
def test_what_no_field_can_hold_is_refused(fn: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        given_values(fn, None, given, notebook())
    assert words in str(caught.value)


def test_a_run_is_told_by_its_call() -> None:
    assert call_words(FORMS["plain"]) == "train(cfg, lr=0.3)"
    assert call_words(FORMS["by rank"]) == "train(by rank)"
    assert call_words(Values(program=True, executable="echo", arguments="hi")) == "echo hi"


# ---------------------------------------------------------------------------------------------------------- the door


def test_without_a_notebook_the_panel_says_so() -> None:
    with pytest.raises(StateError, match=r"this is none; call nbproc.start_processes"):
        nbproc.panel()


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    for name in ("nbproc.notebook.panel_widget", "nbproc.notebook.view"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(StateError, match="needs anywidget, which is not installed"):
        importlib.import_module("nbproc.notebook.panel").panel()
