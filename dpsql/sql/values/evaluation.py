"""Evaluation: a value on public constants, by an empty DuckDB that has no tables, no files and no data.

The same text that a scan would run is run on the declared values of a column, so that what is
computed beforehand cannot differ from what the scan computes.
"""

from __future__ import annotations

import functools
from typing import Any

import duckdb
from sqlglot import exp

from dpsql.errors import InternalError
from dpsql.quoting import identifier
from dpsql.sql.parse.names import described, empty_database, plain_type
from dpsql.workload.expr.lines import Line
from dpsql.workload.expr.total import BASE
from dpsql.workload.expr.value_sql import literal, render
from dpsql.workload.expr.values import Stored, Value

_OUT = {
    "date": "CAST(({0}) - DATE '1970-01-01' AS BIGINT)",
    "timestamp": "epoch_us({0})",
}


@functools.lru_cache(maxsize=4_096)
def evaluate(value: Value, kind: str, column: Stored, line: Line, places: tuple[object, ...]) -> tuple[Any, ...]:
    """The value at each place of the column's line (None: NULL), as its own line holds it.

    Cost: one statement of the constants' length. Constants only: nothing here is private.
    """
    if not places:
        return ()
    type_name = "VARCHAR" if line.kind == "text" else column.type
    rows = ", ".join(f"({number}, {_typed(place, line, type_name)})" for number, place in enumerate(places))
    shown = _OUT.get(kind, "{0}").format(render(value))
    source = f"(VALUES {rows}) AS {identifier(column.source or BASE)}(dpsql_place, {identifier(column.name)})"
    try:
        found = empty_database().cursor().execute(f"SELECT {shown} FROM {source} ORDER BY dpsql_place").fetchall()  # noqa: S608
    except duckdb.Error as error:
        raise InternalError(f"an expression could not be computed on declared values: {str(error)[:200]}") from None
    return tuple(row[0] for row in found)


@functools.lru_cache(maxsize=256)
def evaluate_rows(
    value: Value, kind: str, columns: tuple[tuple[Stored, Line], ...], rows: tuple[tuple[object, ...], ...]
) -> tuple[Any, ...]:
    """The value at each row of places of several columns, as ``evaluate`` gives it for one."""
    lines = [(line, "VARCHAR" if line.kind == "text" else column.type) for column, line in columns]
    texts = ([_typed(place, *of) for place, of in zip(row, lines, strict=True)] for row in rows)
    listed = ", ".join(f"({number}, {', '.join(text)})" for number, text in enumerate(texts))
    names = [f"c{number}" for number in range(len(columns))]
    by_source: dict[str, list[str]] = {}
    for name, (column, _) in zip(names, columns, strict=True):
        by_source.setdefault(column.source or BASE, []).append(f"{name} AS {identifier(column.name)}")
    sources = ", ".join(f"LATERAL (SELECT {', '.join(of)}) AS {identifier(source)}" for source, of in by_source.items())
    shown = _OUT.get(kind, "{0}").format(render(value))
    text = f"SELECT {shown} FROM (VALUES {listed}) AS dpsql_rows(dpsql_place, {', '.join(names)}), {sources}"  # noqa: S608
    try:
        found = empty_database().cursor().execute(f"{text} ORDER BY dpsql_place").fetchall()
    except duckdb.Error as error:
        raise InternalError(f"an expression could not be computed on declared values: {str(error)[:200]}") from None
    return tuple(row[0] for row in found)


def _typed(place: object, line: Line, kind: str) -> str:
    return f"CAST({'NULL' if place is None else literal(line, place)} AS {kind})"


@functools.lru_cache(maxsize=4_096)
def known(value: Value, kind: str) -> Any:
    """A value of constants alone as DuckDB computes it, in days or microseconds for dates and times.

    Ranges are derived from it: a function that rises or falls on a stretch has its extremes at the stretch's ends.
    """
    shown = _OUT.get(kind, "{0}").format(render(value))
    try:
        found = empty_database().cursor().execute(f"SELECT {shown}").fetchall()
    except duckdb.Error as error:
        raise InternalError(f"a range could not be computed: {str(error)[:200]}") from None
    return found[0][0]


def result_type(node: exp.Expr, columns: tuple[tuple[str, str], ...]) -> str | None:
    """The DuckDB type of an expression over columns (their texts and types); None where DuckDB has no such one."""
    names = {text: f"c{number}" for number, (text, _) in enumerate(columns)}

    def renamed(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return exp.column(names[part.sql("duckdb")], quoted=True)
        return part

    listed = ", ".join(f"NULL::{plain_type(kind)} AS c{number}" for number, (_, kind) in enumerate(columns))
    return _described(node.transform(renamed).sql("duckdb", comments=False), listed or "1 AS c0")


@functools.lru_cache(maxsize=4_096)
def _described(text: str, columns: str) -> str | None:
    found = described(f"DESCRIBE SELECT {text} FROM (SELECT {columns}) AS t")  # noqa: S608
    return None if found is None else found[1]
