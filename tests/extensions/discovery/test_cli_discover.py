"""``dpsql discover`` and ``dpsql policy show``: what they spend, show and write."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from dpsql import Policy
from dpsql.surfaces.cli import main

POLICY = """
dataset = "visits-1"
database = "visits.duckdb"
[budget]
epsilon = 2.0
delta = 1e-6
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
[tables.visits.columns]
diagnosis = {}
cost = {}
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as con:
        con.execute(
            "CREATE TABLE visits AS SELECT i // 2 AS patient, CASE WHEN i % 3 = 0 THEN 'flu' WHEN i % 3 = 1 "
            "THEN chr(27) || '[31mred\"' ELSE 'rare ' || i END AS diagnosis, 10.0 + i % 80 AS cost "
            "FROM range(6000) t(i)"
        )
    (tmp_path / "visits.toml").write_text(POLICY, encoding="utf-8")
    return str(tmp_path / "visits.toml")


def test_values_are_found_shown_and_written(policy: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["discover", "visits.diagnosis", "--policy", policy, "--epsilon", "0.5", "--delta", "1e-9"]
    assert main([*asked, "--max-groups", "2", "--dry-run", "--json"]) == 0
    prospect = json.loads(capsys.readouterr().out)
    assert prospect["threshold"] < 200
    assert prospect["set_aside"] == "delta 5e-7 set aside for finding groups"
    assert not (tmp_path / "visits.ledger").exists()
    assert main(asked) == 1
    assert "--max-groups is missing" in capsys.readouterr().err
    assert main([*asked, "--max-groups", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 values of visits.diagnosis, all others are OTHER; release 2, spent epsilon 0.5, delta 1e-9" in shown
    assert "\x1b" not in shown
    assert main([*asked, "--max-groups", "2", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["values"], again["cost"]) == (2, 0)
    assert main(["policy", "show", policy]) == 0
    shown = capsys.readouterr().out
    assert "release 2 on visits-1" in shown
    assert "\x1b" not in shown
    assert main(["policy", "show", policy, "--toml"]) == 0
    written = tmp_path / "found.toml"
    written.write_text(capsys.readouterr().out, encoding="utf-8")
    assert Policy.load(written).table("visits").column("diagnosis").values == ('\x1b[31mred"', "flu")
    assert main(["policy", "show", policy, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["found"]
    assert listed == [{"table": "visits", "column": "diagnosis", "release": 2, "dataset": "visits-1"}]


@pytest.mark.long
def test_bounds_are_found(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "visits.cost", "--policy", policy, "--bounds", "--epsilon", "1"]) == 0
    assert "Bounds of visits.cost" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["discover", "visits.cost", "--policy", policy, "--bounds", "--dry-run", "--epsilon", "1"])
