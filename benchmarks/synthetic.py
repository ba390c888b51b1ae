"""Claim: synthetic rows are about as near to the data as the release that they are made from, and take seconds.

    python benchmarks/synthetic.py [--cases 4]

The tables of benchmarks/wide.py, Gaussian noise, delta 1e-9, one run each. Mean L1 / N over the groupings of the
highest order: of the release from the data, of as many synthetic rows as there are from the data, and of the rows from
the release. "triples" is the distance of the rows from the data over groupings by three columns (of 14: 40 of them), of
which a release of pairs says nothing; "independent" that of the product of the true columns. Seconds are CPU seconds of
the process for the rows alone. The last line fits 1,000,000 rows to the true pairs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import combinations
from pathlib import Path

import duckdb
import numpy as np
from wide import ADULT, groupings, made_up

import dpsql
from dpsql.extensions.synthetic import row_fit
from dpsql.replicates.noise import generator_of

CASES = (
    ("6 columns, pairs", (2, 3, 4, 6, 7, 3), 2, 20_000, 1.0, "auto"),
    ("9 columns, triples", (8, 5, 6, 4, 9, 3, 7, 5, 6), 3, 20_000, 1.0, "adaptive"),
    ("14 columns, pairs", ADULT, 2, 48_842, 1.0, "adaptive"),
    ("14 columns, pairs", ADULT, 2, 48_842, 0.1, "adaptive"),
)


def tables(columns: list[np.ndarray], sizes: tuple[int, ...], sets: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Shares of the rows by groups."""
    found = []
    for S in sets:
        table = np.zeros([sizes[i] for i in S])
        np.add.at(table, tuple(columns[i] for i in S), 1.0 / len(columns[0]))
        found.append(table)
    return found


def apart(one: list[np.ndarray], two: list[np.ndarray]) -> float:
    """Mean L1 distance."""
    return float(np.mean([np.abs(a - b).sum() for a, b in zip(one, two, strict=True)]))


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--cases", type=int, default=len(CASES))
    os.environ["DPSQL_CACHE"] = "off"
    print("| batch | method | epsilon | release | rows | rows from release | triples | independent | seconds |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for title, sizes, order, n, epsilon, method in CASES[: asked.parse_args().cases]:
        frame = made_up(sizes, n)
        names = ", ".join(frame.columns)
        declared = "".join(f"c{i} = {{ lower = 0, upper = {d - 1}, nulls = false }}\n" for i, d in enumerate(sizes))
        policy = dpsql.Policy.parse(
            'dataset = "wide"\n[budget]\nepsilon = 1000.0\ndelta = 1e-9\n[tables.t]\nunit = "row"\n'
            f"expected_rows = {n}\n[tables.t.columns]\n{declared}"
        )
        data = [frame[name].to_numpy() for name in frame.columns]
        sets = list(combinations(range(len(sizes)), order))
        threes = list(combinations(range(len(sizes)), 3))
        threes = threes[:: max(1, len(threes) // 40)]
        with tempfile.TemporaryDirectory() as folder:
            with duckdb.connect(f"{folder}/t.duckdb") as raw:
                raw.execute("CREATE TABLE t AS SELECT * FROM frame")
            con = dpsql.connect(f"{folder}/t.duckdb", policy=policy, ledger=Path(folder) / "t.ledger")
            sql = f"SELECT {names}, COUNT(*) AS n FROM t GROUP BY dp_marginals({order}, {names})"
            release = con.run(con.plan(sql, epsilon=epsilon, delta=1e-9, method=method))
            start = time.process_time()
            made = release.synthetic_rows(n).only
            seconds = time.process_time() - start
            columns = [np.array(made.column(name), dtype=np.int64) for name in frame.columns]
            shown = groupings(release["q1"].df(), sizes, order)
            con.close()
        released = [shown[S] / n for S in sets]
        truth, rows = tables(data, sizes, sets), tables(columns, sizes, sets)
        alone = tables(data, sizes, [(i,) for i in range(len(sizes))])
        product = [np.einsum("i,j,k->ijk", *(alone[i] for i in S)) for S in threes]
        true_threes, our_threes = tables(data, sizes, threes), tables(columns, sizes, threes)
        print(
            f"| {title} | {method} | {epsilon:g} | {apart(released, truth):.4f} | {apart(rows, truth):.4f} "
            f"| {apart(rows, released):.4f} | {apart(our_threes, true_threes):.4f} "
            f"| {apart(product, true_threes):.4f} | {seconds:.1f} |",
            flush=True,
        )
    large(1_000_000)


def large(n: int) -> None:
    """So many rows fitted to the pairs of others."""
    frame = made_up(ADULT, 48_842)
    data = [frame[name].to_numpy() for name in frame.columns]
    sets = list(combinations(range(len(ADULT)), 2))
    faces = [row_fit.Face(i, np.arange(d), d) for i, d in enumerate(ADULT)]
    shares = tables(data, ADULT, sets)
    targets = [row_fit.Target(tuple(faces[i] for i in S), t * n) for S, t in zip(sets, shares, strict=True)]
    start = time.process_time()
    rows = row_fit.fitted(ADULT, targets, n, generator_of("large"))
    seconds = time.process_time() - start
    found = apart(tables(list(rows), ADULT, sets), shares)
    print(f"| 14 columns, true pairs, {n:,} rows | | | | {found:.4f} | | | | {seconds:.1f} |")


if __name__ == "__main__":
    main()
