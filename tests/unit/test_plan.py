"""Plans: what may be one or per rank is broadcast once, checked, and never changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbproc.errors import ArgumentError, NbprocError, OptionError, PlanError
from nbproc.logs.std import Std
from nbproc.plan import FlatLogs, RankPlan, environment, flat_logs, make_plan, new_run_id, rank_variables


def work(*args: object) -> None: ...


def test_a_plan_is_a_value() -> None:
    plan = make_plan("n", work, {0: (1,), 1: (2,)}, {0: {"A": 1}, 1: {}})
    assert [rank.args for rank in plan.ranks] == [(1,), (2,)]
    assert plan.ranks[0].env == {"A": "1"}
    assert (plan.nprocs, plan.executable, plan.start_method) == (2, False, "forkserver")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "m"  # type: ignore[misc]
    with pytest.raises(TypeError):
        plan.ranks[0].env["A"] = "2"  # type: ignore[index]


@given(st.lists(st.integers(-3, 12), unique=True, max_size=8), st.lists(st.integers(-3, 12), unique=True, max_size=8))
def test_only_the_keys_0_to_n_are_accepted(args: list[int], envs: list[int]) -> None:
    expected = list(range(len(args)))
    if sorted(args) == expected and sorted(envs) == expected:
        plan = make_plan("n", work, {key: (key,) for key in args}, {key: {} for key in envs})
        assert [rank.args for rank in plan.ranks] == [(key,) for key in expected]
        return
    with pytest.raises(PlanError) as raised:
        make_plan("n", work, {key: (key,) for key in args}, {key: {} for key in envs})
    guilty, keys = ("envs", envs) if sorted(args) == expected else ("args", args)
    wrong = set(keys) ^ set(expected)
    assert str(raised.value).startswith(f"{guilty} must have ")
    assert all(str(rank) in str(raised.value) for rank in wrong)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("word", ("word",)),
        (("a", 1), ("a", "1")),
        ([1, 2], ("1", "2")),
        (([1, 2],), ("[1, 2]",)),
        (5, ("5",)),
        ((), ()),
    ],
    ids=str,
)
def test_arguments_of_an_executable(args: Any, expected: tuple[str, ...]) -> None:
    assert make_plan("n", "echo", {0: args}).ranks[0].args == expected


def test_one_tuple_for_all() -> None:
    plan = make_plan("n", work, (1, 2), nprocs=3)
    assert plan.shared_args
    assert [rank.args for rank in plan.ranks] == [(1, 2)] * 3
    assert not make_plan("n", work, {0: (1,)}).shared_args


@pytest.mark.parametrize("value", [0, 1.5, None, True, Path("/x"), "x"])
def test_values_of_envs_become_strings(value: object) -> None:
    given_env = {"NAME": value}
    plan = make_plan("n", work, {0: ()}, {0: given_env})
    assert plan.ranks[0].env == {"NAME": str(value)}
    assert given_env == {"NAME": value}


@pytest.mark.parametrize("env", [{"": 1}, {"A=B": 1}, {"A\0": 1}, {"A": "b\0"}, {3: 1}, "A=1"], ids=repr)
def test_what_cannot_be_an_environment(env: Any) -> None:
    with pytest.raises(ArgumentError, match="envs of rank 0"):
        make_plan("n", work, {0: ()}, {0: env})


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, Std.NONE),
        (3, Std.ALL),
        ("1", Std.OUT),
        ("0:3,12:1", {0: Std.ALL, 12: Std.OUT}),
        ({0: 2, "1": 1}, {0: Std.ERR, 1: Std.OUT}),
        (Std.ERR, Std.ERR),
    ],
    ids=str,
)
def test_masks(mask: object, expected: object) -> None:
    assert flat_logs(redirects=mask).redirects == expected
    assert flat_logs(tee=mask).tee == expected


@pytest.mark.parametrize("mask", ["x", "0:9", 8, {0: "a"}, [1], object()], ids=str)
def test_what_is_no_mask(mask: object) -> None:
    with pytest.raises(OptionError, match="redirects must be"):
        flat_logs(redirects=mask)
    with pytest.raises(ValueError, match="tee must be"):
        flat_logs(tee=mask)


@pytest.mark.parametrize(
    ("given", "ranks"), [(None, None), ("0,2", {0, 2}), ({1}, {1}), (3, {3}), ([], set())], ids=str
)
def test_the_ranks_that_reach_the_console(given: object, ranks: object) -> None:
    assert flat_logs(local_ranks_filter=given).local_ranks_filter == ranks


def test_an_empty_log_dir_is_none() -> None:
    assert flat_logs(log_dir="") == flat_logs() == FlatLogs()
    assert flat_logs(log_dir="/x").log_dir == Path("/x")


def test_the_environment_of_a_rank_envs_over_ours_over_the_callers() -> None:
    base = {"RANK": "caller", "MINE": "caller", "TORCHELASTIC_ERROR_FILE": "caller", "MPLBACKEND": "module://inline"}
    plan = RankPlan(1, (), MappingProxyType({"MASTER_PORT": "7", "LOCAL_RANK": "user"}))
    env = environment(base, plan, 2, 5000, "id", "mark")
    assert env["RANK"] == "1"
    assert (env["MASTER_PORT"], env["LOCAL_RANK"], env["MINE"]) == ("7", "user", "caller")
    assert "TORCHELASTIC_ERROR_FILE" not in env
    assert env["MPLBACKEND"] == "agg"
    assert env["OMP_NUM_THREADS"] == "1"
    assert base["RANK"] == "caller"
    assert environment({"OMP_NUM_THREADS": "4"}, plan, 2, 5000, "id", "mark")["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in environment({}, plan, 1, 5000, "id", "mark")


def test_the_variables_of_a_rank_are_strings_and_differ_by_rank_only() -> None:
    first, second = (rank_variables(rank, 2, 5000, "id") for rank in range(2))
    assert all(isinstance(value, str) for value in first.values())
    assert {name for name in first if first[name] != second[name]} == {"RANK", "LOCAL_RANK", "ROLE_RANK"}


def test_run_ids_are_new() -> None:
    assert len({new_run_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("kwargs", "builtin"),
    [
        ({"entrypoint": 5}, TypeError),
        ({"args": {1: ()}}, RuntimeError),
        ({"args": {0: 5}}, TypeError),
        ({"start_method": "x"}, ValueError),
        ({"timeout": "5"}, TypeError),
        ({"grace": True}, TypeError),
        ({"timeout": -1}, RuntimeError),
        ({"grace": float("nan")}, RuntimeError),
    ],
    ids=str,
)
def test_a_mistake_raises_a_class_of_ours_and_the_builtin_one(kwargs: Any, builtin: type) -> None:
    with pytest.raises(builtin) as raised:
        make_plan(**{"name": "n", "entrypoint": work, "args": {0: ()}, **kwargs})
    assert isinstance(raised.value, NbprocError)
