"""The ledger and the releases file of a connection: caps, labels, recovery, rollback."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.engines.duckdb import OpenEngine
from dpsql.release import ReleaseStore
from dpsql.surfaces.cli import main

POLICY = """
dataset = "books-1"
[budget]
epsilon = 4
delta = 1e-9
pure_epsilon = 2
max_epsilon_per_release = 0.5
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 9, type = "INTEGER", nulls = false }
"""
COUNT = "CREATE OR REPLACE VIEW everybody AS SELECT count(*) AS n FROM t"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text("k\n" + "".join(f"{i % 10}\n" for i in range(50)))
    (tmp_path / "p.toml").write_text(POLICY)
    return tmp_path


def connect(place: Path, **options: Any) -> dpsql.Connection:
    return dpsql.connect(policy=place / "p.toml", **options)


def test_a_release_above_the_cap_is_planned_and_not_run(place: Path) -> None:
    con = connect(place)
    for asked in ({"epsilon": 0.6}, {"epsilon": 0.6, "delta": 1e-9}):
        plan = con.plan(COUNT, **asked)
        assert not plan.affordable
        assert "than one release may cost" in str(plan)
        with pytest.raises(dpsql.BudgetError, match=r"max_epsilon_per_release, 0\.5"):
            con.run(plan)
    assert con.releases() == []
    con.run(COUNT, 0.5)
    assert con.budget.spent == 0.5


def test_a_cap_may_change_and_the_ledger_goes_on(place: Path) -> None:
    connect(place).run(COUNT, 0.5)
    (place / "p.toml").write_text(POLICY.replace("max_epsilon_per_release = 0.5", "max_epsilon_per_release = 0.75"))
    con = connect(place)
    con.run(COUNT, 0.75)
    assert con.budget.spent == 1.25


def test_the_budget_and_the_view_say_who_and_what_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    con = connect(place, label="ann")
    con.run(COUNT, 0.25)
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", 0.5, label="bob, for the report")
    assert [(s.label, s.cost, s.results) for s in con.budget.by_label()] == [
        ("ann", 0.25, ("everybody",)),
        ("bob, for the report", 0.5, ("q1",)),
    ]
    seen = con.sql("SELECT label, cost, purse, names FROM dp.releases ORDER BY release_id").fetchall()
    assert seen == [("ann", 0.25, "pure", ["everybody"]), ("bob, for the report", 0.5, "pure", ["q1"])]
    figures = "SELECT purse_total, purse_spent, purse_remaining FROM dp.releases ORDER BY release_id"
    assert con.sql(figures).fetchall() == [(2.0, 0.25, 1.75), (2.0, 0.75, 1.25)]
    con.rebuild()
    assert con.sql(figures).fetchall() == [(2.0, 0.25, 1.75), (2.0, 0.75, 1.25)]
    assert main(["budget", "--policy", str(place / "p.toml")]) == 0
    shown = capsys.readouterr().out
    assert "epsilon 0.75 spent of 4 at delta 1e-9" in shown
    assert "by bob, for the report: pure epsilon 0.5 in 1 charge for q1" in shown


def test_a_label_cannot_steer_the_terminal_of_who_reads_the_budget(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    con = connect(place, label="ann\x1b[2J\u202e\nbob: nothing")
    con.run(COUNT, 0.25)
    for command in (["budget"], ["releases", "list"]):
        assert main([*command, "--policy", str(place / "p.toml")]) == 0
        shown = capsys.readouterr().out
        assert all(c.isprintable() for c in shown if c != "\n")
        assert r"ann\x1b[2J\u202e" in shown


def test_a_new_ledger_never_takes_the_place_of_one_that_is_missing(place: Path) -> None:
    connect(place).run(COUNT, 0.5)
    kept = (place / "p.ledger").read_bytes()
    (place / "p.ledger").unlink()
    con = connect(place)
    uses = (lambda: con.run(COUNT, 0.5), lambda: con.plan(COUNT, 0.5), lambda: con.budget, con.releases, con.rebuild)
    for use in uses:
        with pytest.raises(dpsql.LedgerError, match="there is no ledger"):
            use()
    assert not (place / "p.ledger").exists()
    assert con.sql("SELECT count(*) FROM everybody").fetchall() == [(1,)]  # what was released stays readable
    (place / "p.ledger").write_bytes(kept)
    assert con.budget.spent == 0.5


def test_a_new_version_of_the_data_is_declared_and_spending_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = connect(place).run(COUNT, 0.5)
    policy = place / "p.toml"
    policy.write_text(POLICY.replace("books-1", "books-2"))
    con = connect(place)
    with pytest.raises(dpsql.LedgerError, match="dpsql policy renew"):
        con.run(COUNT, 0.5)
    for wrong in ("books-0", "books-2"):
        with pytest.raises(dpsql.LedgerError, match="belongs to data set 'books-1'"):
            con.renew(wrong)
    assert main(["policy", "renew", str(policy), "--was", "books-1"]) == 0
    assert "The data set is books-2 now; what was spent stays spent." in capsys.readouterr().out
    assert connect(place).budget.spent == 0.5
    again = connect(place).run(COUNT, 0.5)  # another version is another question
    assert (again.id, again.cost) == (first.id + 1, 0.5)
    policy.write_text(POLICY)  # the old name never returns
    for use in (lambda c: c.budget, lambda c: c.renew("books-2")):
        with pytest.raises(dpsql.LedgerError):
            use(connect(place))
    with pytest.raises(dpsql.LedgerError, match="does not exist"):
        connect(place, ledger=place / "none.ledger").renew("books-1")


@pytest.mark.parametrize("names", [("ledger", "releases"), ("ledger", "anchor"), ("releases", "anchor")], ids="=".join)
def test_two_files_of_a_connection_are_never_one(place: Path, names: tuple[str, str]) -> None:
    with pytest.raises(dpsql.InterfaceError, match="are both"):
        connect(place, **dict.fromkeys(names, place / "one"))
    for name in names:
        with pytest.raises(dpsql.InterfaceError, match="policy and"):
            connect(place, **{name: place / "p.toml"})
        with pytest.raises(dpsql.InterfaceError, match="database and"):
            dpsql.connect(place / "d.duckdb", policy=place / "p.toml", **{name: place / "." / "d.duckdb"})
    (place / "link").symlink_to(place / "one")
    with pytest.raises(dpsql.InterfaceError, match="are both"):
        connect(place, **{names[0]: place / "one", names[1]: place / "link"})


def test_rollback_never_refunds(place: Path) -> None:
    con = connect(place)
    con.run(COUNT, 0.25)
    before = con.budget
    con.rollback()
    con.commit()
    con.rollback()
    assert con.budget == before
    assert con.sql("SELECT count(*) FROM everybody").fetchall() == [(1,)]
    assert connect(place).budget.spent == 0.25
    con.close()
    for use in (con.rollback, con.commit):
        with pytest.raises(dpsql.InterfaceError):
            use()


def fail(self: Any, *rest: Any) -> Any:
    raise dpsql.OperationalError("the disk is gone")


def test_what_a_crash_left_is_told_on_start(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    con = connect(place)
    con.run(COUNT, 0.25)
    with monkeypatch.context() as patch:
        patch.setattr(OpenEngine, "scan", fail)
        with pytest.raises(dpsql.OperationalError):
            con.run(COUNT, 0.5, fresh=True)
    with caplog.at_level(logging.WARNING, "dpsql"):
        state = connect(place).budget
    assert "1 charged without a recorded answer, the last is release 2" in caplog.text
    assert [entry.id for entry in state.unreleased] == [2]
    assert state.spent == 0.75
    assert main(["budget", "--policy", str(place / "p.toml")]) == 0
    assert "charged without a recorded answer: release 2 (" in capsys.readouterr().out
    assert main(["budget", "--policy", str(place / "p.toml"), "--json"]) == 0
    shown = capsys.readouterr().out
    assert '"unreleased": [2]' in shown


def test_releases_that_a_crash_kept_out_of_the_file_are_there_on_start(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = connect(place)
    con.run("CREATE VIEW first AS SELECT count(*) AS n FROM t WHERE k < 5", 0.25)
    with monkeypatch.context() as patch:
        patch.setattr(ReleaseStore, "write", fail)
        lost = con.run(COUNT, 0.25)
    later = connect(place)
    assert later.sql("SELECT * FROM everybody") == lost["everybody"]
    later.releases_path.unlink()
    assert connect(place).sql("SELECT * FROM everybody") == lost["everybody"]


def test_a_releases_file_is_readable_where_its_ledger_is_not(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    con = connect(place)
    found = con.run(COUNT, 0.25)
    con.ledger_path.write_bytes(b"no ledger" * 1000)
    with caplog.at_level(logging.WARNING, "dpsql"):
        assert connect(place).sql("SELECT * FROM everybody") == found["everybody"]
    assert "was not brought up to date" in caplog.text


@pytest.mark.parametrize("change", ["another type", "a column more"])
def test_a_changed_column_voids_a_plan(place: Path, change: str) -> None:
    con = connect(place)
    plan = con.plan(COUNT, 0.25)
    if change == "another type":
        (place / "p.toml").write_text(POLICY.replace('"INTEGER"', '"BIGINT"'))
        con = connect(place)
    else:
        (place / "p.toml").write_text(POLICY + 'j = { type = "INTEGER" }\n')
        con = connect(place)
        (place / "t.csv").write_text("k,j\n1,2\n")
    with pytest.raises(dpsql.IntegrityError, match="plan again"):
        con.run(plan)
    assert con.releases() == []


def test_the_command_line_limits_a_scan(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--sql", COUNT, "--policy", str(place / "p.toml"), "--epsilon", "0.25", "--quiet"]
    assert main([*run, "--memory-limit", "1GB", "--scan-timeout", "600"]) == 0
    assert "everybody" in capsys.readouterr().out
    assert main([*run, "--memory-limit", "much"]) == 1
    assert 'memory_limit must be a size such as "4GB"' in capsys.readouterr().err
