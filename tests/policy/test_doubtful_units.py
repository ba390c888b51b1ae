"""One person under two unit names is warned of, and a guarantee names each table's own column."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.surfaces.cli import main


def policy(units: dict[str, tuple[str, str]], more: str = "") -> dpsql.Policy:
    text = 'dataset = "d-1"\n[budget]\nepsilon = 9.0\n' + more
    for table, (unit, lines) in units.items():
        text += f'[tables."{table}"]\nunit = "{unit}"\nmax_rows_per_unit = 2\n{lines}\n[tables."{table}".columns]\n'
        text += "" if "." in unit else f'"{unit}" = {{}}\n'
    return dpsql.Policy.parse(text)


PEOPLE = '[tables.people]\npublic = true\nkey = ["id"]\n'


@pytest.mark.parametrize(
    ("units", "more", "doubtful"),
    [
        ({"a": ("patient_id", ""), "b": ("Patient ID", "")}, "", 1),
        ({"a": ("patient_id", ""), "b": ("PatientID", ""), "c": ("patient id", "")}, "", 3),
        ({"a": ("patient_id", ""), "b": ("PATIENT_ID", "")}, "", 0),  # equal in any case: they share their unit
        ({"a": ("patient_id", ""), "b": ("bed", "")}, "", 0),
        ({"a": ("P ID", 'key = ["P ID"]'), "b": ("p_id", "references = { p_id = 'a.P ID' }")}, "", 0),
        ({"a": ("p", "references = { p = 'people.id' }"), "b": ("q", "references = { q = 'people.id' }")}, PEOPLE, 1),
        ({"a": ("p", "references = { p = 'people.id' }"), "b": ("q", "")}, PEOPLE, 0),
    ],
)  # fmt: skip
def test_units_that_may_be_one_person_are_doubted(units: dict[str, tuple[str, str]], more: str, doubtful: int) -> None:
    said = policy(units, more).doubtful_units
    assert len(said) == doubtful
    assert all("has the sum of both epsilons" in line for line in said)


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "x.duckdb")) as held:
        held.execute('CREATE TABLE "Admissions" AS SELECT i AS "Patient ID", 1 AS cost FROM range(100) t(i)')
        held.execute("CREATE TABLE labs AS SELECT i AS patient_id, 1 AS value FROM range(100) t(i)")
    return tmp_path


def test_check_init_and_every_plan_warn(hospital: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = str(hospital / "x.duckdb")
    assert main(["policy", "init", "--database", database]) == 0
    text, said = capsys.readouterr()
    for words in (text, said):
        assert "Admissions protects each Patient ID and labs each patient_id, apart" in words
    (hospital / "x.toml").write_text(text.replace("# confirm: ", ""), encoding="utf-8")
    assert main(["policy", "check", str(hospital / "x.toml"), "--database", database]) == 0
    assert "whoever is behind both has the sum of both epsilons" in capsys.readouterr().err
    with dpsql.connect(database, policy=hospital / "x.toml") as con:
        for sql in ("SELECT COUNT(*) FROM labs", 'SELECT COUNT(*) AS n FROM "Admissions" WHERE cost > 0'):
            plan = con.plan(sql, epsilon=0.1)
            assert any("Admissions protects each Patient ID" in note for note in plan.notes)
            assert "the sum of both epsilons" in " ".join(str(plan).split())


def test_a_guarantee_names_the_own_column_of_each_table(hospital: Path) -> None:
    units = {
        "Admissions": ("Patient ID", 'key = ["Patient ID"]'),
        "labs": ("patient_id", 'references = { patient_id = "Admissions.Patient ID" }'),
    }
    with dpsql.connect(hospital / "x.duckdb", policy=policy(units), ledger=hospital / "l.ledger") as con:
        one, both = "SELECT COUNT(*) AS n FROM labs", 'SELECT COUNT(*) AS m FROM "Admissions"'
        of_labs, of_admissions = "all rows of one patient_id in labs (at most 2 count)", "Patient ID in Admissions"
        assert con.plan(one, epsilon=0.1).privacy.endswith(of_labs)
        assert f"all rows of one {of_admissions}" in con.plan(both, epsilon=0.1).privacy
        assert f"{of_labs} and of the same {of_admissions}" in con.plan(f"{one}; {both}", epsilon=0.1).privacy
