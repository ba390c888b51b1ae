"""What limits cut is said wherever a number is shown: by one function, in the words that plans and results have."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.extensions.notebook.results import footer_of
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.extensions.server.agents import Agent
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowance
from dpsql.extensions.server.service import Service
from dpsql.surfaces.cli import main

POLICY = """
dataset = "visits-1"
database = "visits.duckdb"
[budget]
epsilon = 20.0
delta = 1e-6
pure_epsilon = 15.0
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
largest_unit = 20
expected_rows = 2000
[tables.visits.columns]
patient = {}
ward = { values = ["A", "B"], nulls = false }
"""
BATCH = "CREATE OR REPLACE VIEW by_ward AS SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The sentence, after the loss was measured by the command line, in a folder with policy, data and batch."""
    monkeypatch.chdir(tmp_path)
    Path("visits.toml").write_text(POLICY, encoding="utf-8")
    Path("batch.sql").write_text(BATCH, encoding="utf-8")
    with duckdb.connect("visits.duckdb") as duck:
        duck.execute(
            "CREATE TABLE visits AS SELECT i AS patient, ['A', 'B'][1 + j % 2] AS ward "
            "FROM range(300) t(i), range(1 + i % 12) u(j)"
        )
    assert main(["policy", "check", "visits.toml", "--losses", "--epsilon", "4", "--dry-run", "--json"]) == 0
    assert main(["policy", "check", "visits.toml", "--losses", "--epsilon", "4", "--json"]) == 0
    with dpsql.connect(policy="visits.toml") as con:
        assert con.budget.spent == pytest.approx(4.0)  # of the losses alone
        cut = con.losses("visits").cut
        assert (cut.rows_low, cut.at_most) == (pytest.approx(cut.rows, rel=0.5), False)
        return str(cut)


def test_commands_say_it(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    asked = ["--policy", "visits.toml", "--epsilon", "0.5"]
    assert main(["plan", "batch.sql", *asked, "--json"]) == 0
    assert said in json.loads(capsys.readouterr().out)["notes"]
    for alone in ([], ["--losses"]):
        assert main(["policy", "check", "visits.toml", *alone, "--epsilon", "4"]) == 0
        shown = capsys.readouterr().out
        assert said in " ".join(shown.split())
        assert "what limits cut: release 1" in shown
        assert ("rows outside" in shown) == (not alone)
    with dpsql.connect(policy="visits.toml") as con:
        assert con.budget.spent == pytest.approx(8.0)  # the losses are known
    assert main(["run", "batch.sql", *asked]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["run", "batch.sql", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [said]
    assert main(["run", "batch.sql", *asked, "--format", "csv"]) == 0
    shown, beside = capsys.readouterr()
    assert shown.splitlines()[0].startswith("ward,n,")  # no line of the table is anything else
    assert said not in shown
    assert said in beside
    assert main(["run", "batch.sql", *asked, "--output", "out/", "--format", "csv"]) == 0
    assert Path("out/by_ward.notes.txt").read_text(encoding="utf-8") == f"{said}\n"
    assert main(["report", "plan", "batch.sql", *asked, "--output", "plan.html", "--quiet"]) == 0
    assert said in Path("plan.html").read_text(encoding="utf-8")
    assert main(["report", "release", "--policy", "visits.toml", "--output", "release.html", "--quiet"]) == 0
    assert said.removeprefix("a") in Path("release.html").read_text(encoding="utf-8")


def test_cursors_notebooks_pictures_servers_and_agents_say_it(said: str) -> None:
    with dpsql.connect(policy="visits.toml") as con:
        cursor = con.execute(BATCH, epsilon=0.5)
        assert [note for _, note in cursor.messages] == [said]
        assert cursor.df().attrs["cut"] == [said]
        again = con.execute(BATCH, epsilon=0.5)  # answered by the release that there is
        assert said in [note for _, note in again.messages]
        assert cursor.release is not None
        assert footer_of(con, (), cursor.release).endswith(said)
        drawn = cursor.release.plot()
        assert drawn.get_supxlabel().replace("\n", " ") == said
        accounts = Accounts.of(con.policy, con.ledger_path, None)
        accounts.add("robot", Wish(epsilon=4, pure_epsilon=2))
        service = Service(con, accounts=accounts)
        agent = Agent(service, "robot", Journal(Path("log.jsonl")), Allowance(1_000))
        try:
            answer = asyncio.run(agent.run("SELECT COUNT(*) AS n FROM visits", {"epsilon": "0.7"}))
            assert answer["notes"] == [said]  # the notices of psql, but for the charge
            read = asyncio.run(agent.ask_releases("SELECT max(n) AS n FROM by_ward"))
            assert read["notes"] == [said]
            again = asyncio.run(agent.run("SELECT max(n) AS n FROM by_ward", {}))
            assert (again["charged"], again["notes"]) == ("free", [said])
        finally:
            service.close()
