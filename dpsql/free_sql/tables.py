"""Tables: the columns of what a query reads or gives, and the most rows that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import duckdb

from dpsql.quoting import identifier

from .extents import ELEMENTS, TEXT, Extent, series, text
from .functions import TYPES, WORDS

_SIZES = {"AR": "strlen", "[]": "len"}  # by how the names of VARCHAR and of lists end


@dataclass(frozen=True)
class Bounds:
    """What a query or a table gives: the extents of its columns, by name in lower case, and the most rows.

    ``listed``: whether these are all its columns. ``made``: whether the rows are not those of a table.
    """

    columns: Mapping[str, Extent] = field(default_factory=dict)
    rows: float = 1
    listed: bool = True
    made: bool = False


Tables: TypeAlias = Callable[[tuple[str, ...]], "Bounds | None"]
"""What is read under a name, its parts in lower case; None for what may not be read."""


def _column(kind: str, longest: float) -> Extent:
    """The extent of a table's column of a DuckDB type; ``longest``: bytes of its texts, or elements of its lists."""
    word = kind.split("(")[0].lower()
    if kind.endswith("]"):
        return replace(series(longest, TEXT), plain=True)
    return Extent(plain=True) if word in TYPES - WORDS - {"struct"} else replace(text(longest), plain=True)


def table(columns: Sequence[tuple[str, str]], rows: float, longest: Mapping[str, float] | None = None) -> Bounds:
    """A table with (name, DuckDB type) of its columns; ``longest``: of texts and lists, where it is known, by name."""
    known = longest or {}
    return Bounds(
        {
            name.lower(): _column(kind, known.get(name, ELEMENTS if kind.endswith("]") else TEXT))
            for name, kind in columns
        },
        rows,
    )


def table_in(connection: duckdb.DuckDBPyConnection, name: str) -> Bounds | None:
    """A table or view by its quoted name, with how many rows it has and how long its texts and lists are.

    None where there is none.
    """
    try:
        described = connection.execute(f"SELECT * FROM {name} LIMIT 0").description or ()  # noqa: S608
        columns = [(str(column[0]), str(column[1])) for column in described]
        sized = {column: _SIZES[kind[-2:]] for column, kind in columns if kind[-2:] in _SIZES}
        listed = "".join(f", max({size}({identifier(column)}))" for column, size in sized.items())
        count, *found = connection.execute(f"SELECT count(*){listed} FROM {name}").fetchone() or (0,)  # noqa: S608
    except duckdb.InterruptException:
        raise
    except duckdb.Error:
        return None
    return table(columns, count, {column: size or 0 for column, size in zip(sized, found, strict=False)})


def renamed(found: Bounds, names: Sequence[str]) -> Bounds:
    """Rows whose first columns have other names."""
    if not names:
        return found
    if not found.listed:
        return replace(found, columns={})
    old = list(found.columns)
    new = [str(name).lower() for name in names] + old[len(names) :]
    return replace(found, columns=dict(zip(new, found.columns.values(), strict=False)))
