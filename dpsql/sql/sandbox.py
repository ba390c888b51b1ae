"""A DuckDB in memory that holds public tables only, for outer SQL: no files, no extensions, no settings.

Planning asks it whether the outer SQL of a statement is one that DuckDB can run, over empty tables of
the right types; a release runs it over the noisy ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import duckdb
from sqlglot import TokenType
from sqlglot.dialects.dialect import Dialect

from dpsql.sql.outer import quoted

Columns = Sequence[tuple[str, str]]

# Written without parentheses, these are functions of the time.
_MOMENTS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})


class Sandbox:
    """One DuckDB in memory; tables are added as they come."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(
            ":memory:",
            config={
                "enable_external_access": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "python_enable_replacements": "false",
                "threads": "1",
                "lock_configuration": "true",
            },
        )

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def create(self, name: str, columns: Columns) -> None:
        """An empty table of (name, type) columns."""
        listed = ", ".join(f"{quoted(column)} {kind}" for column, kind in columns)
        self.connection.execute(f"CREATE TABLE {quoted(name)} ({listed})")

    def drop(self, name: str) -> None:
        """Remove a table."""
        self.connection.execute(f"DROP TABLE {quoted(name)}")

    def describe(self, sql: str) -> tuple[list[tuple[str, str]], str]:
        """(name, type) of the columns of a query, and what DuckDB says against it, in one line."""
        rows: list[Any] = []
        said = ""
        try:
            rows = self.connection.execute(f"DESCRIBE {sql}").fetchall()
        except duckdb.Error as error:
            said = str(error).splitlines()[0]
        return [(str(row[0]), str(row[1])) for row in rows], said


def changing_function(sql: str) -> str | None:
    """A function in ``sql`` whose result its arguments do not decide, such as random or now; None without one."""
    tokens = Dialect.get_or_raise("duckdb").tokenize(sql)
    changing = _changing()
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        name = token.text.lower()
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            continue
        called = after is not None and after.token_type is TokenType.L_PAREN
        if name in _MOMENTS or (called and name in changing):
            return name
    return None


@functools.cache
def _changing() -> frozenset[str]:
    with Sandbox() as sandbox:
        rows = sandbox.connection.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type = 'scalar' AND (stability <> 'CONSISTENT' OR has_side_effects)"
        ).fetchall()
    # Settings and the session are public here, but no part of an answer.
    return frozenset(str(row[0]) for row in rows) | {"current_setting", "getenv", "query", "query_table"}


def is_plain(kind: str) -> bool:
    """Whether a released column may have this DuckDB type: no lists, structs, maps or unions."""
    return "[" not in kind and kind.split("(")[0].upper() not in {"STRUCT", "MAP", "UNION", "VARIANT", "NULL", '"NULL"'}
