"""Tables that grow on Spark: a period is a partition, its release reads that partition alone, once."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import policy_of

import dpsql
from dpsql.extensions.spark.engine import written
from dpsql.measure.reading import scan_of

pytestmark = pytest.mark.spark

DECLARED = """
[tables.nights]
unit = {unit}
source = "spark:spark_catalog.default.nights"
periods = {{ column = "day", every = "1 day", first = 2024-01-01 }}
[tables.nights.columns]
ward = {{ values = ["a", "b"], nulls = false }}
day = {{}}
"""
ROW, UNIT = '"row"', '"patient"\nmax_rows_per_unit = 2\nmax_periods_per_unit = 2'
BATCH = "CREATE VIEW by_ward AS SELECT ward, COUNT(*) AS n FROM nights GROUP BY ward"


@pytest.fixture(scope="module")
def nights(spark: Any) -> Iterator[Any]:
    spark.sql("DROP TABLE IF EXISTS nights")
    spark.range(0, 900, 1, 2).selectExpr(
        "CAST(id % 40 AS INT) AS patient",
        "CASE WHEN id % 3 = 0 THEN 'a' ELSE 'b' END AS ward",
        "date_add(DATE '2024-01-01', CAST(id % 9 AS INT)) AS day",
    ).write.partitionBy("day").saveAsTable("nights")
    yield spark
    spark.sql("DROP TABLE nights")


def connect(spark: Any, folder: Path, unit: str, day: int) -> Any:
    policy = policy_of(DECLARED.format(unit=unit))
    return dpsql.connect(spark, policy=policy, ledger=folder / "p.ledger", today=dt.date(2024, 1, day))


def read_by(con: Any, plan: Any) -> str:
    """What Spark says that the scan of a plan reads: the filters of its partitions."""
    job, engine = con._batches.job(plan, "key", ""), con._holdings.engine
    (layout,) = plan.compiled.layouts
    found = engine.tables(list(job.sources.values())).tables
    statement, _ = written(scan_of(layout, job.sources).select, {name: one.source for name, one in found.items()})
    text = engine.session.sql(f"EXPLAIN FORMATTED {statement}").collect()[0][0]
    (scan,) = re.findall(r"PartitionFilters: (\[.*\])", text)
    return scan


@pytest.mark.parametrize("unit", [ROW, UNIT])
def test_a_release_of_a_period_reads_its_partition(unit: str, nights: Any, tmp_path: Path) -> None:
    con = connect(nights, tmp_path, unit, 10)
    where = "WHERE day >= DATE '2024-01-04' AND day < DATE '2024-01-05'"
    plan = con.plan(f"SELECT ward, COUNT(*) AS n FROM nights {where} GROUP BY ward", epsilon=1)
    filters = read_by(con, plan)
    assert ">= 2024-01-04" in filters
    assert "< 2024-01-05" in filters


def test_standing_batches_release_each_partition_once(nights: Any, tmp_path: Path) -> None:
    connect(nights, tmp_path, ROW, 1).schedules.add(BATCH, epsilon=1, name="nightly")
    assert [one.new for one in connect(nights, tmp_path, ROW, 3).schedules.release_due()] == [True, True]
    con = connect(nights, tmp_path, ROW, 4)
    assert [one.new for one in con.schedules.release_due()] == [False, False, True]
    assert con.budget.spent == con.budget_by_period()[0].spent
    rows = con.sql("SELECT period, SUM(n) AS n FROM by_ward GROUP BY period ORDER BY period").fetchall()
    assert [str(row[0])[:10] for row in rows] == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert all(abs(row[1] - 100) < 60 for row in rows)
