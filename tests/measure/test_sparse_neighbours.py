"""Counts that pass a threshold, over generated databases with and without one unit: what the list tells at most.

The databases are those of runs in rounds: NULLs, values outside of the domain, units of more rows than may count, keys
that dangle. The law of what is listed is worked out on both sides from its definition, noise on every group.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from test_adaptive_neighbours import JOINED, PLAIN, ROWS, UNITS, Tables, create, some_tables, without_one

import dpsql
from dpsql.measure import ConnectionEngine
from dpsql.measure.sparse import SparseJob
from dpsql.privacy.counts_above_threshold import GeometricThreshold

EPSILON = Fraction(1, 2)
BATCHES = {
    "rows": (ROWS, "SELECT a, b, c, COUNT(*) AS n FROM t GROUP BY a, b, c", 1),
    "rows with a condition": (ROWS, "SELECT a, CASE WHEN b > 0 THEN 1 END AS k, COUNT(*) FILTER (WHERE c = 'p') AS n "
                                    "FROM t WHERE b < 2 GROUP BY 1, 2", 1),
    "units": (UNITS, "SELECT a, b, COUNT(b) AS n FROM t WHERE c <> 'q' GROUP BY a, b", 3),
    "joined": (JOINED, "SELECT sex, a, b, COUNT(*) AS n FROM t JOIN people ON t.u = people.id GROUP BY ALL", 2),
}  # fmt: skip


def job_of(folder: Path, policy: str, sql: str) -> SparseJob:
    with duckdb.connect(folder / "n.duckdb") as raw:
        create(raw)
    policy = policy.replace("BUDGET", "epsilon = 8.0").replace("expected_rows = 20", "expected_rows = 2000")
    held = dpsql.Policy.parse(policy)
    con = dpsql.connect(folder / "n.duckdb", policy=held, ledger=folder / "n.ledger")
    job = con._batches.job(con.plan(sql, epsilon=EPSILON, method="sparse"), "key", "label")
    con.close()
    assert isinstance(job, SparseJob)
    return job


def counted(job: SparseJob, tables: Tables) -> dict[int, int]:
    """The groups that have rows: those that pass with no noise to speak of."""
    still = replace(job, law=GeometricThreshold(Fraction(1, 2000), 1))
    with duckdb.connect() as raw:
        create(raw)
        for name, rows in tables.items():
            for row in rows:
                raw.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
        y = still.observe(ConnectionEngine(raw))
    return dict(zip(y[::2], y[1::2], strict=True))


def told(law: GeometricThreshold, n: int, m: int) -> float:
    """The most that one group tells of n rows against m: over its being absent, and over every number that it shows."""
    z = np.arange(-400, 401)
    q = float(np.exp(-1 / float(law.scale)))
    chance = (1 - q) / (1 + q) * q ** np.abs(z)
    shown = np.arange(law.least, law.least + 200)
    pair = [np.interp(shown - x, z, chance) for x in (n, m)]
    absent = [float(chance[z + x < law.least].sum()) for x in (n, m)]
    return max(float(np.abs(np.log(pair[0] / pair[1])).max()), abs(float(np.log(absent[0] / absent[1]))))


@pytest.mark.parametrize("name", list(BATCHES))
@pytest.mark.few("units")
def test_what_is_listed_tells_of_no_unit_more_than_epsilon(name: str, tmp_path: Path) -> None:
    policy, sql, reach = BATCHES[name]
    job, draw, worst, most = job_of(tmp_path, policy, sql), random.Random(23), 0.0, 0
    assert job.law.scale == reach / EPSILON
    halved = replace(job.law, scale=job.law.scale / 2)
    beyond = 0.0
    for tables in (PLAIN, *(some_tables(draw) for _ in range(5))):
        whole = counted(job, tables)
        for fewer in without_one(tables, "rows" if policy is ROWS else "units"):
            other = counted(job, fewer)
            pairs = [(whole.get(group, 0), other.get(group, 0)) for group in {*whole, *other}]
            moved = [(n, m) for n, m in pairs if n != m]
            most = max(most, sum(abs(n - m) for n, m in moved))
            worst = max(worst, sum(told(job.law, n, m) for n, m in moved))  # groups are independent
            beyond = max(beyond, sum(told(halved, n, m) for n, m in moved))
    assert most == reach
    assert 0.9 * float(EPSILON) < worst <= float(EPSILON) * (1 + 1e-9)
    assert beyond > 1.5 * float(EPSILON)  # a law of half the noise is found out
