"""A ledger with values that the optimal selection and weighted rounds found, which are no longer offered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.surfaces.cli import main

OLD = (Path(__file__).parent / "ledger_of_cut_mechanisms.sql").read_text(encoding="utf-8")
POLICY = """dataset = "visits-1"
database = "visits.duckdb"
[budget]
epsilon = 2.0
delta = 1e-6
pure_epsilon = 1.0
discovery_delta = 4e-7
[tables.visits]
unit = "patient"
max_rows_per_unit = 2
[tables.visits.columns]
ward = {}
drug = {}
"""
ROWS = (
    "CREATE TABLE visits AS SELECT i // 2 AS patient, 'ward ' || (i // 2 % 3) AS ward, 'drug ' || (i % 4) AS drug "
    "FROM range(2000) t(i)"
)
WARDS, DRUGS = ("ward 0", "ward 1", "ward 2"), ("drug 0", "drug 1", "drug 2", "drug 3")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "visits.ledger", isolation_level=None)) as ledger:
        ledger.executescript(OLD)
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as held:
        held.execute(ROWS)
    (tmp_path / "visits.toml").write_text(POLICY, encoding="utf-8")
    return tmp_path / "visits.toml"


@pytest.fixture
def con(policy: Path) -> Iterator[dpsql.Connection]:
    with dpsql.connect(policy=policy) as opened:
        yield opened


def test_what_they_found_is_listed_and_shown(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--policy", str(policy)]
    assert main(["releases", "rebuild", *given]) == 0
    capsys.readouterr()
    assert main(["releases", "list", *given]) == 0
    listed = capsys.readouterr().out
    assert "visits_ward" in listed
    assert "visits_drug" in listed
    for name, count in (("visits_ward", "341"), ("visits_drug", "532")):
        assert main(["releases", "show", name, *given]) == 0
        assert count in capsys.readouterr().out
    assert main(["ledger", "verify", *given]) == 0


def test_what_they_found_is_a_domain_and_answers(con: dpsql.Connection) -> None:
    assert con.rebuild() == 2
    assert [(domain.column.name, domain.column.values) for domain in con.found_domains] == [
        ("ward", WARDS),
        ("drug", DRUGS),
    ]
    spent = con.budget.spent
    assert con.sql("SELECT ward, n FROM visits_ward ORDER BY ward").fetchall() == list(
        zip(WARDS, (341, 326, 326), strict=True)
    )
    for column, counts in (("ward", (341, 326, 326)), ("drug", (532, 507, 490, 429))):
        free = con.run(f"SELECT {column}, COUNT(DISTINCT patient) AS n FROM visits GROUP BY {column}").fetchall()
        assert tuple(row[2] for row in free if row[0] is not None) == counts
    assert con.budget.spent == spent
    released = con.run("SELECT drug, COUNT(*) AS n FROM visits GROUP BY drug", epsilon=0.2, errors=False)
    assert {row[0] for row in released.fetchall()} == {*DRUGS, None}


def test_the_same_discovery_is_free_still_and_a_fresh_one_has_the_gaussian_threshold(con: dpsql.Connection) -> None:
    asked = {"epsilon": 0.5, "delta": "1e-7", "max_groups": 2}
    again = con.discover("visits.ward", **asked)
    assert (again.cost, again.id, again.counts) == (0, 1, (341, 326, 326))
    fresh = con.discover("visits.ward", **asked, fresh=True)
    assert fresh.values == WARDS
    assert con.releases()[-1].charge.noise == "gaussian"
