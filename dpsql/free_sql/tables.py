"""Tables: the columns of what a query reads or gives, and the most rows that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TypeAlias

import duckdb

from dpsql.common.quoting import identifier

from . import limits
from .extents import ELEMENTS, TEXT, Extent, series, text
from .functions import TYPES, WORDS

_MOST_COUNTED = 4 * limits.MOST_ROWS
"""Rows that are counted for one table of a query, over all sets of columns whose multiplicity is counted."""
_SHORT = 100_000
"""Rows of a table whose multiplicity is counted at once, not only where a join could else make too many rows."""
_VERY_MANY = 1e18
"""Rows of a table that has more than are counted."""
_SIZES = {"AR": "strlen", "[]": "len"}  # by how the names of VARCHAR and of lists end


Keys: TypeAlias = "tuple[tuple[str, float], ...]"
"""Columns with the most values of each."""
Measure: TypeAlias = Callable[[frozenset[str]], float]
"""Counts the most rows of a table that agree in columns."""


@dataclass(frozen=True)
class Bounds:
    """What a query or a table gives: the extents of its columns, by name in lower case, and the most rows.

    ``listed``: whether these are all its columns. ``keys``: columns that determine a row together, with the most values
    of each; a name that no column has stands for a key that is not shown. ``measure``: counts the most rows that agree
    in columns. ``wide``: how many columns there are where several have one name. ``copied``: expressions that DuckDB
    writes again wherever it is read. ``joined``: tables that are joined where it is read for the first time.
    """

    columns: Mapping[str, Extent] = field(default_factory=dict)
    rows: float = 1
    listed: bool = True
    keys: Keys = (("", inf),)
    measure: Measure | None = field(default=None, compare=False, repr=False)
    wide: float = 0
    copied: float = 0
    joined: int = 1

    @property
    def width(self) -> float:
        """The most columns that a star gives."""
        return max(self.wide, len(self.columns))

    def multiplicity(self, columns: frozenset[str], *, measured: bool = False) -> float:
        """The most rows that agree in these columns and are not NULL there."""
        most = min(self.rows, prod(values for name, values in self.keys if name not in columns))
        if (measured or self.rows <= _SHORT) and most > 1 and self.measure is not None:
            most = min(most, self.measure(columns))
        return max(1.0, most)

    def selected(self, names: Mapping[str, str]) -> tuple[Keys, Measure | None]:
        """The keys and the measure of some of these rows; ``names``: this table's column by that of the result."""
        shown = {column: name for name, column in names.items()}
        keys = tuple((shown.get(name, f"\0{name}"), values) for name, values in self.keys)
        measure = self.measure
        if measure is None:
            return keys, None
        return keys, lambda columns: measure(frozenset(names[name] for name in columns if name in names))


Tables: TypeAlias = Callable[[tuple[str, ...]], "Bounds | None"]
"""What is read under a name, its parts in lower case; None for what may not be read."""


def _column(kind: str, longest: float) -> Extent:
    """The extent of a table's column of a DuckDB type; ``longest``: bytes of its texts, or elements of its lists."""
    word = kind.split("(")[0].lower()
    if kind.endswith("]"):
        return replace(series(longest, TEXT), type=kind)
    return Extent(type=kind) if word in TYPES - WORDS - {"struct", "map", "list"} else replace(text(longest), type=kind)


def table(columns: Sequence[tuple[str, str]], rows: float, longest: Mapping[str, float] | None = None) -> Bounds:
    """A table with (name, DuckDB type) of its columns; ``longest``: of texts and lists, where it is known, by name."""
    lengths = longest or {}
    return Bounds(
        {
            name.lower(): _column(kind, lengths.get(name, ELEMENTS if kind.endswith("]") else TEXT))
            for name, kind in columns
        },
        rows,
    )


def table_in(connection: duckdb.DuckDBPyConnection, name: str) -> Bounds | None:
    """A table or view by its quoted name, with how many rows it has and how long its texts and lists are.

    Rows are counted up to the limit of rows that a join can make; more of them, as a view of all ranges of a long line
    has, count as very many, and their texts as long as those of any column. None where there is no such table.
    """
    try:
        described = connection.execute(f"SELECT * FROM {name} LIMIT 0").description or ()  # noqa: S608
        columns = [(str(column[0]), str(column[1])) for column in described]
        sized = {column: _SIZES[kind[-2:]] for column, kind in columns if kind[-2:] in _SIZES}
        listed = "".join(f", max({size}({identifier(column)}))" for column, size in sized.items())
        some = f"(SELECT * FROM {name} LIMIT {limits.MOST_ROWS + 1})"  # noqa: S608
        count, *lengths = connection.execute(f"SELECT count(*){listed} FROM {some}").fetchone() or (0,)  # noqa: S608
    except duckdb.InterruptException:
        raise
    except duckdb.Error:
        return None
    if count > limits.MOST_ROWS:
        return table(columns, _VERY_MANY)
    bounds = table(columns, count, {column: size or 0 for column, size in zip(sized, lengths, strict=False)})
    return replace(bounds, measure=_measure(connection, name, bounds.rows))


def _measure(connection: duckdb.DuckDBPyConnection, name: str, rows: float) -> Measure:
    """Counts the most rows of a table that agree in columns, by one GROUP BY of each set of columns, of few sets."""
    counted: dict[frozenset[str], float] = {}

    def measure(columns: frozenset[str]) -> float:
        if columns not in counted and columns and 0 < rows * (len(counted) + 1) <= _MOST_COUNTED:
            names = [identifier(column) for column in sorted(columns)]
            present = " AND ".join(f"{column} IS NOT NULL" for column in names)
            groups = f"SELECT count(*) AS n FROM {name} WHERE {present} GROUP BY {', '.join(names)}"  # noqa: S608
            try:
                (most,) = connection.execute(f"SELECT max(n) FROM ({groups})").fetchone() or (None,)  # noqa: S608
                counted[columns] = float(most or 1)
            except duckdb.InterruptException:
                raise
            except duckdb.Error:
                counted[columns] = rows
        return counted.get(columns, rows)

    return measure


def renamed(bounds: Bounds, names: Sequence[str]) -> Bounds:
    """Rows whose first columns have other names."""
    if not names:
        return bounds
    if not bounds.listed:
        return replace(bounds, columns={}, keys=Bounds().keys, measure=None)
    old = list(bounds.columns)
    new = [str(name).lower() for name in names] + old[len(names) :]
    keys, measure = bounds.selected(dict(zip(new, old, strict=False)))
    return replace(bounds, columns=dict(zip(new, bounds.columns.values(), strict=False)), keys=keys, measure=measure)
