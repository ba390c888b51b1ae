"""Questions of the kinds that drivers and tools put to a catalogue at connect, in our own words: all are answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_world import server
from wire_client import Client, Running, served

# What each uses is named by its key: constructs that drivers of several languages and tools rely on.
QUESTIONS = {
    "tables with descriptions, system ones told by a regular expression": """
        SELECT n.nspname AS schem, c.relname AS name,
            CASE n.nspname ~ '^pg_' OR n.nspname = 'information_schema' WHEN true THEN 'SYSTEM' ELSE
            CASE c.relkind WHEN 'r' THEN 'TABLE' WHEN 'v' THEN 'VIEW' ELSE NULL END END AS kind, d.description
        FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_description d
            ON (c.oid = d.objoid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass)
        WHERE c.relnamespace = n.oid AND n.nspname LIKE 'main' AND c.relname LIKE 'vis%' ORDER BY kind, schem, name""",
    "columns numbered by a window, defaults, identities": """
        SELECT * FROM (SELECT current_database() AS db, n.nspname, c.relname, a.attname, a.atttypid,
            a.attnotnull OR (t.typtype = 'd' AND t.typnotnull) AS attnotnull, a.atttypmod, a.attlen, t.typtypmod,
            row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS place, nullif(a.attidentity, '') AS ident,
            pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS source, dsc.description, t.typbasetype
            FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON (c.relnamespace = n.oid)
            JOIN pg_catalog.pg_attribute a ON (a.attrelid = c.oid) JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid)
            LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid = def.adrelid AND a.attnum = def.adnum)
            LEFT JOIN pg_catalog.pg_description dsc ON (c.oid = dsc.objoid AND a.attnum = dsc.objsubid)
            WHERE c.relkind IN ('r', 'p', 'v', 'f', 'm') AND a.attnum > 0 AND NOT a.attisdropped) c
        WHERE relname LIKE 'visits' ORDER BY nspname, c.relname, place""",
    "keys by an array that is expanded": """
        SELECT k.name, (k.keys).n AS place, a.attname FROM (SELECT ci.relname AS name, i.indrelid,
            information_schema._pg_expandarray(i.indkey) AS keys FROM pg_catalog.pg_index i
            JOIN pg_catalog.pg_class ci ON ci.oid = i.indexrelid WHERE i.indisprimary) k
        JOIN pg_catalog.pg_attribute a ON a.attrelid = k.indrelid AND a.attnum = (k.keys).x ORDER BY place""",
    "a type by its oid, along the search path": """
        SELECT typinput = 'pg_catalog.array_in'::regproc AS is_array, typtype, typname, pg_type.oid
        FROM pg_catalog.pg_type LEFT JOIN (SELECT ns.oid AS nspoid, ns.nspname, r.r FROM pg_namespace AS ns
            JOIN (SELECT s.r, (current_schemas(false))[s.r] AS nspname
                FROM generate_series(1, array_upper(current_schemas(false), 1)) AS s(r)) AS r USING (nspname)) AS sp
            ON sp.nspoid = typnamespace WHERE pg_type.oid = 1016 ORDER BY sp.r, pg_type.oid DESC""",
    "types with their elements, told by the functions that read them": """
        SELECT ns.nspname, t.oid, t.typname, CASE WHEN p.proname = 'array_recv' THEN 'a' ELSE t.typtype END AS kind,
            e.typname AS element FROM pg_type t JOIN pg_namespace ns ON ns.oid = t.typnamespace
            LEFT JOIN pg_proc p ON p.oid = t.typreceive LEFT JOIN pg_type e ON e.oid = t.typelem
            LEFT JOIN pg_range r ON r.rngtypid = t.oid WHERE t.typtype IN ('b', 'r', 'm', 'e', 'd') ORDER BY t.oid""",
    "two statements at once": "SELECT version(); SELECT t.typname FROM pg_type t WHERE t.typname = 'int4'",
    "databases that may be connected to": """
        SELECT db.oid, db.* FROM pg_catalog.pg_database db
        WHERE datallowconn AND NOT datistemplate OR db.datname = 'health' ORDER BY db.datname""",
    "schemas with descriptions": """
        SELECT n.oid, n.*, d.description FROM pg_catalog.pg_namespace n LEFT OUTER JOIN pg_catalog.pg_description d
            ON d.objoid = n.oid AND d.objsubid = 0 AND d.classoid = 'pg_namespace'::regclass ORDER BY nspname""",
    "relations with partitions": """
        SELECT c.oid, c.*, d.description, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS part,
            pg_catalog.pg_get_partkeydef(c.oid) AS part_key FROM pg_catalog.pg_class c
        LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid = c.oid AND d.objsubid = 0
            AND d.classoid = 'pg_class'::regclass WHERE c.relkind NOT IN ('i', 'I', 'c') AND c.relname = 'visits'""",
    "attributes with what depends on them": """
        SELECT c.relname, a.*, pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) AS def, dep.objid
        FROM pg_catalog.pg_attribute a INNER JOIN pg_catalog.pg_class c ON (a.attrelid = c.oid)
        LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid = ad.adrelid AND a.attnum = ad.adnum)
        LEFT OUTER JOIN pg_depend dep ON dep.refobjid = a.attrelid AND dep.deptype = 'i'
            AND dep.refobjsubid = a.attnum AND dep.classid = dep.refclassid
        WHERE NOT a.attisdropped AND c.relname = 'visits' ORDER BY a.attnum""",
    "constraints with their columns": """
        SELECT c.conname, c.contype, pg_catalog.pg_get_constraintdef(c.oid, true), t.relname AS tabrelname, rt.relname,
            (SELECT array_agg(a.attname ORDER BY u.ord) FROM unnest(c.conkey) WITH ORDINALITY AS u(num, ord)
                JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = u.num) AS columns
        FROM pg_catalog.pg_constraint c INNER JOIN pg_catalog.pg_class t ON t.oid = c.conrelid
        LEFT OUTER JOIN pg_catalog.pg_class rt ON rt.oid = c.confrelid WHERE c.contype = ANY (ARRAY['p', 'f'])""",
    "settings and the session": """
        SELECT current_schema(), session_user, current_setting('server_version_num')::int / 100 AS version,
            (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'max_index_keys') AS keys""",
    "quoted names of columns that are numbers": """
        SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
        WHERE quote_ident(table_name) = '"visits"' AND data_type IN ('integer', 'numeric', 'double precision')""",
    "privileges of tables and their kinds": """
        WITH held AS (SELECT NULL AS role, t.schemaname AS schema, t.objectname AS "table",
            pg_catalog.has_any_column_privilege(current_user, t.schemaname || '."' || t.objectname || '"', 'select')
            AS "select" FROM (SELECT schemaname, tablename AS objectname FROM pg_catalog.pg_tables
            UNION SELECT schemaname, viewname AS objectname FROM pg_views) t
            WHERE t.schemaname !~ '^pg_' AND t.schemaname <> 'information_schema'
            AND pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage'))
        SELECT * FROM held WHERE "select" ORDER BY "table" """,
    "foreign keys by names": """
        SELECT fk_ns.nspname, fk_table.relname, fk_column.attname, pk_table.relname, pk_column.attname
        FROM pg_constraint c JOIN pg_class fk_table ON c.conrelid = fk_table.oid
        JOIN pg_namespace fk_ns ON c.connamespace = fk_ns.oid
        JOIN pg_attribute fk_column ON c.conrelid = fk_column.attrelid
        JOIN pg_class pk_table ON c.confrelid = pk_table.oid
        JOIN pg_attribute pk_column ON c.confrelid = pk_column.attrelid WHERE c.contype = 'f'
            AND fk_column.attnum = ANY (c.conkey) AND pk_column.attnum = ANY (c.confkey)""",
    "who may what": "SELECT r.rolname, r.rolsuper, pg_catalog.shobj_description(r.oid, 'pg_authid') FROM pg_roles r",
    "words of the language": "SELECT pg_catalog.pg_get_keywords()",
    "time zones": "SELECT name FROM pg_catalog.pg_timezone_names WHERE name ~* 'utc'",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(lambda: server(tmp_path_factory.mktemp("tools"))) as running:
        yield running


@pytest.mark.parametrize("use", QUESTIONS)
@pytest.mark.few(every=3)
def test_a_tool_is_answered(running: Running, use: str) -> None:
    with Client(running.port, database="health") as ann:
        said = ann.ask(QUESTIONS[use])
        assert not said.errors
        assert said.tags


def test_what_tools_learn_is_right(running: Running) -> None:
    with Client(running.port, database="health") as ann:
        rows = ann.ask(QUESTIONS["tables with descriptions, system ones told by a regular expression"]).rows
        assert rows == [("main", "visits", "TABLE", "private; protects each row")]
        rows = ann.ask(QUESTIONS["columns numbered by a window, defaults, identities"]).rows
        assert [(row[3], row[9]) for row in rows] == [
            *(("id", "1"), ("age", "2"), ("state", "3"), ("cost", "4"), ("day", "5")),
        ]
        assert ann.ask(QUESTIONS["a type by its oid, along the search path"]).rows[0][:3] == ("t", "b", "_int8")
        rows = ann.ask(QUESTIONS["types with their elements, told by the functions that read them"]).rows
        assert ("pg_catalog", "1016", "_int8", "a", "int8") in rows
        assert ("pg_catalog", "23", "int4", "b", None) in rows
        said = ann.ask(QUESTIONS["two statements at once"])
        assert said.letters == "TDCTDCZ"
        rows = ann.ask(QUESTIONS["quoted names of columns that are numbers"]).rows
        assert sorted(row[0] or "" for row in rows) == ['"age"', '"cost"', '"id"']
        assert ("main", "visits") in [
            row[1:3] for row in ann.ask(QUESTIONS["privileges of tables and their kinds"]).rows
        ]


@pytest.mark.parametrize(
    "text",
    [
        "SET extra_float_digits = 3",
        "SET application_name = 'a tool'",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET statement_timeout = 60000",
        "SET NAMES 'UTF8'",
        "SET bytea_output TO hex",
        "SET DateStyle TO 'ISO'",
        "SHOW search_path",
        "SHOW server_version",
        "SHOW transaction_isolation",
        "SHOW TRANSACTION ISOLATION LEVEL",
        "SHOW standard_conforming_strings",
        "BEGIN READ ONLY",
        "START TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "COMMIT",
        "DISCARD ALL",
        "DEALLOCATE ALL",
        "UNLISTEN *",
        "CLOSE ALL",
        "SELECT pg_catalog.set_config('search_path', '', false)",
        "SELECT 1",
        "SELECT 'keep alive'",
        "RESET ALL",
    ],
)
def test_what_tools_say_by_the_way_is_taken(running: Running, text: str) -> None:
    with Client(running.port) as ann:
        assert not ann.ask(text).errors
        assert not ann.prepared(text).errors
