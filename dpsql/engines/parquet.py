"""Parquet: a reader that no value can make fail, and the columns that have none.

A scan must not fail on one row's value, or failing would tell neighbouring tables apart after the
charge. DuckDB converts some stored types value by value, and such a conversion may fail: timestamps
that are not in microseconds, INT96, wide or variable-length decimals. ``schema`` gives their columns
a type "PARQUET ...", which no policy admits; the footer alone tells, no row is read.

Precondition: before DuckDB 2, columns of text must be valid UTF-8, as the Parquet format demands;
DuckDB refuses other bytes and has no way to read them. From DuckDB 2 on, bytes that are no UTF-8
are left out of their value, so that the text of any row is a matter of that row alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

UNREADABLE = "PARQUET"  # the first word of the type of a column that no batch may use
_STORAGE = ((4, 2), (9, 4), (18, 8), (38, 16))  # digits of a DECIMAL, bytes that DuckDB keeps it in
_DECIMAL = re.compile(r"DECIMAL\((\d+),\d+\)")

# (name, physical type, bytes, children, converted type, logical type) of one element of the footer.
_Element = tuple[str, str | None, str | None, int | None, str | None, str | None]


def reader(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """The table function that reads the file; columns are those of the file, never of its path."""
    row = connection.execute(
        "SELECT count(*) FROM system.main.duckdb_functions() "
        "WHERE function_name = 'read_parquet' AND list_contains(parameters, 'utf8_validation')"
    ).fetchone()
    total = ", utf8_validation = 'ignore'" if row is not None and row[0] else ""
    return f"system.main.read_parquet({_text(path)}, hive_partitioning = false{total})"


def schema(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, str]:
    """DuckDB types by column name; "PARQUET ..." where a value could make the scan fail.

    Raises duckdb.Error where the file cannot be read, ValueError where its footer and DuckDB disagree.
    """
    described = connection.execute(f"DESCRIBE SELECT * FROM {reader(connection, path)}").fetchall()  # noqa: S608
    elements = connection.execute(
        "SELECT name, type, type_length, num_children, converted_type, logical_type "  # noqa: S608
        f"FROM system.main.parquet_schema({_text(path)})"
    ).fetchall()
    return {
        str(row[0]): str(row[1]) if _is_total(str(row[1]), element) else f"{UNREADABLE} {_stored(element)}"
        for row, element in zip(described, _top(elements), strict=True)
    }


def _text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _top(elements: list[_Element]) -> list[_Element]:
    """The columns: elements right below the root, of which the footer lists the tree in preorder."""
    found = []
    waiting = 0  # elements inside the present column that are still to come
    for element in elements[1:]:
        if waiting:
            waiting -= 1
        else:
            found.append(element)
        waiting += element[3] or 0
    return found


def _is_total(kind: str, element: _Element) -> bool:
    """Whether DuckDB reads every value of a column without a failure. Types no policy admits pass."""
    _, physical, length, _, converted, logical = element
    if kind.startswith("TIMESTAMP"):
        in_micros = converted == "TIMESTAMP_MICROS" or "MICROS=MicroSeconds()" in (logical or "")
        return physical == "INT64" and in_micros
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        # An INT32 or INT64 is taken as it is; bytes beyond DuckDB's own width must all be zero or fail.
        room = next((size for digits, size in _STORAGE if int(decimal[1]) <= digits), 0)
        return physical in ("INT32", "INT64") or (
            physical == "FIXED_LEN_BYTE_ARRAY" and length is not None and 0 < int(length) <= room
        )
    if kind in ("FLOAT", "DOUBLE"):
        # A decimal of more than 38 digits becomes a DOUBLE.
        return converted != "DECIMAL" and "Decimal" not in (logical or "")
    return True


def _stored(element: _Element) -> str:
    """How the column is stored, for a message."""
    _, physical, _, _, converted, logical = element
    if physical == "INT96":
        return "INT96"
    if "NANOS=NanoSeconds()" in (logical or ""):
        return "TIMESTAMP_NANOS"
    if "MILLIS=MilliSeconds()" in (logical or ""):
        return "TIMESTAMP_MILLIS"
    return str(converted or physical)
