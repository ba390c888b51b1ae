"""Claim: one batch at a total of epsilon 1 has a fraction of the error of paying query by query.

    python benchmarks/batch_error.py [releases] [--write]

50 random ranges over the minute of day, counts by month, by carrier and by month x origin, and
SUM(distance) by carrier, on 336,776 flights: root mean squared error by family over many releases,
pure and with delta 1e-9, beside naive Laplace noise at epsilon / 55 a query in the same run.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import data
import duckdb
import numpy as np
import record

import dpsql

SEED = 2013
FAMILIES = ("ranges", "month", "carrier", "month x origin", "distance")
COUNTED = FAMILIES[:-1]
BEFORE = dict(zip(COUNTED, (11.2, 10.7, 11.2, 6.2), strict=True))  # as planned before noise in blocks


def batch(ranges: int = 50, seed: int = SEED) -> str:
    """The benchmark's statements; ``seed`` draws the two ends of every range."""
    source = random.Random(seed)
    statements = []
    for _ in range(ranges):
        low, high = sorted(source.sample(range(1440), 2))
        statements.append(f"SELECT COUNT(*) AS n FROM flights WHERE minute BETWEEN {low} AND {high}")
    statements += [
        "CREATE OR REPLACE VIEW month AS SELECT month, COUNT(*) AS n FROM flights GROUP BY month",
        "CREATE OR REPLACE VIEW carrier AS SELECT carrier, COUNT(*) AS n FROM flights GROUP BY carrier",
        "CREATE OR REPLACE VIEW month_origin AS "
        "SELECT month, origin, COUNT(*) AS n FROM flights GROUP BY month, origin",
        "CREATE OR REPLACE VIEW distance AS SELECT carrier, SUM(distance) AS s FROM flights GROUP BY carrier",
    ]
    return ";\n".join(statements)


def policy(rows: int | None = None) -> dpsql.Policy:
    """The flights policy over the table of ``rows`` rows."""
    text = (Path(__file__).parent / "flights.toml").read_text()
    source = data.flights_path(rows)
    return dpsql.Policy.parse(text.replace("data/flights.parquet", str(source)))


def family(name: str) -> str:
    """The family of a result of the batch."""
    if name.startswith("q"):
        return "ranges"
    return {"month_origin": "month x origin"}.get(name, name)


def exact_answers(sql: str) -> dict[str, np.ndarray]:
    """What DuckDB answers, by result, rows sorted by key."""
    connection = duckdb.connect()
    connection.execute(f"CREATE OR REPLACE VIEW flights AS SELECT * FROM read_parquet('{data.flights_path()}')")
    answers, unnamed = {}, 0
    for statement in sql.split(";\n"):
        name, _, select = statement.partition(" AS SELECT ")
        if select:
            name, select = name.removeprefix("CREATE OR REPLACE VIEW "), "SELECT " + select
        else:
            unnamed += 1
            name, select = f"q{unnamed}", statement
        rows = sorted(connection.execute(select).fetchall(), key=lambda row: row[:-1])
        answers[name] = np.array([float(row[-1]) for row in rows])
    return answers


def answers_of(release: dpsql.Release) -> dict[str, np.ndarray]:
    """The released numbers, by result, rows sorted by key."""
    found = {}
    for name in release.views:
        result = release[name]
        keys = [c for c in result.columns if c in {"month", "carrier", "origin"}]
        place = [result.columns.index(c) for c in keys]
        value = next(i for i, c in enumerate(result.columns) if c in {"n", "s"})
        rows = sorted(result.fetchall(), key=lambda row: tuple(row[i] for i in place))
        found[name] = np.array([row[value] for row in rows])
    return found


def root_mean_square(errors: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Root mean squared error by family, over releases and numbers."""
    squares: dict[str, list[np.ndarray]] = {name: [] for name in FAMILIES}
    for release in errors:
        for name, error in release.items():
            squares[family(name)].append(error**2)
    return {name: float(np.sqrt(np.mean(np.concatenate(found)))) for name, found in squares.items()}


def naive(exact: dict[str, np.ndarray], releases: int) -> dict[str, float]:
    """Laplace noise at epsilon / 55 a query; a GROUP BY is one query, a distance adds up to 5000."""
    generator = np.random.default_rng(SEED)
    scale = {name: 55.0 * (5000.0 if name == "distance" else 1.0) for name in exact}
    draws = [
        {name: generator.laplace(scale=scale[name], size=len(answer)) for name, answer in exact.items()}
        for _ in range(releases)
    ]
    return root_mean_square(draws)


def figures(
    rows: dict[str, dict[str, float]], gaussian: bool, gap: float | None, planned: dict[str, float]
) -> list[record.Figure]:
    """The figures of one kind of noise: the last of ``rows``, beside the first, which is naive."""

    def shown(values: dict[str, float]) -> str:
        return ", ".join(f"{values[name]:.1f}" for name in COUNTED)

    naive_errors, errors = next(iter(rows.values())), list(rows.values())[-1]
    over = sorted(naive_errors[name] / errors[name] for name in COUNTED)
    what = f"root mean squared error of {', '.join(COUNTED)}"
    if gaussian:
        said = f"{100 * gap:.2f} %" if gap is not None else "none"
        best = "total squared error of the Gaussian plan above the least of any Gaussian matrix mechanism, at most"
        return [
            record.Figure("flights-gaussian", "the same at epsilon 1, delta 1e-9, Gaussian", shown(errors)),
            record.Figure("flights-certificate", best, said),
        ]
    less = 1 - float(np.mean([planned[name] / BEFORE[name] for name in COUNTED]))
    return [
        record.Figure(
            "flights-pure",
            f"54 statements over 336,776 flights, epsilon 1, pure: {what}",
            shown(errors),
            "14, 12, 12, 12 as planned",
            all(planned[name] <= most for name, most in zip(COUNTED, (14, 12, 12, 12), strict=True)),
        ),
        record.Figure(
            "flights-planned",
            f"the errors that the pure plan states before the run: {what.removeprefix('root mean squared error of ')}",
            shown(planned),
            f"10 % below {shown(BEFORE)} on the mean",
            less >= 0.1,
            f"{100 * less:.1f} % less; eight times the work gives the same total",
        ),
        record.Figure(
            "flights-laplace", "the same, query by query: each with Laplace noise at epsilon / 55", shown(naive_errors)
        ),
        record.Figure(
            "flights-gain",
            "errors query by query, divided by those of the pure plan",
            f"{over[0]:.1f} to {over[-1]:.1f}",
        ),
    ]


def main() -> None:
    """Print the table."""
    writes = record.requested(sys.argv)
    releases = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    sql = batch()
    exact = exact_answers(sql)
    rows = {"naive Laplace, epsilon / 55 each": naive(exact, releases)}
    with tempfile.TemporaryDirectory() as folder:
        connection = dpsql.connect(policy=policy(), ledger=Path(folder) / "flights.ledger")
        for title, budget in (
            ("epsilon 1, pure", {"epsilon": 1}),
            ("epsilon 1, delta 1e-9, Gaussian", {"epsilon": 1, "delta": 1e-9}),
        ):
            if "delta" in budget:
                # The better of the two is pure here; a policy without a pure account shows the Gaussian.
                text = (Path(__file__).parent / "flights.toml").read_text()
                text = "\n".join(line for line in text.splitlines() if not line.startswith("pure_epsilon"))
                held = dpsql.Policy.parse(text.replace("data/flights.parquet", str(data.flights_path())))
                connection = dpsql.connect(policy=held, ledger=Path(folder) / "gaussian.ledger")
            plan = connection.plan(sql, objective="total", **budget)
            errors = []
            for _ in range(releases):
                answers = answers_of(connection.run(plan, fresh=True))
                errors.append({name: answers[name] - exact[name] for name in exact})
            rows[f"dpsql, {title}: {plan.strategy.method}"] = root_mean_square(errors)
            expected: dict[str, list[np.ndarray]] = {name: [] for name in FAMILIES}
            for name, error in plan.stderr.items():
                expected[family(name)].append(error**2)
            rows["... as planned"] = {n: float(np.sqrt(np.mean(np.concatenate(e)))) for n, e in expected.items()}
            print(f"{title}: gap {plan.gap}, measured over {releases} releases; planned errors:")
            planned = rows.pop("... as planned")
            print("  ", {n: round(v, 2) for n, v in planned.items()})
            if writes:
                record.write("batch_error", figures(rows, "delta" in budget, plan.gap, planned))
    print()
    print(f"| root mean squared error, {releases} releases | " + " | ".join(FAMILIES) + " |")
    print("|---|" + "---:|" * len(FAMILIES))
    for title, values in rows.items():
        print(f"| {title} | " + " | ".join(f"{values[name]:,.1f}" for name in FAMILIES) + " |")


if __name__ == "__main__":
    main()
