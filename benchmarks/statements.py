"""How long do planning and running many statements take, and where does it go?

    python benchmarks/statements.py [--quick]

Prints a Markdown table of CPU seconds of the process: reading the text, understanding it, compiling cells and W,
selecting the strategy, everything else of ``con.plan`` (reconstruction, errors), and the sum beside what is aimed
at; then of ``con.run``: charge, scan, outer SQL, results and views. The tables are empty: planning reads no row.
Gaussian noise at epsilon 1, delta 1e-9, no strategy cache, a ledger for each batch, as plans look at earlier releases.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

import dpsql
import dpsql.planning.prepare
from dpsql.policy import Policy

STATES = ("NY", "NJ", "CA", "WA", "TX", "FL", "OR", "NV", "AZ", "UT")
TABLE = """CREATE TABLE visits (
    minute INTEGER, age INTEGER, month INTEGER, state VARCHAR, sex VARCHAR, code VARCHAR, cost INTEGER)"""
POLICY = f"""
dataset = "statements-1"
[budget]
epsilon = 4.0
delta = 1e-9
[tables.visits]
unit = "row"
[tables.visits.columns]
minute = {{ lower = 0, upper = 1439, nulls = false }}
age = {{ lower = 0, upper = 120, nulls = false }}
month = {{ lower = 1, upper = 12, nulls = false }}
state = {{ values = [{", ".join(f'"{state}"' for state in STATES)}], other = true, nulls = false }}
sex = {{ values = ["f", "m"], nulls = false }}
code = {{ nulls = false }}
cost = {{ lower = 0, upper = 5000, nulls = false }}
"""
# The functions of ``dpsql.planning.prepare`` that each stage calls.
STAGES = {
    "parse": ("parse",),
    "understand": ("understand",),
    "compile": ("compile_any",),
    "select": ("select",),
}


def ends(draw: random.Random, low: int, high: int, step: int = 1) -> tuple[int, int]:
    """Two multiples of ``step`` in order."""
    first, last = sorted(draw.randint(low // step, high // step) * step for _ in range(2))
    return first, last


def ranges(draw: random.Random, _: int) -> str:
    return "SELECT COUNT(*) FROM visits WHERE minute BETWEEN {} AND {}".format(*ends(draw, 0, 1439))


def mixed(draw: random.Random, number: int) -> str:
    """Ranges, points, lists, a pattern and groups over four columns."""
    low, high = ends(draw, 0, 120)
    among = ", ".join(str(draw.randint(0, 120)) for _ in range(5))
    kinds = (
        f"SELECT COUNT(*) FROM visits WHERE age BETWEEN {low} AND {high}",
        f"SELECT COUNT(*) AS n FROM visits WHERE age >= {low} AND age < {high + 1}",
        f"SELECT COUNT(*) FROM visits WHERE age BETWEEN {low} AND {high} AND sex = '{draw.choice('fm')}'",
        f"SELECT COUNT(*) FROM visits WHERE age = {low}",
        f"SELECT COUNT(*) FROM visits WHERE age IN ({among})",
        "SELECT COUNT(*) FROM visits WHERE state IN ('{}', '{}')".format(*draw.sample(STATES, 2)),
        "SELECT COUNT(*) FROM visits WHERE code LIKE 'A%'",
        f"SELECT sex, COUNT(*) AS n FROM visits WHERE age >= {low} GROUP BY sex",
    )
    return kinds[number % len(kinds)]


def five(step: int) -> Callable[[random.Random, int], str]:
    """Ranges, equalities and groups over five columns, the ages in multiples of ``step`` years."""

    def statement(draw: random.Random, number: int) -> str:
        low, high = ends(draw, 0, 120, step)
        state, sex = draw.choice(STATES), draw.choice("fm")
        kinds = (
            f"SELECT COUNT(*) FROM visits WHERE age BETWEEN {low} AND {high}",
            f"SELECT COUNT(*) FROM visits WHERE state = '{state}'",
            f"SELECT COUNT(*) FROM visits WHERE sex = '{sex}' AND month = {draw.randint(1, 12)}",
            "SELECT state, COUNT(*) AS n FROM visits GROUP BY state",
            "SELECT month, sex, COUNT(*) AS n FROM visits GROUP BY month, sex",
            f"SELECT COUNT(*) FROM visits WHERE age >= {low} AND sex = '{sex}'",
            f"SELECT COUNT_IF(cost < {draw.choice((1000, 2000))}) AS n FROM visits WHERE state = '{state}'",
        )
        return kinds[number % len(kinds)]

    return statement


def outer(draw: random.Random, number: int) -> str:
    """Averages, ratios, HAVING, ORDER BY, LIMIT and windows: outer SQL over noisy tables."""
    age, least = draw.choice((18, 40, 65)), draw.randint(0, 1000)
    kinds = (
        f"SELECT month, AVG(cost) AS a FROM visits WHERE age >= {age} GROUP BY month ORDER BY a DESC LIMIT 3",
        f"SELECT state, COUNT(*) AS n FROM visits GROUP BY state HAVING COUNT(*) > {least} ORDER BY n DESC",
        f"SELECT sex, SUM(cost) / COUNT(*) AS r, COUNT(*) AS n FROM visits GROUP BY sex HAVING n > {least}",
        f"SELECT month, COUNT(*) AS n, rank() OVER (ORDER BY COUNT(*) DESC) AS k FROM visits WHERE age < {age} "
        "GROUP BY month",
    )
    return kinds[number % len(kinds)]


# name, columns, statements, how one is made, seconds aimed at (None: no aim), left out by --quick
CASES: list[tuple[str, int, int, Callable[[random.Random, int], str], float | None, bool]] = [
    ("ranges of minutes", 1, 10_000, ranges, 10, False),
    ("ranges, points, lists, LIKE, groups", 4, 10_000, mixed, 10, True),
    ("AVG, HAVING, ORDER BY, windows", 5, 10_000, outer, 10, True),
    ("ranges, equalities, groups; ages in fives", 5, 200, five(5), 2, False),
    ("the same, ages to the year", 5, 200, five(1), None, False),
    ("AVG, HAVING, ORDER BY, windows", 5, 200, outer, 2, False),
]


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Adds up the CPU seconds of the stages of ``make_plan`` while it runs."""
    held = {name: getattr(dpsql.planning.prepare, name) for names in STAGES.values() for name in names}

    def around(stage: str, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return held[name](*arguments, **options)
            finally:
                spent[stage] = spent.get(stage, 0.0) + time.process_time() - start

        return call

    for stage, names in STAGES.items():
        for name in names:
            setattr(dpsql.planning.prepare, name, around(stage, name))
    try:
        yield
    finally:
        for name, function in held.items():
            setattr(dpsql.planning.prepare, name, function)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the cases of many seconds")
    options = parser.parse_args()
    os.environ["DPSQL_CACHE"] = "off"
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or f"library default on {os.cpu_count()} cores"
    print(f"BLAS threads: {threads}; load {os.getloadavg()[0]:.1f}; CPU seconds\n")
    head = ("batch", "columns", "statements", "cells", "numbers")
    head += (*STAGES, "rest", "total", "aim", "run")
    print(f"| {' | '.join(head)} |\n|---{'|---:' * (len(head) - 1)}|")
    late = 0
    for name, columns, count, statement, aim, slow in CASES:
        if slow and options.quick:
            continue
        with tempfile.TemporaryDirectory() as folder, duckdb.connect() as database:
            database.execute(TABLE)
            con = dpsql.connect(database, policy=Policy.parse(POLICY), ledger=Path(folder) / "statements.ledger")
            draw = random.Random(20)
            batch = ";\n".join(statement(draw, at) for at in range(count))
            spent: dict[str, float] = {}
            gc.collect()  # what the batch before left is not this one's
            start = time.process_time()
            with timed(spent):
                plan = con.plan(batch, epsilon=1.0, delta=1e-9)
            total, start = time.process_time() - start, time.process_time()
            con.run(plan)
            ran = time.process_time() - start
            parts = [spent.get(stage, 0.0) for stage in STAGES]
            figures = " | ".join(f"{seconds:.2f}" for seconds in (*parts, total - sum(parts), total))
            late += aim is not None and total > aim
            print(
                f"| {name} | {columns} | {count:,} | {plan.cells:,} | {len(plan.errors):,} | {figures} | "
                f"{'' if aim is None else f'{aim:g}'} | {ran:.2f} |",
                flush=True,
            )
            del plan
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
