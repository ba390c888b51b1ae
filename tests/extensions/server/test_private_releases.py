"""Releases that are private to an account: what another sees of them, by any door, is nothing but what was spent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_world import server_of_analysts
from wire_client import Client, Running, served

import dpsql
from dpsql.errors import InterfaceError
from dpsql.extensions.server.agents import Agent
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowance
from dpsql.release.books import place_of

NAMES = ("ann", "bob", "Ann", "eve", "zoe")
SECRET = "CREATE VIEW anns_view AS SELECT state, COUNT(*) AS anns_column FROM visits GROUP BY state"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    with served(lambda: server_of_analysts(folder, "private_releases = true", *NAMES)) as running:
        with signed_in(running, "ann") as ann:
            assert ann.ask(SECRET).notices[0].startswith("charged")
            assert ann.ask("SELECT SUM(cost) AS anns_sum FROM visits").notices[0].startswith("charged")
        yield running


def signed_in(running: Running, name: str) -> Client:
    client = Client(running.port, name, "secret 12")
    client.ask("SET dpsql.epsilon = 0.5")
    return client


def test_an_account_sees_its_own_releases(running: Running) -> None:
    with signed_in(running, "ann") as ann:
        assert len(ann.ask("SELECT * FROM anns_view").rows) == 3
        assert ann.ask("SELECT * FROM r1.anns_view").columns[:2] == ["state", "anns_column"]
        assert ann.ask(SECRET.replace("CREATE", "CREATE OR REPLACE")).notices[0].startswith("free")
        assert ("anns_view", "released") in ann.ask("SHOW TABLES").rows
        assert len([row for row in ann.ask("SELECT * FROM dp.releases").rows if row[2] == "ann"]) == 2


@pytest.mark.parametrize("name", ["bob", "Ann", "eve"])
@pytest.mark.few(every=3)
def test_nobody_else_sees_them(running: Running, name: str) -> None:
    probes = (
        "SHOW TABLES",
        "SELECT * FROM dp.releases",
        "SELECT * FROM anns_view",
        "SELECT * FROM dp.anns_view",
        "SELECT * FROM r1.anns_view",
        "SELECT * FROM r2.q1",
        "SELECT * FROM q1",
        "SELECT * FROM dpsql_releases.r1.anns_view",
        "SELECT table_name, column_name FROM information_schema.columns",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM pg_catalog.pg_attribute",
        "SELECT * FROM duckdb_tables()",
        "SELECT sql FROM duckdb_views()",
        "SHOW dpsql.requests",
        "SELECT anns_vie FROM visits",
        "SELECT * FROM anns_vie",
    )
    with signed_in(running, name) as other:
        for probe in probes:
            said = b"".join(body for _, body in other.ask(probe).messages).lower()
            for word in (b"anns_column", b"anns_sum", b"anns_view is", b"did you mean anns"):
                assert word not in said, (probe, said)


def test_the_same_question_is_measured_again_for_another(running: Running) -> None:
    con = running.server.service.con
    before = con.budget.spent
    with signed_in(running, "ann") as ann, signed_in(running, "zoe") as zoe:
        said = zoe.ask("SELECT state, COUNT(*) AS n FROM visits GROUP BY state")
        assert said.notices[0].startswith("charged epsilon 0.5 (pure)")
        # A name that ann has is free for zoe, and each has their own under it.
        zoe.ask("SET dpsql.epsilon = DEFAULT")  # which would buy a total with less error than the sum over states
        assert zoe.ask("CREATE VIEW anns_view AS SELECT COUNT(*) AS zoes FROM visits").tags == ["CREATE VIEW"]
        assert zoe.ask("SELECT * FROM anns_view").columns[0] == "zoes"
        assert ann.ask("SELECT * FROM anns_view").columns[:2] == ["state", "anns_column"]
        # Both count in the total, and in nobody else's share.
        rows = {row[:2]: row[3] for row in zoe.ask("SHOW dpsql.budget").rows}
        assert rows["policy", "pure"] != rows["zoe", "pure"] == "epsilon 0.5"
    assert con.budget.spent == pytest.approx(before + 0.5)


def test_plans_count_nothing_that_another_knows(running: Running) -> None:
    """A plan that rested on another's release would tell its numbers with less noise than was paid for here."""
    with signed_in(running, "eve") as eve:
        plan = "\n".join(row[0] or "" for row in eve.ask(f"EXPLAIN {SECRET}").rows)
        assert "release" not in plan.split("Guarantee")[1].split("\n", 1)[0]
        assert "with release" not in plan
        assert "Free" not in plan


@pytest.mark.long
def test_what_nobody_of_them_released_is_everybodys(running: Running, folder: Path) -> None:
    with dpsql.connect(folder / "visits.duckdb", policy=folder / "visits.toml", label="the board") as con:
        con.run("CREATE VIEW of_all AS SELECT COUNT(*) AS n FROM visits WHERE age < 50", epsilon=1)
        assert con.sql(
            "SELECT DISTINCT view_name FROM duckdb_views() WHERE schema_name = 'dp' ORDER BY 1"
        ).fetchall() == [
            *(("of_all",), ("releases",)),
        ]
        with pytest.raises(InterfaceError, match="private to their label"):
            con.run("SELECT COUNT(*) AS n FROM visits", epsilon=1, label="ann")
    with dpsql.connect(folder / "visits.duckdb", policy=folder / "visits.toml") as con:
        assert con.sql("SELECT COUNT(*) FROM of_all").fetchall() == [(1,)]
        assert {entry.label for entry in con.releases()} >= {"ann", "the board"}  # the custodian's list of charges
        con.rebuild()
        con.ledger.verify()
        assert con.sql("SELECT COUNT(*) FROM dp.releases").fetchall() == [(1,)]
    for name in ("ann", "bob"):
        with signed_in(running, name) as client:
            assert client.ask("SELECT n FROM of_all").tags == ["SELECT 1"]
            text = "SELECT COUNT(*) AS n FROM visits WHERE age < 50"
            assert client.ask(text).notices[0].startswith("free")


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_no_other_user_of_the_machine_reads_the_files_of_accounts(running: Running, folder: Path) -> None:
    mine = [path for path in folder.iterdir() if path.name.startswith("visits.releases.ann-")]
    assert len(mine) == 2
    assert {path.stat().st_mode & 0o777 for path in mine} == {0o600}


@pytest.mark.long
def test_an_agent_sees_what_its_account_sees(running: Running) -> None:
    service = running.server.service
    ann, bob = (Agent(service, name, Journal(None), Allowance(1_000)) for name in ("ann", "bob"))
    assert "anns_column" in str(running.do(ann.tables()))
    assert "anns_column" not in str(running.do(bob.tables()))


def test_each_label_has_a_file_of_its_own(tmp_path: Path) -> None:
    places = [place_of(tmp_path / "v.releases.duckdb", name) for name in ("", "ann", "Ann", "a.nn", "a@nn", "x" * 300)]
    assert len({str(place).lower() for place in places}) == len(places)
    assert all(place.parent == tmp_path and len(place.name) < 100 for place in places)
