"""Broken keys on Spark: every scan finds the row that DuckDB finds, the least of the unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pytest
from broken_keys import CASES, COLUMNS, POLICY, databases
from helpers import engine_of
from spark_tables import carry
from unit_rows import Ask, compiled_of, scan, sources_of, tables_of
from whose_rows import Database, without

from dpsql.engines.base import Engine
from dpsql.extensions.spark.engine import SparkEngine

pytestmark = pytest.mark.spark

# The columns of units and of visits, by which the databases are kept apart.
KEYED = {"patients": (0,), "visits": (0, 1), "labs": (0,), "notes": (0, 1)}


def _crowd(count: int) -> Database:
    """Many databases as one, each with units of its own."""
    found: Database = {name: [] for name in COLUMNS}
    for number, database in enumerate(databases(count, 4)):
        for name, rows in (database if number == 0 else without(database, None)).items():
            for row in rows:
                found[name].append(
                    tuple(v if v is None or at not in KEYED[name] else v + 100 * number for at, v in enumerate(row))
                )
    return found


def _made(database: Database) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TYPE sex AS ENUM ('m', 'f'); CREATE TABLE regions AS SELECT 1 AS id, 'n' AS place")
    con.execute("INSERT INTO regions VALUES (2, 's')")
    con.execute("CREATE TABLE titles AS FROM (VALUES ('f', 'Ms'), ('m', 'Mr')) t(sex, title)")
    for name, rows in database.items():
        con.execute(f"CREATE TABLE {name} ({COLUMNS[name]})")
        if rows:
            con.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return con


@pytest.fixture(scope="module")
def con(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    found = _made(_crowd(8))
    for name in (*COLUMNS, "regions", "titles"):
        carry(found, spark, name, tmp_path_factory.mktemp(name))
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_row_that_is_found_is_that_of_duckdb(name: str, spark: Any, con: duckdb.DuckDBPyConnection) -> None:
    asks, mended = CASES[name]
    found = _measured(asks, SparkEngine(spark), con)
    assert any(found)
    assert found == _measured(asks, engine_of(con), con)
    known = _made(mended(_crowd(8)))
    assert found == _measured(asks, engine_of(known), known)


def _measured(asks: Sequence[Ask], engine: Engine, con: duckdb.DuckDBPyConnection) -> list[int]:
    return scan(compiled_of(asks, POLICY, tables_of(POLICY, engine_of(con))), engine, sources_of(POLICY))
