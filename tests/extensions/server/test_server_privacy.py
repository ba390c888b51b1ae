"""What comes over the wire depends on no row beyond what was charged for; and what is charged is what is answered."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest
from server_world import POLICY, accounts, connection, database, server
from wire_client import Client, Running, Said, served

import dpsql
from dpsql.engines.duckdb import OpenEngine
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.listener import Server
from dpsql.extensions.server.service import Service

ODD = (
    "INSERT INTO visits VALUES (2147483647, -5, 'HIV+', -9999999.99, DATE '9999-12-31'), (NULL, NULL, NULL, NULL, NULL)"
)

# Asked of both databases; whatever is said must be the same, byte for byte.
PROBES = (
    "SELECT COUNT(*) FROM visits WHERE 1 // age > 0",
    "SELECT COUNT(*) FROM visits WHERE state::INT > 0",
    "SELECT COUNT(*) FROM visits WHERE state = 7",
    "SELECT COUNT(*) FROM visits WHERE id + 1 > 5",
    "SELECT (SELECT age FROM visits WHERE id >= 2)",
    "SELECT * FROM visits",
    "SELECT * FROM visits LIMIT 0",
    "SELECT state, COUNT(*) FROM visits GROUP BY id",
    "SELECT MAX(id) FROM visits",
    "SELECT stats(age) FROM visits",
    "SELECT rowid FROM visits",
    "SUMMARIZE visits",
    "DESCRIBE visits",
    "PRAGMA storage_info('visits')",
    "SELECT estimated_size FROM duckdb_tables()",
    "SELECT * FROM duckdb_columns() WHERE table_name = 'visits'",
    "SELECT reltuples, relpages FROM pg_catalog.pg_class WHERE relname = 'visits'",
    "SELECT * FROM information_schema.columns WHERE table_name = 'visits'",
    "SELECT pg_total_relation_size('visits'::regclass)",
    "SELECT * FROM pg_catalog.pg_stat_user_tables",
    "EXPLAIN SELECT state, COUNT(*) AS n, AVG(cost) AS mean FROM visits GROUP BY state",
    "EXPLAIN (FORMAT json) SELECT day, COUNT(*) AS n FROM visits GROUP BY day",
    "EXPLAIN ANALYZE SELECT COUNT(*) FROM visits",
    "COPY visits TO STDOUT",
    "COPY (SELECT * FROM visits) TO STDOUT",
    "SELECT COUNT(*) FROM visits WHERE CASE WHEN state = 'HIV+' THEN error('found') ELSE true END",
    "SELECT COUNT(*) FROM read_csv('visits.duckdb')",
    "ATTACH 'visits.duckdb' AS x",
    "SHOW dpsql.budget",
    "SHOW TABLES",
)
# Charged: numbers differ by noise alone, everything else is the same.
CHARGED = (
    "SELECT state, COUNT(*) AS n, SUM(cost) AS cost FROM visits GROUP BY state",
    "SELECT AVG(cost) AS mean, MEDIAN(age) AS m FROM visits WHERE day > DATE '2020-06-01'",
    "CREATE VIEW v AS SELECT age // 10 AS decade, COUNT(*) AS n FROM visits GROUP BY decade ORDER BY n DESC LIMIT 3",
    "SELECT COUNT(*) AS n FROM visits WHERE cost > 100 OR cost IS NULL",
)


def server_of(folder: Path) -> Server:
    con = connection(folder) if not (folder / "visits.duckdb").exists() else None
    con = con or dpsql.connect(folder / "visits.duckdb", policy=folder / "visits.toml")
    return Server(Service(con), accounts, port=0, slow=1e-6, journal=Journal(folder / "log.jsonl"))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    folders = [tmp_path_factory.mktemp("world") for _ in range(2)]
    for folder in folders:
        database(folder)
    with duckdb.connect(str(folders[1] / "visits.duckdb")) as con:
        con.execute(ODD)
    with served(lambda: server_of(folders[0])) as first, served(lambda: server_of(folders[1])) as second:
        yield first, second


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2))])
def test_what_is_free_is_the_same_for_neighbours(both: tuple[Running, Running], part: int) -> None:
    """A third of the probes at a time."""
    said = []
    for running in both:
        with Client(running.port) as ann:
            ann.ask("SET dpsql.epsilon = 0.5; SET dpsql.delta = 1e-9")
            answers = [ann.ask(text) for text in PROBES[part::3]]
            described = [ann.prepared(text, describe=b"S") for text in PROBES[part:12:3]]
            said.append([*answers, *described])
    for one, other in zip(*said, strict=True):
        # A few are answered after all: charged, and with noise in their numbers.
        measured = any(notice.startswith(("charged", "free, as")) for notice in one.notices)
        assert shape(one) == shape(other)
        assert measured or one.rows == other.rows


@pytest.mark.parametrize(
    "batches", [CHARGED[:1], pytest.param(CHARGED[1:], marks=pytest.mark.long)], ids=["groups", "others"]
)
def test_what_is_charged_has_the_same_shape_for_neighbours(
    both: tuple[Running, Running], batches: tuple[str, ...]
) -> None:
    said = []
    for running in both:
        with Client(running.port) as ann:
            ann.ask("SET dpsql.epsilon = 0.5")
            said.append([ann.ask(text) for text in batches])
    for one, other in zip(*said, strict=True):
        assert shape(one) == shape(other)
        assert not one.errors
        assert one.notices[0].startswith("charged")
    if batches[0] == CHARGED[0]:
        assert [row[0] for row in said[0][0].rows] == [row[0] for row in said[1][0].rows] == ["BE", "FR", "ZH"]


def shape(said: Said) -> tuple[object, ...]:
    """All that an answer says but the values in its rows."""
    return said.letters, said.columns, said.types, said.tags, said.notices, said.errors


def test_a_scan_that_fails_says_nothing_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> object:
        raise duckdb.ConversionException("Could not convert string 'HIV+' to INT32")

    database(tmp_path)
    with served(lambda: server_of(tmp_path)) as running, Client(running.port) as ann:
        monkeypatch.setattr(OpenEngine, "scan", failing)
        ann.ask("SET dpsql.epsilon = 0.5")
        said = ann.ask("SELECT COUNT(*) AS n FROM visits")
        assert (said.letters, said.errors[0]["C"]) == ("EZ", "57000")
        assert "the custodian's log says why under the reference" in said.errors[0]["M"]
        assert running.server.service.con.budget.account("pure").spent == 0.5
    assert "HIV" not in (tmp_path / "log.jsonl").read_text() + caplog.text + repr(said)


def test_a_fault_of_the_program_is_one_fixed_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database(tmp_path)
    with served(lambda: server_of(tmp_path)) as running, Client(running.port) as ann:

        def broken(*_: object) -> None:
            raise RuntimeError("the row of HIV+")

        monkeypatch.setattr(Service, "_private", broken)
        ann.ask("SET dpsql.epsilon = 0.5")
        with caplog.at_level(logging.INFO):
            (error,) = ann.ask("SELECT COUNT(*) AS n FROM visits").errors
        assert error["C"] == "XX000"
        assert "HIV" not in repr(error) + caplog.text
        assert "RuntimeError" in caplog.text
        assert ann.ask("SELECT 1").rows == [("1",)]


def test_files_of_the_server_are_not_told(tmp_path: Path) -> None:
    with served(lambda: server(tmp_path)) as running, Client(running.port) as ann:
        ann.ask("SET dpsql.epsilon = 1")
        ann.ask("CREATE VIEW by_state AS SELECT state, COUNT(*) AS n FROM visits GROUP BY state")
        for text in (
            "SELECT * FROM duckdb_databases()",
            'SELECT path FROM "Duckdb_Databases"()',
            "SELECT * FROM pragma_database_list",
            "SELECT value FROM duckdb_settings()",
            "SELECT *, current_setting('allowed_paths') FROM by_state",
            "PRAGMA database_list",
            "SELECT * FROM dp.by_state, glob('*')",
            "SELECT database_name FROM duckdb_tables()",
            "DESCRIBE by_state",
        ):
            said = ann.ask(text)
            assert str(tmp_path) not in str(said.messages), text
            assert said.errors or text[:8] in ("SELECT d", "DESCRIBE"), text


def test_accounts_that_race_for_the_last_of_it(tmp_path: Path) -> None:
    database(tmp_path)
    (tmp_path / "visits.toml").write_text(POLICY.replace("= 400.0", "= 4.0").replace("= 200.0", "= 0.2"))
    con = dpsql.connect(tmp_path / "visits.duckdb", policy=tmp_path / "visits.toml")
    held = Accounts.of(con.policy, con.ledger_path, None)
    names = [f"a{number}" for number in range(4)]
    for name in names:
        held.add(name, Wish(epsilon="0.4", pure_epsilon="0.1"), "password of all")
    service = Service(con, accounts=held)
    said: list[str] = []
    start = threading.Barrier(len(names))

    def ask(name: str, port: int) -> None:
        with Client(port, name, "password of all") as client:
            client.socket.settimeout(300)  # all of them wait for one worker
            client.ask("SET dpsql.epsilon = 0.1")
            start.wait(60)
            for place in range(2):  # each has enough for one
                age = 2 * names.index(name) + place
                found = client.ask(f"SELECT COUNT(*) AS n FROM visits WHERE age = {age}")
                said.append("refused" if found.errors else "answered")

    with served(lambda: Server(service, held.verifier, port=0)) as running:
        threads = [threading.Thread(target=ask, args=(name, running.port)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = con.budget.account("pure")
        assert spent is not None
        assert spent.spent_units == spent.total_units == 2 * 10**11
        assert all(state.accounts[0].spent_units in (0, 10**11) for _, state in held.listed())
    assert sorted(said) == ["answered"] * 2 + ["refused"] * 6


@pytest.mark.long
def test_a_server_that_is_killed_forgets_nothing(tmp_path: Path) -> None:
    """Kill -9 at seeded moments while clients ask: nothing is answered uncharged, nobody is above their budget."""
    database(tmp_path)
    policy, data = tmp_path / "visits.toml", tmp_path / "visits.duckdb"
    con = dpsql.connect(data, policy=policy)
    Accounts.of(con.policy, con.ledger_path, None).add("ann", Wish(epsilon=300, pure_epsilon=150), "password of ann")
    command = [sys.executable, "-m", "dpsql", "serve", str(policy), "--database", str(data), "--port", "0", "--json"]
    draw, answered, number, restarts = np.random.default_rng(7), 0, 0, []
    for _ in range(6):
        begun = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
            assert process.stdout is not None
            said = ""
            while not said.endswith("}\n"):
                said += process.stdout.readline()
            restarts.append(time.monotonic() - begun)
            timer = threading.Timer(float(draw.uniform(0.0, 3.0)), process.send_signal, (signal.SIGKILL,))
            timer.start()
            try:
                with Client(json.loads(said)["port"], "ann", "password of ann") as ann:
                    ann.ask("SET dpsql.epsilon = 0.1")
                    while True:
                        number += 1
                        found = ann.ask(f"SELECT COUNT(*) AS n FROM visits WHERE id > {number}")
                        if not found.tags:
                            break
                        answered += re.match("charged", found.notices[0]) is not None
            except (OSError, StopIteration):
                pass
            timer.join()
        charges = dpsql.connect(data, policy=policy).budget.charges
        assert answered <= len([entry for entry in charges if entry.charge.units]) <= number
    assert answered > 1
    assert con._books.ledger().verify() > answered
    print(f"{answered} answers, longest start {max(restarts):.1f} s")
