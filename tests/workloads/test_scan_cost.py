"""What a plan says of its scan: only where the policy expects rows, and a time only where it is known."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest
from helpers import exact, policy_of

import dpsql
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.scan_cost import scan_seconds, scan_text
from dpsql.workloads.expr.values import Stored

COLUMNS = "{ unit = 'row', columns = { a = { lower = 0, upper = 9 }, b = { lower = 0, upper = 9 } } }"
TABLES = f"[tables]\nt = {COLUMNS}\nu = {COLUMNS}\n"


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    found.execute("CREATE TABLE t (a INTEGER, b INTEGER); CREATE TABLE u (a INTEGER, b INTEGER)")
    return found


def _layouts(sql, con):
    return exact(sql, policy_of(TABLES), con).compiled.layouts


def test_a_scan_costs_by_rows_axes_and_sums(con):
    (none,) = _layouts("SELECT COUNT(*) FROM t", con)
    (one,) = _layouts("SELECT COUNT_IF(a < 5) FROM t", con)
    (two,) = _layouts("SELECT COUNT_IF(a < 5 AND b < 3) FROM t", con)
    (sums,) = _layouts("SELECT SUM(b) FROM t WHERE a < 5", con)
    seconds = [scan_seconds(layout, 10**9) for layout in (none, one, two)]
    assert seconds == pytest.approx([20.0, 55.0, 90.0])
    assert scan_seconds(sums, 10**9) > seconds[1]
    assert scan_seconds(two, 10**6) == pytest.approx(0.09)


def test_the_time_is_left_out_where_it_is_not_known(con):
    (layout,) = _layouts("SELECT COUNT_IF(a < 5) FROM t", con)
    shared = replace(layout, cells=Grid(layout.cells.axes))
    owned = replace(layout, source=replace(layout.source, unit=Stored("a", "INTEGER"), protects="person"))
    for other in (shared, owned):
        assert scan_seconds(other, 1000) is None
        assert scan_text([other], {"t": 1000}) == "about 1,000 rows of t expected"
        assert scan_text([layout, other], {"t": 1000}) == "about 1,000 rows of t expected"


def test_the_text(con):
    layouts = _layouts("SELECT COUNT_IF(a < 5) FROM t; SELECT COUNT(*) FROM u", con)
    assert scan_text(layouts, {}) == ""
    assert scan_text(layouts, {"other": 5}) == ""
    assert scan_text(layouts, {"t": 20_000}) == "about 20,000 rows of t expected, under 0.1 s of one core"
    assert scan_text(layouts, {"t": 1, "u": 10**9}) == (
        "about 1 row of t expected, under 0.1 s of one core; about 1,000,000,000 rows of u expected, "
        "about 20 s of one core"
    )
    assert scan_text(layouts, {"t": 10**8}).endswith("about 5.5 s of one core")


@pytest.mark.parametrize("rows", [None, 40_000_000])
def test_a_plan_shows_it(tmp_path, con, rows):
    path = tmp_path / "p.toml"
    guess = "" if rows is None else f"expected_rows = {rows}\n"
    path.write_text('dataset = "s-1"\n[budget]\nepsilon = 4.0\n[tables.t]\nunit = "row"\n' + guess
                    + "[tables.t.columns]\na = { lower = 0, upper = 9 }\n")  # fmt: skip
    held = dpsql.connect(con, policy=str(path), ledger=str(tmp_path / "ledger"))
    plan = held.plan("SELECT COUNT_IF(a < 5) FROM t", epsilon=1.0)
    lines = [line for line in str(plan).splitlines() if line.startswith("Scan ")]
    wanted = [] if rows is None else ["Scan       about 40,000,000 rows of t expected, about 2.2 s of one core"]
    assert lines == wanted
