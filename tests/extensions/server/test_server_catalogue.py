"""The catalogue that tools ask: what there is, and nothing of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_world import server
from wire_client import Client, Running, served

from dpsql.extensions.server.catalogue.dialect import asks_catalogue, in_duckdb
from dpsql.extensions.server.catalogue.pg_tables import columns


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(lambda: server(tmp_path_factory.mktemp("listed"))) as running:
        with Client(running.port) as ann:
            ann.ask(
                "SET dpsql.epsilon = 1; CREATE VIEW by_state AS SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
            )
        yield running


@pytest.fixture
def ann(running: Running) -> Iterator[Client]:
    with Client(running.port, database="health") as client:
        yield client


def test_tables_and_released_views_are_listed(ann: Client) -> None:
    text = (
        "SELECT n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n "
        "ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v') AND n.nspname !~ '^pg_toast' "
        "AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND pg_catalog.pg_table_is_visible(c.oid) "
        "ORDER BY 1, 2"
    )
    assert ann.ask(text).rows == [("dp", "by_state", "v"), ("dp", "releases", "v"), ("main", "visits", "r")]


def test_columns_have_types_and_comments_and_no_size(ann: Client) -> None:
    said = ann.ask(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "pg_catalog.col_description(a.attrelid, a.attnum) FROM pg_catalog.pg_attribute a "
        "WHERE a.attrelid = 'main.visits'::pg_catalog.regclass AND a.attnum > 0 ORDER BY a.attnum"
    )
    assert said.rows == [
        ("id", "integer", "f", "no domain declared; for conditions only"),
        ("age", "integer", "t", "0 to 99"),
        ("state", "text", "t", 'one of "BE", "FR", "ZH"'),
        ("cost", "numeric(9,2)", "f", "0 to 500; in steps of 0.5"),
        ("day", "date", "f", "2020-01-01 to 2020-12-31"),
    ]
    (row,) = ann.ask(
        "SELECT reltuples, relpages, pg_total_relation_size(oid) FROM pg_class WHERE relname = 'visits'"
    ).rows
    assert row == ("-1", "0", "0")
    said = ann.ask("SELECT * FROM pg_catalog.pg_class WHERE relname = 'visits'")
    assert "300" not in said.rows[0]


def test_information_schema(ann: Client) -> None:
    text = "SELECT table_schema, table_name, table_type FROM information_schema.tables"
    assert ann.ask(text + " WHERE table_schema IN ('main', 'dp') ORDER BY 1, 2").rows == [
        ("dp", "by_state", "VIEW"),
        ("dp", "releases", "VIEW"),
        ("main", "visits", "BASE TABLE"),
    ]
    said = ann.ask(
        "SELECT column_name, data_type, numeric_precision, numeric_scale, is_nullable FROM information_schema.columns "
        "WHERE table_name = 'visits' AND table_catalog = current_database() ORDER BY ordinal_position"
    )
    assert said.rows[1] == ("age", "integer", "32", "0", "NO")
    assert said.rows[3] == ("cost", "numeric", "9", "2", "YES")


def test_who_asks_and_where(ann: Client) -> None:
    said = ann.ask("SELECT current_user, session_user, current_database(), current_schema, version()")
    assert said.rows[0][:4] == ("ann", "ann", "health", "main")
    assert re.match(r"PostgreSQL 16", said.rows[0][4] or "")
    assert ann.ask("SELECT datname FROM pg_database WHERE datname = 'health'").rows == [("health",)]
    assert ann.ask("SELECT current_setting('server_version_num')").rows == [("160000",)]


def test_what_is_released_later_is_listed(tmp_path: Path) -> None:
    with served(lambda: server(tmp_path)) as running, Client(running.port) as ann, Client(running.port, "bob") as bob:
        bob.ask("SET dpsql.epsilon = 1; CREATE VIEW late AS SELECT AVG(cost) AS mean FROM visits")
        said = ann.ask("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'late'")
        assert ("mean", "double precision") in said.rows


@pytest.mark.parametrize("name", sorted(columns()))
@pytest.mark.few(every=3)
def test_every_table_may_be_asked(ann: Client, name: str) -> None:
    said = ann.ask(f"SELECT * FROM pg_catalog.{name} LIMIT 1")
    assert not said.errors
    assert said.columns == [column for column, _ in columns()[name]]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("SELECT nope FROM pg_catalog.pg_class", "42703"),
        ("DROP TABLE pg_catalog.pg_class", "0A000"),
        ("SELECT * FROM pg_catalog.pg_class, visits", "42P01"),
        ("SELECT * FROM pg_catalog.pg_shadow", "42P01"),
    ],
)
def test_what_the_catalogue_refuses(ann: Client, text: str, state: str) -> None:
    assert [error["C"] for error in ann.ask(text).errors] == [state]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("SELECT COUNT(*) FROM visits", False),
        ("SELECT 'pg_class' AS x FROM visits", False),
        ("SELECT x FROM by_state WHERE x = current_date", False),
        ("SELECT 1", False),
        ("select version()", True),
        ("SELECT * FROM pg_class c JOIN pg_catalog.pg_namespace n ON true", True),
        ("WITH t AS (SELECT oid FROM pg_class) SELECT * FROM t", True),
        ("SELECT * FROM pg_class JOIN visits ON true", False),
        ("SELECT a IS DISTINCT FROM b FROM pg_class", True),
        ("SELECT extract(epoch FROM x) FROM information_schema.tables", True),
        ("SELECT * FROM (SELECT oid FROM pg_class) AS q, unnest(ARRAY[1]) u", True),
        ('SELECT * FROM "pg_catalog"."pg_class"', True),
    ],
)
def test_which_questions_go_to_the_catalogue(text: str, known: bool) -> None:
    assert asks_catalogue(text) == known


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SELECT c.oid::pg_catalog.regclass::pg_catalog.text FROM pg_class c", "regclass_name(c.oid) :: text"),
        ("SELECT 'x.y'::regclass::oid", "to_regclass('x.y') :: BIGINT"),
        ("SELECT CAST('x' AS regclass)", "CAST(to_regclass('x') AS BIGINT)"),
        ('SELECT a::"char", b::oid[], c::int', "a :: VARCHAR, b :: BIGINT[], c :: int"),
        ("SELECT a OPERATOR(pg_catalog.!~*) E'^\\\\d' COLLATE pg_catalog.default", "a !~ '(?s)(?i).*(?:^\\d).*'"),
        ("SELECT typreceive != 0, current_user", "typreceive != '-', current_user()"),
        ("SELECT 'pg_catalog.x' -- pg_catalog.y", "'pg_catalog.x'"),
    ],
)
def test_the_dialect(text: str, written: str) -> None:
    assert (
        re.sub(r" ,", ",", in_duckdb(text).replace("( ", "(").replace(" )", ")"))
        .removeprefix("SELECT ")
        .startswith(written)
    )
