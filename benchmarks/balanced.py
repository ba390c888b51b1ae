"""Claim: under the balanced objective no result column comes out worse than one by one, and the mean gain is larger.

    python benchmarks/balanced.py [--batches K]

Batches of 2 to 5 generated statements with COUNT, SUM, AVG and COUNT(DISTINCT), by up to two keys, over rows and over
units of at most 4 rows, with Gaussian noise and with pure epsilon: the standard error of each column (of its parts, for
AVG) over the standard error that it would have one by one at an equal share of the budget, for the objectives "total"
and "balanced". "worse" counts columns by more than 2 %.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import batch_error
import data
import duckdb
import numpy as np
from report import Report

import dpsql

KEYS = ("ward", "sex", "month", "missed", "age // 10")
AGGREGATES = ("COUNT(*)", "COUNT(*)", "SUM(cost)", "AVG(cost)", "SUM(stay)")
CONDITIONS = ("", "", "", " WHERE age BETWEEN 20 AND 60", " WHERE missed", " WHERE cost > 100")
CREATED = (
    "CREATE TABLE visits (pid INTEGER, ward INTEGER, sex VARCHAR, month INTEGER, age INTEGER, missed BOOLEAN, "
    "cost INTEGER, stay DOUBLE)"
)
UNITS = {"rows": 'unit = "row"', "units": 'unit = "pid"\nmax_rows_per_unit = 4'}
POLICY = """
dataset = "balanced"
[budget]
{budget} = 1000000.0
[tables.visits]
{unit}
[tables.visits.columns]
ward = {{ lower = 1, upper = 6, nulls = false }}
sex = {{ values = ["f", "m"], nulls = false }}
month = {{ lower = 1, upper = 12, nulls = false }}
age = {{ lower = 0, upper = 99, nulls = false }}
missed = {{ nulls = false }}
cost = {{ lower = 0, upper = 1000, nulls = false }}
stay = {{ lower = -5, upper = 40 }}
"""
BUDGETS: dict[str, dict[str, float]] = {"zCDP, rho 0.5": {"rho": 0.5}, "pure, epsilon 1": {"epsilon": 1.0}}
OBJECTIVES = ("total", "balanced")


def statement(rng: random.Random, unit: str) -> str:
    keys = rng.sample(KEYS, rng.choice([0, 1, 1, 1, 2]))
    possible = (*AGGREGATES, *(["COUNT(DISTINCT pid)"] if unit == "units" else []))
    asked = list(dict.fromkeys(rng.sample(possible, rng.choice([1, 1, 2]))))
    if "COUNT(DISTINCT pid)" in asked:
        asked = ["COUNT(DISTINCT pid)"]
    where = rng.choice(CONDITIONS)
    if "age // 10" in keys and "age" in where:
        where = ""
    shown = [f"{text} AS {kind}{i}" for kind, texts in (("k", keys), ("v", asked)) for i, text in enumerate(texts)]
    return f"SELECT {', '.join(shown)} FROM visits{where}" + (f" GROUP BY {', '.join(keys)}" if keys else "")


def batch(seed: int, unit: str) -> str:
    """Statements of one batch; none stands twice."""
    rng = random.Random(seed)
    return ";\n".join(dict.fromkeys(statement(rng, unit) for _ in range(rng.randint(2, 5))))


def beside(plan: dpsql.Plan) -> np.ndarray:
    """Mean squared errors of the measured columns over those one by one."""
    parts = [slice(span.start, span.stop) for span in plan.compiled.spans]
    ratios = [(plan.mean_square(part), plan.naive_square(part)) for part in parts]
    return np.array([mine / naive for mine, naive in ratios if naive > 0])


def connected(unit: str, budget: Mapping[str, float], folder: Path) -> dpsql.Connection:
    database = duckdb.connect()
    database.execute(CREATED)
    policy = dpsql.Policy.parse(POLICY.format(budget=next(iter(budget)), unit=UNITS[unit]))
    return dpsql.connect(database, policy=policy, ledger=folder / "balanced.ledger")


def figures(found: list[np.ndarray]) -> list[str]:
    """Of standard errors over those one by one, batch by batch: how many are worse, and what is gained."""
    every = np.concatenate(found)
    return [
        f"{every.size:,}",
        f"{100 * np.mean(every > 1.02):.1f} %",
        f"{100 * np.mean([one.max() > 1.02 for one in found]):.1f} %",
        f"{every.max():.2f}",
        f"{np.mean(1 / every):.2f}",
        f"{math.exp(-float(np.mean(np.log(every)))):.2f}",
        f"{1 / math.sqrt(float(np.mean(every**2))):.2f}",
    ]


HEAD = ["objective", "columns", "columns worse", "batches with such", "worst", "gain, mean", "geometric"]
HEAD += ["root mean square", "widest gap", "CPU seconds a plan"]


def line(con: dpsql.Connection, batches: Sequence[str], objective: str, budget: Mapping[str, float]) -> list[str]:
    found, took, widest = [], 0.0, None
    for sql in batches:
        began = time.process_time()
        plan = con.plan(sql, objective=objective, **budget)
        took += time.process_time() - began
        found.append(np.sqrt(beside(plan)))
        if plan.gap is not None:
            widest = max(widest or 0.0, plan.gap)
    gap = "-" if widest is None else f"{100 * widest:.2f} %"
    return [objective, *figures(found), gap, f"{took / len(batches):.2f}"]


def generated(report: Report, count: int) -> None:
    rows = []
    for unit in UNITS:
        batches = [batch(seed, unit) for seed in range(count)]
        for title, budget in BUDGETS.items():
            with tempfile.TemporaryDirectory() as folder:
                con = connected(unit, budget, Path(folder))
                rows += [[f"{unit}, {title}", *line(con, batches, name, budget)] for name in OBJECTIVES]
    report.table(f"Columns beside one by one, {count} generated batches", ["batches over", *HEAD], rows)


def real(report: Report) -> None:
    """The 54 statements over flights, and the examples over the health survey."""
    flights = (Path(batch_error.__file__).parent / "flights.toml").read_text()
    examples = Path(__file__).parents[1] / "sql_examples"
    survey = (examples / "rand_hie.toml").read_text().replace('source = "', f'source = "{examples}/')
    asked = {
        "flights": (flights, batch_error.batch()),
        "health survey": (survey, (examples / "rand_hie.sql").read_text()),
    }
    rows = []
    for name, (text, sql) in asked.items():
        for title, budget in BUDGETS.items():
            head, _, tables = text.partition("[tables")
            dataset = head.partition("[budget]")[0]
            policy = f"{dataset}[budget]\n{next(iter(budget))} = 1000000.0\n[tables{tables}"
            policy = policy.replace("data/flights.parquet", str(data.flights_path()))
            with tempfile.TemporaryDirectory() as folder:
                con = dpsql.connect(policy=dpsql.Policy.parse(policy), ledger=Path(folder) / "balanced.ledger")
                rows += [[f"{name}, {title}", *line(con, [sql], objective, budget)] for objective in OBJECTIVES]
    report.table("Columns beside one by one, batches over real tables", ["batch", *HEAD], rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=300, help="generated batches (default: 300)")
    given = parser.parse_args()
    os.environ["DPSQL_CACHE"] = "off"  # every plan is made anew
    report = Report()
    real(report)
    generated(report, given.batches)


if __name__ == "__main__":
    main()
