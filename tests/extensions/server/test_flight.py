"""Whole results over Arrow Flight SQL: who may ask, what is answered, and messages that are none."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from server_world import connection, database, server_of_analysts
from wire_client import Running, served

import dpsql
from dpsql.errors import DataError, OperationalError
from dpsql.extensions.server import flight as door
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.extensions.server.flight import Flights
from dpsql.extensions.server.listener import Server
from dpsql.extensions.server.protocol.limits import Limits
from dpsql.extensions.server.service import Service

flight = pytest.importorskip("pyarrow.flight")
LONG = door._message(door._KIND + "TicketStatementQuery", "SELECT repeat('x', 200) AS s FROM range(300000)")


@dataclass
class World:
    """A server with its door of Flight SQL open, and a token of ann's."""

    running: Running
    flights: Flights
    token: str
    log: Path

    def call(self, **headers: str) -> Any:
        given = [(b"authorization", f"Bearer {self.token}".encode())]
        given += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return flight.FlightCallOptions(headers=given)

    def ask(self, text: str, **headers: str) -> Any:
        """The rows of a text, as a client of Flight SQL asks for them."""
        with flight.connect(f"grpc://127.0.0.1:{self.flights.port}") as client:
            asked = flight.FlightDescriptor.for_command(door._message(door._KIND + "CommandStatementQuery", text))
            (end,) = client.get_flight_info(asked, self.call(**headers)).endpoints
            return client.do_get(end.ticket, self.call(**headers)).read_all()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("flight")
    with served(lambda: server_of_analysts(folder)) as running:
        accounts = running.server.service.accounts
        assert accounts is not None
        flights = Flights(running.server, accounts.owner, 0)
        running.do(flights.start())
        yield World(running, flights, accounts.token("ann"), folder / "log.jsonl")
        running.do(flights.stop(5.0))


@pytest.mark.long
def test_a_batch_is_asked_charged_and_read(world: World) -> None:
    text = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
    with pytest.raises(flight.FlightServerError, match="no budget is set"):
        world.ask(text)
    table = world.ask(text, dpsql_epsilon="0.5")
    assert (table.column_names, table.column("state").to_pylist()) == (["state", "n"], ["BE", "FR", "ZH"])
    again = world.ask(text, dpsql_errors="on")
    assert (again.column("n"), again.column_names[2]) == (table.column("n"), "n_stderr")
    assert table.schema.metadata[b"dpsql-notice"].startswith(b"charged epsilon 0.5")
    said = again.schema.metadata[b"dpsql-notice"]
    assert said == b"free, as release 1 knows the answers; standard error: q1.n up to 2.80"
    assert world.ask("CREATE VIEW by_age AS SELECT age, COUNT(*) AS n FROM visits GROUP BY age", dpsql_epsilon="0.5")
    assert world.ask("SELECT COUNT(*) AS groups FROM by_age").to_pylist() == [{"groups": 100}]
    assert {"whose": "ann", "spent": "epsilon 1"}.items() <= world.ask("SHOW dpsql.budget").to_pylist()[0].items()
    assert '"account": "ann"' in world.log.read_text()


def test_refusals_are_texts_without_a_traceback(world: World) -> None:
    for text, said, headers in (
        ("SELECT nope FROM visits", "no column nope", {}),
        ("SELECT 1; SELECT 2", "one result", {}),
        ("SELECT COUNT(*) FROM visits; SELECT SUM(age) FROM visits", "one result", {"dpsql_epsilon": "1"}),
        ("", "one result", {}),
        ("SELECT 1 --" + "x" * 1_000_000, "at most 1,000,000 are read", {}),
        ("SELECT 1", "epsilon must be a finite number", {"dpsql_epsilon": "much"}),
        ("COPY (SELECT 1) TO STDOUT", "COPY is not offered", {}),
    ):
        with pytest.raises(flight.FlightServerError, match=said) as caught:
            world.ask(text, **headers)
        assert "Traceback" not in str(caught.value)
    assert world.ask("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_a_token_is_needed_and_ends_with_its_account(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = world.running.server.service.accounts
    assert accounts is not None
    for token in ("", "dpsql_none", "a b"):
        other = World(world.running, world.flights, token, world.log)
        with pytest.raises(flight.FlightUnauthenticatedError, match="a token of an account is needed"):
            other.ask("SELECT 1")
    bob = World(world.running, world.flights, accounts.token("bob"), world.log)
    assert bob.ask("SELECT 1 AS one").num_rows == 1
    accounts.set("bob", Wish(), suspended=True)
    with pytest.raises(flight.FlightUnauthenticatedError):
        bob.ask("SELECT 1")
    with monkeypatch.context() as crowded:  # each that waits holds a thread: one more than there is room for does not
        crowded.setattr(world.flights, "_strangers", world.running.server.limits.connections)
        crowded.setattr(world.running.server, "waits", None)
        with pytest.raises(flight.FlightUnauthenticatedError):
            bob.ask("SELECT 1")
    monkeypatch.setattr(world.running.server, "limits", Limits(per_account=1))
    world.flights._asking["ann"] = 1
    with pytest.raises(flight.FlightUnavailableError, match="too many"):
        world.ask("SELECT 1")
    world.flights._asking.clear()


@pytest.mark.long
def test_a_call_counts_until_its_stream_ends(world: World) -> None:
    flights = world.flights
    with flight.connect(f"grpc://127.0.0.1:{flights.port}") as client:
        slow, at_once = (client.do_get(flight.Ticket(LONG), world.call()) for _ in range(2))
        assert slow.read_chunk().data.num_rows > 1_000
        assert flights._asking["ann"] >= 1
        slow.cancel()
        at_once.cancel()
    deadline = time.monotonic() + 30
    while flights._asking["ann"] and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert flights._asking["ann"] == 0


def test_a_fault_is_told_in_fixed_words(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("secret")

    monkeypatch.setattr("dpsql.extensions.server.flight.parts_of", fails)
    with pytest.raises(flight.FlightServerError, match="says why under the reference") as caught:
        world.ask("SELECT 1")
    assert "secret" not in str(caught.value)


def test_messages_that_are_none_are_not_answered(world: World) -> None:
    draw = random.Random(25)
    good = door._message(door._KIND + "TicketStatementQuery", "SELECT 1")
    with flight.connect(f"grpc://127.0.0.1:{world.flights.port}") as client:
        for at in range(60):
            cut = good[: draw.randrange(len(good))]
            sent = draw.randbytes(draw.randrange(1, 40)) if at % 2 else cut + draw.randbytes(draw.randrange(3))
            assert door._query(sent) != "SELECT 1"
            with pytest.raises(flight.FlightServerError, match="Flight SQL"):
                client.do_get(flight.Ticket(sent), world.call()).read_all()
        with pytest.raises(flight.FlightServerError, match="not offered"):
            list(client.do_action(flight.Action("BeginTransaction", b""), world.call()))
        for size in (0, 1, 127, 128, 20_000):
            assert door._query(door._message(door._KIND + "CommandStatementQuery", "x" * size)) == "x" * size
    assert world.ask("SELECT 1 AS one").num_rows == 1


@pytest.mark.surfaces
def test_a_client_that_takes_no_more_rows_keeps_no_server_from_ending(tmp_path: Path) -> None:
    policy, data = tmp_path / "visits.toml", database(tmp_path)
    con = dpsql.connect(data, policy=policy)
    accounts = Accounts.of(con.policy, con.ledger_path, None)
    accounts.add("ann", Wish(epsilon=40), "secret 12")
    world = World(None, None, accounts.token("ann"), tmp_path)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "dpsql", "serve", str(policy), "--database", str(data), "--port", "0", "--json"]
    command += ["--flight-port", "0", "--grace", "0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            said += process.stdout.readline()
        with flight.connect(f"grpc://127.0.0.1:{json.loads(said)['flight_port']}") as client:
            rows = client.do_get(flight.Ticket(LONG), world.call())
            assert rows.read_chunk().data.num_rows > 1_000
            process.terminate()
            assert process.wait(60) == 0
            rows.cancel()


def test_it_listens_beyond_loopback_with_tls_only_and_where_it_may(world: World, tmp_path: Path) -> None:
    service = Service(connection(tmp_path))
    far = Server(service, lambda _: None)
    far.host = "0.0.0.0"
    with pytest.raises(DataError, match="--tls-cert"):
        Flights(far, lambda _: None, 0)
    service.close()
    with pytest.raises(OperationalError, match="--flight-port"):
        world.running.do(Flights(world.running.server, lambda _: None, world.running.port).start())
