"""``dpsql shell``: lines fed to its session, and one session through a pseudo-terminal."""

from __future__ import annotations

import io
import os
import re
import select
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import filled

from dpsql.surfaces import inputs, shell
from dpsql.surfaces.cli import main
from dpsql.surfaces.grammar import parser
from dpsql.surfaces.shell import Shell

POLICY = """
dataset = "shell-1"
database = "t.duckdb"
[budget]
epsilon = 4
[tables.people]
unit = "row"
[tables.people.columns]
town = { values = ["here", "there"], nulls = false }
age = { lower = 0, upper = 120 }
"""
BY_TOWN = "CREATE VIEW by_town AS SELECT town, COUNT(*) AS n FROM people GROUP BY town"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with filled(tmp_path / "t.duckdb") as duck:
        duck.execute("CREATE TABLE people AS SELECT 'here' AS town, i % 90 AS age FROM range(99) r(i)")
    (tmp_path / "p.toml").write_text(POLICY)
    monkeypatch.setenv("DPSQL_POLICY", str(tmp_path / "p.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def session(folder: Path):
    options = parser(["shell"]).parse_args(["shell", "--quiet"])
    with inputs.connected(options) as con:
        yield Shell(con, options)


def said(session: Shell, capsys: pytest.CaptureFixture[str], *lines: str) -> str:
    for line in lines:
        assert session.feed(line)
    return "".join(capsys.readouterr())


def test_a_statement_is_answered_where_it_ends(session: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(session, capsys, "\\set epsilon 0.5", f"{BY_TOWN[:30]}", f"{BY_TOWN[30:]} -- not yet;") == ""
    answer = said(session, capsys, ";")
    assert "by_town" in answer
    assert session.con.budget.spent == 0.5
    assert main(["run", "--sql", BY_TOWN, "--epsilon", "0.5", "--quiet"]) == 0
    assert capsys.readouterr().out == answer  # the release that is there, as dpsql run shows it
    assert "(1 row)" in said(session, capsys, "SELECT sum(n) AS n FROM by_town;")
    assert "(1 row)" in said(session, capsys, "SELECT ';' AS a, 'x", "y;' AS b FROM by_town LIMIT 1;")
    assert session.con.budget.spent == 0.5


def test_explain_shows_the_errors_and_spends_nothing(session: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    plan = said(session, capsys, "\\set epsilon 1", "explain SELECT COUNT(*) AS n FROM people;")
    assert plan.startswith("Guarantee")
    assert not session.con.ledger_path.exists()


def test_tables_columns_and_budget(session: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"people +private", said(session, capsys, "\\d"))
    assert re.search(r"town +here, there\n", said(session, capsys, "\\d PEOPLE"))
    assert "spent of 4" in said(session, capsys, "\\budget")
    assert "\\set NAME VALUE" in said(session, capsys, "\\?")
    assert not session.feed("\\q")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("\\bugdet", r"no command \bugdet; did you mean \budget"),
        ("\\d poeple", "did you mean people?"),
        ("\\set epsilo 1", "no option epsilo; did you mean epsilon"),
        ("\\set epsilon much", "\\set epsilon 0.5"),
        ("\\set rounds x", "write a whole number, such as \\set rounds 5"),
        ("\\set estimates feasable", "did you mean feasible?"),
        ("SELECT COUNT(*) FROM peple;", "did you mean people?"),
        ("SELECT COUNT(*) FROM people;", "give \\set epsilon ..."),
        ("EXPLAIN SELECT COUNT(*) FROM people;", "the budget is missing"),
    ],
)
def test_what_is_refused_says_what_to_write(
    session: Shell, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    out = said(session, capsys, line)
    assert words in out
    assert out.startswith("dpsql: error: ")
    assert session.failed
    assert "spent of 4" in said(session, capsys, "\\budget")  # and the session goes on


def test_options_are_set_taken_back_and_exclude_each_other(session: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert "\\set epsilon 0.1\n" in said(session, capsys, "\\set epsilon 0.1", "\\set")
    shown = said(session, capsys, "\\set rho 0.5", "\\set")
    assert "\\set rho 0.5" in shown
    assert "epsilon" not in shown
    assert "rho" not in said(session, capsys, "\\set rho", "\\set")
    assert "\\set max_error ['5']" in said(session, capsys, "\\set max-error 5", "\\set")


def test_what_was_begun_is_forgotten(session: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(session, capsys, "SELECT 'open", "\\r") == ""
    assert "people" in said(session, capsys, "\\d")
    assert "error" in said(session, capsys, "SELECT 'open", ";")  # which no ; inside it could end


def test_names_are_completed(session: Shell) -> None:
    def completions(word: str) -> list[str]:
        found = []
        while (one := session.complete(word, len(found))) is not None:
            found.append(one)
        return found

    assert completions("peo") == ["people"]
    assert completions("to") == ["town"]
    assert completions("\\b") == ["\\budget"]
    assert "GROUP BY" in completions("gr")


def test_a_script_is_read_to_its_end_and_fails_where_something_was_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{BY_TOWN};\n\\d\n"))
    assert main(["shell", "--epsilon", "1"]) == 0
    assert re.search(r"by_town +released", capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", io.StringIO("\\nothing\nSELECT n FROM by_town;\n"))
    assert main(["shell"]) == 1
    out, err = capsys.readouterr()
    assert "(2 rows)" in out
    assert "\\nothing" in err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_prompts_and_a_history_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pty = pytest.importorskip("pty")
    pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("TERM", "dumb")
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "dpsql", "shell", "--epsilon", "1"])
    seen = ""

    def until(words: str) -> None:
        nonlocal seen
        seen, stop = "", time.monotonic() + 60
        while words not in seen and time.monotonic() < stop:
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 4096).decode()
        assert words in seen

    until("dpsql> ")
    os.write(terminal, b"SELECT COUNT(*) AS n\n")
    until("    -> ")
    os.write(terminal, b"FROM people;\n")
    until("Release 1, spent epsilon 1")
    os.write(terminal, b"\\q\n")
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)
    history = folder / "state" / "dpsql" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    assert history.read_text().splitlines() == ["SELECT COUNT(*) AS n", "FROM people;", "\\q"]


@pytest.mark.long
def test_a_statement_that_was_cut_off_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    command = [sys.executable, "-m", "dpsql", "shell", "--epsilon", "1"]
    done = subprocess.run(
        command, input="SELECT COUNT(*) AS n\nFROM people", text=True, capture_output=True, check=False, timeout=120
    )
    assert "Release" not in done.stdout
    assert "does not end with ; and was not run" in done.stderr
    assert done.returncode == 1


def test_history_is_not_written_through_a_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    other = folder / "other.txt"
    other.write_text("mine")
    (folder / "state" / "dpsql").mkdir(parents=True)
    (folder / "state" / "dpsql" / "history").symlink_to(other)
    with shell._history(Shell.__new__(Shell)):
        pass
    assert other.read_text() == "mine"
