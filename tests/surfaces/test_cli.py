"""The command line: every subcommand, its JSON, its exit codes, its help."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import duckdb
import pytest
from helpers import filled

from dpsql.policy import Policy
from dpsql.surfaces import output
from dpsql.surfaces.cli import main

POLICY = """
dataset = "people-1"
[budget]
epsilon = 2.0
delta = 1e-9
pure_epsilon = 1.0
[tables.people]
unit = "row"
expected_rows = 100
[tables.people.columns]
town = { values = ["here", "there"], nulls = false }
age = { lower = 0, upper = 120 }
note = {}
"""

BATCH = """
CREATE VIEW everybody AS SELECT COUNT(*) AS n FROM people;
CREATE VIEW by_town AS SELECT town, COUNT(*) AS n FROM people GROUP BY town;
"""

COMMANDS = (
    ["plan"],
    ["run"],
    ["budget"],
    ["releases"],
    ["releases", "list"],
    ["releases", "show"],
    ["releases", "rebuild"],
    ["sql"],
    ["policy"],
    ["policy", "init"],
    ["policy", "check"],
    ["policy", "renew"],
    ["synthesize"],
    ["audit"],
    ["glossary"],
    ["demo"],
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with people.duckdb, people.toml and batch.sql; it is the current one."""
    with filled(tmp_path / "people.duckdb") as connection:
        connection.execute("CREATE TYPE side AS ENUM ('left', 'it''s right')")
        connection.execute(
            "CREATE TABLE people (town VARCHAR, age INTEGER CHECK (age BETWEEN 0 AND 120), note VARCHAR, hand side)"
        )
        connection.execute("INSERT INTO people SELECT 'here', i, 'private', 'left' FROM range(60) t(i)")
        connection.execute("INSERT INTO people SELECT 'there', i, 'private', 'left' FROM range(40) t(i)")
    (tmp_path / "people.toml").write_text(POLICY)
    (tmp_path / "batch.sql").write_text(BATCH)
    monkeypatch.chdir(tmp_path)
    return tmp_path


AT = ["--database", "people.duckdb", "--policy", "people.toml"]
RUN = ["run", "batch.sql", *AT, "--epsilon", "0.5"]


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Standard output of a command that must succeed in silence on stderr."""
    assert main(list(argv)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_plan_is_free_and_shows_errors(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "plan", "batch.sql", *AT, "--epsilon", "0.5")
    assert out.startswith("Guarantee")
    assert ["by_town", "n", "town"] in [line.split()[:3] for line in out.splitlines()]
    found = json.loads(told(capsys, "plan", "batch.sql", *AT, "--epsilon", "0.5", "--json"))
    assert [row["result"] for row in found["rows"]] == ["everybody", "by_town"]
    assert found["cost"] == 0.5
    assert found["affordable"] is True
    assert found["rows"][0]["stderr"] > 0
    assert not (place / "people.ledger").exists()
    gaussian = json.loads(told(capsys, "plan", "batch.sql", *AT, "--epsilon", "1", "--delta", "1e-9", "--json"))
    # The policy's pure account holds epsilon 1 too, and the better of both ways is taken.
    assert {gaussian["guarantee"], gaussian["alternatives"][0]["guarantee"]} == {
        "epsilon 1 (pure)",
        "epsilon 1, delta 1e-9",
    }


def test_run_spends_once_and_again_only_when_fresh(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(told(capsys, *RUN, "--label", "tester", "--json"))
    assert first["release"] == 1
    assert first["cost"] == 0.5
    assert [table["name"] for table in first["tables"]] == ["everybody", "by_town"]
    by_town = first["tables"][1]
    assert [column["name"] for column in by_town["columns"]] == ["town", "n", "n_stderr", "n_low", "n_high"]
    assert [row[0] for row in by_town["rows"]] == ["here", "there"]
    assert by_town["rows"][0][1] + by_town["rows"][1][1] == pytest.approx(first["tables"][0]["rows"][0][0])
    again = json.loads(told(capsys, *RUN, "--json"))
    assert again["cost"] == 0
    assert again["tables"] == first["tables"]
    assert "free: these answers were in the ledger already" in told(capsys, *RUN)
    (place / "replace.sql").write_text(BATCH.replace("CREATE VIEW", "CREATE OR REPLACE VIEW"))
    fresh = json.loads(told(capsys, "run", "replace.sql", *RUN[2:], "--fresh", "--no-errors", "--json"))
    assert fresh["cost"] == 0.5
    assert [column["name"] for column in fresh["tables"][1]["columns"]] == ["town", "n"]


def test_run_prints_tables_and_quiet_only_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, *RUN, "--quiet")
    assert "everybody" in out
    assert "by_town\ntown" in out
    assert "Release 1" not in out
    assert "Release 1" in told(capsys, *RUN)


def test_batch_comes_from_stdin_or_an_option(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(BATCH))
    piped = json.loads(told(capsys, "plan", "-", *AT, "--epsilon", "1", "--json"))
    named = json.loads(told(capsys, "plan", "--sql", BATCH, *AT, "--epsilon", "1", "--json"))
    assert piped == named


def test_budget_before_and_after(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no ledger" in told(capsys, "budget", "--policy", "people.toml")
    assert not (place / "people.ledger").exists()
    before = json.loads(told(capsys, "budget", "--policy", "people.toml", "--json"))
    assert (before["total"], before["spent"], before["remaining"]) == (2, 0, 2)
    assert before["ledger"] == {"exists": False, "path": str((place / "people.ledger").absolute())}
    told(capsys, *RUN)
    after = json.loads(told(capsys, "budget", "--policy", "people.toml", "--json"))
    assert after["spent"] == 0.5
    assert after["purses"][0] == {"name": "pure", "measure": "epsilon", "total": 1, "spent": 0.5, "remaining": 0.5}
    assert told(capsys, "budget", "--policy", "people.toml").startswith("epsilon 0.5 spent of 2")


def test_releases_are_listed_shown_and_rebuilt(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--policy", "people.toml"]
    assert "Nothing was released yet" in told(capsys, "releases", "list", *where)
    told(capsys, *RUN, "--label", "tester")
    assert "tester" in told(capsys, "releases", "list", *where)
    (entry,) = json.loads(told(capsys, "releases", "list", *where, "--json"))["releases"]
    assert entry["label"] == "tester"
    assert entry["results"] == ["everybody", "by_town"]
    shown = json.loads(told(capsys, "releases", "show", "by_town", *where, "--json"))
    assert len(shown["rows"]) == 2
    (place / "people.releases.duckdb").unlink()
    found = json.loads(told(capsys, "releases", "rebuild", *where, "--json"))
    assert found == {"rebuilt": 1, "releases": str((place / "people.releases.duckdb").absolute())}
    again = json.loads(told(capsys, "releases", "show", "by_town", "--releases", "people.releases.duckdb", "--json"))
    assert again == shown


def test_sql_reads_the_releases_file_alone(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(capsys, *RUN)
    for name in ("people.duckdb", "people.ledger", "people.toml"):
        (place / name).unlink()
    query = "SELECT sum(n) AS n FROM by_town"
    found = json.loads(told(capsys, "sql", query, "--releases", "people.releases.duckdb", "--json"))
    assert found["columns"] == [{"name": "n", "type": "DOUBLE"}]
    monkeypatch.setattr("sys.stdin", io.StringIO(query))
    assert json.loads(told(capsys, "sql", "-", "--releases", "people.releases.duckdb", "--json")) == found
    assert "(1 row)" in told(capsys, "sql", "--sql", query, "--releases", "people.releases.duckdb")


def test_sql_shows_errors_of_what_it_computes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, *RUN)
    where = ("--policy", "people.toml", "--database", "people.duckdb", "--errors")
    found = json.loads(told(capsys, "sql", "SELECT sum(n) / 2 AS half FROM by_town", *where, "--json"))
    assert [column["name"] for column in found["columns"]] == ["half", "half_stderr", "half_low", "half_high"]
    assert main(["sql", "SELECT 1 AS x", *where]) == 0
    assert "reads no released numbers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sql", "SELECT 1", "--errors", "--releases", "people.releases.duckdb"])
    assert "give --policy FILE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sql", "SELECT 1", "--population", "sample"])
    assert "goes with --errors" in capsys.readouterr().err


def test_policy_check_shows_what_is_declared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "policy", "check", "people.toml", "--database", "people.duckdb")
    assert out.endswith("ok\n")
    assert "here, there" in out
    assert "0 to 120" in out
    assert told(capsys, "policy", "check", "people.toml", "--database", "people.duckdb", "--quiet") == "ok\n"
    found = json.loads(told(capsys, "policy", "check", "people.toml", "--database", "people.duckdb", "--json"))
    assert found["ok"] is True
    assert found["budget"] == {"epsilon": 2, "delta": 1e-9, "pure_epsilon": 1}
    assert found["tables"]["people"]["columns"][0]["values"] == ["here", "there"]
    assert not (place / "people.ledger").exists()


def test_policy_init_parses_once_confirmed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "policy", "init", "--database", "people.duckdb")
    confirmed = text.replace("# confirm: ", "")
    policy = Policy.parse(confirmed)
    assert policy.dataset == "people-1"
    age = policy.table("people").column("age")
    assert (age.lower, age.upper) == (0, 120)
    assert policy.table("people").column("hand").values == ("left", "it's right")
    assert "private" not in tomllib.loads(confirmed)["tables"]["people"]["columns"]["note"]
    (place / "first.toml").write_text(confirmed)
    assert told(capsys, "policy", "check", "first.toml", "--database", "people.duckdb").endswith("ok\n")
    found = json.loads(told(capsys, "policy", "init", "--database", "people.duckdb", "--dataset", "x", "--json"))
    assert found["tables"] == ["people"]
    assert 'dataset = "x"' in found["policy"]


def test_policy_init_reads_only_the_header_of_a_csv(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "visits.csv").write_text("year,cost\n1999,77.5\n")
    duckdb.sql("SELECT 4711 AS secret").write_parquet("stays.parquet")
    text = told(capsys, "policy", "init", "--source", "visits.csv", "stays.parquet")
    for value in ("1999", "77.5", "4711"):
        assert value not in text
    policy = Policy.parse(text.replace("# confirm: ", ""))
    assert policy.table("visits").column("year").type == "VARCHAR"
    assert policy.table("stays").source == "stays.parquet"


WRONG = {
    "missing policy": (["budget", "--policy", "nowhere.toml"], "policy file nowhere.toml"),
    "missing batch": (["plan", "nowhere.sql", *AT, "--epsilon", "1"], "batch file nowhere.sql"),
    "missing database": (["plan", "batch.sql", "--database", "no.duckdb", *AT[2:], "--epsilon", "1"], "no.duckdb"),
    "no database": (["plan", "batch.sql", *AT[2:], "--epsilon", "1"], "no database was given"),
    "bad SQL": (["plan", "--sql", "SELEKT 1", *AT, "--epsilon", "1"], "line 1"),
    "unknown table": (["plan", "--sql", "SELECT COUNT(*) FROM peple", *AT, "--epsilon", "1"], "people"),
    "unknown column": (["plan", "--sql", "SELECT COUNT(hand) FROM people", *AT, "--epsilon", "1"], "hand"),
    "epsilon nan": (["plan", "batch.sql", *AT, "--epsilon", "nan"], "epsilon"),
    "epsilon negative": (["run", "batch.sql", *AT, "--epsilon=-1"], "positive"),
    "over budget": (["run", "batch.sql", *AT, "--epsilon", "1.5"], "needs epsilon 1.5 of the pure account"),
    "no ledger": (["releases", "rebuild", "--policy", "people.toml"], "there is no ledger"),
    "no releases": (["sql", "SELECT 1", "--releases", "none.duckdb"], "none.duckdb"),
    "no schema": (["policy", "init", "--database", "nowhere.duckdb"], "nowhere.duckdb"),
    "not a policy": (["policy", "check", "batch.sql"], ""),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.few(every=3)
def test_wrong_input_is_one_line_and_exit_code_1(place: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    argv, part = WRONG[case]
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dpsql: error: ")
    _, *pointed = err.splitlines()
    # A refused statement is shown below the message, the refused part underlined.
    assert len(pointed) in (0, 2)
    assert all(line.startswith("    ") for line in pointed)
    assert part in err
    assert not (place / "people.releases.duckdb").exists()
    assert main([*argv, "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert set(error) >= {"type", "message"}


def test_taken_names_and_private_tables_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, *RUN)
    assert main(["run", "--sql", "CREATE VIEW by_town AS SELECT COUNT(*) AS n FROM people", *RUN[2:]]) == 1
    assert "a view named by_town exists" in capsys.readouterr().err
    for query in ("SELECT * FROM people", "COPY by_town TO 'o.csv'", "SELECT * FROM 'people.duckdb'"):
        assert main(["sql", query, "--policy", "people.toml"]) == 1
        assert capsys.readouterr().err.startswith("dpsql: error: ")
    assert json.loads(told(capsys, "budget", "--policy", "people.toml", "--json"))["spent"] == 0.5


USAGE = (
    ["fly"],
    ["plan", "batch.sql", "--epsilon", "1"],
    ["plan", "batch.sql", *AT],
    ["plan", *AT, "--epsilon", "1"],
    ["plan", "batch.sql", "--sql", "SELECT 1", *AT, "--epsilon", "1"],
    ["plan", "batch.sql", *AT, "--epsilon", "1", "--alpha", "x"],
    ["plan", "batch.sql", *AT, "--epsilon", "1", "--alpha", "2"],
    ["releases"],
    ["sql", "SELECT 1"],
    ["sql", "--releases", "x.duckdb"],
    ["policy", "init"],
    ["policy", "init", "--source", "a/x.csv", "b/x.csv"],
)


@pytest.mark.parametrize("argv", USAGE, ids=" ".join)
def test_wrong_usage_is_exit_code_2(place: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "usage: dpsql" in capsys.readouterr().err


def test_a_release_that_cannot_be_registered_is_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--releases", "no/such/place.duckdb"]) == 0
    out = capsys.readouterr().out
    assert "by_town" in out
    assert "Release 1, spent epsilon 0.5 (pure); in the ledger alone" in out
    assert "holds 1 release" in told(capsys, "releases", "rebuild", "--policy", "people.toml")


@pytest.mark.long
def test_a_closed_pipe_is_no_traceback(place: Path) -> None:
    command = [sys.executable, "-m", "dpsql", "budget", "--policy", "people.toml", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == 1


def test_messages_cannot_steer_a_terminal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "no\x1b[31m\udcff\n.sql", *AT, "--epsilon", "1"]) == 1
    assert "no\\x1b[31m\\udcff .sql" in capsys.readouterr().err


def test_interrupt_is_exit_code_130(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpsql.surfaces.commands.budget", interrupted)
    assert main(["budget", "--policy", "people.toml"]) == 130
    assert "what was charged stays charged" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: dpsql {' '.join(command)}" in out
    deeper = [other[-1] for other in COMMANDS if other[:-1] == command]
    assert all(name in out for name in deeper) if deeper else "--json" in out


def test_top_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    rows = out.splitlines()
    assert [row[:5].strip() for row in rows if row[:5].strip() in ("ask", "keep", "serve")] == ["ask", "keep", "serve"]
    assert {row[7:].split()[0] for row in rows[1:-2]} >= {command[0] for command in COMMANDS}
    assert len(rows) <= 24
    assert max(map(len, rows)) <= 80
    assert main([]) == 0
    assert capsys.readouterr().out == out


def test_progress_names_no_strategy_unless_the_plan_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with output.Progress(quiet=False, clock=iter([0.0, 3.0]).__next__) as progress:
        output.plainly(progress)("union-of-parts: error 9292.46")
    assert capsys.readouterr().err == "dpsql: planning, 3 s: looking for the least error\n"


def test_progress_waits_two_seconds_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.9, 2.1, 3.0, 12.2])
    with output.Progress(quiet=False, clock=lambda: next(times)) as progress:
        for message in ("a", "b", "c", "d"):
            progress(message)
    assert capsys.readouterr().err.splitlines() == ["dpsql: planning, 2 s: b", "dpsql: planning, 12 s: d"]
    output.Progress(quiet=True, clock=lambda: 99.0)("e")
    assert capsys.readouterr().err == ""
