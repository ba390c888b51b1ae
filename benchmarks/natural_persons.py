"""Claim: a natural question about persons is planned in seconds, with its certificate, whatever its shape.

    python benchmarks/natural_persons.py [words of a question ...] [--pure] [--write]

Thirty-six questions over patients and their visits, at most five of each patient: sums, averages, deviations, medians
and extremes of visits; the same of what is computed for each patient; joins, distinct patients, EXISTS and HAVING.
Epsilon 1, delta 1e-7, or with ``--pure`` epsilon 1 alone. CPU seconds of planning in one thread, no row read; the error
is the mean standard error of all numbers, and the gap by how much squared errors may exceed the least of any Gaussian
matrix mechanism, where that is known.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["DPSQL_CACHE"] = "off"

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import record

import dpsql

POLICY = """
dataset = "natural-persons"
[budget]
epsilon = 1000.0
{delta}
[tables.p]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.p.columns]
id = {{}}
sex = {{ values = ["f", "m"], nulls = false }}
born = {{ lower = 1920, upper = 2024 }}
[tables.v]
unit = "pid"
max_rows_per_unit = 5
references = {{ pid = "p.id" }}
expected_rows = 100_000
[tables.v.columns]
pid = {{}}
k = {{ values = [0, 1, 2, 3, 4, 5], nulls = false }}
day = {{ lower = 2023-01-01, upper = 2024-12-31 }}
age = {{ lower = 0, upper = 120 }}
cost = {{ lower = 0, upper = 5000, step = 0.01 }}
w = {{ lower = 0, upper = 300 }}
flag = {{ values = [true, false], nulls = false }}
"""

TABLES = """
CREATE TABLE p AS SELECT i::INTEGER AS id, CASE WHEN i % 2 = 0 THEN 'f' ELSE 'm' END AS sex,
    (1920 + i % 105)::INTEGER AS born FROM range(20000) t(i);
CREATE TABLE v AS SELECT (i % 20000)::INTEGER AS pid, (i % 6)::INTEGER AS k,
    CAST(DATE '2023-01-01' + (i % 731)::INTEGER AS DATE) AS day, (20 + i % 60)::INTEGER AS age,
    ((i * 37) % 500001) / 100.0::DOUBLE AS cost, (i % 200)::INTEGER AS w, i % 3 = 0 AS flag FROM range(100000) t(i)
"""

UNIT = "(SELECT pid, {} AS n FROM v GROUP BY pid)"
QUESTIONS = {
    "extremes of a patient's average": f"SELECT COUNT(n), AVG(n), MAX(n) FROM {UNIT.format('AVG(age)')}",
    "median and average by ward": "SELECT k, MEDIAN(cost), AVG(cost) FROM v GROUP BY k",
    "median and deviation by ward": "SELECT k, MEDIAN(cost), STDDEV(cost) FROM v GROUP BY k",
    "regression": "SELECT dp_regression(cost, age, w, flag) FROM v",
    "average and median of patients' sums by sex": (
        "SELECT sex, AVG(s), MEDIAN(s) FROM p JOIN (SELECT pid, SUM(cost) AS s FROM v GROUP BY pid) u "
        "ON u.pid = p.id GROUP BY sex"
    ),
    "visits and patients by ward": "SELECT k, COUNT(*), AVG(cost), COUNT(DISTINCT pid) FROM v GROUP BY k",
    "visits": "SELECT COUNT(*) FROM v",
    "patients": "SELECT COUNT(DISTINCT pid) FROM v",
    "visits by ward": "SELECT k, COUNT(*) FROM v GROUP BY k",
    "patients by ward": "SELECT k, COUNT(DISTINCT pid) FROM v GROUP BY k",
    "patients by ward and flag": "SELECT k, flag, COUNT(DISTINCT pid) FROM v GROUP BY k, flag",
    "sum by ward and month": "SELECT k, date_trunc('month', day) AS m, SUM(cost) FROM v GROUP BY k, m",
    "visits by day": "SELECT day, COUNT(*) FROM v GROUP BY day",
    "visits by month and day": (
        "SELECT date_trunc('month', day) AS m, COUNT(*) FROM v GROUP BY m; SELECT day, COUNT(*) FROM v GROUP BY day"
    ),
    "patients by month": "SELECT date_trunc('month', day) AS m, COUNT(DISTINCT pid) FROM v GROUP BY m",
    "quartiles of cost": "SELECT QUANTILE_CONT(cost, 0.25), MEDIAN(cost), QUANTILE_CONT(cost, 0.75) FROM v",
    "quartiles of some rows": "SELECT QUANTILE_CONT(cost, 0.25), MEDIAN(cost) FROM v WHERE age >= 65",
    "extremes of age": "SELECT MIN(age), MAX(age), AVG(age) FROM v",
    "deviation of cost by ward": "SELECT k, STDDEV(cost), AVG(cost) FROM v GROUP BY k",
    "correlation": "SELECT CORR(cost, w), COVAR_SAMP(cost, age) FROM v",
    "slope by ward": "SELECT k, REGR_SLOPE(cost, w) FROM v GROUP BY k",
    "visits by sex": "SELECT sex, COUNT(*), SUM(cost) FROM v JOIN p ON v.pid = p.id GROUP BY sex",
    "patients and visits by sex": (
        "SELECT sex, COUNT(*) FROM p GROUP BY sex; SELECT sex, COUNT(*) FROM v JOIN p ON v.pid = p.id GROUP BY sex"
    ),
    "five statements over two tables": (
        "SELECT COUNT(*) FROM p; SELECT sex, COUNT(*) FROM p GROUP BY sex; SELECT COUNT(*) FROM v; "
        "SELECT k, COUNT(*) FROM v GROUP BY k; SELECT sex, k, COUNT(*) FROM v JOIN p ON v.pid = p.id GROUP BY sex, k"
    ),
    "patients by decade of birth": "SELECT born // 10 AS d, COUNT(*) FROM p GROUP BY d",
    "visits by decade of birth": "SELECT born // 10 AS d, COUNT(*) FROM v JOIN p ON v.pid = p.id GROUP BY d",
    "patients by their number of visits": f"SELECT n, COUNT(*) FROM {UNIT.format('COUNT(*)')} GROUP BY n",
    "average number of visits": f"SELECT AVG(n), STDDEV(n) FROM {UNIT.format('COUNT(*)')}",
    "median of patients' largest cost": f"SELECT MEDIAN(n) FROM {UNIT.format('MAX(cost)')}",
    "average of patients' latest age": f"SELECT AVG(n), MAX(n) FROM {UNIT.format('MAX(age)')}",
    "patients with a flagged visit": (
        "SELECT COUNT(*) FROM p WHERE EXISTS (SELECT 1 FROM v WHERE v.pid = p.id AND flag)"
    ),
    "patients with three visits or more": (
        "SELECT COUNT(*) FROM (SELECT pid FROM v GROUP BY pid HAVING COUNT(*) >= 3) u"
    ),
    "thresholds of cost": "; ".join(f"SELECT COUNT(*) FROM v WHERE cost > {x}" for x in range(0, 5000, 250)),
    "patients over thresholds of age": "; ".join(
        f"SELECT COUNT(DISTINCT pid) FROM v WHERE age >= {x}" for x in range(20, 100, 10)
    ),
    "cube of ward, flag and sex": (
        "SELECT k, flag, sex, COUNT(*) FROM v JOIN p ON v.pid = p.id GROUP BY CUBE (k, flag, sex)"
    ),
    "sum and patients by month": (
        "SELECT date_trunc('month', day) AS m, SUM(cost), COUNT(DISTINCT pid) FROM v GROUP BY m"
    ),
}
GOALS = {False: 1.0, True: 2.0}


@dataclass(frozen=True)
class Answer:
    """What the planning of one question took; ``refusal`` is the first line of the error of one that was refused."""

    name: str
    cpu: float
    error: float = 0.0
    gap: float | None = None
    refusal: str = ""

    def line(self) -> str:
        """One line of the table."""
        if self.refusal:
            return f"| {self.name} | {self.cpu:.2f} | | {self.refusal} |"
        gap = "" if self.gap is None else f"{100 * self.gap:.2f} %"
        return f"| {self.name} | {self.cpu:.2f} | {self.error:,.4g} | {gap} |"


def measure(connection: dpsql.Connection, name: str, pure: bool) -> Answer:
    """Plan one question."""
    cpu = time.process_time()
    try:
        plan = connection.plan(QUESTIONS[name], epsilon=1, delta=None if pure else 1e-7)
    except dpsql.Error as error:
        return Answer(name, time.process_time() - cpu, refusal=str(error).splitlines()[0])
    return Answer(name, time.process_time() - cpu, float(np.mean(plan.errors)), plan.gap)


def figures(answers: list[Answer], pure: bool) -> list[record.Figure]:
    """The slowest, how many are within the goal, and the widest certificate."""
    kind, goal = ("pure", GOALS[True]) if pure else ("Gaussian", GOALS[False])
    slowest = max(answers, key=lambda answer: answer.cpu)
    refused = [answer.name for answer in answers if answer.refusal]
    quick = sum(answer.cpu <= goal for answer in answers)
    found = [
        record.Figure(
            f"natural-persons-{kind.lower()}-seconds",
            f"the slowest to plan of {len(answers)} questions about persons, {kind}; within {goal:g} s",
            f"{slowest.cpu:.1f} CPU s ({slowest.name}); {quick} of {len(answers)}",
            f"{goal:g} s",
            slowest.cpu <= goal,
        ),
        record.Figure(
            f"natural-persons-{kind.lower()}-refused",
            f"questions about persons that are refused, {kind}",
            ", ".join(refused) or "none",
            "none",
            not refused,
        ),
    ]
    gaps = [(np.inf if answer.gap is None else answer.gap, answer.name) for answer in answers if not answer.refusal]
    if not pure:
        widest, name = max(gaps)
        near = sum(gap <= 0.01 for gap, _ in gaps)
        found.append(
            record.Figure(
                "natural-persons-gap",
                "the widest certificate of questions about persons; certified within 1 %",
                f"{'none' if np.isinf(widest) else f'{100 * widest:.2f} %'} ({name}); {near} of {len(gaps)}",
                "1 %",
                bool(widest <= 0.01),
            )
        )
    return found


def main() -> None:
    """Print the table."""
    writes = record.requested(sys.argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--pure", action="store_true")
    options = parser.parse_args()
    chosen = [name for name in QUESTIONS if all(word in name for word in options.words)]
    print("| question | CPU s of the plan | mean standard error | gap |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        with duckdb.connect(f"{folder}/persons.duckdb") as made:
            made.execute(TABLES)
        policy = Path(folder) / "persons.toml"
        policy.write_text(POLICY.format(delta="" if options.pure else "delta = 1e-6"))
        connection = dpsql.connect(f"{folder}/persons.duckdb", policy=policy, ledger=f"{folder}/persons.ledger")
        connection.plan("SELECT COUNT(*) FROM p", epsilon=1, delta=None if options.pure else 1e-7)  # loads libraries
        answers = []
        for name in chosen:
            answers.append(measure(connection, name, options.pure))
            print(answers[-1].line(), flush=True)
    if writes and len(chosen) == len(QUESTIONS):
        record.write("natural_persons_pure" if options.pure else "natural_persons", figures(answers, options.pure))


if __name__ == "__main__":
    main()
