"""Evaluation: a value on public constants, by an empty DuckDB that has no tables, no files and no data.

The same text that a scan would run is run on the declared values of a column, so that what is
computed beforehand cannot differ from what the scan computes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import duckdb
from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.errors import InternalError
from dpsql.free_sql.copies import DOUBLED
from dpsql.sql.parse.names import described, empty_database, plain_type
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.value_sql import render, spelled
from dpsql.workloads.expr.values import Stored, Value

_MOST_DOUBLED = 8
"""Calls whose argument DuckDB writes out twice, and one within the other exponentially often."""
_OUT = {
    "date": "CAST(({0}) - DATE '1970-01-01' AS BIGINT)",
    "timestamp": "epoch_us({0})",
}


@functools.lru_cache(maxsize=4_096)
def evaluate(value: Value, kind: str, column: Stored, line: Line, places: tuple[object, ...]) -> tuple[Any, ...]:
    """The value at each place of the column's line (None: NULL), as its own line holds it.

    Cost: one statement, and a microsecond a place. Constants only: nothing here is private.
    """
    if not places:
        return ()
    text, given = _table([(column, line)], [places], [identifier(column.name)], column.source or BASE)
    return _evaluated(value, kind, text, given)


@functools.lru_cache(maxsize=256)
def evaluate_rows(
    value: Value, kind: str, columns: tuple[tuple[Stored, Line], ...], rows: tuple[tuple[object, ...], ...]
) -> tuple[Any, ...]:
    """The value at each row of places of several columns, as ``evaluate`` gives it for one."""
    names = [f"c{number}" for number in range(len(columns))]
    by_source: dict[str, list[str]] = {}
    for name, (column, _) in zip(names, columns, strict=True):
        by_source.setdefault(column.source or BASE, []).append(f"{name} AS {identifier(column.name)}")
    sources = ", ".join(f"LATERAL (SELECT {', '.join(of)}) AS {identifier(source)}" for source, of in by_source.items())
    text, given = _table(columns, list(zip(*rows, strict=True)), names, "dpsql_rows")
    return _evaluated(value, kind, f"{text}, {sources}", given)


def _table(
    columns: Sequence[tuple[Stored, Line]], places: Sequence[Sequence[object]], names: Sequence[str], source: str
) -> tuple[str, list[list[str | None]]]:
    """A table of such places of each column, numbered by dpsql_place, and the parameters that it reads.

    As texts that are cast: 5,000 numbers take 4 ms so, and 180 ms as constants of the statement.
    """
    shown, given = ["generate_subscripts($1, 1)"], []
    for number, ((column, line), held) in enumerate(zip(columns, places, strict=True), start=1):
        spelt = [None if place is None else spelled(line, place) for place in held]
        types = dict.fromkeys(one[1] for one in spelt if one is not None)
        kind = "VARCHAR" if line.kind == "text" else column.type
        cast_text = f"unnest(CAST(${number} AS VARCHAR[]))"
        for inner in (*types, kind):
            cast_text = f"CAST({cast_text} AS {inner})"
        shown.append(cast_text)
        given.append([None if one is None else one[0] for one in spelt])
    return f"(SELECT {', '.join(shown)}) AS {identifier(source)}(dpsql_place, {', '.join(names)})", given


def _evaluated(value: Value, kind: str, source: str, given: list[list[str | None]]) -> tuple[Any, ...]:
    text = f"SELECT {_OUT.get(kind, '{0}').format(render(value))} FROM {source} ORDER BY dpsql_place"  # noqa: S608
    try:
        rows = empty_database().cursor().execute(text, given).fetchall()
    except duckdb.Error as error:
        raise InternalError(f"an expression could not be computed on declared values: {str(error)[:200]}") from None
    return tuple(row[0] for row in rows)


@functools.lru_cache(maxsize=4_096)
def evaluate_one(value: Value, kind: str) -> Any:
    """A value of constants alone as DuckDB computes it, in days or microseconds for dates and times.

    Ranges are derived from it: a function that rises or falls on a stretch has its extremes at the stretch's ends.
    """
    shown = _OUT.get(kind, "{0}").format(render(value))
    try:
        rows = empty_database().cursor().execute(f"SELECT {shown}").fetchall()
    except duckdb.Error as error:
        raise InternalError(f"a range could not be computed: {str(error)[:200]}") from None
    return rows[0][0]


def result_type(node: exp.Expr, columns: tuple[tuple[str, str], ...]) -> str | None:
    """The DuckDB type of an expression over columns (their texts and types); None where DuckDB has no such one."""
    names = {text: f"c{number}" for number, (text, _) in enumerate(columns)}

    def renamed(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return exp.column(names[part.sql("duckdb")], quoted=True)
        return part

    listed = ", ".join(f"NULL::{plain_type(kind)} AS c{number}" for number, (_, kind) in enumerate(columns))
    text = node.transform(renamed).sql("duckdb", comments=False)
    if sum(text.lower().count(f"{name}(") for name in DOUBLED) > _MOST_DOUBLED:
        return None
    return _described(text, listed or "1 AS c0")


@functools.lru_cache(maxsize=4_096)
def _described(text: str, columns: str) -> str | None:
    rows = described(f"DESCRIBE SELECT {text} FROM (SELECT {columns}) AS t")  # noqa: S608
    return None if rows is None else rows[1]
