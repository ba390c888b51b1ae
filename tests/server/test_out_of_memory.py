"""Where memory runs out while a batch runs, the error says what became of its charge."""

from __future__ import annotations

from pathlib import Path

import pytest
from server_world import connection, server
from wire_client import Client, served

from dpsql.errors import OperationalError
from dpsql.running import run
from dpsql.server.service import Service
from dpsql.surfaces import cli

COUNT = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
PLACES = [
    ("dpsql.measure._check_sensitivity", "memory ran out, and nothing was charged", 0, 0),
    ("dpsql.privacy.noise.Noise.sample", "charged as release 1 and its answer was not recorded", 1, 0),
    ("dpsql.running.run._record", "charged as release 1 and its answer was not recorded", 1, 0),
    ("dpsql.running.run.record_of", "charged and its answer recorded as release 1", 1, 1),
    ("dpsql.release.books.Books.register", "charged and its answer recorded as release 1", 1, 1),
]


def exhausted(*_: object, **__: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(("place", "said", "charged", "recorded"), PLACES)
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


def test_the_server_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(lambda: server(tmp_path)) as running, Client(running.port) as ann:
        ann.ask("SET dpsql.epsilon = 1")
        with monkeypatch.context() as full:
            full.setattr(run, "record_of", exhausted)
            (error,) = ann.ask(COUNT).errors
        assert "charged and its answer recorded as release 1" in error["M"]
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
