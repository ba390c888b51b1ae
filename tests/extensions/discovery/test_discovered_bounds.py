"""Bounds found privately: of a fixed scale, held by many rows, and never the least or the largest value."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.extensions.discovery.discovered_bounds import Scale, histogram_sql, scale_of

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 4.0
delta = 1e-6
[tables.visits]
unit = "row"
[tables.visits.columns]
cost = {}
day = {}
age = {}
word = {}
price = {}
"""


@pytest.fixture(autouse=True)
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a bucket of noise alone shifts once in ten million discoveries, not in twenty."""
    monkeypatch.setattr("dpsql.extensions.discovery.discovered_bounds.CONFIDENCE", 1e-7)


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    """20,000 rows, of which one is far out in every column."""
    folder = tmp_path_factory.mktemp("bounds")
    held = duckdb.connect(":memory:")
    held.execute(
        "CREATE TABLE visits AS SELECT 30.0 + i % 1000 AS cost, DATE '2015-03-01' + (i % 900)::INTEGER AS day, "
        "(i % 90)::SMALLINT AS age, 'w' AS word, (1.25 + i % 7)::DECIMAL(9,2) AS price FROM range(20000) t(i) "
        "UNION ALL SELECT 3e14, DATE '2099-12-31', 32767, 'w', -9999999.99"
    )
    policy = folder / "visits.toml"
    policy.write_text(POLICY, encoding="utf-8")
    return dpsql.connect(held, policy=policy)


def test_bounds_are_edges_that_many_rows_reach(con: dpsql.Connection) -> None:
    """One row far out is clamped, and counted as outside."""
    found = con.discover("visits.cost", bounds=True, epsilon=0.5)
    assert found.bounds == (20, 2000)
    assert found.values == found.counts == ()
    assert found.outside is not None
    assert 0 <= found.outside < 0.05
    assert con.discover("visits.day", bounds=True, epsilon=0.5).bounds == (dt.date(2015, 1, 1), dt.date(2017, 12, 31))
    assert con.discover("visits.age", bounds=True, epsilon=0.5).bounds == (0, 99)
    assert con.discover("visits.price", bounds=True, epsilon=0.5).bounds == (1, Fraction(999, 100))


def test_bounds_are_used_and_kept(con: dpsql.Connection) -> None:
    spent = con.budget.spent
    again = con.discover("visits.cost", bounds=True, epsilon=0.5)
    assert (again.cost, con.budget.spent) == (0, spent)
    assert again.to_toml() == "cost = { lower = 20, upper = 2000 }"
    (total, stderr, *_), *_ = con.run("SELECT SUM(cost) AS s FROM visits", epsilon=0.5).fetchall()
    assert abs(total - (20000 * 529.5 + 2000)) < 6 * stderr
    other = dpsql.connect(con._holdings.attachable, policy=con._domains.declared)
    assert other.policy.table("visits").column("day").upper == dt.date(2017, 12, 31)
    assert con.sql("SELECT lower, upper FROM visits_age_bounds").fetchall() == [("0", "99")]
    # A part of delta was set aside before the first of them, so that values can be found afterwards.
    assert con.discover("visits.word", epsilon=0.2, delta=1e-9).values == ("w",)


def test_what_has_no_bounds_is_refused(con: dpsql.Connection) -> None:
    spent = con.budget.spent
    with pytest.raises(dpsql.PolicyError, match="has no bounds"):
        con.discover("visits.word", bounds=True, epsilon=0.1)
    with pytest.raises(dpsql.DataError, match="max_groups, max_bytes and alphabet are for values"):
        con.discover("visits.cost", bounds=True, epsilon=0.1, max_groups=1)
    with pytest.raises(dpsql.DataError, match="a budget is needed"):
        con.discover("visits.cost", bounds=True)
    assert con.budget.spent == spent


def test_too_few_rows_give_no_bounds(tmp_path: Path) -> None:
    held = duckdb.connect(":memory:")
    held.execute("CREATE TABLE visits (cost DOUBLE, day DATE, age SMALLINT, word VARCHAR, price DECIMAL(9,2))")
    held.execute("INSERT INTO visits (cost) VALUES (1.5), ('nan'), (NULL)")
    policy = tmp_path / "visits.toml"
    policy.write_text(POLICY, encoding="utf-8")
    con = dpsql.connect(held, policy=policy)
    found = con.discover("visits.cost", bounds=True, epsilon=0.01)
    assert found.bounds is None
    assert con.found_domains == ()


@pytest.mark.parametrize("kind", ["TINYINT", "UBIGINT", "HUGEINT", "DOUBLE", "DECIMAL(38,10)", "DATE", "TIMESTAMPTZ"])
def test_scales_are_public_and_rise(kind: str) -> None:
    scale = scale_of(kind, "tables.visits.columns.v")
    assert list(scale.edges) == sorted(set(scale.edges))
    assert len(scale.edges) < 400
    size = len(scale.edges)
    for first, last in ((0, 0), (0, size), (1, 1), (size, size), (3, 5)):
        low, high = scale.bounds(first, last)
        assert low <= high  # type: ignore[operator]
        assert {low, high + scale.gap} <= set(scale.edges) | {low + scale.gap}  # type: ignore[operator]


def test_odd_names_stay_names() -> None:
    sql = histogram_sql('a"; DROP', 'b"c', Scale((Fraction(0),), Fraction(0)), "n")
    assert sql.endswith('FROM "a""; DROP" GROUP BY 1')
    assert 'CASE WHEN "b""c" IS NULL' in sql
