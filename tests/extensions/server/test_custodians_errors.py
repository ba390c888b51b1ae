"""What an analyst reads where the fault is the custodian's: no path, no advice; and ``/healthz`` meanwhile."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from test_status_and_web import World, watching
from wire_client import Client, served

import dpsql
from dpsql.engines import duckdb as engine
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.listener import Server
from dpsql.extensions.server.service import Service
from dpsql.privacy.ledger import Ledger
from dpsql.running import run
from dpsql.surfaces.cli import main

POLICY = """
dataset = "f-1"
[budget]
epsilon = 40
delta = 1e-6
[tables.visits]
unit = "row"
source = "visits.parquet"
[tables.visits.columns]
state = { values = ["NY", "NJ"] }
age = { lower = 0, upper = 99 }
"""
BATCH = "SELECT state, AVG(age) AS m FROM visits GROUP BY state"
SENTENCE = (
    r"the server could not answer this; the custodian's log says why under the reference [0-9a-f]{8}, and the budget "
    r"shows what was charged"
)
OUT_OF_MEMORY = (
    "memory ran out: what was charged is recorded as release 1, and is not charged again unless fresh; give the "
    "process more memory, and ask the same again"
)


@dataclass
class Place:
    """A server of ann over a Parquet file, watched over HTTP."""

    folder: Path
    world: World
    con: dpsql.Connection
    stack: ExitStack

    def write(self, *, damaged: bool = False) -> None:
        write(self.folder / "visits.parquet", damaged=damaged)

    def said(self, text: str = BATCH) -> str:
        """The one error that ann reads."""
        with Client(self.world.running.port, "ann", "secret 12") as ann:
            ann.ask("SET dpsql.epsilon = 0.5")
            (error,) = ann.ask(text).errors
        return error["M"]


def write(path: Path, *, damaged: bool) -> None:
    """Parquet whose footer is sound; the pages of a damaged one are not."""
    with duckdb.connect() as con:
        con.execute(f"COPY (SELECT 'NY' AS state, (hash(range) % 90)::INTEGER AS age FROM range(5000)) TO '{path}'")
    if damaged:
        held = bytearray(path.read_bytes())
        held[4 : len(held) // 2] = b"\xff" * (len(held) // 2 - 4)
        path.write_bytes(held)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "p.toml").write_text(POLICY)
    write(tmp_path / "visits.parquet", damaged=False)
    con = dpsql.connect(policy=tmp_path / "p.toml")

    def made() -> Server:
        accounts = Accounts.of(con.policy, con.ledger_path, None)
        accounts.add("ann", Wish(epsilon=20), "secret 12")
        return Server(
            Service(con, accounts=accounts), accounts.verifier, port=0, journal=Journal(tmp_path / "log.jsonl")
        )

    with served(made) as running, watching(running) as world, ExitStack() as stack:
        yield Place(tmp_path, world, con, stack)


@pytest.mark.long
def test_a_failed_source_is_unwell_over_http_until_the_custodian_confirms_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    assert place.world.get("/healthz") == (200, "ok\n")
    place.write(damaged=True)
    for why in ("failed inside DuckDB", "clears this with 'dpsql policy confirm'"):
        assert re.fullmatch(SENTENCE, place.said())
        assert why in caplog.text
        code, text = place.world.get("/healthz")
        assert (code, "visits" in text) == (503, False)
    assert len(place.con.budget.charges) == 1
    assert main(["policy", "confirm", str(place.folder / "p.toml")]) == 0
    assert place.world.get("/healthz") == (200, "ok\n")
    place.write()
    with Client(place.world.running.port, "ann", "secret 12") as ann:
        ann.ask("SET dpsql.epsilon = 0.5")
        assert not ann.ask(BATCH).errors


def _files_changed(place: Place, patch: pytest.MonkeyPatch) -> None:
    whole = engine.run_within

    def change(*asked: object) -> object:
        found = whole(*asked)  # type: ignore[arg-type]
        place.write()
        return found

    patch.setattr(engine, "run_within", change)


def _memory_ran_out(place: Place, patch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    patch.setattr(run, "record_of", exhausted)


def _a_read_only_ledger(place: Place, patch: pytest.MonkeyPatch) -> None:
    """As of a file system that is mounted so; permissions do not bind root."""
    whole = sqlite3.connect

    def connect(path: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = whole(path, **options)  # type: ignore[call-overload]
        connection.execute("PRAGMA query_only = 1")
        return connection

    patch.setattr(sqlite3, "connect", connect)


def _a_locked_ledger(place: Place, _: pytest.MonkeyPatch) -> None:
    books = place.con._books
    books._ledger = Ledger.open(place.con.ledger_path, "f-1", books.budget, timeout=0.0)
    other = sqlite3.connect(place.con.ledger_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    place.stack.enter_context(closing(other))


@pytest.mark.parametrize(
    ("fault", "said", "logged"),
    [
        (_files_changed, SENTENCE, "the files of visits changed while they were read"),
        (_memory_ran_out, re.escape(OUT_OF_MEMORY), ""),
        (_a_read_only_ledger, SENTENCE, "ledger"),
        (_a_locked_ledger, SENTENCE, "is locked by another process"),
    ],
)
@pytest.mark.few(every=2)
def test_an_analyst_reads_no_path_and_no_advice(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Place, pytest.MonkeyPatch], None],
    said: str,
    logged: str,
) -> None:
    with monkeypatch.context() as patch:
        fault(place, patch)
        found = place.said()
    assert re.fullmatch(said, found), found
    assert logged in caplog.text
    assert str(place.folder) not in found
    assert "dpsql " not in found
