"""Parquet: a reader of one or many files that no value can make fail, and the columns that have none.

A scan must not fail on one row's value, or failing would tell neighbouring tables apart after the
charge. DuckDB converts some stored types value by value, and such a conversion may fail: timestamps
that are not in microseconds, INT96, wide or variable-length decimals. ``schema`` gives their columns
a type "PARQUET ...", which no policy admits; the footer alone tells, no row is read. Values that a file
holds and their type does not are NULL where a scan reads them (``dpsql.workloads.expr.total``).

Precondition: before DuckDB 2, columns of text must be valid UTF-8, as the Parquet format demands;
DuckDB refuses other bytes and has no way to read them. From DuckDB 2 on, bytes that are no UTF-8
are left out of their value, so that the text of any row is a matter of that row alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import duckdb

from dpsql.common.quoting import identifier, string
from dpsql.engines.base import TableSource
from dpsql.engines.files import State, path_columns, state_of
from dpsql.errors import OperationalError

UNREADABLE = "PARQUET"  # the first word of the type of a column that no batch may use
_STORAGE = ((4, 2), (9, 4), (18, 8), (38, 16))  # digits of a DECIMAL, bytes that DuckDB keeps it in
_DECIMAL = re.compile(r"DECIMAL\((\d+),\d+\)")

_MOST_READ = 4
_columns: dict[State | None, dict[str, str]] = {}
"""Columns by the state of files: a batch asks for them several times, and the footers of a folder are many."""

# (name, physical type, bytes, children, converted type, logical type) of one element of the footer.
_Element = tuple[str, str | None, str | None, int | None, str | None, str | None]


def reader(connection: duckdb.DuckDBPyConnection, source: TableSource) -> str:
    """What reads the located source's files: their columns, and those of their paths that the policy declares.

    Raises as ``schema``, but for differences between the files, of which ``schema`` has been asked before.
    """
    first = _described(connection, source.files[:1])
    hive = bool(source.declared) and any("=" in str(path) for path in source.files)
    added = path_columns(source, first) if hive else {}
    listed = [identifier(column) for column in first]
    listed += [f"TRY_CAST({identifier(key)} AS {kind}) AS {identifier(key)}" for key, kind in added.items()]
    return f"(SELECT {', '.join(listed)} FROM {_read(source.files, hive=bool(added))})"  # noqa: S608


def schema(connection: duckdb.DuckDBPyConnection, source: TableSource) -> dict[str, str]:
    """DuckDB types by column name; "PARQUET ..." where a value could make the scan fail.

    Raises duckdb.Error where a file cannot be read, ValueError where its footer and DuckDB disagree,
    OperationalError where the files are of several schemas: DuckDB would cast the values of one to the types of
    another, which may fail.
    """
    state = state_of(source.files)
    cached = _columns.pop(state, None)
    if cached is None:
        for path in _of_each_schema(connection, source.files):
            columns = _file_schema(connection, path)
            if cached is not None and columns != cached:
                raise OperationalError(_difference(source, cached, columns))
            cached = cached or columns
    cached = cached or {}
    if state is not None and state == state_of(source.files):  # none was replaced meanwhile
        _columns[state] = cached
        for old in list(_columns)[:-_MOST_READ]:
            _columns.pop(old, None)
    return {**cached, **path_columns(source, cached)}


def _difference(source: TableSource, one: dict[str, str], other: dict[str, str]) -> str:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return (
        f"the files of {source.path} have different schemas: not all have column {names[0]} of one type; "
        "name files of one schema, or write them again with one"
    )


def _of_each_schema(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> list[Path]:
    """Files such that every other has the very footer of one of them, as far as schemas go."""
    if len(files) == 1:
        return list(files)
    rows = connection.execute(
        "SELECT system.main.min(file_name) FROM (SELECT file_name, system.main.list((name, type, type_length, "  # noqa: S608
        "num_children, converted_type, scale, precision, logical_type)) AS footer "
        f"FROM system.main.parquet_schema({_list(files)}) GROUP BY file_name) GROUP BY footer ORDER BY 1"
    ).fetchall()
    return [Path(str(row[0])) for row in rows]


def _file_schema(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, str]:
    elements = connection.execute(
        "SELECT name, type, type_length, num_children, converted_type, logical_type "  # noqa: S608
        f"FROM system.main.parquet_schema({string(str(path))})"
    ).fetchall()
    return {
        name: kind if _is_total(kind, element) else f"{UNREADABLE} {_stored(element)}"
        for (name, kind), element in zip(_described(connection, [path]).items(), _top(elements), strict=True)
    }


def _described(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> dict[str, str]:
    """DuckDB's types by column name of files of one schema, without the columns of their paths."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {_read(files, hive=False)}").fetchall()  # noqa: S608
    return {str(row[0]): str(row[1]) for row in rows}


def _read(files: Sequence[Path], *, hive: bool) -> str:
    """The table function; with ``hive`` the columns of paths come as text."""
    # What is not UTF-8 is left out of its value; DuckDB 1 has no way to read it.
    total = ", utf8_validation = 'ignore'" if int(duckdb.__version__.split(".")[0]) >= 2 else ""
    paths = ", hive_partitioning = true, hive_types_autocast = false" if hive else ", hive_partitioning = false"
    return f"system.main.read_parquet({_list(files)}{paths}, union_by_name = false{total})"


def _list(files: Sequence[Path]) -> str:
    return f"[{', '.join(map(string, map(str, files)))}]"


def _top(elements: list[_Element]) -> list[_Element]:
    """The columns: elements right below the root, of which the footer lists the tree in preorder."""
    names = []
    waiting = 0  # elements inside the present column that are still to come
    for element in elements[1:]:
        if waiting:
            waiting -= 1
        else:
            names.append(element)
        waiting += element[3] or 0
    return names


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
