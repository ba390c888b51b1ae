"""What time tells: scans of neighbours, and draws of large and small noise. Minutes, so with the long tests."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from audit_checks import BATCH, World
from helpers import compiled_of, engine_of, policy_of, sources_of, tables_of
from scipy import stats

from dpsql.measure.reading import scan_of, scans_of
from dpsql.privacy.noise import Noise
from dpsql.workloads.expr.value_sql import select_text

ROUNDS = 300
UNITS = policy_of(
    """
[tables.visits]
unit = "pid"
max_rows_per_unit = 3
[tables.visits.columns]
pid = {}
ward = { values = ["a", "b"] }
note = {}
[tables.people]
unit = "pid"
key = ["pid"]
max_rows_per_unit = 1
[tables.people.columns]
pid = {}
"""
)
# Each asks for the one row that only one of the neighbours has.
OF_UNITS = {
    "WHERE": """SELECT SUM(n) FROM (SELECT pid, COUNT_IF(regexp_matches(note, '(a|b| )+c')) AS n FROM visits
        WHERE ward = 'b' GROUP BY pid)""",
    "WHERE on the unit": """SELECT SUM(n) FROM (SELECT pid, COUNT(*) AS n FROM visits
        WHERE pid BETWEEN 900000 AND 1100000 GROUP BY pid)""",
    "FILTER": """SELECT SUM(n) FROM (SELECT pid, COUNT_IF(regexp_matches(note, '(a|b| )+c')) FILTER (WHERE ward = 'b')
        AS n FROM visits GROUP BY pid)""",
    "HAVING": """SELECT COUNT(*) FROM people p LEFT JOIN (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid
        HAVING pid BETWEEN 900000 AND 1100000) v ON v.pid = p.pid WHERE v.n > 0""",
    "EXISTS": """SELECT COUNT(*) FROM people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid
        AND v.ward = 'b')""",
}


@pytest.mark.long
def test_scans_of_neighbours_take_one_time(tmp_path: Path, assurance: Callable[..., None]) -> None:
    world = World.make(tmp_path, rows=[("a", i % 20, 0.5) for i in range(2000)])
    plan = world.con.plan(BATCH, rho=8)
    world.exact(plan)
    taken: dict[bool, list[int]] = {True: [], False: []}
    gc.disable()
    try:
        for number in range(2 * ROUNDS):
            # Turn by turn and in changing order, so that what else the machine does falls on both alike.
            extra = bool((number + number // 2) % 2)
            with world.with_row(("z", 2**63 - 1, float("nan")) if extra else ("a", 1, 0.5)):
                began = time.perf_counter_ns()
                world.exact(plan)
                taken[extra].append(time.perf_counter_ns() - began)
    finally:
        gc.enable()
    p = float(stats.mannwhitneyu(taken[True], taken[False]).pvalue)
    assurance("p that scans of neighbours take one time (Mann-Whitney)", p)
    assert p > 1e-6


@pytest.mark.long
@pytest.mark.parametrize("name", OF_UNITS)
def test_so_do_those_over_rows_of_units(name: str, assurance: Callable[..., None]) -> None:
    """Both tables are stored, so that DuckDB has statistics of their values; the time is that of the processor.

    The extremes of a column settle nothing here: both have a row beyond the one that is asked for (docs/privacy.md).
    """
    worlds = []
    for more in (0, 1):
        con = duckdb.connect(config={"threads": 1})
        con.execute("CREATE TABLE visits AS SELECT i AS pid, 'a' AS ward, repeat('ab ', 50) || i AS note "
                    "FROM range(100000) r(i)")  # fmt: skip
        con.execute("INSERT INTO visits VALUES (2000000, 'c', 'ab ')")
        con.execute(f"INSERT INTO visits SELECT 1000000, 'b', repeat('ab ', 1000) FROM range({more})")
        con.execute("CREATE TABLE people AS SELECT i AS pid FROM range(1000) r(i)")
        worlds.append(con)
    layouts = compiled_of(OF_UNITS[name], UNITS, tables_of(UNITS, engine_of(worlds[0]))).layouts
    names = {table: table for table in ("visits", "people")}
    texts = [select_text(scan_of(scan.layout, sources_of(UNITS)).select, names) for scan in scans_of(layouts)]
    taken: list[list[float]] = [[], []]
    for number in range(80):
        more = (number + number // 2) % 2
        began = time.thread_time()
        for text in texts:
            worlds[more].execute(text).fetchall()
        taken[more].append(time.thread_time() - began)
    p = float(stats.mannwhitneyu(*(times[1:] for times in taken)).pvalue)
    assurance(f"p that scans of neighbours take one time, rows of units by {name} (Mann-Whitney)", p)
    assert p > 1e-6


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_time_of_a_draw_is_reported(kind: str, assurance: Callable[..., None]) -> None:
    noise = Noise(kind, Fraction(10**12))
    sizes, taken = [], []
    for _ in range(20_000):
        began = time.perf_counter_ns()
        (drawn,) = noise.sample(1)
        taken.append(time.perf_counter_ns() - began)
        sizes.append(abs(drawn))
    # No draw is timed by itself in a release: all are made together, before the scan. What remains is said here.
    found = float(stats.spearmanr(sizes, taken).statistic)
    assurance(f"rank correlation of a draw's size and its time ({kind})", found)
    assert np.isfinite(found)
