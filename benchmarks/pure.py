"""How far is pure epsilon from Laplace noise alone, and from the least that any noise of it could have?

    python benchmarks/pure.py [--quick] [--write] [--more BATCHES]

Errors are total squared errors of strategies over the singular value bound, the privacy factor 2 / epsilon^2 left out
(of the filters the errors themselves). "Laplace" is ``select(W, noise="laplace")``, "pure" is ``noise="pure"``: the
better of that and noise in blocks. "of Laplace" is the Laplace error over a lower bound of all Laplace strategies
(``bounds.laplace_bound``), "of any" the pure error over one of all noise by a norm (``bounds.pure_bound``).

"Persons by groups" are counts of persons each of whom is in at most so many groups, with noise of the gauge of 0/1
patterns. ``--more``: random batches of SQL, each with one more statement: is a plan improved by asking more?

The table of ranges tries three ways to noise of the hull of their columns, which blocks do not reach: rows turned
freely in blocks of random sizes, all cells as starts, and the same with a hundred starts.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import record
from report import Report
from scipy import linalg, sparse

import dpsql
from dpsql import bounds, strategy, workload
from dpsql.strategies.pure import norm_blocks
from dpsql.workloads.families.contributions import Contributions, Part
from dpsql.workloads.families.matrix import Workload

SEED = 20_260_101


def filters(m: int) -> workload.Workload:
    """m overlapping conditions over all combinations of them."""
    return workload.from_matrix(np.array(list(itertools.product((0, 1), repeat=m))).T)


def signs(m: int, n: int) -> workload.Workload:
    return workload.from_matrix(np.random.default_rng(SEED).choice([-1, 1], size=(m, n)))


def pairs(d: int) -> workload.Marginals:
    return workload.marginals([2] * d, 2)


def cases(quick: bool) -> list[tuple[str, workload.Workload | workload.Marginals, str]]:
    """(name, workload, figure aimed at)."""
    found = [(f"{m} overlapping filters", filters(m), aim) for m, aim in ((4, "14.0"), (6, "36.1"), (10, "130"))]
    found += [("6 rows of +-1 over 400 cells", signs(6, 400), "1.6")]
    found += [
        (f"{m} random ranges over 256", workload.random_ranges(m, 256, 1), aim) for m, aim in ((10, "2.7"), (20, "3.4"))
    ]
    found += [("WRelated(128, 512), s = 26", workload.wrelated(128, 512, 26, SEED), "5")]
    found += [("AllRange(256)", workload.all_range(256), "3.72"), ("Prefix(256)", workload.prefix(256), "")]
    found += [(f"pairs of {d} binary columns", pairs(d), aim) for d, aim in ((16, "22.7"), (30, "70.8"))]
    if not quick:
        found += [("pairs of 100 binary columns", pairs(100), "745")]
        found += [("single counts of 200 binary columns", workload.marginals([2] * 200, 1), "34.5")]
        found += [
            ("pairs of 12 binary columns and of 3, 5, 10 values", workload.marginals([2] * 12 + [3, 5, 10], 2), "")
        ]
    return found


def compared(report: Report, quick: bool) -> dict[str, tuple[float, float]]:
    """The table; the Laplace and the pure error of each workload."""
    rows = []
    for name, W, aim in cases(quick):
        began = time.process_time()
        laplace, pure = (strategy.select(W, noise=noise) for noise in ("laplace", "pure"))
        seconds = time.process_time() - began
        svd = 1.0 if "filters" in name else bounds.svd_bound(W)
        below = laplace.expected / bounds.laplace_bound(W), pure.expected / bounds.pure_bound(W)
        sizes = ", ".join(map(str, pure.blocks[:4])) + (", ..." if len(pure.blocks) > 4 else "")
        rows.append((name, laplace.expected / svd, pure.expected / svd, aim, pure.method, sizes, *below, seconds))
    head = ("workload", "Laplace", "pure", "aimed at", "method", "blocks", "of Laplace", "of any", "CPU s")
    report.table("Pure epsilon", head, rows)
    return {row[0]: (row[1], row[2]) for row in rows}


def figures(errors: dict[str, tuple[float, float]]) -> list[record.Figure]:
    """What is held against the figures aimed at: each line of them, at most a hundredth above its aim."""

    def figure(key: str, what: str, names: list[str], aims: tuple[float, ...]) -> record.Figure:
        laplace = ", ".join(f"{errors[name][0]:.4g}" for name in names)
        pure = [errors[name][1] for name in names]
        return record.Figure(
            key,
            f"{what} (Laplace: {laplace})",
            ", ".join(f"{error:.4g}" for error in pure),
            ", ".join(f"{aim:g}" for aim in aims),
            all(error <= 1.01 * aim for error, aim in zip(pure, aims, strict=True)),
        )

    binary, over = [f"pairs of {d} binary columns" for d in (16, 30, 100)], "error over the singular value bound"
    return [
        figure(
            "pure-filters",
            "4, 6, 10 overlapping filters, pure: squared error",
            [f"{m} overlapping filters" for m in (4, 6, 10)],
            (14.0, 36.1, 130),
        ),
        figure("pure-binary", f"pairs of 16, 30, 100 binary columns: {over}", binary, (22.7, 70.8, 745)),
        figure(
            "pure-ranges",
            "10 and 20 random ranges over 256",
            [f"{m} random ranges over 256" for m in (10, 20)],
            (2.7, 3.4),
        ),
        figure("pure-related", "WRelated(128, 512), s = 26", ["WRelated(128, 512), s = 26"], (5,)),
    ]


PERSONS = (
    *((4, 4, "20.0", 14.0), (12, 12, "303.5", 210.0), (13, 13, "606.6", 260.0), (50, 50, "26,152", 11_483.0)),
    *((12, 3, "108", 80.5), (50, 10, "5,000", 3_777.0)),
)
"""(groups, groups that one person is in at most, error before there was noise for patterns, error aimed at)."""


def persons(report: Report) -> record.Figure:
    """Each case as a line of the report; all errors as one figure, each at most 1.01 times its aim."""
    rows = []
    for groups, most, before, aim in PERSONS:
        part = Part(sparse.csc_array(np.eye(groups, dtype=np.int64)), 1, most)
        units = Contributions(((part,),), groups)
        W = Workload.from_rows(
            np.eye(groups, dtype=np.int64), np.ones(groups), contributions=units.columns, units=units
        )
        began = time.process_time()
        pure = strategy.select(W, noise="pure")
        rows.append((f"{groups}, at most {most}", before, pure.expected, aim, time.process_time() - began))
    report.table("Persons by groups", ("groups", "before", "error", "aimed at", "CPU s"), rows)
    return record.Figure(
        "pure-persons",
        "distinct persons by 4, 12, 13, 50 groups, and at most 3 of 12, 10 of 50, pure, in 2 / epsilon^2: "
        "squared error",
        ", ".join(f"{row[2]:,.6g}" for row in rows),
        ", ".join(f"{row[3]:,.6g}" for row in rows),
        all(row[2] <= 1.01 * row[3] for row in rows),
    )


def random_policy(rng: random.Random) -> str:
    wards, rows, nulls = rng.choice([3, 4, 6, 12]), rng.choice([1, 2, 3, 6, 12]), rng.choice(["false", "true"])
    cap = rng.choice([None, None, *(most for most in (2, 3) if most <= min(rows, wards))])
    values = ", ".join(f"'w{i}'" for i in range(wards))
    return f"""dataset = "more-1"
[budget]
epsilon = 4.0
[tables.visits]
unit = "person"
max_rows_per_unit = {rows}
{"" if cap is None else f'at_most = [{{ groups = {cap}, per = "ward" }}]'}
[tables.visits.columns]
ward = {{ nulls = {nulls}, values = [{values}] }}
sex = {{ nulls = {nulls}, values = ["f", "m"] }}
age = {{ nulls = {nulls}, lower = 0, upper = 99 }}
person = {{ nulls = false }}
"""


def random_statements(rng: random.Random, count: int) -> list[str]:
    """Different counts of visits or persons by groups of some of the rows."""
    found: dict[str, None] = {}
    while len(found) < count:
        number = rng.choice(["COUNT(*)", "COUNT(DISTINCT person)", "COUNT(DISTINCT person)"])
        keys = ", ".join(rng.choice([(), ("ward",), ("ward",), ("sex",), ("ward", "sex")]))
        where = rng.choice(["", "", "", " WHERE age >= 65", " WHERE sex = 'f'"])
        shown, by = (f"{keys}, ", f" GROUP BY {keys}") if keys else ("", "")
        found[f"SELECT {shown}{number} AS n FROM visits{where}{by}"] = None
    return [f"CREATE VIEW v{place} AS {one}" for place, one in enumerate(found)]


def asked_more(report: Report, batches: int) -> None:
    """Of each batch the errors of its columns over those which they have beside one more statement.

    All together by the objective that the batch was planned by: the mean squared error of each column over what it has
    one by one.
    """
    data = duckdb.connect()
    data.execute("CREATE TABLE visits (person INT, ward VARCHAR, sex VARCHAR, age INT)")
    one, all_together = [], []
    for number in range(batches):
        rng = random.Random(number)
        with tempfile.TemporaryDirectory() as folder:
            (policy := Path(folder) / "policy.toml").write_text(random_policy(rng))
            statements = random_statements(rng, rng.choice([1, 1, 2, 3]) + 1)
            with dpsql.connect(data, policy=policy, ledger=Path(folder) / "l.ledger") as con:
                fewer, more = (con.plan(";".join(some), epsilon=0.5) for some in (statements[:-1], statements))
                alone = [fewer.gain[name]["n"] ** 2 * np.mean(np.square(fewer.stderr[name])) for name in fewer.stderr]
        each = [[np.mean(np.square(plan.stderr[name])) for name in fewer.stderr] for plan in (fewer, more)]
        squares = np.array(each) / np.array(alone)
        one.append(float((squares[0] / squares[1]).max()) ** 0.5)
        all_together.append(float(squares[0].mean() / squares[1].mean()) ** 0.5)
        print(number, f"{one[-1]:.4f} {all_together[-1]:.4f}", file=sys.stderr)
    rows = [
        (name, f"{max(found):.4f}", sum(ratio > 1.01 for ratio in found))
        for name, found in (
            ("the old column that gains most", one),
            ("all old columns, by their objective", all_together),
        )
    ]
    head = ("errors of a batch over those beside one more statement", "worst", "above 1.01")
    report.table(f"{batches} random batches, each with one more statement", head, rows)


def tried(report: Report, starts: int) -> None:
    """Random ranges, with more room than a selection has."""
    rows = []
    for m in (10, 20):
        W = workload.random_ranges(m, 256, 1)
        svd, M = bounds.svd_bound(W), W.matrix()
        Y = np.unique(M[:, M.any(axis=0)], axis=1)
        rng = np.random.default_rng(SEED)
        turned, cells = np.inf, np.inf
        for _ in range(starts):
            sizes = np.bincount(rng.integers(0, rng.integers(1, m + 1), size=m))
            blocks = tuple(int(size) for size in sizes if size)
            C = linalg.qr(rng.standard_normal((m, m)))[0] @ np.linalg.inv(np.real(linalg.sqrtm(Y @ Y.T)))
            draft = norm_blocks.Draft(C, blocks, norm_blocks.error_of(np.eye(m), C, Y, blocks))
            turned = min(turned, norm_blocks._turned(np.eye(m), Y, draft, 120, np.inf, np.inf).error)
            N = Y.shape[1]
            G, root = Y.T @ Y, np.eye(N) + 0.1 * rng.standard_normal((N, N))
            sizes = np.bincount(rng.integers(0, N, size=N))
            blocks = tuple(int(size) for size in sizes if size)
            draft = norm_blocks.Draft(root, blocks, norm_blocks.error_of(G, root, np.eye(N), blocks))
            cells = min(cells, norm_blocks._turned(G, np.eye(N), draft, 120, np.inf, np.inf).error)
        laplace, pure = (strategy.select(W, noise=noise).expected for noise in ("laplace", "pure"))
        rows.append((f"{m} ranges", *(error / svd for error in (laplace, pure, turned, cells))))
    head = ("workload", "Laplace", "selected", f"rows turned, {starts} starts", f"cells turned, {starts} starts")
    report.table("Random ranges, tried further", head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--more", type=int, default=0, metavar="BATCHES")
    writes = record.requested(sys.argv)
    given = parser.parse_args()
    quick, report = given.quick, Report()
    if given.more:
        asked_more(report, given.more)
        return
    by_groups = persons(report)
    if writes:
        record.write("pure", [by_groups])
    errors = compared(report, quick)
    if writes and not quick:
        record.write("pure", figures(errors))
    tried(report, 10 if quick else 100)


if __name__ == "__main__":
    main()
