"""Columns of values as an Arrow stream, which DuckDB makes: other libraries take its buffers without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from dpsql.errors import InterfaceError
from dpsql.quoting import identifier

from .columns import PACKED, Coded, Numbers, coded
from .writing import write_table

_ISOLATED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "1",
}
# What DuckDB calls the type of a column that is nothing but NULL.
_NULLS = ("NULL", '"NULL"')


def arrow_stream(
    names: Sequence[str], columns: Sequence[tuple[str, Sequence[Any]]], requested_schema: object = None
) -> object:
    """A PyCapsule named "arrow_array_stream" over the (DuckDB type, values) of ``columns``.

    The capsule keeps the DuckDB in memory that made it. Raises InterfaceError where a type has no Arrow form, and for
    DuckDB 1.x, which needs pyarrow for this, where that is missing.
    """
    if not columns:
        raise InterfaceError("a result without columns has no Arrow form")
    if any(len(values) >= PACKED and not isinstance(values, Numbers | Coded) for _, values in columns):
        columns = [(kind, _packed(kind, values)) for kind, values in columns]
    connection = duckdb.connect(":memory:", config=_ISOLATED)
    connection.execute("SET TimeZone = 'UTC'")
    failure = ""
    try:
        kinds = ["INTEGER" if kind in _NULLS else kind for kind, _ in columns]
        held = [(f"c{at}", kinds[at], values) for at, (_, values) in enumerate(columns)]
        write_table(connection, "held", held)
        shown = ", ".join(f"c{at} AS {identifier(name)}" for at, name in enumerate(names))
        return connection.sql(f"SELECT {shown} FROM held").__arrow_c_stream__(requested_schema)  # noqa: S608
    except ImportError:
        failure = "this version of DuckDB needs pyarrow for it: pip install 'dpsql[arrow]'"
    except duckdb.Error as error:
        failure = str(error).strip().splitlines()[0].rstrip(". ") + "; cast the column to VARCHAR"
    raise InterfaceError(f"the result has no Arrow form: {failure}")


def _packed(kind: str, values: Sequence[Any]) -> Numbers | Coded:
    """Long columns go to DuckDB as arrays."""
    import numpy as np

    if isinstance(values, Numbers | Coded):
        return values
    if kind in ("DOUBLE", "FLOAT"):
        null = np.fromiter((value is None for value in values), dtype=np.bool_, count=len(values))
        data = np.array([0.0 if value is None else value for value in values], dtype=np.float64)
        return Numbers(data, null if null.any() else None)
    return coded(values)
