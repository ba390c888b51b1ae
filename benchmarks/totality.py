"""Claim: scans that no row can fail cost no more than those that one could, and no row shows in their time.

    python benchmarks/totality.py [rows] [--expressions N]

The statement of the flights batch (batch_error.py), as it is and without its net and clamps, over the same Parquet
file; then a table of 100,000 rows of every type and N random expressions over it: the hundred slowest, each over the
table (D) and over the table with one more row of extremes and long texts (D+), and what the net and the clamps cost.
Times are medians of runs that take turns; DuckDB on one thread for the expressions, so that no other work decides.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import batch_error
import data
import duckdb

import dpsql
from dpsql.errors import SQLError
from dpsql.measure.from_sql import values_of
from dpsql.measure.reading import scan_of, scans_of
from dpsql.sql.values.expressions import value_of
from dpsql.sql.values.typed import Typed, settled
from dpsql.workloads.expr.scan import Table
from dpsql.workloads.expr.total import Once, read_once
from dpsql.workloads.expr.value_sql import relation_text, select_text

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from expression_language import KINDS, TYPES, VALUES, parsed, scope_of, table_with

ROWS = 100_000
SLOWEST = 100
LONG = "repeat('ab%_', 16000)"
EXTRA = [
    "txt LIKE '%_a_%b%_'", "lower(txt) LIKE '%a%b%'", "upper(txt) || lower(txt) || txt > 'a'", "contains(txt, 'b%_a')",
    "concat(txt, enm, txt, 'x') LIKE '%x%x_%'", "strpos(txt, txt) > 3", "trim(txt, 'ab') = 'a'", "length(upper(txt))",
    "regexp_matches(txt, '(a|b)*a(a|b|.){60}c')", "regexp_extract(txt, '((a|b)+)+c', 1) = 'a'",
    "regexp_replace(txt, 'b*_|a|b', '', 'g') = 'a'", "replace(txt, 'ab', 'abc') = 'a'", "txt SIMILAR TO '.*_a.*c'",
    "regexp_matches(txt, 'a.{1000}c')", "split_part(txt, '_', 1) = 'a'", "CAST(txt AS DOUBLE) > 1",
    "strptime(txt, '%Y-%m-%d') > ts",
    "CASE WHEN txt LIKE 'ab%' THEN '" + "ab_" * 20_000 + "' ELSE txt END LIKE '%_a_%b_%ab_'",
]  # fmt: skip


def medians(works: list[Callable[[], object]], turns: int) -> list[float]:
    """Median wall-clock seconds of each, taking turns."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(turns):
        for held, work in zip(times, works, strict=True):
            start = time.perf_counter()
            work()
            held.append(time.perf_counter() - start)
    return [statistics.median(held) for held in times]


def flights(rows: int | None) -> None:
    """The scan of the flights batch, with and without its net and clamps."""
    with tempfile.TemporaryDirectory() as folder:
        connection = dpsql.connect(policy=batch_error.policy(rows), ledger=f"{folder}/flights.ledger")
        job = connection._batches.job(connection.plan(batch_error.batch(), epsilon=1), "", "")
    reference = {"flights": f"read_parquet('{data.flights_path(rows)}')"}
    held = [select_text(scan_of(scan.layout, job.sources).select, reference) for scan in scans_of(job.layouts)]
    bare = [_bare(text) for text in held]
    connection = duckdb.connect()

    def all_of(texts: list[str]) -> Callable[[], object]:
        return lambda: [connection.execute(text).fetchnumpy() for text in texts]

    with_net, without = medians([all_of(held), all_of(bare)], 7)
    print(f"| flights batch, {rows or 336_776:,} rows | {with_net:.3f} | {without:.3f} | {with_net / without:.2f} |")


def _bare(text: str) -> str:
    """A scan without TRY; where no value is computed there is none."""
    return text.replace("TRY(", "(")


def table(connection: duckdb.DuckDBPyConnection) -> None:
    """Tables d and d_plus: rows of ordinary values, and one more of extremes."""
    rng = random.Random(1)
    pools = {name: [value for value in held if "inf" not in value and "nan" not in value]
             for name, held in VALUES.items()}  # fmt: skip
    listed = []
    for name, kind in TYPES.items():
        pool = ", ".join(f"({value})::{kind}" for value in pools[name])
        listed.append(f"[{pool}][(1 + hash(i, {rng.randrange(10**6)}) % {len(pools[name])})::BIGINT] AS {name}")
    connection.execute(f"CREATE TABLE d AS SELECT i AS id, {', '.join(listed)} FROM range({ROWS}) r(i)")
    extremes = {"txt": LONG, "f64": "'inf'::DOUBLE", "d": "DATE 'infinity'", "ts": "TIMESTAMP '-infinity'"}
    last = ", ".join(f"({extremes.get(name, pools[name][0])})::{kind}" for name, kind in TYPES.items())
    connection.execute(f"CREATE TABLE d_plus AS FROM d UNION ALL SELECT {ROWS}, {last}")


def typed_values(count: int) -> list[tuple[str, Typed]]:
    """Random expressions that are admitted."""
    rng, held = random.Random(2), table_with()
    found: list[tuple[str, Typed]] = []
    asked = [*EXTRA]
    while len(found) < count:
        expression = asked.pop() if asked else rng.choice(KINDS)(rng, rng.choice([2, 3]))
        try:
            found.append((expression, settled(value_of(parsed(expression), scope_of(held)))))
        except SQLError:
            continue
    return found


def scan(connection: duckdb.DuckDBPyConnection, once: Once, over: str, *, net: bool = True) -> Callable[[], object]:
    """A count by the value, as a scan groups."""
    text = f"SELECT count(*), count(v) FROM {relation_text(values_of([once], Table(over)), {over: over})}"
    text = text if net else _bare(text)
    return lambda: connection.execute(text).fetchall()


def expressions(count: int) -> None:
    """The hundred slowest over D and D+, and what net and clamp cost them."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    table(connection)
    times = []
    for expression, value in typed_values(count):
        once = read_once(value.value, value.line, "v")
        times.append((medians([scan(connection, once, "d")], 1)[0], expression, once))
    times.sort(key=lambda found: found[0], reverse=True)
    apart, cost = [], []
    for _, expression, once in times[:SLOWEST]:
        bare = replace(once, then=None)
        works = [scan(connection, once, "d"), scan(connection, once, "d_plus"), scan(connection, bare, "d", net=False)]
        one, other, without = medians(works, 9)
        apart.append((max(one, other) / min(one, other), other / one, one, expression))
        cost.append((one / without, expression))
    apart.sort(reverse=True)
    slow = statistics.median(found[2] for found in apart)
    print(f"| the {SLOWEST} slowest of {count:,} expressions, {ROWS:,} rows (median) | {slow:.4f} | "
          f"{slow / statistics.median(found[0] for found in cost):.4f} | "
          f"{statistics.median(found[0] for found in cost):.2f} |")  # fmt: skip
    print()
    print("| D+ beside D | seconds over D | D+ / D | expression |")
    print("|---|---:|---:|---|")
    for rank, (_, ratio, one, expression) in enumerate(apart[:5], 1):
        print(f"| {rank} furthest apart | {one:.4f} | {ratio:.2f} | `{expression[:80]}` |")
    ratios = [found[0] for found in apart]
    print(f"\nWithin {max(ratios):.2f} times of each other; median {statistics.median(ratios):.2f}.")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=int, default=10_000_000)
    parser.add_argument("--expressions", type=int, default=1_000)
    asked = parser.parse_args()
    os.environ["DPSQL_CACHE"] = "off"
    print(f"OPENBLAS_NUM_THREADS={os.environ.get('OPENBLAS_NUM_THREADS', 'default')}, {os.cpu_count()} cores")
    print()
    print("| scan | with net and clamps s | without s | ratio |")
    print("|---|---:|---:|---:|")
    flights(asked.rows)
    expressions(asked.expressions)


if __name__ == "__main__":
    main()
