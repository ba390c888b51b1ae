"""A DuckDB in memory that holds public tables only, for outer SQL: no files, no extensions, no settings.

Planning asks it whether the outer SQL of a statement is one that DuckDB can run, over empty tables of
the right types; a release runs it over the noisy ones.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence

import duckdb
from sqlglot import TokenType

from dpsql.common.connection_pool import left_to_the_parent
from dpsql.common.quoting import identifier
from dpsql.sql.parse.trees import DUCKDB

Columns = Sequence[tuple[str, str]]

MEMORY = "2GB"
"""What outer SQL may hold; its tables are noisy, so that nothing private decides whether it is enough."""

# Written without parentheses, these are functions of the time.
_MOMENTS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})

# A string or a quoted name, whole; or what stands before a literal of an INTEGER's size that ends there.
_COUNTS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|( (?:=|<>|<|<=|>|>=|LIMIT|OFFSET) )[0-9]{1,9}"""
    r"""(?=\)|,|$| (?:AND|OR|THEN|AS|ORDER|QUALIFY|LIMIT|OFFSET)\b)"""
)


_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "1",
    "memory_limit": MEMORY,
    "lock_configuration": "true",
}
_MOST_SPARE = 4
_spare: list[duckdb.DuckDBPyConnection] = []
"""Instances that nobody uses and that hold no table: opening one takes longer than reading most statements."""


def _forked() -> None:
    left_to_the_parent(_spare)
    _spare.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Watch(threading.Thread):
    """Interrupts what a connection runs once its time is over, to a second or a quarter of it.

    One thread serves all statements of a sandbox, as starting one takes as long as many a statement.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._changed = threading.Condition()
        self._every = 1.0
        self._until: float | None = None
        self._over = False
        self.late = False
        self.start()

    def run(self) -> None:
        """Look at the time until all is over."""
        with self._changed:
            while not self._over:
                self._changed.wait(self._every)
                if self._until is not None and time.monotonic() >= self._until:
                    self.late, self._until = True, None
                    self._connection.interrupt()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What runs within is interrupted after ``seconds``."""
        with self._changed:
            self._until = time.monotonic() + seconds
            if seconds < 4.0 * self._every:
                self._every = seconds / 4.0
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._until = None

    def end(self) -> None:
        """Nothing is interrupted from here on."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self.join()


class Sandbox:
    """One DuckDB in memory, taken when it is first needed; tables are added as they come, and go at its end.

    What runs in it has a connection of its own, so that whoever interrupts it late interrupts nobody else.
    """

    def __init__(self) -> None:
        self._taken: duckdb.DuckDBPyConnection | None = None
        self._own: duckdb.DuckDBPyConnection | None = None
        self._watch: _Watch | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection to it. Many statements never need it."""
        if self._own is None:
            try:
                self._taken = _spare.pop()
            except IndexError:
                self._taken = duckdb.connect(":memory:", config=_CONFIG)
            self._own = self._taken.cursor()
            self._own.execute("ATTACH ':memory:' AS held; USE held")
        return self._own

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        taken, own, self._taken, self._own = self._taken, self._own, None, None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
        if taken is None or own is None:
            return
        own.close()
        with contextlib.suppress(duckdb.Error):
            taken.execute("DETACH held")
            if len(_spare) < _MOST_SPARE:
                _spare.append(taken)
                return
        taken.close()

    def create(self, name: str, columns: Columns) -> None:
        """An empty table of (name, type) columns."""
        listed = ", ".join(f"{identifier(column)} {kind}" for column, kind in columns)
        self.connection.execute(f"CREATE TABLE {identifier(name)} ({listed})")

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """What is made within goes at its end."""
        self.connection.execute("BEGIN TRANSACTION")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK")

    def drop(self, name: str) -> None:
        self.connection.execute(f"DROP TABLE {identifier(name)}")

    def run(self, statement: str, seconds: float) -> bool:
        """Run ``statement``; True where it took longer than ``seconds``. Raises duckdb.Error for other failures.

        After one that took longer the sandbox is of no more use, as the interrupt may come to the next one.
        """
        connection = self.connection
        watch = self._watch = self._watch or _Watch(connection)
        try:
            with watch.within(seconds):
                connection.execute(statement)
        except duckdb.InterruptException:
            if not watch.late:
                raise
        return watch.late  # also of an interrupt that DuckDB saw too late to stop for

    def describe(self, sql: str) -> tuple[list[tuple[str, str]], str]:
        """(name, type) of the columns of a query, and what DuckDB says against it, in one line."""
        rows: list[tuple[str, ...]] = []
        said = ""
        try:
            rows = self.connection.execute(f"DESCRIBE {sql}").fetchall()
        except duckdb.Error as error:
            said = str(error).splitlines()[0]
        return [(str(row[0]), str(row[1])) for row in rows], said


def shape_of(sql: str) -> str:
    """``sql`` with one mark for the whole numbers that its columns' names and types cannot depend on.

    Those are INTEGER literals right of a comparison, which is BOOLEAN whatever its right side, and after LIMIT and
    OFFSET. Strings and quoted names stay as they are; so does SQL with a backslash or a dollar, which may quote
    in other ways.
    """
    return (
        sql if "\\" in sql or "$" in sql else _COUNTS.sub(lambda found: f"{found[1]}#" if found[1] else found[0], sql)
    )


def changing_function(sql: str) -> str | None:
    """A function in ``sql`` whose result its arguments do not decide, such as random or now; None without one."""
    tokens = DUCKDB.tokenize(sql)
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
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type = 'scalar' AND "
            "(stability = 'VOLATILE' OR has_side_effects OR (stability <> 'CONSISTENT' AND NOT "
            "regexp_matches(array_to_string(parameter_types, ' '), 'TIME ZONE|TIMESTAMPTZ') "
            "AND function_name NOT IN ('timezone', 'make_timestamptz')))"
        ).fetchall()
    # Some versions say of functions of moments with a time zone that they depend on the session's zone, which is one
    # setting for all. Settings and the session are public here, but no part of an answer.
    return frozenset(str(row[0]) for row in rows) | {"current_setting", "getenv", "query", "query_table"}


def is_plain(kind: str) -> bool:
    """Whether a released column may have this DuckDB type: no lists, structs, maps or unions."""
    return "[" not in kind and kind.split("(")[0].upper() not in {"STRUCT", "MAP", "UNION", "VARIANT", "NULL", '"NULL"'}
