"""What a private scan is: a SELECT over tables, LEFT JOINs, UNION ALL and other SELECTs, of the nodes of ``values``.

``measure/`` makes it of a layout, and each engine has a printer of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.values import Name, Node, Test, Value

Column: TypeAlias = tuple[str, Value]
"""A column of a SELECT: its name and its value."""


@dataclass(frozen=True)
class Table:
    """A table by the policy's name of it."""

    name: str
    alias: str = BASE


@dataclass(frozen=True)
class Select:
    """The columns, all of the source's where none is given, of the rows where ``where`` holds.

    Grouped by the first ``group_by`` columns; ``alias`` is the name of the whole in a FROM clause.
    """

    columns: tuple[Column, ...]
    source: Relation
    where: Test | None = None
    group_by: int = 0
    alias: str = ""


@dataclass(frozen=True)
class Match:
    """A LEFT JOIN to ``rows`` where ``on`` holds, which is one of them at most.

    ``nearest``: of the rows for which equalities and one inequality hold, that whose side of the inequality is nearest.
    """

    rows: Select
    on: Test
    nearest: bool = False


@dataclass(frozen=True)
class Joined:
    """A table, or a SELECT in its place, and what is joined to it."""

    base: Table | Select
    joins: tuple[Match, ...]


@dataclass(frozen=True)
class Union:
    """The rows of several SELECTs of the same columns, one after the other."""

    parts: tuple[Select, ...]


Relation: TypeAlias = Table | Select | Joined | Union


def nodes(relation: Relation) -> Iterator[Node]:
    """The values and tests of a relation and of all that it is over, each object once."""
    waiting, seen = [relation], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Select):
            yield from (value for _, value in one.columns)
            if one.where is not None:
                yield one.where
            waiting.append(one.source)
        elif isinstance(one, Joined):
            yield from (match.on for match in one.joins)
            waiting += [one.base, *(match.rows for match in one.joins)]
        elif isinstance(one, Union):
            waiting += one.parts


def same(*names: str) -> tuple[Column, ...]:
    """Columns of a source under the names that they have."""
    return tuple((name, Name(name)) for name in names)
