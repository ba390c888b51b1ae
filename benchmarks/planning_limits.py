"""How long do a few statements over some 152,000 cells take to plan, with and without a limit of time?

    python benchmarks/planning_limits.py [--limit 2]

Prints a Markdown table of wall seconds of ``con.plan`` without ``time_limit`` and with it, the seconds beyond it,
and what each plan is worth: its certified gap, or the refusal's first words. Then the same for queries over releases
that DuckDB cannot interrupt, with ``query_timeout``, and for scans of 40,960 texts of 65,000 bytes, with
``scan_timeout``. The tables of the first are empty: planning reads no row. Gaussian noise at epsilon 1, delta 1e-9
(``--pure``: Laplace noise, no delta), no strategy cache.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import duckdb

import dpsql
from dpsql.release.store import ReleaseStore

POLICY = """
dataset = "limits-1"
[budget]
epsilon = 4.0
delta = 1e-9
[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 151 }
place = { lower = 0, upper = 999 }
part = { lower = 0, upper = 75 }
day = { lower = 0, upper = 151999 }
cost = { lower = 0, upper = 100 }
few = { lower = 0, upper = 1999 }
"""
TEXTS = """
dataset = "texts-1"
[budget]
epsilon = 100.0
[tables.t]
unit = "row"
[tables.t.columns.s]
"""
AGES = "SELECT age, COUNT(*) FROM t GROUP BY age"
PLACES = "SELECT place, COUNT(*) FROM t GROUP BY place"
BOTH = "SELECT age, place, COUNT(*) FROM t GROUP BY age, place"
DAYS = "SELECT day, COUNT(*) FROM t GROUP BY day"
BATCHES = {
    "two columns, and both together": (AGES, PLACES, BOTH),
    "both, one filtered by the other": (AGES, BOTH, f"{PLACES[:-15]} WHERE age BETWEEN 20 AND 50 GROUP BY place"),
    "COUNT and SUM by place, both": ("SELECT place, COUNT(*), SUM(age) FROM t GROUP BY place", BOTH, AGES),
    "COUNT, SUM, AVG by part; a box": (
        "SELECT part, COUNT(*), SUM(cost), AVG(cost) FROM t GROUP BY part",
        "SELECT place, COUNT(*), SUM(cost) FROM t GROUP BY place",
        "SELECT COUNT(*) FROM t WHERE part < 30 AND place > 500",
    ),
    "each filtered by the other, a sum of two": (
        "SELECT age, COUNT(*) FROM t WHERE place < 500 GROUP BY age",
        "SELECT place, COUNT(*) FROM t WHERE age < 30 GROUP BY place",
        "SELECT COUNT(*) FROM t WHERE age + place > 500",
    ),
    "days, hundreds, thousands": (
        DAYS,
        "SELECT day // 100, COUNT(*) FROM t GROUP BY day // 100",
        "SELECT day // 1000, COUNT(*) FROM t GROUP BY day // 1000",
    ),
    "days and tens": (
        DAYS,
        "SELECT day // 10, COUNT(*) FROM t GROUP BY day // 10",
        "SELECT COUNT(*) FROM t WHERE day < 50000",
    ),
    "tens of days, their sums, hundreds": (
        "SELECT day // 10, COUNT(*) FROM t GROUP BY day // 10",
        "SELECT day // 10, SUM(day), AVG(day) FROM t GROUP BY day // 10",
        "SELECT day // 100, COUNT(*) FROM t GROUP BY day // 100",
    ),
    "days and a sum": (DAYS, "SELECT COUNT(*) FROM t", "SELECT SUM(cost) FROM t"),
    "2,000 of the days, 300 ranges of them": (
        "SELECT few, COUNT(*) FROM t GROUP BY few",
        *(f"SELECT COUNT(*) FROM t WHERE few BETWEEN {7 * i % 997} AND {999 + 13 * i % 991}" for i in range(300)),
    ),
}
CALLS = {
    "one long string": "SELECT repeat('a', 4000000000)",
    "a padded one": "SELECT length(lpad('a', 2000000000, 'xy'))",
    "a long list": "SELECT list_aggregate(range(300000000), 'sum')",
    "replacing in a long text": "SELECT length(regexp_replace(repeat('ab', 100000000), 'a', 'xyz', 'g'))",
    "a distance of two texts": "SELECT levenshtein(repeat('ab', 100000), repeat('ba', 100000))",
    "a join of two ranges": "SELECT count(*) FROM range(1000000) a(i), range(1000000) b(j) WHERE (i * j) % 7 = 3",
}
TEXT = "repeat('a', 65000 - i % 7)"
SCANS = {
    "one LIKE of a millisecond": ["s LIKE '%" + "a" * 50 + "b%'"],
    "ten of them": [f"s LIKE '%{'a' * (40 + i)}b%'" for i in range(10)],
    "a search and a sum of texts": ["contains(upper(s), 'AAB')", "lower(s) || 'b' < 'a'"],
}


def planned(con: dpsql.Connection, sql: str, limit: float | None, delta: float | None) -> tuple[float, str]:
    """(Seconds, the cells and the gap, or the refusal)."""
    start = time.perf_counter()
    try:
        plan = con.plan(sql, epsilon=1, delta=delta, time_limit=limit)
        said = f"{plan.cells:,} cells, " + ("no bound" if plan.gap is None else f"gap {plan.gap:.2g}")
    except dpsql.Error as error:
        said = str(error)[:60]
    return time.perf_counter() - start, said


def scans(place: Path, limit: float) -> None:
    """How long after ``scan_timeout`` a scan ends."""
    (place / "texts.toml").write_text(TEXTS)
    private = duckdb.connect(config={"threads": "2"})
    private.execute(f"CREATE TABLE t AS SELECT {TEXT} AS s FROM range(40960) r(i)")
    con = dpsql.connect(private, policy=str(place / "texts.toml"), ledger=str(place / "texts"), scan_timeout=limit)
    print("\n| scan | seconds | beyond scan_timeout |")
    print("|---|---:|---:|")
    for name, conditions in SCANS.items():
        plan = con.plan(f"SELECT COUNT_IF({' OR '.join(conditions)}) FROM t", epsilon=1)
        start = time.perf_counter()
        with contextlib.suppress(dpsql.Error):
            con.run(plan)
        seconds = time.perf_counter() - start
        print(f"| {name} | {seconds:.1f} | {seconds - limit:.1f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--limit", type=float, default=2.0, help="seconds of time_limit, query_timeout and scan_timeout"
    )
    parser.add_argument("--pure", action="store_true", help="pure epsilon: Laplace noise")
    options = parser.parse_args()
    limit, delta = options.limit, None if options.pure else 1e-9
    os.environ["DPSQL_CACHE"] = "off"
    print(f"load {os.getloadavg()[0]:.1f}\n")
    print("| statements | seconds | plan | seconds, limit | beyond it | plan |")
    print("|---|---:|---|---:|---:|---|")
    with tempfile.TemporaryDirectory() as place:
        policy = Path(place, "policy.toml")
        policy.write_text(POLICY.replace("delta = 1e-9\n", "") if options.pure else POLICY)
        private = duckdb.connect()
        private.execute(
            "CREATE TABLE t (age INTEGER, place INTEGER, part INTEGER, day INTEGER, cost INTEGER, few INTEGER)"
        )
        con = dpsql.connect(private, policy=str(policy), ledger=str(Path(place, "ledger")))
        for name, statements in BATCHES.items():
            sql = "; ".join(statements)
            free, worth = planned(con, sql, None, delta)
            held, less = planned(con, sql, limit, delta)
            print(f"| {name} | {free:.1f} | {worth} | {held:.1f} | {held - limit:.1f} | {less} |", flush=True)
        store = ReleaseStore(Path(place, "releases.duckdb"))
        store.rebuild([])
        print("\n| query over releases | seconds | beyond query_timeout |")
        print("|---|---:|---:|")
        for name, sql in CALLS.items():
            start = time.perf_counter()
            with contextlib.suppress(dpsql.Error):
                store.sql(sql, seconds=limit)
            seconds = time.perf_counter() - start
            print(f"| {name} | {seconds:.1f} | {seconds - limit:.1f} |", flush=True)
        scans(Path(place), limit)
    sys.stdout.flush()
    os._exit(0)  # calls that were left behind need not end first


if __name__ == "__main__":
    sys.exit(main())
