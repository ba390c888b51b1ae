"""Noisy tables: the columns that a core's table has once it is measured, companions among them, and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from typing import TypeGuard

from dpsql.free_sql.extents import TEXT, Extent, either
from dpsql.free_sql.tables import Bounds, Keys, table
from dpsql.sql.outer.relation import HIDDEN, OTHER, ColumnInfo, United, beside_numbers, companion_names
from dpsql.workloads.expr.batch import CaseKey, Core, CoreColumn, Derived, KeyOutput, Ranked
from dpsql.workloads.expr.formulas import Dated


def core_columns(core: Core) -> tuple[ColumnInfo, ...]:
    """The columns of a core's noisy table with their companions, as ``tables`` writes them."""
    suffixes: list[tuple[str, ...]] = []
    for column in core.columns:
        if isinstance(column, KeyOutput):
            suffixes.append(OTHER if column.label == 0 and column.key.has_other else ())
        else:
            suffixes.append(beside_numbers(core.minimum))
    return _with_companions(tuple(column.name for column in core.columns), tuple(suffixes))


@lru_cache(maxsize=1024)  # thousands of statements have columns called alike
def _with_companions(columns: tuple[str, ...], suffixes: tuple[tuple[str, ...], ...]) -> tuple[ColumnInfo, ...]:
    pairs = [(at, suffix) for at, found in enumerate(suffixes) for suffix in found]
    names = iter(companion_names(columns, pairs))
    return tuple(
        ColumnInfo(column, tuple((suffix, next(names)) for suffix in found))
        for column, found in zip(columns, suffixes, strict=True)
    )


def core_types(core: Core, columns: Sequence[ColumnInfo] | None = None) -> list[tuple[str, str]]:
    """(name, DuckDB type) of the columns of a core's noisy table, companions among them; ``columns``: where known."""
    found = []
    for column, info in zip(core.columns, columns or core_columns(core), strict=True):
        kind, beside = "DOUBLE", "DOUBLE"
        if isinstance(column, KeyOutput):
            kind, beside = column.key.labels[column.label].type, "BOOLEAN"
        elif isinstance(column, Ranked):
            kind = column.type
        elif isinstance(column, Derived) and isinstance(column.formula, Dated):
            kind = "TIMESTAMP"
        found.append((info.name, kind))
        ends = {"_low": kind, "_high": kind, **dict.fromkeys(HIDDEN, "BOOLEAN")}
        found.extend((name, ends.get(suffix, beside)) for suffix, name in info.companions)
    return found


def bounds_of(cores: Sequence[Core], unions: Mapping[str, United]) -> dict[str, Bounds]:
    """The bounds of the same tables as ``noisy_types``: their rows, and the longest label of each group key."""
    single: dict[str, Bounds] = {}
    for core in cores:
        labels = {column.name: _longest(column) for column in core.columns if isinstance(column, KeyOutput)}
        single[core.name] = replace(table(core_types(core), core.rows, labels), keys=key_columns(core))
    found = {}
    for name, union in unions.items():
        parts = [single.pop(table.name) for table in union.tables]
        columns = dict.fromkeys(column for part in parts for column in part.columns)
        each = {column: either(p.columns[column] for p in parts if column in p.columns) for column in columns}
        bits = {bit.lower(): Extent() for bit, _ in union.bits}
        # The second key tells tables of other parts from these.
        keys = (("", inf), *((f"\0{key}", values) for part in parts for key, values in part.keys))
        rows = sum(part.rows for part in parts)
        found[name] = Bounds({**each, **bits}, rows, keys=keys, measure=partial(_most_of, parts))
    return {**single, **found}


def _most_of(parts: Sequence[Bounds], columns: frozenset[str]) -> float:
    """The most rows of a union of tables that agree in columns."""
    return sum(part.multiplicity(columns) for part in parts)


def key_columns(core: Core) -> Keys:
    """The columns that determine a row of a core's noisy table; a key that no column tells apart has no name."""
    names = {id(column.key): column.name for column in core.columns if _is_injective(column)}
    return tuple((names.get(id(key), "").lower(), len(key)) for key in core.keys)


def _is_injective(column: CoreColumn) -> TypeGuard[KeyOutput]:
    """Whether a column has another value, or NULL, for each group of a key."""
    if not isinstance(column, KeyOutput) or not column.key.listed:
        return False
    key = column.key
    values = key.labels[column.label].values if isinstance(key, CaseKey) else (*key.values, key.other_label)
    return len({str(value) for value in values}) == len(values)


def _longest(column: KeyOutput) -> float:
    """The bytes of a key's longest label."""
    key = column.key
    if not key.listed:
        return TEXT
    labels = key.labels[column.label].values if isinstance(key, CaseKey) else (*key.values, key.other_label)
    return max((len(str(label).encode()) for label in labels), default=0)


def noisy_types(cores: Sequence[Core], unions: Mapping[str, United]) -> dict[str, list[tuple[str, str]]]:
    """(name, DuckDB type) of the columns of the tables that gathered outer SQL reads: ``unions``, and other cores'."""
    types = {core.name: core_types(core) for core in cores}
    found = {}
    for name, union in unions.items():
        columns = dict(column for table in union.tables for column in types.pop(table.name))
        found[name] = [*columns.items(), *((bits, "INTEGER") for bits, _ in union.bits)]
    return {**types, **found}
