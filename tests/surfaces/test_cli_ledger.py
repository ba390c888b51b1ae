"""``dpsql ledger``, and an older ledger under every command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.surfaces.cli import main

POLICY = """
dataset = "kept-1"
anchor = "elsewhere/x.anchor"
[budget]
epsilon = 4
local_epsilon = 1
[tables.t]
unit = "row"
rows_public = true
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 9, type = "INTEGER", nulls = false }
"""
FIRST, SECOND, THIRD = (f"CREATE VIEW v{i} AS SELECT COUNT(*) AS n FROM t WHERE k < {i}" for i in (3, 5, 7))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "t.csv").write_text("k\n" + "".join(f"{i % 10}\n" for i in range(50)))
    (tmp_path / "p.toml").write_text(POLICY)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "batch.sql").write_text(THIRD)
    monkeypatch.setenv("DPSQL_POLICY", str(tmp_path / "p.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(sql: str) -> None:
    assert main(["run", "--epsilon", "0.25", "--quiet", "--sql", sql, "--no-earlier"]) == 0


COMMANDS = {
    "run": ["run", "batch.sql", "--epsilon", "0.25"],
    "run for free": ["run", "batch.sql"],
    "plan": ["plan", "batch.sql", "--epsilon", "0.25"],
    "release": ["release", "--workload", "ranges(k)", "--epsilon", "0.1"],
    "release, dry": ["release", "--workload", "ranges(k)", "--epsilon", "0.1", "--dry-run"],
    "budget": ["budget"],
    "report plan": ["report", "plan", "batch.sql", "--epsilon", "0.25", "-o", "page.html"],
    "list": ["releases", "list"],
    "rename": ["releases", "rename", "v3", "w"],
    "drop": ["releases", "drop", "v3"],
    "rebuild": ["releases", "rebuild"],
    "synthesize": ["synthesize", "t", "--columns", "k", "--epsilon", "0.5"],
    "ask": ["synthesize", "t", "--ask", "SELECT COUNT(*) FROM t"],
    "backup": ["ledger", "backup", "b.ledger"],
    "verify": ["ledger", "verify"],
    "confirm": ["policy", "confirm", "p.toml"],
    "renew": ["policy", "renew", "renewed.toml", "--was", "kept-1"],
}
READERS = {
    "sql": ["sql", "SELECT COUNT(*) FROM v3"],
    "show": ["releases", "show", "v3"],
    "export": ["releases", "export", "1", "--format", "json"],
    "check": ["policy", "check", "p.toml"],
}


@pytest.mark.parametrize("witness", ["anchor", "releases"])
@pytest.mark.few("releases")
def test_every_command_notices_an_older_ledger(place: Path, witness: str, capsys: pytest.CaptureFixture[str]) -> None:
    if witness == "releases":
        (place / "p.toml").write_text(POLICY.replace('anchor = "elsewhere/x.anchor"\n', ""))
    held = (place / "p.toml").read_text()
    (place / "renewed.toml").write_text(held.replace("kept-1", "kept-2"))
    run(FIRST)
    older = (place / "p.ledger").read_bytes()
    run(SECOND)
    released = (place / "p.releases.duckdb").read_bytes()
    (place / "p.ledger").write_bytes(older)
    (place / "renewed.ledger").write_bytes(older)
    shutil.copy(place / "p.releases.duckdb", place / "renewed.releases.duckdb")
    capsys.readouterr()
    for name in list(COMMANDS)[:: 1 if witness == "anchor" else 4]:  # who tells of it makes no difference to a command
        command = COMMANDS[name]
        assert main(command) == 1, name
        said = capsys.readouterr().err
        assert "which would forget charges" in said, name
        assert "dpsql ledger restore" in said, name
        assert "releases rebuild" not in said, name
    for name, command in READERS.items():
        assert main(command) == 0, name
        assert "warning: " in (said := capsys.readouterr().err), name
        assert "which would forget charges" in said, name
    assert (place / "p.ledger").read_bytes() == older
    assert (place / "p.releases.duckdb").read_bytes() == released


def test_a_line_taken_out_of_the_policy_does_not_take_the_anchor_away(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(FIRST)
    (place / "p.toml").write_text(POLICY.replace('anchor = "elsewhere/x.anchor"\n', ""))
    assert main(["budget"]) == 1
    assert "none is named" in capsys.readouterr().err
    assert main(["budget", "--anchor", "elsewhere/x.anchor"]) == 0


@pytest.mark.long
def test_a_backup_is_restored_and_what_was_lost_is_charged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(FIRST)
    assert main(["ledger", "backup", "b.ledger"]) == 0
    assert "b.ledger is the ledger as of now, 5 links, checked." in capsys.readouterr().out
    run(SECOND)
    run(THIRD)
    (place / "p.ledger").unlink()
    assert main(["ledger", "restore", "b.ledger"]) == 1
    assert "with --lost, which counts epsilon 0.5 of the pure account as spent" in capsys.readouterr().err
    assert main(["ledger", "restore", "b.ledger", "--lost", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["lost"] == ["epsilon 0.5 of the pure account"]
    assert done["kept"] is None
    # What was released was paid for, and may be read on; the new file has what the ledger has.
    with duckdb.connect(done["releases_kept"], read_only=True) as kept:
        assert len(kept.execute("SELECT * FROM dp.v7").fetchall()) == 1
    assert main(["ledger", "verify"]) == 0
    said = capsys.readouterr().out
    assert "3 charges" not in said
    assert "ok: 7 links, 2 charges, 1 releases; the anchor has link 7; the releases file has them all" in said
    assert main(["budget"]) == 0
    said = capsys.readouterr().out
    assert "epsilon 0.75 spent of 4" in said
    assert "by a ledger that was lost: pure epsilon 0.5 in 1 charge" in said
    assert "without a recorded answer" not in said
    assert main(["releases", "list"]) == 0
    assert "lost" in capsys.readouterr().out
    again = dpsql.connect(policy=place / "p.toml").run(THIRD, epsilon=0.25, earlier=False)
    assert again.id > 3
    assert again.cost == 0.25


@pytest.mark.long
def test_the_custodians_word_counts_where_no_anchor_does(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "p.toml").write_text(POLICY.replace('anchor = "elsewhere/x.anchor"\n', ""))
    run(FIRST)
    assert main(["ledger", "backup", "b.ledger", "--quiet"]) == 0
    run(SECOND)
    run(THIRD)
    (place / "p.ledger").write_bytes(b"")
    for given in (["--lost", "no"], ["--lost", "-1"], []):
        assert main(["ledger", "restore", "b.ledger", *given]) == 1
    assert main(["ledger", "restore", "b.ledger", "--lost", "0"]) == 0
    said = capsys.readouterr().out
    # The releases file shows that more was spent.
    assert "epsilon 0.5 of the pure account is charged" in said
    assert "The ledger that was there is kept as" in said
    assert "A releases file with more than the ledger has is kept as" in said
    assert "epsilon 0.75 spent of 4" in said
    assert main(["ledger", "verify"]) == 0
    assert "there is no anchor" in capsys.readouterr().out


def test_verify_finds_what_was_changed_by_hand(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify"]) == 1
    assert "there is no ledger" in capsys.readouterr().err
    run(FIRST)
    run(SECOND)
    capsys.readouterr()
    assert main(["ledger", "verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"ok": True, "links": 7, "charges": 2, "releases": 2, "anchor": 7, "written": 2}
    held = (place / "p.releases.duckdb").read_bytes()
    for change, said in (
        ("UPDATE r2.v5 SET n = n + 1", "r2.v5"),
        ("DELETE FROM r1.v3", "r1.v3"),
        ("ALTER TABLE r1.v3 ADD COLUMN more INTEGER", "r1.v3"),
        ("CREATE TABLE r1.more AS SELECT 1 AS i", "r1.more"),
        ("UPDATE main.releases SET label = 'eve'", "main.releases"),
    ):
        with duckdb.connect(place / "p.releases.duckdb") as db:
            db.execute(change)
        assert main(["ledger", "verify"]) == 1
        assert f"is not what the ledger makes of it: {said};" in capsys.readouterr().err
        (place / "p.releases.duckdb").write_bytes(held)
    (place / "p.releases.duckdb").unlink()
    assert main(["ledger", "verify"]) == 0
    assert "the releases file lacks 2, to be written" in capsys.readouterr().out


def test_a_file_that_is_no_releases_file_is_never_moved_by_a_restore(place: Path) -> None:
    run(FIRST)
    assert main(["ledger", "backup", "b.ledger", "--quiet"]) == 0
    with duckdb.connect(place / "mine.duckdb") as db:
        db.execute("CREATE TABLE precious AS SELECT 1 AS i")
    before = (place / "mine.duckdb").read_bytes()
    (place / "p.ledger").unlink()
    assert main(["ledger", "restore", "b.ledger", "--releases", "mine.duckdb"]) == 1
    assert (place / "mine.duckdb").read_bytes() == before
    assert not (place / "p.ledger").exists()
