"""Totals that agree, and notes on those that need not: by the policy and the statement alone."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql

pytestmark = pytest.mark.usefixtures("short_searches")

POLICY = """
dataset = "left-out-1"
[budget]
epsilon = 100.0
[tables.t]
unit = "row"
[tables.t.columns]
ward = { lower = 1, upper = 5 }
month = { lower = 1, upper = 12, other = true }
sex = { values = ["f", "m"], nulls = false }
day = { lower = 2024-01-01, upper = 2024-03-31, nulls = false }
"""
TOTAL = "SELECT COUNT(*) AS n FROM t"
BY = "SELECT {0} AS k, COUNT(*) AS n FROM t GROUP BY k"


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    folder = tmp_path_factory.mktemp("left-out")
    with duckdb.connect(folder / "t.duckdb") as raw:
        raw.execute(
            "CREATE TABLE t AS SELECT (i % 7)::INTEGER AS ward, (i % 15)::INTEGER AS month, "
            "['f', 'm', 'x'][1 + i % 3] AS sex, DATE '2024-01-01' + (i % 100)::INTEGER AS day FROM range(700) r(i)"
        )
    return dpsql.connect(folder / "t.duckdb", policy=dpsql.Policy.parse(POLICY), ledger=folder / "t.ledger")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("ward",), "ward <= 0 OR ward >= 6"),
        (("ward // 2", "month"), "ward <= 0 OR ward >= 6"),
        (("date_trunc('month', day)",), "day <= '2023-12-31' OR day >= '2024-04-01'"),
        (("month",), None),
        (("CASE WHEN ward < 3 THEN 'low' ELSE 'high' END",), None),
        (("month > 6",), None),
    ],
)
@pytest.mark.few(every=2)
def test_a_note_says_why_totals_may_differ(con: dpsql.Connection, keys: tuple[str, ...], said: str | None) -> None:
    notes = con.plan(";".join([*(BY.format(key) for key in keys), TOTAL]), epsilon=0.1, earlier=False).notes
    ends = "other = true in the policy gives them one"
    assert notes == (() if said is None else (f"totals may differ, as rows have no group: {said} (in q1); {ends}",))


def test_a_note_says_that_a_closed_column_counts_for_the_whole_batch(con: dpsql.Connection) -> None:
    batch = f"{BY.format('sex')}; {TOTAL}"
    said = (
        "rows of t with a value of sex that the policy does not list count in no result, even if the result does not "
        "use the column; other = true in the policy would let them count"
    )
    assert con.plan(batch, epsilon=0.1, earlier=False).notes == (said,)
    release = con.run(batch, epsilon=30)
    assert release["q2"].column("n")[0] == pytest.approx(467, abs=3)  # of 700 rows, 233 have "x"
    assert con.run(TOTAL, epsilon=30)["q1"].column("n")[0] == pytest.approx(700, abs=3)
    assert con.plan(BY.format("sex"), epsilon=0.1, earlier=False).notes == ()  # all that there is reads it


def test_results_that_leave_out_the_same_rows_need_no_note(con: dpsql.Connection) -> None:
    batch = ";".join(["SELECT ward, sex, COUNT(*) AS n FROM t GROUP BY ward, sex"] * 2)
    assert con.plan(batch, epsilon=0.1, earlier=False).notes == ()


def test_groups_that_leave_out_no_row_add_up_to_the_total(con: dpsql.Connection) -> None:
    keys = ("month", "month > 6", "ward IN (1, 2)")
    release = con.run(";".join([*(BY.format(key) for key in keys), TOTAL]), epsilon=0.5)
    (total,) = release["q4"].column("n")
    for number in range(1, 4):
        assert sum(release[f"q{number}"].column("n")) == pytest.approx(total, abs=1e-6)


def test_every_note_is_in_the_plan(con: dpsql.Connection, tmp_path: Path) -> None:
    assert "totals may differ" in str(con.plan(f"{BY.format('ward')}; {TOTAL}", epsilon=0.1))


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("ward < 1", "ward <= 0"),
        ("ward BETWEEN -3 AND 2", "ward BETWEEN -3 AND 0"),
        ("ward > 7 AND sex = 'f'", "ward >= 8"),
        ("ward > 2", None),
        ("ward <> -99", None),
        ("ward = 1", None),
        ("ward < 1 OR sex = 'f'", None),
    ],
)
@pytest.mark.few(every=2)
def test_a_condition_that_contradicts_the_bounds_of_a_sum_is_noted(
    con: dpsql.Connection, where: str, rows: str | None
) -> None:
    for aggregate in ("AVG(ward)", "2 * SUM(ward)"):
        notes = con.plan(f"SELECT {aggregate} AS a FROM t WHERE {where}", epsilon=1).notes
        noted = [note.partition(" enter ")[0] for note in notes if "the nearest of its bounds, 1 and 5" in note]
        assert noted == ([] if rows is None else [f"rows with {rows}"])
