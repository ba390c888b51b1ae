"""What a statement does after the noise: its outer SQL over noisy tables and earlier results. Public, and free.

The noisy tables that GROUP BY unites become one table first, array by array, as thousands of tables in one statement
would take DuckDB minutes. Where a statement only shows that table's columns, that is the result. Anything
else is run by a DuckDB of its own, within the limits below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import numpy as np

from dpsql.arrays import Row, Values
from dpsql.quoting import identifier
from dpsql.release.columns import PACKED, Coded, coded, fetched, stacked
from dpsql.release.writing import write_table
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


def after_the_noise(outer: Relation, noisy: Tables, earlier: Tables, room: int) -> tuple[Columns | None, str, int]:
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
    return _run(relation.sql(True), tables, room)


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


def _run(sql: str, tables: Tables, room: int) -> tuple[Columns | None, str, int]:
    """``after_the_noise`` of any SQL over ``tables``."""
    with Sandbox() as sandbox:
        for name, columns in tables.items():
            write_table(sandbox.connection, name, columns)
        try:
            if sandbox.run(f"CREATE TABLE dpsql_result AS {sql}", OUTER_SECONDS):
                return None, f"takes longer than {OUTER_SECONDS:.0f} s", 0
            described, count, size = _measured(sandbox)
            refused = _too_large(count, size, room, MOST_ROWS)
            if refused:
                return None, refused, size
            values = _fetched(sandbox, described, count)
        except duckdb.Error:
            return None, "", 0
    return [(str(d[0]), str(d[1]), v) for d, v in zip(described, values, strict=True)], "", size


def _measured(sandbox: Sandbox) -> tuple[list[Row], int, int]:
    """The description of the outer SQL's result, its rows, and the bytes of its text."""
    held = sandbox.connection
    described = held.execute("DESCRIBE dpsql_result").fetchall()
    sized = [f"octet_length(CAST({identifier(str(d[0]))} AS BLOB))" for d in described if str(d[1]) == "BLOB"]
    sized += [f"strlen({identifier(str(d[0]))})" for d in described if str(d[1]).startswith(("VARCHAR", "JSON"))]
    total = " + ".join(f"coalesce(sum({size}), 0)" for size in sized) or "0"
    count, size = held.execute(f"SELECT count(*), {total} FROM dpsql_result").fetchone() or (0, 0)  # noqa: S608
    return described, int(count), int(size)


def _fetched(sandbox: Sandbox, described: list[Row], count: int) -> list[Values]:
    """The columns of the outer SQL's result."""
    if count >= PACKED:
        listed = [(identifier(str(d[0])), str(d[1])) for d in described]
        return list(fetched(sandbox.connection, "dpsql_result", listed))
    rows = sandbox.connection.execute("SELECT * FROM dpsql_result").fetchall()
    return list(zip(*rows, strict=True)) if rows else [() for _ in described]
