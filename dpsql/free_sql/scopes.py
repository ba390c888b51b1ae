"""Scopes: what a name means within a SELECT, and how large its values can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .extents import ELEMENTS, TEXT, Extent, either, series, text
from .parse import Node
from .tables import Bounds


@dataclass
class Frame:
    """What names mean within one SELECT: its tables by alias, and its own items."""

    tables: list[tuple[str, Bounds]] = field(default_factory=list)
    items: dict[str, Extent] = field(default_factory=dict)
    rows: float = 1
    built: float = 0
    steps: float = 0
    unnested: float = 1
    aggregated: bool = False


Scope: TypeAlias = "tuple[Frame, ...]"
"""The SELECTs around an expression, the innermost last."""


def column_extent(names: Sequence[str], scope: Scope) -> Extent:
    """The extent of a column, the largest of all that the name may mean."""
    for frame in reversed(scope):
        found = columns_named(names, frame)
        if found:
            return either(found)
    return widest_in(scope)


def columns_named(names: Sequence[str], frame: Frame) -> list[Extent]:
    last, of = names[-1], names[-2] if len(names) > 1 else ""
    found = []
    for alias, source in frame.tables:
        if (not of or of == alias) and last in source.columns:
            found.append(source.columns[last])
        elif (not of or of == alias) and not source.listed:
            found.append(widest(source))
        elif names[0] in source.columns and len(names) > 1:  # a field
            found.append(replace(source.columns[names[0]], plain=False))
        elif len(names) == 1 and last == alias:  # a row as a whole
            found.append(Extent(sum(one.size for one in source.columns.values())))
    if not of and last in frame.items:
        found.append(frame.items[last])
    return found


def widest(source: Bounds) -> Extent:
    held = list(source.columns.values())
    return either(held if source.listed and held else [*held, replace(series(ELEMENTS, TEXT), plain=False)])


def widest_in(scope: Scope) -> Extent:
    held = [widest(source) for frame in scope for _, source in frame.tables]
    held += [extent for frame in scope for extent in frame.items.values()]
    return replace(either([*held, text(TEXT)]), plain=False)


def tables_with(names: Sequence[str], frame: Frame, outer: Scope) -> list[int]:
    """The numbers of the tables that a plain column may be of; -1 for those around the query."""
    names = [str(name).lower() for name in names]
    last, of = names[-1], names[-2] if len(names) > 1 else ""
    found = [
        at
        for at, (alias, source) in enumerate(frame.tables)
        if (not of or of == alias) and (is_plain(source.columns.get(last)) or not source.listed)
    ]
    around = any(is_plain(extent) for inner in outer for extent in columns_named(names, inner))
    return found or ([-1] if around else [])


def is_plain(extent: Extent | None) -> bool:
    return extent is not None and extent.plain


def mentions_outer(node: Node, outer: Scope, frame: Frame) -> bool:
    """Whether a query names a column of what stands around it."""
    own = {alias for alias, _ in frame.tables}
    todo: list[object] = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if one.get("class") == "COLUMN_REF":
                names = [str(name).lower() for name in one["column_names"]]
                mine = (len(names) > 1 and names[-2] in own) or bool(columns_named(names, frame))
                if not mine and any(columns_named(names, inner) for inner in outer):
                    return True
            todo += list(one.values())
    return False
