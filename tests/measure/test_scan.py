"""The generated scan: integers that repeat, totals that cannot fail, failures that tell nothing."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, engine_of, exact, filled, job_of, policy_of, sources_of, tables_of

import dpsql
from dpsql.engines.duckdb import OpenEngine
from dpsql.errors import OperationalError
from dpsql.measure import cells, from_sql, reading
from dpsql.measure.scan_sql import select_list
from dpsql.measure.shield import shielded
from dpsql.policy import Policy
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr.scan import Joined, Relation, Select
from dpsql.workloads.expr.value_sql import render, select_text
from dpsql.workloads.expr.values import Compared, Constant, Name, Test, walk

NUMBERS = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\nv = { lower = -1, upper = 3 }\nk = {}\n')


def test_sums_of_doubles_repeat_on_two_threads() -> None:
    con = duckdb.connect(config={"threads": 2})
    con.execute("CREATE TABLE t AS SELECT CASE i % 4 WHEN 0 THEN 1.0000000000000002 WHEN 1 THEN 2.0 ** 53 "
                "WHEN 2 THEN -1.0 / 3 ELSE 0.1 * (i % 31) END::DOUBLE AS v, i AS k "
                "FROM range(200000) r(i)")  # fmt: skip
    found = {tuple(exact("SELECT SUM(v), COUNT(*), COUNT_IF(k > 1000) FROM t", NUMBERS, con).x) for _ in range(8)}
    assert len(found) == 1


def test_sums_beyond_64_bits_are_exact() -> None:
    policy = policy_of(
        '[tables.t]\nunit = "row"\n[tables.t.columns]\nv = { lower = -549755813888, upper = 549755813888 }\n'
    )
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT CASE WHEN i < 30000000 THEN 549755813888 ELSE -549755813887 END AS v "
                "FROM range(30000001) r(i)")  # fmt: skip
    (answer,) = exact("SELECT SUM(v) FROM t", policy, con).answers
    assert answer == Fraction(30_000_000 * 549_755_813_888 - 549_755_813_887)
    assert answer > 2**63


def test_values_are_clamped_and_quantised() -> None:
    policy = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\nv = { lower = -1, upper = 3, step = 0.5 }\n')
    con = duckdb.connect()
    for given, wanted in [
        ("'inf'", 3),
        ("'-inf'", -1),
        ("7.5", 3),
        ("-1.25", -1),
        ("0.2", 0),
        ("0.3", 0.5),
        ("2.9", 3),
    ]:
        con.execute(f"CREATE OR REPLACE TABLE t AS SELECT {given}::DOUBLE AS v")
        assert exact("SELECT SUM(v) FROM t", policy, con).answers == [Fraction(wanted)], given
    # NaN is NULL, which counts for nothing.
    con.execute("CREATE OR REPLACE TABLE t AS SELECT 'nan'::DOUBLE AS v UNION ALL SELECT 2.0")
    batch = "SELECT SUM(v), COUNT(v), SUM(v + 1), COUNT(*), COUNT_IF(v IS NULL), COUNT_IF(v > 2.5) FROM t"
    assert exact(batch, policy, con).answers == [2, 1, 3, 2, 1, 0]


def test_a_row_is_in_one_cell() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT i / 7 AS v, CASE WHEN i % 9 > 0 THEN i END AS k FROM range(500) r(i)")
    batch = "SELECT COUNT(*) FROM t;" + ";".join(
        f"SELECT COUNT(*) FROM t WHERE k > {i} AND v < {i % 5}" for i in range(60)
    )
    found = exact(batch, NUMBERS, con)
    assert sum(found.x) == 500
    assert min(found.x) >= 0


def _columns(compiled: Compiled) -> str:
    return " ".join(render(value) for _, value in select_list(compiled.layouts[0])[0])


@pytest.mark.parametrize(
    ("kind", "cuts"),
    [(k, c) for k in ("TINYINT", "UTINYINT", "BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT")
     for c in ((1, 2, 3, 5, 8), (1, 2, 100, 126, 127), (0, 1, 3, 4, 7))],
)  # fmt: skip
@pytest.mark.few(every=4)
def test_narrow_integers_are_looked_up(kind: str, cuts: tuple[int, ...]) -> None:
    con = duckdb.connect()
    info = {"TINYINT": (-128, 127), "UTINYINT": (0, 255), "BIGINT": (-(2**63), 2**63 - 1), "UBIGINT": (0, 2**64 - 1),
            "HUGEINT": (-(2**127), 2**127 - 1), "UHUGEINT": (0, 2**128 - 1)}[kind]  # fmt: skip
    values = sorted({*info, *(v for v in range(-3, 128) if v >= info[0])})
    con.execute(f"CREATE TABLE t (v DOUBLE, k {kind})")
    con.execute("INSERT INTO t VALUES " + ", ".join(f"(0, {v})" for v in [*values, "NULL"]))
    batch = ";".join(f"SELECT COUNT(*) FROM t WHERE k <= {c}" for c in cuts)
    found = exact(batch, NUMBERS, con)
    assert "list_extract" in _columns(found.compiled)
    assert found.answers == [sum(v <= c for v in values) for c in cuts]


def test_what_fails_in_duckdb_on_a_row_is_answered_here() -> None:
    policy = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\nu = { lower = -5, upper = 5 }\nd = {}\ni = {}\n')
    con = duckdb.connect()
    con.execute("CREATE TABLE t (u UHUGEINT, d DECIMAL(38,3), i TINYINT)")
    con.execute(f"INSERT INTO t VALUES ({2**128 - 1}, {'9' * 35}.999, -128), (1, 0, 127), (NULL, NULL, NULL)")
    for condition, count in [("u > -5", 2), ("d <= 0.0005", 1), ("d < 1e300", 2), ("i < 1000000", 2), ("i = 128", 0)]:
        assert exact(f"SELECT COUNT(*) FROM t WHERE {condition}", policy, con).answers == [count], condition
    assert exact("SELECT SUM(u), SUM(u) FILTER (WHERE i < 0) FROM t", policy, con).answers == [6, 5]


# --- failures tell nothing -------------------------------------------------------------------------------------


SECRET = 424_242_424_242


def _setup(tmp_path: Path) -> tuple[Path, Path]:
    database = tmp_path / "d.duckdb"
    with filled(database) as con:
        con.execute(f"CREATE TABLE t AS SELECT {SECRET}::BIGINT AS v, 1 AS k FROM range(77)")
    policy = tmp_path / "p.toml"
    policy.write_text('dataset = "d-1"\n[budget]\nepsilon = 4.0\n[tables.t]\nunit = "row"\n[tables.t.columns]\n'
                      "v = { lower = 0, upper = 10 }\nk = { lower = 0, upper = 3 }\n")  # fmt: skip
    return database, policy


def _frames(trace: TracebackType | None) -> list[FrameType]:
    found = []
    while trace is not None:
        if "dpsql" in trace.tb_frame.f_code.co_filename and "tests" not in trace.tb_frame.f_code.co_filename:
            found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def _private(frame: FrameType) -> list[str]:
    """Names of locals that could hold data, or noise beside a noisy answer."""
    return [
        name
        for name, value in frame.f_locals.items()
        if isinstance(value, np.ndarray) or str(SECRET) in repr(value) or name in {"noise", "x", "found", "exact"}
    ]


def test_a_scan_that_duckdb_never_runs_is_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, policy = _setup(tmp_path)
    con = dpsql.connect(database, policy=policy)
    plan = con.plan("SELECT COUNT(*) FROM t WHERE v % 10 = 4", epsilon=1)
    real = reading.read_once
    monkeypatch.setattr(
        reading, "read_once", lambda value, line, name: replace(real(value, line, name), first=Name("nowhere"))
    )
    with pytest.raises(dpsql.InternalError, match="on generated rows"):
        con.run(plan)
    assert con.budget.spent == 0


class _LeakError(Exception):
    pass


@pytest.mark.parametrize("error", [duckdb.ConversionException, _LeakError, MemoryError, SystemExit, OverflowError])
@pytest.mark.few(every=2)
def test_a_failed_scan_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    database, policy = _setup(tmp_path)
    con = dpsql.connect(database, policy=policy)
    original = OpenEngine.scan

    def scan(self: Any, *rest: Any) -> Any:
        held = original(self, *rest)
        raise error(f"value {SECRET} of {held}")

    monkeypatch.setattr(OpenEngine, "scan", scan)
    with pytest.raises(OperationalError) as caught:
        con.run("SELECT SUM(v), COUNT(*) FROM t WHERE k > 0", epsilon=1.0)
    assert str(SECRET) not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    for frame in _frames(caught.tb):
        assert _private(frame) == [], frame.f_code
    # The charge stands.
    assert con.budget.spent == 1.0


def test_messages_are_the_same_for_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = []
    for rows in (3, 4):
        folder = tmp_path / str(rows)
        folder.mkdir()
        database, policy = _setup(folder)
        con = dpsql.connect(database, policy=policy)

        def scan(self: Any, *rest: Any, rows: int = rows) -> Any:
            raise duckdb.ConversionException(f"row {rows}")

        monkeypatch.setattr(OpenEngine, "scan", scan)
        with pytest.raises(OperationalError) as caught:
            con.run("SELECT COUNT(*) FROM t", epsilon=1.0)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_ledger_that_fails_after_the_scan_shows_no_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpsql.privacy.ledger import Ledger

    database, policy = _setup(tmp_path)
    con = dpsql.connect(database, policy=policy)

    def record(self: Any, *rest: Any) -> None:
        raise OperationalError("disk full")

    monkeypatch.setattr(Ledger, "record", record)
    with pytest.raises(OperationalError) as caught:
        con.run("SELECT COUNT(*) FROM t", epsilon=1.0)
    for frame in _frames(caught.tb):
        # y is noisy and may be held; beside the noise it would be the exact count.
        assert _private(frame) == [], frame.f_code


def test_an_interrupt_stays_one_and_carries_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, policy = _setup(tmp_path)
    con = dpsql.connect(database, policy=policy)

    def scan(self: Any, *rest: Any) -> Any:
        held = np.array([SECRET])
        raise KeyboardInterrupt(str(held))

    monkeypatch.setattr(OpenEngine, "scan", scan)
    with pytest.raises(KeyboardInterrupt) as caught:
        con.run("SELECT COUNT(*) FROM t", epsilon=1.0)
    (said,) = caught.value.args
    assert said == "interrupted: release 1 is charged and stays charged, and has no answer in the ledger"
    assert caught.value.__context__ is None
    assert all(_private(frame) == [] for frame in _frames(caught.tb))


def test_the_exact_vector_does_not_outlive_the_scan(tmp_path: Path) -> None:
    database, policy_path = _setup(tmp_path)
    policy = Policy.load(policy_path)
    engine = engine_of(database)
    compiled = compiled_of("SELECT COUNT(*) FROM t WHERE k = 1", policy, tables_of(policy, engine))
    job = job_of(compiled, policy)
    y = shielded(partial(cells.observed, job, engine, [10**30] * compiled.rows.shape[1]), job.failed)
    assert y == [77 + 10**30]
    gc.collect()
    held = [o for o in gc.get_objects() if isinstance(o, dict) and "n" in o and isinstance(o.get("n"), np.ndarray)]
    assert held == []


def test_the_scan_has_no_condition_on_rows() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (v DOUBLE, k INTEGER)")
    compiled = compiled_of("SELECT SUM(v) FROM t WHERE k = 987654", NUMBERS, tables_of(NUMBERS, engine_of(con)))
    columns = _columns(compiled)
    assert "WHERE" not in columns
    assert "FILTER" not in columns
    assert set(sources_of(NUMBERS)) == {"t"}


UNITS = policy_of(
    """
[tables.visits]
unit = "pid"
max_rows_per_unit = 3
[tables.visits.columns]
pid = {}
ward = { values = ["a", "b"] }
cost = { lower = 0, upper = 100 }
[tables.people]
unit = "pid"
key = ["pid"]
max_rows_per_unit = 1
[tables.people.columns]
pid = {}
sex = { values = ["f", "m"] }
"""
)
# Conditions that hold for no row of the smaller of two neighbours, and for one of the larger.
OF_UNITS = {
    "WHERE": "SELECT SUM(n), COUNT(*) FROM (SELECT pid, SUM(cost) AS n FROM visits WHERE ward = 'b' GROUP BY pid)",
    "WHERE on the unit": "SELECT COUNT(*) FROM (SELECT pid, COUNT(*) AS n FROM visits WHERE pid > 90000 GROUP BY pid)",
    "WHERE of units counted": """SELECT COUNT(DISTINCT pid) FROM (SELECT pid, COUNT(*) AS n FROM visits
        WHERE ward = 'b' GROUP BY pid) WHERE n > 1""",
    "WHERE below": """SELECT SUM(m) FROM (SELECT pid, SUM(n) AS m FROM (SELECT pid, COUNT(*) AS n FROM visits
        WHERE pid > 90000 GROUP BY pid) WHERE n < 3 GROUP BY pid)""",
    "HAVING": """SELECT COUNT(*) FROM people p LEFT JOIN (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid
        HAVING pid = 99999) v ON v.pid = p.pid WHERE v.n > 0""",
    "HAVING of rows": "SELECT COUNT(*) FROM (SELECT pid FROM visits GROUP BY pid HAVING pid = 99999)",
    "EXISTS": """SELECT COUNT(*) FROM people p WHERE NOT EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid
        AND v.ward = 'b')""",
    "IN": "SELECT COUNT(*) FROM people WHERE pid IN (SELECT pid FROM visits WHERE ward = 'b' GROUP BY pid)",
    "FILTER": """SELECT SUM(n) FROM (SELECT pid, SUM(cost) FILTER (WHERE ward = 'b') AS n FROM visits WHERE cost > 2
        GROUP BY pid)""",
    "a join to units": """SELECT ward, COUNT(*) FROM visits x JOIN (SELECT pid, COUNT(*) AS n FROM visits
        WHERE ward = 'b' GROUP BY 1) v ON v.pid = x.pid GROUP BY ward""",
}


@pytest.fixture(scope="module")
def neighbours() -> list[duckdb.DuckDBPyConnection]:
    """Two databases: in one a unit more, which has the one row in ward b."""
    found = []
    for more in (0, 1):
        con = duckdb.connect(config={"threads": 1})
        con.execute("CREATE TABLE visits AS SELECT 18 * i AS pid, 'a' AS ward, 5 AS cost FROM range(5000) r(i)")
        con.execute("CREATE TABLE people AS SELECT 18 * i AS pid, 'f' AS sex FROM range(100) r(i)")
        con.execute(f"INSERT INTO visits SELECT 99999, 'b', 5 FROM range({more})")
        found.append(con)
    return found


def _selects(relation: Relation) -> Iterator[tuple[Test | None, Sequence[Test]]]:
    """WHERE of each SELECT of a scan, and the ON of its joins."""
    if isinstance(relation, Select):
        yield (
            relation.where,
            [match.on for match in relation.source.joins] if isinstance(relation.source, Joined) else [],
        )
        yield from _selects(relation.source)
    elif isinstance(relation, Joined):
        for part in (relation.base, *(match.rows for match in relation.joins)):
            yield from _selects(part)


def _operators(node: dict[str, Any]) -> list[str]:
    """The operators of a plan of DuckDB but for projections, and beside a scan of a table what it is filtered by."""
    name = node["name"].strip().upper()
    filters = [f"{key} {value}" for key, value in node.get("extra_info", {}).items() if "filter" in key.lower()]
    found = [*([] if name == "PROJECTION" else [name]), *filters]  # values are packed in projections
    return [*found, *(part for child in node["children"] for part in _operators(child))]


@pytest.mark.parametrize("name", OF_UNITS)
def test_nor_has_a_scan_of_rows_of_units(name: str, neighbours: list[duckdb.DuckDBPyConnection]) -> None:
    """DuckDB pushes a condition down to the table, where statistics of the values say what is read at all."""
    compiled = compiled_of(OF_UNITS[name], UNITS, tables_of(UNITS, engine_of(neighbours[0])))
    for scan in reading.scans_of(compiled.layouts):
        select = reading.scan_of(scan.layout, sources_of(UNITS)).select
        for where, ons in _selects(select):
            assert where is None or (isinstance(where, Compared) and where.left == Name(from_sql.PLACE))
            assert not [part for on in ons for part in walk(on) if isinstance(part, Constant)]
        text = select_text(select, {table: table for table in ("visits", "people")})
        plans = [_operators(json.loads(con.execute(f"EXPLAIN (FORMAT JSON) {text}").fetchall()[0][1])[0])
                 for con in neighbours]  # fmt: skip
        assert plans[0] == plans[1]
        scans = [operator for operator in plans[0] if "SCAN" in operator]
        assert len(scans) == text.count("FROM visits") + text.count("FROM people")
        assert not [operator for operator in plans[0] if "empty" in operator.lower() or "filters" in operator.lower()]
