"""Counts of the units and rows that break a declared key or reference: exact without noise, and how much one unit
moves them.
"""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.extensions.discovery.coverage import Checks, opened
from dpsql.surfaces.cli import main

POLICY = """
dataset = "keys-1"
database = "keys.duckdb"
[budget]
epsilon = 200000.0
delta = 1e-6
[tables.patients]
unit = "Patient ID"
max_rows_per_unit = 1
key = ["Patient ID"]
[tables.patients.columns]
sex = { values = ["f", "m"], nulls = false }
[tables.visits]
unit = "pid"
max_rows_per_unit = 2
key = ["id", "day"]
references = { pid = "patients.Patient ID", ward = "wards.ward" }
[tables.labs]
unit = "visits.pid"
max_rows_per_unit = 9
key = ["lab"]
references = { id = "visits.id", day = "visits.day" }
[tables.events]
unit = "row"
key = ["a", "b"]
[tables.events.columns]
a = { values = [1, 2, 3], nulls = false }
[tables.wards]
public = true
key = ["ward"]
[tables.stays]
unit = "pid"
max_rows_per_unit = 3
key = ["token"]
"""
ROWS = """
CREATE TABLE patients AS SELECT (i % 270)::INTEGER AS "Patient ID", 'f' AS sex FROM range(300) r(i);
CREATE TABLE visits AS SELECT i % 40 AS pid, CASE WHEN i % 40 < 7 AND i > 79 THEN i - 40 ELSE i END AS id,
    DATE '2024-01-01' AS day, CASE WHEN i % 40 > 5 THEN 1 END AS ward FROM range(200) r(i);
INSERT INTO visits SELECT 20, NULL, DATE '2024-01-01', 1 FROM range(5);
INSERT INTO visits SELECT 1000 + i // 2, i // 4 * 2 + i % 2, DATE '2024-01-02', 2 + i % 2 FROM range(24) r(i);
CREATE TABLE labs AS SELECT i // 2 AS lab, i AS id, DATE '2024-01-01' AS day FROM range(9) r(i);
CREATE TABLE events AS SELECT i % 50 AS a, 'b' || (i // 60) AS b FROM range(1000) r(i);
CREATE TABLE wards AS SELECT 1 AS ward;
CREATE TABLE stays AS SELECT i AS pid, uuid() AS token FROM range(9) r(i);
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "keys.duckdb")) as held:
        held.execute(ROWS)
    (tmp_path / "keys.toml").write_text(POLICY, encoding="utf-8")
    return tmp_path / "keys.toml"


def test_what_breaks_a_key_or_reference_is_counted_privately(policy: Path) -> None:
    with dpsql.connect(policy=policy) as con:
        found = con.coverage(100000.0)
        counts = {(one.table, one.unit, one.target): round(one.number or 0) for one in found.broken}
        assert 12 <= counts.pop(("visits", "row", None)) <= 12 + 7  # of those that count, of 12 units and of 7
        assert counts == {
            ("patients", "Patient ID", None): 30,  # although one row of a patient counts
            ("visits", "pid", None): 7,  # of which one has more rows than count, and NULL repeats nothing
            ("visits", "pid", "patients"): 12,
            ("visits", "pid", "wards"): 12,  # NULL refers to nothing
            ("labs", "row", None): 4,
            ("events", "row", None): 1000 - 18 * 50 + 60,
        }
        for one in found.broken:
            assert one.low is not None
            assert one.low <= (one.number or 0) <= (one.high or 0)
        assert found.cost == pytest.approx(con.budget.charges[0].charge.amount)


def test_a_unit_or_row_moves_its_count_by_one_at_most(policy: Path) -> None:
    """Of the rows that count; those of a unit that share keys with others are as many as count."""
    with dpsql.connect(policy=policy) as con:
        schemas = con.schemas()
        promises = Checks.of(opened(con.policy, schemas), schemas).promises
    some = {"patients": (0, 100, 269), "visits": (3, 20, 39, 1000, 1001), "labs": (0, 8), "events": (0, 999)}
    with duckdb.connect(str(policy.with_suffix(".duckdb"))) as held:
        for one in promises:
            table, unit = one.table.name, "rowid" if one.unit == "row" else f'"{one.unit}"'
            count = one.sql.partition(" AS ")[2]
            (whole,) = held.execute(count).fetchone() or (0,)
            for lost in some[table]:
                held.execute(f"BEGIN; DELETE FROM {table} WHERE {unit} = {lost}")
                (less,) = held.execute(count).fetchone() or (0,)
                held.execute("ROLLBACK")
                assert 0 <= whole - less <= 1


@pytest.mark.long
def test_policy_check_shows_a_line_for_each_key_and_why_others_are_left_out(
    policy: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    asked = ["policy", "check", str(policy), "--epsilon", "100"]
    assert main([*asked, "--dry-run"]) == 0
    assert "visits_without_patients" in capsys.readouterr().out
    caplog.clear()
    assert main(asked) == 0
    shown = capsys.readouterr().out
    (line,) = [line.split() for line in shown.splitlines() if line.startswith("patients (Patient ID)")]
    assert line[3:6] == ["units", "(Patient", "ID)"]
    assert len(line) == 10
    assert shown.count("visits (id, day)") == 2
    assert "visits (ward) to wards" in shown
    assert "events (a, b)" in shown
    assert "epsilon 100" in shown
    said = [record.getMessage() for record in caplog.records if "not counted" in record.getMessage()]
    assert said == [
        "reference labs (id, day): not counted, since a row whose unit is not found belongs to nobody",
        "key wards (ward): not counted, since the table is public: anybody can look",
        "key stays (token): not counted, since token is UUID, which no batch reads",
    ]
    assert main([*asked, "--json"]) == 0
    broken = json.loads(capsys.readouterr().out)["broken"]
    assert [one["target"] for one in broken] == [None, None, None, "patients", "wards", None, None]
