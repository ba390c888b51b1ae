"""Joins and truncation in the engines: poisoned databases, settings of a connection, files and lost columns."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from unit_rows import Ask, answers_of, compiled_of, policy_of, scan, sources_of, tables_of

from dpsql.errors import OperationalError
from dpsql.measure import ConnectionEngine, Engine, FileEngine

TABLES = """
[tables.patients]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
{patients}
[tables.patients.columns]
id = {{ type = "VARCHAR" }}
sex = {{ values = ["f", "m"], type = "VARCHAR" }}
[tables.visits]
unit = "patient"
max_rows_per_unit = 2
references = {{ patient = "patients.id" }}
{visits}
[tables.visits.columns]
patient = {{ type = "VARCHAR" }}
cost = {{ lower = 0, upper = 5, type = "DOUBLE" }}
region = {{ type = "INTEGER" }}
[tables.regions]
public = true
key = ["id"]
{regions}
[tables.regions.columns]
id = {{ type = "INTEGER" }}
name = {{ values = ["n", "s"], type = "VARCHAR" }}
"""
POLICY = policy_of(TABLES.format(patients="", visits="", regions=""))
BATCH = [
    Ask("visits v JOIN patients p ON v.patient = p.id JOIN regions r ON r.id = v.region", ("sex", "r.name"), ("cost",)),
    Ask("visits"),
    Ask("visits WHERE cost > 1", distinct=True),
]
PATIENTS = (
    "SELECT CASE WHEN i % 2 = 0 THEN 'p' ELSE 'P' END || i // 2 AS id, CASE WHEN i % 3 = 0 THEN 'f' ELSE 'm' END AS sex"
)
DATA = {
    "patients": f"{PATIENTS} FROM range(30) r(i)",
    "visits": "SELECT CASE WHEN i % 2 = 0 THEN 'p' ELSE 'P' END || i % 17 AS patient, "
    "CASE WHEN i % 5 > 0 THEN CAST(i % 7 - 1 AS DOUBLE) END AS cost, "
    "CAST(i % 3 AS INTEGER) AS region FROM range(90) r(i)",
    "regions": "SELECT * FROM (VALUES (0, 'n'), (1, 's'), (1, 'n'), (CAST(NULL AS INTEGER), 's')) v(id, name)",
}


def make(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    for name, select in DATA.items():
        con.execute(f"CREATE TABLE {name} AS {select}")
    return con


def answers(engine: Engine, policy: object = POLICY) -> list[list[object]]:
    compiled = compiled_of(BATCH, policy, tables_of(policy, engine))  # type: ignore[arg-type]
    return [list(group) for group in answers_of(compiled, scan(compiled, engine, sources_of(policy)))]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wanted() -> list[list[object]]:
    return answers(ConnectionEngine(make(duckdb.connect())))


POISON = [
    "CREATE MACRO row_number() AS 1", "CREATE MACRO hash(a) AS error('hash')", 'CREATE MACRO "+"(a, b) AS 0',
    "CREATE MACRO count_star() AS 5", "CREATE MACRO sum(a) AS 7", "CREATE MACRO signbit(a) AS true",
    "CREATE MACRO list_extract(a, b) AS 1", "CREATE SCHEMA dpsql_source",
    "CREATE TABLE dpsql_source.visits AS SELECT 1 AS a",
    'CREATE TABLE dpsql_base AS SELECT 1 AS patient', "CREATE SCHEMA system_main",
]  # fmt: skip


def test_a_poisoned_file_gives_the_same_answers(tmp_path: Path, wanted: list[list[object]]) -> None:
    path = tmp_path / "poisoned.duckdb"
    done = 0
    with duckdb.connect(path) as con:
        make(con)
        for statement in POISON:
            try:
                con.execute(statement)
                done += 1
            except duckdb.Error:
                continue
    assert done >= 9
    assert answers(FileEngine(path)) == wanted


def test_macros_behind_a_connection_change_nothing(wanted: list[list[object]]) -> None:
    con = make(duckdb.connect())
    for macro in ("row_number() AS 1", "hash(a) AS 1", '"+"(a, b) AS 0', "signbit(a) AS true"):
        con.execute(f"CREATE MACRO {macro}")
    assert answers(ConnectionEngine(con)) == wanted
    con.execute("CREATE SCHEMA s; CREATE MACRO s.hash(a) AS 1; SET search_path = 's'")
    assert answers(ConnectionEngine(con)) == wanted
    assert con.execute("SELECT hash(5), current_setting('search_path')").fetchone() == (1, "s")


@pytest.mark.parametrize(
    "setting",
    [
        "SET default_null_order = 'nulls_first'", "SET default_order = 'desc'", "SET default_collation = 'nocase'",
        "CREATE TEMP TABLE visits AS SELECT 'x' AS patient, 1.0 AS cost, 1 AS region FROM range(1000)",
        "CREATE TEMP VIEW patients AS SELECT error('seen') AS id, 'f' AS sex", "SET threads = 2",
        "SET disabled_optimizers = 'top_n_window_elimination'", "SET GLOBAL max_expression_depth = 8",
    ],
)  # fmt: skip
@pytest.mark.few(every=3)
def test_settings_and_temporary_tables_change_nothing(setting: str, wanted: list[list[object]]) -> None:
    con = make(duckdb.connect())
    try:
        con.execute(setting)
    except duckdb.Error:
        pytest.skip("this DuckDB has no such setting")
    assert answers(ConnectionEngine(con)) == wanted


def test_files_are_joined(tmp_path: Path, wanted: list[list[object]]) -> None:
    con = make(duckdb.connect())
    paths = {"patients": tmp_path / "p.parquet", "visits": tmp_path / "v.csv", "regions": tmp_path / "r.parquet"}
    for name, path in paths.items():
        con.execute(f"COPY {name} TO '{path}'")
    named = {name: f'source = "{path}"' for name, path in paths.items()}
    policy = policy_of(TABLES.format(**named))
    engine = FileEngine(None)
    assert answers(engine, policy) == wanted
    # A database file beside files.
    database = tmp_path / "d.duckdb"
    with duckdb.connect(database) as con:
        make(con)
    mixed = policy_of(TABLES.format(patients="", regions="", visits=named["visits"]))
    assert answers(FileEngine(database), mixed) == wanted


def test_a_scan_that_fails_names_no_value(tmp_path: Path) -> None:
    con = make(duckdb.connect())
    engine = ConnectionEngine(con)
    compiled = compiled_of(BATCH, POLICY, tables_of(POLICY, engine))
    con.execute("ALTER TABLE patients RENAME COLUMN sex TO gender")
    with pytest.raises(OperationalError, match="the scan of visits failed inside DuckDB") as caught:
        scan(compiled, engine, sources_of(POLICY))
    assert caught.value.__context__ is None
