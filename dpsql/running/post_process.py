"""What a statement does after the noise: its outer SQL over noisy tables and earlier results. Public, and free.

The noisy tables that GROUP BY unites become one table first, array by array, as thousands of tables in one statement
would take DuckDB minutes. Where a statement only shows that table's columns, that is the result. Anything
else is run by a DuckDB of its own, within the limits below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import duckdb
import numpy as np

from dpsql.common.arrays import Values
from dpsql.common.quoting import identifier
from dpsql.release.columns import PACKED, Coded, Numbers, coded, fetched, stacked, write_table
from dpsql.sql.outer.relation import Relation, Selected, United, gathered
from dpsql.sql.outer.sandbox import Sandbox

Columns = list[tuple[str, str, Values]]
Tables = Mapping[str, Sequence[tuple[str, str, Values]]]

MOST_BYTES = 128_000_000
"""Text that the outer SQL of a batch may make; the ledger keeps results as JSON, which may take six times as much."""
MOST_ROWS, MOST_SHOWN = 5_000_000, 25_000_000
"""Rows of a result, and of one that only shows the numbers that were planned."""
OUTER_SECONDS = 60.0
"""How long the outer SQL of one statement may take."""
_SMALL = 2**14  # values
_QUOTED = re.compile(r"'(?:[^']|'')*'" + r'|"(?:[^"]|"")*"')


def after_the_noise(
    outer: Relation, noisy: Tables, earlier: Tables, room: int, running: OuterSQL
) -> tuple[Columns | None, str, int]:
    """The result of ``outer`` over ``noisy`` tables and ``earlier`` results, with the bytes of its text.

    ``room``: bytes of text that it may have. Where it is too large or takes too long, None and the reason in
    words; where it fails on the numbers that came out, None and no words.
    """
    relation, unions = gathered(outer)
    tables = {**_gathered(noisy, unions), **earlier}
    if isinstance(outer, Selected):
        pairs = outer.shown()
        if pairs is not None:
            (table,) = tables.values()
            return _shown(pairs, table, room)
    return running.run(relation.sql(True), tables, room)


def _gathered(noisy: Tables, unions: Mapping[str, United]) -> dict[str, Sequence[tuple[str, str, Values]]]:
    """The columns of the tables that gathered outer SQL reads: ``unions``, and the noisy tables in none of them."""
    tables = dict(noisy)
    found = {}
    for name, union in unions.items():
        parts = [tables.pop(table.name) for table in union.tables]
        lengths = [len(columns[0][2]) for columns in parts]
        bits = [(bit, "INTEGER", _repeated(values, lengths)) for bit, values in union.bits]
        found[name] = [*stacked(parts), *bits]
    return {**tables, **found}


def _repeated(values: Sequence[int], lengths: Sequence[int]) -> Coded:
    """Each value so many times."""
    once = coded(values)
    return Coded(once.distinct, np.repeat(once.codes, lengths))


def _shown(
    pairs: Sequence[tuple[str, str]], table: Sequence[tuple[str, str, Values]], room: int
) -> tuple[Columns | None, str, int]:
    """``after_the_noise`` of the columns of one table, each pair what one is called and what it is called there."""
    named = {name: (kind, values) for name, kind, values in table}
    columns = [(name, *named[inner]) for name, inner in pairs]
    size = _bytes(columns)
    refused = _too_large(len(columns[0][2]), size, room, MOST_SHOWN)
    return (None, refused, size) if refused else (columns, "", size)


def _too_large(rows: int, size: int, room: int, most: int) -> str:
    """Why a result of so many rows and bytes of text is not made; empty where it is."""
    if rows <= most and size <= room:
        return ""
    return f"makes {rows:,} rows with {size:,} bytes of text, at most {most:,} and {room:,} fit"


def _bytes(columns: Sequence[tuple[str, str, Values]]) -> int:
    """The bytes of text in packed columns."""
    return sum(
        int(np.bincount(values.codes, minlength=len(values.distinct)) @ [_length(value) for value in values.distinct])
        for _, kind, values in columns
        if isinstance(values, Coded) and _is_text(kind) and len(values)
    )


def _length(value: str | bytes | None) -> int:
    return 0 if value is None else len(value.encode() if isinstance(value, str) else value)


def _is_text(kind: str) -> bool:
    return kind == "BLOB" or kind.startswith(("VARCHAR", "JSON"))


class OuterSQL:
    """The outer SQL of a release's statements, which one DuckDB runs, within the limits above.

    What is asked again over equal noisy tables, whatever these are called, has the same result.
    """

    def __init__(self) -> None:
        self._sandbox = Sandbox()
        self._evaluated: dict[object, tuple[Columns | None, str, int]] = {}

    def __enter__(self) -> OuterSQL:
        return self

    def __exit__(self, *_: object) -> None:
        self._sandbox.__exit__()

    def run(self, sql: str, tables: Tables, room: int) -> tuple[Columns | None, str, int]:
        """``after_the_noise`` of any SQL over ``tables``."""
        key = _question(sql, tables)
        if key is None or key not in self._evaluated or self._evaluated[key][2] > room:
            found = self._run(sql, tables, room)
            if key is None or found[1]:
                return found
            self._evaluated[key] = found
        return self._evaluated[key]

    def _run(self, sql: str, tables: Tables, room: int) -> tuple[Columns | None, str, int]:
        held, late = self._sandbox.connection, False
        held.execute("BEGIN TRANSACTION")
        try:
            for name, columns in tables.items():
                write_table(held, name, columns)
            try:
                late = self._sandbox.run(f"CREATE TABLE dpsql_result AS {sql}", OUTER_SECONDS)
                return (None, f"takes longer than {OUTER_SECONDS:.0f} s", 0) if late else _result(held, room)
            except duckdb.Error:
                return None, "", 0
        finally:
            try:
                if not late:
                    held.execute("ROLLBACK")
            except duckdb.Error:  # as of an instance that an error left unusable
                late = True
            if late:
                self._sandbox.__exit__()  # another one serves those after it


def _question(sql: str, tables: Tables) -> object:
    """What tells SQL over small tables from other SQL, but for the tables' names; None of large ones."""
    if "\\" in sql or "$" in sql or sum(len(columns) * len(columns[0][2]) for columns in tables.values()) > _SMALL:
        return None
    marks = {identifier(name): f"\0{number}" for number, name in enumerate(tables)}
    held = [(name, kind, _content(values)) for columns in tables.values() for name, kind, values in columns]
    return _QUOTED.sub(lambda found: marks.get(found[0], found[0]), sql), tuple(held)


def _content(values: Values) -> object:
    if isinstance(values, Numbers):
        return values.data.tobytes(), None if values.null is None else values.null.tobytes()
    if isinstance(values, Coded):
        return tuple(map(repr, values.distinct)), values.codes.tobytes()
    return tuple(map(repr, values))


def _result(connection: duckdb.DuckDBPyConnection, room: int) -> tuple[Columns | None, str, int]:
    """``after_the_noise`` of the table dpsql_result that was just made."""
    (count,) = connection.fetchone() or (0,)
    few = "" if count < PACKED else " LIMIT 0"
    made = connection.execute(f"SELECT * FROM dpsql_result{few}")  # noqa: S608
    described = [(str(column[0]), str(column[1])) for column in made.description or []]
    sized = [f"octet_length(CAST({identifier(name)} AS BLOB))" for name, kind in described if kind == "BLOB"]
    sized += [f"strlen({identifier(name)})" for name, kind in described if kind.startswith(("VARCHAR", "JSON"))]
    size = 0
    if sized:
        total = " + ".join(f"coalesce(sum({one}), 0)" for one in sized)
        size = int((connection.execute(f"SELECT {total} FROM dpsql_result").fetchone() or (0,))[0])  # noqa: S608
    refused = _too_large(count, size, room, MOST_ROWS)
    if refused:
        return None, refused, size
    values: Sequence[Values]
    if count >= PACKED:
        values = list(fetched(connection, "dpsql_result", [(identifier(name), kind) for name, kind in described]))
    else:
        rows = (connection.execute("SELECT * FROM dpsql_result") if sized else made).fetchall()
        values = list(zip(*rows, strict=True)) if rows else [() for _ in described]
    return [(name, kind, each) for (name, kind), each in zip(described, values, strict=True)], "", size
