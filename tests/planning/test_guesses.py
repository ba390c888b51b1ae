"""Errors of averages, ratios and quantiles before anything is spent, at guessed sizes of groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import filled, repeatable_noise

import dpsql
from dpsql.planning.text import plan_text

pytestmark = pytest.mark.usefixtures("short_searches")

POLICY = """
dataset = "guesses-1"
[budget]
epsilon = 1000000.0
{}
[tables.t]
unit = "row"
{}
[tables.t.columns]
g = {{ values = ["a", "b"], nulls = false }}
v = {{ lower = 0, upper = 100, nulls = false }}
"""
ROWS = 4_000
BATCH = "SELECT g, AVG(v) AS mean, COUNT(*) AS n FROM t GROUP BY g; SELECT MEDIAN(v) AS half FROM t"


def connected(folder: Path, expected: str, delta: str = "") -> dpsql.Connection:
    folder.mkdir()
    with filled(folder / "t.duckdb") as duck:
        duck.execute(
            f"CREATE TABLE t AS SELECT ['a', 'b'][1 + i % 2] AS g, (i * 37) % 101 AS v FROM range({ROWS}) r(i)"
        )
    (folder / "p.toml").write_text(POLICY.format(delta, expected))
    return dpsql.connect(folder / "t.duckdb", policy=folder / "p.toml")


@pytest.mark.long
def test_an_average_comes_out_as_far_off_as_was_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeatable_noise(monkeypatch, 3)
    con = connected(tmp_path / "a", f"expected_rows = {ROWS}")
    plan = con.plan(BATCH, epsilon=1)
    rows = {(row["result"], row["column"]): row for row in plan.rows()}
    mean = rows["q1", "mean"]
    assert mean["group_rows"] == ROWS / 2
    assert rows["q1", "n"]["group_rows"] is None
    assert rows["q2", "half"]["stderr"] > 0
    assert mean["naive_stderr"] > mean["stderr"]
    off = []
    for _ in range(20):
        found = con.run(plan, fresh=True)["q1"].fetchall()
        off += [row[1] - 50 for row in found]
        assert found[0][2] == pytest.approx(mean["stderr"], rel=0.5)  # what the release itself says
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(mean["stderr"], rel=0.35)
    text = " ".join(str(plan).split())
    assert "estimated as if each group had" in text
    assert f"{ROWS // 2:,} to {ROWS:,} rows" in text


def test_without_expected_rows_groups_of_a_thousand_are_assumed(tmp_path: Path) -> None:
    plan = connected(tmp_path / "a", "", "delta = 1e-3").plan(BATCH, epsilon=1, delta=1e-9)
    other = connected(tmp_path / "b", "expected_rows = 2000", "delta = 1e-3").plan(
        "SELECT g, AVG(v) AS mean FROM t GROUP BY g", epsilon=1, delta=1e-9
    )
    assert {row["group_rows"] for row in plan.rows()} == {None, 1000.0}
    assert other.rows()[0]["group_rows"] == 1000.0
    assert "as if each group had 1,000 rows" in str(plan)
    said = "how many rows there are in t: errors marked '~' assume 1,000 rows in each group"
    assert said in " ".join(str(plan).split())
    assert "nothing declares" not in str(other)
    assert "only half" not in str(other)  # a row is a unit: no limit leaves one out
    assert "depends" not in str(other)


UNITS = """
dataset = "guesses-2"
[budget]
epsilon = 10.0
[tables.visits]
unit = "pid"
max_rows_per_unit = {most}
expected_rows = {rows}
references = {{ pid = "Persons.pid" }}
[tables.visits.columns]
pid = {{}}
cost = {{ lower = 0, upper = 40 }}
[tables.persons]
unit = "pid"
max_rows_per_unit = 1
expected_rows = {persons}
key = ["pid"]
[tables.persons.columns]
pid = {{}}
"""


@pytest.mark.parametrize(
    ("most", "persons", "rows_per_unit", "counted"),
    [
        (4, 1_000, None, 2_000.0),  # all that are expected
        (4, 1_000, 1, 500.0),  # of four rows of a unit one counts
        (4, 1_000, 8, 2_000.0),  # no more than the policy lets count
        (1, 700, None, 700.0),  # a row of each unit
        (4, 300, None, 1_200.0),
        (4, 300, 2, 600.0),
    ],
)
@pytest.mark.few(every=3)
def test_rows_that_limits_leave_out_are_not_guessed(
    tmp_path: Path, most: int, persons: int, rows_per_unit: int | None, counted: float
) -> None:
    """Errors of averages and medians were those of all rows, and up to four times too small."""
    with filled(tmp_path / "t.duckdb") as duck:
        duck.execute("CREATE TABLE visits (pid INT, cost INT); CREATE TABLE persons (pid INT)")
    policy = dpsql.Policy.parse(UNITS.format(most=most, persons=persons, rows=2_000))
    con = dpsql.connect(tmp_path / "t.duckdb", policy=policy, ledger=tmp_path / "l")
    plan = con.plan("SELECT AVG(cost) FROM visits", epsilon=1, rows_per_unit=rows_per_unit)
    assert plan.rows()[0]["group_rows"] == counted
    rows = min(rows_per_unit or most, most)
    text = " ".join(str(plan).split())
    assert f"at most {rows} row{'s' * (rows > 1)} of each pid in visits count, the others are cut" in text
    assert "doubled if only half of these count" in text
    linear = con.plan("SELECT COUNT(*) FROM visits; SELECT 2 * COUNT(*) - COUNT(DISTINCT pid) FROM visits", epsilon=1)
    assert "~" not in str(linear)  # known, whatever the rows
    assert "only half" not in str(linear)


@pytest.mark.parametrize(
    "sql", ["SELECT AVG(cost) FROM visits", "SELECT STDDEV(cost), SUM(cost) / COUNT(*) FROM visits"]
)
def test_errors_are_as_much_larger_as_a_plan_says_where_limits_leave_rows_out(tmp_path: Path, sql: str) -> None:
    with filled(tmp_path / "t.duckdb") as duck:
        duck.execute("CREATE TABLE visits (pid INT, cost INT); CREATE TABLE persons (pid INT)")
    errors = []
    for rows in (40_000, 10_000):
        policy = dpsql.Policy.parse(UNITS.format(most=4, persons=50_000, rows=rows))
        con = dpsql.connect(tmp_path / "t.duckdb", policy=policy, ledger=tmp_path / f"{rows}.ledger")
        errors.append([row["stderr"] for row in con.plan(sql, epsilon=1).rows()])
    assert np.divide(errors[1], errors[0]) == pytest.approx(4.0, rel=0.05)


def test_more_rows_are_less_error(tmp_path: Path) -> None:
    few, many = (
        connected(tmp_path / str(rows), f"expected_rows = {rows}").plan("SELECT AVG(v) FROM t", epsilon=1).rows()[0]
        for rows in (1_000, 100_000)
    )
    assert few["stderr"] == pytest.approx(100 * many["stderr"], rel=0.05)


@pytest.mark.long
def test_answers_that_noise_hides_are_named(tmp_path: Path) -> None:
    con = connected(tmp_path / "a", "expected_rows = 200")
    plan = con.plan(
        "SELECT g, COUNT(*) AS n, AVG(v) AS mean FROM t GROUP BY g; SELECT SUM(v) AS s FROM t", epsilon=0.02
    )
    held = {row["column"]: row for row in plan.rows()}
    assert {name: row["expected"] for name, row in held.items()} == {"n": 100.0, "mean": 50.0, "s": 10_000.0}
    assert all(row["half_width"] >= row["expected"] for row in held.values())
    (text,) = [text for label, text in plan_text(plan).facts if label == "Warning"]
    assert all(f"q{at}.{name} (±" in text for at, name in ((1, "n"), (1, "mean"), (2, "s")))
    assert "Warning" not in str(con.plan("SELECT COUNT(*) FROM t", epsilon=1))
    # Without expected_rows nothing is known of the answers.
    silent = connected(tmp_path / "b", "").plan(plan.sql, epsilon=0.02)
    assert "likely to hide" not in str(silent)
    assert {row["expected"] for row in silent.rows()} == {None}


@pytest.mark.parametrize("values", [1_500, 30_000])
@pytest.mark.long
def test_counts_by_very_many_groups_are_remarked_on(tmp_path: Path, values: int) -> None:
    """Without a number of rows by the rows that they would need, with one by what the noise hides of it."""
    policy = POLICY.replace("upper = 100, ", f"upper = {values}, values = [{', '.join(map(str, range(values)))}], ")
    by_v, plain = "SELECT v, COUNT(*) AS n FROM t GROUP BY v", "SELECT g, COUNT(*) AS n FROM t GROUP BY g"
    texts = {}
    for expected in ("", "expected_rows = 4000"):
        folder = tmp_path / (expected or "none")
        connected(folder, expected).close()
        (folder / "p.toml").write_text(policy.format("", expected))
        with dpsql.connect(folder / "t.duckdb", policy=folder / "p.toml") as con:
            texts[expected] = " ".join(str(con.plan(by_v, epsilon=0.001)).split())
            assert "Warning" not in str(con.plan(plain, epsilon=1))
            assert "sparse" not in str(con.plan(f"{by_v}; {plain}", epsilon=0.001))
    assert f"in each of {values:,} groups) unless there are some" in texts[""]
    assert "million rows" in texts[""]
    assert "the noise is likely to hide q1.n" in texts["expected_rows = 4000"]
    assert all("method='sparse' shows the groups that stand out" in text for text in texts.values())
