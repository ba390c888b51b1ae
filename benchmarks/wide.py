"""Claim: over many columns, feasible estimates and rounds that adapt have a fraction of the error of unbiased ones.

    python benchmarks/wide.py [--runs 5] [--adult adult.csv]

Tables like a census, made here from public seeds: 48,842 rows of 14 columns of the sizes of the Adult data set, 20,000
rows of 9 and of 6 columns; values of a column follow Zipf's law, and four in ten rows take them from one of six kinds
of people, so that columns depend on each other. Errors are mean L1 / N over all groupings of the highest order;
Gaussian noise, delta 1e-9. "each by itself" puts every unbiased grouping on the simplex of N rows (which is not public:
it helps that column). "adaptive" is method="adaptive", a measurement of its own at the same budget; "covered" the part
of its estimated 95 % intervals that holds the truth. Seconds are of the process: of the feasible estimates alone, and
of a whole adaptive run.

--adult: the same over the Adult data set, of a file with a column for each of its 14, values numbered from 0, such as
data/adult.csv of the repository ryan112358/mbi (48,842 rows; fnlwgt, gains and losses in 100 bins). Triples of all 14
are those of at most 10,000 groups, as the workload of AIM there has them. "9 columns" and "6 columns" are those of
fewest values. Nothing in what is planned follows from the file.

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
from dataclasses import dataclass
from itertools import combinations
from math import comb, prod
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

import dpsql

ADULT = (74, 9, 16, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2)
ADULT_FILE = (85, 9, 100, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2)
ALL = tuple(range(len(ADULT)))
NINE, SIX = (1, 3, 4, 5, 6, 7, 8, 12, 13), (1, 4, 6, 7, 8, 13)
MOST_GROUPS = 10_000


@dataclass(frozen=True)
class Case:
    """Counts by all groups of ``order`` columns, at most ``groups`` a table; of the made-up table, or of a file's."""

    title: str
    sizes: tuple[int, ...]
    order: int
    rows: int
    epsilon: float
    objective: str
    adaptive: bool = True
    groups: int = 10**9

    @property
    def sets(self) -> list[tuple[int, ...]]:
        """The tables."""
        of = combinations(range(len(self.sizes)), self.order)
        return [S for S in of if prod(self.sizes[i] for i in S) <= self.groups]

    @property
    def sql(self) -> str:
        """The batch."""
        names = ", ".join(f"c{i}" for i in range(len(self.sizes)))
        by = f"dp_marginals({self.order}, {names})"
        if len(self.sets) < comb(len(self.sizes), self.order):
            by = f"GROUPING SETS ({', '.join('(' + ', '.join(f'c{i}' for i in S) + ')' for S in self.sets)})"
        return f"SELECT {names}, COUNT(*) AS n FROM t GROUP BY {by}"


def made_up_cases() -> list[tuple[Case, pd.DataFrame]]:
    """Tables that are made here."""
    nine, six = (8, 5, 6, 4, 9, 3, 7, 5, 6), (2, 3, 4, 6, 7, 3)
    cases = [
        *(
            Case("14 columns, pairs", ADULT, 2, 48_842, epsilon, objective, objective == "balanced")
            for epsilon in (1.0, 0.1)
            for objective in ("total", "balanced")
        ),
        Case("9 columns, triples", nine, 3, 20_000, 1.0, "total", adaptive=False),
        Case("9 columns, triples", nine, 3, 20_000, 1.0, "balanced"),
        Case("6 columns, pairs", six, 2, 20_000, 1.0, "total"),
    ]
    return [(case, made_up(case.sizes, case.rows)) for case in cases]


def adult_cases(path: str) -> list[tuple[Case, pd.DataFrame]]:
    """Tables of the file."""
    rows = pd.read_csv(path)
    n = len(rows)

    def of(columns: tuple[int, ...]) -> tuple[tuple[int, ...], pd.DataFrame]:
        part = rows.iloc[:, list(columns)].astype(np.int32)
        return tuple(ADULT_FILE[i] for i in columns), part.set_axis([f"c{i}" for i in range(len(columns))], axis=1)

    (all_sizes, every), (nine, of_nine), (six, of_six) = of(ALL), of(NINE), of(SIX)
    return [
        (Case("Adult, 14 columns, pairs", all_sizes, 2, n, 1.0, "balanced"), every),
        (Case("Adult, 14 columns, pairs", all_sizes, 2, n, 0.1, "balanced"), every),
        (Case("Adult, 9 columns, triples", nine, 3, n, 1.0, "balanced"), of_nine),
        (Case("Adult, 6 columns, pairs", six, 2, n, 1.0, "total"), of_six),
        (Case("Adult, 14 columns, triples", all_sizes, 3, n, 1.0, "adaptive", groups=MOST_GROUPS), every),
    ]


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


def groupings(
    frame: pd.DataFrame, sizes: tuple[int, ...], sets: list[tuple[int, ...]]
) -> dict[tuple[int, ...], np.ndarray]:
    """Tables of a result of groupings: its other keys are NULL there."""
    keys = [f"c{i}" for i in range(len(sizes))]
    code = frame[keys].notna().to_numpy() @ (1 << np.arange(len(sizes)))
    found = {}
    for S in sets:
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
    asked.add_argument("--adult", help="the data set's file")
    asked.add_argument("--only", default="", help="lines whose title has this")
    options = asked.parse_args()
    runs = options.runs
    os.environ["DPSQL_CACHE"] = "off"
    if options.sparse:
        sparse_table(runs)
        return
    print(
        "| batch | objective | epsilon | numbers | unbiased | each by itself | feasible | seconds | adaptive | covered "
        "| plan s | run s |"
    )
    print("|---|---|" + 10 * "---:|")
    for case, rows in adult_cases(options.adult) if options.adult else made_up_cases():
        if options.only in case.title:
            print(line(case, rows, runs), flush=True)


def line(case: Case, rows: pd.DataFrame, runs: int) -> str:
    """One line of the table."""
    sizes, sets, n, epsilon = case.sizes, case.sets, len(rows), case.epsilon
    declared = "".join(f"c{i} = {{ lower = 0, upper = {d - 1}, nulls = false }}\n" for i, d in enumerate(sizes))
    policy = dpsql.Policy.parse(
        'dataset = "wide"\n[budget]\nepsilon = 1000.0\ndelta = 1e-9\n[tables.t]\nunit = "row"\n'
        f"expected_rows = {n}\n[tables.t.columns]\n{declared}"
    )
    true = {}
    for S in sets:
        true[S] = np.zeros([sizes[i] for i in S])
        np.add.at(true[S], tuple(rows[f"c{i}"].to_numpy() for i in S), 1.0)

    def off(tables: dict[tuple[int, ...], np.ndarray]) -> float:
        return float(np.mean([np.abs(tables[S] - true[S]).sum() / n for S in true]))

    errors: dict[str, list[float]] = {"unbiased": [], "each": [], "feasible": []}
    seconds, made_up_errors, covered, took, planned = [], [], [], [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        with duckdb.connect(f"{folder}/t.duckdb") as raw:
            raw.execute("CREATE TABLE t AS SELECT * FROM rows")
        con = dpsql.connect(f"{folder}/t.duckdb", policy=policy, ledger=Path(folder) / "t.ledger")
        if case.objective != "adaptive":
            plan = con.plan(case.sql, epsilon=epsilon, delta=1e-9, objective=case.objective)
            for _ in range(runs):
                noisy = groupings(con.run(plan, fresh=True, errors=False)["q1"].df(), sizes, sets)
                start = time.process_time()
                again = con.run(plan, estimates="feasible", errors=False)
                seconds.append(time.process_time() - start)
                errors["unbiased"].append(off(noisy))
                errors["each"].append(off({S: on_simplex(x, n) for S, x in noisy.items()}))
                errors["feasible"].append(off(groupings(again["q1"].df(), sizes, sets)))
        if case.adaptive:
            start = time.process_time()
            adaptive = con.plan(case.sql, epsilon=epsilon, delta=1e-9, method="adaptive")
            planned = time.process_time() - start
            for _ in range(runs):
                start = time.process_time()
                frame = con.run(adaptive, fresh=True)["q1"].df()
                took.append(time.process_time() - start)
                shown, low, high = (
                    groupings(frame.assign(n=frame[column]), sizes, sets) for column in ("n", "n_low", "n_high")
                )
                made_up_errors.append(off(shown))
                inside = [(low[S] - 1e-9 <= true[S]) & (true[S] <= high[S] + 1e-9) for S in true]
                covered.append(np.mean(np.concatenate([held.ravel() for held in inside])))
        con.close()
    adapted = " | | | "
    if took:
        adapted = f"{np.mean(made_up_errors):.4f} | {np.mean(covered):.3f} | {planned:.1f} | {np.median(took):.1f}"
    fixed = " | | | "
    if seconds:
        shown_errors = " | ".join(f"{np.mean(errors[kind]):.4f}" for kind in ("unbiased", "each", "feasible"))
        fixed = f"{shown_errors} | {np.median(seconds):.1f}"
    numbers = sum(prod(sizes[i] for i in S) for S in sets)
    return f"| {case.title} | {case.objective} | {epsilon:g} | {numbers:,} | {fixed} | {adapted} |"


if __name__ == "__main__":
    main()
