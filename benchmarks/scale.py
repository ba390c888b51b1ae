"""How does the cost of a private batch grow with rows, with queries, with columns and with values?

    python benchmarks/scale.py [--only AXIS] [--sizes N ...] [--limit SECONDS] [--full] [--write]

Rows: the batch of batch_error.py over 1e5, 1e6 and 1e7 flights (1e8 with --full). Queries: 10 to 10,000 random
ranges over the minute of day of 1e6 flights. Columns: every pair of 2 to 100 columns of 10 values, GROUP BY
dp_marginals(2, ...), over 1e5 rows. Values: all ranges of a column of 1e3 to 1e6 values, GROUP BY dp_ranges(...), over
1e6 rows: up to 5e11 numbers, whose exact answers are taken to be the prefix counts that they come from.

Each case runs in a process of its own, which plans once and runs three times; beside it stand, in that process,
DuckDB's exact answers to the same statements, and the floor: the very statements that the scan ran, in a plain DuckDB
instance. ``after`` is everything after planning (ledger, noise, scan, reconstruction, views). Seconds are wall clock,
the least of three (of one where a case takes long); ``memory`` is the process's peak before DuckDB answers.
``error`` is the root mean square of the standard errors, ``gap`` what is certified of their sum of squares.
``slope`` is that of a line fitted on log axes through the last three cases that finished; a case that did not says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path

import batch_error
import data
import duckdb
import record

import dpsql
from dpsql.engines import duckdb as engine

ROWS = (100_000, 1_000_000, 10_000_000)
MORE_ROWS = 100_000_000
QUERIES = (10, 100, 1_000, 10_000)
COLUMNS = (2, 5, 10, 20, 50, 100)
VALUES = (1_000, 10_000, 100_000, 1_000_000)
WIDE_ROWS, LINE_ROWS = 100_000, 1_000_000
LARGEST = {"rows": 10_000_000, "queries": 10_000, "columns": 100, "values": 1_000_000}
FIGURES = ("plan", "after", "floor", "exact", "memory", "error", "gap")
LIMIT, FULL_LIMIT = 600.0, 3600.0  # seconds of one case
PATIENCE = 10.0  # seconds after which nothing is measured again


def fastest(work: Callable[[], object], times: int = 3) -> float:
    """The least wall-clock seconds of a few runs."""
    found = math.inf
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken = time.perf_counter() - start
        found = min(found, taken)
        if taken > PATIENCE:
            break
    return found


def peak() -> float:
    """MiB that this process has held at most, where Linux says it; its getrusage counts what the parent held too."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def scans() -> Iterator[list[str]]:
    """The statements that the engine runs meanwhile, so that they can run again."""
    found: list[str] = []
    plain = engine.run_within

    def recording(connection: duckdb.DuckDBPyConnection, statement: str, seconds: float | None) -> object:
        found.append(statement.replace("CREATE TEMPORARY", "CREATE OR REPLACE TEMPORARY", 1))
        return plain(connection, statement, seconds)

    engine.run_within = recording  # type: ignore[assignment]
    try:
        yield found
    finally:
        engine.run_within = plain


def measured(sql: str, policy: dpsql.Policy, selects: list[str]) -> dict[str, float]:
    """Seconds and peak MiB of one batch; ``selects`` are what DuckDB answers exactly."""
    ((name, source),) = [(table, policy.source_path(table)) for table in policy.tables]
    with tempfile.TemporaryDirectory() as folder, scans() as statements:
        connection = dpsql.connect(policy=policy, ledger=Path(folder) / "scale.ledger")
        start = time.perf_counter()
        plan = connection.plan(sql, epsilon=1, delta=1e-9)
        planned = time.perf_counter() - start
        after = fastest(lambda: (statements.clear(), connection.run(plan, fresh=True)))
        ran = list(statements)
    memory = peak()
    plain = duckdb.connect()
    floor = fastest(lambda: [plain.execute(statement).fetchnumpy() for statement in ran])
    plain.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{source}')")
    exact = fastest(lambda: [plain.execute(select).fetchall() for select in selects])
    error = math.sqrt(sum(row["stderr"] ** 2 * row["numbers"] for row in plan.rows()) / plan.compiled.numbers)
    gap = math.nan if plan.gap is None else plan.gap
    return dict(zip(FIGURES, (planned, after, floor, exact, memory, error, gap), strict=True))


def selects_of(sql: str) -> list[str]:
    """The statements of a batch without the names of their results."""
    parts = [statement.partition(" AS SELECT ") for statement in sql.split(";\n")]
    return [f"SELECT {select}" if named else before for before, named, select in parts]


def by_rows(rows: int) -> dict[str, float]:
    """The flights batch over so many rows."""
    sql = batch_error.batch()
    return measured(sql, batch_error.policy(rows), selects_of(sql))


def by_queries(queries: int) -> dict[str, float]:
    """Random ranges over the minute of day, a statement of a hundred numbers each."""
    statements = batch_error.batch(ranges=queries).split(";\n")[:queries]
    numbers = [statement.partition("WHERE ")[2] for statement in statements]
    hundreds = [numbers[at : at + 100] for at in range(0, queries, 100)]
    listed = [", ".join(f"COUNT_IF({number}) AS n{i}" for i, number in enumerate(some)) for some in hundreds]
    sql = ";\n".join(f"SELECT {columns} FROM flights" for columns in listed)
    return measured(sql, batch_error.policy(1_000_000), sql.split(";\n"))


def by_columns(columns: int) -> dict[str, float]:
    """Every pair of so many columns of 10 values."""
    names = [f"c{i}" for i in range(columns)]
    domains = "\n".join(f"{name} = {{ lower = 0, upper = 9, nulls = false }}" for name in names)
    policy = dpsql.Policy.parse(
        'dataset = "wide-1"\n[budget]\nepsilon = 100.0\ndelta = 1e-9\n[tables.wide]\nunit = "row"\n'
        f'source = "{wide_path()}"\n[tables.wide.columns]\n{domains}\n'
    )
    sql = f"SELECT {', '.join(names)}, COUNT(*) AS n FROM wide GROUP BY dp_marginals(2, {', '.join(names)})"
    pairs = [f"SELECT {a}, {b}, count(*) FROM wide GROUP BY ALL" for a, b in combinations(names, 2)]
    return measured(sql, policy, pairs)


def wide_path() -> Path:
    """100 columns of 10 values, each leaning on the one before."""
    path = data.FOLDER / f"wide_{WIDE_ROWS}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        values = [f"((i * {2 * c + 1} + hash(i + {c // 2} * 7919)) % 10)::TINYINT AS c{c}" for c in range(max(COLUMNS))]
        columns = ", ".join(values)
        duckdb.execute(f"COPY (SELECT {columns} FROM range({WIDE_ROWS}) r(i)) TO '{path}' (FORMAT parquet)")
    return path


def by_values(values: int) -> dict[str, float]:
    """All ranges of a column of so many values, most rows at small ones."""
    path = data.FOLDER / f"line_{LINE_ROWS}_{values}.parquet"
    if not path.exists():
        drawn = f"least(floor(-ln(1 - (hash(i) % 1000003) / 1000003.0) * {values} / 8), {values - 1})::INTEGER"
        duckdb.execute(f"COPY (SELECT {drawn} AS k FROM range({LINE_ROWS}) r(i)) TO '{path}' (FORMAT parquet)")
    policy = dpsql.Policy.parse(
        'dataset = "line-1"\n[budget]\nepsilon = 100.0\ndelta = 1e-9\n[tables.line]\nunit = "row"\n'
        f'source = "{path}"\n[tables.line.columns]\nk = {{ lower = 0, upper = {values - 1}, nulls = false }}\n'
    )
    sql = "CREATE OR REPLACE VIEW every AS SELECT dp_ranges(k), COUNT(*) AS n FROM line GROUP BY dp_ranges(k)"
    counts = "SELECT k, count(*) AS n FROM line GROUP BY k"
    return measured(sql, policy, [f"SELECT k, sum(n) OVER (ORDER BY k) FROM ({counts})"])


CASES: dict[str, Callable[[int], dict[str, float]]] = {
    "rows": by_rows,
    "queries": by_queries,
    "columns": by_columns,
    "values": by_values,
}


def apart(axis: str, size: int, limit: float) -> dict[str, float] | None:
    """One case in a process of its own, so that its peak memory is its own; None where it failed or took too long."""
    command = [sys.executable, __file__, "--case", axis, str(size)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"| {size:,} | not finished in {limit:g} s | | | | | | | | |", flush=True)
        return None
    if done.returncode:
        print(f"| {size:,} | {_last(done.stderr)} | | | | | | | | |", flush=True)
        return None
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _last(stderr: str) -> str:
    """The error's own line of a traceback, short enough for a table."""
    named = (
        [line for line in stderr.splitlines() if line.startswith("dpsql.")] or stderr.strip().splitlines() or ["failed"]
    )
    return named[-1][:160].replace("|", " ")


def slope(points: list[tuple[int, float]]) -> str:
    """Of the line of least squares through the last three points, on log axes."""
    logs = [(math.log(size), math.log(max(value, 1e-6))) for size, value in points[-3:]]
    if len(logs) < 2:
        return "-"
    middle = sum(x for x, _ in logs) / len(logs)
    across = sum((x - middle) ** 2 for x, _ in logs)
    return f"{sum((x - middle) * y for x, y in logs) / across:.2f}"


def figure(axis: str, case: Mapping[str, float]) -> record.Figure:
    """The figure of the largest case of an axis."""
    plan, after, floor, exact = (case[name] for name in ("plan", "after", "floor", "exact"))
    certified = f"{100 * case['gap']:.2f} %"
    if axis == "rows":
        what, goal = (
            "54 statements over 10,000,000 flights: plan; after it; the bare scan",
            "1.5 times the bare scan and",
        )
        value = f"{plan:.2f} s; {after:.3f} s; {floor:.3f} s"
        return record.Figure("scale-rows", what, value, f"{goal} 0.3 s after planning", after <= 1.5 * floor + 0.3)
    if axis == "queries":
        what = "10,000 random ranges over 1,000,000 flights: plan; after it; exact statements"
        return record.Figure("scale-queries", what, f"{plan:.2f} s; {after:.3f} s; {exact:.3f} s")
    if axis == "columns":
        what = "all pairs of 100 columns of 10 values, 100,000 rows: plan; after it; exact statements; certified within"
        value = f"{plan:.2f} s; {after:.3f} s; {exact:.3f} s; {certified}"
        goal = "planned and run in 1.5 times the exact statements"
        return record.Figure("scale-columns", what, value, goal, plan + after <= 1.5 * exact)
    what = "all ranges of a column of 1,000,000 values: plan; after it; certified within"
    return record.Figure("scale-values", what, f"{plan:.2f} s; {after:.3f} s; {certified}")


def table(axis: str, sizes: tuple[int, ...], limit: float) -> list[tuple[int, dict[str, float]]]:
    """One axis: a line a case, then the slopes; the cases that finished."""
    times = "plan s | after s | floor s | after / floor | exact s | after / exact"
    print(f"\n| {axis} | {times} | memory MiB | error | gap |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    found: list[tuple[int, dict[str, float]]] = []
    for size in sizes:
        case = apart(axis, size, limit)
        if case is None:
            continue
        found.append((size, case))
        plan, after, floor, exact, memory, error, gap = (case[name] for name in FIGURES)
        print(
            f"| {size:,} | {plan:.2f} | {after:.3f} | {floor:.3f} | {after / floor:.2f} | {exact:.3f} "
            f"| {after / exact:.2f} | {memory:,.0f} | {error:,.3g} | {'-' if math.isnan(gap) else f'{gap:.2%}'} |",
            flush=True,
        )
    slopes = {name: slope([(size, case[name]) for size, case in found]) for name in FIGURES}
    print(
        f"| slope | {slopes['plan']} | {slopes['after']} | {slopes['floor']} | | {slopes['exact']} | "
        f"| {slopes['memory']} | {slopes['error']} | |"
    )
    return found


def main() -> None:
    """Print the tables."""
    os.environ["DPSQL_CACHE"] = "off"
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    writes = record.requested(sys.argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--full", action="store_true", help="1e8 rows too: half a gigabyte of disk, and an hour or more"
    )
    parser.add_argument("--only", choices=CASES, help="one of the tables")
    parser.add_argument("--sizes", type=int, nargs="+", help="other sizes of that table")
    parser.add_argument("--limit", type=float, help="seconds that one case may take (default: 600, with --full 3600)")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        axis, size = options.case
        print(json.dumps(CASES[axis](int(size))))
        return
    if options.sizes and not options.only:
        parser.error("--sizes are those of one table: give --only as well")
    sizes: dict[str, tuple[int, ...]] = {"rows": ROWS, "queries": QUERIES, "columns": COLUMNS, "values": VALUES}
    if options.full:
        sizes["rows"] = (*ROWS, MORE_ROWS)
    if options.sizes:
        sizes[options.only] = tuple(options.sizes)
    limit = options.limit or (FULL_LIMIT if options.full else LIMIT)
    print(f"{os.cpu_count()} cores, OPENBLAS_NUM_THREADS={os.environ['OPENBLAS_NUM_THREADS']}, ", end="")
    (threads,) = duckdb.execute("SELECT current_setting('threads')").fetchone() or ("unknown",)
    print(f"DuckDB {duckdb.__version__} with {threads} threads, ", end="")
    print(f"load {os.getloadavg()[0]:.1f} at the start")
    if options.only in (None, "rows", "queries"):
        for row in {*(sizes["rows"] if options.only != "queries" else ()), 1_000_000}:
            data.flights_path(row)
    for axis, chosen in sizes.items():
        if options.only in (None, axis):
            finished = dict(table(axis, chosen, limit))
            largest = LARGEST[axis]
            if writes and largest in finished:
                record.write("scale", [figure(axis, finished[largest])])
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
