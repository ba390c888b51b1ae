"""The catalogue itself: a DuckDB in memory that is made again where something was released since."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import duckdb

from dpsql.common.quoting import identifier
from dpsql.driver.result_sets import ResultSet
from dpsql.errors import RequestError, SQLError
from dpsql.extensions.server.catalogue.dialect import in_duckdb
from dpsql.extensions.server.catalogue.functions import LONGEST_NAME, macros, statements, views
from dpsql.extensions.server.catalogue.pg_tables import Row, columns, rows
from dpsql.extensions.server.catalogue.relations import Relation, numbered
from dpsql.free_sql.bounds import check
from dpsql.free_sql.parse import check_length
from dpsql.free_sql.tables import Bounds, table_in
from dpsql.release.limits import MOST_ROWS, Question, answer_within, fetched

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "1",
    "memory_limit": "512MB",
    "temp_directory": "",
}


class Catalogue:
    """Answers queries of pg_catalog and information_schema. Threads may share it.

    ``relations`` gives what there is, and ``state`` what changes when that does.
    """

    def __init__(self, relations: Callable[[], Sequence[Relation]], state: Callable[[], object]) -> None:
        self._relations = relations
        self._state = state
        self._lock = threading.Lock()
        self._made: tuple[object, duckdb.DuckDBPyConnection] | None = None

    def sql(
        self, text: str, user: str, database: str, seconds: float | None, question: Question | None = None
    ) -> ResultSet:
        """The result of one query. Raises SQLError for what DuckDB refuses, RequestError past time or memory."""
        instance = self._instance()
        return answer_within(lambda asked: _query(instance, text, (user, database), asked), seconds, question=question)

    def _instance(self) -> duckdb.DuckDBPyConnection:
        state = self._state()
        with self._lock:
            if self._made is None or self._made[0] != state:
                self._made = state, _made(self._relations())
            return self._made[1]


def _made(relations: Sequence[Relation]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=_CONFIG)
    tables = columns()
    for name, shape in tables.items():
        listed = ", ".join(f"{identifier(column)} {kind}" for column, kind in shape)
        connection.execute(f"CREATE TABLE {name} ({listed})")
    filled: dict[str, list[Row]] = {}
    for name, row in rows(numbered(relations)):
        filled.setdefault(name, []).append(row)
    for name, held in filled.items():
        # A list for each column: rows one by one take a second.
        listed = ", ".join(f"unnest(?::{kind}[])" for _, kind in tables[name])
        values = [[row.get(column) for row in held] for column, _ in tables[name]]
        connection.execute(f"INSERT INTO {name} SELECT {listed}", values)
    for statement in statements():
        connection.execute(statement)
    connection.execute("CREATE VIEW pg_database AS " + _DATABASE)
    connection.execute("SET GLOBAL TimeZone = 'UTC'; SET lock_configuration = true")
    return connection


_CODES = {
    duckdb.ParserException: "syntax",
    duckdb.BinderException: "unknown-column",
    duckdb.CatalogException: "unknown-table",
}
_DATABASE = """
SELECT 16001 AS oid, getvariable('dp_database') AS datname, 10 AS datdba, 6 AS encoding, 'c' AS datlocprovider,
    false AS datistemplate, true AS datallowconn, -1 AS datconnlimit, 0 AS datfrozenxid, 0 AS datminmxid,
    1663 AS dattablespace, 'C' AS datcollate, 'C' AS datctype, NULL::VARCHAR AS daticulocale,
    NULL::VARCHAR AS daticurules, NULL::VARCHAR AS datlocale, NULL::VARCHAR AS datcollversion,
    NULL::VARCHAR[] AS datacl, 0 AS datlastsysoid
"""


def _readable(cursor: duckdb.DuckDBPyConnection, path: tuple[str, ...]) -> Bounds | None:
    """A table or view of the catalogue; None for any other."""
    name = ".".join(path)
    return table_in(cursor, ".".join(map(identifier, path))) if name in columns() or name in views() else None


def _query(instance: duckdb.DuckDBPyConnection, text: str, asker: tuple[str, str], question: Question) -> ResultSet:
    failure, code = "", "not-answered"
    cursor = instance.cursor()
    try:
        cursor.execute("SET VARIABLE dp_user = ?", [asker[0][:LONGEST_NAME]])
        cursor.execute("SET VARIABLE dp_database = ?", [asker[1][:LONGEST_NAME]])
        question.on(cursor)
        check_length(text)
        written = in_duckdb(text)
        check_length(written)
        found = cursor.extract_statements(written)
        if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
            raise SQLError("the catalogue answers one SELECT at a time; nothing of it can be changed")
        readable = partial(_readable, cursor)
        if check(written, cursor, readable, macros()) is None:
            raise SQLError("the catalogue answers one SELECT at a time; nothing of it can be changed")
        cursor.execute(found[0])
        described = cursor.description or []
        kept = fetched(cursor, MOST_ROWS, question)
        return ResultSet([str(d[0]) for d in described], [str(d[1]) for d in described], kept)
    except duckdb.InterruptException:
        raise
    except duckdb.OutOfMemoryException:
        failure = "memory"
    except duckdb.Error as error:
        failure = str(error).strip().splitlines()[0]
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), code)
    finally:
        cursor.close()
    if failure == "memory":
        raise RequestError("the query of the catalogue needs too much memory; ask for less at once")
    raise SQLError(f"the catalogue does not answer this: {failure}", code=code)
