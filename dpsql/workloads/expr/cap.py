"""Bounds on how the rows of one unit spread over groups of a column."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from dpsql.workloads.expr.conditions import LineAtom
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.regions import LineAxis, line_axis
from dpsql.workloads.expr.values import Stored, Value


@dataclass(frozen=True)
class Cap:
    """Of one unit at most ``rows`` rows count in each group of a column, and rows of at most ``groups`` of them.

    None where that is not bounded. ``parts`` are the declared groups, each where the column, on ``line``, is in some
    intervals; rows in none of them are one group together, and those where the column is NULL another. ``value``
    computes the column, None where the base table stores it. ``text`` is the bound in words.
    """

    column: str
    line: Line
    value: Value | None
    parts: tuple[LineAtom, ...]
    rows: int | None
    groups: int | None
    text: str = field(default="", compare=False, repr=False)

    @cached_property
    def axis(self) -> LineAxis:
        """The column cut into the groups: a region for each."""
        missing = LineAtom(self.column, (), on_null=True)
        found = line_axis(self.column, self.line, (*self.parts, missing)).axis
        assert isinstance(found, LineAxis)  # noqa: S101 - a line has a line axis
        return found

    @property
    def computed(self) -> Value:
        """What decides a row's group."""
        return Stored(self.column, self.line.type) if self.value is None else self.value

    def most(self, limit: int) -> int:
        """How many of at most ``limit`` rows of a unit count."""
        size = self.axis.size
        return min(limit, (limit if self.rows is None else self.rows) * min(size, self.groups or size))
