"""Claim: a plan pays for what one person can change, not for multiples of the worst row, near the least possible.

    python benchmarks/units.py [--releases K] [--pairs K] [--peers opendp tumult] [--limit SECONDS]
        [--certified] [--write]

Three parts, in one run. (1) Batches over tables of persons with several rows: total squared error of group privacy (the
longest column times the rows or groups of one person, an equal share of the budget for every source; in closed form),
as planned, and the least possible, for Gaussian noise in units of 1 / mu^2 and for pure epsilon in units of
1 / epsilon^2. (2) Counts of visits and of persons by state, by month and by state x month over 200,000 visits of
50,000 persons, at most 12 a person and 1 a month, beside libraries that bound contributions, at equal bounds and
budgets: each library's six queries get a sixth of the budget, as none plans a batch. (3) What units cost: planning of
batches with units over the same over rows, the scan that holds the bounds over the scan without them, and scans of
several counts over the same rows over plain ones, in pairs.

Peers run as in benchmarks/sql_peers.py; ``--environments`` is where theirs are made.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import duckdb
import numpy as np
import record
import sql_peers
from report import Report
from scale import scans
from scipy import optimize

import dpsql

SEED = 17
VISITS, PERSONS, MOST = 200_000, 50_000, 12
STATES = tuple(f"S{i:02d}" for i in range(50))
MONTHS = tuple(range(1, 13))
PEERS = {
    "opendp": ("units_opendp.py", ["opendp[polars]"]),
    "tumult": ("units_tumult.py", ["tmlt.analytics"]),
}
PEER_SECONDS = 60.0  # after which a peer begins no further release
BUDGETS: dict[str, dict[str, float]] = {"zCDP, rho 0.5": {"rho": 0.5}, "pure, epsilon 1": {"epsilon": 1.0}}


@contextmanager
def connected(tables: str, budget: Mapping[str, float], *created: str) -> Iterator[dpsql.Connection]:
    """A connection under a policy of these tables; ``created`` makes them where the policy names no files."""
    kind = next(iter(budget))
    text = f'dataset = "units"\n[budget]\n{kind} = 1000000.0\n{tables}'
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as database:
        for statement in created:
            database.execute(statement)
        ledger = Path(folder) / "units.ledger"
        yield dpsql.connect(database if created else None, policy=dpsql.Policy.parse(text), ledger=ledger)


# ---- 1. what one person can change ----


@dataclass(frozen=True)
class Line:
    """A batch over persons with several rows.

    ``sources``: (numbers asked, how often one person counts at most) of each source.
    """

    title: str
    tables: str
    sql: str
    sources: tuple[tuple[int, int], ...]
    least: Callable[[], float]

    def before(self, noise: str) -> float:
        """Total squared error of group privacy: identity, each number at its source's multiple and equal share."""
        scales = sum(numbers * times**2 for numbers, times in self.sources)
        shares = len(self.sources)
        return float(scales * shares if noise == "rho" else 2 * scales * shares**2)


def least_of_groups(groups: int, most: int) -> float:
    """The least total where a person is in at most ``most`` of ``groups`` groups: X = a I + b J by symmetry.

    For two groups a + b <= 1 and 2 a + 4 b <= 1, so that a = 3/2, b = -1/2 and 1 / a + 1 / (a + 2 b) = 8/3.
    """

    def total(a: float) -> float:
        b = min((1 - s * a) / s**2 for s in range(1, most + 1))
        return math.inf if a + groups * b <= 0 else (groups - 1) / a + 1 / (a + groups * b)

    low, high = 1e-9, 2.0
    while high - low > 1e-12:  # up to which a the matrix is one of a strategy
        middle = (low + high) / 2
        low, high = (middle, high) if math.isfinite(total(middle)) else (low, middle)
    found = optimize.minimize_scalar(total, bounds=(1e-9, low), method="bounded", options={"xatol": 1e-12})
    return float(found.fun)


def least_of_list(contributions: Sequence[Sequence[float]]) -> float:
    """The least total of single numbers: the dual's fixed point over all contributions, held against its primal."""
    C = np.array(contributions, dtype=float).T
    lam = np.full(C.shape[1], 1.0 / C.shape[1])
    for _ in range(100_000):
        s, V = np.linalg.eigh((C * lam) @ C.T)
        t = np.sqrt(s).sum()
        q = np.einsum("ic,ij,jc->c", C, (V / np.sqrt(s)) @ V.T, C)
        if q.max() <= t * (1 + 1e-7):
            return float(t * t)
        lam *= (q / t) ** 2
        lam /= lam.sum()
    raise SystemExit("the dual did not converge")


def least_of_both(groups: int, rows: int, *, nobody: bool = True) -> float:
    """The least total of COUNT(*) and COUNT(DISTINCT person) by the same groups: the dual over classes of patterns.

    A person in s groups has a row in each and all others in one of them; ``nobody`` has all rows in one. By symmetry M
    is a 2 x 2 matrix on sums over groups and another on contrasts between them.
    """
    sums, contrasts = [], []
    for s in range(0 if nobody else 1, min(groups, rows) + 1):
        units = (np.arange(groups) < s).astype(float)
        for first in {0, rows - s}:
            both = np.stack([units + first * (np.arange(groups) == 0), units])
            whole = np.outer(both.sum(axis=1), both.sum(axis=1)) / groups
            sums.append(whole)
            contrasts.append((both @ both.T - whole) / (groups - 1))
    lam = np.full(len(sums), 1.0 / len(sums))
    for _ in range(100_000):
        t, q = 0.0, np.zeros(len(sums))
        for parts, times in ((np.array(sums), 1), (np.array(contrasts), groups - 1)):
            s_, V = np.linalg.eigh(np.tensordot(lam, parts, axes=1))
            root = np.sqrt(np.maximum(s_, 1e-300))
            t += times * float(root.sum())
            q += times * np.einsum("kij,ij->k", parts, (V / root) @ V.T)
        if q.max() <= t * (1 + 1e-6):
            return t * t
        lam *= (q / t) ** 2
        lam /= lam.sum()
    raise SystemExit("the dual did not converge")


def both_by(groups: int, rows: int) -> Line:
    """COUNT(*) and COUNT(DISTINCT patient_id) by so many groups."""
    one = visits_by(groups, rows, nulls=False)
    title = one.title.replace("COUNT(DISTINCT", "COUNT(*), COUNT(DISTINCT")
    sources = ((groups, rows), (groups, min(rows, groups)))
    return Line(
        title,
        one.tables,
        one.sql.replace(" COUNT", " COUNT(*) AS v, COUNT", 1),
        sources,
        lambda: least_of_both(groups, rows),
    )


def visits_by(groups: int, rows: int, nulls: bool) -> Line:
    """COUNT(DISTINCT patient_id) by so many groups, and the NULL group where there may be one."""
    promise = "" if nulls else ", nulls = false"
    tables = (
        f'[tables.visits]\nunit = "patient_id"\nmax_rows_per_unit = {rows}\n'
        f"[tables.visits.columns]\nward = {{ lower = 1, upper = {groups}{promise} }}\n"
    )
    numbers = groups + nulls
    most = min(rows, numbers)
    title = f"COUNT(DISTINCT patient_id) by {groups} groups, {rows} rows" + (", and NULL" if nulls else "")
    sql = "SELECT ward, COUNT(DISTINCT patient_id) AS n FROM visits GROUP BY ward"
    return Line(title, tables, sql, ((numbers, most),), lambda: least_of_groups(numbers, most))


def two_tables(rows: int) -> Line:
    """COUNT(*) of visits, at most so many a patient, and of their patients."""
    tables = (
        f'[tables.patients]\nunit = "patient_id"\nmax_rows_per_unit = 1\n'
        f'[tables.visits]\nunit = "patient_id"\nmax_rows_per_unit = {rows}\n'
    )
    sql = "SELECT COUNT(*) AS n FROM visits; SELECT COUNT(*) AS n FROM patients"
    title = f"COUNT(*) of visits, at most {rows} a patient, and of patients"
    return Line(title, tables, sql, ((1, rows), (1, 1)), lambda: least_of_list([(rows, 1), (rows, 0), (0, 1)]))


CREATED = (
    "CREATE TABLE visits (patient_id INTEGER, ward INTEGER, sex VARCHAR, month INTEGER, missed BOOLEAN, cost INTEGER)",
    "CREATE TABLE patients (patient_id INTEGER)",
)
HOSPITAL = """\
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 10
[tables.visits.columns]
ward = { lower = 1, upper = 6, nulls = false }
sex = { values = ["f", "m"], nulls = false }
month = { lower = 1, upper = 12, nulls = false }
missed = { nulls = false }
cost = { lower = 0, upper = 1000, nulls = false }
"""
COUNTS = """\
CREATE OR REPLACE VIEW ward AS SELECT ward, COUNT(*) AS n, AVG(cost) AS c FROM visits GROUP BY ward;
CREATE OR REPLACE VIEW sex AS SELECT sex, COUNT(*) AS n, AVG(cost) AS c FROM visits GROUP BY sex;
CREATE OR REPLACE VIEW month AS SELECT month, COUNT(*) AS n FROM visits GROUP BY month;
CREATE OR REPLACE VIEW missed AS SELECT ward, COUNT(*) FILTER (WHERE missed) AS n FROM visits GROUP BY ward
"""
DISTINCT = "SELECT COUNT(DISTINCT patient_id) AS n FROM visits"


def total_of(plan: dpsql.Plan) -> float:
    return float((np.asarray(plan.errors) ** 2).sum())


def least_of(plan: dpsql.Plan) -> str:
    """How near a pure plan is to the least, as it says itself."""
    assert plan.least_of_pure is not None
    return f"{plan.least_of_pure[0]:.1f} of {plan.least_of_pure[1]}"


def contributions_table(report: Report) -> list[record.Figure]:
    """Before, planned and least, a line a batch."""
    found: list[record.Figure] = []
    above: list[float] = []
    shares: list[str] = []
    sizes = ((2, 10), (4, 10), (12, 12), (50, 50))
    lines = [visits_by(groups, rows, nulls) for groups, rows in sizes for nulls in (False, True)]
    lines += [two_tables(10), two_tables(1), both_by(12, 12), both_by(50, 10)]
    for noise, budget in (("rho", {"rho": 0.5}), ("epsilon", {"epsilon": 1.0})):
        rows = []
        for line in lines:
            with connected(line.tables, budget, *CREATED) as con:
                plan = con.plan(line.sql, objective="total", **budget)
            total, before = total_of(plan), line.before(noise)
            row = [line.title, f"{before:,.6g}", f"{total:,.4g}", f"{total / before:.3f}"]
            if noise == "rho":
                least, certified = line.least(), total / (1 + (plan.gap or 0.0))
                above.append(total / least - 1)
                row += [f"{certified:,.4g}", f"{least:,.4g}", f"{100 * above[-1]:.2f} %"]
            else:
                row.append(least_of(plan))
            rows.append(row)
        head = ["batch", "group privacy", "planned", "planned / group privacy"]
        if noise == "rho":
            head += ["certified lower bound", "least, another way", "planned above it"]
        else:
            head.append("at most so many times the least")
        unit = "Gaussian noise, 1 / mu^2" if noise == "rho" else "pure epsilon, 1 / epsilon^2"
        report.table(f"Total squared error, {unit}", head, rows)
        fifty = next(row[3] for row in rows if row[0].startswith("COUNT(DISTINCT patient_id) by 50"))
        shares.append(fifty)
        if noise == "rho":
            widest = max(above)
            what = f"{len(above)} batches of counts of units, 2 to 50 groups: squared error above the least"
            found.append(
                record.Figure(
                    "units-least",
                    f"{what} that is computed without dpsql, at most",
                    f"{100 * widest:.2f} %",
                    "1 %",
                    widest <= 0.01,
                )
            )
    what = "COUNT(DISTINCT patient_id) by 50 groups: squared error, divided by that of group privacy, Gaussian; pure"
    found.append(record.Figure("units-group-privacy", what, "; ".join(shares)))
    return found


def sums_by_groups(report: Report) -> None:
    """Rows, the average of a column and persons by the same groups, at most twelve rows a person, with zCDP."""
    rows = []
    for groups in (10, 100, 400, 1000, 3000):
        tables = (
            '[tables.visits]\nunit = "patient_id"\nmax_rows_per_unit = 12\n[tables.visits.columns]\n'
            f"ward = {{ lower = 1, upper = {groups}, nulls = false }}\ncost = {{ lower = 0, upper = 5000, step = 1 }}\n"
        )
        for asked in ("COUNT(*) AS n", "AVG(cost) AS a"):
            sql = f"SELECT ward, {asked}, COUNT(DISTINCT patient_id) AS p FROM visits GROUP BY ward"
            with connected(tables, {"rho": 0.5}, *CREATED) as con:
                con.schemas()
                began = time.process_time()
                plan = con.plan(sql, rho=0.5)
                took = time.process_time() - began
            numbers = np.asarray(plan.errors)
            errors = [f"{numbers[at * groups]:,.2f}" for at in range(len(numbers) // groups)]
            rows.append(
                [f"{asked[:-5]}, persons", groups, errors[0], errors[-1], f"{plan.gap or 0:.2%}", f"{took:.2f}"]
            )
    head = ["asked", "groups", "error of the first", "of persons", "gap", "CPU seconds"]
    report.table("Rows or an average, and persons by the same groups, zCDP, rho 0.5", head, rows)


PATIENTS_AND_VISITS = """\
[tables.patients]
unit = "patient_id"
max_rows_per_unit = 1
key = ["patient_id"]
[tables.patients.columns]
sex = {{ values = ["f", "m"], nulls = false }}
[tables.visits]
unit = "patient_id"
max_rows_per_unit = {rows}
references = {{ patient_id = "patients.patient_id" }}
[tables.visits.columns]
ward = {{ lower = 1, upper = {wards}, nulls = false }}
patient_id = {{}}
"""


def joined(report: Report) -> list[record.Figure]:
    """Persons and their rows over joins and by how many rows they have, with the least of another search, at zCDP."""
    by_sex = "SELECT sex, COUNT(*) AS n{} FROM visits JOIN patients USING (patient_id) GROUP BY sex"
    both, rows = by_sex.format(", COUNT(DISTINCT patient_id) AS p"), by_sex.format("")
    patients = "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex"
    named = "SELECT ward, COUNT(*) AS n, COUNT(DISTINCT patient_id) AS p FROM visits WHERE patient_id IS NOT NULL "
    numbers = (
        "SELECT k, COUNT(*) AS n FROM (SELECT patient_id, COUNT(*) AS k FROM visits GROUP BY patient_id) GROUP BY k"
    )
    sexes = ((1, 0), (0, 1))
    cases: list[tuple[str, int, int, str, list[tuple[int, ...]]]] = [
        (f"visits and persons by sex, {k} rows", k, 3, both, [(n * f, n * m, f, m) for n in (1, k) for f, m in sexes])
        for k in (3, 4, 6, 10)
    ]
    alike = [(f, m, n * f, n * m) for n in range(5) for f, m in sexes]
    cases.append(("patients by sex, visits by sex, 4 rows", 4, 3, f"{patients}; {rows}", alike))
    three = [(int(n > 0), n * f, n * m, f, m) for n in range(4) for f, m in sexes] + [(1, 0, 0, 0, 0)]
    cases.append(("persons, visits by sex, patients by sex, 3 rows", 3, 3, f"{DISTINCT}; {rows}; {patients}", three))
    # Of those who have a fifth visit four count, and they are in no group of up to four.
    visits = [v for v in itertools.product(range(5), repeat=3) if sum(v) <= 4]
    of_one = [(*(int(sum(v) == k) for k in range(1, 5)), 1, *v) for v in visits]
    of_one += [(*one[:4], 0, *one[5:]) for one in of_one] + [
        (0, 0, 0, 0, p, *v) for p in (0, 1) for v in visits if sum(v) == 4
    ]
    undeclared = [
        (*(int(k == least) for k in range(1, 5)), 1, *v) for v in visits for least in range(sum(v) + 1, 5)
    ] + [(0, 0, 0, 0, 1, *v) for v in visits]
    undeclared += [(*one[:4], 0, *one[5:]) for one in undeclared]
    cases.append(
        (
            "persons by number of visits, persons, visits by ward, 4 rows",
            4,
            3,
            f"{numbers}; {DISTINCT}; SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward",
            of_one + undeclared,
        )
    )
    table = []
    for title, most, wards, sql, ways in cases:
        with connected(PATIENTS_AND_VISITS.format(rows=most, wards=wards), {"rho": 0.5}, *SEXES) as con:
            plan = con.plan(sql, objective="total", rho=0.5)
        total, least = total_of(plan), least_of_list(sorted(set(ways) - {(0,) * len(ways[0])}))
        table.append(
            [title, f"{total:,.4g}", f"{least:,.4g}", f"{100 * (total / least - 1):.2f} %", f"{plan.gap or 0:.2%}"]
        )
    for groups, most in ((4, 3), (12, 4), (50, 10)):
        with connected(PATIENTS_AND_VISITS.format(rows=most, wards=groups), {"rho": 0.5}, *SEXES) as con:
            plan = con.plan(f"{named} GROUP BY ward", objective="total", rho=0.5)
        total, least = total_of(plan), least_of_both(groups, most, nobody=False)
        title = f"visits and persons by {groups} groups, {most} rows, unit IS NOT NULL"
        table.append(
            [title, f"{total:,.5g}", f"{least:,.5g}", f"{100 * (total / least - 1):.2f} %", f"{plan.gap or 0:.2%}"]
        )
    head = ["batch", "planned", "least, another way", "planned above it", "gap as the plan says"]
    report.table("Total squared error of persons over joins, Gaussian noise, 1 / mu^2", head, table)
    widest = max(float(row[3].removesuffix(" %")) for row in table)
    what = f"the same for {len(table)} batches of counts of units over joins and by their number of rows"
    return [record.Figure("units-joins", what, f"{widest:.2f} %", "1 %", widest <= 1)]


SEXES = (
    "CREATE TABLE visits (patient_id INTEGER, ward INTEGER)",
    "CREATE TABLE patients (patient_id INTEGER, sex VARCHAR)",
)


def days(report: Report) -> None:
    """Visits by day and by one of five wards, at most ten a patient and one a day, with zCDP."""
    rows = []
    for many in (6, 12, 40, 200):
        tables = (
            '[tables.visits]\nunit = "patient_id"\nmax_rows_per_unit = 10\nat_most = [{ rows = 1, per = "month" }]\n'
            f"[tables.visits.columns]\nmonth = {{ lower = 1, upper = {many}, nulls = false }}\n"
            "ward = { lower = 1, upper = 5, nulls = false }\n"
        )
        sql = "; ".join(f"SELECT {key}, COUNT(*) AS n FROM visits GROUP BY {key}" for key in ("month", "ward"))
        with connected(tables, {"rho": 0.5}, *CREATED) as con:
            con.schemas()
            began = time.process_time()
            plan = con.plan(sql, rho=0.5)
        errors = [f"{float(np.ravel(error)[0]):.2f}" for error in plan.stderr.values()]
        rows.append([many, *errors, f"{100 * (plan.gap or 0):.2f} %", f"{time.process_time() - began:.2f}"])
    head = ["days", "error of a day", "of a ward", "gap", "CPU seconds"]
    report.table("Visits by day and by ward, zCDP, rho 0.5", head, rows)


SEVERAL = """\
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 12
[tables.visits.columns]
ward = {{ values = [1, 2, 3, 4, 5, 6], nulls = false }}
state = {{ values = [{states}], nulls = false }}
month = {{ values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], nulls = false }}
"""
PERSONS_BY = {
    "persons by month, in all": (("month", ""), False),
    "persons by month, by quarter, in all": (("month", "(month - 1) // 3", ""), False),
    "persons by ward, by month, in all": (("ward", "month", ""), False),
    "persons by ward, by month, by both, in all": (("ward", "month", "ward, month", ""), False),
    "persons by state, by month, by both": (("state", "month", "state, month"), False),
    "visits and persons by month, in all": (("month", ""), True),
    "visits and persons by ward, by month, in all": (("ward", "month", ""), True),
    "visits and persons by ward, by month, by both, in all": (("ward", "month", "ward, month", ""), True),
    "visits and persons by state, by month, by both": (("state", "month", "state, month"), True),
}


def over_the_same_rows(report: Report) -> None:
    """Several counts of persons over the same visits, and these visits, at most twelve a person, with zCDP."""
    rows = []
    tables = SEVERAL.format(states=", ".join(f'"{state}"' for state in STATES))
    table = "CREATE TABLE visits (patient_id INTEGER, ward INTEGER, state VARCHAR, month INTEGER)"
    for title, (keys, both) in PERSONS_BY.items():
        statements = []
        for key in keys:
            shown = "".join(f"{column} AS k{at}, " for at, column in enumerate(key.split(", ") if key else []))
            wanted = "COUNT(DISTINCT patient_id) AS p" + (", COUNT(*) AS v" if both else "")
            statements.append(f"SELECT {shown}{wanted} FROM visits" + (f" GROUP BY {key}" if key else ""))
        with connected(tables, {"rho": 0.5}, table) as con:
            con.schemas()
            began = time.process_time()
            plan = con.plan("; ".join(statements), rho=0.5)
            took = time.process_time() - began
        errors = [np.asarray(error) for error in plan.stderr.values()]
        persons, visits = ([float(error.reshape(-1, 1 + both)[0, at]) for error in errors] for at in (0, int(both)))
        shown = [", ".join(f"{error:.2f}" for error in one) for one in (persons, visits if both else [])]
        rows.append([title, *shown, f"{100 * (plan.gap or 0):.2f} %", f"{took:.2f}"])
    head = ["asked", "errors of persons", "of visits", "gap", "CPU seconds"]
    report.table("Several counts of persons over the same visits, zCDP, rho 0.5", head, rows)


PEOPLE = """\
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 10
[tables.visits.columns]
state = { lower = 0, upper = 49 }
day = { lower = 2015-01-01, upper = 2024-12-31 }
score = { lower = 0, upper = 20 }
sex = { values = ["f", "m"] }
"""
JANUARY = "FROM visits WHERE month(day) = 1"
OF_ONE_COLUMN = {
    "January by state, and months": (
        f"SELECT state, COUNT(*) AS n {JANUARY} GROUP BY state; "
        "SELECT date_trunc('month', day) AS m, COUNT(*) AS n FROM visits GROUP BY m"
    ),
    "January by month, and all": (
        f"SELECT month(day) AS m, COUNT(*) AS n {JANUARY} GROUP BY m; SELECT COUNT(*) AS n FROM visits"
    ),
    "months, and weekends": (
        "SELECT month(day) AS m, COUNT(*) AS n FROM visits GROUP BY m; "
        "SELECT COUNT(*) AS n FROM visits WHERE dayofweek(day) IN (0, 6)"
    ),
    "scores by sex, and round ones": (
        "SELECT score, sex, COUNT(*) AS n FROM visits GROUP BY score, sex; "
        "SELECT sex, COUNT(*) AS n FROM visits WHERE score % 5 = 0 GROUP BY sex"
    ),
}


def expressions_of_one_column(report: Report) -> None:
    """Visits by two expressions of one column, and persons beside them, at most ten visits a person, with zCDP."""
    rows = []
    table = "CREATE TABLE visits (patient_id INTEGER, state INTEGER, day DATE, score INTEGER, sex VARCHAR)"
    for title, plain in OF_ONE_COLUMN.items():
        persons = plain.replace("COUNT(*) AS n", "COUNT(*) AS n, COUNT(DISTINCT patient_id) AS p")
        for asked, sql in (("visits", plain), ("visits and persons", persons)):
            with connected(PEOPLE, {"rho": 0.5}, table) as con:
                con.schemas()
                began = time.process_time()
                plan = con.plan(sql, rho=0.5)
                took = time.process_time() - began
            rows.append([title, asked, plan.cells, f"{plan.error:,.4g}", f"{plan.gap or 0:.2%}", f"{took:.2f}"])
    head = ["groups", "asked", "cells", "balanced squared error", "gap", "CPU seconds"]
    report.table("Expressions of one column, zCDP, rho 0.5", head, rows)


PAIRS = """\
[tables.visits]
unit = "patient_id"
max_rows_per_unit = {most}
at_most = [{cap}]
[tables.visits.columns]
month = {{ values = [{months}], nulls = false }}
ward = {{ values = [1, 2, 3, 4, 5, 6], nulls = false }}
sex = {{ values = ["f", "m"], nulls = false }}
x = {{ values = [{forty}], nulls = false }}
y = {{ values = [{forty}], nulls = false }}
"""


def pairs_of_columns(report: Report) -> None:
    """All pairs of five columns, planned grouping by grouping, with and without a bound that keeps rows apart."""
    months, forty = (", ".join(map(str, range(1, n + 1))) for n in (12, 40))
    sql = "SELECT month, ward, sex, x, y, COUNT(*) AS n FROM visits GROUP BY dp_marginals(2, month, ward, sex, x, y)"
    table = "CREATE TABLE visits (patient_id INTEGER, month INTEGER, ward INTEGER, sex VARCHAR, x INTEGER, y INTEGER)"
    rows, whole = [], 1.0
    for most, cap in ((12, ""), (12, "rows = 1"), (12, "rows = 2"), (5, ""), (5, "rows = 1")):
        held = f'{{ {cap}, per = "month" }}' if cap else ""
        tables = PAIRS.format(most=most, cap=held, months=months, forty=forty)
        with connected(tables, {"rho": 0.5}, table) as con:
            plan = con.plan(sql, rho=0.5)
        assert plan.gap is not None
        total = plan.strategy.expected * most**2
        whole = whole if cap else total
        rows.append([f"{most} visits" + (f", {cap} per month" if cap else ""), plan.strategy.method,
                     f"{total / whole:.3f}", f"{plan.gap:.2%}"])  # fmt: skip
    head = ["visits of one patient", "method", "squared error over that of rows in one cell", "gap"]
    report.table("All pairs of five columns, zCDP, rho 0.5", head, rows)


def hospital(report: Report) -> None:
    """Counts, missed visits and averages by ward, sex and month, without and with one COUNT(DISTINCT)."""
    rows = []
    for title, budget in BUDGETS.items():
        with connected(HOSPITAL, budget, *CREATED) as con:
            alone, both = (con.plan(sql, objective="total", **budget) for sql in (COUNTS, f"{COUNTS}; {DISTINCT}"))
        was = np.concatenate([np.ravel(both.stderr[name]) for name in alone.stderr])
        without = np.concatenate([np.ravel(error) for error in alone.stderr.values()])
        known = np.isfinite(without)
        ratio = was[known] / without[known]
        half = math.sqrt(2.0) if "rho" in budget else 2.0
        (distinct,) = (error for name, error in both.stderr.items() if name not in alone.stderr)
        gaps = [f"{100 * plan.gap:.2f} %" if plan.gap is not None else least_of(plan) for plan in (alone, both)]
        mean = float(np.sqrt((was[known] ** 2).sum() / (without[known] ** 2).sum()))
        rows.append([title, f"{half:.2f}", f"{mean:.4f}", f"{ratio.max():.4f}", float(np.ravel(distinct)[0]), *gaps])
    head = [
        "budget",
        "equal shares",
        "all errors, with over without",
        "worst",
        "distinct count",
    ]
    report.table(
        "Counts and averages by ward, sex, month, missed visits; 10 rows: errors where a COUNT(DISTINCT) joins them",
        [*head, "gap without", "gap with"],
        rows,
    )


# ---- 2. beside other libraries ----


@dataclass(frozen=True)
class Column:
    """One of the six: COUNT(*) or COUNT(DISTINCT person) by ``keys``."""

    keys: tuple[str, ...]
    distinct: bool

    @property
    def numbers(self) -> int:
        return math.prod(len(DOMAINS[key]) for key in self.keys)

    @property
    def title(self) -> str:
        return f"{'persons' if self.distinct else 'visits'} by {' x '.join(self.keys)}"

    def sql(self, weight: float) -> str:
        """A statement of its own."""
        value = "COUNT(DISTINCT person)" if self.distinct else "COUNT(*)"
        name = "_".join(["p" if self.distinct else "n", *self.keys])
        shown, by = [f"{KEYS[key]} AS {key}" for key in self.keys], [KEYS[key] for key in self.keys]
        hint = "" if weight == 1.0 else f"/*+ WEIGHT({weight:.6f}) */ "
        return (
            f"CREATE OR REPLACE VIEW {name} AS SELECT {hint}{', '.join(shown)}, {value} AS answer FROM visits "
            f"{YEAR} GROUP BY {', '.join(by)}"
        )


DOMAINS: dict[str, tuple[Any, ...]] = {"state": STATES, "month": MONTHS}
KEYS = {"state": "state", "month": "month(day)"}
# Visits of no declared month are in no month, and would be a thirteenth class to the counts by state.
YEAR = "WHERE day BETWEEN DATE '2024-01-01' AND DATE '2024-12-31'"
SIX = tuple(Column(keys, d) for keys in (("state",), ("month",), ("state", "month")) for d in (False, True))


def visits_path() -> Path:
    """200,000 visits of 50,000 persons, at most one a person and month, most of a person in one state."""
    path = data.FOLDER / f"visits_{VISITS}_{SEED}.parquet"
    if path.exists():
        return path
    rng = np.random.default_rng(SEED)
    many = 1 + rng.binomial(MOST - 1, (VISITS / PERSONS - 1) / (MOST - 1), PERSONS)
    while (missing := VISITS - int(many.sum())) != 0:
        some = rng.choice(PERSONS, size=min(abs(missing), PERSONS), replace=False)
        many[some] = np.clip(many[some] + np.sign(missing), 1, MOST)
    months = np.argsort(rng.random((PERSONS, 12)), axis=1) + 1
    chosen = np.arange(12) < many[:, None]
    person = np.repeat(np.arange(PERSONS), many)
    likely = 1.0 / (np.arange(len(STATES)) + 10.0)
    home, away = (rng.choice(len(STATES), size, p=likely / likely.sum()) for size in (PERSONS, VISITS))
    state = np.where(rng.random(VISITS) < 0.85, home[person], away)
    table = {"person": person, "state": state, "month": months[chosen], "day": rng.integers(1, 29, VISITS)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as con:
        con.register("made", table)
        part = path.with_suffix(f".{os.getpid()}.part")
        columns = "person::INTEGER AS person, format('S{:02d}', state) AS state, make_date(2024, month, day) AS day"
        con.execute(f"COPY (SELECT {columns}, (person % 101)::INTEGER AS cost FROM made) TO '{part}' (FORMAT parquet)")
        part.replace(path)
    return path


def visits_policy(unit: str = "person", capped: bool = True) -> str:
    """The table's part of a policy."""
    lines = ["[tables.visits]", f'unit = "{unit}"', f'source = "{visits_path()}"']
    if unit != "row":
        lines.append(f"max_rows_per_unit = {MOST}")
    if capped and unit != "row":
        lines.append('at_most = [{ rows = 1, per = "month(day)" }]')
    states = ", ".join(f'"{state}"' for state in STATES)
    lines += ["[tables.visits.columns]", f"state = {{ values = [{states}], nulls = false }}"]
    lines += ["day = { lower = 2024-01-01, upper = 2024-12-31, nulls = false }", "cost = { lower = 0, upper = 100 }"]
    lines.append(f"person = {{ lower = 0, upper = {PERSONS - 1}, nulls = false }}")  # persons are counted by rows
    return "\n".join(lines) + "\n"


def exact() -> list[dict[tuple[Any, ...], float]]:
    """DuckDB's answers to the six by group."""
    found = []
    with duckdb.connect() as con:
        con.execute(f"CREATE VIEW visits AS SELECT * FROM read_parquet('{visits_path()}')")
        for column in SIX:
            rows = con.execute(column.sql(1.0).partition(" AS ")[2]).fetchall()
            known = {tuple(row[:-1]): float(row[-1]) for row in rows}
            groups = itertools.product(*(DOMAINS[key] for key in column.keys))
            found.append({group: known.get(group, 0.0) for group in groups})
    return found


Answers = list[dict[tuple[Any, ...], float]]


def measured(releases: Sequence[Answers], truth: Answers) -> list[float]:
    """Root mean squared errors of the six over releases."""
    squares = [
        [(one[i][group] - value) ** 2 for one in releases for group, value in truth[i].items()] for i in range(6)
    ]
    return [float(np.sqrt(np.mean(values))) for values in squares]


@dataclass(frozen=True)
class Errors:
    """Standard errors of the six as known before and as measured over ``releases``; ``seconds`` of one release."""

    name: str
    known: list[float]
    found: list[float]
    releases: int
    seconds: float

    def whole(self) -> float:
        """The root mean square over all numbers."""
        numbers = [column.numbers for column in SIX]
        return math.sqrt(np.average(np.square(self.known), weights=numbers))

    def relative(self, others: Sequence[float]) -> float:
        """The root mean square over the six columns of the ratio to other errors."""
        return math.sqrt(np.mean(np.square(np.array(self.known) / others)))


def peer(name: str, budget: Mapping[str, float], truth: Answers, given: argparse.Namespace) -> Errors:
    """One library. Raises ``sql_peers.PeerError`` where it fails."""
    script, packages = PEERS[name]
    queries = [{"keys": list(column.keys), "distinct": column.distinct} for column in SIX]
    task = {
        **{"path": str(visits_path()), "queries": queries, "domains": DOMAINS, "most": MOST, "budget": budget},
        **{"releases": given.releases, "seconds": PEER_SECONDS},
    }
    python = sql_peers.environment(name, packages, given.limit, given.environments)
    found = sql_peers.answered(python, script, task, given.limit)
    if not found.get("answers"):
        raise sql_peers.PeerError("failed: no answers")
    releases = [[{tuple(key): value for key, value in rows} for rows in one["answers"]] for one in found["answers"]]
    said, took = found["answers"][0]["said"], float(np.median(found["seconds"]))
    return Errors(f"{name} {found['version']}", said, measured(releases, truth), len(releases), took)


def planned(
    name: str, weights: Mapping[Column, float], objective: str, budget: Mapping[str, float], truth: Answers, times: int
) -> tuple[Errors, float | None]:
    """dpsql: the columns with their weights in one batch, and the gap."""
    sql = ";\n".join(column.sql(weight) for column, weight in weights.items())
    with connected(visits_policy(), budget) as con:
        plan = con.plan(sql, objective=objective, **budget)
        known = [float(np.sqrt(np.mean(np.square(error)))) for error in plan.stderr.values()]
        releases, seconds = [], []
        for _ in range(times):
            began = time.perf_counter()
            release = con.run(plan, fresh=True, errors=False)
            seconds.append(time.perf_counter() - began)
            answers = []
            for view, column in zip(release, weights, strict=True):
                names = release[view].columns
                keys, value = [names.index(key) for key in column.keys], names.index("answer")
                answers.append({tuple(row[i] for i in keys): float(row[value]) for row in release[view].fetchall()})
            releases.append(answers)
    found = Errors(name, known, measured(releases, truth), times, float(np.median(seconds)))
    return found, plan.gap


def balanced(best: Sequence[float]) -> dict[Column, float]:
    """Weights at which each column's mean squared error counts in units of the best peer's."""
    unit = best[-1] * SIX[-1].numbers ** 0.5
    return {column: unit / (error * column.numbers**0.5) for column, error in zip(SIX, best, strict=True)}


def partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """The ways to write ``total`` as a sum of parts of at most ``largest``, in falling order."""
    if total == 0:
        yield ()
    for first in range(min(total, largest), 0, -1):
        for rest in partitions(total - first, first):
            yield (first, *rest)


def least_relative(best: Sequence[float]) -> float:
    """What no Gaussian mechanism goes below: the root mean square ratio of the six to ``best``, by the dual.

    A person has a visit in some of the months, each in one state; up to exchanges of months and of states only the
    number of visits in each state counts. Persons by month, and by state and month, are the visits. By symmetry M is a
    2 x 2 matrix (visits, persons by state) on totals and another on contrasts between states, and a number on contrasts
    between months and on those of both.
    """
    months, states = len(MONTHS), len(STATES)
    by_state, persons, by_month, also_month, by_both, also_both = (
        1.0 / (column.numbers * error**2) for column, error in zip(SIX, best, strict=True)
    )
    by_month, by_both = by_month + also_month, by_both + also_both
    asked = np.diag([by_state * months + by_month * states + by_both, persons])
    across_states, across_months = np.diag([by_state * months + by_both, persons]), by_month * states + by_both
    parts: list[list[Any]] = [[], [], [], []]
    for spread in (one for rows in range(1, months + 1) for one in partitions(rows, months)):
        rows, used = sum(spread), len(spread)
        mean = np.array([rows / math.sqrt(months * states), used / math.sqrt(states)])
        cross = rows / math.sqrt(months)
        inside = np.array([[sum(n * n for n in spread) / months, cross], [cross, used]])
        whole = np.outer(mean, mean)
        month = rows / states - whole[0, 0]
        between = inside - whole
        rest = rows - whole[0, 0] - between[0, 0] - month
        for held, part in zip(parts, (whole, between, [[month]], [[rest]]), strict=True):
            held.append(np.array(part))
    grams = (asked, across_states, np.array([[across_months]]), np.array([[by_both]]))
    times = (1, states - 1, months - 1, (months - 1) * (states - 1))
    scaled = [np.sqrt(g) @ (np.array(held) / k) @ np.sqrt(g) for g, held, k in zip(grams, parts, times, strict=True)]
    lam = np.full(len(parts[0]), 1.0 / len(parts[0]))
    for _ in range(100_000):
        t, q = 0.0, np.zeros(lam.size)
        for part, k in zip(scaled, times, strict=True):
            s, V = np.linalg.eigh(np.tensordot(lam, part, axes=1))
            root = np.sqrt(np.maximum(s, 1e-300))
            t += k * float(root.sum())
            q += k * np.einsum("kij,ij->k", part, (V / root) @ V.T)
        if q.max() <= t * (1 + 1e-4):
            return t / math.sqrt(len(SIX))
        lam *= (q / t) ** 2
        lam /= lam.sum()
    raise SystemExit("the dual did not converge")


def peers_table(report: Report, given: argparse.Namespace) -> None:
    """The six columns on every library, and on dpsql by what it is told."""
    truth = exact()
    for title, budget in BUDGETS.items():
        rows, others, notes = [], [], []
        for name in given.peers:
            print(f"{name}, {title} ...", file=sys.stderr, flush=True)
            try:
                others.append(peer(name, budget, truth, given))
            except sql_peers.PeerError as error:
                notes.append(f"{name}: {str(error).replace('|', ' ')}.")
        ones = dict.fromkeys(SIX, 1.0)
        best = [min(one.known[i] for one in others) for i in range(6)] if others else [1.0] * 6
        weights = balanced(best)
        asked = {
            "dpsql, the six as asked": (ones, "balanced"),
            "... each column in units of the best peer's (WEIGHT)": (weights, "total"),
        }
        mine = []
        for name, (columns, objective) in asked.items():
            print(f"{name}, {title} ...", file=sys.stderr, flush=True)
            found, gap = planned(name, columns, objective, budget, truth, given.releases)
            mine.append(found)
            if gap is not None:
                notes.append(f"{name.removeprefix('... ')}: within {100 * gap:.0f} % of the certified least of that.")
        for one in [*others, *mine]:
            cells = [f"{a:,.1f} / {b:,.1f}" for a, b in zip(one.known, one.found, strict=True)]
            relative = f"{one.relative(best):.2f}" if others else "-"
            rows.append([one.name, *cells, f"{one.whole():,.1f}", relative, one.releases, f"{one.seconds:.2f}"])
        if others and "rho" in budget:
            # At rho 0.5 a unit's noise has the variance 1.
            least = least_relative(best)
            notes.append(f"No Gaussian mechanism comes below {least:.3f} of the best peer's, as a mean of the six.")
        head = ["known / measured standard error", *(column.title for column in SIX)]
        head += ["all numbers", "of the best peer's, mean of six", "releases", "seconds"]
        report.table(f"Visits and persons, {title}", head, rows, "\n".join(notes))


# ---- 3. what units cost ----


def ratio_of(first: Callable[[], float], second: Callable[[], float], pairs: int) -> tuple[float, float, float]:
    """Medians of both, and of the ratio within a pair."""
    times = [(first(), second()) for _ in range(pairs)]
    a, b = np.array(times).T
    return float(np.median(a)), float(np.median(b)), float(np.median(a / b))


def planning(sql: str, tables: str, budget: Mapping[str, float]) -> Callable[[], float]:
    """CPU seconds of the process for one plan."""

    def run() -> float:
        with connected(tables, budget, *([] if "source" in tables else CREATED)) as con:
            con.schemas()
            began = time.process_time()
            con.plan(sql, **budget)
            return time.process_time() - began

    return run


def scanning(sql: str, tables: str) -> Callable[[], float]:
    """Seconds of the statements that one release ran over the table, in a plain DuckDB instance."""
    budget = BUDGETS["zCDP, rho 0.5"]
    with connected(tables, budget) as con, scans() as statements:
        plan = con.plan(sql, **budget)
        statements.clear()
        con.run(plan, fresh=True)
        ran = list(statements)
    plain = duckdb.connect()

    def run() -> float:
        began = time.perf_counter()
        for statement in ran:
            plain.execute(statement).fetchnumpy()
        return time.perf_counter() - began

    run()
    return run


def scans_together(report: Report, pairs: int) -> None:
    """Scans of several counts over the same million visits, one thread, over what they would take without privacy."""
    rows = []
    for title, persons, most in (
        ("250,000 persons, 4 visits each", "i % 250000", (10, 12, 4)),
        ("250,000 persons, 4 visits on average", "hash(i) % 250000", (10, 12, 4)),
        ("50,000 persons, 20 visits on average", "hash(i) % 50000", (10, 12, 4)),
    ):
        table = (
            f"CREATE TABLE visits AS SELECT CAST({persons} AS INTEGER) AS patient_id, "
            "CAST(1 + hash(i + 3000000) % 20 AS INTEGER) AS ward, CAST(1 + hash(i + 7000000) % 12 AS INTEGER) AS month "
            "FROM range(1000000) r(i)"
        )
        plain = duckdb.connect(config={"threads": 1})
        plain.execute(table)
        for limit, keys, both in itertools.product(most, (3, 4), (False, True)):
            asked = ("ward", "month", "", "ward, month")[:keys]
            wanted = "COUNT(DISTINCT patient_id) AS p" + (", COUNT(*) AS v" if both else "")
            statements = [
                f"SELECT {f'{key}, ' if key else ''}{wanted} FROM visits" + (f" GROUP BY {key}" if key else "")
                for key in asked
            ]
            tables = visits_by(20, limit, nulls=False).tables + "month = { lower = 1, upper = 12, nulls = false }\n"
            empty = f"{table} LIMIT 0"
            with connected(tables, {"rho": 0.5}, empty) as con, scans() as ran:
                plan = con.plan("; ".join(statements), rho=0.5)
                ran.clear()
                con.run(plan, fresh=True)
                private = list(ran)

            def run(texts: Sequence[str], plain: duckdb.DuckDBPyConnection = plain) -> Callable[[], float]:
                def seconds() -> float:
                    began = time.thread_time()
                    for text in texts:
                        plain.execute(text).fetchnumpy()
                    return time.thread_time() - began

                return seconds

            found = ratio_of(run(private), run(statements), pairs)
            name = f"{'visits and ' if both else ''}persons by {'; '.join(key or 'all' for key in asked)}"
            rows.append([title, name, limit, *(f"{value:.3f}" for value in found[:2]), f"{found[2]:.2f}"])
    head = ["visits", "batch", "rows a person", "private", "plain", "ratio"]
    report.table("Scans of counts over the same 1,000,000 rows, CPU seconds", head, rows)


def costs_table(report: Report, pairs: int) -> None:
    """Planning with units over planning over rows; scans with bounds over scans without."""
    counts = ";\n".join(column.sql(1.0) for column in SIX if not column.distinct)
    six = ";\n".join(column.sql(1.0) for column in SIX)
    over_rows = six.replace("COUNT(DISTINCT person)", "COUNT(cost)")
    rows_unit = HOSPITAL.replace('unit = "patient_id"\nmax_rows_per_unit = 10', 'unit = "row"')
    one_source = f"{COUNTS}; SELECT COUNT(*) AS n FROM visits"
    cases = [
        ("visits by state, month, state x month", counts, visits_policy(), counts, visits_policy("row")),
        ("visits and persons; over rows COUNT(cost)", six, visits_policy(), over_rows, visits_policy("row")),
        ("counts and averages of patients and a COUNT(DISTINCT); over rows COUNT(*)", f"{COUNTS}; {DISTINCT}", HOSPITAL,
         one_source, rows_unit),
    ]  # fmt: skip
    rows = []
    for title, budget in BUDGETS.items():
        for name, sql, tables, other, plain in cases:
            found = ratio_of(planning(sql, tables, budget), planning(other, plain, budget), pairs)
            rows.append([name, title, *(f"{value:.2f}" for value in found)])
    report.table("Planning, CPU seconds", ["batch", "budget", "units", "rows", "ratio"], rows)
    rows = []
    for name, sql in (("visits by state, month, state x month", counts), ("visits and persons", six)):
        held, loose = scanning(sql, visits_policy()), scanning(sql, visits_policy(capped=False))
        found = ratio_of(held, loose, max(pairs, 11))
        rows.append([name, *(f"{value:.3f}" for value in found[:2]), f"{found[2]:.2f}"])
    report.table(f"Scans of {VISITS:,} rows, seconds", ["batch", "12 rows, 1 a month", "12 rows", "ratio"], rows)


def main() -> None:
    """Print the tables."""
    writes = record.requested(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=30, help="releases of each system (default: 30)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of times (default: 5)")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="which peers to run")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a peer may take (default: 600)")
    parser.add_argument("--environments", type=Path, default=sql_peers.ENVIRONMENTS, help="where peers are installed")
    parser.add_argument("--certified", action="store_true", help="only the tables beside the least error")
    given = parser.parse_args()
    os.environ["DPSQL_CACHE"] = "off"  # every plan is made anew
    report = Report()
    found = contributions_table(report) + joined(report)
    if writes:
        record.write("units", found)
    if given.certified:
        return
    hospital(report)
    days(report)
    sums_by_groups(report)
    over_the_same_rows(report)
    expressions_of_one_column(report)
    pairs_of_columns(report)
    peers_table(report, given)
    costs_table(report, given.pairs)
    scans_together(report, given.pairs)


if __name__ == "__main__":
    main()
