"""Do 95 % intervals hold the truth in 95 % of releases, and is ``_stderr`` the error that is seen?

    python tests/shared/interval_coverage.py [releases]

The law of a release's noise is known, so that no table is read again: exact answers once, then the noise of the plan
drawn anew for each release (a public generator with a fixed seed), and every number of all releases worked out at once
by the code that releases use. The truth is DuckDB's own answer.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
from helpers import engine_of, exact_answers

import dpsql
from dpsql.planning.plan import Plan
from dpsql.reconstruct import MatrixAnswers, evaluate, quantile
from dpsql.reconstruct.spread import as_dense
from dpsql.workloads.expr.batch import Derived, Measured, Ranked
from dpsql.workloads.expr.formulas import Leaf, narrowed

POLICY = """
dataset = "coverage-1"
[budget]
epsilon = 4.0
delta = 1e-6
[tables.trips]
unit = "driver"
max_rows_per_unit = 1
[tables.trips.columns]
driver = {}
fare = { lower = 0, upper = 60 }
tip = { lower = 0, upper = 20, step = 0.5 }
zone = { values = ["a", "b", "c"], nulls = false }
income = { lower = 0, upper = 200000 }
metres = { lower = 0.0, upper = 50000.0 }
[tables.persons]
unit = "pid"
max_rows_per_unit = 1
expected_rows = 700
key = ["pid"]
[tables.persons.columns]
pid = {}
[tables.bouts]
unit = "pid"
max_rows_per_unit = 1
expected_rows = 2000
references = { pid = "persons.pid" }
[tables.bouts.columns]
pid = {}
cost = { lower = 0, upper = 40 }
[tables.visits]
unit = "pid"
max_rows_per_unit = 4
expected_rows = 2000
[tables.visits.columns]
pid = {}
cost = { lower = 0, upper = 40 }
ward = { values = ["a", "b", "c", "d"] }
"""
ROWS = """
CREATE TABLE trips AS SELECT i AS driver, (i * 37 % 59 * (i % 3) / 2)::INTEGER AS fare,
    (i * 7 % 25 / 2)::DECIMAL(6, 1) AS tip, (['a', 'b', 'c'])[1 + (i % 11 > 4)::INT + (i % 400 = 7)::INT] AS zone,
    (i * 7919 % 2003) * (i * 7919 % 2003) // 20 AS income, sqrt((i * 911 % 1999)::DOUBLE) * 900 AS metres
FROM range(2000) r(i);
CREATE TABLE visits AS SELECT i % 700 AS pid, i * 13 % 41 AS cost, (['a', 'b', 'c', 'd'])[1 + i * 5 % 4] AS ward
FROM range(2000) r(i);
CREATE TABLE bouts AS SELECT pid, cost FROM visits;
CREATE TABLE persons AS SELECT DISTINCT pid FROM visits;
"""
STATEMENTS = {
    "AVG": "SELECT AVG(fare) FROM trips",
    "AVG of few": "SELECT AVG(fare) FROM trips WHERE zone = 'c'",
    "AVG of a ratio of a row": "SELECT AVG(LEAST(GREATEST(CASE WHEN fare > 0 THEN tip / fare END, 0), 1)) FROM trips",
    "ratio": "SELECT SUM(tip) / SUM(fare) FROM trips",
    "ratio of few": "SELECT SUM(tip) / SUM(fare) FROM trips WHERE zone = 'c'",
    "share": "SELECT COUNT_IF(fare > 20) / COUNT(*) FROM trips",
    "VAR_POP": "SELECT VAR_POP(fare) FROM trips",
    "STDDEV": "SELECT STDDEV(fare) FROM trips",
    "COUNT(DISTINCT x)": "SELECT COUNT(DISTINCT fare) FROM trips",
    "units of a condition": "SELECT COUNT(DISTINCT CASE WHEN cost > 30 THEN pid END) FROM visits",
    "AVG of units": "SELECT AVG(n) FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid)",
    "units by their rows": "SELECT COUNT_IF(n > 2) FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid)",
    "SUM of units": "SELECT AVG(s) FROM (SELECT pid, SUM(cost) AS s FROM visits GROUP BY pid HAVING COUNT(*) > 1)",
    "rows that others of the unit choose": "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w "
    "WHERE w.pid = v.pid AND w.cost > v.cost AND w.cost <= v.cost + 10)",
    "units with such rows": "SELECT COUNT(DISTINCT pid) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w "
    "WHERE w.pid = v.pid AND w.cost BETWEEN v.cost + 1 AND v.cost + 10)",
    "AVG of a window within units": "SELECT AVG(LEAST(d, 40)) FROM (SELECT cost - LAG(cost) OVER "
    "(PARTITION BY pid ORDER BY cost) AS d FROM visits)",
    "rows by their place": "SELECT COUNT_IF(k = 2) FROM (SELECT ROW_NUMBER() OVER (PARTITION BY pid ORDER BY cost) "
    "AS k FROM visits)",
    "STDDEV of few": "SELECT STDDEV(fare) FROM trips WHERE zone = 'c'",
    "VAR_SAMP of units": "SELECT VAR_SAMP(s) FROM (SELECT pid, SUM(cost) AS s FROM visits GROUP BY pid)",
    "one of a list of quantiles": "SELECT QUANTILE_CONT(fare, [0.25, 0.75])[2] FROM trips",
    "MIN": "SELECT MIN(fare) FROM trips WHERE fare > 3",
    "MAX": "SELECT MAX(fare) FROM trips WHERE fare < 50",
    "MEDIAN": "SELECT MEDIAN(fare) FROM trips",
    "0.9 quantile": "SELECT QUANTILE_CONT(fare, 0.9) FROM trips",
    "0.9 quantile of few": "SELECT QUANTILE_CONT(fare, 0.9) FROM trips WHERE zone = 'c'",
    "QUANTILE_DISC": "SELECT QUANTILE_DISC(fare, 0.25) FROM trips",
    "MEDIAN of many values, a quantile": "SELECT MEDIAN(income) FROM trips",
    "0.9 quantile of many values": "SELECT QUANTILE_CONT(income, 0.9) FROM trips",
    "0.1 quantile of many values": "SELECT QUANTILE_DISC(income, 0.1) FROM trips",
    "0.75 quantile of many values of few": "SELECT QUANTILE_CONT(income, 0.75) FROM trips WHERE zone = 'c'",
    "0.9 quantile of DOUBLE": "SELECT QUANTILE_CONT(metres, 0.9) FROM trips",
    "quantile of units": "SELECT QUANTILE_CONT(s, 0.75) FROM (SELECT pid, SUM(cost) AS s FROM visits GROUP BY pid)",
}
CUT = {
    "AVG of a row of each unit": ("SELECT AVG(cost) FROM visits", 1),
    "AVG of rows of a condition": ("SELECT AVG(cost) FROM visits WHERE ward <> 'a'", 1),
    "AVG of a row of each unit that is declared": ("SELECT AVG(cost) FROM bouts", None),
    "STDDEV of a row of each unit": ("SELECT STDDEV(cost) FROM visits", 1),
    "MEDIAN of a row of each unit": ("SELECT MEDIAN(cost) FROM visits", 1),
    "MEDIAN of a row of each unit that is declared": ("SELECT MEDIAN(cost) FROM bouts", None),
}
"""Statements of which limits leave rows out, with ``rows_per_unit``: the truth is of the rows that count."""
EXACT = {"AVG", "AVG of a ratio of a row", "ratio", "share", "COUNT(DISTINCT x)", "units of a condition",
         "AVG of units", "units by their rows", "SUM of units", "rows that others of the unit choose",
         "units with such rows", "AVG of a window within units", "rows by their place",
         *(name for name in CUT if name.startswith("AVG"))}  # fmt: skip
"""Those whose interval has the stated chance itself; others have at least that, or nearly, as their docstrings say."""
QUANTILES = {name for name in STATEMENTS if "uantile" in name} | {"MIN", "MAX", "MEDIAN", "QUANTILE_DISC"}
QUANTILES |= {name for name in CUT if name.startswith("MEDIAN")}


@dataclass(frozen=True)
class Seen:
    """What many releases of one number show: shares ``covered`` and ``null``, ``stderr`` over the error seen, and
    ``planned`` over it.
    """

    covered: float
    null: float
    stderr: float
    planned: float


def seen(
    con: dpsql.Connection,
    raw: duckdb.DuckDBPyConnection,
    sql: str,
    releases: int,
    seed: int,
    *,
    cut: bool = False,
    rows_per_unit: int | None = None,
) -> Seen:
    """The first number of a statement without groups, in so many releases at epsilon 1.

    The truth is that of DuckDB, or, where limits ``cut`` rows, the value that a release without noise would have.
    """
    plan = con.plan(sql, epsilon=1.0, rows_per_unit=rows_per_unit)
    (truth,) = raw.execute(sql).fetchone() or (None,)
    values, errors, low, high = _released(plan, raw, con, releases, seed)
    if cut:
        truth = values[0]
    values, errors, low, high = values[1:], errors[1:], low[1:], high[1:]
    shown = ~np.isnan(values)
    held = (np.nan_to_num(low, nan=-np.inf) <= float(truth) + 1e-9) & (
        float(truth) - 1e-9 <= np.nan_to_num(high, nan=np.inf)
    )
    error = float(np.sqrt(np.mean((values[shown] - float(truth)) ** 2)))
    claimed = float(np.sqrt(np.nanmean(errors[shown] ** 2)))
    planned = plan.rows()[0]["stderr"] or np.nan
    ratios = (claimed / error, planned / error) if error else (np.inf, np.inf)
    return Seen(float(held.mean()), float(1 - shown.mean()), *ratios)


def _released(
    plan: Plan, raw: duckdb.DuckDBPyConnection, con: dpsql.Connection, releases: int, seed: int
) -> tuple[np.ndarray, ...]:
    """(value, stderr, low, high), each (releases + 1,), the first of them without noise."""
    compiled, noise = plan.compiled, plan.noise
    assert isinstance(plan.answers, MatrixAnswers)
    assert noise.kind == "gaussian"
    found = np.array([float(v) for v in exact_answers(compiled, con.policy, engine_of(raw))[1]])
    (core, slices) = plan.cores[0]
    column = core.columns[0]
    formula = (
        column.formula if isinstance(column, Derived) else Leaf(column.output if isinstance(column, Measured) else 0)
    )
    small, used = (formula, column.prefixes) if isinstance(column, Ranked) else narrowed(formula)
    rows = as_dense(plan.answers.rows([slices[at] for at in used], noise))
    rows = rows[:, np.abs(rows).sum(axis=0) > 0]
    z = np.random.default_rng(seed).normal(0.0, float(noise.parameter) ** 0.5, (releases + 1, rows.shape[1]))
    z[0] = 0.0
    at = [slices[number].start for number in used]
    estimates = found[at] + np.rint(z) @ rows.T / compiled.common_steps
    root = np.linalg.qr(rows.T, mode="r").T  # fewer columns of the same inner products: the law of Gaussian noise
    done: list[tuple[np.ndarray, ...]] = []
    for part in np.array_split(estimates, max(1, releases * root.size // 2**23)):
        if isinstance(column, Ranked):
            ranks = quantile(column, part, root, noise, divisor=compiled.common_steps)
            done.append((ranks.value, ranks.stderr, ranks.low, ranks.high))
        else:
            each = np.repeat(root, len(part), axis=0)
            bounds = column.bounds if isinstance(column, Derived) else None
            made = evaluate(small, part, each, noise, bounds=bounds, divisor=compiled.common_steps)
            done.append((made.value, made.stderr, made.low, made.high))
    return tuple(np.concatenate(held) for held in zip(*done, strict=True))


def every(releases: int, seed: int = 1) -> dict[str, Seen]:
    """All statements."""
    raw = duckdb.connect()
    raw.execute(ROWS)
    with TemporaryDirectory() as folder:
        policy = dpsql.Policy.parse(POLICY)
        con = dpsql.connect(raw, policy=policy, ledger=Path(folder) / "a.ledger", releases=Path(folder) / "a.duckdb")
        found = {name: seen(con, raw, sql, releases, seed) for name, sql in STATEMENTS.items()}
        for name, (sql, rows) in CUT.items():
            found[name] = seen(con, raw, sql, releases, seed, cut=True, rows_per_unit=rows)
        return found


if __name__ == "__main__":
    began = time.process_time()
    for name, found in every(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000).items():
        shares = f"{100 * found.covered:.2f} | {100 * found.null:.2f}"
        print(f"| {name} | {shares} | {found.stderr:.2f} | {found.planned:.2f} |")
    print(f"{time.process_time() - began:.1f} CPU seconds")
