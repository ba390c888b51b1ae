"""DuckDB's table functions and lists, each asked over each route: those on no list are refused, none tells of files."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import duckdb
import pytest
from server_world import server_of_analysts
from wire_client import Client, served

from dpsql.errors import Error, IntegrityError, InternalError, LedgerError, OperationalError, PolicyError
from dpsql.extensions.server.agents import Agent
from dpsql.extensions.server.catalogue.functions import views
from dpsql.extensions.server.catalogue.pg_tables import columns
from dpsql.extensions.server.protocol.limits import Allowance
from dpsql.extensions.server.protocol.sqlstate import public_error
from dpsql.extensions.server.service import Service
from dpsql.free_sql.functions import LISTED, LISTS, SERIES

OFFERED = {"range": "(3)", "generate_series": "(1, 3)", "unnest": "([1, 2])"}
TOLD = ("SHOW TABLES", "DESCRIBE dp.by_state", "SELECT * FROM duckdb_tables()", "SELECT * FROM dp.releases")


def listed(condition: str) -> list[str]:
    """Names of the DuckDB that runs."""
    with duckdb.connect() as connection:
        return [str(name) for (name,) in connection.execute(f"{condition} ORDER BY 1").fetchall()]


FUNCTIONS = listed(
    "SELECT DISTINCT function_name FROM duckdb_functions() WHERE internal AND function_type IN ('table', 'table_macro')"
)
VIEWS = listed("SELECT DISTINCT view_name FROM duckdb_views() WHERE internal")
NAMES = [*(f"{name}{OFFERED.get(name, '()')}" for name in FUNCTIONS), *VIEWS]


@dataclass
class World:
    """Ways to ask one server: each gives whether it refused, and all that it said. ``secrets``: names of its files."""

    ways: dict[str, Callable[[str], tuple[bool, str]]]
    secrets: tuple[str, ...]

    def ask(self, way: str, text: str) -> bool:
        """Whether the server refused, once it is certain that it told nothing of itself."""
        refused, said = self.ways[way](text)
        assert not any(secret in said for secret in self.secrets), text
        return refused


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hidden_folder")
    with served(lambda: server_of_analysts(folder)) as running, Client(running.port, "ann", "secret 12") as ann:
        agent = Agent(running.server.service, "bob", running.server.journal, Allowance(100_000))
        assert not ann.ask("SET dpsql.epsilon = 1").errors
        assert not ann.ask("CREATE VIEW by_state AS SELECT state, COUNT(*) AS n FROM visits GROUP BY state").errors

        def session(text: str) -> tuple[bool, str]:
            said = ann.ask(text)
            return bool(said.errors), str(said.messages)

        def by_agent(text: str) -> tuple[bool, str]:
            try:
                return False, str(running.do(agent.ask_releases(text)))
            except Error as error:
                return True, str(error)

        ways = {"session": session, "agent": by_agent}
        try:
            from test_flight import World as Flight

            from dpsql.extensions.server.flight import Flights
        except ImportError:  # without pyarrow
            flights = None
        else:
            accounts = running.server.service.accounts
            assert accounts is not None
            flights = Flights(running.server, accounts.owner, 0)
            running.do(flights.start())
            door = Flight(running, flights, accounts.token("ann"), folder / "log.jsonl")

            def by_flight(text: str) -> tuple[bool, str]:
                from pyarrow.lib import ArrowException

                try:
                    return False, str(door.ask(text).to_pylist())
                except ArrowException as error:
                    return True, str(error)

            ways["flight"] = by_flight
        yield World(ways, (str(folder), folder.name, "visits.duckdb", "visits.ledger", "visits.releases"))
        if flights is not None:
            running.do(flights.stop(5.0))


@pytest.mark.parametrize("way", ["session", "catalogue", "agent", "flight"])
@pytest.mark.few("session")
def test_each_table_function_is_refused_or_tells_nothing_of_the_server(world: World, way: str) -> None:
    beside = "pg_catalog.pg_class c WHERE current_user <> 'x'" if way == "catalogue" else "dp.by_state"
    asker = "session" if way == "catalogue" else way
    if asker not in world.ways:
        pytest.skip("pyarrow is not installed")
    answered = set()
    for name in NAMES:
        if not world.ask(asker, f"SELECT r.* FROM {name} r, {beside} LIMIT 1"):
            answered.add(name.partition("(")[0])
    own = set(columns()) | views() if way == "catalogue" else set()
    assert answered <= SERIES | LISTS | LISTED | own
    assert {"range", "unnest"} <= answered


@pytest.mark.parametrize("way", ["session", "agent"])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT path FROM query('FROM duckdb_' || 'databases()')",
        "SELECT value FROM query('FROM duckdb_set' || 'tings() WHERE name = ''allowed' || '_paths''')",
        "SELECT path FROM json_execute_serialized_sql(json_serialize_sql('SELECT path FROM duckdb_' || 'databases()'))",
        "SELECT current_user, * FROM duckdb_settings()",
        "SELECT current_user, * FROM pg_class, query_table('duckdb_' || 'databases')",
        "SELECT current_user, getvariable('dp_user')",
        "SELECT current_setting('temp_' || 'directory') FROM dp.by_state",
        "SELECT * FROM dp.by_state, glob('*')",
        "SELECT * FROM system.main.duckdb_databases",
        'SELECT * FROM "Duckdb_Databases"()',
        "SHOW DATABASES",
        "SUMMARIZE duckdb_settings",
        "DESCRIBE FROM duckdb_settings()",
        "FROM duckdb_settings()",
        "WITH a AS MATERIALIZED (FROM duckdb_databases()) SELECT * FROM a",
        "SELECT (SELECT max(path) FROM duckdb_databases())",
        "SELECT 1 ORDER BY (SELECT max(value) FROM duckdb_settings())",
        "SELECT * FROM read_csv('visits.toml')",
        "SELECT * FROM 'visits.toml'",
        "PRAGMA database_list",
        "ATTACH 'x.duckdb'",
        "EXPLAIN SELECT * FROM duckdb_settings()",
    ],
)
def test_no_spelling_reaches_a_list_of_the_server(world: World, way: str, text: str) -> None:
    refused = world.ask(way, text)
    assert refused or text.startswith(("EXPLAIN", "SHOW"))


@pytest.mark.parametrize("text", TOLD)
def test_what_is_offered_tells_nothing_of_the_server(world: World, text: str) -> None:
    assert not world.ask("session", text)


@pytest.mark.parametrize(
    "error",
    [
        LedgerError("the ledger /srv/x.ledger is locked by another process"),
        OperationalError("cannot read the releases in '/srv/x.duckdb'; run 'dpsql releases rebuild'"),
        InternalError("row 3 of visits"),
        PolicyError("tables.visits.columns.age is no column; change the policy"),
        RuntimeError("Traceback: secret"),
    ],
)
def test_what_is_the_custodians_is_one_sentence_with_a_reference(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "dpsql"):
        said = str(public_error(error))
    found = re.fullmatch(
        r"the server could not answer this; the custodian's log says why under the reference ([0-9a-f]{8}), and the "
        r"budget shows what was charged",
        said,
    )
    assert found is not None
    assert found[1] in caplog.text
    assert (str(error) in caplog.text) is isinstance(error, Error)  # the message of a fault may hold anything
    assert public_error(IntegrityError("a view named x exists already")).args == ("a view named x exists already",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_private", "SELECT COUNT(*) AS n FROM visits"),
        ("_released", "SELECT n FROM dp.by_state"),
        ("_listed", "SELECT relname FROM pg_catalog.pg_class"),
        ("_budget", "SHOW dpsql.budget"),
    ],
)
def test_every_answer_of_the_service_goes_through_it(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    def broken(*_: object) -> None:
        raise OperationalError("cannot read '/srv/secret'")

    monkeypatch.setattr(Service, name, broken)
    refused, said = world.ways["session"](text)
    assert refused
    assert "under the reference" in said
    assert "/srv/secret" not in said
