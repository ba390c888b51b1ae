"""``dpsql synthesize``: a release, its questions, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from helpers import filled

from dpsql.surfaces.cli import main

POLICY = """
dataset = "people-1"
[budget]
epsilon = 1
local_epsilon = 3
[tables.people]
unit = "row"
rows_public = true
[tables.people.columns]
id = { public = true }
age = { lower = 0, upper = 3, nulls = false }
city = { values = ["Rom", "Oslo"], other = true }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with filled(tmp_path / "people.duckdb") as connection:
        connection.execute("CREATE TABLE people AS SELECT i AS id, i % 4 AS age, 'Rom' AS city FROM range(200) t(i)")
    (tmp_path / "people.toml").write_text(POLICY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


BASE = ["synthesize", "people", "--policy", "people.toml", "--database", "people.duckdb"]


@pytest.mark.long
def test_release_and_ask(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--columns", "age, city", "--epsilon", "2", "--ids", "id", "--label", "web"]) == 0
    shown = capsys.readouterr().out
    assert "Released 200 rows of people as people_synthetic: age, city beside id, randomised over 16 combi" in shown
    assert "Guarantee  epsilon 2 (local, replace one row)" in shown
    assert "spent epsilon 2 of the local account" in shown
    assert main([*BASE, "--ask", "SELECT age, COUNT(*) AS n FROM people GROUP BY age"]) == 0
    shown = capsys.readouterr().out
    assert "n_stderr" in shown
    assert "Estimated from 200 rows of people_synthetic (release 1" in shown
    assert main([*BASE, "--columns", "city", "--epsilon", "1"]) == 1
    assert "people.city was released locally already" in capsys.readouterr().err
    assert main(["budget", "--policy", "people.toml"]) == 0
    assert "local: epsilon 1 left of 3" in capsys.readouterr().out
    assert main(["releases", "list", "--policy", "people.toml"]) == 0
    assert "people_synthetic" in capsys.readouterr().out
    assert main([*BASE, "--rows", "5", "--release", "1", "-o", "made/"]) == 1
    assert "release 1 is none of a batch" in capsys.readouterr().err


@pytest.mark.long
def test_rows_of_what_was_released(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    making = [*BASE, "--rows", "500", "-o", "made.parquet"]
    assert main(making) == 1
    assert "there are no counts of people by groups of columns in any release" in capsys.readouterr().err
    batch = "SELECT age, city, COUNT(*) AS n FROM people GROUP BY age, city"
    assert main(["run", "--sql", batch, *BASE[2:], "--epsilon", "1"]) == 0
    capsys.readouterr()
    assert main(making) == 0
    shown = capsys.readouterr().out
    assert "Wrote 500 rows of people to made.parquet; free." in shown
    assert "noise" in shown
    found = duckdb.sql(f"SELECT COUNT(*), MAX(age), COUNT(DISTINCT city) FROM '{place}/made.parquet'").fetchall()
    assert found[0][:2] == (500, 3)
    assert main([*BASE, "--rows", "5", "--release", "1", "--seed", "2", "-o", "made/", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert (place / "made" / "people.parquet").is_file()
    assert main([*BASE, "--rows", "5", "--release", "7", "-o", "made/"]) == 1
    assert "in release 7" in capsys.readouterr().err
    assert main([*BASE, "--rows", "-5", "-o", "made/"]) == 1
    assert "n must be a whole number" in capsys.readouterr().err


@pytest.mark.long
def test_documents(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--columns", "age", "--epsilon", "1.5", "--name", "ages", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["name"], made["columns"], made["rows"], made["combinations"]) == ("ages", ["age"], 200, 4)
    assert (made["epsilon"], made["cost"]) == (1.5, 1.5)
    query = "SELECT COUNT(*) AS n FROM people WHERE age = 2"
    asking = ["synthesize", "ages", *BASE[2:], "--ask", query, "--json"]
    assert main([*asking, "--no-errors", "--estimator", "proper"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [column["name"] for column in said["columns"]] == ["n"]
    assert said["rows"][0][0] == int(said["rows"][0][0])
    assert said["release"]["name"] == "ages"
    assert main([*asking, "--bounds"]) == 0
    bounds = json.loads(capsys.readouterr().out)
    assert "upper_bound" in [column["name"] for column in bounds["columns"]]
    assert main([*BASE, "--ask", query, "--format", "csv", "-o", "n.csv"]) == 0
    assert (place / "n.csv").read_text().startswith("n,n_stderr,n_low,n_high")
    assert main(["plan", "--policy", "people.toml", "--database", "people.duckdb", "--epsilon", "1", "--json",
                 "--sql", query]) == 0  # fmt: skip
    capsys.readouterr()


def test_a_plan_says_what_a_local_release_would_give(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = POLICY.replace("rows_public = true", "rows_public = true\nexpected_rows = 200")
    (place / "people.toml").write_text(text, encoding="utf-8")
    plan = ["plan", "--policy", "people.toml", "--database", "people.duckdb", "--epsilon", "1"]
    query = ["--sql", "SELECT COUNT(*) AS n FROM people WHERE age = 2"]
    assert main([*plan, *query]) == 0
    assert "Local      a local release of age (4 combinations)" in capsys.readouterr().out
    assert main([*plan, *query, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["local"]
    assert (said["winner"], said["rows"], said["columns"]) == ("matrix", 200, ["age"])


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--columns", "age"],
        ["--columns", "age", "--epsilon", "1", "--ask", "SELECT 1"],
        ["--ask", "SELECT 1", "--epsilon", "1"],
        ["--ask", "SELECT 1", "--ids", "id"],
        ["--columns", "age", "--epsilon", "1", "--bounds"],
        ["--columns", "age", "--epsilon", "1", "--format", "csv"],
        ["--rows", "5"],
        ["--rows", "5", "-o", "made.csv"],
        ["--rows", "5", "-o", "made.parquet", "--columns", "age"],
        ["--columns", "age", "--epsilon", "1", "--seed", "1"],
    ],
    ids=range(11),
)
def test_wrong_usage(place: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*BASE, *wrong])
    assert caught.value.code == 2
    assert not (place / "people.ledger").exists()


def test_nothing_released_yet(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--ask", "SELECT COUNT(*) FROM people"]) == 1
    assert "nothing was released locally yet" in capsys.readouterr().err
