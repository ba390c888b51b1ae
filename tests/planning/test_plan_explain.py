"""A plan explained: what is private, what is derived, what follows, by the statements that people write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from helpers import settled

import dpsql
from dpsql.policy import Policy
from dpsql.surfaces.cli import main

POLICY = """
dataset = "explain-1"
[budget]
epsilon = 4.0
delta = 1e-9
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
[tables.visits.columns]
age = { lower = 0, upper = 9, nulls = false }
cost = { lower = 0.0, upper = 100.0, step = 0.5 }
state = { values = ["NY", "CA"], other = true, nulls = false }
name = {}
day = { lower = 2020-01-01, upper = 2020-01-05 }
paid = {}
price = {}
[tables.zones]
public = true
key = ["zone"]
"""
TABLES = (
    "CREATE TABLE visits (patient INTEGER, age INTEGER, cost DOUBLE, state VARCHAR, name VARCHAR, day DATE, "
    "paid BOOLEAN, price DECIMAL(6, 2)); CREATE TABLE zones (zone VARCHAR, region VARCHAR)"
)


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Connection]:
    database = duckdb.connect()
    database.execute(TABLES)
    ledger = tmp_path_factory.mktemp("explain") / "a.ledger"
    with dpsql.connect(database, policy=Policy.parse(POLICY), ledger=ledger) as connection:
        yield settled(connection)


def explained(con: dpsql.Connection, sql: str) -> str:
    """The explanation, its wrapped lines made one again."""
    return " ".join(con.plan(sql, epsilon=1.0, delta=1e-9).explain().split())


def test_private_derived_and_afterwards(con: dpsql.Connection) -> None:
    sql = (
        "CREATE VIEW best AS SELECT state, COUNT(*) AS n, AVG(cost) AS mean FROM visits WHERE age >= 3 GROUP BY state "
        "HAVING COUNT(*) > 20 ORDER BY n DESC LIMIT 3; SELECT MAX(n) AS most FROM best"
    )
    plan = con.plan(sql, epsilon=1.0, delta=1e-9)
    text = plan.explain()
    head, details = ([line[:11].split() for line in shown.splitlines()] for shown in (str(plan), text))
    assert [labels[0] for labels in head if labels][:4] == ["Guarantee", "Cost", "Batch", "Noise"]
    labels = ["Guarantee", "Cost", "Charge", "Batch", "Cells", "Strategy"]
    assert [labels[0] for labels in details if labels][:6] == labels
    assert all(len(line) <= 80 for line in text.splitlines())
    flat = " ".join(text.split())
    for part in (
        "best private rows of visits, at most 3 of each patient, where age >= 3, by state (3 groups, other among them)",
        "[1] n = COUNT(*) in each of 3 groups, standard error ",
        "[2] COUNT(*) where cost IS NOT NULL in each of 3 groups",
        "[3] SUM(cost) in each of 3 groups",
        "derived mean = [3] / [2]; Fieller's interval of a ratio, within 0 to 100",
        "afterwards free, by DuckDB: SELECT state, state_other, n, mean FROM noisy WHERE n > 20 "
        "ORDER BY n DESC LIMIT 3",
        "q1 private nothing of its own: it reads results of this batch, which are noisy already",
        "afterwards free, by DuckDB: SELECT MAX(n) AS most FROM best",
        "costs nothing and reveals nothing more",
    ):
        assert part in flat, part


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        ("age BETWEEN 2 AND 5", "age BETWEEN 2 AND 5"),
        ("age > 4", "age >= 5"),
        ("age IN (1, 3)", "age IN (1, 3)"),
        ("age <> 4", "age <> 4"),
        ("state = 'NY'", "state = 'NY'"),
        ("state NOT IN ('NY', 'CA')", "state NOT IN ('CA', 'NY')"),
        ("name > 'it''s'", "name > 'it''s'"),
        ("name <= 'b'", "name <= 'b'"),
        ("name LIKE '%a%'", "name LIKE '%a%'"),
        ("name NOT LIKE '%a%'", "NOT name LIKE '%a%'"),
        ("name LIKE '%a%' IS NOT FALSE", "(name LIKE '%a%') is TRUE or NULL"),
        ("day >= DATE '2020-01-03'", "day >= '2020-01-03'"),
        ("paid", "paid = TRUE"),
        ("cost IS NULL", "cost IS NULL"),
        ("cost IS NOT NULL", "cost IS NOT NULL"),
        ("cost < 5 OR cost IS NULL", "cost < 5.0 OR cost IS NULL"),
        ("cost > 5 AND cost <= 7", "cost > 5.0 AND cost <= 7.0"),
        ("price = 1.25", "price = 1.25"),
        ("age < 2 OR age > 7 OR age = 4", "age <= 1 OR age = 4 OR age >= 8"),
        ("age = 1 OR state = 'NY' AND paid", "age = 1 OR (state = 'NY' AND paid = TRUE)"),
    ],
)
def test_conditions_are_written_as_sql(con: dpsql.Connection, condition: str, shown: str) -> None:
    text = explained(con, f"SELECT COUNT(*) AS n FROM visits WHERE {condition}")
    found = text.split("at most 3 of each patient, where ")[1].split(" [1] n")[0]
    assert found == (f"({shown})" if " OR " in shown else shown)
    # What is shown is the same condition: DuckDB reads it, and its cells are the same.
    if " is TRUE" not in shown:
        again = explained(con, f"SELECT COUNT(*) AS n FROM visits WHERE {shown}")
        assert again.split("Strategy")[1:] == text.split("Strategy")[1:]


def test_linear_numbers_are_written_with_their_coefficients(con: dpsql.Connection) -> None:
    text = explained(con, "SELECT 2 * COUNT_IF(age < 3) - COUNT_IF(age > 5) + 7 AS d FROM visits WHERE paid")
    assert "[1] d = 2 * (COUNT(*) where age <= 2) - (COUNT(*) where age >= 6) + 7, standard error" in text


def test_joins_units_and_quantiles(con: dpsql.Connection) -> None:
    text = explained(
        con,
        "SELECT COUNT(DISTINCT patient) AS people FROM visits JOIN zones ON state = zone; "
        "SELECT MEDIAN(age) AS middle, STDDEV(cost) AS spread FROM visits; "
        "SELECT paid, state, SUM(cost) AS c FROM visits GROUP BY ROLLUP (paid, state)",
    )
    for part in (
        "rows of visits, each with at most one row of zones(state), each patient once a cell",
        "people = COUNT(DISTINCT patient)",
        "middle = the value at rank 0.5 of the prefix counts",
        "more like them",
        "the roots of the ends of the variance's interval",
        "(noisy_1)",
        "FROM noisy_1 UNION ALL BY NAME SELECT * FROM noisy_2 UNION ALL BY NAME SELECT * FROM noisy_3",
    ):
        assert part in text, part


def test_how_one_unit_changes_the_numbers_is_said(con: dpsql.Connection) -> None:
    """Listed, or bounded: then how near the bound is to some unit."""
    few = con.plan(
        "SELECT state, COUNT(*) AS n, COUNT(DISTINCT patient) AS p FROM visits GROUP BY 1", epsilon=1, delta=1e-9
    )
    said = "the largest norm of 32 contributions, which cover all that one unit can change"
    assert said in " ".join(few.explain().split())
    many = con.plan(
        "SELECT age, state, day, COUNT(DISTINCT patient) AS p FROM visits GROUP BY 1, 2, 3", epsilon=1, delta=1e-9
    )
    (said,) = [part for part in many.explain().split("\n\n") if "is an upper bound" in part]
    assert said.endswith("reaches 100.0% of it.")


def test_many_statements_are_cut_short(con: dpsql.Connection) -> None:
    text = con.plan("SELECT COUNT(*) FROM visits;" * 63, epsilon=1.0, delta=1e-9).explain()
    assert "... and 3 more statements" in text
    assert "\nq60\n" in text
    assert "\nq61\n" not in text


def test_the_command_line_explains_and_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("a.duckdb") as database:
        database.execute(TABLES)
    Path("a.toml").write_text(POLICY)
    at = ["plan", "--database", "a.duckdb", "--policy", "a.toml", "--epsilon", "1", "--quiet"]
    assert main([*at, "--explain", "--sql", "SELECT COUNT(*) AS n FROM visits"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Guarantee")
    assert "[1] n = COUNT(*), standard error" in out
    assert main([*at, "--explain", "--json", "--sql", "SELECT COUNT(*) AS n FROM visits"]) == 0
    assert "[1] n = COUNT(*)" in json.loads(capsys.readouterr().out)["explanation"]
    assert main([*at, "--sql", "SELECT COUNT(*)\nFROM visits WHERE agee > 3"]) == 1
    message, text, carets = capsys.readouterr().err.splitlines()
    assert message == "dpsql: error: visits has no column agee: did you mean age? (line 2, column 19)"
    assert text == "    FROM visits WHERE agee > 3"
    assert carets == "                      ^^^^"
    assert main([*at, "--json", "--sql", "SELECT COUNT(*) FROM visits WHERE agee > 3"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["line"], error["column"], error["end"]) == (1, 35, [1, 38])


def test_gain_is_the_error_one_by_one_over_the_error_here(con: dpsql.Connection) -> None:
    plan = con.plan("CREATE VIEW a AS SELECT COUNT(*) AS n FROM visits; SELECT COUNT(*) AS m FROM visits", epsilon=1)
    rows = {(row["result"], row["column"]): row for row in plan.rows()}
    assert {name: set(columns) for name, columns in plan.gain.items()} == {"a": {"n"}, "q1": {"m"}}
    assert plan.gain["a"]["n"] == rows["a", "n"]["naive_stderr"] / rows["a", "n"]["stderr"] > 1
