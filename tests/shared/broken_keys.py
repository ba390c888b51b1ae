"""Tables with broken keys, batches over them, and the rows to be found there, worked out apart from the code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from unit_rows import Ask, policy_of
from whose_rows import Database, Row

POLICY = policy_of("""
[tables.patients]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
references = { region = "regions.id" }
[tables.patients.columns]
name = { values = ["a", "A", "b"], other = true }
sex = { values = ["f", "m"] }
age = { lower = 0, upper = 90 }
weight = { lower = -5, upper = 5 }
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 9
key = ["id"]
references = { patient_id = "patients.id" }
[tables.visits.columns]
kind = { values = ["a", "b"], other = true }
cost = { lower = -2, upper = 4 }
[tables.labs]
unit = "visits.patient_id"
max_rows_per_unit = 9
references = { visit_id = "visits.id" }
[tables.labs.columns]
v = { lower = -3, upper = 3 }
[tables.notes]
unit = "patient_id"
max_rows_per_unit = 9
references = { visit_id = "visits.id", patient_id = "patients.id" }
[tables.notes.columns]
w = { lower = 0, upper = 2 }
[tables.swabs]
unit = "patients.id"
max_rows_per_unit = 9
references = { pid = "patients.id" }
[tables.regions]
public = true
key = ["id"]
[tables.regions.columns]
place = { values = ["n", "s"] }
[tables.titles]
public = true
key = ["sex"]
[tables.titles.columns]
title = { values = ["Ms", "Mr"] }
""")
COLUMNS = {
    "patients": "id INTEGER, age INTEGER, weight DOUBLE, sex sex, name VARCHAR COLLATE NOCASE, region INTEGER, x INT[]",
    "visits": "id INTEGER, patient_id BIGINT, kind VARCHAR COLLATE NOCASE, cost DOUBLE",
    "labs": "visit_id INTEGER, v INTEGER",
    "notes": "patient_id INTEGER, visit_id INTEGER, w INTEGER",
    "swabs": "pid INTEGER",
}
NAN = float("nan")
UNITS = (1, 2, 3, None)
SOME = (1, 1, 1, 2, 2, 3, None)
VALUES: dict[str, tuple[Sequence[Any], ...]] = {
    "patients": (
        SOME,
        (10, 50, None),
        (NAN, -0.0, 0.0, 3.0, None),
        ("f", "m", None),
        ("a", "A", "b", "", None),
        (1, 2, None),
        (None,),
    ),
    "visits": ((7, 7, 8, None), SOME, ("a", "A", "b", None), (4.0, -0.0, 0.0, NAN, None)),
    "labs": ((7, 7, 8, 9, None), (3, -3, 2, None)),
    "notes": (SOME, (7, 7, 8, None), (0, 2, None)),
}
# In the order of the policy: the declared columns, then what its settings name. "m" is before "f" in the type.
ORDERS = {"patients": (4, 3, 1, 2, 0, 5), "visits": (2, 3, 1, 0)}

PATIENTS = "JOIN patients p ON patient_id = p.id"
OF_PATIENTS = [
    Ask("patients", ("sex",), ("age",)),
    Ask("patients", ("name",), ("weight",)),
    Ask("patients WHERE age > 20", ("sex",)),
    Ask("patients WHERE weight >= 0", ("name",)),
    Ask("patients", ("sex",), distinct=True),
    Ask("patients WHERE age > 20", ("name",), distinct=True),
    Ask("patients JOIN regions r ON region = r.id WHERE age > 20", ("place",)),
    Ask("patients p JOIN titles t ON p.sex = t.sex WHERE p.sex = 'f' OR age > 20", ("title",)),
    Ask(f"visits v {PATIENTS}", ("sex",)),
    Ask(f"visits v {PATIENTS}", ("name",), ("age", "cost")),
    Ask(f"visits v LEFT {PATIENTS} WHERE p.age > 20 OR kind = 'a'", ("p.sex",)),
    Ask(f"visits v {PATIENTS} WHERE age > 20", ("sex",), distinct=True),
    Ask(f"visits v {PATIENTS} JOIN regions r ON p.region = r.id", ("place",), ("weight",)),
    Ask(f"notes n {PATIENTS} WHERE weight >= 0", ("sex",)),
    Ask("labs JOIN visits v ON visit_id = v.id JOIN patients p ON v.patient_id = p.id", ("sex",), ("age",)),
]
OF_VISITS = [
    Ask("labs JOIN visits v ON visit_id = v.id", ("kind",), ("cost",)),
    Ask("labs JOIN visits v ON visit_id = v.id WHERE cost > 0"),
    Ask("labs JOIN visits v ON visit_id = v.id WHERE v > 0", ("kind",), distinct=True),
    Ask("notes JOIN visits v ON visit_id = v.id", ("kind",), ("cost",)),
    Ask("notes JOIN visits v ON visit_id = v.id WHERE cost > 0", (), ("w",)),
    Ask("notes JOIN visits v ON visit_id = v.id WHERE w > 0", ("kind",), distinct=True),
]  # fmt: skip


def databases(count: int, seed: int) -> list[Database]:
    draw = random.Random(seed)
    return [
        {
            name: [tuple(draw.choice(pool) for pool in pools) for _ in range(draw.randrange(9))]
            for name, pools in VALUES.items()
        }
        for _ in range(count)
    ]


def place(value: Any) -> tuple[Any, ...]:
    """The place of a value: text by its bytes, minus zero after zero, NaN after numbers, NULL last."""
    if value is None:
        return (2,)
    if isinstance(value, str):
        return (0, value.encode())
    return (1,) if value != value else (0, value, str(value).startswith("-") and value == 0)


def least(rows: Iterable[Row], table: str, *apart: int) -> list[Row]:
    """Of the rows that are equal in the columns ``apart`` the least in the order of the policy."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: [place(row[column]) for column in ORDERS[table]]):
        found.setdefault(tuple(row[column] for column in apart), row)
    return list(found.values())


def mended_patients(database: Database) -> Database:
    return {**database, "patients": least(database["patients"], "patients", 0)}


def mended_visits(database: Database) -> Database:
    return {**database, "visits": least(database["visits"], "visits", 0, 1)}


Case = tuple[list[Ask], Callable[[Database], Database]]
CASES: dict[str, Case] = {"patients": (OF_PATIENTS, mended_patients), "visits": (OF_VISITS, mended_visits)}
