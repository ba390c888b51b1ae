"""Questions that a release does not answer, options of answers, and what bounds say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from local_worlds import repeatable, world

import dpsql
from dpsql.extensions.local.device import distortion_lower_bound, distortion_upper_bound
from dpsql.extensions.local.local_release import LocalRelease


@pytest.fixture(scope="module")
def syn(tmp_path_factory: pytest.TempPathFactory) -> LocalRelease:
    with pytest.MonkeyPatch.context() as patch:
        repeatable(patch, 9)
        con = world(tmp_path_factory.mktemp("refused"))
        return con.synthesize("visits", ["state", "age", "cost", "smoker"], 4)


REFUSED = [
    ("SELECT COUNT(*) FROM visits WHERE visits > 2",
     "column visits of visits was not released with visits_synthetic.*released are state, age, cost, smoker"),
    ("SELECT SUM(visits) FROM visits", "was not released"),
    ("SELECT COUNT(*) FROM visits GROUP BY day", "column day of visits was not released"),
    ("SELECT COUNT(*) FROM visits WHERE id = 3", "column id of visits was not released"),
    ("SELECT COUNT(*) FROM visits WHERE nothing = 3", "nothing.*released are"),
    ("SELECT COUNT(*) FROM persons", "over visits and public tables"),
    ("SELECT COUNT(*) FROM visits v JOIN weights w ON v.id = w.id", "id"),
    ("SELECT COUNT(*) FROM weights", "public"),
    ("SELECT state FROM visits", "aggregate"),
    ("SELECT COUNT(*) FROM visits WHERE state < 'M'", "asks more of column state than was released"),
    ("SELECT COUNT(*) FROM visits WHERE state LIKE 'N%'", "asks more of column state"),
    ("SELECT COUNT(*) FROM visits WHERE length(state) = 2", "asks more of column state"),
    ("SELECT COUNT(*) FROM visits WHERE state = 'TX'", "asks more of column state"),
    ("DELETE FROM visits", "SELECT"),
    ("", "empty"),
    ("SELECT COUNT(*) FROM visits WHERE", "syntax error"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(syn: LocalRelease, sql: str, message: str) -> None:
    with pytest.raises(dpsql.SQLError, match=message):
        syn.sql(sql)


def test_a_refusal_shows_its_place(syn: LocalRelease) -> None:
    with pytest.raises(dpsql.SQLError) as caught:
        syn.sql("SELECT COUNT(*)\nFROM visits WHERE visits > 2")
    assert (caught.value.line, caught.value.column) == (2, 19)
    assert "^^^^^^" in caught.value.__notes__[-1]


def test_undeclared_values_of_other_may_be_told_from_declared_ones(syn: LocalRelease) -> None:
    def one(condition: str) -> float:
        return float(syn.sql(f"SELECT COUNT(*) FROM visits WHERE {condition}", errors=False).fetchall()[0][0])

    outside = one("state NOT IN ('NY', 'NJ', 'CA')")
    grouped = {tuple(r[:2]): r[2] for r in syn.sql(
        "SELECT state, COUNT(*) AS n FROM visits GROUP BY state", errors=False).fetchall()}  # fmt: skip
    assert outside == pytest.approx(grouped[None, True])
    assert one("state IS NOT NULL") == pytest.approx(400 - grouped[None, False])
    assert one("state <> 'NY'") == pytest.approx(400 - grouped["NY", False] - grouped[None, False])


def test_options(syn: LocalRelease) -> None:
    query = "SELECT COUNT(*) AS n FROM visits WHERE age > 3"
    with pytest.raises(dpsql.InterfaceError, match="'unbiased', 'proper'"):
        syn.sql(query, estimator="best")
    with pytest.raises(dpsql.DataError, match="alpha"):
        syn.sql(query, alpha=1.5)
    (wide,), (narrow,) = syn.sql(query, alpha=0.01).fetchall(), syn.sql(query, alpha=0.5).fetchall()
    assert wide[0] == narrow[0]
    assert wide[3] - wide[2] > narrow[3] - narrow[2]
    assert syn.sql(query).columns == ("n", "n_stderr", "n_low", "n_high")
    assert syn.sql(query, errors=False).columns == ("n",)


PROPER: list[tuple[str, int, float, float]] = [
    ("SELECT COUNT(*) FROM visits WHERE age > 3", 1, 0, 400),
    ("SELECT COUNT(*) FROM visits WHERE age > 3 AND age < 2", 1, 0, 0),
    ("SELECT COUNT(*) FROM visits", 1, 400, 400),
    ("SELECT SUM(age) FROM visits", 1, 0, 9 * 400),
    ("SELECT SUM(CASE WHEN smoker THEN 4 ELSE -2 END) FROM visits", 6, -800, 1600),
    ("SELECT SUM(cost) FROM visits WHERE cost < 2", 0.5, 0, 400),
]


@pytest.mark.parametrize(("sql", "step", "least", "most"), PROPER, ids=range(len(PROPER)))
def test_proper_estimates_are_possible_answers(
    syn: LocalRelease, sql: str, step: float, least: float, most: float
) -> None:
    ((value, stderr, low, high),) = syn.sql(sql, estimator="proper").fetchall()
    ((unbiased, same, _, _),) = syn.sql(sql).fetchall()
    assert least <= value <= most
    assert (value - least) % step == pytest.approx(0, abs=1e-9)
    if least < unbiased < most:
        assert abs(value - unbiased) <= step / 2 + 1e-9
    else:
        assert value == (least if unbiased <= least else most)
    assert stderr == same
    assert low <= value <= high


def test_what_has_no_grid_of_possible_answers_has_no_proper_estimate(syn: LocalRelease) -> None:
    for sql in ("SELECT AVG(age) FROM visits", "SELECT COUNT_IF(smoker) / COUNT(*) FROM visits"):
        with pytest.raises(dpsql.InterfaceError, match="no grid of possible answers"):
            syn.sql(sql, estimator="proper")
    with pytest.raises(dpsql.InterfaceError, match="equal distances"):
        syn.sql("SELECT SUM(cost) FROM visits", estimator="proper")


def test_bounds_of_a_count_are_theorem_1s(syn: LocalRelease) -> None:
    found = syn.bounds("SELECT state, COUNT(*) AS n FROM visits GROUP BY state; SELECT SUM(age) AS s FROM visits")
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    assert [(row["statement"], row["column"], row["group"]) for row in rows] == [
        *(("q1", "n", g) for g in range(5)), ("q2", "s", 0)
    ]  # fmt: skip
    response = syn.released.response
    upper, lower = distortion_upper_bound(response, 400), distortion_lower_bound(response.domain_size, 4, 400)
    for row, reach in zip(rows, (1, 1, 1, 1, 1, 9), strict=True):
        assert row["scale"] == pytest.approx(400 * reach)
        assert (row["upper_bound"], row["lower_bound"]) == pytest.approx((upper, lower))
        # Half of a quarter of the theorem's figure: c^2 / 4 a^2, and the unbiased estimator has no factor 4.
        assert row["worst_stderr"] <= row["upper_error"] / 4 * (1 + 1e-9)
    errors: dict[str, Any] = {}
    for sql in ("SELECT COUNT(*) AS n FROM visits WHERE state = 'NY'", "SELECT SUM(age) AS s FROM visits"):
        ((_, stderr, _, _),) = syn.sql(sql).fetchall()
        errors[sql] = stderr
        assert stderr <= syn.bounds(sql).fetchall()[0][3] * (1 + 1e-9)
    assert syn.bounds("SELECT COUNT(*) FROM visits").fetchall()[0][4:] == (0, 0, 0, 0)


def test_many_questions_cost_nothing(tmp_path: Path) -> None:
    con = world(tmp_path, rows=30)
    made = con.synthesize("visits", ["age"], 1)
    before = con.budget.account("local").spent
    for age in range(10):
        assert math.isfinite(made.sql(f"SELECT COUNT(*) FROM visits WHERE age = {age}").fetchall()[0][1])
    assert con.budget.account("local").spent == before == 1
    assert len(con.releases()) == 1
