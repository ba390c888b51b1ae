"""Rehearsal: a scan is run over generated rows before it is charged for, so that it fails there or nowhere.

Nothing here depends on a row: the rows follow from the scan and the column types, and live in an instance of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf, nan

import duckdb

from dpsql.common.connection_pool import SpareInstances
from dpsql.common.quoting import identifier
from dpsql.engines.base import Scan
from dpsql.engines.duckdb import know_utc_only, rewrite_nothing
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import Axis, representatives
from dpsql.workloads.expr.scan import Joined, Relation, Select, Table, Union
from dpsql.workloads.expr.total import VALUES, at
from dpsql.workloads.expr.value_sql import cast_text, constants, select_text
from dpsql.workloads.expr.values import Constant

_instances: SpareInstances[tuple[()]] = SpareInstances(1)
Schemas = Mapping[str, Mapping[str, str]]
"""Column types by table and column name."""


def passes_rehearsal(scan: Scan, schemas: Schemas) -> bool:
    """Whether DuckDB runs a scan over generated rows: one that fails on some row must not be charged for.

    Every constant of the statement is evaluated, whatever branch of a CASE it stands in. The rows are one in each
    region of each axis, and in each table NULL, the ends of each column's type and something between them: never
    combinations. Depends on the scan and the schemas alone; no table of the user is opened.
    """
    names = {table.name: identifier(f"t{number}") for number, table in enumerate(scan.tables)}
    columns = tuple((names[table.name], tuple(schemas[table.name].items())) for table in scan.tables)
    try:
        _rehearse(_Rehearsal(select_text(scan.select, names), columns, scan))
    except duckdb.Error:
        return False
    return True


@dataclass(frozen=True)
class _Rehearsal:
    """The ``statement`` of a scan, which calls its ``tables`` (name, columns with their types) by these names."""

    statement: str
    tables: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    scan: Scan = field(compare=False)


@lru_cache(256)  # what ran once runs again; an error is not remembered
def _rehearse(case: _Rehearsal) -> None:
    """Raises duckdb.Error where the scan does not run over generated rows."""
    names = {table.name: name for table, (name, _) in zip(case.scan.tables, case.tables, strict=True)}
    rows, select = _on_rows(case.scan.select, names)
    with _instances.taken((), _empty) as connection:
        typed = [(table, {name: _local_type(connection, kind) for name, kind in kinds}) for table, kinds in case.tables]
        connection.execute("BEGIN TRANSACTION")
        for table, columns in typed:
            listed = ", ".join(f"{identifier(name)} {kind}" for name, kind in columns.items())
            connection.execute(f"CREATE TABLE {table} ({listed})")
            _fill(connection, table, {name: _ordinary(kind) for name, kind in columns.items()})
            connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
        for table, of in rows.items():
            connection.execute(f"CREATE TABLE {table} AS {select_text(of, names)}")
        for table in rows or names.values():
            _fill(connection, table, _in_regions(case.scan.axes))
        for kind, texts in constants(case.scan.select).items():
            connection.execute(f"SELECT CAST(unnest(CAST($1 AS VARCHAR[])) AS {kind})", [texts]).fetchall()
        connection.execute(select_text(select, {**names, **{table: table for table in rows}})).fetchall()
        connection.execute("ROLLBACK")


def _on_rows(select: Select, names: Mapping[str, str]) -> tuple[dict[str, Select], Select]:
    """The SELECTs that compute the values of rows, by names of tables, and ``select`` over these tables."""
    rows: dict[str, Select] = {}

    def over(relation: Relation) -> Relation:
        if isinstance(relation, Select) and relation.alias == VALUES:
            name = next((name for name, one in rows.items() if one is relation), f"v{len(rows)}")
            rows[name] = relation
            return Table(name, VALUES)
        if isinstance(relation, Select):
            return replace(relation, source=over(relation.source))
        if isinstance(relation, Joined):
            joins = tuple(replace(match, rows=whole(match.rows)) for match in relation.joins)
            return Joined(whole(relation.base) if isinstance(relation.base, Select) else relation.base, joins)
        return Union(tuple(map(whole, relation.parts))) if isinstance(relation, Union) else relation

    def whole(one: Select) -> Select:
        relation = over(one)
        return relation if isinstance(relation, Select) else Select((), relation, alias=one.alias)

    return rows, whole(select)


def _fill(connection: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, Sequence[Constant | None]]) -> None:
    """Add rows to a table: each column's values below each other, then NULL. A column that it lacks is left out."""
    described = {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE {table}").fetchall()}
    shown, given = [], []
    for name, values in columns.items():
        cast = [None if value is None else cast_text(value) for value in values]
        types = {one[1] for one in cast if one is not None}
        if name in described and types:
            given.append([None if one is None else one[0] for one in cast])
            typed = f"CAST(unnest(CAST(${len(given)} AS VARCHAR[])) AS {types.pop()})"
            shown.append(f"TRY_CAST({typed} AS {described[name]}) AS {identifier(name)}")
    if shown:
        connection.execute(f"INSERT INTO {table} BY NAME SELECT {', '.join(shown)}", given)


def _ordinary(kind: str) -> list[Constant]:
    """Values of a type: its ends and one between them."""
    line = line_of(kind)
    least, greatest = line.ends
    if line.kind == "text":
        return [at(line, ""), at(line, "a")]
    if line.kind == "real":
        return [at(line, value) for value in (-inf, 1.0, inf, nan)]
    return [at(line, value) for value in (least, 1, greatest) if value is not None] if line.discrete else []


def _in_regions(axes: Sequence[tuple[tuple[str, ...], Axis]]) -> dict[str, list[Constant | None]]:
    """The columns of rows of which one is in each region of each axis, side by side."""
    values_of: dict[str, list[Constant | None]] = {}
    for names, axis in axes:
        columns = [values_of.setdefault(name, []) for name in names]
        start = max(map(len, columns))
        for column, values in zip(columns, zip(*representatives(axis), strict=True), strict=False):
            column += [None] * (start - len(column)) + [at(axis.line, value) for value in values]
    return values_of


def _empty() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"threads": "1"})
    know_utc_only(connection)
    rewrite_nothing(connection)
    return connection


def _local_type(connection: duckdb.DuckDBPyConnection, kind: str) -> str:
    """A type as it stands; text in place of one that only the user's database, or a file, knows."""
    try:
        connection.execute(f"SELECT CAST(NULL AS {kind})")
    except duckdb.Error:
        return "VARCHAR"
    return kind
