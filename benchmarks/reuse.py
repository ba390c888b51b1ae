"""Claim: what was released answers later questions, so most of a long series of questions costs nothing.

    python benchmarks/reuse.py [sessions] [line]

20 sessions of 10 queries each, one batch a query, on 336,776 flights, epsilon 0.1 a query. A session has a theme of two
columns; it begins with their cross table and goes on with drill-downs, parts, totals and averages of the theme, and now
and then with a question about something else. The same series several times: every query charged and answered by
itself, which is how tools without a memory are used; free where what was released gives at least the error that 0.1
would buy; free wherever what was released determines the answer, with whatever error; and the last at an epsilon a
charge that spends as much in all as the first. Printed: epsilon, charges avoided, root mean squared error of all counts
against DuckDB's exact answers, seconds; and the same when every question is asked once more at the end, free. ``line``
is one of the lines, 1 to 3, or 4: budgets found for wanted errors, alone and beside an earlier release, and the error
that 200,000 draws of their noise give.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import batch_error
import data
import duckdb
import numpy as np

import dpsql

SEED = 20
EPSILON = 0.1
VALUES = {
    "month": list(range(1, 13)),
    "day": list(range(1, 32)),
    "origin": ["EWR", "JFK", "LGA"],
    "carrier": ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"],
}
THEMES = [("month", "origin"), ("month", "carrier"), ("origin", "carrier"), ("day", "origin"), ("month", "day")]


def literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def some(source: random.Random, column: str) -> str:
    """A condition on a part of a column's values."""
    values = VALUES[column]
    if isinstance(values[0], int):
        low, high = sorted(source.sample(values, 2))
        return f"{column} BETWEEN {low} AND {high}"
    chosen = sorted(source.sample(values, source.randint(1, len(values) - 1)))
    return f"{column} IN ({', '.join(map(literal, chosen))})"


def every(column: str) -> str:
    """A condition that holds for all declared values: rows outside them are in no group of a cross table."""
    values = VALUES[column]
    if isinstance(values[0], int):
        return f"{column} BETWEEN {values[0]} AND {values[-1]}"
    return f"{column} IN ({', '.join(map(literal, values))})"


def session(source: random.Random) -> list[str]:
    """Ten queries about one theme; about one in ten asks for something else."""
    a, b = source.choice(THEMES)
    queries = [f"SELECT {a}, {b}, COUNT(*) AS n FROM flights GROUP BY {a}, {b}"]
    kinds = ("part", "drill", "total", "both", "other")
    for kind in source.choices(kinds, (3, 2, 2, 2, 1), k=9):
        one, two = source.sample((a, b), 2)
        if kind == "part":
            queries.append(f"SELECT COUNT(*) AS n FROM flights WHERE {some(source, one)} AND {every(two)}")
        elif kind == "drill":
            queries.append(f"SELECT {two}, COUNT(*) AS n FROM flights WHERE {some(source, one)} GROUP BY {two}")
        elif kind == "total":
            queries.append(f"SELECT {one}, COUNT(*) AS n FROM flights WHERE {every(two)} GROUP BY {one}")
        elif kind == "both":
            queries.append(f"SELECT COUNT(*) AS n FROM flights WHERE {some(source, one)} AND {some(source, two)}")
        else:
            queries.append(f"SELECT COUNT(*) AS n FROM flights WHERE dep_delay > {source.choice((0, 15, 60, 120))}")
    return queries


def counts(columns: list[str], rows: list[tuple[object, ...]]) -> dict[tuple[object, ...], float]:
    """n by the keys beside it."""
    at, keys = columns.index("n"), [i for i, name in enumerate(columns) if name in VALUES]
    return {tuple(row[i] for i in keys): float(row[at]) for row in rows}  # type: ignore[arg-type]


def squares(found: dict[tuple[object, ...], float], exact: dict[tuple[object, ...], float]) -> list[float]:
    return [(n - exact.get(key, 0.0)) ** 2 for key, n in found.items()]


def ask(con: dpsql.Connection, query: str, how: str, epsilon: float) -> dpsql.Release:
    if how == "free wherever it is known":
        try:
            return con.run(query)
        except dpsql.DataError:  # the releases do not determine it
            return con.run(query, epsilon=epsilon)
    return con.run(query, epsilon=epsilon, fresh=how == "every query charged")


def run(queries: list[str], exact: list[dict[tuple[object, ...], float]], how: str, epsilon: float) -> float:
    """One line of the table; the epsilon that was spent."""
    with tempfile.TemporaryDirectory() as folder:
        con = dpsql.connect(policy=batch_error.policy(), ledger=Path(folder) / "flights.ledger")
        began, charged, errors, first = time.perf_counter(), 0, [], []
        for query, truth in zip(queries, exact, strict=True):
            release = ask(con, query, how, epsilon)
            charged += release.cost > 0
            result = release["q1"]
            errors += squares(counts(list(result.columns), result.fetchall()), truth)
            first.append(stderr(result))
        took = time.perf_counter() - began
        spent = sum(entry.charge.amount for entry in con.releases())
        print(
            f"| {how} | {epsilon:.3g} | {charged} | {100 * (1 - charged / len(queries)):.0f} % | {spent:.1f} | "
            f"{np.sqrt(np.mean(errors)):.1f} | {took:.0f} |",
            flush=True,
        )
        if how == "every query charged":
            return float(spent)
        began, errors, worse, better = time.perf_counter(), [], 0, 0
        for query, truth, before in zip(queries, exact, first, strict=True):
            result = con.run(query)["q1"]  # no budget: everything that is known by now
            errors += squares(counts(list(result.columns), result.fetchall()), truth)
            after = stderr(result)
            better += any(new < old * 0.999 for new, old in zip(after, before, strict=True))
            worse += any(new > old * (1 + 1e-9) for new, old in zip(after, before, strict=True))
        took = time.perf_counter() - began
        assert sum(entry.charge.amount for entry in con.releases()) == spent
        print(
            f"| asked again at the end: {better} better, {worse} worse | | 0 | | | {np.sqrt(np.mean(errors)):.1f} | "
            f"{took:.0f} |",
            flush=True,
        )
        return float(spent)


def stderr(result: dpsql.Result) -> list[float]:
    at = list(result.columns).index("n_stderr")
    return [float(row[at]) for row in result.fetchall()]


def half_width(plan: dpsql.Plan, draws: int = 200_000) -> float:
    """The largest 95 % quantile of the absolute errors of a plan's numbers, by drawing its noise, in whole numbers."""
    source = np.random.default_rng(SEED)
    combined = getattr(plan.answers, "combined", None)
    if combined is None:
        seen = [(plan.noise, plan.strategy.shape[0])]
        weights = plan.answers.whole.toarray() / plan.compiled.common_steps * np.sqrt(plan.noise.variance)
    else:
        seen = [(one.noise, one.matrix.shape[0]) for one in combined.observed]
        weights = combined.weights
    total = np.zeros((weights.shape[0], draws))
    at = 0
    for noise, count in seen:
        for _ in range(count):
            size = float(noise.parameter)  # b, or sigma squared
            raw = source.normal(0, size**0.5, draws) if noise.kind == "gaussian" else source.laplace(0, size, draws)
            total += np.outer(weights[:, at], np.rint(raw) / float(noise.variance) ** 0.5)
            at += 1
    return float(np.quantile(np.abs(total), 0.95, axis=1).max())


def budgets() -> None:
    """Wanted errors, the budget found, and the error that its noise gives."""
    asked = "SELECT month, COUNT(*) AS n FROM flights WHERE origin IN ('EWR', 'JFK', 'LGA') GROUP BY month"
    print(
        "| objective | earlier releases | asked | budget | 95 % of errors within | off by |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        con = dpsql.connect(policy=batch_error.policy(), ledger=Path(folder) / "flights.ledger")
        for earlier in ("none", "month x origin at epsilon 0.008"):
            if earlier != "none":
                con.run("SELECT month, origin, COUNT(*) AS n FROM flights GROUP BY month, origin", epsilon=0.008)
            for objective in (None, "total", "max"):
                for measure, error in (("epsilon", 200.0), ("rho", 300.0)):
                    needed = con.budget_for(asked, max_error=error, objective=objective, measure=measure)
                    found = half_width(needed.plan)
                    print(
                        f"| {objective or 'least'} | {earlier} | {error:g} | {measure} {needed:.4g} | {found:.1f} | "
                        f"{100 * (found / error - 1):+.2f} % |",
                        flush=True,
                    )


def main() -> None:
    if sys.argv[2:] == ["4"]:
        budgets()
        return
    source = random.Random(SEED)
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    queries = [query for _ in range(sessions) for query in session(source)]
    connection = duckdb.connect()
    connection.execute(f"CREATE VIEW flights AS SELECT * FROM read_parquet('{data.flights_path()}')")
    exact = []
    for query in queries:
        held = connection.execute(query)
        exact.append(counts([str(d[0]) for d in held.description or []], held.fetchall()))
    print(f"{sessions} sessions, {len(queries)} queries, epsilon {EPSILON} each, seed {SEED}; the first session:\n")
    print("\n".join(f"    {query}" for query in queries[:10]))
    print(
        "\n| | epsilon a charge | charges | avoided | epsilon spent | RMSE of counts | s |"
        "\n|---|---|---|---|---|---|---|"
    )
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if chosen in (0, 1):
        run(queries, exact, "every query charged", EPSILON)
    if chosen in (0, 2):
        run(queries, exact, "free where as good as charged", EPSILON)
    if chosen in (0, 3):
        part = run(queries, exact, "free wherever it is known", EPSILON)
        run(queries, exact, "free wherever it is known", EPSILON * (EPSILON * len(queries)) / part)


if __name__ == "__main__":
    main()
