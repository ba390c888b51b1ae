"""Claim: over many columns, feasible estimates and rounds that adapt have a fraction of the error of unbiased ones.

    python benchmarks/wide.py [--runs 5]

Tables like a census, made here from public seeds: 48,842 rows of 14 columns of the sizes of the Adult data set, 20,000
rows of 9 and of 6 columns; values of a column follow Zipf's law, and four in ten rows take them from one of six kinds
of people, so that columns depend on each other. Errors are mean L1 / N over all groupings of the highest order;
Gaussian noise, delta 1e-9. "each by itself" puts every unbiased grouping on the simplex of N rows (which is not public:
it helps that column). "adaptive" is method="adaptive", a measurement of its own at the same budget; "covered" the part
of its estimated 95 % intervals that holds the truth. Seconds are of the process: of the feasible estimates alone, and
of a whole adaptive run.

    python benchmarks/wide.py --sparse [--runs 5]

Counts by two columns of which most groups are empty, pure epsilon, mean L1 / N: all counts with their noise, and those
that method="sparse" lists, absent ones as 0; what its plan expected of that, and its bound whatever the data; covered:
of the groups that it lists. Tables: "few groups", 2,000 groups anywhere, by Zipf's law; "bands", five values of one
column for each of the other; "kinds" as above; "apart", both columns by Zipf's law; "even", where nothing can be seen.
Memory: the most that the process ever held.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from itertools import combinations
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

import dpsql

ADULT = (74, 9, 16, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2)
CASES = (
    ("14 columns, pairs", ADULT, 2, 48_842, 1.0, "total"),
    ("14 columns, pairs", ADULT, 2, 48_842, 1.0, "balanced"),
    ("14 columns, pairs", ADULT, 2, 48_842, 0.1, "total"),
    ("14 columns, pairs", ADULT, 2, 48_842, 0.1, "balanced"),
    ("9 columns, triples", (8, 5, 6, 4, 9, 3, 7, 5, 6), 3, 20_000, 1.0, "total"),
    ("9 columns, triples", (8, 5, 6, 4, 9, 3, 7, 5, 6), 3, 20_000, 1.0, "balanced"),
    ("6 columns, pairs", (2, 3, 4, 6, 7, 3), 2, 20_000, 1.0, "total"),
)


def made_up(sizes: tuple[int, ...], n: int) -> pd.DataFrame:
    """Rows as the module says, from a fixed seed."""
    rng = np.random.default_rng(20_13)
    kind = rng.integers(0, 6, n)
    columns = {}
    for i, d in enumerate(sizes):
        law = 1.0 / np.arange(1, d + 1) ** 1.2
        own = rng.choice(d, n, p=law / law.sum())
        columns[f"c{i}"] = np.where(rng.random(n) < 0.4, kind * 7 % d, own).astype(np.int32)
    return pd.DataFrame(columns)


def groupings(frame: pd.DataFrame, sizes: tuple[int, ...], order: int) -> dict[tuple[int, ...], np.ndarray]:
    """The tables of one order of a result of dp_marginals: its other keys are NULL there."""
    keys = [f"c{i}" for i in range(len(sizes))]
    code = frame[keys].notna().to_numpy() @ (1 << np.arange(len(sizes)))
    found = {}
    for S in combinations(range(len(sizes)), order):
        part = frame[code == sum(1 << i for i in S)]
        table = np.zeros([sizes[i] for i in S])
        table[tuple(part[f"c{i}"].to_numpy().astype(int) for i in S)] = part["n"]
        found[S] = table
    return found


def on_simplex(table: np.ndarray, n: int) -> np.ndarray:
    """The nearest table with no negative entry and n rows."""
    falling = np.sort(table.ravel())[::-1]
    over = np.cumsum(falling) - n
    last = np.flatnonzero(falling - over / np.arange(1, falling.size + 1) > 0)[-1]
    return np.maximum(table - over[last] / (last + 1), 0.0)


def sparse_rows(kind: str, shape: tuple[int, int], n: int) -> pd.DataFrame:
    """Rows of a kind, as the module says, from a fixed seed."""
    rng = np.random.default_rng(20_12)
    a, b = shape

    def zipf(d: int, power: float) -> np.ndarray:
        law = 1.0 / np.arange(1, d + 1) ** power
        return rng.choice(d, n, p=law / law.sum())

    if kind == "few groups":
        groups = rng.choice(a * b, 2000, replace=False)[zipf(2000, 1.0)]
        return pd.DataFrame({"a": groups // b, "b": groups % b})
    if kind == "even":
        return pd.DataFrame({"a": rng.integers(0, a, n), "b": rng.integers(0, b, n)})
    if kind == "bands":
        first = zipf(a, 0.8)
        return pd.DataFrame({"a": first, "b": (first * 37 + rng.integers(0, 5, n) * 53) % b})
    own = pd.DataFrame({"a": zipf(a, 1.2), "b": zipf(b, 1.2)})
    if kind == "kinds":
        which = rng.integers(0, 6, n)
        for column, d in zip("ab", shape, strict=True):
            own[column] = np.where(rng.random(n) < 0.4, which * 7 % d, own[column])
    return own


def sparse_table(runs: int) -> None:
    """Print the table of sparse counts."""
    names = "all counts", "sparse", "expected", "at most", "listed", "covered", "plan s", "run s"
    print(f"| groups | table | rows | epsilon | {' | '.join(names)} |")
    print("|---|---|" + 10 * "---:|")
    kinds = ("few groups", "bands", "kinds", "apart", "even")
    cases = [((300, 400), kind, 50_000, epsilon) for epsilon in (1.0, 0.1) for kind in kinds]
    cases += [((10_000, 10_000), kind, 1_000_000, epsilon) for epsilon in (1.0, 0.1) for kind in kinds[:4]]
    cases.append(((30_000, 33_000), "few groups", 1_000_000, 1.0))
    for shape, kind, n, epsilon in cases:
        rows = sparse_rows(kind, shape, n)
        true = rows.value_counts().rename("true").reset_index()
        policy = dpsql.Policy.parse(
            f'dataset = "sparse"\n[budget]\nepsilon = 1000.0\n[tables.t]\nunit = "row"\nexpected_rows = {n}\n'
            f"[tables.t.columns]\na = {{ lower = 0, upper = {shape[0] - 1}, nulls = false }}\n"
            f"b = {{ lower = 0, upper = {shape[1] - 1}, nulls = false }}\n"
        )
        errors, covered, listed, took = [], [], [], []
        with tempfile.TemporaryDirectory() as folder:
            with duckdb.connect(f"{folder}/t.duckdb") as raw:
                raw.execute("CREATE TABLE t AS SELECT * FROM rows")
            con = dpsql.connect(f"{folder}/t.duckdb", policy=policy, ledger=Path(folder) / "t.ledger")
            start = time.process_time()
            plan = con.plan("SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b", epsilon=epsilon, method="sparse")
            planned = time.process_time() - start
            for _ in range(runs):
                start = time.process_time()
                frame = con.run(plan, fresh=True)["q1"].df()
                took.append(time.process_time() - start)
                both = frame.merge(true, on=["a", "b"], how="outer").fillna({"n": 0, "true": 0})
                errors.append(float((both["n"] - both["true"]).abs().sum()) / n)
                mine = both[both["n_low"].notna()]
                covered.append(float(((mine["n_low"] <= mine["true"]) & (mine["true"] <= mine["n_high"])).mean()))
                listed.append(len(frame))
            con.close()
        found = plan.strategy
        figures = (found.unbiased_error / n, np.mean(errors), found.expected_error / n, found.worst / n)
        print(
            f"| {shape[0]:,} x {shape[1]:,} | {kind} | {n:,} | {epsilon:g} | {' | '.join(f'{x:.3f}' for x in figures)} "
            f"| {np.mean(listed):,.0f} | {np.mean(covered):.3f} | {planned:.1f} | {np.median(took):.1f} |",
            flush=True,
        )
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--runs", type=int, default=5)
    asked.add_argument("--sparse", action="store_true")
    options = asked.parse_args()
    runs = options.runs
    os.environ["DPSQL_CACHE"] = "off"
    if options.sparse:
        sparse_table(runs)
        return
    print(
        "| batch | objective | epsilon | numbers | unbiased | each by itself | feasible | seconds | adaptive | covered "
        "| seconds |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for title, sizes, order, n, epsilon, objective in CASES:
        rows = made_up(sizes, n)
        names = ", ".join(rows.columns)
        declared = "".join(f"c{i} = {{ lower = 0, upper = {d - 1}, nulls = false }}\n" for i, d in enumerate(sizes))
        policy = dpsql.Policy.parse(
            'dataset = "wide"\n[budget]\nepsilon = 1000.0\ndelta = 1e-9\n[tables.t]\nunit = "row"\n'
            f"expected_rows = {n}\n[tables.t.columns]\n{declared}"
        )
        true = {}
        for S in combinations(range(len(sizes)), order):
            true[S] = np.zeros([sizes[i] for i in S])
            np.add.at(true[S], tuple(rows[f"c{i}"].to_numpy() for i in S), 1.0)
        errors: dict[str, list[float]] = {"unbiased": [], "each": [], "feasible": []}
        seconds, numbers = [], 0
        with tempfile.TemporaryDirectory() as folder:
            with duckdb.connect(f"{folder}/t.duckdb") as raw:
                raw.execute("CREATE TABLE t AS SELECT * FROM rows")
            con = dpsql.connect(f"{folder}/t.duckdb", policy=policy, ledger=Path(folder) / "t.ledger")
            sql = f"SELECT {names}, COUNT(*) AS n FROM t GROUP BY dp_marginals({order}, {names})"
            plan = con.plan(
                sql,
                epsilon=epsilon,
                delta=1e-9,
                objective=objective,
            )
            numbers = len(plan.stderr["q1"])
            for _ in range(runs):
                noisy = groupings(con.run(plan, fresh=True, errors=False)["q1"].df(), sizes, order)
                start = time.process_time()
                again = con.run(plan, estimates="feasible", errors=False)
                seconds.append(time.process_time() - start)
                shown = groupings(again["q1"].df(), sizes, order)
                for kind, tables in (
                    ("unbiased", noisy),
                    ("each", {S: on_simplex(x, n) for S, x in noisy.items()}),
                    ("feasible", shown),
                ):
                    errors[kind].append(float(np.mean([np.abs(tables[S] - true[S]).sum() / n for S in true])))
            made_up_errors, covered, took = [], [], []
            if objective == "balanced" or order * len(sizes) == 12:  # once a batch
                adaptive = con.plan(sql, epsilon=epsilon, delta=1e-9, method="adaptive")
                for _ in range(runs):
                    start = time.process_time()
                    frame = con.run(adaptive, fresh=True)["q1"].df()
                    took.append(time.process_time() - start)
                    shown, low, high = (
                        groupings(frame.assign(n=frame[column]), sizes, order) for column in ("n", "n_low", "n_high")
                    )
                    made_up_errors.append(float(np.mean([np.abs(shown[S] - true[S]).sum() / n for S in true])))
                    inside = [(low[S] - 1e-9 <= true[S]) & (true[S] <= high[S] + 1e-9) for S in true]
                    covered.append(np.mean(np.concatenate([held.ravel() for held in inside])))
            con.close()
        adapted = f"{np.mean(made_up_errors):.4f} | {np.mean(covered):.3f} | {np.median(took):.1f}" if took else "| |"
        shown_errors = " | ".join(f"{np.mean(errors[kind]):.4f}" for kind in ("unbiased", "each", "feasible"))
        print(
            f"| {title} | {objective} | {epsilon:g} | {numbers:,} | {shown_errors} | {np.median(seconds):.1f} "
            f"| {adapted} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
