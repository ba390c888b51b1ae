"""What a private batch costs on Spark beside the same GROUP BY, and what that says about a cluster.

    python benchmarks/spark.py [rows]        10,000,000 if left out; needs the extra "spark" and Java 17

One session, local[2]. "after planning" is con.run of a plan: schema, check, charge, noise, scan, record, results.
"plain" is the GROUP BY that an analyst would write, by spark.sql of the same session. Both are taken three times, in
turn, after one run of each that warms the JVM; the median counts.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpsql
from dpsql.engines.base import Scan
from dpsql.extensions.spark.engine import SparkEngine
from dpsql.measure import TableSource
from dpsql.policy import Policy
from dpsql.workloads.expr.scan import Select, Table
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.values import CountRows, Name

POLICY = """
dataset = "spark-1"
[budget]
epsilon = 100.0
[tables.visits]
unit = "row"
source = "spark:spark_catalog.default.visits"
[tables.visits.columns]
state = { values = ["NY", "NJ", "CA", "WA", "TX"], other = true }
age = { lower = 0, upper = 99 }
cost = { lower = 0.0, upper = 5000.0, step = 0.01 }
"""
BATCH = "SELECT state, age, COUNT(*) AS n, SUM(cost) AS cost FROM visits GROUP BY state, age"
PLAIN = "SELECT state, age, count(*) AS n, sum(cost) AS cost FROM spark_catalog.default.visits GROUP BY state, age"
CELLS = 1_000_000


def session(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(folder))
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def resident(process: int | str = "self") -> int:
    """Bytes of a process in memory now."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The most bytes of this process while a block runs, beyond what it had."""

    def __enter__(self) -> Peak:
        self.before, self.most, self.ended = resident(), 0, False
        self.watch = threading.Thread(target=self.look)
        self.watch.start()
        return self

    def look(self) -> None:
        while not self.ended:
            self.most = max(self.most, resident() - self.before)
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.ended = True
        self.watch.join()


def main(rows: int) -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = session(folder / "warehouse")
        spark.sparkContext.setLogLevel("ERROR")
        spark.sql(
            "CREATE TABLE default.visits USING parquet AS SELECT element_at(array('NY','NJ','CA','WA','TX','FL'), "
            "CAST(xxhash64(id) & 3 AS INT) + CAST(id % 3 AS INT) + 1) AS state, "
            "CAST(xxhash64(id, 1) & 127 AS INT) AS age, "
            f"CAST(id % 500000 AS DOUBLE) / 100 AS cost, CAST(id % {CELLS} AS INT) AS cell FROM range({rows})"
        )
        con = dpsql.connect(spark, policy=Policy.parse(POLICY), ledger=folder / "b.ledger")
        plan = con.plan(BATCH, 1)
        print(f"{rows:,} rows, {plan.cells} cells, 2 threads; load {os.getloadavg()[0]:.1f} before")
        plain = lambda: spark.sql(PLAIN).toArrow()  # noqa: E731
        run = lambda: con.run(plan, fresh=True)  # noqa: E731
        plain(), run()
        theirs, ours, peaks = [], [], []
        for _ in range(3):
            theirs.append(seconds(plain))
            with Peak() as peak:
                ours.append(seconds(run))
            peaks.append(peak.most)
        a, b = statistics.median(theirs), statistics.median(ours)
        print(f"plain spark.sql  {a:6.2f} s   ({', '.join(f'{t:.2f}' for t in theirs)})")
        print(f"after planning   {b:6.2f} s   ({', '.join(f'{t:.2f}' for t in ours)})   {b / a:.2f} times")
        print(f"memory of the driver's Python beyond the session: {max(peaks) / 1e6:.0f} MB")
        rate = rows / b / 2
        print(f"rows per second and core: {rate:,.0f}")

        engine, source = SparkEngine(spark), TableSource("visits", remote=("spark_catalog", "default", "visits"))
        columns = (("a0", Name("cell", BASE)), ("n", CountRows()))
        asked = Scan(source.name, (source,), Select(columns, Table(source.name), group_by=1))
        engine.scan(asked)
        with Peak() as peak:
            taken = seconds(lambda: engine.scan(asked))
        print(f"a histogram of {CELLS:,} cells: {taken:.2f} s, {16 * CELLS / 1e6:.0f} MB of numbers, "
              f"{peak.most / 1e6:.0f} MB more in Python")  # fmt: skip
        project(rate, plan.cells)
        print(f"load {os.getloadavg()[0]:.1f} after")
        con.close()
        spark.stop()


def project(rate: float, cells: int, executors: int = 100, cores: int = 4, rows: float = 1e11) -> None:
    """The arithmetic for a cluster: rows over cores, and the partial histograms that are shuffled."""
    scan = rows / (rate * executors * cores)
    cluster = f"{rate:,.0f} a second and core x {executors} executors x {cores} cores"
    print(f"{rows:.0e} rows / ({cluster}) = {scan / 60:.1f} min")
    for many in (cells, CELLS):
        partitions = rows / 1e7  # map tasks of 1e7 rows, about 128 MB each
        row = 16 + 8 * 4  # bytes: keys, then a count and two sums as words, with Spark's overhead of a row
        shuffled = many * partitions * row
        per = shuffled / executors / 125e6  # a network of 1 Gbit/s for each executor
        print(f"shuffle of {many:,} cells: {many:,} x {partitions:,.0f} tasks x {row} B = {shuffled / 1e9:,.1f} GB, "
              f"{per:,.1f} s at 1 Gbit/s an executor")  # fmt: skip


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000)
