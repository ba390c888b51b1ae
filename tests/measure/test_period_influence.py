"""Which rows move an answer, and which periods pay for it: generated batches over two tables that grow.

For each admitted batch the rows of every place outside of what it is charged to are changed: periods that no charge
names, those that still run, days before the first period, rows without a day. What moves then is a fault. Rows of
tables without periods may move a batch through those of a unit with rows in charged periods alone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.errors import Error, IntegrityError, SQLError
from dpsql.measure import cells, checks
from dpsql.planning import by_period
from dpsql.planning.last_plans import LastPlans
from dpsql.policy import Policy
from dpsql.workloads.compile import confined
from dpsql.workloads.expr.conditions import LineAtom

TODAY = dt.date(2024, 4, 10)
TOML = """
dataset = "growing-1"
[budget]
epsilon = 4.0
delta = 1e-6
[tables.visits]
unit = "patient"
key = ["visit"]
references = { patient = "patients.patient" }
max_rows_per_unit = 2
max_periods_per_unit = 3
periods = { column = "day", every = "1 month", first = 2024-01-01 }
[tables.visits.columns]
patient = {}
visit = {}
day = {}
ward = { values = ["a", "b"], nulls = false }
age = { lower = 0, upper = 7 }
[tables.bills]
unit = "patient"
references = { visit = "visits.visit", patient = "patients.patient" }
max_rows_per_unit = 2
max_periods_per_unit = 4
periods = { column = "sent", every = "2 weeks", first = 2024-01-08, wait = 2 }
[tables.bills.columns]
patient = {}
visit = {}
sent = {}
paid = { lower = 0, upper = 7 }
[tables.patients]
unit = "patient"
key = ["patient"]
max_rows_per_unit = 1
[tables.patients.columns]
patient = {}
sex = { values = ["f", "m"], nulls = false }
"""
DAYS = {"visits": "day", "bills": "sent"}
ROWS_ONLY = TOML[: TOML.index("[tables.bills]")].replace(
    'unit = "patient"\nkey = ["visit"]\nreferences = { patient = "patients.patient" }\n'
    "max_rows_per_unit = 2\nmax_periods_per_unit = 3",
    'unit = "row"',
)
COLUMNS = {
    "visits": "visit INTEGER, patient INTEGER, day DATE, ward VARCHAR, age INTEGER",
    "bills": "patient INTEGER, visit INTEGER, sent TIMESTAMP, paid INTEGER",
    "patients": "patient INTEGER, sex VARCHAR",
}
PLACES = [None, "2023-12-30", "2024-01-01", "2024-01-10", "2024-01-29", "2024-02-05", "2024-02-29"]
PLACES += ["2024-03-01", "2024-03-20", "2024-04-01", "2024-04-09", "2031-01-01"]
Rows = Mapping[str, Sequence[tuple[Any, ...]]]


def made(draw: random.Random, table: str, patient: int, day: str | None, number: int) -> tuple[Any, ...]:
    if table == "visits":
        return number, patient, day, draw.choice("ab"), draw.randrange(8)
    return patient, draw.randrange(60), day and f"{day} {draw.choice(['00:00:00', '23:59:59'])}", draw.randrange(8)


def database(draw: random.Random) -> dict[str, list[tuple[Any, ...]]]:
    """Patients 0 to 5 with rows anywhere, some of them in few places."""
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in COLUMNS}
    number = 0
    for patient in range(6):
        found["patients"].append((patient, draw.choice("fm")))
        places = draw.sample(PLACES, draw.choice([1, 2, 4, 8]))
        for table in DAYS:
            for _ in range(draw.choice([1, 3, 6])):
                found[table].append(made(draw, table, patient, draw.choice(places), number))
                number += 1
    return found


# -- batches ---------------------------------------------------------------------------------------------------


def some_days(draw: random.Random, column: str) -> str:
    """A condition on the day: often a closed period or two, sometimes more than may be read."""
    starts = ["2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01", "2024-05-01"]
    if column.endswith("sent"):
        starts = ["2024-01-08", "2024-01-22", "2024-02-05", "2024-02-19", "2024-03-18", "2024-04-01", "2024-04-15"]
    at = draw.choice([0, 0, 1, 1, 1, 2, 2, 3])
    one = f"{column} >= '{starts[at]}' AND {column} < '{starts[at + 1]}'"
    other = draw.choice([0, 1, 2])
    return draw.choice(
        [
            *[one] * 8,
            f"({one}) OR ({column} >= '{starts[other]}' AND {column} < '{starts[other + 1]}')",
            f"{column} BETWEEN '{starts[at]}' AND '{starts[at + 1]}'",
            f"{column} = '2024-02-10'",
            f"{column} < '{starts[at]}'",
            f"{column} IS NOT NULL",
            f"{one} OR {column} IS NULL",
            f"NOT ({one})",
            f"{one} AND {column} <> '2024-02-05'",
        ]
    )


def looked(draw: random.Random, own: str) -> str:
    """A condition on what other rows of the same patient are like."""
    table = draw.choice(["visits", "bills", own])
    days = draw.choice([f" AND ({some_days(draw, f'b.{DAYS[table]}')})"] * 7 + ["", ""])
    more = draw.choice(["", "", " AND b.age > 2" if table == "visits" else " AND b.paid > 2"])
    plain = (days + more).replace("b.", "")
    asked = draw.choice(
        [
            f"EXISTS (SELECT 1 FROM {table} b WHERE b.patient = a.patient{days}{more})",
            f"a.patient IN (SELECT patient FROM {table} WHERE TRUE{plain})",
            f"a.patient IN (SELECT patient FROM {table} WHERE TRUE{plain} GROUP BY patient HAVING COUNT(*) > 1)",
            f"EXISTS (SELECT 1 FROM {table} b WHERE b.patient = a.patient AND b.{DAYS[table]} < a.{DAYS[own]}{days})",
        ]
    )
    return draw.choice(["", "NOT "]) + asked


def set_of_units(draw: random.Random, depth: int = 0) -> str:
    table = draw.choice(["visits", "visits", "bills"])
    one = f"SELECT patient FROM {table} WHERE ({some_days(draw, DAYS[table])})"
    if depth < 2 and draw.random() < 0.6:
        other = set_of_units(draw, depth + 1)
        return f"{one} {draw.choice(['UNION', 'EXCEPT', 'INTERSECT'])} ({other})"
    return one


def statement(draw: random.Random) -> str:
    own = draw.choice(["visits", "visits", "bills"])
    day, value, key = DAYS[own], "age" if own == "visits" else "paid", "ward" if own == "visits" else "paid"
    where = f"({some_days(draw, f'a.{day}')})"
    extra = draw.choice(["", f" AND a.{value} > 2", f" AND {looked(draw, own)}", f" AND {looked(draw, own)}"])
    plain = some_days(draw, day)
    return draw.choice(
        [
            f"SELECT COUNT(*) AS n FROM {own} a WHERE {where}{extra}",
            f"SELECT a.{key}, COUNT(*) AS n, SUM(a.{value}) AS s FROM {own} a WHERE {where}{extra} GROUP BY a.{key}",
            f"SELECT COUNT(DISTINCT a.patient) AS n FROM {own} a WHERE {where}{extra}",
            f"SELECT COUNT(*) FILTER (WHERE {where}) AS n, COUNT_IF({where}{extra}) AS m FROM {own} a",
            f"SELECT COUNT_IF(n > 1) AS k FROM (SELECT patient, COUNT(*) AS n FROM {own} WHERE {plain} "
            "GROUP BY patient)",
            f"SELECT COUNT(*) AS k FROM (SELECT patient, MAX({value}) AS m FROM {own} a WHERE {where}{extra} "
            "GROUP BY patient HAVING COUNT(*) > 1) WHERE m > 3",
            f"SELECT COUNT(*) AS k FROM ({set_of_units(draw)})",
            f"SELECT COUNT(*) AS k FROM {own} a WHERE {where} AND a.patient IN ({set_of_units(draw)})",
            f"SELECT v.ward, COUNT(*) AS n FROM bills a JOIN visits v ON a.visit = v.visit "
            f"WHERE ({some_days(draw, 'a.sent')}) AND ({some_days(draw, 'v.day')}) GROUP BY v.ward",
            f"SELECT COUNT(*) AS n FROM bills a LEFT JOIN visits v ON a.visit = v.visit "
            f"WHERE ({some_days(draw, 'a.sent')}) AND COALESCE(v.age, 0) < 4",
            f"SELECT p.sex, COUNT(*) AS n FROM {own} a JOIN patients p ON a.patient = p.patient WHERE {where}{extra} "
            "GROUP BY p.sex",
            f"SELECT COUNT(*) AS n FROM {own} a JOIN (SELECT patient, MIN({day}) AS f FROM {own} WHERE {plain} "
            f"GROUP BY patient) m ON a.patient = m.patient WHERE {where} AND m.f < '2024-02-20'",
            f"SELECT p.sex, COUNT_IF(c.n > 0) AS k FROM patients p JOIN (SELECT patient, COUNT(*) AS n FROM {own} a "
            f"WHERE {where}{extra} GROUP BY patient) c ON c.patient = p.patient GROUP BY p.sex",
            f"SELECT COUNT(*) AS n FROM patients a WHERE {looked(draw, 'visits')}",
            f"SELECT COUNT_IF(k > 1) AS n FROM (SELECT patient, COUNT(*) AS k FROM (SELECT patient, MAX({value}) AS m "
            f"FROM {own} WHERE {plain} GROUP BY patient) GROUP BY patient)",
        ]
    )


def batch(draw: random.Random) -> str:
    return "; ".join(statement(draw) for _ in range(draw.choice([1, 1, 1, 2])))


# -- what moves, and who pays ----------------------------------------------------------------------------------


class World:
    """Two growing tables in memory, and the exact integers that a plan would measure of them."""

    def __init__(self, folder: Path, text: str) -> None:
        self.duck = duckdb.connect(config={"threads": 1})
        for name, columns in COLUMNS.items():
            self.duck.execute(f"CREATE TABLE {name} ({columns})")
        self.policy = replace(Policy.parse(text), today=TODAY)
        self.con = dpsql.connect(self.duck, policy=self.policy, ledger=folder / "p.ledger")

    def exact(self, plan: Any, held: Rows) -> np.ndarray:
        for name in COLUMNS:
            self.duck.execute(f"DELETE FROM {name}")
            listed = ", ".join(str(row).replace("None", "NULL") for row in held[name])
            if listed:
                self.duck.execute(f"INSERT INTO {name} VALUES {listed}")
        job = self.con._batches.job(plan, "key", "")
        return np.array(cells.observed(job, self.con._holdings.engine, [0] * plan.strategy.shape[0]), dtype=object)

    def pays(self, plan: Any, table: str, day: str | None) -> bool:
        """Whether a row of that day may move the answers of a plan: it is closed, and what is charged has it."""
        declared = self.policy.table(table).periods
        number = None if day is None else declared.number(dt.date.fromisoformat(day[:10]))
        if number is None or number >= declared.closed(TODAY):
            return False
        if plan.reads is None:
            return True
        return plan.reads.table == table and declared.start(number).isoformat() in plan.reads.read


def faults(world: World, plan: Any, draw: random.Random) -> list[str]:
    """What moves the answers of a plan without having paid, in words."""
    found: list[str] = []
    growing = [name for name in DAYS if name in world.policy.tables]
    held = {name: rows if name in world.policy.tables else [] for name, rows in database(draw).items()}
    base = world.exact(plan, held)
    for table in growing:
        free = [day for day in PLACES if not world.pays(plan, table, day)]
        # Rows of all places at once, and of single ones: of patients there are and others, under old and new keys.
        for places in [free, *([day] for day in draw.sample(free, min(2, len(free))))]:
            more = []
            for _ in range(draw.choice([1, 8]) if places else 0):
                patient, key = draw.choice([0, 1, 2, 3, 4, 5, 9]), draw.choice([draw.randrange(60), 99])
                more.append(made(draw, table, patient, draw.choice(places), key))
            if (world.exact(plan, {**held, table: [*held[table], *more]}) != base).any():
                found.append(f"rows of {table} of {places} move it")
        left = [row for row in held[table] if world.pays(plan, table, row[2])]
        if (world.exact(plan, {**held, table: left}) != base).any():
            found.append(f"rows of {table} that did not pay move it")
    for patient in draw.sample(range(6), 3) if world.policy.units["visits"] is not None else ():
        less = {name: [r for r in rows if r[1 if name == "visits" else 0] != patient] for name, rows in held.items()}
        gone = [(name, row) for name in growing for row in held[name] if row not in less[name]]
        norm = int(((world.exact(plan, less) - base) ** 2).sum())
        if norm > plan.sensitivity:
            found.append("a unit moves it by more than its sensitivity")
        if norm and plan.reads is not None and not any(world.pays(plan, name, row[2]) for name, row in gone):
            found.append("a unit without a row in what is charged moves it")
    return found


def planned(world: World, sql: str) -> Any:
    """A plan that no cache has."""
    world.con._plans = LastPlans()
    return world.con.plan(sql, epsilon=0.1, earlier=False)


def search(world: World, count: int, seed: int) -> tuple[Counter[str], list[tuple[str, str]]]:
    """How many batches were charged to periods, to everything, or refused; and the faults by batch."""
    draw, kinds, wrong = random.Random(seed), Counter[str](), []
    while kinds["periods"] + kinds["everything"] < count:
        sql = batch(draw)
        try:
            plan = planned(world, sql)
        except Error as error:
            kinds["refused" if "closed periods" in str(error) else "not answered"] += 1
            continue
        kinds["everything" if plan.reads is None else "periods"] += 1
        kinds["several"] += plan.reads is not None and len(plan.reads.read) > 1
        wrong += [(sql, fault) for fault in faults(world, plan, draw)]
    return kinds, wrong


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("units"), TOML)


@pytest.mark.long
def test_what_moves_an_answer_has_paid(world: World) -> None:
    kinds, wrong = search(world, 8, 1)
    assert not wrong
    assert min(kinds["periods"], kinds["everything"], kinds["refused"]) > 0


# -- wrong versions ----------------------------------------------------------------------------------------------

MARCH = "a.day >= '2024-03-01' AND a.day < '2024-04-01'"
OTHER = "SELECT patient FROM visits WHERE day >= '2024-01-01' AND day < '2024-02-01'"
LOOK = f"SELECT COUNT(*) AS n FROM visits a WHERE {MARCH} AND a.patient IN ({OTHER})"
BILLED = OTHER.replace("visits", "bills").replace("day", "sent").replace("01-01", "01-08").replace("02-01", "02-05")
UNION = f"SELECT COUNT(*) AS k FROM (SELECT patient FROM visits a WHERE {MARCH} UNION {OTHER})".replace("a.", "")
UNION = UNION.replace("visits a", "visits")


def no_looks(*_: Any) -> list[Any]:
    return []


def as_it_is(source: Any, *_: Any) -> Any:
    return source


def of_one_table(source: Any, values: Any) -> list[Any]:
    return [look for look in LOOKS(source, values) if look.table == source.table]


def one_forgotten(declared: Any, numbers: Sequence[int]) -> Any:
    return READS_OF(declared, list(numbers)[1:] or numbers)


def first_alone(test: Any, *rest: Any) -> Any:
    found = PROJECTED(test, *rest)
    return replace(found, intervals=found.intervals[:1]) if isinstance(found, LineAtom) else found


def holds(*_: Any) -> bool:
    return True


LOOKS, READS_OF, PROJECTED = by_period.looks, by_period.reads_of, confined._projected
MUTANTS: dict[str, tuple[str, list[tuple[Any, str, Callable[..., Any]]]]] = {
    "what is looked up is forgotten": (LOOK, [(by_period, "looks", no_looks), (by_period, "_read_only", as_it_is)]),
    "other tables that are looked at are forgotten": (
        LOOK.replace(OTHER, BILLED),
        [(by_period, "looks", of_one_table)],
    ),
    "one period is forgotten": (
        f"SELECT COUNT(*) AS n FROM visits a WHERE {MARCH.replace('03-01', '02-01')}",
        [(by_period, "reads_of", one_forgotten), (checks, "is_confined", holds)],
    ),
    "the second part of a union is forgotten": (
        UNION,
        [(confined, "_projected", first_alone), (by_period, "_read_only", as_it_is)],
    ),
    "a period that runs is closed": (
        "SELECT COUNT(*) AS n FROM visits WHERE day >= '2024-04-01' AND day < '2024-05-01'",
        [(by_period.Periods, "closed", lambda self, today: 4)],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.few("a period that runs is closed")
def test_a_wrong_version_is_noticed(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sql, changes = MUTANTS[name]
    with monkeypatch.context() as wrong:
        for change in changes:
            wrong.setattr(*change)
        plan = planned(world, sql)
    draw = random.Random(3)
    assert any(faults(world, plan, draw) for _ in range(12))
    with contextlib.suppress(SQLError):  # what no version may read is refused
        right = planned(world, sql + " ")
        assert not any(faults(world, right, random.Random(3)) for _ in range(2))


@pytest.mark.parametrize("name", ["what is looked up is forgotten", "one period is forgotten"])
def test_measuring_holds_a_plan_to_what_it_says_it_reads(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the charge, by itself, finds a plan that names too few periods."""
    sql, changes = MUTANTS[name]
    with monkeypatch.context() as wrong:
        wrong.setattr(*changes[0])
        plan = planned(world, sql)
    with pytest.raises(IntegrityError, match="outside of the periods"):
        world.con.run(plan)
    assert not world.con.budget.charges


def test_what_is_looked_up_pays(world: World) -> None:
    assert planned(world, LOOK).reads.read == ("2024-01-01", "2024-03-01")
    assert planned(world, LOOK.replace(OTHER, BILLED)).reads is None
    for rows in ("SELECT patient FROM visits", "SELECT patient FROM visits WHERE day < '2024-02-01'"):
        with pytest.raises(SQLError, match="by IN, EXISTS or a join"):
            planned(world, LOOK.replace(OTHER, rows))
    joined = f"SELECT COUNT(*) AS n FROM bills b JOIN visits a ON b.visit = a.visit WHERE {MARCH}"
    with pytest.raises(SQLError, match="bills is released by closed periods alone"):
        planned(world, joined)
    confined_too = f"{joined} AND b.sent >= '2024-01-08' AND b.sent < '2024-02-05'"
    assert planned(world, confined_too).reads is None
    with pytest.raises(SQLError, match=r"visits is released .* by IN, EXISTS or a join"):
        planned(world, confined_too.replace(MARCH, "a.age > 2"))
