"""What a first policy may know: the schema's own declarations, never a row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from helpers import filled

from dpsql.engines.declared import read_declared
from dpsql.errors import OperationalError

CHECKS = {
    "INTEGER CHECK (c BETWEEN 0 AND 120)": (0, 120),
    "INTEGER CHECK (c > -3 AND c < 7 AND c <> 5)": (-2, 6),
    "INTEGER CHECK (c >= 0) CHECK (100 >= c) CHECK (c <= 90)": (0, 90),
    "BIGINT CHECK (c BETWEEN 0 AND 1e6)": (0, 1_000_000),
    "DECIMAL(8,2) CHECK (c >= 0 AND c < 100.5)": (Decimal(0), Decimal("100.5")),
    "DOUBLE CHECK (c > -0.5 AND c <= 2)": (Decimal("-0.5"), Decimal(2)),
    "DATE CHECK (c >= '2020-01-01' AND c <= DATE '2021-12-31')": (dt.date(2020, 1, 1), dt.date(2021, 12, 31)),
    "TIMESTAMP CHECK (c BETWEEN '2020-01-01' AND TIMESTAMP '2020-01-02 03:00:00')": (
        dt.datetime(2020, 1, 1),
        dt.datetime(2020, 1, 2, 3),
    ),
    # Nothing follows for both sides of the column.
    "INTEGER CHECK (c >= 0)": None,
    "INTEGER CHECK (c < 5 OR c > 3)": None,
    "INTEGER CHECK (NOT (c BETWEEN 0 AND 5))": None,
    "INTEGER CHECK (c + 1 BETWEEN 0 AND 5)": None,
    "INTEGER CHECK (c BETWEEN 5 AND 1)": None,
    "VARCHAR CHECK (c BETWEEN 'a' AND 'b')": None,
    "VARCHAR CHECK (length(c) BETWEEN 1 AND 5)": None,
    "DATE CHECK (c BETWEEN 'infinity' AND 'infinity')": None,
    "INTEGER DEFAULT 7": None,
}


@pytest.mark.parametrize("column", CHECKS)
@pytest.mark.few(every=2)
def test_bounds_are_those_that_checks_imply(tmp_path: Path, column: str) -> None:
    path = tmp_path / "x.duckdb"
    with filled(path) as connection:
        connection.execute(f"CREATE TABLE t (c {column}, d INTEGER)")
    expected = CHECKS[column]
    assert read_declared(path, {})["t"].bounds == ({} if expected is None else {"c": expected})


def test_a_database_gives_tables_schemas_and_enums_but_no_view(tmp_path: Path) -> None:
    path = tmp_path / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TYPE g AS ENUM ('M', 'it''s (F), or so')")
        connection.execute('CREATE TABLE "we ird" (e g, "The Key" INTEGER CHECK ("The Key" BETWEEN 1 AND 2))')
        connection.execute("CREATE SCHEMA s; CREATE TABLE s.u (x BIGINT); CREATE VIEW v AS SELECT 1 AS one")
        # Shadows of catalog functions must not be called.
        connection.execute("CREATE MACRO duckdb_constraints() AS TABLE SELECT 1")
    found = read_declared(path, {})
    assert list(found) == ["we ird", "s.u"]
    assert found["we ird"].members == {"e": ("M", "it's (F), or so")}
    assert found["we ird"].bounds == {"The Key": (1, 2)}
    assert dict(found["s.u"].columns) == {"x": "BIGINT"}


def test_rows_make_no_difference(tmp_path: Path) -> None:
    found = []
    for name, insert in (("a", "VALUES (5)"), ("b", "VALUES (99), (1)")):
        path = tmp_path / f"{name}.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"CREATE TABLE t (c INTEGER CHECK (c < 100)); INSERT INTO t {insert}")
        found.append(read_declared(path, {}))
    assert found[0] == found[1]


def test_files_give_types_or_the_header_alone(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("year,cost\n1999,77.5\n")
    duckdb.sql("SELECT 1::SMALLINT AS a, 'x' AS b").write_parquet(str(tmp_path / "p.parquet"))
    found = read_declared(None, {"v": tmp_path / "v.csv", "p": tmp_path / "p.parquet"})
    assert dict(found["v"].columns) == {"year": "VARCHAR", "cost": "VARCHAR"}
    assert dict(found["p"].columns) == {"a": "SMALLINT", "b": "VARCHAR"}


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "x.duckdb"
    broken.write_text("no database")
    with pytest.raises(OperationalError, match="cannot be opened"):
        read_declared(broken, {})
    broken.rename(tmp_path / "x.parquet")
    with pytest.raises(OperationalError, match="cannot be read"):
        read_declared(None, {"x": tmp_path / "x.parquet"})
