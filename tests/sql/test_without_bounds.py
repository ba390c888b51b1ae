"""Batches that are planned without ``at_most``, since it keeps units untied from the rows that they are counted by."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from unit_worlds import Ask, World, enumerated, norm, paid

import dpsql
from dpsql.planning.prepare import Prepared

pytestmark = pytest.mark.usefixtures("short_searches")

MOST = {"patients": 1, "visits": 3, "labs": 1}
WARDS = Ask("SELECT ward, COUNT(*) AS n, COUNT(DISTINCT patient) AS p FROM visits GROUP BY ward", MOST)
WARDS_AND_ALL = replace(WARDS, sql=f"{WARDS.sql}; SELECT COUNT(*) AS n, COUNT(DISTINCT patient) AS p FROM visits")
POLICY = """
dataset = "bounds"
[budget]
epsilon = 100.0
delta = 1e-6
[tables.v]
unit = "who"
max_rows_per_unit = 4
at_most = [{ rows = 1, per = "month" }]
[tables.v.columns]
who = { nulls = false }
month = { values = [1, 2, 3], nulls = false }
ward = { values = ["a", "b"], nulls = false }
"""
BY = "SELECT {0}, COUNT(*) AS n, COUNT(DISTINCT who) AS p FROM v GROUP BY {0}"


@pytest.mark.parametrize(
    ("noise", "ask", "rows"), [("gaussian", WARDS, 1), ("laplace", WARDS, 1), ("gaussian", WARDS_AND_ALL, 2)]
)
@pytest.mark.few(every=2)
def test_a_bound_that_keeps_units_untied_is_left_out(
    noise: str, ask: Ask, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, bounded = World(), replace(ask, caps=((rows, None, "day"),))
    free, plan = (world.plan(one, noise, tmp_path) for one in (ask, bounded))
    assert any("without the bounds of at_most on visits" in note for note in plan.notes)
    assert not any(layout.source.caps for layout in plan.compiled.layouts)
    assert "do not keep to at_most" in plan.against
    assert np.asarray(plan.errors) == pytest.approx(np.asarray(free.errors))
    for found in enumerated(world, bounded, plan.compiled, 5_000, random.Random(1)):
        assert found.whole
        assert norm(plan, found.vectors) <= paid(plan)
    monkeypatch.setattr(Prepared, "without_bounds", lambda prepared: None)
    held = world.plan(bounded, noise, tmp_path)
    assert all(layout.source.caps for layout in held.compiled.layouts)
    assert (np.asarray(plan.errors) ** 2).sum() < (np.asarray(held.errors) ** 2).sum()


def test_a_bound_by_which_rows_count_units_is_kept(tmp_path: Path) -> None:
    """By month rows are counted for units: two rows of one in a month must not both count."""
    duck = duckdb.connect()
    duck.execute("CREATE TABLE v AS SELECT 1 AS who, 1 AS month, 'a' AS ward FROM range(4)")
    with dpsql.connect(duck, policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "l") as con:
        wards = con.plan(BY.format("ward"), epsilon=1)
        assert wards.notes
        both = con.plan(f"{BY.format('ward')}; {BY.format('month')}", epsilon=1)
        assert not any("at_most" in note for note in both.notes)
        assert all(layout.source.caps for layout in both.compiled.layouts)


def test_every_objective_and_a_wanted_error_compare_batches_without_bounds(tmp_path: Path) -> None:
    duck = duckdb.connect()
    duck.execute("CREATE TABLE v AS SELECT 1 AS who, 1 AS month, 'a' AS ward FROM range(4)")
    policy = POLICY.replace("epsilon = 100.0\ndelta = 1e-6", "rho = 50.0")
    with dpsql.connect(duck, policy=dpsql.Policy.parse(policy), ledger=tmp_path / "l") as con:
        sql = BY.format("ward")
        for objective in ("balanced", "total", "max"):
            assert con.plan(sql, rho=0.5, objective=objective).notes
        assert con.budget_for(sql, max_error=20).plan.notes


SUMS = """
dataset = "sums"
[budget]
epsilon = 100000.0
delta = 1e-6
[tables.v]
unit = "who"
max_rows_per_unit = 12
at_most = [{{ sum = "cost", upper = {0} }}]
[tables.v.columns]
who = {{ nulls = false }}
ward = {{ values = ["a", "b", "c"], nulls = false }}
cost = {{ lower = 0, upper = 500 }}
"""
AND_AVG = "CREATE VIEW v1 AS SELECT ward, SUM(cost) AS s, AVG(cost) AS a, COUNT(*) AS n FROM v GROUP BY ward"


@pytest.mark.parametrize(("upper", "bounded"), [(5000, False), (1000, True)])
def test_a_bound_on_a_sum_beside_an_average_is_used_where_errors_are_smaller(
    upper: int, bounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AVG needs the sum of the rows: SUM shares it, or is measured beside it, whichever has the less balanced error."""
    duck = duckdb.connect()
    duck.execute("CREATE TABLE v AS SELECT i // 5 AS who, 'a' AS ward, 100 AS cost FROM range(500) t(i)")
    with dpsql.connect(duck, policy=dpsql.Policy.parse(SUMS.format(upper)), ledger=tmp_path / "l") as con:
        plan = con.plan(AND_AVG, epsilon=1)
        assert any(layout.source.added is not None for layout in plan.compiled.layouts) == bounded
        assert any("without the bounds of at_most on SUM(cost)" in note for note in plan.notes) != bounded
        assert any("is not the mean of the rows" in note for note in plan.notes) == bounded
        con.run(AND_AVG, epsilon=20_000)
        found = con.sql("SELECT s, a, n FROM dp.v1 ORDER BY ward LIMIT 1").fetchone()
        assert found == pytest.approx((5e4, 100, 500), rel=0.02)  # 20 standard errors
        errors = con.sql("SELECT s / 2 AS half FROM dp.v1", errors=True).fetchall()
        assert len(errors) == 3
        assert con.run(AND_AVG, epsilon=20_000).cost == 0
        monkeypatch.setattr(Prepared, "without_sum_bounds", lambda prepared: None)
        always = dpsql.connect(duck, policy=dpsql.Policy.parse(SUMS.format(upper)), ledger=tmp_path / "m")
        other = always.plan(AND_AVG, epsilon=1)
        alone = np.asarray(other.naive_errors)
        values = [float(np.square(np.asarray(one.errors) / alone).sum()) for one in (plan, other)]
        assert values[0] <= values[1] * (1 + 1e-9)
        assert (values[0] == pytest.approx(values[1])) == bounded
