"""Counts by a found column are free: the discovery measured them. What it did not measure is NULL, or charged."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.privacy.noise import Noise

COUNTS = "SELECT d, COUNT(*) AS n FROM visits GROUP BY d"
UNITS = "SELECT d, COUNT(DISTINCT patient) AS n FROM visits GROUP BY d"


def connected(folder: Path, unit: str, extra: str = "") -> dpsql.Connection:
    """600 patients with a visit of each of two kinds, and a few other visits."""
    con = duckdb.connect(":memory:")
    con.execute(
        "CREATE TABLE visits AS SELECT i // 2 AS patient, ['flu', 'cold'][i % 2 + 1] AS d FROM range(1200) t(i)"
    )
    con.execute("INSERT INTO visits VALUES (5000, 'rare'), (5001, NULL)")
    policy = folder / "visits.toml"
    rows = "" if unit == "row" else "max_rows_per_unit = 2\n"
    policy.write_text(
        'dataset = "visits-1"\n[budget]\nepsilon = 9.0\ndelta = 1e-6\n'
        f'[tables.visits]\nunit = "{unit}"\n{rows}{extra}[tables.visits.columns]\npatient = {{}}\nd = {{}}\n',
        encoding="utf-8",
    )
    return dpsql.connect(con, policy=policy)


@pytest.mark.parametrize(("unit", "sql"), [("row", COUNTS), ("patient", UNITS)])
@pytest.mark.long
def test_a_count_by_a_found_column_is_the_discoverys(tmp_path: Path, unit: str, sql: str) -> None:
    con = connected(tmp_path, unit)
    with pytest.raises(dpsql.DataError, match="no budget is given"):
        con.run(sql)
    found = con.discover("visits.d", epsilon=0.5, delta=1e-8, max_groups=None if unit == "row" else 2)
    before = con.budget.accounts
    release = con.run(sql)
    assert con.budget.accounts == before
    rows = {(row[0], row[1]): row[2:] for row in release.only.fetchall()}
    assert {value: rows[value, False] for value in found.values} == {row[0]: row[1:] for row in found.result.fetchall()}
    assert rows[None, True] == rows[None, False] == (None,) * 4  # which nobody counted
    assert (release.cost, release.guarantee) == (0.0, f"free, from release {found.id}")
    assert con.run(sql).id == release.id
    cursor = con.cursor()
    cursor.execute(f"{sql} ORDER BY n DESC LIMIT 1")
    assert cursor.fetchone()[1] == max(found.counts)
    paid = con.run(sql, epsilon=1)  # all groups, with errors of its own
    assert paid.cost > 0
    assert all(row[2] is not None for row in paid.only.fetchall())
    again = {(row[0], row[1]): row[2:] for row in con.run(sql).only.fetchall()}
    assert again[None, True][0] is not None  # by what was paid for since


def test_what_a_discovery_did_not_count_is_not_free(tmp_path: Path) -> None:
    con = connected(tmp_path, "row")
    con.discover("visits.d", epsilon=0.5, delta=1e-8)
    for sql in (
        "SELECT d, COUNT(*) FILTER (WHERE patient > 5) AS n FROM visits GROUP BY d",
        "SELECT d, COUNT(*) AS n FROM visits WHERE d <> 'flu' GROUP BY d",
        "SELECT COUNT(*) AS n FROM visits",
        f"{COUNTS}; SELECT COUNT(*) AS m FROM visits",
    ):
        with pytest.raises(dpsql.DataError, match="no budget is given"):
            con.run(sql)


def test_visits_are_no_patients_and_more_groups_no_fewer(tmp_path: Path) -> None:
    con = connected(tmp_path, "patient")
    con.discover("visits.d", epsilon=0.5, delta=1e-8, max_groups=1)
    for sql in (COUNTS, UNITS):  # patients in one value each: fewer than are asked for
        with pytest.raises(dpsql.DataError, match="no budget is given"):
            con.run(sql)


def test_small_counts_stay_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "sample_many", lambda self, count: [0] * count)
    con = connected(tmp_path, "row", "minimum = 590\n")
    found = con.discover("visits.d", epsilon=0.5, delta=1e-8)
    rows = con.run(COUNTS).only.fetchall()
    assert [row[-1] for row in rows if row[0] is not None] == [True, True]
    assert found.counts == (None, None)
    assert all(row[2] is None for row in rows)


def test_another_version_of_the_data_was_not_counted(tmp_path: Path) -> None:
    con = connected(tmp_path, "row")
    con.discover("visits.d", epsilon=0.5, delta=1e-8)
    policy = tmp_path / "visits.toml"
    policy.write_text(policy.read_text(encoding="utf-8").replace("visits-1", "visits-2"), encoding="utf-8")
    con = dpsql.connect(con._holdings.attachable, policy=policy)
    con.renew("visits-1")
    with pytest.raises(dpsql.DataError, match="no budget is given"):
        con.run(COUNTS)


def test_counts_of_another_unit_answer_nothing(tmp_path: Path) -> None:
    """A policy that protects somebody else since then asks for other counts."""
    con = connected(tmp_path, "patient")
    con.discover("visits.d", epsilon=0.5, delta=1e-8, max_groups=2)
    con.close()
    with pytest.raises(dpsql.DataError, match="no budget is given"):
        connected(tmp_path, "row").run(COUNTS)


def test_a_count_that_was_hidden_is_none_and_not_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "sample", lambda self, count: [0] * count)
    con = connected(tmp_path, "row", "minimum = 5000\n")
    con.discover("visits.d", epsilon=0.5, delta=1e-8)
    con.close()
    shown = connected(tmp_path, "row").run(COUNTS).only.fetchall()
    assert {row[2] for row in shown} == {None}
