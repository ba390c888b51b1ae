"""The server's protocol, spoken by a client of its own on a plain socket."""

from __future__ import annotations

import json
import math
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_world import server
from wire_client import Client, Running, served

from dpsql.errors import LedgerError
from dpsql.extensions.server.catalogue.dialect import asks_catalogue, in_duckdb
from dpsql.extensions.server.protocol.limits import Limits
from dpsql.free_sql import limits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    with served(lambda: server(folder)) as running:
        yield running


@pytest.fixture
def ann(running: Running) -> Iterator[Client]:
    with Client(running.port) as client:
        yield client


def test_a_client_is_told_of_the_server_and_may_ask(ann: Client) -> None:
    told = {body.split(b"\0")[0] for letter, body in ann.started if letter == b"S"}
    assert {b"server_version", b"client_encoding", b"TimeZone", b"standard_conforming_strings"} <= told
    said = ann.ask("SELECT 1 AS x, 'a' AS y, NULL AS z")
    assert (said.letters, said.columns, said.rows, said.tags) == (
        "TDCZ",
        ["x", "y", "z"],
        [("1", "a", None)],
        ["SELECT 1"],
    )
    assert said.types[:2] == [23, 25]


def test_a_batch_without_a_budget_is_refused_and_says_how_to_give_one(ann: Client) -> None:
    (error,) = ann.ask("SELECT COUNT(*) FROM visits WHERE age > 17").errors
    assert error["C"] == "53400"
    assert "SET dpsql.epsilon" in error["M"]


def test_domains_are_shown_with_where_they_come_from(ann: Client) -> None:
    said = ann.ask("SHOW dpsql.domains")
    assert said.columns == ["table_name", "column_name", "domain", "source"]
    rows = {row[1]: row[2:] for row in said.rows}
    assert rows["state"] == ('state = { values = ["BE", "FR", "ZH"], nulls = false }', "policy")
    assert rows["id"] == ("id = {}", "")


def test_several_statements_are_one_batch_with_one_charge(ann: Client, running: Running) -> None:
    before = running.server.service.con.budget.account("pure").spent
    ann.ask("SET dpsql.epsilon = 0.5")
    of = "COUNT(*) AS n FROM visits WHERE age < 77"  # asked nowhere else
    said = ann.ask(f"SELECT state, {of} GROUP BY state; SELECT {of};")
    assert said.letters == "NTDDDCTDCZ"
    assert said.tags == ["SELECT 3", "SELECT 1"]
    assert [row[0] for row in said.rows[:3]] == ["BE", "FR", "ZH"]
    assert said.notices[0].startswith("charged epsilon 0.5 (pure)")
    assert running.server.service.con.budget.account("pure").spent == before + 0.5
    again = ann.ask(f"SELECT state, {of} GROUP BY state; SELECT {of};")
    assert again.rows == said.rows
    assert again.notices[0].startswith("free")
    assert running.server.service.con.budget.account("pure").spent == before + 0.5
    assert running.server.service.con.budget.by_label()[0].label == "ann"


def test_a_view_is_replaced_by_who_released_it(ann: Client, running: Running) -> None:
    ann.ask("SET dpsql.epsilon = 1")
    assert ann.ask("CREATE VIEW anns AS SELECT state, COUNT(*) AS n FROM visits GROUP BY state").tags == ["CREATE VIEW"]
    before = ann.ask("SELECT * FROM dp.anns ORDER BY state").rows
    with Client(running.port, "bob") as bob:
        for budget in ("DEFAULT", "1"):
            bob.ask(f"SET dpsql.epsilon = {budget}")
            (found,) = bob.ask('CREATE OR REPLACE VIEW "Anns" AS SELECT COUNT(*) AS n FROM visits').errors
            assert found["C"] == "42501"
            assert found["M"] == "anns is released by somebody else; choose another name"
    assert ann.ask("SELECT * FROM dp.anns ORDER BY state").rows == before
    ann.ask("CREATE OR REPLACE VIEW anns AS SELECT COUNT(*) AS n FROM visits")
    assert len(ann.ask("SELECT * FROM dp.anns").rows) == 1


def test_a_released_view_is_read_for_free_in_any_session(ann: Client, running: Running) -> None:
    ann.ask("SET dpsql.rho = 0.1")
    said = ann.ask("CREATE VIEW by_state AS SELECT state, SUM(cost) AS cost FROM visits GROUP BY state")
    assert said.tags == ["CREATE VIEW"]
    assert not said.rows
    with Client(running.port, "bob") as bob:
        said = bob.ask("SELECT state, cost_stderr > 0 AS off FROM dp.by_state ORDER BY state")
        assert said.rows == [("BE", "t"), ("FR", "t"), ("ZH", "t")]
        assert bob.ask("SELECT COUNT(*) FROM by_state").rows == [("3",)]


def test_errors_of_results_are_shown_where_they_are_set_on(ann: Client) -> None:
    ann.ask("SET dpsql.epsilon = 0.5")
    assert ann.ask("SELECT COUNT(*) AS k FROM visits WHERE age < 40").columns == ["k"]
    ann.ask("SET dpsql.errors = on")
    assert ann.ask("SELECT COUNT(*) AS k FROM visits WHERE age < 40").columns == ["k", "k_stderr", "k_low", "k_high"]
    said = ann.ask("SELECT k / 2 AS half FROM q1")  # computed from what is released
    assert said.columns == ["half", "half_stderr", "half_low", "half_high"]
    ann.ask("SET dpsql.population = sample")
    wider = ann.ask("SELECT k / 2 AS half FROM q1")
    assert float(wider.rows[0][1]) > float(said.rows[0][1])
    assert ann.ask("SHOW dpsql.population").rows == [("sample",)]
    assert "write sample" in ann.ask("SET dpsql.population = all").errors[0]["M"]
    ann.ask("SET dpsql.population = default")
    assert ann.ask("SELECT k / 2 AS half FROM q1").rows == said.rows


def test_a_refusal_points_at_its_place_in_the_whole_text(ann: Client) -> None:
    text = "SET dpsql.epsilon = 1; /* näh */\n  SELECT COUNT(*) FROM visits WHERE\n  nope = 1"
    (error,) = ann.ask(text).errors
    assert error["C"] == "42703"
    assert text[int(error["P"]) - 1 :].startswith("nope")
    assert "line" not in error["M"]
    (error,) = ann.ask("SELECT * FROM nowhere").errors
    assert (error["C"], error["P"]) == ("42P01", "15")


def test_explain_shows_the_plan_and_spends_nothing(ann: Client, running: Running) -> None:
    before = running.server.service.con.budget.spent
    ann.ask("SET dpsql.epsilon = 0.25")
    said = ann.ask("EXPLAIN SELECT age, COUNT(*) AS n FROM visits GROUP BY age")
    assert said.columns == ["QUERY PLAN"]
    assert any("epsilon 0.25 (pure)" in (row[0] or "") for row in said.rows)
    said = ann.ask("EXPLAIN (FORMAT rows) SELECT age, COUNT(*) AS n FROM visits GROUP BY age")
    assert dict(zip(said.columns, said.rows[0], strict=True))["numbers"] == "100"
    said = ann.ask("EXPLAIN (FORMAT json) SELECT age, COUNT(*) AS n FROM visits GROUP BY age")
    assert json.loads(said.rows[0][0] or "")[0]["affordable"] is True
    assert ann.ask("EXPLAIN SELECT 1").rows == [("Free: it reads what is released already, or no table at all",)]
    assert ann.ask("EXPLAIN ANALYZE SELECT COUNT(*) FROM visits").errors[0]["C"] == "0A000"
    assert ann.ask("EXPLAIN (FORMAT xml) SELECT COUNT(*) FROM visits WHERE age = 5").errors[0]["C"] == "0A000"
    (error,) = ann.ask("EXPLAIN SELECT nope FROM visits").errors
    assert error["P"] == "16"
    assert running.server.service.con.budget.spent == before


def test_the_budget_is_shown(ann: Client) -> None:
    said = ann.ask("SHOW dpsql.budget")
    assert said.columns == ["whose", "account", "total", "spent", "left"]
    assert [row[:2] for row in said.rows] == [("policy", "pure"), ("policy", "gaussian")]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("SET dpsql.epsilon = -1", "22000"),
        ("SET dpsql.errors = perhaps", "22000"),
        ("SET dpsql.confidence = 2", "22000"),
        ("SET dpsql.epsilonn = 1", "42704"),
        ("SET client_encoding = latin1", "0A000"),
        ("SET nothing", "42601"),
        ("SHOW nothing", "42704"),
        ("COPY visits FROM STDIN", "0A000"),
        ("COPY (SELECT 1 AS x) TO STDOUT (FORMAT csv, DELIMITER ';')", "0A000"),
        ("NOTIFY x", "0A000"),
        ("INSERT INTO visits VALUES (1)", "0A000"),
        ("DROP TABLE visits", "0A000"),
        ("SELECT 'open", "42601"),
        ("EXPLAIN", "42601"),
        ("SUMMARIZE visits", "0A000"),
        ("SELECT * FROM read_csv('/etc/passwd')", "0A000"),
    ],
)
def test_what_is_not_offered_is_refused_with_its_state(ann: Client, text: str, state: str) -> None:
    said = ann.ask(text)
    assert [error["C"] for error in said.errors] == [state], said.errors
    assert said.letters.endswith("EZ")


def test_settings_are_shown_and_taken_back(ann: Client) -> None:
    ann.ask("SET dpsql.epsilon = 0.1; SET dpsql.delta = '1e-9'; SET SESSION search_path TO \"dp\", 'public'")
    assert ann.ask("SHOW dpsql.epsilon").rows == [("0.1",)]
    assert ann.ask("SHOW search_path").rows == [("dp, public",)]
    ann.ask("SET dpsql.mu = 0.2")
    assert ann.ask("SHOW dpsql.epsilon").rows == [("",)]
    assert ("dpsql.mu", "0.2") in ann.ask("SHOW ALL").rows
    ann.ask("RESET ALL")
    assert ann.ask("SHOW dpsql.mu").rows == [("",)]
    assert ann.ask("SHOW TRANSACTION ISOLATION LEVEL").rows == [("read committed",)]


def test_settings_may_be_given_at_the_start(running: Running) -> None:
    with Client(
        running.port, options="-c dpsql.epsilon=0.3 -cdpsql.errors=on --search_path=dp", application_name="t"
    ) as held:
        assert held.ask("SHOW dpsql.epsilon").rows == [("0.3",)]
        assert held.ask("SHOW dpsql.errors").rows == [("on",)]
        assert held.ask("SHOW application_name").rows == [("t",)]
    with pytest.raises(PermissionError, match="no setting"):
        Client(running.port, options="-c dpsql.epsilom=0.3")


def test_a_transaction_is_kept_and_rolls_nothing_back(ann: Client) -> None:
    assert ann.ask("BEGIN").status == "T"
    ann.ask("SET dpsql.epsilon = 0.5")
    assert ann.ask("SELECT COUNT(*) FROM visits WHERE age BETWEEN 3 AND 5").status == "T"
    assert ann.ask("SELECT nope").status == "E"
    assert ann.ask("SELECT 1").errors[0]["C"] == "25P02"
    said = ann.ask("ROLLBACK")
    assert (said.status, said.tags) == ("I", ["ROLLBACK"])
    assert "stays charged" in said.notices[0]
    ann.ask("START TRANSACTION; SAVEPOINT a; SELECT nope")
    assert ann.ask("ROLLBACK TO SAVEPOINT a").status == "T"
    assert ann.ask("COMMIT").tags == ["COMMIT"]


def test_nothing_asked_is_nothing_answered(ann: Client) -> None:
    assert ann.ask("").letters == "IZ"
    assert ann.ask(" ; -- only a comment").letters == "IZ"


def test_copy_writes_the_rows_of_a_select(ann: Client) -> None:
    said = ann.ask("COPY (SELECT 1 AS a, 'x,\"y' AS b, NULL AS c) TO STDOUT WITH (FORMAT csv, HEADER)")
    assert b"".join(body for letter, body in said.messages if letter == b"d") == b'a,b,c\n1,"x,""y",\n'
    assert said.tags == ["COPY 1"]
    said = ann.ask("COPY (SELECT 'a\tb' AS a, NULL AS c) TO STDOUT")
    assert b"".join(body for letter, body in said.messages if letter == b"d") == b"a\\tb\t\\N\n"
    said = ann.ask("COPY (SELECT 258::INTEGER AS a) TO STDOUT (FORMAT binary)")
    data = b"".join(body for letter, body in said.messages if letter == b"d")
    assert data == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1\0\0\0\4\0\0\1\2" + b"\xff\xff"


# -- the extended protocol -----------------------------------------------------------------------------


def test_parameters_have_the_types_of_what_they_are_compared_with(ann: Client) -> None:
    ann.ask("SET dpsql.epsilon = 5")
    ann.parse(
        "SELECT COUNT(*) AS n FROM visits WHERE age > $1 AND state = $2 AND day BETWEEN $3 AND $4 AND cost IN ($5)"
    )
    ann.send(b"D", b"S\0")
    ann.send(b"S")
    said = ann.answer()
    assert said.letters == "1tTZ"
    assert struct.unpack("!H5I", said.messages[1][1]) == (5, 23, 25, 1082, 1082, 1700)
    said = ann.prepared(
        "SELECT COUNT(*) AS n FROM visits WHERE age >= $1 AND $2 = state AND day BETWEEN $3 AND $4",
        *("0", "BE", "2020-01-01", "2020-12-31"),
    )
    assert said.letters == "12TNDCZ"
    assert 90 < float(said.rows[0][0] or 0) < 110


@pytest.mark.parametrize(
    ("text", "values", "oids", "row"),
    [
        ("SELECT $1::INTEGER + 1 AS x", ("41",), (), ("42",)),
        ("SELECT $1::VARCHAR || $1 AS x", ("4",), (23,), ("44",)),
        ("SELECT $1::DATE AS x", ("2020-02-29",), (25,), ("2020-02-29",)),
        ("SELECT $1::NUMERIC(9, 2) AS x, $2::double precision AS y", ("1.50", "2"), (), ("1.50", "2")),
        ("SELECT $2::pg_catalog.bool AS x, $1 AS y", ("a", "on"), (25,), ("t", "a")),
        ("SELECT $1::timestamp without time zone AS x", ("2020-01-01 05:06:07",), (), ("2020-01-01 05:06:07",)),
        ("SELECT $1::INTEGER AS x", (None,), (), (None,)),
        ("SELECT $1::VARCHAR[] AS x", ("[a, b]",), (), ('{"a","b"}',)),
        ("SELECT i AS x FROM range(9) t(i) LIMIT $1 OFFSET $2", ("1", "3"), (), ("3",)),
    ],
)
def test_a_cast_of_a_parameter_is_its_type(
    ann: Client, text: str, values: tuple[str | None, ...], oids: tuple[int, ...], row: tuple[str | None, ...]
) -> None:
    said = ann.prepared(text, *values, oids=oids)
    assert said.rows == [row], said.errors
    assert ann.prepared(text, *values, oids=oids, describe=b"S").rows == [row]


def test_a_describe_charges_nothing(ann: Client, running: Running) -> None:
    ann.ask("SET dpsql.epsilon = 0.125")
    before = running.server.service.con.budget.account("pure").spent
    ann.parse("SELECT state, AVG(cost) AS mean FROM visits GROUP BY state")
    ann.bind()
    ann.send(b"D", b"P\0")
    ann.send(b"S")
    said = ann.answer()
    assert (said.letters, said.columns, said.types) == ("12TZ", ["state", "mean"], [25, 701])
    assert running.server.service.con.budget.account("pure").spent == before


def test_a_describe_refuses_as_the_statement_would(ann: Client) -> None:
    for text in ("SELECT nope FROM visits", "SELECT * FROM visits", "SELECT state, COUNT(*) FROM visits"):
        assert ann.prepared(text).errors == ann.ask(text).errors != []
    assert ann.prepared("SELECT * FROM visits LIMIT 0").columns == ["id", "age", "state", "cost", "day"]


def test_a_portal_gives_as_many_rows_as_are_asked(ann: Client) -> None:
    ann.ask("BEGIN")
    ann.parse("SELECT i FROM range(5) t(i)", name="five")
    ann.bind(name="five", portal="p")
    for _ in range(3):
        ann.send(b"E", b"p\0" + struct.pack("!I", 2))
    ann.send(b"S")
    said = ann.answer()
    assert said.letters == "12DDsDDsDCZ"
    ann.send(b"C", b"Sfive\0")
    ann.send(b"B", b"\0five\0" + bytes(6))
    ann.send(b"S")
    said = ann.answer()
    assert (said.letters, said.errors[0]["C"]) == ("3EZ", "26000")


def test_after_an_error_messages_are_skipped_until_sync(ann: Client) -> None:
    ann.parse("SELECT nope FROM")
    ann.bind()
    ann.send(b"D", b"P\0")
    ann.send(b"E", b"\0\0\0\0\0")
    ann.send(b"E", b"\0\0\0\0\0")
    ann.send(b"S")
    assert ann.answer().letters == "12EZ"
    assert ann.prepared("SELECT 1 AS x").rows == [("1",)]


@pytest.mark.parametrize(
    ("text", "values", "state"),
    [
        ("SELECT 1; SELECT 2", (), "42601"),
        ("SELECT $1", (), "08P01"),
        ("SELECT 1", ("1",), "08P01"),
        ("SELECT COUNT(*) FROM visits WHERE age = $1", ("x",), "22000"),
        ("SELECT COUNT(*) FROM visits WHERE age = $1 AND id = ?", ("1",), "42000"),
    ],
)
def test_wrong_use_of_parameters_is_refused(ann: Client, text: str, values: tuple[str, ...], state: str) -> None:
    said = ann.prepared(text, *values)
    assert [error["C"] for error in said.errors] == [state], said.errors


def test_a_statement_and_a_portal_have_a_name_once(ann: Client) -> None:
    ann.parse("SELECT 1", name="a")
    ann.parse("SELECT 2", name="a")
    ann.send(b"S")
    assert ann.answer().errors[0]["C"] == "42P05"
    ann.bind(name="a", portal="p")
    ann.bind(name="a", portal="p")
    ann.send(b"S")
    assert ann.answer().errors[0]["C"] == "42P03"
    ann.send(b"E", b"no\0\0\0\0\0")
    ann.send(b"S")
    assert ann.answer().errors[0]["C"] == "34000"
    ann.send(b"F", struct.pack("!IHHH", 1, 0, 0, 0))
    ann.send(b"S")
    assert ann.answer().errors[0]["C"] == "0A000"


# -- who may come in -----------------------------------------------------------------------------------


def test_a_wrong_password_and_an_unknown_name_are_told_the_same(running: Running) -> None:
    said = []
    for name, password in (("ann", "wrong"), ("nobody", "secret"), ("", "")):
        with pytest.raises(PermissionError) as error:
            Client(running.port, name, password)
        said.append(str(error.value))
    assert len(set(said)) == 1
    with Client(running.port) as ann:
        assert ann.ask("SELECT 1").rows == [("1",)]


def test_connections_are_counted(tmp_path: Path) -> None:
    with served(lambda: server(tmp_path, Limits(connections=3, per_account=2))) as running:
        held = [Client(running.port), Client(running.port)]
        with pytest.raises(PermissionError, match="too many"):
            Client(running.port)  # of this account
        held.append(Client(running.port, "bob"))
        with pytest.raises(PermissionError, match="too many"):
            Client(running.port, "bob")  # of all
        for client in held:
            client.close()


def test_limits_of_statements(tmp_path: Path) -> None:
    with served(lambda: server(tmp_path, Limits(statements=5, statement=1000, prepared=2))) as running:
        with Client(running.port) as ann:
            said = [ann.ask("SELECT 1") for _ in range(7)]
            assert said[-1].errors[0]["C"] == "53400"
        with Client(running.port) as ann:
            ann.parse("SELECT 1", name="a")
            ann.parse("SELECT 1", name="b")
            ann.parse("SELECT 1", name="c")
            ann.send(b"S")
            assert ann.answer().errors[0]["C"] == "53400"
        with Client(running.port) as ann:
            said = ann.ask("SELECT 1 --" + "x" * 1000)
            assert (said.letters, said.errors[0]["C"]) == ("E", "08P01")


def test_open_portals_of_an_account_hold_so_much_over_all_its_sessions(tmp_path: Path) -> None:
    declare = "DECLARE c{} CURSOR WITH HOLD FOR SELECT * FROM range(60)"
    with served(lambda: server(tmp_path, Limits(portal_values=100))) as running:
        with Client(running.port) as ann, Client(running.port) as again, Client(running.port, "bob") as bob:
            for at in range(3):
                assert ann.ask(declare.format(at)).errors == []
            assert [ann.ask(f"FETCH 1 FROM c{at}").rows for at in (0, 1)] == [[("0",)]] * 2
            for client, text in ((ann, "FETCH 1 FROM c2"), (again, "SELECT 1")):
                (found,) = client.prepared(text).errors
                assert (found["C"], "close some" in found["M"]) == ("53400", True)
            assert bob.prepared("SELECT 1").rows == [("1",)]
            ann.ask("CLOSE c0")
            assert again.prepared("SELECT 1").rows == [("1",)]
            assert ann.ask("FETCH 1 FROM c2").rows == [("0",)]
            assert again.prepared("SELECT 1").errors
        with Client(running.port) as ann:  # what a session held goes with it
            assert ann.prepared("SELECT 1").rows == [("1",)]


def test_a_client_that_idles_is_let_go(tmp_path: Path) -> None:
    with served(lambda: server(tmp_path, Limits(idle=0.2))) as running, Client(running.port) as ann:
        assert ann.answer().letters == ""


def test_the_server_stops_gracefully(tmp_path: Path) -> None:
    with served(lambda: server(tmp_path)) as running:
        with Client(running.port) as ann:
            running.do(running.server.stop(5.0))
            assert ann.answer().errors[0]["C"] == "57P01"
        with pytest.raises(ConnectionError):
            Client(running.port)


def test_a_statement_may_be_cancelled(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ROWS", math.inf)
    with Client(running.port) as ann:
        ann.send(b"Q", b"SELECT COUNT(*) FROM range(3000000) a, range(3000000) b\0")
        while not select.select([ann.socket], [], [], 0.2)[0]:  # what comes before the statement runs cancels nothing
            with socket.create_connection(("127.0.0.1", running.port)) as other:
                other.sendall(struct.pack("!II", 16, 80877102) + ann.key)
                assert other.recv(1) == b""
        assert ann.answer().errors[0]["C"] == "57014"
        assert ann.ask("SELECT 1").rows == [("1",)]


def test_the_audit_log_says_who_asked_what_at_which_cost(folder: Path, running: Running) -> None:
    with Client(running.port) as ann:
        ann.ask("SET dpsql.epsilon = 0.75")
        ann.ask("SELECT COUNT(*) AS n FROM visits WHERE age = 44")
        ann.ask("SELECT nope FROM visits")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    held = [line for line in lines if line["event"] == "statement"][-2:]
    assert held[0]["account"] == "ann"
    assert held[0]["text"] == "SELECT COUNT(*) AS n FROM visits WHERE age = 44"
    assert (held[0]["outcome"], held[0]["cost"], held[0]["kind"]) == ("answered", 0.75, "private")
    assert held[1]["outcome"] == "refused 42703"
    assert (folder / "log.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_cursor_gives_its_rows_a_few_at_a_time(ann: Client) -> None:
    assert ann.ask("DECLARE c CURSOR FOR SELECT 1").errors[0]["C"] == "25P01"
    ann.ask('BEGIN; DECLARE "C" NO SCROLL CURSOR FOR SELECT i FROM range(5) t(i)')
    said = ann.ask('FETCH FORWARD 2 FROM "C"')
    assert (said.rows, said.tags) == ([("0",), ("1",)], ["FETCH 2"])
    assert ann.ask('FETCH NEXT FROM "C"').rows == [("2",)]
    assert ann.ask('FETCH ALL IN "C"').tags == ["FETCH 2"]
    assert ann.ask('FETCH "C"').tags == ["FETCH 0"]
    assert ann.ask('CLOSE "C"').tags == ["CLOSE CURSOR"]
    assert ann.ask('FETCH "C"').errors[0]["C"] == "34000"
    ann.ask("ROLLBACK")
    ann.ask("DECLARE kept CURSOR WITH HOLD FOR SELECT 7")
    assert ann.ask("FETCH kept").rows == [("7",)]
    assert ann.ask("DECLARE kept CURSOR WITH HOLD FOR SELECT 7").errors[0]["C"] == "42P03"
    ann.ask("CLOSE ALL")
    assert ann.ask("FETCH kept").errors[0]["C"] == "34000"
    for text in ("DECLARE c CURSOR", "FETCH BACKWARD 1 FROM c", "CLOSE"):
        assert ann.ask(text).errors[0]["C"] == "42601"


def test_texts_of_a_result_are_bounded(ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.release.limits.MOST_TEXT", 100_000)
    assert len(ann.ask("SELECT repeat('x', 300) AS x, 1 AS n, NULL::VARCHAR AS y FROM range(300)").rows) == 300
    (found,) = ann.ask("SELECT repeat('x', 300) FROM range(400)").errors
    assert found["M"].startswith("the query over the releases has texts of more than 100,000 bytes")


@pytest.mark.long
def test_long_questions_are_none_to_the_catalogue(ann: Client) -> None:
    """They were read token by token, each AS with all that stands before it, while everybody waited."""
    assert ann.ask("SELECT pg_typeof(1), " + "1, " * 5_000 + "1").rows
    text = "SELECT pg_x(), " + "cast(1 as oid), " * 50_000 + "1"
    assert not asks_catalogue(text)
    assert in_duckdb("SELECT " + "cast(1 as oid), " * 10_000 + "1").count("BIGINT") == 10_000


def test_accounts_that_cannot_be_read_are_told_as_a_wrong_password(tmp_path: Path) -> None:
    def broken(_: str) -> None:
        raise LedgerError("a secret path")

    with (
        served(lambda: server(tmp_path, accounts=broken)) as running,
        pytest.raises(PermissionError, match="password"),
    ):
        Client(running.port, "ann")
    assert "accounts unreadable" in (tmp_path / "log.jsonl").read_text()
    assert "secret path" not in (tmp_path / "log.jsonl").read_text()
