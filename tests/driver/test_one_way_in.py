"""A newcomer's calls: what they expect of DuckDB works, or says where to go."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from helpers import filled

import dpsql
from dpsql.errors import DataError, InterfaceError, LedgerError, ProgrammingError
from dpsql.surfaces.cli import main

POLICY = """
dataset = "way-1"
database = "t.duckdb"
[budget]
epsilon = 4
[tables.t]
unit = "row"
[tables.t.columns]
k = { lower = 0, upper = 2, nulls = false }
"""
BY_K = "SELECT k, COUNT(*) AS n FROM t GROUP BY k"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with filled(tmp_path / "t.duckdb") as duck:
        duck.execute("CREATE TABLE t AS SELECT i % 3 AS k FROM range(99) r(i)")
    (tmp_path / "p.toml").write_text(POLICY)
    return tmp_path


def test_the_policy_names_the_database(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with dpsql.connect(policy=folder / "p.toml") as con:
        assert con.policy.place("database") == folder / "t.duckdb"
        assert len(con.run(BY_K, epsilon=1).df()) == 3
    assert dpsql.Policy.parse(con.policy.to_toml()) == con.policy


def test_the_policy_names_the_anchor(folder: Path) -> None:
    (folder / "p.toml").write_text(POLICY.replace("[budget]", 'anchor = "kept/p.anchor"\n[budget]'))
    (folder / "kept").mkdir()
    with dpsql.connect(policy=folder / "p.toml") as con:
        con.run(BY_K, epsilon=1)
        copy = con.ledger_path.read_bytes()
        con.run("SELECT COUNT(*) FROM t", epsilon=1)
        con.ledger_path.write_bytes(copy)
    assert (folder / "kept" / "p.anchor").exists()
    with dpsql.connect(policy=folder / "p.toml") as con, pytest.raises(LedgerError, match="older"):
        con.budget  # noqa: B018 - it reads the ledger


def test_one_result_is_taken_without_its_name(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with dpsql.connect(policy=folder / "p.toml") as con:
        one = con.run(BY_K, epsilon=1)
        assert one.fetchall() == one[0].fetchall() == one["q1"].fetchall()
        assert one[-1] == one["q1"]
        assert list(pandas.DataFrame(one["q1"]).columns) == list(one["q1"].columns)
        assert one.df().equals(pandas.DataFrame(one["q1"]))
        assert next(iter(one["q1"])) == one.fetchall()[0]
        two = con.run(f"{BY_K}; SELECT COUNT(*) FROM t", epsilon=1)
        assert two[1] == two["q2"]
        with pytest.raises(DataError, match=r"2 results \(q1, q2\); take one by its name"):
            two.df()
        with pytest.raises(dpsql.Error, match="no result number 2; from 0 they are: q1, q2"):
            two[2]
        assert con.execute("SELECT k, n FROM r1.q1").df().equals(one.df()[["k", "n"]])
        for missing in (2, -3, True):
            with pytest.raises(dpsql.Error):
                two[missing]


def test_what_is_private_is_said_where_releases_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with duckdb.connect(folder / "t.duckdb") as duck:
        duck.execute("CREATE TABLE wards (name VARCHAR)")
    (folder / "p.toml").write_text(f"{POLICY}[tables.wards]\npublic = true\n[tables.wards.columns]\nname = {{}}\n")
    with dpsql.connect(policy=folder / "p.toml") as con:
        for _ in range(2):
            with pytest.raises(ProgrammingError, match=r"reads a private table; con\.run"):
                con.sql("SELECT COUNT(*) FROM t")
            assert len(con.execute(BY_K, epsilon=1).fetchall()) == 3
        with pytest.raises(dpsql.Error, match="no_such"):
            con.sql("SELECT * FROM no_such")
        with pytest.raises(ProgrammingError, match="no budget is given"):
            con.execute("SELECT SUM(k) FROM t")
        assert con.execute("SELECT COUNT(*) FROM q1").fetchall() == [(3,)]
        with pytest.raises(ProgrammingError, match="reads a public table: query it with DuckDB"):
            con.sql("SELECT name FROM wards")
    for name, asked in (("t", "a private table; dpsql run measures it"), ("wards", "a public table: query it")):
        assert main(["sql", f"SELECT COUNT(*) FROM {name}", "--policy", str(folder / "p.toml")]) == 1
        assert asked in capsys.readouterr().err


def test_swapped_and_unlucky_places_are_refused(folder: Path) -> None:
    for swapped in ({"policy": folder / "t.duckdb"}, {}):
        with pytest.raises(InterfaceError, match="database is a policy"):
            dpsql.connect(folder / "p.toml", **swapped)
    with pytest.raises(InterfaceError, match="policy is missing"):
        dpsql.connect(folder / "t.duckdb")
    dpsql.connect(folder / "t.duckdb", folder / "p.toml").close()
    with pytest.raises(InterfaceError, match="its schema r1"):
        dpsql.connect(policy=folder / "p.toml", releases=folder / "r1.duckdb")


def test_the_environment_names_policy_and_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "p.toml").write_text(POLICY.replace('database = "t.duckdb"\n', ""))
    monkeypatch.setenv("DPSQL_POLICY", str(folder / "p.toml"))
    monkeypatch.setenv("DPSQL_DATABASE", str(folder / "t.duckdb"))
    assert main(["plan", "--sql", BY_K, "--epsilon", "1"]) == 0
    assert main(["run", "--sql", BY_K, "--epsilon", "1"]) == 0
    assert main(["sql", "SELECT COUNT(*) AS n FROM q1"]) == 0
    assert main(["plan", "--sql", BY_K, "--epsilon", "3.5"]) == 1
    assert "more than is left of it" in capsys.readouterr().out
