"""Claim: a natural question never hangs, is not refused for its shape, and its certificate is not loose.

    python benchmarks/natural.py [words of a question ...] [--rows 1000000] [--pure] [--persons] [--distinct] [--write]
    python benchmarks/natural.py [words of a question ...] --limits 1,2,5

Forty-eight questions that people in health, retail, transport and surveys ask, over made-up tables of a million rows,
unit = "row", declared bounds, Gaussian noise (epsilon 1, delta 1e-9): seconds of planning and of everything after
it, numbers, and the gap, that is by how much the error may exceed the least of any Gaussian matrix mechanism. With
``--pure`` noise is for epsilon alone, which has no such bound. With ``--persons`` rows are of persons with four each,
of whom at most ten count, and with ``--distinct`` every number of rows has the number of its persons beside it. Nothing
is kept between questions, and each is planned with a limit of 60 seconds.

With ``--limits`` nothing is run: each question is planned under each of these time limits, and the table has by how
much it passes them: CPU seconds over 1.2 limits and a second, at most 1 where a limit holds. Limits count CPU seconds
there, so that other programs of the machine do not count.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

if "--limits" in sys.argv:
    time.monotonic = time.process_time  # before dpsql reads it

import duckdb
import record

import dpsql

POLICY = """
dataset = "natural"
database = "{folder}/natural.duckdb"
[budget]
epsilon = 1000000.0
delta = 1e-5
[tables.people]
{unit}
expected_rows = 1_000_000
[tables.people.columns]
state = {{ lower = 0, upper = 49 }}
v = {{ lower = 0, upper = 1000 }}
day = {{ lower = 2015-01-01, upper = 2024-12-31 }}
age = {{ lower = 0, upper = 99 }}
sex = {{ values = ["f", "m"] }}
region = {{ lower = 0, upper = 8 }}
income = {{ lower = 0, upper = 200_000 }}
score = {{ lower = 0, upper = 20 }}
minute = {{ lower = 0, upper = 1439 }}
product = {{ lower = 1, upper = 40 }}
zip = {{ lower = 0, upper = 9999 }}
"""

TABLE = """
CREATE TABLE people AS SELECT
    CAST(hash(i) % 50 AS INTEGER) AS state, CAST(hash(i + 1e9) % 1001 AS INTEGER) AS v,
    CAST(DATE '2015-01-01' + CAST(hash(i + 2e9) % 3653 AS INTEGER) AS DATE) AS day,
    CAST(hash(i + 3e9) % 100 AS INTEGER) AS age, CASE WHEN hash(i + 4e9) % 2 = 0 THEN 'f' ELSE 'm' END AS sex,
    CAST(hash(i + 5e9) % 9 AS INTEGER) AS region, CAST(hash(i + 6e9) % 200001 AS INTEGER) AS income,
    CAST(hash(i + 7e9) % 21 AS INTEGER) AS score, CAST(hash(i + 8e9) % 1440 AS INTEGER) AS minute,
    CAST(1 + hash(i + 9e9) % 40 AS INTEGER) AS product, CAST(hash(i + 1e10) % 10000 AS INTEGER) AS zip, i // 4 AS person
FROM range({rows}) t(i)
"""

YEARS = ";\n".join(
    f"SELECT state, COUNT(*) AS n, SUM(v) AS s FROM people "
    f"WHERE day BETWEEN DATE '{year}-01-01' AND DATE '{year}-12-31' GROUP BY state"
    for year in range(2015, 2025)
)

QUESTIONS = {
    "count": "SELECT COUNT(*) AS n FROM people",
    "count and total by state": "SELECT state, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY state",
    "average by state": "SELECT state, AVG(v) AS a FROM people GROUP BY state",
    "day and state, ten years": "SELECT day, state, COUNT(*) AS n FROM people GROUP BY day, state",
    "day and state, one year": (
        "SELECT day, state, COUNT(*) AS n FROM people WHERE day BETWEEN DATE '2023-01-01' AND DATE '2023-12-31' "
        "GROUP BY day, state"
    ),
    "tiles of a year by state": YEARS,
    "rollup of v and state": "SELECT v, state, COUNT(*) AS n, SUM(income) AS s FROM people GROUP BY ROLLUP (v, state)",
    "running count of days": "SELECT dp_prefixes(day), COUNT(*) AS n FROM people GROUP BY dp_prefixes(day)",
    "month and state, year and state, quarters": (
        "SELECT date_trunc('month', day) AS m, state, COUNT(*) AS n FROM people GROUP BY m, state;\n"
        "SELECT year(day) AS y, state, COUNT(*) AS n FROM people GROUP BY y, state;\n"
        "SELECT date_trunc('quarter', day) AS q, COUNT(*) AS n, AVG(v) AS a FROM people GROUP BY q;\n"
        "SELECT COUNT(*) AS n FROM people"
    ),
    "income by decade of age": (
        "SELECT age // 10 AS d, AVG(income) AS a, MEDIAN(income) AS med FROM people GROUP BY d;\n"
        "SELECT region, sex, AVG(income) AS a FROM people GROUP BY region, sex"
    ),
    "age pyramid": "SELECT sex, age, COUNT(*) AS n FROM people GROUP BY sex, age",
    "age bands by region": (
        "SELECT region, CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'old' END AS band, "
        "COUNT(*) AS n, AVG(income) AS a FROM people GROUP BY region, band"
    ),
    "admissions by week": "SELECT date_trunc('week', day) AS w, COUNT(*) AS n FROM people GROUP BY w",
    "admissions by weekday and hour": (
        "SELECT dayofweek(day) AS d, minute // 60 AS h, COUNT(*) AS n FROM people GROUP BY d, h"
    ),
    "share of high scores": (
        "SELECT state, SUM(CASE WHEN score >= 15 THEN 1 ELSE 0 END) / COUNT(*) AS share FROM people GROUP BY state"
    ),
    "scores by sex and region": "SELECT sex, region, score, COUNT(*) AS n FROM people GROUP BY sex, region, score",
    "histogram of scores": "SELECT score, COUNT(*) AS n FROM people GROUP BY score",
    "deviation of income by region": "SELECT region, STDDEV(income) AS s, AVG(income) AS a FROM people GROUP BY region",
    "sales by product": "SELECT product, COUNT(*) AS n, SUM(income) AS s FROM people GROUP BY product",
    "sales by product and month": (
        "SELECT product, date_trunc('month', day) AS m, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY product, m"
    ),
    "sales by day": "SELECT day, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY day",
    "sales by product and state": (
        "SELECT product, state, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY product, state"
    ),
    "baskets above limits": ";\n".join(f"SELECT COUNT(*) AS n FROM people WHERE v > {x}" for x in range(0, 1000, 50)),
    "best products": (
        "SELECT product, SUM(income) AS s FROM people GROUP BY product ORDER BY s DESC LIMIT 5;\n"
        "SELECT product, sex, COUNT(*) AS n FROM people GROUP BY product, sex"
    ),
    "cube of region, sex, score": (
        "SELECT region, sex, score, COUNT(*) AS n FROM people GROUP BY CUBE (region, sex, score)"
    ),
    "rollup of region and state": (
        "SELECT region, state, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY ROLLUP (region, state)"
    ),
    "grouping sets": (
        "SELECT state, sex, score, COUNT(*) AS n FROM people "
        "GROUP BY GROUPING SETS ((state, sex), (state, score), (sex, score), ())"
    ),
    "trips by minute": "SELECT minute, COUNT(*) AS n FROM people GROUP BY minute",
    "trips by quarter of an hour and region": (
        "SELECT minute // 15 AS q, region, COUNT(*) AS n FROM people GROUP BY q, region"
    ),
    "rush hours": ";\n".join(
        f"SELECT COUNT(*) AS n FROM people WHERE minute BETWEEN {60 * h} AND {60 * h + 90}" for h in range(22)
    ),
    "delays by product": (
        "SELECT product, AVG(v) AS a, SUM(CASE WHEN v > 500 THEN 1 ELSE 0 END) AS late FROM people GROUP BY product"
    ),
    "origins and destinations": "SELECT state, product, COUNT(*) AS n FROM people GROUP BY state, product",
    "passengers by day and region": "SELECT day, region, COUNT(*) AS n FROM people GROUP BY day, region",
    "one quarter by day and sex": (
        "SELECT day, sex, COUNT(*) AS n FROM people WHERE day BETWEEN DATE '2023-04-01' AND DATE '2023-06-30' "
        "GROUP BY day, sex"
    ),
    "answers by sex, age and region": (
        "SELECT sex, region, COUNT(*) AS n FROM people GROUP BY sex, region;\n"
        "SELECT age // 10 AS d, COUNT(*) AS n FROM people GROUP BY d;\n"
        "SELECT score, sex, COUNT(*) AS n FROM people GROUP BY score, sex;\n"
        "SELECT AVG(income) AS a FROM people"
    ),
    "median of scores": "SELECT MEDIAN(score) AS med FROM people",
    "share of each sex by decade": (
        "SELECT age // 10 AS d, SUM(CASE WHEN sex = 'f' THEN 1 ELSE 0 END) / COUNT(*) AS f FROM people GROUP BY d"
    ),
    "income of adults by year": (
        "SELECT year(day) AS y, AVG(income) AS a, COUNT(*) AS n FROM people WHERE age >= 18 GROUP BY y"
    ),
    "pairs of four questions": (
        "SELECT sex, region, COUNT(*) AS n FROM people GROUP BY sex, region;\n"
        "SELECT sex, score, COUNT(*) AS n FROM people GROUP BY sex, score;\n"
        "SELECT region, score, COUNT(*) AS n FROM people GROUP BY region, score;\n"
        "SELECT state, sex, COUNT(*) AS n FROM people GROUP BY state, sex"
    ),
    "before and after a law": (
        "SELECT state, day >= DATE '2020-07-01' AS after, COUNT(*) AS n, AVG(income) AS a FROM people "
        "GROUP BY state, after"
    ),
    "many groups: people by zip and in all": (
        "SELECT zip, COUNT(*) AS n FROM people GROUP BY zip;\nSELECT COUNT(*) AS n FROM people"
    ),
    "many groups: count and total by zip": "SELECT zip, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY zip",
    "many groups: averages by zip and sex": (
        "SELECT zip, sex, COUNT(*) AS n, AVG(income) AS a FROM people GROUP BY zip, sex"
    ),
    "many groups: two averages by zip": (
        "SELECT zip, AVG(income) AS i, AVG(age) AS a, COUNT(*) AS n FROM people GROUP BY zip"
    ),
    "many groups: zip and area": (
        "SELECT zip // 100 AS area, COUNT(*) AS n FROM people GROUP BY area;\n"
        "SELECT zip, COUNT(*) AS n FROM people GROUP BY zip"
    ),
    "many groups: share of high scores by zip": (
        "SELECT zip, SUM(CASE WHEN score >= 15 THEN 1 ELSE 0 END) / COUNT(*) AS share FROM people GROUP BY zip"
    ),
    "many groups: zip, and v": (
        "SELECT zip, COUNT(*) AS n FROM people GROUP BY zip;\nSELECT v, COUNT(*) AS n FROM people GROUP BY v"
    ),
    "many groups: day and month": (
        "SELECT day, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY day;\n"
        "SELECT date_trunc('month', day) AS m, COUNT(*) AS n, SUM(v) AS s FROM people GROUP BY m"
    ),
}


def main() -> None:
    """Print the table."""
    writes = record.requested(sys.argv)
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pure", action="store_true")
    parser.add_argument("--persons", action="store_true")
    parser.add_argument("--distinct", action="store_true")
    parser.add_argument("--limits", type=lambda text: [float(limit) for limit in text.split(",")], default=[])
    asked = parser.parse_args()
    os.environ["DPSQL_CACHE"] = "off"
    chosen = [name for name in QUESTIONS if all(word in name for word in asked.words)]
    print(f"{len(chosen)} of {len(QUESTIONS)} questions, {asked.rows:,} rows")
    print()
    shares: list[float] = []
    if asked.limits:
        print("| question | limit s | CPU s | over 1.2 limits and 1 s |")
        print("|---|---:|---:|---:|")
    else:
        print("| question | numbers | plan s | CPU s | run s | gap |")
        print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        with duckdb.connect(f"{folder}/natural.duckdb") as connection:
            connection.execute(TABLE.format(rows=asked.rows))
        declared = POLICY.replace("delta = 1e-5\n", "") if asked.pure else POLICY
        unit = 'unit = "person"\nmax_rows_per_unit = 10' if asked.persons or asked.distinct else 'unit = "row"'
        policy = dpsql.Policy.parse(declared.format(folder=folder, unit=unit))
        answers: list[Answer] = []
        for number, name in enumerate(chosen):
            connection = dpsql.connect(policy=policy, ledger=made(Path(folder) / str(number)) / "natural.ledger")
            sql = QUESTIONS[name]
            if asked.distinct:
                sql = sql.replace("COUNT(*) AS n", "COUNT(*) AS n, COUNT(DISTINCT person) AS persons")
            if asked.limits:
                shares.extend(limited(connection, name, sql, asked))
                continue
            answers.append(measure(connection, name, sql, asked.pure))
            print(answers[-1].line(), flush=True)
    if shares:
        print(f"\n{sum(share <= 1 for share in shares)} of {len(shares)} within, the latest {max(shares):.2f}")
    if writes and answers and len(chosen) == len(QUESTIONS):
        record.write("natural", figures(answers, asked))


def made(folder: Path) -> Path:
    """``folder``, made now."""
    folder.mkdir()
    return folder


@dataclass(frozen=True)
class Answer:
    """What one question took; ``refusal`` is the first line of the error of one that was refused."""

    name: str
    planned: float
    refusal: str = ""
    numbers: int = 0
    cpu: float = 0.0
    run: float = 0.0
    gap: float | None = None

    def line(self) -> str:
        """One line of the table."""
        if self.refusal:
            return f"| {self.name} | | {self.planned:.2f} | | | {self.refusal} |"
        gap = "" if self.gap is None else f"{100 * self.gap:.3f} %"
        return f"| {self.name} | {self.numbers:,} | {self.planned:.2f} | {self.cpu:.2f} | {self.run:.2f} | {gap} |"


def measure(connection: dpsql.Connection, name: str, sql: str, pure: bool) -> Answer:
    """Plan and run one question."""
    delta = None if pure else 1e-9
    start, cpu = time.perf_counter(), time.process_time()
    try:
        plan = connection.plan(sql, epsilon=1, delta=delta, time_limit=60)
    except dpsql.Error as error:
        return Answer(name, time.perf_counter() - start, str(error).splitlines()[0])
    planned, cpu = time.perf_counter() - start, time.process_time() - cpu
    start = time.perf_counter()
    connection.run(plan)
    return Answer(name, planned, "", plan.compiled.numbers, cpu, time.perf_counter() - start, plan.gap)


def limited(connection: dpsql.Connection, name: str, sql: str, asked: argparse.Namespace) -> list[float]:
    """Plan one question under each limit, the shortest first, until one is not needed; what it takes of each."""
    found = []
    for limit in sorted(asked.limits):
        cpu, said = time.process_time(), ""
        try:
            connection.plan(sql, epsilon=1, delta=None if asked.pure else 1e-9, time_limit=limit)
        except dpsql.Error as error:  # as where it could not be compiled in time
            said = f" {error}"
        cpu = time.process_time() - cpu
        found.append(cpu / (1.2 * limit + 1.0))
        print(f"| {name}{said} | {limit:g} | {cpu:.2f} | {found[-1]:.2f} |", flush=True)
        if cpu < 0.6 * limit and not said:
            break
    return found


def figures(answers: list[Answer], options: argparse.Namespace) -> list[record.Figure]:
    """The figures of all questions; those of persons and of pure epsilon have keys of their own."""
    kinds = [kind for kind in ("pure", "persons", "distinct") if getattr(options, kind)]
    key = "-".join(["natural", *kinds])
    what = ", ".join(["pure" if options.pure else "Gaussian", *(kind for kind in kinds if kind != "pure")])
    planned = [answer for answer in answers if not answer.refusal]
    refused = [answer.name for answer in answers if answer.refusal]
    slowest = max(planned, key=lambda answer: answer.cpu)
    limit = 5 if options.distinct else 2
    found = [
        record.Figure(
            f"{key}-refused",
            f"{len(answers)} natural questions, {what}: refused",
            ", ".join(refused) or "none",
            "none",
            not refused,
        ),
        record.Figure(
            f"{key}-seconds",
            f"the slowest to plan of them, {what}",
            f"{slowest.cpu:.1f} CPU s ({slowest.name})",
            f"{limit} s",
            slowest.cpu <= limit,
        ),
    ]
    gaps = [(answer.gap, answer.name) for answer in planned if answer.gap is not None]
    if gaps and not options.pure:
        widest, name = max(gaps)
        near, nearer = (sum(gap <= most for gap, _ in gaps) for most in (3e-3, 1e-3))
        found += [
            record.Figure(
                f"{key}-gap",
                f"the widest certificate of them, {what}",
                f"{100 * widest:.3f} % ({name})",
                "1 %",
                widest <= 0.01,
            ),
            record.Figure(
                f"{key}-certified",
                f"certified within 0.3 %; within 0.1 %, {what}",
                f"{near} of {len(gaps)}; {nearer} of {len(gaps)} questions",
            ),
        ]
    return found


if __name__ == "__main__":
    main()
