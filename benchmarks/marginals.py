"""Claim: all marginals of many columns are planned and released in about the time of the exact GROUPING SETS.

    python benchmarks/marginals.py [--columns K] [--order O] [--bounds] [--no-exact]

100,000 rows of K independent columns of 10 values, by default 100 with listed values (``--bounds``: declared by lower
and upper), and COUNT(*) by every O of them, by default 2. Seconds of the processor, and by the clock in brackets.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import duckdb

import dpsql
from dpsql.policy import Policy

ROWS, VALUES = 100_000, 10
T = TypeVar("T")


def timed(name: str, work: Callable[[], T]) -> T:
    processor, clock = time.process_time(), time.perf_counter()
    found = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    print(f"| {name} | {processor:.2f} ({clock:.2f}) | {peak:.2f} |", flush=True)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=100, help="how many columns (default: 100)")
    parser.add_argument("--order", type=int, default=2, help="columns of one grouping (default: 2)")
    parser.add_argument("--bounds", action="store_true", help="columns declared by bounds instead of values")
    parser.add_argument("--no-exact", action="store_true", help="leave the exact statement out")
    given = parser.parse_args()
    os.environ["DPSQL_CACHE"] = "off"  # every plan is made anew
    names = [f"c{at}" for at in range(given.columns)]
    listed = ", ".join(names)
    domain = f"lower = 0, upper = {VALUES - 1}" if given.bounds else f"values = {list(range(VALUES))}"
    columns = "".join(f"{name} = {{ {domain}, nulls = false }}\n" for name in names)
    policy = Policy.parse(
        'dataset = "marginals"\n[budget]\nepsilon = 1000.0\ndelta = 1e-6\n[tables.t]\nunit = "row"\n'
        f"expected_rows = {ROWS}\n[tables.t.columns]\n{columns}"
    )
    made = ", ".join(f"(hash(i, {at}) % {VALUES})::INTEGER AS {name}" for at, name in enumerate(names))
    print("| | seconds | peak GiB |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "t.duckdb"
        with duckdb.connect(str(path)) as raw:
            raw.execute(f"CREATE TABLE t AS SELECT {made} FROM range({ROWS}) r(i)")
        with dpsql.connect(path, policy=policy, ledger=Path(name) / "t.ledger") as con:
            sql = f"SELECT {listed}, COUNT(*) AS n FROM t GROUP BY dp_marginals({given.order}, {listed})"
            plan = timed("plan", lambda: con.plan(sql, epsilon=1.0, delta=1e-9))
            timed("run", lambda: con.run(plan))
        if not given.no_exact:
            sets = ", ".join(f"({', '.join(one)})" for one in combinations(names, given.order))
            exact = f"SELECT {listed}, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ({sets})"
            with duckdb.connect(str(path)) as raw:
                timed("exact", lambda: raw.execute(exact).fetchnumpy())
    print(f"\n{plan.compiled.numbers:,} numbers, certified within {plan.gap or 0:.4%}")


if __name__ == "__main__":
    main()
