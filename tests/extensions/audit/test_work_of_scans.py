"""What work a scan makes: neighbours take the same steps over the same rows, by DuckDB's own count.

How long the steps take is measured in benchmarks/scan_time.py.
"""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from helpers import compiled_of, engine_of, policy_of, sources_of, tables_of

from dpsql.measure.reading import scan_of, scans_of
from dpsql.workloads.expr.value_sql import select_text

POLICY = policy_of(
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
STATEMENTS = {
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
VISITS, PEOPLE = 4000, 1000


def world(more: int) -> duckdb.DuckDBPyConnection:
    """Stored tables, so that DuckDB has statistics of their values, with ``more`` rows of the person asked for.

    The extremes of a column settle nothing here: both worlds have a row beyond the one that is asked for
    (docs/privacy.md).
    """
    con = duckdb.connect(config={"threads": 1})
    con.execute(f"CREATE TABLE visits AS SELECT i AS pid, 'a' AS ward, 'ab ' || i AS note FROM range({VISITS}) r(i)")
    con.execute("INSERT INTO visits VALUES (2000000, 'c', 'ab ')")
    con.execute(f"INSERT INTO visits SELECT 1000000, 'b', repeat('ab ', 1000) FROM range({more})")
    con.execute(f"CREATE TABLE people AS SELECT i AS pid FROM range({PEOPLE}) r(i)")
    con.execute("PRAGMA enable_profiling = 'no_output'")
    return con


def steps(con: duckdb.DuckDBPyConnection, text: str) -> list[dict[str, Any]]:
    """The operators that DuckDB ran, outermost first."""
    con.execute(text).fetchall()
    found: list[dict[str, Any]] = []
    waiting = list(json.loads(con.get_profiling_information())["operator"])
    while waiting:
        step = waiting.pop(0)
        found.append(step)
        waiting.extend(step.get("children", []))
    return found


def skipped(steps: list[dict[str, Any]], rows: set[int]) -> list[str]:
    """What a scan of a stored table did not read, or read and dropped: it may depend on what the rows hold."""
    scans = [step for step in steps if step["type"] == "TABLE_SCAN"]
    assert scans, "a scan of the private tables was expected"
    return [f"{s['rows_scanned']} rows, {s['extra_info']}" for s in scans
            if "Filters" in s["extra_info"] or s["rows_scanned"] not in rows]  # fmt: skip


@pytest.mark.parametrize("name", STATEMENTS)
def test_scans_of_neighbours_take_the_same_steps(name: str) -> None:
    worlds = [world(more) for more in (0, 1)]
    tables = tables_of(POLICY, engine_of(worlds[0]))
    layouts = compiled_of(STATEMENTS[name], POLICY, tables).layouts
    for scan in scans_of(layouts):
        text = select_text(scan_of(scan.layout, sources_of(POLICY)).select, {t: t for t in ("visits", "people")})
        without, with_row = (steps(con, text) for con in worlds)
        assert [step["type"] for step in without] == [step["type"] for step in with_row]
        for one, other in zip(without, with_row, strict=True):
            assert abs(one["intermediate_rows"] - other["intermediate_rows"]) <= 1, one["type"]
        assert not skipped(without, {VISITS + 1, PEOPLE})
        assert not skipped(with_row, {VISITS + 2, PEOPLE})


@pytest.mark.parametrize("name", ["WHERE", "WHERE on the unit", "EXISTS"])
def test_the_statement_itself_would_skip_rows(name: str) -> None:
    """What the test above looks for is there where the statement is run as it is written."""
    assert skipped(steps(world(0), STATEMENTS[name]), {VISITS + 1, PEOPLE})
