"""dp_ranges and dp_prefixes over columns of many declared values: planned, released and read in closed form."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.errors import DataError, InterfaceError, SQLError
from dpsql.reconstruct import RangeErrors
from dpsql.running.result_tables import release_tables

WORDS = [f"w{i:04d}" for i in range(700)]
COLUMNS = f"""
[tables.t]
unit = "row"
[tables.t.columns]
k = {{ lower = -300, upper = 499 }}
day = {{ lower = 2000-01-01, upper = 2002-06-30 }}
word = {{ values = {WORDS}, other = true }}
v = {{ lower = 0, upper = 100 }}
s = {{ values = ["a", "b"], other = true }}
"""
ACCOUNTS = {"gaussian": "rho = 2000000", "laplace": "epsilon = 1000000"}
ASK: dict[str, dict[str, Any]] = {"gaussian": {"rho": 200_000}, "laplace": {"epsilon": 100_000}}


def _policy(account: str, columns: str = COLUMNS) -> dpsql.Policy:
    return dpsql.Policy.parse(f'dataset = "long-1"\n[budget]\n{account}\n{columns}')


def _rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Rows with values outside every declared domain, infinite dates and NULLs among them."""
    connection.execute(
        "CREATE TABLE t AS SELECT ((i * 7919) % 1000 - 400)::INT AS k, "
        "(DATE '1999-12-01' + (i * 31 % 1000)::INT) AS day, printf('w%04d', i * 13 % 720) AS word, "
        "((i * 17) % 131 - 15)::INT AS v, ['a', 'b', 'c', NULL][1 + i % 4] AS s "
        "FROM range(5000) t(i)"
    )
    connection.execute(
        "INSERT INTO t VALUES (NULL, 'infinity', NULL, NULL, NULL), (2147483647, '-infinity', '', 5, 'a'), "
        "(-2147483648, NULL, 'w0001', NULL, 'b'), (3, '2001-01-01', 'w0002', NULL, 'a')"
    )


@pytest.fixture
def table() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    _rows(connection)
    return connection


def _connect(connection: duckdb.DuckDBPyConnection, path: Path, noise: str) -> dpsql.Connection:
    return dpsql.connect(connection, policy=_policy(ACCOUNTS[noise]), ledger=path / "l.ledger")


def _clamped(where: str) -> str:
    return f"coalesce(sum(least(greatest(v, 0), 100)) FILTER ({where}), 0)"


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("column", ["k", "day", "word"])
@pytest.mark.few(every=10)
def test_every_range_is_that_of_the_rows(
    table: duckdb.DuckDBPyConnection, tmp_path: Path, column: str, noise: str
) -> None:
    """With next to no noise all answers are DuckDB's own, for whole numbers, days and words, by group and condition."""
    con = _connect(table, tmp_path, noise)
    text = (
        f"CREATE VIEW w AS SELECT s, dp_ranges({column}) AS r, COUNT(*) + 2 AS n, SUM(v) AS total "
        "FROM t WHERE k > -250 GROUP BY ALL"
    )
    rel = con.run(text, **ASK[noise])
    cast = {"k": int, "day": dt.date.fromisoformat, "word": str}[column]
    ends = {
        "k": [("-300", "499"), ("3", "3"), ("-20", "77")],
        "day": [("2000-01-01", "2002-06-30"), ("2001-01-01", "2001-01-01"), ("2000-05-05", "2001-07-08")],
        "word": [("w0000", "w0699"), ("w0001", "w0001"), ("w0100", "w0345")],
    }[column]
    for low, high in ends:
        asked = f"WHERE r_from = '{low}' AND r_to = '{high}' ORDER BY s, s_other"
        found = con.sql(f"SELECT s, s_other, r_from, r_to, n, total, total_stderr FROM w {asked}").fetchall()
        inside = f"{column} BETWEEN '{low}' AND '{high}' AND k > -250"
        if column == "word":
            inside += f" AND word <= '{WORDS[-1]}' AND length(word) = 5"
        expected = table.execute(
            f"SELECT CASE WHEN s IN ('a', 'b') THEN s END AS g, s IS NOT NULL AND s NOT IN ('a', 'b') AS o, "
            f"count(*) FILTER ({inside}) + 2, {_clamped(inside)} FROM t GROUP BY ALL ORDER BY g, o"
        ).fetchall()
        assert [row[:2] for row in found] == [row[:2] for row in expected]
        assert all(row[2] == cast(low) and row[3] == cast(high) for row in found)
        for row, (_, _, count, total) in zip(found, expected, strict=True):
            assert row[4] == pytest.approx(count, abs=0.3)
            assert row[5] == pytest.approx(total, abs=max(6 * row[6], 0.1))
    assert len(rel["w"]) == 4 * (n := {"k": 800, "day": 912, "word": 700}[column]) * (n + 1) // 2


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.few("laplace")
def test_rows_are_the_view_and_survive_a_rebuild(table: duckdb.DuckDBPyConnection, tmp_path: Path, noise: str) -> None:
    con = _connect(table, tmp_path, noise)
    rel = con.run("CREATE VIEW w AS SELECT dp_ranges(k), COUNT(*) AS n, s FROM t GROUP BY 1, 3", **ASK[noise])
    held = rel["w"]
    first = held.fetchmany(2000)
    assert held.fetchone() is not None
    assert held.columns[:2] == ("k_from", "k_to")
    for query in ("SELECT * FROM w", "SELECT * FROM r1.w"):
        view = con.sql(f"{query} WHERE s = 'a' AND k_from <= -298 ORDER BY k_from, k_to LIMIT 2000").fetchall()
        assert [row[:2] for row in view] == [row[:2] for row in first]
        assert [row[2:6] for row in view] == [pytest.approx(row[2:6], rel=1e-9, abs=1e-9) for row in first]
    before = con.sql("SELECT * FROM w WHERE k_to = 17 ORDER BY ALL").fetchall()
    assert con.rebuild() == 1
    assert con.sql("SELECT * FROM w WHERE k_to = 17 ORDER BY ALL").fetchall() == before
    again = con.run("CREATE VIEW w AS SELECT dp_ranges(k), COUNT(*) AS n, s FROM t GROUP BY 1, 3", **ASK[noise])
    assert (again.id, again.cost) == (rel.id, 0.0)
    assert again["w"].fetchmany(5) == first[:5]
    assert table.execute("SELECT count(*) FROM dpsql_releases.dp.w WHERE k_from = 5").fetchone() == (4 * 495,)


def test_ranges_stand_beside_groups_of_conditions(table: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """A key whose groups are given by conditions has no OTHER, and its groups are shown all the same."""
    con = _connect(table, tmp_path, "gaussian")
    part = "CASE WHEN v < 50 THEN 'low' ELSE 'high' END AS part"
    rel = con.run(f"CREATE VIEW w AS SELECT dp_ranges(k) AS r, {part}, COUNT(*) AS n FROM t GROUP BY ALL", rho=200_000)
    assert rel["w"].columns[:4] == ("r_from", "r_to", "part", "n")
    found = con.sql("SELECT part, n FROM w WHERE r_from = -20 AND r_to = 77 ORDER BY part").fetchall()
    expected = table.execute(f"SELECT {part}, count(*) FROM t WHERE k BETWEEN -20 AND 77 GROUP BY ALL ORDER BY 1")
    assert found == [(name, pytest.approx(count, abs=0.3)) for name, count in expected.fetchall()]


def test_ranges_are_consistent(table: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """Parts add up to wholes, to the last digit that floats have."""
    con = dpsql.connect(table, policy=_policy("epsilon = 1\ndelta = 1e-6"), ledger=tmp_path / "l.ledger")
    con.run("CREATE VIEW w AS SELECT dp_ranges(k), COUNT(*) AS n FROM t GROUP BY 1", epsilon=1, delta=1e-6)
    whole, parts = con.sql(
        "SELECT (SELECT n FROM w WHERE k_from = -300 AND k_to = 499), (SELECT sum(n) FROM w WHERE k_from = k_to)"
    ).fetchall()[0]
    assert whole == pytest.approx(parts, rel=1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.few(every=2)
def test_the_plan_and_the_view_say_the_same_errors(
    table: duckdb.DuckDBPyConnection, tmp_path: Path, noise: str
) -> None:
    con = _connect(table, tmp_path, noise)
    text = "CREATE VIEW w AS SELECT dp_ranges(k), COUNT(*) AS n, SUM(v) AS total FROM t GROUP BY 1"
    plan = con.plan(text, **ASK[noise])
    errors, widths = plan.stderr["w"], plan.half_width["w"]
    assert isinstance(errors, RangeErrors)
    assert isinstance(widths, RangeErrors)
    con.run(plan)
    asked = "SELECT n_stderr, total_stderr, n_high - n, total - total_low FROM w"
    row = con.sql(f"{asked} WHERE k_from = -290 AND k_to = 9")
    expected = [*errors.of(10, 309)[:, 0], *widths.of(10, 309)[:, 0]]
    assert row.fetchall()[0] == pytest.approx(expected, rel=1e-6)
    assert "640,800 numbers" in str(plan)
    assert plan.bound_ratio >= 1 + (plan.gap or 0)
    if noise == "gaussian":
        assert plan.gap == pytest.approx(0.0423, abs=5e-3)
    assert "Strategy" in plan.explain()


@pytest.mark.long
def test_prefixes_are_a_table(table: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    columns = COLUMNS.replace("upper = 499", "upper = 2000")
    con = dpsql.connect(table, policy=_policy(ACCOUNTS["gaussian"], columns), ledger=tmp_path / "l.ledger")
    text = "SELECT dp_prefixes(k) AS upto, s, COUNT(*) AS n FROM t GROUP BY ALL HAVING n > 1 ORDER BY upto"
    con.run(text, **ASK["gaussian"])
    found = con.sql("SELECT upto, n FROM q1 WHERE s = 'a' AND upto IN (-200, 0, 700) ORDER BY upto").fetchall()
    expected = [
        (at, table.execute(f"SELECT count(*) FROM t WHERE s = 'a' AND k BETWEEN -300 AND {at}").fetchall()[0][0])
        for at in (-200, 0, 700)
    ]
    assert found == [(at, pytest.approx(n, abs=0.3)) for at, n in expected]


@pytest.mark.long
def test_what_asks_for_all_rows_is_refused(table: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    columns = COLUMNS.replace("upper = 499", "upper = 1699")
    con = dpsql.connect(table, policy=_policy(ACCOUNTS["gaussian"], columns), ledger=tmp_path / "l.ledger")
    rel = con.run("CREATE VIEW w AS SELECT dp_ranges(k), COUNT(*) AS n FROM t GROUP BY 1", rho=1)
    held = rel["w"]
    for ask in (held.fetchall, lambda: list(held), lambda: held.column("n"), lambda: held.fetchmany(1_000_001)):
        with pytest.raises(InterfaceError, match=r"w has 2,001,000 rows, .*WHERE k_from = \.\.\. AND k_to"):
            ask()
    with pytest.raises(dpsql.NotSupportedError, match="w has all ranges of a line"):
        rel.draws("w", 2)
    assert "of 2,001,000" in str(held)
    assert "of 2,001,000" in held._repr_html_()
    with con.cursor() as cur:
        cur.execute("SELECT dp_ranges(k), COUNT(*) AS n FROM t GROUP BY 1")
        assert cur.rowcount == 2_001_000
        assert [d[0] for d in cur.description or ()] == ["k_from", "k_to", "n"]
        assert cur.fetchone() is not None
        with pytest.raises(InterfaceError, match="2,001,000 rows"):
            cur.fetchall()
    with pytest.raises(dpsql.OperationalError, match="more than 1,000,000 rows"):
        con.sql("SELECT * FROM w")
    assert len(con.sql("SELECT * FROM w LIMIT 7")) == 7
    comment = con.sql("SELECT comment FROM duckdb_views() WHERE view_name = 'w' AND schema_name = 'r1'").fetchall()
    assert comment == [("2,001,000 rows, worked out when they are asked for",)]


RANGES = "SELECT dp_ranges(k), COUNT(*) AS n FROM t GROUP BY 1"
REFUSED = [
    ("SELECT dp_ranges(k), AVG(v) FROM t GROUP BY 1", "only counts, sums and their linear combinations"),
    ("SELECT dp_ranges(k), MEDIAN(v) FROM t GROUP BY 1", "only counts, sums and their linear combinations"),
    (f"{RANGES} ORDER BY n DESC LIMIT 5", "320,400 groups: its result is a view"),
    (f"{RANGES} HAVING n > 5", "its result is a view"),
    ("SELECT dp_ranges(k), ROUND(COUNT(*)) FROM t GROUP BY 1", "its result is a view"),
    ("SELECT DISTINCT dp_ranges(k), COUNT(*) FROM t GROUP BY 1", "its result is a view"),
    ("SELECT dp_ranges(k), COUNT(*) FROM t GROUP BY ROLLUP (1)", "its result is a view"),
    ("SELECT dp_ranges(k), dp_ranges(day), COUNT(*) FROM t GROUP BY 1, 2", "grouped by one"),
    (f"WITH w AS ({RANGES}) SELECT max(n) FROM w", "its result is a view"),
    (f"CREATE VIEW w AS {RANGES}; SELECT max(n) FROM w", "q1 reads w, whose 320,400 rows"),
    (f"{RANGES}; SELECT COUNT(*) FROM t", "run the others as a batch of their own"),
    (f"{RANGES}; SELECT dp_ranges(day), COUNT(*) FROM t GROUP BY 1", "run the others as a batch of their own"),
    ("SELECT dp_ranges(k), day, word, COUNT(*) FROM t GROUP BY ALL", "at most 4,200,000 are planned"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
@pytest.mark.few(*map(str, range(12)))  # the last takes a second
def test_what_cannot_be_worked_out_row_by_row_is_refused(
    table: duckdb.DuckDBPyConnection, tmp_path: Path, text: str, said: str
) -> None:
    con = _connect(table, tmp_path, "gaussian")
    with pytest.raises(SQLError, match=said):
        con.plan(text, rho=1)
    assert not (tmp_path / "l.ledger").exists()


def test_domains_that_no_method_plans_are_refused_with_their_size(
    table: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    few, coarse = ("lower = 0, upper = 1999999", "2,000,000"), ("lower = 0, upper = 100000, step = 2", "50,001")
    for bounds, values in (few, coarse):
        columns = COLUMNS.replace("lower = -300, upper = 499", bounds)
        con = dpsql.connect(table, policy=_policy(ACCOUNTS["gaussian"], columns), ledger=tmp_path / "l.ledger")
        with pytest.raises(SQLError, match=rf"dp_ranges\(k\): the column has {values} declared values, at most"):
            con.plan(RANGES, rho=1)
    con = _connect(table, tmp_path, "gaussian")
    with pytest.raises(DataError, match="leave objective='max' out"):
        con.plan(RANGES, rho=1, objective="max")
    with pytest.raises(InterfaceError, match="estimated without bias only"):
        con.run(RANGES, rho=1, estimates="nonnegative")
    with pytest.raises(InterfaceError, match="leave lower_at_zero out"):
        con.run(RANGES, rho=1, lower_at_zero=True)


def test_units_with_several_rows_scale_the_noise(table: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    table.execute("ALTER TABLE t ADD COLUMN who INT")
    table.execute("UPDATE t SET who = coalesce(k, 0) % 900")
    found = []
    for most in (1, 4):
        columns = COLUMNS.replace('unit = "row"', f'unit = "who"\nmax_rows_per_unit = {most}')
        con = dpsql.connect(table, policy=_policy(ACCOUNTS["gaussian"], columns), ledger=tmp_path / f"{most}.ledger")
        plan = con.plan(RANGES, rho=1)
        errors = plan.stderr["q1"]
        assert isinstance(errors, RangeErrors)
        found.append(float(errors.of(3, 50)[0, 0]))
        con.run(plan)
    assert found[1] == pytest.approx(4 * found[0], rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_released_errors_match_many_draws(table: duckdb.DuckDBPyConnection, tmp_path: Path, noise: str) -> None:
    """Answers made of noise alone, 200 draws of the law that a run charges for: their spread is what they say."""
    account = {"gaussian": "rho = 100", "laplace": "epsilon = 100"}[noise]
    con = dpsql.connect(table, policy=_policy(account), ledger=tmp_path / "l.ledger")
    ask: dict[str, Any] = {"gaussian": {"rho": 0.01}, "laplace": {"epsilon": 0.5}}[noise]
    plan = con.plan("SELECT dp_ranges(k), COUNT(*) AS n, SUM(v) AS total FROM t GROUP BY 1", **ask)
    places = [(0, 799), (100, 100), (250, 600), (17, 64)]
    scaled = []
    for _ in range(200):
        (held,) = release_tables(plan, plan.noise.sample(plan.strategy.shape[0]))
        rows = [held.row(0, a, b) for a, b in places]
        scaled.append([row[at] / row[at + 1] for row in rows for at in (2, 6)])
    squares = (np.array(scaled) ** 2).mean(axis=0)
    # Squares of a variable with kurtosis 3 (normal) to 6 (one Laplace variable).
    assert (np.abs(squares - 1) < 6.0 * np.sqrt((2 if noise == "gaussian" else 5) / 200)).all()


@pytest.mark.long
def test_a_million_declared_values(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT (i * 7919) % 1000000 AS k, i % 101 AS v FROM range(300000) t(i)")
    declared = "k = { lower = 0, upper = 999999 }\nv = { lower = 0, upper = 100 }\n"
    columns = f'[tables.t]\nunit = "row"\n[tables.t.columns]\n{declared}'
    con = dpsql.connect(connection, policy=_policy(ACCOUNTS["gaussian"], columns), ledger=tmp_path / "l.ledger")
    text = "CREATE VIEW w AS SELECT dp_ranges(k), COUNT(*) AS n, SUM(v) AS total FROM t GROUP BY 1"
    plan = con.plan(text, **ASK["gaussian"])
    assert plan.compiled.numbers == 2 * 500_000_500_000
    assert "1,000,001,000,000 numbers" in str(plan)
    assert plan.gap is not None
    assert plan.gap < 0.03
    rel = con.run(plan)
    assert len(rel["w"]) == 500_000_500_000
    (n, total, *errors) = con.sql(
        "SELECT n, total, n_stderr, total_stderr FROM w WHERE k_from = 10 AND k_to = 500000"
    ).fetchall()[0]
    expected = connection.execute("SELECT count(*), sum(v) FROM t WHERE k BETWEEN 10 AND 500000").fetchall()[0]
    assert all(abs(a - b) < 9 * error for a, b, error in zip((n, total), expected, errors, strict=True))
    assert len(con.sql("SELECT * FROM w WHERE k_from = 10 ORDER BY n DESC LIMIT 5")) == 5
    assert con.rebuild() == 1
