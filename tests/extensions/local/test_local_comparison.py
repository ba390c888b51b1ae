"""A plan beside a local release: which wins, by how much, and when there is no comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from local_worlds import POLICY, repeatable, world

import dpsql
from dpsql.extensions.local.comparison import LocalComparison


def plan_of(folder: Path, sql: str, epsilon: object = 1, policy: str = POLICY, **options: object) -> dpsql.Plan:
    folder.mkdir(exist_ok=True)
    return world(folder, rows=40, policy=policy).plan(sql, epsilon, **options)


COUNTS = "SELECT visits, COUNT(*) AS n FROM visits GROUP BY visits"


def test_the_figures_are_those_of_the_estimators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path / "plan", COUNTS, "0.8")
    found = plan.local_comparison
    assert found is not None
    assert (found.table, found.columns, found.combinations, found.rows) == ("visits", ("visits",), 5, 400)
    repeatable(monkeypatch, 2)
    made = world(tmp_path, rows=400).synthesize("visits", ["visits"], "0.8")
    errors = [row[2] for row in made.sql(COUNTS).fetchall()]
    worst = [row[3] for row in made.bounds(COUNTS).fetchall()]
    assert found.most == pytest.approx(np.sqrt(np.mean(np.square(worst))))
    assert found.least <= np.sqrt(np.mean(np.square(errors))) <= found.most
    assert found.matrix == pytest.approx(float(np.sqrt(np.mean(np.square(np.asarray(plan.stderr["q1"]))))))
    assert found.winner == "matrix"
    assert found.factor[0] > 1
    assert f"Local      {found}" in str(plan).replace("\n           ", " ")


def test_very_few_rows_are_for_the_local_release(tmp_path: Path) -> None:
    """One row, a small epsilon: sqrt(n) / epsilon of a response over two values, sqrt(2) / epsilon of Laplace noise."""
    policy = POLICY.replace("expected_rows = 400", "expected_rows = 1")
    found = plan_of(tmp_path / "few", "SELECT COUNT(*) FROM visits WHERE smoker", "0.01", policy).local_comparison
    assert found is not None
    assert (found.winner, found.even_rows) == ("local", 2)
    assert found.most == pytest.approx(1 / 0.01, rel=1e-3)
    assert found.matrix == pytest.approx(2**0.5 / 0.01, rel=1e-3)
    easy = LocalComparison("t", ("a",), 2, 10, found.epsilon, 10.0, 1.0, 2.0)
    assert (easy.winner, easy.even_rows) == ("local", 250)
    assert "wins: its errors are 5 to 10 times smaller" in str(easy)
    unsure = LocalComparison("t", ("a",), 2, 10, found.epsilon, 1.5, 1.0, 2.0)
    assert unsure.winner == "open"
    assert "by the data" in str(unsure)


def test_a_unit_with_several_rows_shares_its_epsilon(tmp_path: Path) -> None:
    one = plan_of(tmp_path / "one", COUNTS, 1).local_comparison
    units = POLICY.replace('unit = "row"', 'unit = "note"\nmax_rows_per_unit = 4')
    four = plan_of(tmp_path / "four", COUNTS, 4, units.replace("epsilon = 1\n", "epsilon = 4\n", 1)).local_comparison
    assert one is not None
    assert four is not None
    assert four.most == pytest.approx(one.most)


WHY = [
    (COUNTS, {"policy": POLICY.replace("expected_rows = 400\n", "")}, "expected_rows is not given"),
    ("SELECT COUNT(*) FROM visits WHERE note = 'x'", {}, "has no finite domain"),
    ("SELECT COUNT(*) FROM visits WHERE state < 'M'", {}, "asks more of column state"),
    ("SELECT COUNT(*) FROM visits v JOIN sides s ON v.age = s.age", {}, "does not look at"),
    ("SELECT COUNT(*) FROM visits", {}, "reads no column"),
]


@pytest.mark.parametrize(("sql", "given", "why"), WHY, ids=range(len(WHY)))
def test_why_there_is_no_comparison(tmp_path: Path, sql: str, given: dict[str, str], why: str) -> None:
    found = plan_of(tmp_path / "why", sql, **given).local_comparison
    assert found is not None
    assert why in found.why_not
    assert found.winner == "open"
    assert str(found).startswith("a local release is not compared: ")


def test_a_policy_that_allows_none_says_nothing(tmp_path: Path) -> None:
    for number, change in enumerate((("rows_public = true", ""), ("local_epsilon = 40", ""))):
        plan = plan_of(tmp_path / str(number), COUNTS, policy=POLICY.replace(*change))
        assert plan.local_comparison is None
        assert "Local " not in str(plan)


def test_the_comparison_is_public(tmp_path: Path) -> None:
    """The same for other rows, byte for byte: it reads the policy's expected_rows and never a row."""
    few = world(tmp_path, rows=3).plan(COUNTS, 1)
    (tmp_path / "many").mkdir()
    many = world(tmp_path / "many", rows=300, seed=8).plan(COUNTS, 1)
    assert str(few.local_comparison) == str(many.local_comparison)


def test_where_nothing_is_left_of_an_error_the_words_hold(tmp_path: Path) -> None:
    """At a large epsilon lies are so rare that the errors of a release, of the plan, or both are 0 in floats."""
    policy = POLICY.replace("epsilon = 1\n", "epsilon = 1000000\n", 1)
    for epsilon in (100, 1000, 5000):
        plan = plan_of(tmp_path / str(epsilon), COUNTS, epsilon, policy)
        assert str(plan)
        found = plan.local_comparison
        assert found is not None
        assert found.even_rows >= 0
    none = LocalComparison("t", ("a",), 2, 10, found.epsilon, 1.0, 0.0, 0.5)
    assert "wins: its errors are 0 to 0.5 times as large" in str(none)
    for errors in ((1e-320, 1.0, 2.0), (0.0, 0.0, 0.0), (1e200, 1e-200, 1e-150), (1e-3, 1e-320, 1e-320)):
        assert str(LocalComparison("t", ("a",), 2, 10, found.epsilon, *errors))


def test_a_frame_of_a_plan_whose_errors_are_unknown(tmp_path: Path) -> None:
    policy = POLICY.replace("expected_rows = 400\n", "")
    plan = plan_of(tmp_path / "unknown", "SELECT AVG(visits) AS a FROM visits", 1, policy)
    assert len(plan.df()) == len(plan.rows())
