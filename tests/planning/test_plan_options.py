"""The options of planning as one value and as keywords, which say the same."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from helpers import filled

import dpsql
from dpsql.errors import DataError, InterfaceError

POLICY = """
dataset = "options-1"
database = "t.duckdb"
[budget]
epsilon = 4
[tables.t]
unit = "row"
expected_rows = 99
[tables.t.columns]
k = { lower = 0, upper = 2, nulls = false }
"""
BY_K = "SELECT k, COUNT(*) AS n FROM t GROUP BY k"


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("options")
    with filled(folder / "t.duckdb") as duck:
        duck.execute("CREATE TABLE t AS SELECT i % 3 AS k FROM range(99) r(i)")
    (folder / "p.toml").write_text(POLICY)
    with dpsql.connect(policy=folder / "p.toml") as connection:
        yield connection


def test_a_value_says_what_keywords_say(con: dpsql.Connection) -> None:
    options = dpsql.PlanOptions(alpha=0.2, objective="max")
    one, other = con.plan(BY_K, 1, options=options), con.plan(BY_K, 1, alpha=0.2, objective="max")
    assert one.alpha == other.alpha == 0.2
    assert list(one.errors) == list(other.errors)
    changed = con.plan(BY_K, 1, options=options, alpha=0.1)
    assert changed.alpha == 0.1
    assert list(changed.errors) == list(one.errors)
    assert con.plan(BY_K, 1).alpha == 0.05


@pytest.mark.long
def test_a_wanted_error_is_an_option_like_others(con: dpsql.Connection) -> None:
    options = dpsql.PlanOptions(max_error=20)
    needed = con.budget_for(BY_K, 20)
    assert needed > 0
    assert con.budget_for(BY_K, options=options) == needed == con.budget_for(BY_K, 20, options=dpsql.PlanOptions())
    assert con.plan(BY_K, options=options).charge == needed.plan.charge
    assert con.budget_for(BY_K, 10, options=options) > needed


def test_run_plans_by_the_options_and_a_plan_has_its_own(con: dpsql.Connection) -> None:
    release = con.run(BY_K, 0.5, options=dpsql.PlanOptions(alpha=0.2))
    assert release.cost == 0.5
    assert con.run(BY_K, 0.5, alpha=0.2).cost == 0  # the same question
    with pytest.raises(InterfaceError, match="a plan has its budget and options"):
        con.run(con.plan(BY_K, 0.5), options=dpsql.PlanOptions())


@pytest.mark.parametrize(
    "keyword", ["max_error", "relative", "alpha", "objective", "rounds", "simultaneous", "expected"]
)
def test_arrays_are_refused_like_any_other_value(con: dpsql.Connection, keyword: str) -> None:
    for budget in (None, 0.01):
        with pytest.raises(DataError):
            con.run(BY_K, budget, **{keyword: np.array([1.0, 2.0])})


@pytest.mark.parametrize("call", ["plan", "run", "budget_for"])
def test_an_unknown_keyword_gets_the_nearest_one(con: dpsql.Connection, call: str) -> None:
    with pytest.raises(TypeError, match=r"there is no option objectve; did you mean objective\?"):
        getattr(con, call)(BY_K, objectve="max")


@pytest.mark.parametrize(
    ("keyword", "words"),
    [
        ({"rows_per_unit": 0}, "rows_per_unit must be a whole number from 1 or more or None, not this int"),
        ({"progress": "loud"}, "progress must be a function or None, not this str"),
        ({"earlier": 1}, "earlier must be True or False, not this int"),
        ({"method": None}, "method must be a text, not this NoneType"),
        ({"tolerance": "x"}, "tolerance must be a number"),
    ],
)
def test_a_value_of_another_kind_is_refused(con: dpsql.Connection, keyword: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=re.escape(words)):
        con.plan(BY_K, 1, **keyword)
    with pytest.raises(DataError, match=re.escape(words)):
        dpsql.PlanOptions(**keyword)


def test_a_plan_has_few_fields_and_names_of_its_values_for_the_others(con: dpsql.Connection) -> None:
    plan = con.plan(BY_K, epsilon=1)
    assert len(dataclasses.fields(plan)) <= 12
    for value in (plan.statements, plan.payment, plan.accuracy):
        for field in dataclasses.fields(value):
            assert getattr(plan, field.name) is getattr(value, field.name)
