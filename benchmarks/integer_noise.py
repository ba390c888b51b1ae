"""Claim: from epsilon 1 on, plans that compare strategies by the noise of integers have less error.

    python benchmarks/integer_noise.py

Pure epsilon, unit = "row". Prints for each batch and epsilon the strategy and the total squared error of a plan
without and with ``dpsql.planning.fine_noise``, and what the plan without it loses.
"""

from __future__ import annotations

import tempfile
from unittest import mock

import duckdb
import numpy as np

import dpsql
import dpsql.planning.plan as planning
from dpsql.planning.fine_noise import weighed_squares

POLICY = """
dataset = "integers"
[budget]
epsilon = 1000.0
[tables.t]
unit = "row"
expected_rows = 100000
[tables.t.columns]
a = { lower = 0, upper = 9 }
b = { lower = 0, upper = 4 }
c = { lower = 0, upper = 99 }
v = { lower = 0, upper = 100 }
"""
BATCHES = {
    "groups": "SELECT a, COUNT(*) FROM t GROUP BY a",
    "groups and total": "SELECT a, COUNT(*) FROM t GROUP BY a; SELECT COUNT(*) FROM t",
    "two groupings": "SELECT a, COUNT(*) FROM t GROUP BY a; SELECT b, COUNT(*) FROM t GROUP BY b",
    "rollup": "SELECT a, b, COUNT(*) FROM t GROUP BY ROLLUP (a, b)",
    "14 ranges": ";".join(f"SELECT COUNT(*) FROM t WHERE c BETWEEN {i} AND {i + 30}" for i in range(0, 70, 5)),
    "10 thresholds": ";".join(f"SELECT COUNT(*) FROM t WHERE c <= {i}" for i in range(5, 100, 10)),
    "counts and sums": "SELECT a, COUNT(*), SUM(v) FROM t GROUP BY a",
}


def plan(sql: str, epsilon: int) -> dpsql.Plan:
    """Of a connection of its own, which remembers no other plan."""
    duck = duckdb.connect()
    duck.execute("CREATE TABLE t(a INTEGER, b INTEGER, c INTEGER, v INTEGER)")
    with tempfile.TemporaryDirectory() as folder:
        con = dpsql.connect(duck, policy=dpsql.Policy.parse(POLICY), ledger=f"{folder}/ledger")
        return con.plan(sql, epsilon=epsilon)


def error(made: dpsql.Plan) -> float:
    """Total squared error of the numbers as announced."""
    return float(weighed_squares(made.compiled, np.asarray(made.errors)).sum())


def main() -> None:
    """Print the table."""
    print("| batch | epsilon | without | with | error without | with | lost |\n|---|---:|---|---|---:|---:|---:|")
    for name, sql in BATCHES.items():
        for epsilon in (1, 2, 4, 8):
            best = plan(sql, epsilon)
            with mock.patch.object(planning, "finest", lambda prepared, charge, found, options: found):
                other = plan(sql, epsilon)
            methods = f"{other.strategy.method} | {best.strategy.method}"
            lost = error(other) / error(best) - 1
            print(
                f"| {name} | {epsilon} | {methods} | {error(other):.4g} | {error(best):.4g} | {lost:.1%} |", flush=True
            )


if __name__ == "__main__":
    main()
