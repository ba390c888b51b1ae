"""Tables that DuckDB and Spark have alike, and batches measured on both without noise."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import duckdb
from helpers import compiled_of, engine_of, job_of, tables_of

from dpsql.engines.base import Engine
from dpsql.measure import cells
from dpsql.policy import Policy

# What Spark has no type for, or another meaning: such columns are left out of both tables.
LACKING = ("HUGEINT", "UHUGEINT", "UBIGINT", "UINTEGER", "USMALLINT", "UTINYINT", "TIMESTAMP WITH TIME ZONE")


def new_session(warehouse: Path) -> Any:
    """A session with two threads, without a page of its own, whose tables lie in ``warehouse``."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers of Python find the packages that the tests have
    return (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.driver.memory", "1g")
        # Small statements end before a second compilation of the JVM's code would pay.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def carry(con: duckdb.DuckDBPyConnection, spark: Any, table: str, folder: Path, schema: str = "default") -> None:
    """Make ``table`` what both engines can hold, and a table of Spark of it: ENUM as text, no infinite dates."""
    kept = []
    described = con.execute(f"DESCRIBE {quoted(table)}").fetchall()
    folded = [name.lower() for name, *_ in described]
    for name, kind, *_ in described:
        if folded.count(name.lower()) > 1:
            continue  # DuckDB folds the case of ASCII alone, Spark that of every letter
        column = quoted(name)
        if kind.startswith("ENUM"):
            column = f"CAST({column} AS VARCHAR)"
        elif kind in ("DATE", "TIMESTAMP"):
            column = f"CASE WHEN isfinite({column}) THEN {column} END"
        elif kind in LACKING:
            continue
        kept.append(f"{column} AS {quoted(name)}")
    con.execute(f"CREATE OR REPLACE TABLE {quoted(table)} AS SELECT {', '.join(kept)} FROM {quoted(table)}")
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    con.execute(f"COPY {quoted(table)} TO '{path}'")
    spark.read.parquet(str(path)).write.mode("overwrite").format("parquet").saveAsTable(f"`{schema}`.`{table}`")


def carried_policy(con: duckdb.DuckDBPyConnection, policy: str) -> str:
    """The policy without the columns that were left out."""
    held = {row[0].lower() for row in con.execute("SELECT column_name FROM duckdb_columns()").fetchall()}
    lines = []
    for line in policy.splitlines():
        declared = re.match(r'("[^"]+"|\w+) = \{', line)
        if declared is None or declared[1].strip('"').lower() in {*held, "references"}:
            lines.append(line)
    return "\n".join(lines)


def x_of(batch: str, policy: Policy, engine: Engine, compiler: duckdb.DuckDBPyConnection) -> list[int]:
    """The exact cells (n,) of a batch in units of 1 / L, counted by ``engine``."""
    compiled = compiled_of(batch, policy, tables_of(policy, engine_of(compiler)))
    job = job_of(compiled, policy)
    return cells.observed(job, engine, [0] * compiled.rows.shape[1])
