"""Earlier releases with almost no noise: what is planned beside them has errors as computed, and no certificate."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql

POLICY = """
dataset = "nearly-exact"
[budget]
epsilon = 1e6
delta = 1e-6
pure_epsilon = 5e5
[tables.t]
unit = "row"
expected_rows = 300
[tables.t.columns]
age = { lower = 0, upper = 99 }
sex = { values = ["F", "M"] }
x = { lower = 0.0, upper = 30.0, step = 0.1 }
"""


def connected(folder: Path) -> dpsql.Connection:
    with duckdb.connect(str(folder / "t.duckdb")) as made:
        made.execute(
            "CREATE TABLE t AS SELECT i % 100 AS age, ['F', 'M'][i % 2 + 1] AS sex, i / 10 AS x FROM range(300) r(i)"
        )
    (folder / "t.toml").write_text(POLICY)
    return dpsql.connect(folder / "t.duckdb", policy=folder / "t.toml")


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [80, 1000])
@pytest.mark.parametrize("asked", [{"epsilon": 1}, {"epsilon": 1, "delta": 1e-6}, {"epsilon": 0.01}])
def test_batches_are_planned_beside_a_release_of_almost_no_noise(
    tmp_path: Path, epsilon: float, asked: dict[str, float]
) -> None:
    con = connected(tmp_path)
    con.run(
        "SELECT sex, count(*) AS n FROM t GROUP BY sex; SELECT age // 50 AS a, count(*) AS n FROM t GROUP BY a",
        epsilon=epsilon,
    )
    batch = "SELECT sex, age // 10 AS decade, count(*) AS n FROM t GROUP BY sex, decade"
    plan = con.plan(batch, **asked, objective="total")
    alone = con.plan(batch, **asked, objective="total", earlier=False)
    assert plan.error <= alone.error * (1 + 1e-9)
    assert plan.gap is None or plan is alone or not plan.rests_on
    found = con.run(plan)["q1"].fetchall()
    if asked["epsilon"] == 1:
        error = max(5 * plan.error**0.5, 1.0)
        assert abs(sum(row[2] for row in found) - 300) < error
    # Sums over decades are known without error.
    if plan.rests_on:
        by_sex = np.array([sum(row[2] for row in found if row[0] == sex) for sex in "FM"])
        assert by_sex == pytest.approx([150, 150], abs=1e-2)


@pytest.mark.parametrize(
    ("width", "batch"),
    [
        (25, "SELECT sex, count(*), sum(x) FROM t WHERE age > 50 GROUP BY sex"),
        (5, "SELECT sex, count(*), sum(x) FROM t WHERE age > 50 GROUP BY sex"),
        (5, "SELECT sex, avg(x), median(age) FROM t GROUP BY sex"),
    ],
)
@pytest.mark.long
def test_other_batches_and_what_if(tmp_path: Path, width: int, batch: str) -> None:
    con = connected(tmp_path)
    con.run(f"SELECT age // {width} AS a, count(*) AS n, sum(x) AS s FROM t GROUP BY a", epsilon=200)
    for budget in ({"epsilon": 1}, {"epsilon": 0.5, "delta": 1e-6}):
        plan = con.plan(batch, **budget)
        assert str(plan)
        assert con.run(plan).views == ("q1",)
    if "median" not in batch:  # a search of minutes, whose every step is a plan as those above
        assert con.budget_for(batch, relative=0.5) >= 0
