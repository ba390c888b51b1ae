"""Rows with public ids: weights, groups and conditions by row; and joins to public tables by released columns."""

from __future__ import annotations

import math
from typing import Any

import pytest
from local_worlds import repeatable, world
from test_local_estimates import Phi, brute, known

import dpsql
from dpsql.extensions.local.local_release import LocalRelease

ROWS = 120


def beside(i: int) -> dict[str, Any]:
    """What the public table says of an id: weights for all but the last 20."""
    if i >= ROWS - 20:
        return {"weight": None, "ward": None}
    return {"weight": i % 3, "ward": "a" if i % 4 == 0 else "b"}


@pytest.fixture(scope="module")
def syn(tmp_path_factory: pytest.TempPathFactory) -> LocalRelease:
    with pytest.MonkeyPatch.context() as patch:
        repeatable(patch, 4)
        con = world(tmp_path_factory.mktemp("ids"), rows=ROWS)
        return con.synthesize("visits", ["age", "visits"], 2.5, ids=["id"])


JOINED = "FROM visits v JOIN weights w ON v.id = w.id"
CASES: list[tuple[str, Phi]] = [
    (f"SELECT SUM(w.weight) {JOINED} WHERE v.age < 4",
     lambda v, p: (p["weight"] or 0) * (known(v["age"]) and v["age"] < 4)),
    (f"SELECT COUNT(*) {JOINED} WHERE v.age < 4 AND w.ward = 'a'",
     lambda v, p: p["ward"] == "a" and known(v["age"]) and v["age"] < 4),
    (f"SELECT SUM(w.weight * v.visits) {JOINED}", lambda v, p: (p["weight"] or 0) * v["visits"]),
    (f"SELECT SUM(w.weight * v.visits) {JOINED} WHERE v.age > 2 OR w.ward = 'b'",
     lambda v, p: p["weight"] is not None and p["weight"] * v["visits"]
     * ((known(v["age"]) and v["age"] > 2) or p["ward"] == "b")),
    (f"SELECT COUNT(*) {JOINED} WHERE v.visits > w.weight",
     lambda v, p: p["weight"] is not None and v["visits"] > p["weight"]),
    ("SELECT COUNT(*) FROM visits WHERE id < 50 AND visits = 2", lambda v, p: p["id"] < 50 and v["visits"] == 2),
    ("SELECT COUNT(*) FROM visits v LEFT JOIN weights w ON v.id = w.id WHERE w.ward IS NULL AND v.visits > 1",
     lambda v, p: p["ward"] is None and v["visits"] > 1),
    ("SELECT COUNT(*) FROM visits v JOIN sides s ON v.age = s.age WHERE s.side = 'old'",
     lambda v, _: v["age"] in (5, 6, 7)),
    ("SELECT SUM(v.visits) FROM visits v JOIN sides s ON v.age = s.age",
     lambda v, _: v["visits"] * (known(v["age"]) and v["age"] < 8)),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "phi"), CASES, ids=range(len(CASES)))
def test_rows_may_have_functions_of_their_own(syn: LocalRelease, sql: str, phi: Phi) -> None:
    ((value, stderr, _, _),) = syn.sql(sql).fetchall()
    total, variance = brute(syn, phi, lambda i: {"id": i, **beside(i)})
    assert value == pytest.approx(total, rel=1e-9, abs=1e-9)
    assert stderr == pytest.approx(math.sqrt(variance), rel=1e-9)


def test_groups_by_public_columns(syn: LocalRelease) -> None:
    rows = syn.sql(f"SELECT w.ward, COUNT(*) AS n, SUM(v.visits) AS s {JOINED} GROUP BY w.ward").fetchall()
    assert [row[0] for row in rows] == ["a", "b"]
    for row in rows:
        s, ss = brute(syn, lambda v, p, row=row: (p["ward"] == row[0]) * v["visits"], beside)  # type: ignore[misc]
        # Who is in which ward is public: these counts have no error.
        assert row[1:3] == pytest.approx((sum(beside(i)["ward"] == row[0] for i in range(ROWS)), 0), abs=1e-9)
        assert row[5:7] == pytest.approx((s, math.sqrt(ss)), rel=1e-9)


def test_a_weighted_average(syn: LocalRelease) -> None:
    ((mean, stderr, low, high),) = syn.sql(f"SELECT SUM(w.weight * v.visits) / SUM(w.weight) {JOINED}").fetchall()
    s, ss = brute(syn, lambda v, p: (p["weight"] or 0) * v["visits"], beside)
    n = sum(beside(i)["weight"] or 0 for i in range(ROWS))
    assert (mean, stderr) == pytest.approx((s / n, math.sqrt(ss) / n), rel=1e-6)
    assert low < mean < high


def test_the_proper_estimator_does_not_search_subset_sums(syn: LocalRelease) -> None:
    with pytest.raises(dpsql.InterfaceError, match="all subsets"):
        syn.sql(f"SELECT SUM(w.weight) {JOINED} WHERE v.age < 4", estimator="proper")


def test_bounds_of_rows_with_functions_of_their_own(syn: LocalRelease) -> None:
    rows = syn.bounds(f"SELECT SUM(w.weight) AS s {JOINED} WHERE v.age < 4").fetchall()
    ((_, column, _, worst, scale, upper, lower, error),) = rows
    weights = [beside(i)["weight"] or 0 for i in range(ROWS)]
    moved = [w for w in weights if w]
    assert (column, scale) == ("s", sum(weights))
    # (b - a) / c = 2 over the rows that count at all.
    a = float(syn.released.response.contrast)
    assert upper == pytest.approx(4 * 2**2 / (a * a * len(moved)))
    assert 0 < lower < upper
    assert error == pytest.approx(scale * upper**0.5)
    assert worst < error / 4
