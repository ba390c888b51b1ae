"""Replicates of what the ledger keeps no integers of: blocks of histograms, boxes, long lines, large batches."""

from __future__ import annotations

import math
from dataclasses import replace

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.privacy.noise import Noise
from dpsql.replicates import error_propagation
from dpsql.replicates import law as laws
from dpsql.workloads.cells import merging
from dpsql.workloads.compile import choice

POLICY = """
dataset = "d-1"
[budget]
epsilon = 400.0
delta = 1e-9
pure_epsilon = 200.0
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b", "c", "d"], nulls = false }
h = { values = [1, 2, 3], nulls = false }
k = { lower = 0, upper = 639, nulls = false }
v = { lower = 0, upper = 10, nulls = false }
"""
MARGINALS = "CREATE VIEW m AS SELECT g, h, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY dp_marginals(2, g, h)"
FILTERS = "CREATE VIEW m AS SELECT " + ", ".join(
    f"COUNT(*) FILTER (WHERE {' AND '.join(each)}) AS n{at}"
    for at, each in enumerate((f"k BETWEEN {37 * i} AND {37 * i + 400 % (i + 90)}", f"v <= {i}") for i in range(1, 9))
) + " FROM t"  # fmt: skip
LARGE = "CREATE VIEW m AS SELECT k, g, COUNT(*) AS n FROM t GROUP BY k, g"
LINE = "CREATE VIEW m AS SELECT dp_ranges(k), COUNT(*) AS n FROM t GROUP BY dp_ranges(k)"
NORM = "CREATE VIEW m AS SELECT COUNT(*) AS n, " + ", ".join(
    f"COUNT(*) FILTER (WHERE {column}) AS n{at}" for at, column in enumerate(("g = 'a'", "h = 1", "v < 5"))
) + " FROM t"  # fmt: skip


COUNT = 299


def _blocks(patch):
    patch.setattr(choice, "FEW_CELLS", 10)
    patch.setattr(choice, "_is_structured", lambda batch: True)


def _boxes(patch):
    patch.setattr(merging, "BOXES_FROM", 0)


CASES = {
    "blocks of histograms": (MARGINALS, _blocks),
    "boxes": (FILTERS, _boxes),
    "norm blocks": (NORM, None),
    "more than 2,000 measurements": (LARGE, None),
    "a long line": (LINE, None),
}


def connect(folder):
    with duckdb.connect(str(folder / "d.duckdb")) as duck:
        duck.execute(
            "CREATE TABLE t AS SELECT ['a', 'b', 'c', 'd'][1 + i % 4] AS g, 1 + (i // 4) % 3 AS h, "
            "(i * 7919 % 640)::INTEGER AS k, (i % 11)::DOUBLE AS v FROM range(3000) r(i)"
        )
    (folder / "p.toml").write_text(POLICY, encoding="utf-8")
    return dpsql.connect(folder / "d.duckdb", policy=folder / "p.toml")


def spreads(con, rel):
    """(standard error that the release says, spread over its replicates) of every number of ``m``, both (rows,)."""
    if len(rel["m"]) > 100_000:  # all ranges
        ranges = "FROM m WHERE k_from = 20 AND k_to % 40 = 30"
        rows = con.sql(f"SELECT k_to, n_stderr AS said, 3 * n + 1 AS again {ranges}", errors=True)
        return np.array(rows.column("said")), np.array(rows.column("again_stderr")) / 3
    shown = rel["m"].df()
    names = [name for name in shown if f"{name}_stderr" in shown]
    drawn = rel.draws("m", COUNT).df()[names].to_numpy().reshape(COUNT, len(shown), len(names))
    moves = np.sqrt(np.mean((drawn - shown[names].to_numpy()) ** 2, axis=0))
    said = shown[[f"{name}_stderr" for name in names]].to_numpy()
    there = ~np.isnan(said)
    return said[there], moves[there]


def agree(said, found, count=COUNT):
    """A sample deviation of noise of kurtosis up to 9 is off by sqrt(8 / count) / 2 of itself: seven of it for each of
    some thousand numbers, whose own law has heavy tails; all together are held more narrowly."""
    near = abs(found / said - 1) < 7 * math.sqrt(8 / count) / 2
    together = abs(np.mean((found / said) ** 2) - 1) < 5 * math.sqrt(5 / count)
    return bool(near.all() and together)


def of_another_norm(law):
    """Single Laplace draws where the norm is that of a block; else noise of twice the variance."""
    return Noise.laplace(law.parameter) if law.kind == "blocks" else replace(law, parameter=law.parameter * 2)


@pytest.mark.parametrize("noise", ["pure", pytest.param("gaussian", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "case", [case if case in ("norm blocks", "boxes") else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
@pytest.mark.few("boxes-pure")
def test_the_spread_is_the_standard_error_and_mutants_fall(case, noise, tmp_path, monkeypatch):
    batch, made_so = CASES[case]
    if case == "norm blocks" and noise == "gaussian":
        pytest.skip("the max-norm is that of pure noise")
    if made_so is not None:
        made_so(monkeypatch)
    con = connect(tmp_path)
    plan = con.plan(batch, epsilon=2, delta=None if noise == "pure" else 1e-9)
    rel = con.run(plan)
    assert (plan.noise.kind == "blocks") == (case == "norm blocks")
    assert agree(*spreads(con, rel))
    if case == "blocks of histograms":  # of some hundred rows a group are a Poisson number in the next sample
        counts = con.sql("SELECT n + 0 AS n FROM m WHERE g IS NOT NULL", errors=True, population="sample")
        said = np.sqrt(rel["m"].df().n_stderr.to_numpy()[0] ** 2 + np.array(counts.column("n")))
        assert agree(said, np.array(counts.column("n_stderr")))
    if case == "a long line":
        with pytest.raises(dpsql.NotSupportedError, match="needs the cells of a batch one by one"):
            con.sql("SELECT n / 2 AS half FROM m LIMIT 1", errors=True, population="sample")
    if case == "a long line":
        with pytest.raises(dpsql.NotSupportedError, match="all ranges of a line"):
            rel.draws("m", 5)
    real = laws.drawn
    for wrong in (lambda law: replace(law, parameter=law.parameter / 4), of_another_norm):
        monkeypatch.setattr(laws, "drawn", lambda law, *rest, wrong=wrong: real(wrong(law), *rest))
        monkeypatch.setattr(laws, "replicates", lambda law, *rest, wrong=wrong: np.stack(list(real(wrong(law), *rest))))
        con._replicates._made.clear()
        assert not agree(*spreads(con, rel))
    assert len(con.budget.charges) == 1


NARROWED = [
    "SELECT a.n / b.n AS r FROM m a, m b WHERE a.k_from = 10 AND a.k_to = 300 AND b.k_from = 0 AND 639 = b.k_to",
    "SELECT l.k_to, l.n - r.n AS gap FROM m l JOIN m r ON l.k_to = r.k_to AND r.k_from = 5 WHERE l.k_from = 3 "
    "AND l.k_to IN (20, 30) AND r.k_to < 40 AND l.n > -1e6",
    "WITH few AS (SELECT k_from, n AS many FROM m WHERE k_from % 100 = 7 AND k_to = k_from + 50) "
    "SELECT MAX(many) AS most FROM few",
    "SELECT SUM(n) AS s FROM m WHERE k_from = 700",
]
WHOLE = [
    "SELECT n FROM m ORDER BY k_from, k_to LIMIT 2",
    "SELECT a.n - b.n AS gap FROM m a LEFT JOIN m b ON b.k_from = 9 AND b.k_to = 9 WHERE a.k_from = 8 AND a.k_to = 8",
    "SELECT n FROM m WHERE k_from = 1 AND k_to = 1 OR n > 1e9",
    "SELECT SUM(n) AS s FROM m WHERE k_from < 40",
]


@pytest.mark.long
def test_of_a_line_that_is_too_long_the_ranges_that_a_query_names_are_enough(tmp_path, monkeypatch):
    """They have the errors that they have among all; a query that does not name them is refused."""
    con = connect(tmp_path)
    con.run(LINE, epsilon=2, delta=1e-9)
    whole = [con.sql(query, errors=True) for query in NARROWED]
    monkeypatch.setattr(error_propagation, "MOST_CELLS", 100_000)
    monkeypatch.setattr(error_propagation, "_USUAL", 999)
    for query, wanted in zip(NARROWED, whole, strict=True):
        assert con.sql(query, errors=True) == wanted
    for query in WHOLE:
        with pytest.raises(dpsql.DataError, match="name the ends in WHERE"):
            con.sql(query, errors=True)
