"""A first policy proposes whom to protect, from the schema alone, and what was hardly meant is said."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import filled

from dpsql.errors import PolicyError
from dpsql.extensions.advice.first_policy import skeleton
from dpsql.extensions.advice.policy_advice import advice, undecided
from dpsql.extensions.advice.policy_commands import _ask_unit
from dpsql.extensions.advice.proposals import Proposal, propose
from dpsql.measure import Declared
from dpsql.policy import Policy
from dpsql.surfaces.cli import main

HOSPITAL = """
CREATE TABLE wards (ward_id INTEGER PRIMARY KEY, name VARCHAR NOT NULL);
CREATE TABLE patients (id INTEGER PRIMARY KEY, born DATE NOT NULL, sex VARCHAR);
CREATE TABLE admissions (
    admission_id INTEGER PRIMARY KEY, patient_id INTEGER REFERENCES patients (id),
    ward_id INTEGER REFERENCES wards (ward_id), nights INTEGER
);
CREATE TABLE lab_results (admission_id INTEGER REFERENCES admissions (admission_id), value DOUBLE);
CREATE TABLE "pay ""roll"" 1" (staffNo INTEGER, pay DECIMAL(9, 2));
"""
TABLES = ["admissions", "lab_results", "patients", 'pay "roll" 1', "wards"]


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with filled("hospital.duckdb") as db:
        db.execute(HOSPITAL)
    return tmp_path


def test_units_come_from_keys_references_and_names(hospital: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "init", "--database", "hospital.duckdb"]) == 0
    text = capsys.readouterr().out
    held = Policy.parse(text.replace("# confirm: ", "")).tables
    assert {name: (held[name].unit, held[name].max_rows_per_unit) for name in TABLES} == {
        "admissions": ("patient_id", 5),
        "lab_results": ("admissions.patient_id", 5),
        "patients": ("id", 1),
        'pay "roll" 1': ("staffNo", 5),
        "wards": ("row", None),
    }
    assert not held["patients"].column("born").nulls
    # What is proposed is right as it stands, and still nothing of it counts before a person says so.
    Path("first.toml").write_text(text)
    Path("confirmed.toml").write_text(text.replace("# confirm: ", ""))
    assert main(["policy", "check", "confirmed.toml", "--database", "hospital.duckdb"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["policy", "check", "first.toml", "--database", "hospital.duckdb", "--json"]) == 1
    errors = json.loads(capsys.readouterr().out)["error"]["errors"]
    assert len(errors) == 11  # the budget, and of each table its own settings and its columns
    assert any(error.startswith("tables.patients.columns: id, born, sex are undecided (lines") for error in errors)


def test_files_without_keys_are_linked_by_names_alone() -> None:
    schemas = {
        "orders": {"order_id": "BIGINT", "customer_id": "BIGINT", "total": "DOUBLE"},
        "parts": {"part": "VARCHAR", "supplier_id": "UUID"},
        "photos": {"customer_id": "BLOB", "size": "INTEGER"},
    }
    found = propose(schemas, {}, {})
    assert {name: proposal.unit for name, proposal in found.items()} == {
        "orders": "customer_id", "parts": "supplier_id", "photos": None,
    }  # fmt: skip
    assert found["orders"].others == ("order_id",)
    tables = {name: Declared(columns) for name, columns in schemas.items()}
    assert '# confirm: unit = "row"' in skeleton({"photos": tables["photos"]}, "x", found)
    assert "supplier_id identifies something, and nothing says that it is a person" in skeleton(tables, "x", found)
    public = replace(found["parts"], unit=None, key=("part",), public=True, decided=True)
    held = Policy.parse(skeleton(tables, "x", found | {"parts": public}).replace("# confirm: ", "")).tables
    assert (held["parts"].public, held["parts"].unique) == (True, ("part",))


def test_the_terminal_takes_a_table_for_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("public\n"))
    chosen = _ask_unit("wards", {"ward_id": "INTEGER"}, Proposal(None, key=("ward_id",)))
    assert (chosen.public, chosen.unit, chosen.decided) == (True, None, True)


def test_the_terminal_asks_for_units(
    hospital: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = (
        "patient_id\nmany\n4\nlots\n800\n"
        + "\n\n"
        + "nobody\nID\n1\n\n"
        + "row\n90\n"
        + "ward_id\n\n\n"
        + "-1\n\n2\n\n"
    )
    for stream, content in (("stdin", answers), ("stderr", "")):
        terminal = io.StringIO(content)
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr(f"sys.{stream}", terminal)
    assert main(["policy", "init", "--database", "hospital.duckdb"]) == 0
    text = capsys.readouterr().out
    assert "max_rows_per_unit = 4\nexpected_rows = 800\n" in text
    assert 'unit = "row"\nexpected_rows = 90\n' in text
    assert text.count("\n# expected_rows =   # about how many rows count") == 3
    assert "write a whole number such as 20000" in terminal.getvalue()
    assert 'unit = "patient_id"\nmax_rows_per_unit = 4\n' in text.replace("# confirm: ", "#")
    assert '# confirm: unit = "admissions.patient_id"\n# confirm: max_rows_per_unit = 5\n' in text
    assert '\nunit = "id"\nmax_rows_per_unit = 1\n' in text
    assert '\nunit = "row"\n' in text
    assert '# confirm: unit = "ward_id"\n# confirm: max_rows_per_unit = 5\n' in text  # half an answer decides nothing
    assert "[budget]\nepsilon = 2\ndelta = " in text
    assert "epsilon must be positive, not '-1'" in terminal.getvalue()
    assert "patients has no column nobody" in terminal.getvalue()
    assert "write a whole number" in terminal.getvalue()


def test_undecided_lines_are_named_with_their_section() -> None:
    assert undecided("# a note\n[tables.t]\nunit = 'row'\n[tables.t.columns]\n# confirm: a = {}\nb = {}\n") == {
        'tables.t.columns: a is undecided (line 5); correct each, remove "# confirm:" in front, or delete its line to '
        "keep the column closed": ("tables.t.columns.a",)
    }


ADVICE = {
    'unit = "row"\n[tables.t.columns]': 'tables.t.unit is "row" beside member_no: if values repeat',
    'unit = "row"\n[tables.t.columns]\nday = { lower = 2024-01-01, upper = 2024-12-31 }': "the column is NOT NULL",
    'unit = "row"\nkey = ["age"]\n[tables.t.columns]\nage = { values = [1, 2] }': "the column is the table's key",
    'unit = "row"\n[tables.t.columns]\nold = { values = [true, false], other = true }': "leave other out",
    'unit = "row"\n[tables.t.columns]\nkind = { values = ["a", "NULL"] }': "have a group of their own already",
    'unit = "row"\n[tables.t.columns]\nkind = { values = ["n/a"], nulls = false }': "as nulls = false",
}
SCHEMA = {"t": {"member_no": "INTEGER", "age": "INTEGER", "day": "DATE", "old": "BOOLEAN", "kind": "VARCHAR"}}


@pytest.mark.parametrize("body", ADVICE, ids=range(len(ADVICE)))
def test_what_was_hardly_meant_is_said(body: str) -> None:
    policy = Policy.parse(f'dataset = "d"\n[budget]\nepsilon = 1\n[tables.t]\n{body}')
    assert ADVICE[body] in "\n".join(advice(policy, SCHEMA, {"t": {"day"}}, {}))


def test_what_was_meant_is_not_remarked_on() -> None:
    policy = Policy.parse(
        'dataset = "d"\n[budget]\nepsilon = 1\n[tables.t]\nunit = "member_no"\nmax_rows_per_unit = 2\n'
        "[tables.t.columns]\nday = { lower = 2024-01-01, upper = 2024-12-31, nulls = false }\n"
        'kind = { values = ["a"], other = true }'
    )
    assert advice(policy, SCHEMA, {"t": {"day"}}, {}) == []
    rows = Policy.parse('dataset = "d"\n[budget]\nepsilon = 1\n[tables.t]\nunit = "row"')
    assert advice(rows, SCHEMA, {}, {"t": ("member_no",)}) == []  # no two rows share a primary key


def test_a_collation_of_units_keys_references_and_groups_is_remarked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with filled("c.duckdb") as db:
        db.execute("CREATE TABLE people (id VARCHAR COLLATE NOCASE, \"a COLLATE b\" VARCHAR DEFAULT 'COLLATE')")
        db.execute(
            'CREATE TABLE visits ("pid" VARCHAR COLLATE "nocase.noaccent", why VARCHAR COLLATE nfc, '
            'plain VARCHAR COLLATE "binary", noted VARCHAR COLLATE nocase)'
        )
    Path("c.toml").write_text(
        'dataset = "c-1"\n[budget]\nepsilon = 1\n'
        '[tables.people]\nunit = "id"\nkey = ["id"]\nmax_rows_per_unit = 1\n'
        '[tables.people.columns]\n"a COLLATE b" = { values = ["x"] }\n'
        '[tables.visits]\nunit = "pid"\nmax_rows_per_unit = 2\nreferences = { pid = "people.id" }\n'
        '[tables.visits.columns]\nwhy = { values = ["x"] }\nplain = { values = ["x"] }\nnoted = {}\n'
    )
    assert main(["policy", "check", "c.toml", "--database", "c.duckdb"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "COLLATE" in line]
    assert [(line.split(": ")[2], line.split("has ")[1].split(",")[0]) for line in said] == [
        ("tables.people.unit", "COLLATE nocase"),
        ("tables.visits.unit", "COLLATE nocase.noaccent"),
        ("tables.visits.columns.why", "COLLATE nfc"),
    ]
    with filled("c.duckdb") as db:  # as the remark says
        for column in ("pid", "why"):
            db.execute(f"ALTER TABLE visits ALTER {column} TYPE VARCHAR")
        db.execute("ALTER TABLE people ALTER id TYPE VARCHAR")
    assert main(["policy", "check", "c.toml", "--database", "c.duckdb"]) == 0
    assert "COLLATE" not in capsys.readouterr().err


def test_every_error_is_shown_at_once(hospital: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
anker = "x"
[budget]
epsilon = 1
delta = 2
pure = 1
[tables.patients]
unit = "id"
[tables.patients.columns]
born = { lower = "1950-01-01", upper = 2000-01-01 }
sex = { values = ["f", "f"], nuls = false, other = 1 }
[tables.wards]
public = 1
key = "ward_id"
"""
    wrong = (
        "anker is not a setting",
        "dataset is missing",
        "budget.pure is not a setting",
        "budget.delta is 2",
        "tables.patients.columns.born.lower is in quotes, which make it a string; write 1950-01-01 without them",
        "tables.patients.columns.sex.nuls is not a setting",
        "tables.patients.columns.sex.other is an integer",
        'tables.patients.columns.sex.values lists "f" twice',
        "tables.patients.max_rows_per_unit is missing",
        "tables.wards.unit is missing",
        "tables.wards.key is a string",
        "tables.wards.public is an integer",
    )
    with pytest.raises(PolicyError, match=r"^the policy has 12 errors: \(1\) .*; \(12\) ") as caught:
        Policy.parse(text)
    assert len(caught.value.errors) == len(wrong)
    for said, expected in zip(caught.value.errors, wrong, strict=True):
        assert said.startswith(expected)
    assert "\n" not in str(caught.value)
    Path("wrong.toml").write_text(text)
    assert main(["budget", "--policy", "wrong.toml"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1 + len(wrong)


def test_all_that_contradicts_the_tables_is_shown_at_once(hospital: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.toml").write_text(
        'dataset = "d"\n[budget]\nepsilon = 1\n[tables.patients]\nunit = "row"\n[tables.patients.columns]\n'
        'born = { values = ["1950-01-01"] }\nsexx = {}\n[tables.ward]\npublic = true\n'
    )
    assert main(["policy", "check", "wrong.toml", "--database", "hospital.duckdb"]) == 1
    said = capsys.readouterr().err
    assert "tables.ward" in said
    Path("wrong.toml").write_text(Path("wrong.toml").read_text().replace("[tables.ward]", "[tables.wards]"))
    assert main(["policy", "check", "wrong.toml", "--database", "hospital.duckdb"]) == 1
    said = capsys.readouterr().err
    assert "write 1950-01-01 without quotes" in said
    assert "tables.patients.columns.sexx: there is no such column; did you mean sex?" in said
