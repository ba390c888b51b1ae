"""What one night costs: the release of one period beside a scan of that period, whatever other periods there are.

    python benchmarks/nightly.py [rows]            10,000,000 rows a period if left out
    python benchmarks/nightly.py [rows] endless    over a horizon without an end, windows of 7 periods

A folder with a Parquet file a period, a standing batch over four columns. "release" is ``release_due`` of one period:
what is due, the plan, the schema, charge, noise, scan, record and results. "scan" is the GROUP BY that an analyst would
write over all columns of the batch, by DuckDB, over the same folder with the period's days in WHERE; "file" is the same
over the period's own file. The past: 10 and 1,000 periods of 1,000 rows each, in files of their own, with a charge and
a measurement of each in the ledger and a release in the views: one is made, the others are copies of it under their own
names, charged and recorded one by one. Three nights each, in turn; medians. "cpu" is the
processor's time of a release.
"""

from __future__ import annotations

import datetime as dt
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
from daily import FIRST, policy

import dpsql
from dpsql.release.payload import pack, unpack

POLICY = policy(
    "nightly-1",
    """ward = { values = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"], nulls = false }
age = { lower = 0, upper = 99 }
cost = { lower = 0.0, upper = 500.0, step = 0.01 }""",
)
BATCH = """CREATE VIEW by_ward AS SELECT ward, COUNT(*) AS n, SUM(cost) AS cost FROM visits GROUP BY ward;
CREATE VIEW by_age AS SELECT age, COUNT(*) AS n FROM visits GROUP BY age"""
PLAIN = "SELECT ward, age, count(*), sum(cost) FROM read_parquet('{}') {} GROUP BY ward, age"
NIGHTS = 3


def arrive(folder: Path, number: int, rows: int) -> None:
    day = FIRST + dt.timedelta(days=number)
    made = (
        f"SELECT DATE '{day}' AS day, 'w' || hash(i) % 8 AS ward, CAST(hash(i, 1) % 100 AS TINYINT) AS age, "
        f"CAST(hash(i, 2) % 50001 AS DOUBLE) / 100 AS cost FROM range({rows}) t(i)"
    )
    duckdb.sql(f"COPY ({made}) TO '{folder}/visits/{day}.parquet' (FORMAT parquet)")


def timed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def copy_releases(folder: Path, past: int) -> None:
    """The first period's release in the ledger under the name of each of the others."""
    with dpsql.connect(policy=folder / "p.toml", today=FIRST + dt.timedelta(days=past)) as con:
        ledger = con._books.ledger()
        (entry,) = ledger.releases()
        record, measured = unpack(entry.payload or b"")
        schedule = ledger.schedules()[0]
        for number in range(1, past):
            period = (FIRST + dt.timedelta(days=number)).isoformat()
            said = {**entry.description, "period": period}
            said["periods"] = {**said["periods"], "read": [period]}
            if "horizon" in said:
                said["horizon"] = {**said["horizon"], "place": number}
            made = ledger.charge(entry.charge, schedule.charge_id(period), said)
            ledger.record(made, pack(replace(record, release_id=made, period=period), measured))
        con.rebuild()


def nights(past: int, rows: int, over: dict[str, Any]) -> dict[str, float]:
    """Medians of the nights that follow ``past`` small ones."""
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        (folder / "visits").mkdir()
        (folder / "p.toml").write_text(
            POLICY.replace("epsilon = 1.0", "epsilon = 1.0\ndelta = 1e-9") if over else POLICY
        )
        for number in range(past):
            arrive(folder, number, 1_000)

        def release(number: int) -> int:
            with dpsql.connect(policy=folder / "p.toml", today=FIRST + dt.timedelta(days=number)) as con:
                found = con.schedules.release_due()
            assert not any(one.failure for one in found), found
            return sum(one.new for one in found)

        with dpsql.connect(policy=folder / "p.toml", today=FIRST) as con:
            con.schedules.add(BATCH, epsilon=1, name="nightly", **over)
        assert release(1) == 1
        copy_releases(folder, past)
        found: dict[str, list[float]] = {"release": [], "cpu": [], "scan": [], "file": []}
        for night in range(past, past + NIGHTS):
            arrive(folder, night, rows)
            day = FIRST + dt.timedelta(days=night)
            file, where = f"{folder}/visits/{day}.parquet", f"WHERE day = DATE '{day}'"
            duckdb.sql(PLAIN.format(file, "")).fetchall()  # both find the file in memory
            found["file"].append(timed(lambda file=file: duckdb.sql(PLAIN.format(file, "")).fetchall()))
            glob = f"{folder}/visits/*.parquet"
            found["scan"].append(timed(lambda where=where, glob=glob: duckdb.sql(PLAIN.format(glob, where)).fetchall()))
            released: list[int] = []
            before = time.process_time()
            found["release"].append(timed(lambda night=night, out=released: out.append(release(night + 1))))
            found["cpu"].append(time.process_time() - before)
            assert released == [1]
        return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    over: dict[str, Any] = {"horizon": "endless", "windows": [7]} if "endless" in sys.argv else {}
    print(f"{rows:,} rows a period, seconds; DuckDB {duckdb.__version__}, {NIGHTS} nights each")
    print("past periods  release     cpu    scan    file  release / scan")
    for past in (10, 1_000):
        found = nights(past, rows, over)
        ratio = found["release"] / found["scan"]
        print(
            f"{past:>12,}{found['release']:>9.3f}{found['cpu']:>8.3f}{found['scan']:>8.3f}{found['file']:>8.3f}{ratio:>16.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
