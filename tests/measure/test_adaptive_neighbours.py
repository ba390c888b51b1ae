"""Runs in rounds over generated databases with and without one unit: no step tells more than it is charged for.

Databases are drawn from adversarial rows: NULLs, values outside of the domain, units of more rows than may count, keys
that dangle. DuckDB scans both as a measurement would. Then the law of each selection is worked out on both sides from
its definition, with a score written down anew, for estimates that move scores apart as far as they go and for those of
whole runs; and the most that an answer can tell, over all answers there are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from scipy import special

import dpsql
from dpsql.extensions.adaptive import steps
from dpsql.extensions.audit.privacy import steps_of
from dpsql.measure import ConnectionEngine, adaptive, cells
from dpsql.measure.adaptive import AdaptiveJob, Step
from dpsql.privacy.noise import Noise

Row = tuple[object, ...]
Tables = dict[str, list[Row]]

COLUMNS = """
[tables.t.columns]
a = { values = ["x", "y"] }
b = { lower = 0, upper = 2 }
c = { values = ["p", "q"], other = true, nulls = false }
"""
ROWS = 'dataset = "n-1"\n[budget]\nBUDGET\n[tables.t]\nunit = "row"\nexpected_rows = 20\n' + COLUMNS
UNITS = ROWS.replace('unit = "row"', 'unit = "u"\nmax_rows_per_unit = 3')
JOINED = (
    """
dataset = "n-1"
[budget]
BUDGET
[tables.people]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.people.columns]
sex = { values = ["f", "m"] }
[tables.t]
unit = "u"
max_rows_per_unit = 2
expected_rows = 20
references = { u = "people.id" }
"""
    + COLUMNS
)
PAIRS = "SELECT a, b, c, COUNT(*) AS n FROM t GROUP BY dp_marginals(2, a, b, c)"
BATCHES = {
    "rows": (ROWS, PAIRS),
    "units": (UNITS, PAIRS + "; SELECT COUNT(*) AS n FROM t WHERE a = 'x'"),
    "joined": (JOINED, "SELECT sex, a, b, COUNT(*) AS n FROM t JOIN people ON t.u = people.id "
                       "GROUP BY dp_marginals(2, sex, a, b)"),
}  # fmt: skip
BUDGETS: dict[str, tuple[dict[str, float], str]] = {
    "laplace": ({"epsilon": 1}, "epsilon = 8.0"),
    "gaussian": ({"rho": 0.5}, "rho = 8.0"),
}


def job_of(folder: Path, policy: str, sql: str, noise: str, rounds: int = 6) -> AdaptiveJob:
    """The run that a connection would measure."""
    budget, account = BUDGETS[noise]
    folder.mkdir(exist_ok=True, parents=True)
    with duckdb.connect(folder / "n.duckdb") as raw:
        create(raw)
    held = dpsql.Policy.parse(policy.replace("BUDGET", account))
    con = dpsql.connect(folder / "n.duckdb", policy=held, ledger=folder / "n.ledger")
    epsilon, rho = (budget.get(name) for name in ("epsilon", "rho"))
    job = con._batches.job(con.plan(sql, epsilon, rho=rho, method="adaptive", rounds=rounds), "key", "label")
    con.close()
    assert isinstance(job, AdaptiveJob)
    return job


def create(raw: duckdb.DuckDBPyConnection) -> None:
    raw.execute("CREATE TABLE people (id INTEGER, sex VARCHAR)")
    raw.execute("CREATE TABLE t (u INTEGER, a VARCHAR, b INTEGER, c VARCHAR)")


def some_tables(draw: random.Random) -> Tables:
    """Few rows of few units; unit 3 has no person, and some rows no unit."""
    people: list[Row] = [(u, draw.choice(["f", "m", None, "?"])) for u in (1, 2)]
    units, size = [1, 1, 1, 2, 3, None], draw.randrange(1, 9)
    rows: list[Row] = [
        (draw.choice(units), draw.choice(["x", "y", None, "z"]), draw.choice([0, 1, 2, 9, None]), draw.choice("pqr"))
        for _ in range(size)
    ]
    return {"people": people, "t": rows}


PLAIN: Tables = {"people": [(1, "f")], "t": [(1, "x", 1, "p")] * 3}


def without_one(tables: Tables, name: str) -> Iterator[Tables]:
    """The same without each unit, or each row, in turn."""
    if name == "rows":
        yield from ({**tables, "t": rows[:i] + rows[i + 1 :]} for rows in [tables["t"]] for i in range(len(rows)))
        return
    for unit in dict.fromkeys(row[0] for row in tables["t"]):
        yield {table: [row for row in rows if row[0] != unit] for table, rows in tables.items()}


def scanned(job: AdaptiveJob, tables: Tables) -> list[int]:
    """The exact candidates."""
    with duckdb.connect() as raw:
        create(raw)
        for name, rows in tables.items():
            for row in rows:
                raw.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
        return cells.observed(job, ConnectionEngine(raw), [0] * job.integers.shape[0])


def law(job: AdaptiveJob, step: Step, exact: list[int]) -> np.ndarray:
    """log P(i) of each candidate, from the definition: P(i) ~ exp(epsilon s_i / (2 D_i))."""
    exponents = []
    for number in range(step.first, len(job.stops)):
        part = job.part(number)
        far = sum(abs(x - e) for x, e in zip(exact[part], step.estimate[part], strict=True))
        score = job.weights[number] * far - (step.penalties[number] if step.penalties else 0)
        exponents.append(float(step.selection) * score / (2 * job.steep[number]))
    return np.asarray(np.array(exponents) - special.logsumexp(exponents))


def share_of_selection(job: AdaptiveJob, step: Step, left: list[int], right: list[int]) -> float:
    """What a selection tells, over what it is charged: the larger of its epsilon and, for Gaussian noise, its mu."""
    one, other = law(job, step, left), law(job, step, right)
    found = float(np.abs(one - other).max() / float(step.selection))
    if job.charge.noise == "gaussian":
        mu = float(job.cost(step) - step.measure) ** 0.5
        order = np.argsort(other - one)  # the tests of Neyman and Pearson, from the likeliest under ``one`` on
        power, size = (np.clip(np.cumsum(np.exp(p[order]))[:-1], 1e-300, 1 - 1e-16) for p in (one, other))
        found = max(found, float((special.ndtri(power) - special.ndtri(size)).max(initial=0.0) / mu))
    return found


def share_of_answer(job: AdaptiveJob, step: Step, number: int, left: list[int], right: list[int]) -> Fraction:
    """The most that an answer of the step tells, over what it is charged: epsilon, or mu squared. Exact."""
    part = job.part(number)
    moved = [step.times * (x - y) for x, y in zip(left[part], right[part], strict=True)]
    noise = job.law(step, number).parameter
    told = sum(d * d for d in moved) if job.charge.noise == "gaussian" else sum(map(abs, moved))
    return told / noise / step.measure


def apart(job: AdaptiveJob, draw: random.Random) -> list[int]:
    """An estimate that lies below some candidates, and above the others."""
    above = [draw.random() < 0.5 for _ in job.stops]
    return [99 * above[number] for number in range(len(job.stops)) for _ in range(*job.part(number).indices(10**9))]


Pair = tuple[list[int], list[int]]


def neighbours(job: AdaptiveJob, name: str, seed: int, databases: int) -> list[Pair]:
    """The exact candidates of generated databases, each with and without one unit."""
    draw, found = random.Random(seed), []
    for tables in (PLAIN, *(some_tables(draw) for _ in range(databases))):
        whole = scanned(job, tables)
        found += [(whole, scanned(job, fewer)) for fewer in without_one(tables, name)]
    return found


def worst(job: AdaptiveJob, pairs: list[Pair], seed: int) -> tuple[float, float]:
    """The largest shares of a selection and of an answer, over what each is charged."""
    draw, chosen, answered = random.Random(seed), 0.0, Fraction(0)
    opening = next(step for step, _, _ in steps_of(job, adaptive._rounds(job, [0] * job.stops[-1])) if step.selection)
    for left, right in pairs:
        for _ in range(4):
            penalties = [draw.randrange(9) for _ in job.stops]
            step = steps.Step(
                None, opening.measure, opening.times, opening.selection, opening.first, apart(job, draw), penalties
            )
            chosen = max(chosen, share_of_selection(job, step, left, right))
        shares = (share_of_answer(job, opening, number, left, right) for number in range(len(job.stops)))
        answered = max(answered, *shares)
    return chosen, float(answered)


def share_of_run(job: AdaptiveJob, left: list[int], right: list[int]) -> float:
    """What a run over ``left`` tells of ``right``, step by step, over all that is charged."""
    told, power = 0.0, 2 if job.charge.noise == "gaussian" else 1
    for step, number, _ in steps_of(job, adaptive._rounds(job, left)):
        told += float(share_of_answer(job, step, number, left, right) * step.measure)
        if step.number is None:
            told += share_of_selection(job, step, left, right) ** power * float(job.cost(step) - step.measure)
    return told / float(job.charge.mu_squared if job.charge.epsilon is None else job.charge.epsilon)


@dataclass(frozen=True)
class HalfNoise(AdaptiveJob):
    """Of half the scale that is paid for."""

    def law(self, step: Step, number: int) -> Noise:
        found = super().law(step, number)
        return replace(found, parameter=found.parameter / (4 if found.kind == "gaussian" else 2))


@dataclass(frozen=True)
class UncountedRows(AdaptiveJob):
    """Noise for one row, whatever a unit has."""

    def law(self, step: Step, number: int) -> Noise:
        found = super().law(step, number)
        rows = self.reach[number]
        return replace(found, parameter=found.parameter / (rows**2 if found.kind == "gaussian" else rows))


def as_a(kind: type[AdaptiveJob]) -> Callable[[AdaptiveJob], AdaptiveJob]:
    return lambda job: kind(**{f.name: getattr(job, f.name) for f in fields(job)})


MUTANTS: dict[str, tuple[Callable[[AdaptiveJob], AdaptiveJob], int]] = {
    "scores twice as steep": (lambda job: replace(job, weights=tuple(2 * w for w in job.weights)), 0),
    "half the noise": (as_a(HalfNoise), 1),
    "rows of a unit not counted": (as_a(UncountedRows), 1),
    "scores of one row": (lambda job: replace(job, steep=tuple(d // job.reach[0] for d in job.steep)), 0),
}


ALSO = [pytest.param(name, marks=pytest.mark.long) for name in BATCHES if name != "joined"]


@pytest.mark.parametrize("noise", BUDGETS)
@pytest.mark.parametrize("name", ["joined", *ALSO])
@pytest.mark.few("joined-laplace")
def test_no_step_tells_more_than_it_is_charged_for(tmp_path: Path, name: str, noise: str) -> None:
    """And a step of each mutant does."""
    job = job_of(tmp_path, *BATCHES[name], noise)
    pairs = neighbours(job, name, 1, 3)
    chosen, answered = worst(job, pairs, 1)
    assert 0.55 < chosen <= 1 + 1e-9
    assert answered == 1
    assert share_of_run(job, *pairs[0]) <= 1 + 1e-9
    for said, (mutant, where) in MUTANTS.items():
        if max(job.reach) > 1 or "row" not in said:
            assert worst(mutant(job), pairs, 1)[where] > 1.05, said


@pytest.mark.long
@pytest.mark.parametrize("noise", BUDGETS)
@pytest.mark.parametrize("name", BATCHES)
def test_no_step_of_many_databases_tells_more(tmp_path: Path, name: str, noise: str) -> None:
    job = job_of(tmp_path, *BATCHES[name], noise)
    pairs = neighbours(job, name, 2, 12)
    assert max(worst(job, pairs, 2)) <= 1 + 1e-9
    assert max(share_of_run(job, *pair) for pair in pairs) <= 1 + 1e-9
