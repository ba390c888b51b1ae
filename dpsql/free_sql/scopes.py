"""Scopes: what a name means within a SELECT, and how large its values can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from .extents import ELEMENTS, TEXT, Extent, either, series, text, times
from .joins import AROUND
from .parse import Node, column_references
from .tables import Bounds


@dataclass
class Frame:
    """What names mean within one SELECT: its tables by alias, and its own items; and the work that it takes.

    ``each``: the most rows of FROM for one row of the queries around. ``rows``: for all rows around together, which is
    what it computes. ``complete``: whether all of FROM is read, so that both count. ``fewer``: counts a lower bound of
    rows. ``around``: rows around for which a query of WITH is computed anew. ``copied``: by name, the expressions that
    DuckDB writes for an item or a parameter of a macro. ``joined``: how many tables are joined, subqueries among them.
    """

    tables: list[tuple[str, Bounds]] = field(default_factory=list)
    items: dict[str, Extent] = field(default_factory=dict)
    copied: dict[str, float] = field(default_factory=dict)
    each: float = 1
    rows: float = 1
    around: float = 1
    built: float = 0
    steps: float = 0
    unnested: float = 1
    joined: int = 0
    aggregated: bool = False
    complete: bool = False
    fewer: Callable[[], float] | None = None


Scope: TypeAlias = "tuple[Frame, ...]"
"""The SELECTs around an expression, the innermost last."""


def column_extent(names: Sequence[str], scope: Scope) -> Extent:
    """The extent of a column, the largest of all that the name may mean."""
    for frame in reversed(scope):
        extents = columns_named(names, frame)
        if extents:
            return either(extents)
    return widest_in(scope)


def columns_named(names: Sequence[str], frame: Frame) -> list[Extent]:
    """The extents of all columns, fields, rows and items of a SELECT that a name may mean."""
    last, of = names[-1], names[-2] if len(names) > 1 else ""
    extents = []
    for alias, source in frame.tables:
        if (not of or of == alias) and last in source.columns:
            extents.append(source.columns[last])
        elif (not of or of == alias) and not source.listed:
            extents.append(widest(source))
        elif names[0] in source.columns and len(names) > 1:  # a field
            extents.append(replace(source.columns[names[0]], type=""))
        elif len(names) == 1 and last == alias:  # a row as a whole
            extents.append(Extent(sum(one.size for one in source.columns.values())))
    if not of and last in frame.items:
        extents.append(frame.items[last])
    return extents


def widest(source: Bounds) -> Extent:
    """The extent of any column of a table."""
    extents = list(source.columns.values())
    return either(extents if source.listed and extents else [*extents, replace(series(ELEMENTS, TEXT), type="")])


def widest_in(scope: Scope) -> Extent:
    """The extent of any column that a scope has."""
    extents = [widest(source) for frame in scope for _, source in frame.tables]
    extents += [extent for frame in scope for extent in frame.items.values()]
    return replace(either([*extents, text(TEXT)]), type="")


def columns_equated(names: Sequence[str], frame: Frame, among: range, outer: Scope) -> list[tuple[int, str, str]]:
    """The columns that a name in a comparison may mean: the number of each table, the column's name and its type.

    ``among``: the tables that the condition can name. No type is known of a table whose columns are not listed.
    """
    last, of = names[-1], names[-2] if len(names) > 1 else ""
    tables = [(at, frame.tables[at][1]) for at in among if of in ("", frame.tables[at][0])]
    columns = [(at, last, source.columns[last].type) for at, source in tables if last in source.columns]
    unlisted = [(at, last, _UNKNOWN) for at, source in tables if not source.listed]
    if columns or unlisted:
        return columns or (unlisted if len(unlisted) == 1 else [])
    if of in (alias for alias, _ in frame.tables) and of:
        return []
    around = [extent for inner in outer for extent in columns_named(names, inner)]
    return [(AROUND, ".".join(names), either(around).type)] if around else []


def is_injective_cast(source: str, target: str) -> bool:
    """Whether a comparison with a column of type ``target`` casts distinct values of ``source`` to distinct values."""
    if source in (target, _UNKNOWN):
        return source != ""
    source, target = source.split("(")[0], target.split("(")[0]
    return any(source in owns and target in others for owns, others in _CASTS)


def is_flat(extent: Extent) -> bool:
    """Whether a value is certainly of a type that is not nested."""
    return extent.type.isidentifier() or extent.type.startswith("DECIMAL")


_UNKNOWN = "unknown"  # of a table whose multiplicities are not known either
_SHORT = frozenset(["TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER", "FLOAT"])
_EXACT = frozenset(["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "DECIMAL"])
_INTEGERS = _EXACT - {"DECIMAL"} | {"HUGEINT", "UBIGINT", "UHUGEINT"}
_CASTS = (
    (_INTEGERS, _INTEGERS),
    (_EXACT, _EXACT),
    (_SHORT, {"DOUBLE"}),
    ({"DOUBLE"}, _INTEGERS | {"DECIMAL", "FLOAT"}),
    ({"DATE", "TIMESTAMP"}, {"DATE", "TIMESTAMP"}),
)
"""Types of which every value is cast to a value of its own for a comparison, and the types that it is compared with."""


def outer_columns(node: Node, outer: Scope, frame: Frame) -> dict[str, Frame]:
    """The columns of what stands around a query that it names, each with the SELECT that it is of."""
    aliases = {alias for alias, _ in frame.tables}
    frames: dict[str, Frame] = {}
    for names in column_references(node):
        if (len(names) > 1 and names[-2] in aliases) or columns_named(names, frame):
            continue
        of = next((inner for inner in reversed(outer) if columns_named(names, inner)), None)
        if of is not None:
            frames[".".join(names)] = of
    return frames


def rows_around(columns: Mapping[str, Frame], outer: Scope) -> float:
    """The most combinations of rows that a query is computed for; ``columns``: those that it names of ``outer``."""
    complete = max(
        [frame.around for frame in outer] + [frame.rows for frame in columns.values() if frame.complete], default=1
    )
    tables = {
        (id(frame), at): source.rows
        for name, frame in columns.items()
        if not frame.complete
        for at, (alias, source) in enumerate(frame.tables)
        if columns_named(name.split("."), Frame([(alias, source)]))
    }
    return times(max(1, complete), prod(max(1, rows) for rows in tables.values()))
