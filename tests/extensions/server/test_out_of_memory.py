"""Where memory runs out within a public call, the error says what became of its charge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import filled
from server_world import connection, server
from wire_client import Client, served

import dpsql
from dpsql.errors import OperationalError
from dpsql.extensions.local.local_release import LocalRelease
from dpsql.extensions.periods.schedules import Schedules
from dpsql.extensions.server.service import Service
from dpsql.release import Result
from dpsql.release.custody import Custody
from dpsql.running import run
from dpsql.surfaces import cli

COUNT = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
PLACES = [
    ("dpsql.measure.job.Job.check_sensitivity", "memory ran out, and nothing was charged", 0, 0),
    ("dpsql.privacy.noise.Noise.sample", "the measurement failed.*What was charged stays charged", 1, 0),
    ("dpsql.running.run._record", "charged as release 1 has no answer in the ledger", 1, 0),
    ("dpsql.running.run.record_of", "what was charged is recorded as release 1", 1, 1),
    ("dpsql.release.books.Books.register", "what was charged is recorded as release 1", 1, 1),
]
OPEN = """
dataset = "open-1"
[budget]
epsilon = 80.0
delta = 1e-6
local_epsilon = 5.0
pure_epsilon = 40.0
[tables.visits]
unit = "row"
expected_rows = 200
rows_public = true
[tables.visits.columns]
city = {}
state = { values = ["BE", "FR", "ZH"], nulls = false }
"""
KINDS: dict[str, tuple[str, Callable[[dpsql.Connection], object]]] = {
    "values": (
        "dpsql.extensions.discovery.discovery._record",
        lambda con: con.discover("visits.city", epsilon=2, delta=1e-9),
    ),
    "a survey": ("dpsql.extensions.discovery.survey._record", lambda con: con.survey(epsilon=4)),
    "rows": ("dpsql.extensions.local.local_release._record", lambda con: con.synthesize("visits", ["state"], 1)),
    "sparse": ("dpsql.running.run._record", lambda con: con.run(con.plan(COUNT, epsilon=1, method="sparse"))),
    "in rounds": ("dpsql.running.run._record", lambda con: con.run(con.plan(COUNT, epsilon=1, method="adaptive"))),
}


def exhausted(*_: object, **__: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(("place", "said", "charged", "recorded"), PLACES)
@pytest.mark.few(every=2)
def test_the_error_says_what_became_of_the_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str, charged: int, recorded: int
) -> None:
    with connection(tmp_path) as con:
        with monkeypatch.context() as full:
            full.setattr(place, exhausted)
            with pytest.raises(OperationalError, match=said):
                con.run(COUNT, epsilon=1)
        entries = con._books.entries()
        assert (len(entries), sum(entry.released is not None for entry in entries)) == (charged, recorded)
        assert (con.run(COUNT, epsilon=1).cost == 0) == bool(recorded)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(every=3)
def test_every_kind_of_charge_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with filled(tmp_path / "open.duckdb") as made:
        made.execute("CREATE TABLE visits AS SELECT 'Bern' AS city, 'BE' AS state FROM range(200)")
    (tmp_path / "open.toml").write_text(OPEN)
    record, release = KINDS[kind]
    with dpsql.connect(tmp_path / "open.duckdb", policy=tmp_path / "open.toml") as con:
        for place, said in (
            ("dpsql.privacy.ledger.Ledger._write", "memory ran out, and nothing was charged"),
            (record, "charged as release [12] has no answer in the ledger and stays charged"),
            ("dpsql.release.books.Books.register", "what was charged is recorded as release [23], and is not"),
        ):
            with monkeypatch.context() as full:
                full.setattr(place, exhausted)
                with pytest.raises(OperationalError, match=said):
                    release(con)


@pytest.mark.long
def test_a_batch_that_finds_its_groups_first_names_both_charges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "open.duckdb") as made:
        made.execute("CREATE TABLE visits AS SELECT 'Bern' AS city, 'BE' AS state FROM range(900)")
    (tmp_path / "open.toml").write_text(OPEN.replace("city = {}", 'city = { groups = "discover" }'))
    with dpsql.connect(tmp_path / "open.duckdb", policy=tmp_path / "open.toml") as con:
        batch = "SELECT city, COUNT(*) FROM visits GROUP BY city"
        with monkeypatch.context() as full:
            full.setattr("dpsql.running.run._record", exhausted)
            with pytest.raises(OperationalError, match="charged as release 3 has no answer"):
                con.run(batch, epsilon=4)
        assert [entry.released is not None for entry in con.releases()][1:] == [True, False]
        # What was found is not charged again.
        con.run(batch, epsilon=4)
        assert len(con.releases()) == 4


def test_running_out_within_any_public_call_is_an_error_of_dpsql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every public method and property of the public classes, by walking over them; planning as one example."""
    walked = (dpsql.Connection, dpsql.Cursor, dpsql.Plan, dpsql.Policy, dpsql.Release, Result, Schedules, Custody)
    for kind in (*walked, LocalRelease):
        for base in kind.__mro__[:-1]:
            for name, member in vars(base).items():
                inner = getattr(member, "fget", None) or getattr(member, "func", None) or member
                inner = getattr(inner, "__func__", inner)
                if not name.startswith("_") and callable(inner) and not isinstance(inner, type):
                    assert hasattr(inner, "__wrapped__"), f"{base.__name__}.{name}"
    assert hasattr(dpsql.connect, "__wrapped__")
    with connection(tmp_path) as con:
        monkeypatch.setattr("dpsql.measure.sources.Holdings.schemas", exhausted)
        for call in (con.plan, con.budget_for, con.run, con.cursor().execute, con.cursor().dry_run):
            with pytest.raises(OperationalError, match="memory ran out, and nothing was charged") as raised:
                call(COUNT, epsilon=1) if call != con.budget_for else call(COUNT, 5)
            assert raised.value.__context__ is None  # nor do its frames keep what filled the memory


def test_the_server_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(lambda: server(tmp_path)) as running, Client(running.port) as ann:
        ann.ask("SET dpsql.epsilon = 1")
        with monkeypatch.context() as full:
            full.setattr(run, "record_of", exhausted)
            (error,) = ann.ask(COUNT).errors
        assert "what was charged is recorded as release 1" in error["M"]
        with monkeypatch.context() as full:
            full.setattr(Service, "_private", exhausted)
            (error,) = ann.ask(COUNT).errors
        assert (error["C"], "asking the same again is free" in error["M"]) == ("53200", True)
        assert ann.ask(COUNT).notices[0].startswith("free")


def test_the_command_line_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_action", lambda _: exhausted)
    assert cli.main(["glossary"]) == 1
    assert capsys.readouterr().err.startswith("dpsql: error: memory ran out")
