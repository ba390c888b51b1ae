"""Claim: over many columns, feasible estimates and rounds that adapt have a fraction of the error of unbiased ones.

    python benchmarks/wide.py [--runs 5] [--adult adult.csv]

Tables like a census, made here from public seeds: 48,842 rows of 14 columns of the sizes of the Adult data set, 20,000
rows of 9 and of 6 columns; values of a column follow Zipf's law, and four in ten rows take them from one of six kinds
of people, so that columns depend on each other. Errors are mean L1 / N over all groupings of the highest order;
Gaussian noise, delta 1e-9. "each by itself" puts every unbiased grouping on the simplex of N rows (which is not public:
it helps that column). "adaptive" is method="adaptive", a measurement of its own at the same budget; "covered" the part
of its estimated 95 % intervals that holds the truth; "squares" the squared error of all numbers together, of that of
the unbiased ones. Seconds are of the process: of the feasible estimates alone, and of a whole adaptive run.

--adult: the same over the Adult data set, of a file with a column for each of its 14, values numbered from 0, such as
data/adult.csv of the repository ryan112358/mbi (48,842 rows; fnlwgt, gains and losses in 100 bins). Triples "of few
groups" are those of at most 10,000, as the workload of AIM there has them. "9 columns" and "6 columns" are those
of fewest values. Nothing in what is planned follows from the file.

    python benchmarks/wide.py --sparse [--runs 5]

Counts by two columns of which most groups are empty, pure epsilon, mean L1 / N: all counts with their noise, and those
that method="sparse" lists, absent ones as 0; what its plan expected of that, and its bound whatever the data; covered:
of the groups that it lists. Tables: "few groups", 2,000 groups anywhere, by Zipf's law; "bands", five values of one
column for each of the other; "kinds" as above; "apart", both columns by Zipf's law; "even", where nothing can be seen.
Memory: the most that the process ever held.

    python benchmarks/wide.py --limits

What is possible over noisy counts of 300 x 400 groups, simulated in floats: thresholds by how many rows empty groups
may show, of all; the best rule that treats groups alike, for who knows how many have which count; and a threshold with
a product of the columns for what is not listed. Then the least error that unbiased counts by pairs of six columns of
Adult can have, each pair asked alone, Gaussian noise, epsilon 1, delta 1e-9.
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
from dpsql.privacy.calibrate import gaussian_mu
from dpsql.release import columns

ADULT = (74, 9, 16, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2)
ADULT_FILE = (85, 9, 100, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2)
ALL = tuple(range(len(ADULT)))
NINE, SIX = (1, 3, 4, 5, 6, 7, 8, 12, 13), (1, 4, 6, 7, 8, 13)
MOST_GROUPS = 10_000


@dataclass(frozen=True)
class Case:
    """Counts by all groups of up to ``order`` columns, of a made-up table or of a file's.

    ``groups``: tables of more are left out. ``alone``: those of fewer columns are not asked.
    """

    title: str
    sizes: tuple[int, ...]
    order: int
    rows: int
    epsilon: float
    objective: str
    adaptive: bool = True
    groups: int = 10**9
    alone: bool = False

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
        if self.alone or len(self.sets) < comb(len(self.sizes), self.order):
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
        Case("6 columns, pairs alone", six, 2, 20_000, 1.0, "total", alone=True),
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
        (Case("Adult, 6 columns, pairs alone", six, 2, n, 1.0, "total", alone=True), of_six),
        (Case("Adult, 14 columns, triples of few groups", all_sizes, 3, n, 1.0, "adaptive", groups=MOST_GROUPS), every),
        (Case("Adult, 14 columns, triples, all 364", all_sizes, 3, n, 1.0, "adaptive"), every),
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
    result: dpsql.Result, sizes: tuple[int, ...], sets: list[tuple[int, ...]], names: tuple[str, ...] = ("n",)
) -> list[dict[tuple[int, ...], np.ndarray]]:
    """Tables of each column of a result of groupings: its other keys are NULL there. From columns as they are held."""
    held = {name: values for name, _, values in result.triples()}
    keys, code = [], np.zeros(len(result), dtype=np.int32)
    for i in range(len(sizes)):
        coded = columns.coded(held[f"c{i}"]) if isinstance(held[f"c{i}"], tuple) else held[f"c{i}"]
        labels = np.array([-1 if value is None else value for value in coded.distinct], dtype=np.int16)
        keys.append(labels[coded.codes])
        code |= (keys[-1] >= 0).astype(np.int32) << i
    starts = np.flatnonzero(np.diff(code, prepend=-1))  # a grouping's rows stand together
    stops = dict(zip(code[starts].tolist(), zip(starts, [*starts[1:], len(code)], strict=True), strict=True))
    found: list[dict[tuple[int, ...], np.ndarray]] = [{} for _ in names]
    for name, tables in zip(names, found, strict=True):
        values = held[name].data if isinstance(held[name], columns.Numbers) else np.array(held[name], dtype=float)
        for S in sets:
            part = slice(*stops[sum(1 << i for i in S)])
            tables[S] = np.zeros([sizes[i] for i in S])
            tables[S][tuple(keys[i][part] for i in S)] = values[part]
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


def _of(squares: list[float], unbiased: list[float]) -> str:
    """Squared errors of those of the unbiased numbers."""
    return f"{np.mean(squares) / np.mean(unbiased):.3f}" if unbiased else ""


def limits_table() -> None:
    """Print what noise on all of 300 x 400 counts leaves room for: sparse thresholds, and rules that know more."""
    rng, n, size = np.random.default_rng(1), 50_000, 300 * 400
    shares = (0.003, 0.01, 0.015, 0.02, 0.03, 0.05)
    print(f"| table | epsilon | {' | '.join(f'{100 * s:g} %' for s in shares)} | best rule | with columns |")
    print("|---|" + (3 + len(shares)) * "---:|")
    for epsilon in (1.0, 0.1):
        for kind in ("few groups", "bands", "kinds", "apart", "even"):
            rows = sparse_rows(kind, (300, 400), n)
            true = np.bincount(rows["a"] * 400 + rows["b"], minlength=size).astype(float)
            found = []
            for share in shares:
                noisy = [true + rng.laplace(0, 1 / epsilon, size) for _ in range(4)]
                least = _threshold(share * n, size, 1 / epsilon)
                found.append(np.mean([np.abs(np.where(y >= least, y, 0) - true).sum() / n for y in noisy]))
            # The median of a count given its noisy one, for who knows how many groups have which count.
            counts, often = np.unique(true, return_counts=True)
            grid = np.arange(-5 / epsilon, true.max() + 15 / epsilon, 0.1 / epsilon)
            weight = np.cumsum(often * np.exp(-epsilon * np.abs(grid[:, None] - counts)), axis=1)
            rule = counts[np.argmax(weight >= weight[:, -1:] / 2, axis=1)]
            at = np.clip(np.rint((noisy[0] - grid[0]) * 10 * epsilon).astype(int), 0, len(grid) - 1)
            found.append(np.abs(rule[at] - true).sum() / n)
            found.append(_with_columns(true.reshape(300, 400), epsilon, rng))
            print(f"| {kind} | {epsilon:g} | {' | '.join(f'{x:.3f}' for x in found)} |", flush=True)

    print("\n| six columns | regions | least |\n|---|---|---:|")
    choices = {"fewest values": SIX, "first": range(6), "last": range(8, 14), "workclass to sex": (1, 4, 5, 6, 7, 8)}
    for name, chosen in choices.items():
        sizes = [ADULT_FILE[i] for i in chosen]
        print(f"| {name} | {', '.join(map(str, sizes))} | {_least(sizes, 48_842):.4f} |")
    found = [_least([ADULT_FILE[i] for i in chosen], 48_842) for chosen in combinations(ALL, 6)]
    print(f"{sum(least <= 0.0064 for least in found)} of all {len(found):,} choices have at most 0.0064")


def _least(sizes: list[int], n: int) -> float:
    """Mean L1 / N of all pairs at the least total squared error of unbiased Gaussian mechanisms (Xiao and others 2023).

    A residual T costs c_T a unit of precision and counts v_T: the sum of all variances is (sum sqrt(c_T v_T))^2 / mu^2.
    """
    pairs = list(combinations(range(len(sizes)), 2))
    inside = [T for order in range(3) for T in combinations(range(len(sizes)), order)]
    spread = np.array(
        [
            [
                prod(sizes[i] - 1 for i in T) / prod(sizes[i] for i in S if i not in T) * (set(T) <= set(S))
                for T in inside
            ]
            for S in pairs
        ]
    )
    cost = np.array([prod(1 - 1 / sizes[i] for i in T) for T in inside])
    counts = spread.sum(axis=0)
    variances = spread @ np.sqrt(cost / counts) * np.sqrt(cost * counts).sum() / gaussian_mu(1.0, 1e-9) ** 2
    groups = np.array([prod(sizes[i] for i in S) for S in pairs])
    return float(np.mean(np.sqrt(groups * variances))) * np.sqrt(2 / np.pi) / n


def _threshold(rows: float, groups: int, scale: float) -> float:
    """From where on empty groups are expected to show no more than so many rows."""
    least = np.arange(0, 100 * scale, 0.1 * scale)
    return float(least[np.argmax(groups * (least + scale) * np.exp(-least / scale) / 2 <= rows)])


def _with_columns(true: np.ndarray, epsilon: float, rng: np.random.Generator) -> float:
    """L1 / N where a tenth of epsilon measures both columns and their product is shown for what is not listed."""
    n = true.sum()
    sums = [
        np.maximum(held + rng.laplace(0, 20 / epsilon, held.size), 0) for held in (true.sum(axis=1), true.sum(axis=0))
    ]
    scale = 1 / (0.9 * epsilon)
    noisy = true + rng.laplace(0, scale, true.shape)
    least = _threshold(0.01 * n, true.size, scale)
    shown = np.where(noisy >= least, noisy, 0.0)
    left = [np.maximum(held - shown.sum(axis=axis), 0.0) for held, axis in zip(sums, (1, 0), strict=True)]
    rest = np.outer(*left) / max(float(left[0].sum() + left[1].sum()) / 2, 1.0)
    return float(np.abs(np.where(shown > 0, shown, np.minimum(rest, least)) - true).sum() / n)


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--runs", type=int, default=5)
    asked.add_argument("--sparse", action="store_true")
    asked.add_argument("--adult", help="the data set's file")
    asked.add_argument("--fixed", action="store_true", help="no adaptive runs")
    asked.add_argument("--limits", action="store_true", help="what rules over noisy counts could reach at best")
    asked.add_argument("--only", default="", help="lines whose title has this")
    options = asked.parse_args()
    runs = options.runs
    os.environ["DPSQL_CACHE"] = "off"
    if options.limits:
        limits_table()
        return
    if options.sparse:
        sparse_table(runs)
        return
    print(
        "| batch | objective | epsilon | numbers | unbiased | each by itself | feasible | squares | seconds | adaptive "
        "| squares | covered | plan s | run s |"
    )
    print("|---|---|" + 12 * "---:|")
    for case, rows in adult_cases(options.adult) if options.adult else made_up_cases():
        if options.only in case.title:
            print(line(case, rows, runs, options.fixed), flush=True)
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def line(case: Case, rows: pd.DataFrame, runs: int, fixed_alone: bool) -> str:
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

    def squares(tables: dict[tuple[int, ...], np.ndarray]) -> float:
        return sum(float(((tables[S] - true[S]) ** 2).sum()) for S in true)

    errors: dict[str, list[float]] = {"unbiased": [], "each": [], "feasible": []}
    squared: dict[str, list[float]] = {"unbiased": [], "feasible": [], "adaptive": []}
    seconds, made_up_errors, covered, took, planned = [], [], [], [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        with duckdb.connect(f"{folder}/t.duckdb") as raw:
            raw.execute("CREATE TABLE t AS SELECT * FROM rows")
        con = dpsql.connect(f"{folder}/t.duckdb", policy=policy, ledger=Path(folder) / "t.ledger")
        if case.objective != "adaptive":
            plan = con.plan(case.sql, epsilon=epsilon, delta=1e-9, objective=case.objective)
            for _ in range(runs):
                (noisy,) = groupings(con.run(plan, fresh=True, errors=False)["q1"], sizes, sets)
                start = time.process_time()
                again = con.run(plan, estimates="feasible", errors=False)
                seconds.append(time.process_time() - start)
                errors["unbiased"].append(off(noisy))
                errors["each"].append(off({S: on_simplex(x, n) for S, x in noisy.items()}))
                (possible,) = groupings(again["q1"], sizes, sets)
                errors["feasible"].append(off(possible))
                squared["unbiased"].append(squares(noisy))
                squared["feasible"].append(squares(possible))
        if case.adaptive and not fixed_alone:
            start = time.process_time()
            adaptive = con.plan(case.sql, epsilon=epsilon, delta=1e-9, method="adaptive")
            planned = time.process_time() - start
            for _ in range(runs):
                start = time.process_time()
                result = con.run(adaptive, fresh=True)["q1"]
                took.append(time.process_time() - start)
                shown, low, high = groupings(result, sizes, sets, ("n", "n_low", "n_high"))
                made_up_errors.append(off(shown))
                squared["adaptive"].append(squares(shown))
                inside = [(low[S] - 1e-9 <= true[S]) & (true[S] <= high[S] + 1e-9) for S in true]
                covered.append(np.mean(np.concatenate([held.ravel() for held in inside])))
        con.close()
    adapted = " | | | | "
    if took:
        figures = f"{np.mean(made_up_errors):.4f} | {_of(squared['adaptive'], squared['unbiased'])}"
        adapted = f"{figures} | {np.mean(covered):.3f} | {planned:.1f} | {np.median(took):.1f}"
    fixed = " | | | | "
    if seconds:
        shown_errors = " | ".join(f"{np.mean(errors[kind]):.4f}" for kind in ("unbiased", "each", "feasible"))
        fixed = f"{shown_errors} | {_of(squared['feasible'], squared['unbiased'])} | {np.median(seconds):.1f}"
    numbers = sum(prod(sizes[i] for i in S) for S in sets)
    return f"| {case.title} | {case.objective} | {epsilon:g} | {numbers:,} | {fixed} | {adapted} |"


if __name__ == "__main__":
    main()
