"""Counts by very many groups: answers, what a unit can move, charges, refusals, and errors known beforehand."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import filled, unwrapped

import dpsql
from dpsql.errors import IntegrityError, OperationalError
from dpsql.extensions.audit.batch_audit import audit
from dpsql.extensions.discovery.sparse_plan import SparsePlan
from dpsql.extensions.discovery.sparse_strategy import SHARE, error_of, sparse_histogram
from dpsql.measure import sparse
from dpsql.measure.sparse import SparseJob, passed
from dpsql.privacy.counts_above_threshold import GeometricThreshold

POLICY = """
dataset = "s-1"
[budget]
epsilon = 5000.0
[tables.t]
unit = {unit}
{rows}expected_rows = 2000
[tables.t.columns]
who = {{ type = "BIGINT" }}
a = {{ lower = 0, upper = 2999 }}
b = {{ values = ["x", "y", "z"], other = true, nulls = false }}
c = {{ lower = 0, upper = 99, nulls = false }}
"""
PAIRS = "SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b"


def opened(folder: Path, unit: str = '"row"', rows: str = "", policy: str = POLICY) -> dpsql.Connection:
    with filled(folder / "s.duckdb") as raw:
        raw.execute(
            "CREATE TABLE t AS SELECT range // 40 AS who, CASE WHEN range % 97 > 0 THEN range * range % 7 END AS a, "
            "['x', 'y', 'w', 'x'][1 + range % 4] AS b, range % 130 AS c FROM range(2000)"
        )
    (folder / "s.toml").write_text(policy.format(unit=unit, rows=rows))
    return dpsql.connect(folder / "s.duckdb", policy=folder / "s.toml")


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    return opened(tmp_path)


def sparse_plan(con: dpsql.Connection, sql: str = PAIRS, epsilon: float = 1.0, **options: Any) -> SparsePlan:
    plan = con.plan(sql, epsilon=epsilon, method="sparse", **options)
    assert isinstance(plan, SparsePlan)
    return plan


def job_of(con: dpsql.Connection, plan: SparsePlan) -> SparseJob:
    job = con._batches.job(plan, "key", "label")
    assert isinstance(job, SparseJob)
    return job


BATCHES = [
    (PAIRS, "SELECT a, CASE WHEN b = 'w' THEN NULL ELSE b END, b = 'w', count(*) FROM t GROUP BY ALL"),
    (
        "SELECT a, c, COUNT(*) AS n FROM t WHERE b = 'x' GROUP BY a, c",
        "SELECT a, c, count(*) FROM t WHERE b = 'x' AND c < 100 GROUP BY ALL",
    ),
    (
        "SELECT CASE WHEN a < 2 THEN 'low' ELSE 'high' END AS k, c, COUNT(*) AS n FROM t WHERE a > 0 GROUP BY 1, c",
        "SELECT CASE WHEN a < 2 THEN 'low' ELSE 'high' END AS k, c, count(*) FROM t "
        "WHERE a > 0 AND c < 100 GROUP BY ALL",
    ),
    (
        "SELECT a % 5 AS r, c, COUNT(*) FILTER (WHERE b = 'y') AS n FROM t GROUP BY r, c",
        "SELECT a % 5 AS r, c, count(*) FROM t WHERE b = 'y' AND c < 100 GROUP BY ALL",
    ),
    (
        "SELECT c, a, COUNT(*) AS n FROM t WHERE a < c GROUP BY a, c",
        "SELECT c, a, count(*) FROM t WHERE a < c AND c < 100 GROUP BY ALL",
    ),
]


@pytest.mark.parametrize(("sql", "true"), BATCHES)
@pytest.mark.few(every=3)
def test_with_next_to_no_noise_the_groups_that_are_listed_are_those_that_have_rows(
    sql: str, true: str, con: dpsql.Connection, tmp_path: Path
) -> None:
    result = con.run(sql, epsilon=800, method="sparse", errors=False).only
    with duckdb.connect(tmp_path / "s.duckdb", read_only=True) as raw:
        expected = raw.execute(true).fetchall()
    key = lambda row: tuple((value is None, str(value)) for value in row)  # noqa: E731
    assert sorted(map(tuple, result.fetchall()), key=key) == sorted(expected, key=key)


@pytest.mark.long
def test_outer_sql_runs_over_the_groups_that_are_listed(con: dpsql.Connection) -> None:
    sql = "SELECT a, SUM(n) AS m FROM (SELECT a, c, COUNT(*) AS n FROM t GROUP BY a, c) GROUP BY a HAVING SUM(n) > 100"
    found = con.run(sql, epsilon=800, method="sparse", errors=False).only.fetchall()
    assert len(found) == 4
    assert sum(row[1] for row in found) == con.sql("SELECT SUM(m) FROM q1").fetchall()[0][0] > 1400


@pytest.mark.long
def test_ten_thousand_by_ten_thousand_values_are_answered(tmp_path: Path) -> None:
    wide = POLICY.replace("upper = 2999", "upper = 9999").replace("upper = 99,", "upper = 9999,")
    con = opened(tmp_path, policy=wide)
    sql = "SELECT a, c, COUNT(*) AS n FROM t GROUP BY a, c"
    with pytest.raises(dpsql.SQLError, match=r"100,010,000 groups.*method='sparse'"):
        con.plan(sql, epsilon=1)
    plan = sparse_plan(con, sql, 20.0)
    release = con.run(plan)
    assert 300 < len(release.only) < 1000  # of 910 that have rows, two each
    assert min(release.only.column("n")) >= plan.strategy.least
    assert [row[0] for row in con.prospects(sql, epsilon=1).fetchall()] == ["sparse", "unbiased"]


def test_it_is_charged_once_and_answered_again_for_free(con: dpsql.Connection) -> None:
    plan = sparse_plan(con)
    first = con.run(plan)
    assert (first.cost, con.run(plan).cost, con.run(PAIRS, epsilon=1, method="sparse").cost) == (1.0, 0.0, 0.0)
    assert con.run(plan).only.fetchall() == first.only.fetchall()
    assert con.budget.spent == 1
    assert con.run(plan, fresh=True).cost == 1
    assert con.run(PAIRS.replace("a, b,", "b, a,"), epsilon=1, method="sparse").cost == 1  # another question


def test_a_scan_that_fails_leaves_the_charge(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("17 rows")

    monkeypatch.setattr(sparse, "passed", fails)
    with pytest.raises(OperationalError, match="measurement failed") as caught:
        con.run(sparse_plan(con))
    assert "17" not in str(caught.value)
    assert con.budget.spent == 1


# -- privacy ----------------------------------------------------------------------------------------


def exact_counts(con: dpsql.Connection, job: SparseJob) -> dict[int, int]:
    """Counts of the groups that have rows: what passes without noise."""
    still = replace(job, law=GeometricThreshold(Fraction(1, 2000), 1))
    y = still.observe(con._holdings.engine)
    return dict(zip(y[::2], y[1::2], strict=True))


def moves(unit: str, rows: str, tmp_path: Path) -> tuple[int, SparseJob]:
    """The most by which one unit of odd rows moves all counts together, and the job that pays for it."""
    raw = duckdb.connect(":memory:")
    raw.execute("CREATE TABLE t (who BIGINT, a BIGINT, b VARCHAR, c BIGINT)")
    (tmp_path / "s.toml").write_text(POLICY.format(unit=unit, rows=rows))
    con = dpsql.connect(raw, policy=tmp_path / "s.toml", ledger=tmp_path / "s.ledger")
    sql = "SELECT a, b, COUNT(*) AS n FROM t WHERE c > 3 GROUP BY a, b"
    job = job_of(con, sparse_plan(con, sql, epsilon=1.5))
    draws = np.random.default_rng(4)
    values = [[None, -1, 0, 1, 2999, 3000], [None, "x", "z", "w", ""], [None, 0, 4, 99, 100]]
    most = 0
    for number in range(6):
        base = [(int(draws.integers(3)), *(v[draws.integers(len(v))] for v in values)) for _ in range(8)]
        unit_rows = [(7, *(v[draws.integers(len(v))] for v in values)) for _ in range(1 if unit == '"row"' else 6)]
        if number % 3 == 0:  # all of it counts
            unit_rows = [(7, at, "x", 50 + at) for at in range(len(unit_rows))]
        found = []
        for held in (base, base + unit_rows):
            raw.execute("DELETE FROM t")
            listed = ", ".join(f"({', '.join('NULL' if v is None else repr(v) for v in row)})" for row in held)
            raw.execute(f"INSERT INTO t VALUES {listed}")
            found.append(exact_counts(con, job))
        groups = set(found[0]) | set(found[1])
        most = max(most, sum(abs(found[0].get(g, 0) - found[1].get(g, 0)) for g in groups))
    return most, job


@pytest.mark.parametrize(("unit", "rows", "reach"), [('"row"', "", 1), ('"who"', "max_rows_per_unit = 3\n", 3)])
def test_no_unit_moves_the_counts_further_than_the_noise_covers(
    unit: str, rows: str, reach: int, tmp_path: Path
) -> None:
    most, job = moves(unit, rows, tmp_path)
    assert most == reach
    assert job.law.scale == Fraction(reach) / Fraction(3, 2)
    job.check_noise()
    for wrong in (Fraction(reach - 1, reach) or Fraction(1, 2), Fraction(999_999, 1_000_000)):
        with pytest.raises(IntegrityError, match="nothing was charged"):
            replace(job, law=replace(job.law, scale=job.law.scale * wrong)).check_noise()


def test_a_unit_whose_rows_all_counted_would_be_found_out(tmp_path: Path) -> None:
    most, job = moves('"who"', "max_rows_per_unit = 6\n", tmp_path)
    assert most > 3
    assert job.law.scale * Fraction(3, 2) == 6


def test_a_changed_schema_or_less_noise_is_refused_before_the_charge(
    con: dpsql.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sparse_plan(con)
    law = GeometricThreshold(plan.strategy.scale / 2, plan.strategy.least)
    monkeypatch.setattr(SparsePlan, "law", law)
    with pytest.raises(IntegrityError, match="nothing was charged"):
        con.run(plan)
    monkeypatch.undo()
    with duckdb.connect(tmp_path / "s.duckdb") as raw:
        raw.execute("ALTER TABLE t ALTER c TYPE INTEGER")
    with pytest.raises(IntegrityError):
        con.run(plan)
    assert con.budget.spent == 0


def test_the_largest_are_kept_where_more_pass_than_are_listed(con: dpsql.Connection) -> None:
    job = replace(job_of(con, sparse_plan(con)), law=GeometricThreshold(Fraction(1, 2000), 1), most=2)
    axes = range(len(job.counts.places))
    scan = {f"a{axis}": np.arange(4) % job.counts.layout.cells.axes[axis].size for axis in axes}
    y = passed(job, {**scan, "n": np.array([3, 9, 4, 7])})
    assert y[1::2] == [9, 7]
    assert y[0] < y[2]


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "least"), [(0.4, 1), (1.0, 8), (10.0, 60)])
def test_expected_errors_are_sums_over_the_noise(scale: float, least: int) -> None:
    q, z = math.exp(-1 / scale), np.arange(-2000, 2001)
    law = (1 - q) / (1 + q) * q ** np.abs(z).astype(float)
    n = np.array([0, 1, least - 1, least, least + 3, 500])
    known = [float((law * np.where(x + z >= least, np.abs(z), x)).sum()) for x in n]
    np.testing.assert_allclose(error_of(n, scale, least), known, rtol=1e-9, atol=1e-12)


def test_the_threshold_is_the_least_that_keeps_its_promise_and_the_worst_case_holds() -> None:
    found = sparse_histogram(120_000, 1, Fraction(1), 50_000, (300, 400), "")
    for least, holds in ((found.least, True), (found.least - 1, False)):
        assert (120_000 * error_of(np.array([0]), 1.0, least)[0] <= SHARE * 50_000) is np.bool_(holds)
    draws = np.random.default_rng(1)
    for groups in (3, 1000, 8000, 50_000):
        counts = np.bincount(draws.integers(0, groups, 50_000), minlength=120_000)
        assert error_of(counts, 1.0, found.least).sum() <= found.worst
    assert found.worst < 1.05 * 50_000 < found.unbiased_error / 1.9
    assert abs(found.unbiased_error / 50_000 - 2.042) < 0.001


def test_a_plan_says_what_is_known_and_what_is_guessed(con: dpsql.Connection) -> None:
    plan = sparse_plan(con)
    text = unwrapped(plan)
    assert "how many these are depends on the data" in text
    assert "estimated on stand-ins" in text
    assert "whatever the data" in text
    unseen, law = plan.strategy.unseen(0.05), plan.law
    absent = [1 - math.exp(float(law.log_tail(np.array([float(law.least - n)]))[0])) for n in (unseen, unseen + 1)]
    assert absent[0] >= 0.05 > absent[1]
    assert "sparse, " in plan.explain()
    assert plan.rows()[0]["stderr"] == pytest.approx(1.357, abs=1e-3)


@pytest.mark.long
def test_ways_are_compared_where_all_are_there(con: dpsql.Connection) -> None:
    sql = "SELECT b, c, COUNT(*) AS n FROM t GROUP BY b, c"
    ways = {row[0]: row[2] for row in con.prospects(sql, epsilon=0.05).fetchall()}
    assert set(ways) == {"sparse", "adaptive", "feasible", "unbiased"}
    assert ways["sparse"] < ways["unbiased"] == 1


# -- refusals ---------------------------------------------------------------------------------------

REFUSED = [
    ("SELECT a, b, SUM(c) AS s FROM t GROUP BY a, b", {}, "counts rows by groups"),
    ("SELECT a, b, COUNT(*) AS n, SUM(c) AS s FROM t GROUP BY a, b", {}, "one COUNT by groups"),
    ("SELECT COUNT(*) AS n FROM t", {}, "one COUNT by groups"),
    ("SELECT a, b, COUNT(*) AS n FROM t GROUP BY ROLLUP (a, b)", {}, "one COUNT by groups"),
    (PAIRS + "; SELECT COUNT(*) FROM t", {}, "one COUNT by groups"),
    ("SELECT a, b, COUNT(DISTINCT c) AS n FROM t GROUP BY a, b", {}, "counts rows, and the batch counts values"),
    ("SELECT a, b, 2 * COUNT(*) AS n FROM t GROUP BY a, b", {}, "counts rows by groups"),
    ("SELECT b, c, COUNT(*) AS n FROM t WHERE b = 'x' OR c = 2 GROUP BY b, c", {}, "joined by AND"),
    (PAIRS, {"rounds": 3}, "leave rounds out"),
    (PAIRS, {"epsilon": 1e-5}, "at this budget only groups of about"),
]


@pytest.mark.parametrize(("sql", "options", "words"), REFUSED)
def test_other_batches_are_refused_before_a_charge(
    sql: str, options: dict[str, Any], words: str, con: dpsql.Connection
) -> None:
    with pytest.raises(dpsql.DataError, match=words):
        con.plan(sql, **{"epsilon": 1, "method": "sparse", **options})
    assert con.budget.spent == 0


def test_noise_beyond_64_bits_is_refused_before_a_charge(tmp_path: Path) -> None:
    con = opened(tmp_path, '"who"', "max_rows_per_unit = 1_000_000\n")
    with pytest.raises(dpsql.DataError, match="would not fit 64 bits"):
        con.plan(PAIRS, epsilon="0.000000000001", method="sparse")
    with pytest.raises(dpsql.DataError, match="would not fit 64 bits"):
        GeometricThreshold(Fraction(2**62, 800), 1)


def test_what_the_policy_lacks_is_said(tmp_path: Path) -> None:
    for number, (old, new, error, words) in enumerate(
        [
            ("expected_rows = 2000", "", dpsql.DataError, "add expected_rows"),
            ("epsilon = 5000.0", "epsilon = 5.0\ndelta = 1e-9", dpsql.BudgetError, "paid with epsilon alone"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        con = opened(folder, policy=POLICY.replace(old, new))
        with pytest.raises(error, match=words):
            con.plan(PAIRS, epsilon=1, method="sparse")


@pytest.mark.long
def test_more_groups_than_bits_are_thrown_for_are_refused(tmp_path: Path) -> None:
    con = opened(
        tmp_path, policy=POLICY.replace("upper = 2999", "upper = 199990").replace("upper = 99,", "upper = 99999,")
    )
    with pytest.raises(dpsql.SQLError, match="at most 8,589,934,592"):
        con.plan("SELECT a, c, COUNT(*) FROM t GROUP BY a, c", epsilon=1, method="sparse")


def test_an_audit_says_that_it_is_for_fewer_groups(con: dpsql.Connection) -> None:
    with pytest.raises(dpsql.DataError, match="is not audited"):
        audit(con.policy, PAIRS, epsilon=1, method="sparse")
