"""Keys, references, units across tables and views of a policy."""

from __future__ import annotations

import pytest
from unit_rows import policy_of

from dpsql.errors import PolicyError
from dpsql.policy import Policy, check_schema
from dpsql.policy.types import joinable
from dpsql.policy.units import ForeignKey

PATIENTS = '[tables.patients]\nunit = "id"\nmax_rows_per_unit = 1\nkey = ["id"]\n'
VISITS = """[tables.visits]
unit = "patient_id"
max_rows_per_unit = 5
key = ["id"]
references = { patient_id = "patients.id" }
"""
LABS = '[tables.labs]\nunit = "visits.patient_id"\nmax_rows_per_unit = 9\nreferences = { visit_id = "visits.id" }\n'
PUBLIC = '[tables.regions]\npublic = true\nkey = ["id"]\n'
VIEW = '[views."adult visits"]\nsql = """SELECT *\nFROM visits -- all\nWHERE kind = \'a\\\\b\'"""\n'


def test_written_back_as_read() -> None:
    policy = policy_of(PATIENTS + VISITS + LABS + PUBLIC + VIEW)
    assert Policy.parse(policy.to_toml()) == policy
    assert policy.tables["visits"].unique == ("id",)
    assert policy.tables["visits"].references == {"patient_id": ("patients", "id")}
    assert policy.view("ADULT Visits") == "SELECT *\nFROM visits -- all\nWHERE kind = 'a\\b'"
    assert policy.view("other") is None


def test_tables_that_share_a_unit() -> None:
    others = (
        '[tables.bills]\nunit = "PATIENT_ID"\nmax_rows_per_unit = 2\n'
        '[tables.beds]\nunit = "row"\n'
        '[tables.doctors]\nunit = "doctor_id"\nmax_rows_per_unit = 1\n'
    )
    policy = policy_of(PATIENTS + VISITS + LABS + PUBLIC + others)
    labels = policy.labels
    assert labels["patients"] == labels["visits"] == labels["labs"] == labels["bills"] == "patient_id"
    assert labels["beds"] == "row of beds"
    assert labels["doctors"] == "doctor_id"
    assert "regions" not in labels
    assert policy.units["beds"] is None
    unit = policy.units["labs"]
    assert unit is not None
    assert unit.path == (ForeignKey(("visit_id",), "visits", ("id",)),)
    assert (unit.table, unit.column) == ("visits", "patient_id")


def test_units_are_linked_through_several_tables() -> None:
    samples = (
        '[tables.samples]\nunit = "visits.patient_id"\nmax_rows_per_unit = 9\nreferences = { lab = "labs.id" }\n'
        + LABS + 'key = ["id"]\n'
    )  # fmt: skip
    policy = policy_of(PATIENTS + VISITS + samples)
    unit = policy.units["samples"]
    assert unit is not None
    assert [key.table for key in unit.path] == ["labs", "visits"]
    assert len(set(policy.labels.values())) == 1


def test_keys_of_several_columns() -> None:
    visits = '[tables.visits]\nunit = "pid"\nmax_rows_per_unit = 5\nkey = ["pid", "No"]\n'
    labs = '[tables.labs]\nunit = "p"\nmax_rows_per_unit = 5\nreferences = { n = "visits.no", p = "visits.PID" }\n'
    policy = policy_of(visits + labs)
    assert policy.labels["labs"] == policy.labels["visits"]
    with pytest.raises(PolicyError, match="must name each column of the key of visits once: pid, No"):
        policy_of(visits + labs.replace('n = "visits.no", ', ""))


REFUSED = [
    (VISITS, "the policy has no table patients"),
    (PATIENTS.replace('key = ["id"]\n', "") + VISITS, r'not in the key of patients; write .*key = \["id"\]'),
    (PATIENTS.replace('["id"]', '["nr"]') + VISITS, "its key is nr"),
    (PATIENTS.replace('"id"\nmax_rows_per_unit = 1', '"row"') + VISITS, 'unit = "id" and max_rows_per_unit'),
    (PATIENTS.replace('unit = "id"', 'unit = "household"') + VISITS, 'tables.visits.unit = "patients.household"'),
    (PATIENTS + VISITS + LABS.replace("references", "#"), "no declared reference leads from labs to visits"),
    (PATIENTS + VISITS + LABS.replace("visits.patient_id", "visits.id"), "id is not the unit of visits"),
    (PATIENTS + VISITS + LABS.replace("{ ", '{ second = "visits.id", '), "lead from labs to visits in 2 ways"),
    (PUBLIC + 'references = { id = "regions.id" }\n', "is for private tables"),
    (PATIENTS.replace('["id"]', '["id", "ID"]'), "names a column twice"),
    (PATIENTS.replace('["id"]', '"id"'), r'a string; write a list of columns, such as \["id"\]'),
    (PATIENTS + VISITS.replace('"patients.id"', '"patients"'), 'write the table and the column, "patients.id"'),
    (PATIENTS + VISITS.replace('{ patient_id = "patients.id" }', '"patients.id"'), 'write { patient_id = '),
    (PATIENTS + VISITS.replace('"patients.id"', "3"), "is an integer; write a string"),
    (PATIENTS + '[views.patients]\nsql = "SELECT 1"\n', "has the name of a table"),
    (PATIENTS + '[views.v]\ntext = "SELECT 1"\n', "views.v.text is not a setting"),
    (PATIENTS + "[views.v]\n", "views.v.sql is missing"),
    (PATIENTS + "[views.v]\nsql = 3\n", "views.v.sql is an integer"),
    (PATIENTS + '[views.v]\nsql = " "\n', "is empty"),
    (PATIENTS + '[views]\nv = "SELECT 1"\n', "views.v is a string; write a table"),
    (
        PATIENTS + VISITS + '[tables.labs]\nunit = "person"\nmax_rows_per_unit = 1\nkey = ["id"]\n'
        'references = { visit_id = "visits.id" }\n[tables.samples]\nunit = "visits.patient_id"\nmax_rows_per_unit = 1\n'
        'references = { lab = "labs.id" }\n',
        'found through labs, whose unit is person; write tables.samples.unit = "labs.person"',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(PolicyError, match=reason):
        policy_of(text)


SCHEMAS = {
    "patients": {"id": "INTEGER"},
    "visits": {"id": "BIGINT", "patient_id": "HUGEINT"},
    "labs": {"visit_id": "TINYINT"},
    "regions": {"id": "VARCHAR"},
}


def test_keys_are_held_against_the_schema() -> None:
    policy = policy_of(PATIENTS + VISITS + LABS + PUBLIC)
    check_schema(policy, SCHEMAS)
    for table, columns, reason in [
        ("patients", {"nr": "INTEGER"}, "tables.patients.unit: there is no column id"),
        ("visits", {"patient_id": "INTEGER"}, "tables.visits.key: there is no column id"),
        ("visits", {"id": "INTEGER", "patient_id": "VARCHAR"}, "patient_id is VARCHAR and patients.id is INTEGER"),
        ("labs", {"v": "INTEGER"}, "there is no column visit_id"),
        ("regions", {"id": "DOUBLE"}, "which is no type of a key"),
        ("visits", {"id": "INTEGER", "patient_id": "PARQUET INT96"}, "patient_id is PARQUET.*no type of a unit"),
    ]:
        with pytest.raises(PolicyError, match=reason):
            check_schema(policy, {**SCHEMAS, table: columns})


def test_what_compares_as_a_key() -> None:
    same = [
        ("INTEGER", "UBIGINT"),
        ("VARCHAR", "ENUM('a')"),
        ("DATE", "DATE"),
        ("DECIMAL(9,2)", "DECIMAL(9,2)"),
        ("UUID",) * 2,
    ]
    apart = [("INTEGER", "VARCHAR"), ("UHUGEINT", "INTEGER"), ("DECIMAL(9,2)", "DECIMAL(9,3)"), ("DOUBLE",) * 2,
             ("DATE", "TIMESTAMP"), ("INTEGER[]",) * 2, ("TIMESTAMP", "TIMESTAMPTZ"), ("PARQUET X",) * 2]  # fmt: skip
    assert all(joinable(a, b) and joinable(b, a) for a, b in same)
    assert not any(joinable(a, b) or joinable(b, a) for a, b in apart)
    assert joinable("UHUGEINT", "UHUGEINT")
