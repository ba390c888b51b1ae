"""Formats, files, pipes, colours and silence of the command line."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from dpsql.free_sql import limits
from dpsql.surfaces import output
from dpsql.surfaces.cli import main

POLICY = """
dataset = "people-1"
[budget]
epsilon = 4
[tables.people]
unit = "row"
source = "people.csv"
[tables.people.columns]
town = { values = ["here", "there"], type = "VARCHAR", nulls = false }
age = { lower = 0, upper = 120, type = "INTEGER" }
"""
BATCH = """
CREATE VIEW everybody AS SELECT COUNT(*) AS n FROM people;
CREATE VIEW "by town/2" AS SELECT town, COUNT(*) AS n FROM people GROUP BY town;
"""
ONE = "CREATE OR REPLACE VIEW by_town AS SELECT town, COUNT(*) AS n FROM people GROUP BY town"
P = ["--policy", "people.toml"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "people.csv").write_text("town,age\n" + "here,40\n" * 60 + "there,20\n" * 40)
    (tmp_path / "people.toml").write_text(POLICY)
    (tmp_path / "batch.sql").write_text(BATCH)
    (tmp_path / "one.sql").write_text(ONE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def spent(capsys: pytest.CaptureFixture[str]) -> float:
    found: float = json.loads(told(capsys, "budget", *P, "--json"))["spent"]
    return found


@pytest.mark.long
def test_one_query_in_every_format(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "run", "one.sql", *P, "--epsilon", "1")
    query = ["sql", "SELECT town, round(n) AS n, NULL AS none, '' AS empty, 'a,\"b' AS odd FROM by_town", *P]
    table, document = told(capsys, *query), told(capsys, *query, "--json")
    assert told(capsys, *query, "--format", "table") == table
    assert told(capsys, *query, "--format", "json") == document
    rows = list(csv.reader(io.StringIO(told(capsys, *query, "--format", "csv"))))
    assert rows[0] == ["town", "n", "none", "empty", "odd"]
    assert rows[1][2:] == ["", "", 'a,"b']
    assert float(rows[1][1]) == json.loads(document)["rows"][0][1]
    for name, kind in (("o.csv", "csv"), ("o.json", "json"), ("o.parquet", "parquet"), ("o.txt", "table")):
        assert told(capsys, *query, "-o", name) == ""
        assert told(capsys, *query, "--format", kind, "-o", f"named_{kind}") == ""
        assert (place / name).read_bytes() == (place / f"named_{kind}").read_bytes()
    assert (place / "o.txt").read_text() == table
    assert duckdb.sql("SELECT n FROM 'o.parquet'").fetchall() == duckdb.sql("SELECT n FROM 'o.csv'").fetchall()
    assert duckdb.sql("SELECT empty, none FROM 'o.parquet'").fetchall()[0] == ("", None)
    assert not list(place.glob(".*.tmp"))


def test_parquet_goes_through_a_pipe_and_not_to_a_terminal(
    place: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", "one.sql", *P, "--epsilon", "1", "--format", "parquet"]) == 0
    out, err = capfdbinary.readouterr()
    assert out[:4] == out[-4:] == b"PAR1"
    assert b"Release 1, spent epsilon 1" in err  # remarks do not mix with the data
    assert main(["releases", "show", "by_town", *P, "--format", "parquet"]) == 0
    (place / "piped.parquet").write_bytes(capfdbinary.readouterr().out)
    assert len(duckdb.sql("FROM 'piped.parquet'").fetchall()) == 2
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(SystemExit) as stop:
        main(["run", "one.sql", *P, "--epsilon", "1", "--format", "parquet"])
    assert stop.value.code == 2


@pytest.mark.long
def test_several_results_need_a_folder_and_that_is_said_before_the_charge(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "batch.sql", *P, "--epsilon", "1"]
    for wrong in (
        ["--format", "csv"],
        ["-o", "all.parquet"],
        ["--format", "json", "-o", "here/"],
        ["--json", "--format", "csv"],
        ["-o", "x.duckdb"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([*run, *wrong])
        assert stop.value.code == 2
    assert main([*run, "-o", "no/such/place.txt"]) == 1
    for taken in ("people.toml", "people.ledger", "people.releases.duckdb"):
        assert main([*run, "--format", "table", "-o", taken]) == 1
        assert "which --output would replace" in capsys.readouterr().err
    assert spent(capsys) == 0
    out = told(capsys, *run, "--format", "csv", "-o", "out/")
    assert "Written to out/" in out
    assert sorted(path.name for path in (place / "out").iterdir()) == ["by town%2F2.csv", "everybody.csv"]
    assert len(json.loads(told(capsys, *run, "--format", "json"))["tables"]) == 2
    told(capsys, *run, "--quiet", "-o", "all.json")
    assert [table["name"] for table in json.loads((place / "all.json").read_text())["tables"]] == [
        "everybody",
        "by town/2",
    ]


@pytest.mark.long
def test_a_release_is_exported_in_every_format(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "run", "batch.sql", *P, "--epsilon", "1")
    told(capsys, "run", "one.sql", *P, "--epsilon", "1")
    (place / "people.ledger").unlink()  # the releases file is enough
    export = ["releases", "export", "1", "--releases", "people.releases.duckdb"]
    assert "2 results, as parquet" in told(capsys, *export, "--format", "parquet", "-o", "out/")
    shown = duckdb.sql("SELECT town, n FROM 'out/by town%2F2.parquet'").fetchall()
    assert told(capsys, *export, "--quiet", "-o", "one.duckdb") == ""
    with duckdb.connect("one.duckdb", read_only=True) as made:
        assert made.sql('SELECT town, n FROM "by town/2"').fetchall() == shown
        assert made.sql("SELECT release_id, names FROM dpsql_release").fetchall() == [(1, ["everybody", "by town/2"])]
    document = json.loads(told(capsys, *export, "--json"))
    assert document["guarantee"] == "epsilon 1 (pure)"
    assert [tuple(row[:2]) for row in document["tables"][1]["rows"]] == shown
    assert told(capsys, *export, "--result", "EVERYBODY", "--format", "csv").startswith("n,n_stderr,n_low,n_high\n")
    assert "everybody\n" in told(capsys, *export)
    newest = json.loads(told(capsys, "releases", "export", *export[3:], "--json"))
    assert newest["release_id"] == 2
    for wrong, said in (
        (["-o", "one.duckdb"], "one.duckdb exists already"),
        (["--result", "nothing"], "release 1 has no result nothing; it has everybody"),
        (["--releases", "none.duckdb"], "there is no releases file"),
        (["--releases", "a" * 300], "cannot be reached (File name too long); give this user access to its directory"),
    ):
        assert main([*export, *wrong]) == 1
        assert said in capsys.readouterr().err
    assert main(["releases", "export", "9", *export[3:]]) == 1
    assert "there is no release 9" in capsys.readouterr().err


@pytest.mark.long
def test_rename_and_drop(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "run", "batch.sql", *P, "--epsilon", "1")
    assert "is shown as all of them" in told(capsys, "releases", "rename", "everybody", "all of them", *P)
    assert "(1 row)" in told(capsys, "sql", 'FROM "all of them"', *P)
    found = json.loads(told(capsys, "releases", "drop", "by town/2", *P, "--json"))
    assert (found["dropped"], found["refunded"], found["spent"]) == ([[1, "by town/2"]], 0, 1)
    assert "1 dropped; all of them" in told(capsys, "releases", "list", *P)
    (entry,) = json.loads(told(capsys, "releases", "list", *P, "--json"))["releases"]
    assert (entry["results"], entry["views"]) == (["everybody", "by town/2"], ["all of them"])
    assert told(capsys, "releases", "rebuild", *P, "--quiet") == ""
    assert "Nothing is given back" in told(capsys, "releases", "drop", "--release", "1", *P)
    assert "all dropped" in told(capsys, "releases", "list", *P)
    for argv in (["drop", "by town/2"], ["drop", "--release", "7"], ["rename", "x", "y"]):
        assert main(["releases", *argv, *P]) == 1
        assert capsys.readouterr().err.startswith("dpsql: error: ")
    with pytest.raises(SystemExit) as stop:
        main(["releases", "drop", *P])
    assert stop.value.code == 2
    assert "there is nothing to drop" in capsys.readouterr().err
    assert spent(capsys) == 1


@pytest.mark.long
def test_reports_are_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["report", "plan", "batch.sql", *P, "--epsilon", "1"]
    assert "Written to plan.html" in told(capsys, *plan, "-o", "plan.html")
    assert not (place / "people.ledger").exists()
    assert told(capsys, *plan, "-o", "-") == (place / "plan.html").read_text()
    told(capsys, "run", "batch.sql", *P, "--epsilon", "1")
    assert told(capsys, "report", "release", *P, "-o", "release.html", "--quiet") == ""
    assert "<h1>Release 1</h1>" in (place / "release.html").read_text()
    assert main([*plan, "-o", "people.toml"]) == 1
    assert "which --output would replace" in capsys.readouterr().err
    assert main([*plan, "-o", "no/where.html"]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.long
def test_a_query_is_stopped_in_time(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_ROWS", math.inf)
    monkeypatch.setattr(limits, "CALL", 0)
    told(capsys, "run", "one.sql", *P, "--epsilon", "1")
    slow = "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range % 7 = b.range"
    assert main(["sql", slow, *P, "--timeout", "0.2"]) == 1
    assert "stopped after 0.2 s; narrow it, or allow it more time" in capsys.readouterr().err
    assert "(1 row)" in told(capsys, "sql", "SELECT 1", *P, "--timeout", "0")
    for wrong in ("x", "-1", "nan"):
        with pytest.raises(SystemExit) as stop:
            main(["sql", "SELECT 1", *P, f"--timeout={wrong}"])
        assert stop.value.code == 2


def test_colours_are_for_terminals(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    plain = told(capsys, "plan", "batch.sql", *P, "--epsilon", "1")
    assert "\x1b" not in plain
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["plan", "batch.sql", *P, "--epsilon", "1"]) == 0
    coloured = capsys.readouterr().out
    assert "\x1b[1mGuarantee  \x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as quiet:
            quiet.setenv(name, value)
            assert main(["plan", "batch.sql", *P, "--epsilon", "1"]) == 0
            assert capsys.readouterr().out == plain
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["budget", "--policy", "none.toml"]) == 1
    assert capsys.readouterr().err.startswith("dpsql: \x1b[31merror:\x1b[0m ")


def test_a_table_has_its_head_set_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "coloured", lambda _: True)
    text = "by_town\ntown   n\n----  --\nhere  60\n\n(1 row)"
    assert output.painted(text, sys.stdout).split("\n") == [
        *("by_town", "\x1b[1mtown   n\x1b[0m", "\x1b[2m----  --\x1b[0m", "here  60", "", "(1 row)"),
    ]


def test_warnings_are_lines_and_quiet_is_quiet(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "one.sql", *P, "--epsilon", "0.5", "--releases", "no/such/place.duckdb"]
    assert main(run) == 0
    assert capsys.readouterr().err.startswith("dpsql: warning: release 1 is in the ledger but not registered")
    assert main([*run, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("by_town\n")


def test_the_demo_is_quiet_where_it_is_asked_to_be(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A policy of few statements stands for the demo's in the tests of its whole text.
    from dpsql.surfaces import demo

    say = demo._Say(quiet=True, silent=False)
    say("a paragraph")
    say("SELECT 1", table=True)
    demo._Say(quiet=False, silent=True)("t\nn", result=True)
    assert capsys.readouterr().out == ""
    say("t\nn", result=True)
    assert capsys.readouterr().out == "t\nn\n\n"


def test_policy_init_takes_folders_and_patterns(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("flights/year=2013/a", "flights/year=2014/b"):
        (place / part).parent.mkdir(parents=True)
        duckdb.sql("SELECT 4711 AS delay").write_parquet(str(place / f"{part}.parquet"))
    for number in (1, 2):
        (place / f"visits_{number}.csv").write_text("day,cost\n4711,4711\n")
    sources = ["--source", "flights", "all=flights/*/*.parquet", "visits_*.csv"]
    text = told(capsys, "policy", "init", *sources)
    assert 'dataset = "flights-1"' in text
    assert "4711" not in text
    places = dict(re.findall(r'\[tables\.(\w+)\]\n(?:#.*\n)*source = "(.*)"', text))
    assert places == {"flights": "flights/", "all": "flights/*/*.parquet", "visits": "visits_*.csv"}
    assert main(["policy", "init", "--source", "nothing_*.csv"]) == 1
    assert "no file matches nothing_*.csv; check the pattern" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["policy", "init", "--source", "visits_1.csv", "visits_1=visits_2.csv"])
    assert stop.value.code == 2


def test_plain_duckdb_reads_the_views(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "run", "batch.sql", *P, "--epsilon", "1")
    shown = json.loads(told(capsys, "releases", "show", "by town/2", *P, "--json"))["rows"]
    script = (
        "import duckdb; con = duckdb.connect('people.releases.duckdb', read_only=True); "
        "print(con.sql('FROM dp.\"by town/2\"').fetchall()); "
        "print(con.sql('SELECT sum(cost) FROM dp.releases').fetchall())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout.splitlines() == [str([tuple(row) for row in shown]), "[(1.0,)]"]
