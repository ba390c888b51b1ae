"""The policy held against the types of the tables: a contradiction is found before any scan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from dpsql.errors import PolicyError, nearest
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import TablePolicy
from dpsql.policy.policy import Policy
from dpsql.policy.settings import Findings
from dpsql.policy.types import Schemas, SqlType, column_type, joinable
from dpsql.policy.units import foreign_keys, unit_of
from dpsql.policy.values import dotted, fold, kind_of, shown, unquoted

NUMBERS = ("integer", "decimal", "float")

# What a value or bound of each kind may be compared with, without any implicit cast.
FITS = {
    "a string": ("text",),
    "a boolean": ("boolean",),
    "an integer": NUMBERS,
    "a decimal number": ("decimal", "float"),
    "a date": ("date",),
    "a timestamp": ("timestamp",),
    "a timestamp with time zone": ("timestamptz",),
}


def check_schema(policy: Policy, schemas: Schemas) -> None:
    """Nothing, or PolicyError that names the key which contradicts the tables.

    ``schemas`` holds every table that the policy declares, the ones with a source too (see
    csv_schema). Reads types only: whether values and bounds fit the rows is never looked at, and
    ENUM members, which may have been made from rows, are neither compared nor shown.
    """
    known = {fold(name): (name, columns) for name, columns in schemas.items()}
    found = Findings()
    for table in policy.tables.values():
        if fold(table.name) not in known:
            found.errors.append(f"{table.where}: there is no such table; {nearest(table.name, schemas)}")
            continue
        for check in (_check_table, _check_periods, _check_columns):
            with found.each():
                check(table, known[fold(table.name)][1])
    if all(fold(name) in known for name in policy.tables):  # keys may lead to any of them
        for table in policy.tables.values():
            with found.each():
                _check_keys(policy, table, {fold(name): columns for name, columns in schemas.items()})
    found.refuse()


def csv_schema(table: TablePolicy) -> dict[str, str]:
    """Column types of a CSV source, from the policy alone: nothing is sniffed from its rows."""
    return {column.name: column.type for column in table.columns.values() if column.type is not None}


def _absent(table: TablePolicy, name: str, schema: Mapping[str, str]) -> str:
    """What may be meant by a column that is not there: a like one, or a part of paths that has no type yet."""
    hint = nearest(name, schema)
    typed = any(fold(column.name) == fold(name) and column.type is not None for column in table.columns.values())
    in_folders = table.source is not None and not table.is_spark
    if typed or not in_folders or re.fullmatch(r"[^*?\[=]*\.(parquet|csv|csv\.gz)", fold(table.source or "")):
        return hint
    return f'{hint}; a column in names of folders needs its type, as in {dotted(name)} = {{ type = "INTEGER" }}'


def _check_table(table: TablePolicy, schema: Mapping[str, str]) -> None:
    types = {fold(name): column_type(text) for name, text in schema.items()}
    if table.unit != "row" and "." not in table.unit and fold(table.unit) not in types:
        raise PolicyError(f"{table.key('unit')}: there is no column {table.unit}; {_absent(table, table.unit, schema)}")
    if table.counts is not None:
        counted = types.get(fold(table.counts))
        if counted is None:
            hint = _absent(table, table.counts, schema)
            raise PolicyError(f"{table.key('counts')}: there is no column {table.counts}; {hint}")
        if counted.kind != "integer":
            raise PolicyError(f"{table.key('counts')}: {table.counts} is {counted}; name a column of whole numbers")


def _check_periods(table: TablePolicy, schema: Mapping[str, str]) -> None:
    if table.periods is None:
        return
    types = {fold(name): column_type(text) for name, text in schema.items()}
    found = types.get(fold(table.periods.column))
    if found is not None and found.kind == "timestamptz":
        raise PolicyError(
            f"{table.key('periods')}: {table.periods.column} is {found}, whose days depend on a time zone; store the "
            "day, or the time of your zone without one, and name that column"
        )
    if found is not None and found.kind not in ("date", "timestamp"):
        raise PolicyError(f"{table.key('periods')}: {table.periods.column} is {found}; name a DATE or a TIMESTAMP")


def _check_columns(table: TablePolicy, schema: Mapping[str, str]) -> None:
    types = {fold(name): column_type(text) for name, text in schema.items()}
    wrong = Findings()
    for column in table.columns.values():
        found = types.get(fold(column.name))
        with wrong.each():
            if found is None:
                raise PolicyError(f"{column.where}: there is no such column; {_absent(table, column.name, schema)}")
            _check_column(column, found)
    wrong.refuse()


def _check_keys(policy: Policy, table: TablePolicy, schemas: Schemas) -> None:
    """Keys and references name columns, of types that compare without a cast that may fail."""
    unit = None if table.public else unit_of(policy.tables, table)
    own = schemas[fold(table.name)]
    types = {fold(name): kind for name, kind in own.items()}
    if unit is not None and not unit.path and fold(unit.column) not in types:
        raise PolicyError(f"{table.key('unit')}: there is no column {unit.column}; {_absent(table, unit.column, own)}")
    if unit is not None and not unit.path:
        found = column_type(types[fold(unit.column)])
        if found.kind == "other" and found.name not in ("UUID", "BLOB"):
            where = table.key("unit")
            raise PolicyError(f"{where}: {unit.column} is {found}, which is no type of a unit; name another column")
    for column in table.unique:
        if fold(column) not in types:
            raise PolicyError(f"{table.key('key')}: there is no column {column}; {_absent(table, column, own)}")
        if not joinable(types[fold(column)], types[fold(column)]):
            raise PolicyError(
                f"{table.key('key')}: {column} is {column_type(types[fold(column)])}, which is no type of a key; "
                "leave the key out"
            )
    for key in foreign_keys(policy.tables, table):
        others = {fold(name): kind for name, kind in schemas[fold(key.table)].items()}
        for column, target in zip(key.columns, key.key, strict=True):
            if fold(column) not in types:
                raise PolicyError(
                    f"{table.key('references', column)}: there is no column {column}; {_absent(table, column, own)}"
                )
            if fold(target) in others and not joinable(types[fold(column)], others[fold(target)]):
                raise PolicyError(
                    f"{table.key('references', column)}: {column} is {column_type(types[fold(column)])} and "
                    f"{key.table}.{target} is {column_type(others[fold(target)])}, which do not compare; store one "
                    "in the type of the other"
                )


def _check_column(column: ColumnPolicy, actual: SqlType) -> None:
    if actual.kind == "other":
        raise PolicyError(f"{column.where}: dpsql does not work with type {actual}; leave the column out")
    if column.type is not None and str(column_type(column.type)) != str(actual):
        raise PolicyError(
            f"{column.key('type')} is {column.type} and the column is {actual}; write {actual} or leave type out"
        )
    for i, value in enumerate(column.values or ()):
        here = f"{column.key('values')}[{i}]"
        if actual.kind not in FITS[kind_of(value)]:
            plain = unquoted(value) if isinstance(value, str) and actual.kind != "text" else ""
            write = f"write {plain} without quotes" if plain else _write(actual)
            raise PolicyError(f"{here} {shown(value)} is {kind_of(value)} and the column is {actual}; {write}")
        if isinstance(value, int) and not actual.holds(value):
            raise PolicyError(f"{here} {shown(value)} does not fit {actual}; drop it")
        if isinstance(value, int | Decimal) and actual.kind == "decimal":
            _check_decimal(here, value, actual)
    if column.lower is not None:
        _check_bounds(column, actual)


def _check_bounds(column: ColumnPolicy, actual: SqlType) -> None:
    for name in ("lower", "upper", "step"):
        value = getattr(column, name)
        if value is None:
            continue
        here = column.key(name)
        if isinstance(value, Fraction):
            if actual.kind not in NUMBERS:
                raise PolicyError(f"{here} is a number and the column is {actual}; {_write(actual)}")
            if actual.kind == "integer" and value.denominator != 1:
                raise PolicyError(f"{here} is {shown(value)} and the column is {actual}; write a whole number")
        elif actual.kind not in FITS[kind_of(value)]:
            raise PolicyError(f"{here} is {kind_of(value)} and the column is {actual}; {_write(actual)}")


def _check_decimal(here: str, value: int | Decimal, actual: SqlType) -> None:
    scaled = Fraction(value) * 10**actual.scale
    if scaled.denominator != 1 or abs(scaled) >= 10**actual.width:
        raise PolicyError(f"{here} {shown(value)} does not fit {actual}; drop it")


def _write(actual: SqlType) -> str:
    """What a column of that type may declare."""
    return {
        "integer": "write whole numbers",
        "decimal": "write numbers",
        "float": "write numbers",
        "text": 'write values = ["a", "b"] in quotes, and no bounds',
        "boolean": "write values = [false, true], and no bounds",
        "date": "write dates such as 2024-01-31",
        "timestamp": "write timestamps such as 2024-01-31T00:00:00",
        "timestamptz": "write timestamps such as 2024-01-31T00:00:00Z",
    }[actual.kind]
