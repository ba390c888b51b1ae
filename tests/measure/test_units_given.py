"""A unit's column with ``nulls = false``: rows without a unit are not read, and sensitivity has none of them."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, tables_of
from unit_rows import most_of_claim, policy_of, scan, sources_of

from dpsql.measure import ConnectionEngine, from_sql
from dpsql.policy import Policy
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.scan import Table

TABLES = """
[tables.people]
unit = "person"
max_rows_per_unit = 1
key = ["person"]
[tables.people.columns]
person = {{ nulls = {nulls} }}
sex = {{ values = ["f", "m"] }}
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
{bounds}
references = {{ patient = "people.person" }}
[tables.visits.columns]
patient = {{ nulls = {nulls} }}
ward = {{ values = ["a", "b", "c"] }}
cost = {{ lower = -1, upper = 4, step = 1 }}
"""
BOTH = "SELECT ward, COUNT(*) AS n, COUNT(DISTINCT patient) AS k FROM visits GROUP BY ward"
BY_PATIENT = "SELECT patient, COUNT(*) AS n FROM visits GROUP BY patient"
SUMS = 'at_most = [{ sum = "cost", lower = -3, upper = 5 }]'
CAPS = 'at_most = [{ rows = 2, groups = 2, per = "ward" }]'
WORLDS = {
    "rows and units": ("", BOTH),
    "all together": ("", "SELECT COUNT(*) AS n, COUNT(DISTINCT patient) AS k FROM visits"),
    "at several levels": ("", f"{BOTH}; SELECT COUNT(DISTINCT patient) AS k FROM visits WHERE cost > 1"),
    "with sums": ("", BOTH.replace("COUNT(*) AS n", "SUM(cost) AS s")),
    "within bounds": (CAPS, BOTH),
    "bounded sums": (SUMS, f"{BOTH}; SELECT SUM(cost) AS s FROM visits"),
    "one row for each ward": ('at_most = [{ rows = 1, per = "ward" }]', BOTH),
    "beside people": ("", f"{BOTH}; SELECT sex, COUNT(*) AS n FROM people GROUP BY sex"),
    "joined": ("", f"{BOTH.replace('ward', 'sex').replace('visits', 'visits JOIN people ON patient = person')}"),
    "rows of units": ("", f"SELECT COUNT(*) AS k, SUM(n) AS n FROM ({BY_PATIENT})"),
}
Rows = dict[str, list[tuple[Any, ...]]]


def fill(con: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    con.execute("CREATE OR REPLACE TABLE people (person INTEGER, sex VARCHAR)")
    con.execute("CREATE OR REPLACE TABLE visits (patient INTEGER, ward VARCHAR, cost INTEGER)")
    for table, held in rows.items():
        if held:
            con.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(held[0]))})", held)


def compiled(con: duckdb.DuckDBPyConnection, name: str, nulls: str) -> tuple[Policy, Compiled]:
    bounds, sql = WORLDS[name]
    held = policy_of(TABLES.format(bounds=bounds, nulls=nulls))
    return held, compiled_of(sql, held, tables_of(held, ConnectionEngine(con)))


def moves(con: duckdb.DuckDBPyConnection, held: Policy, batch: Compiled, count: int) -> dict[int | None, list[Any]]:
    """What each unit moves, in databases of few units and of rows without one; by unit."""
    draw, found = random.Random(3), dict[int | None, list[Any]]()
    engine, sources = ConnectionEngine(con), sources_of(held)

    def scanned(rows: Rows) -> Any:
        fill(con, rows)
        return np.array(scan(batch, engine, sources), dtype=object)

    for _ in range(count):
        visits: list[tuple[Any, ...]] = [
            (draw.choice((1, 1, 2, None, None)), draw.choice("aaabbcx"), draw.choice((4, 4, -1, 2, None)))
            for _ in range(draw.randrange(4, 16))
        ]
        people: list[tuple[Any, ...]] = [(1, "f"), (2, draw.choice("fm")), (None, "f"), (None, draw.choice("fm"))]
        whole = scanned({"people": people, "visits": visits})
        for unit in (1, 2, None):
            less = {"people": [r for r in people if r[0] != unit], "visits": [r for r in visits if r[0] != unit]}
            found.setdefault(unit, []).append(whole - scanned(less))
    return found


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect(config={"threads": 1})
    fill(found, {})
    return found


@pytest.mark.parametrize("name", WORLDS)
def test_rows_without_a_unit_move_nothing(con: duckdb.DuckDBPyConnection, name: str) -> None:
    held, batch = compiled(con, name, "false")
    moved = moves(con, held, batch, 8)
    assert not np.any(moved.pop(None))
    assert 0.3 < most_of_claim(batch, np.array([one for each in moved.values() for one in each], dtype=object)) <= 1.0


@pytest.mark.parametrize("name", ["rows and units", "all together", "with sums", "within bounds", "beside people"])
def test_a_scan_that_reads_them_is_caught(
    con: duckdb.DuckDBPyConnection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the test they move rows and no units, of all groups together by more than is claimed; where they may be
    there, not by more.
    """
    loose = compiled(con, name, "true")
    assert 0 < most_of_claim(loose[1], np.array(moves(con, *loose, 8)[None], dtype=object)) <= 1.0
    held, batch = compiled(con, name, "false")

    def everything(source: RowSource, name: str) -> Table:
        return Table(name)

    monkeypatch.setattr(from_sql, "base_of", everything)
    moved = np.array(moves(con, held, batch, 8)[None], dtype=object)
    assert np.any(moved)
    assert most_of_claim(batch, moved) > 1.0 or name != "all together"
