"""What a batch lets expect before anything is spent: from public facts alone, and what is shown by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import filled

import dpsql
from dpsql.extensions.advice.prospects import expected_estimates

POLICY = """
dataset = "p-1"
[budget]
epsilon = 10.0
[tables.t]
unit = "row"
expected_rows = 400
[tables.t.columns]
a = { lower = 0, upper = 19, nulls = false }
b = { lower = 0, upper = 19, nulls = false }
w = { lower = 0, upper = 4, nulls = false }
"""
SPARSE = "SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b"


def connect(folder: Path, rows: int, policy: str = POLICY) -> dpsql.Connection:
    folder.mkdir()
    with filled(folder / "t.duckdb") as raw:
        raw.execute(f"CREATE TABLE t AS SELECT range::INT % 20 AS a, 3 AS b, 1 AS w FROM range({rows})")
    return dpsql.connect(folder / "t.duckdb", policy=dpsql.Policy.parse(policy), ledger=folder / "t.ledger")


def test_prospects_are_free_and_read_no_row(tmp_path: Path) -> None:
    full, empty = connect(tmp_path / "full", 400), connect(tmp_path / "empty", 0)
    found = full.prospects(SPARSE, epsilon=0.2)
    assert found.fetchall() == empty.prospects(SPARSE, epsilon=0.2).fetchall()
    assert full.budget.spent == 0
    assert found.column("expected_error") == sorted(found.column("expected_error"))
    share = dict(zip(found.column("way"), found.column("of_unbiased"), strict=True))
    assert set(share) == {"unbiased", "feasible", "adaptive", "sparse"}
    assert share["unbiased"] == 1
    assert share["feasible"] < 0.7  # 400 rows in 400 groups, noise of seven rows a group


@pytest.mark.long
def test_auto_shows_what_is_expected_to_be_nearer(tmp_path: Path) -> None:
    con = connect(tmp_path / "t", 400)
    sparse, dense = con.plan(SPARSE, epsilon=0.2), con.plan("SELECT w, COUNT(*) AS n FROM t GROUP BY w", epsilon=3)
    assert expected_estimates(sparse) == "feasible"
    assert expected_estimates(dense) == "unbiased"
    assert min(con.run(sparse, estimates="auto")["q1"].column("n")) >= 0
    assert min(con.run(sparse)["q1"].column("n")) < 0
    assert con.run(dense, estimates="auto")["q1"].fetchall() == con.run(dense)["q1"].fetchall()


def test_without_expected_rows_nothing_is_expected(tmp_path: Path) -> None:
    con = connect(tmp_path / "t", 400, POLICY.replace("expected_rows = 400\n", ""))
    assert expected_estimates(con.plan(SPARSE, epsilon=1)) == "unbiased"
    with pytest.raises(dpsql.DataError, match="expected_rows"):
        con.prospects(SPARSE, epsilon=1)


def test_where_a_budget_leaves_no_noise_nothing_is_nearer(tmp_path: Path) -> None:
    con = connect(tmp_path / "t", 400, POLICY.replace("epsilon = 10.0", "epsilon = 1000.0"))
    found = con.prospects("SELECT w, COUNT(*) AS n FROM t GROUP BY w", epsilon=500)
    assert dict(zip(found.column("way"), found.column("of_unbiased"), strict=True))["feasible"] == 1
