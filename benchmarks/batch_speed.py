"""Claim: a private batch costs about one scan, less than the same exact queries one by one.

    python benchmarks/batch_speed.py [rows ...] [--write]

The batch of batch_error.py end to end, beside DuckDB answering the same statements exactly one by
one over the same Parquet file, and 1,000 random ranges at the largest size. Times are medians of
three runs in one process; planning is timed apart from everything after it (ledger commit, noise,
scan, reconstruction, views written). "Again" is planning both noises where the strategies are kept from
an earlier plan and only checked (DPSQL_CACHE, here a temporary folder); the other times keep none.
"""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import batch_error
import data
import duckdb
import record

import dpsql


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Median wall-clock seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def exact(sql: str, rows: int | None) -> Callable[[], None]:
    """DuckDB answering each statement by itself, results fetched."""
    connection = duckdb.connect()
    connection.execute(f"CREATE VIEW flights AS SELECT * FROM read_parquet('{data.flights_path(rows)}')")
    selects = []
    for statement in sql.split(";\n"):
        _, _, select = statement.partition(" AS SELECT ")
        selects.append("SELECT " + select if select else statement)

    def work() -> None:
        for select in selects:
            connection.execute(select).fetchall()

    return work


def measure(sql: str, rows: int | None, folder: Path, repeats: int = 3) -> tuple[float, ...]:
    """(planning, planning both noises, again, after planning, exact) in seconds, and the error of q1 in rows."""
    held = batch_error.policy(rows)
    connection = dpsql.connect(policy=held, ledger=folder / f"{rows}-{len(sql)}.ledger")
    another = itertools.count(1)  # a budget that was not asked for before, as a connection finds its last plans again

    def plan(delta: float | None = None) -> None:
        connection.plan(sql, epsilon=1 + next(another) / 10_000, delta=delta)

    planning, both = seconds(plan, repeats), seconds(lambda: plan(1e-9), repeats)
    os.environ["DPSQL_CACHE"] = str(folder / "strategies")
    plan(1e-9)
    again = seconds(lambda: plan(1e-9), repeats)
    os.environ["DPSQL_CACHE"] = "off"
    made = connection.plan(sql, epsilon=1)
    after = seconds(lambda: connection.run(made, fresh=True), repeats)
    return planning, both, again, after, seconds(exact(sql, rows), repeats), float(made.stderr["q1"].mean())


def main() -> None:
    """Print the table."""
    writes = record.requested(sys.argv)
    sizes: list[int | None] = [int(text) for text in sys.argv[1:]] or [None, 10_000_000]
    sql = batch_error.batch()
    os.environ["DPSQL_CACHE"] = "off"
    print(f"OPENBLAS_NUM_THREADS={os.environ.get('OPENBLAS_NUM_THREADS', 'default')}, {os.cpu_count()} cores")
    print()
    print("| batch | rows | planning s | both noises s | again s | after planning s | exact s | ratio | error q1 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for rows in sizes:
            found = measure(sql, rows, Path(folder))
            show("54 statements", rows, *found)
            if writes:
                record.write("batch_speed", small(found) if rows is None else large(rows, found))
        rows = sizes[-1]
        thousand = batch_error.batch(ranges=1000).split(";\nCREATE")[0]
        found = measure(thousand, rows, Path(folder), repeats=1)
        show("1,000 ranges", rows, *found)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print()
    print(f"peak memory of this process {memory:,.0f} MiB")
    if writes:
        record.write("batch_speed", many(rows or data.FLIGHTS, found, memory))


def small(times: tuple[float, ...]) -> list[record.Figure]:
    """The figures of 54 statements over the flights as they are."""
    planning, both, _, after = times[:4]
    return [
        record.Figure(
            "speed-plan",
            "planning 54 statements for one kind of noise",
            f"{planning:.2f} s",
            "0.5 s",
            planning <= 0.5,
        ),
        record.Figure(
            "speed-plan-both", "planning them for both kinds of noise", f"{both:.2f} s", "0.7 s", both <= 0.7
        ),
        record.Figure(
            "speed-after", "everything after planning them, 336,776 rows", f"{after:.3f} s", "0.15 s", after <= 0.15
        ),
    ]


def large(rows: int, times: tuple[float, ...]) -> list[record.Figure]:
    """The figure of 54 statements over more flights."""
    over = times[3] / times[4]
    what = f"the same at {rows:,} rows: seconds, divided by those of the exact statements one after the other"
    return [record.Figure("speed-exact", what, f"{over:.2f}", "0.5", over <= 0.5)]


def many(rows: int, times: tuple[float, ...], memory: float) -> list[record.Figure]:
    """The figures of 1,000 ranges, and the memory of the process."""
    over = (times[0] + times[3]) / times[4]
    what = f"1,000 ranges over {rows:,} rows with planning: seconds, divided by those of their exact statements"
    return [
        record.Figure("speed-ranges", what, f"{over:.3f}", "0.15", over <= 0.15),
        record.Figure(
            "speed-memory", "peak memory of all three batches", f"{memory:,.0f} MiB", "1 GiB", memory <= 1024
        ),
    ]


def show(
    title: str,
    rows: int | None,
    planning: float,
    both: float,
    again: float,
    after: float,
    exact_time: float,
    error: float,
) -> None:
    """One line of the table."""
    count = rows or data.FLIGHTS
    print(
        f"| {title} | {count:,} | {planning:.2f} | {both:.2f} | {again:.2f} | {after:.3f} | {exact_time:.3f} "
        f"| {after / exact_time:.2f} | {error:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
