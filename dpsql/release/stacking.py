"""The rows of many small tables as one table: one array a column, filled table by table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .columns import Coded, Numbers, Packed

Columns = Sequence[tuple[str, str, Packed]]


def stacked(tables: Sequence[Columns]) -> list[tuple[str, str, Packed]]:
    """(name, DuckDB type, values) of the columns of all ``tables``, in the order in which they come.

    A row has NULL in a column that its table lacks. Tables that share a column's name share its type and kind of array.
    Cost: an array of all rows for each column, whatever the number of tables.
    """
    ends = np.cumsum([0, *(len(columns[0][2]) for columns in tables)])
    rows = int(ends[-1])
    parts: dict[str, tuple[str, list[tuple[int, Packed]]]] = {}
    for at, columns in enumerate(tables):
        for name, kind, values in columns:
            parts.setdefault(name, (kind, []))[1].append((int(ends[at]), values))
    return [(name, kind, _one(found, rows)) for name, (kind, found) in parts.items()]


def _one(parts: Sequence[tuple[int, Packed]], rows: int) -> Packed:
    """One column of so many rows from its parts, each with the row at which it begins."""
    if isinstance(parts[0][1], Numbers):
        data, null = np.zeros(rows), np.ones(rows, dtype=np.bool_)
        for begin, values in parts:
            assert isinstance(values, Numbers)  # noqa: S101 - narrows the type for the checker
            data[begin : begin + len(values)] = values.data
            null[begin : begin + len(values)] = False if values.null is None else values.null
        return Numbers(data, null if null.any() else None)
    known: dict[tuple[type, Any], int] = {}
    numbers: dict[int, Any] = {}  # by identity: 1 and TRUE are equal, and not the same value
    codes = np.full(rows, -1, dtype=np.int32)
    for begin, values in parts:
        assert isinstance(values, Coded)  # noqa: S101 - narrows the type for the checker
        if id(values.distinct) not in numbers:
            listed = [known.setdefault((type(value), value), len(known)) for value in values.distinct]
            numbers[id(values.distinct)] = np.array(listed, dtype=np.int32)
        codes[begin : begin + len(values)] = numbers[id(values.distinct)][values.codes]
    if (codes < 0).any():
        codes[codes < 0] = known.setdefault((type(None), None), len(known))
    return Coded(tuple(value for _, value in known), codes)
