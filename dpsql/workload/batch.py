"""The values that the SQL front end hands over: tables, columns and queries, free of syntax."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.policy import ColumnPolicy, TablePolicy
from dpsql.workload.conditions import Condition
from dpsql.workload.lines import Interval, Line
from dpsql.workload.regions import KeyDomain


@dataclass(frozen=True)
class Column:
    """A column that a batch may use: its name as the schema writes it, type, line, policy."""

    name: str
    type: str
    line: Line
    policy: ColumnPolicy

    @property
    def closed(self) -> tuple[Interval | None, ...] | None:
        """The points of a closed domain: declared ``values`` without OTHER; None for an open one."""
        if self.policy.values is not None and not self.policy.other:
            return tuple(self.line.point(constant(value)) for value in self.policy.values)
        return None


@dataclass(frozen=True)
class Table:
    """A private table as a batch sees it."""

    name: str
    policy: TablePolicy
    columns: Mapping[str, Column] = field(repr=False)  # by folded name
    schema: Mapping[str, str] = field(repr=False)  # every column's DuckDB type, by its name


@dataclass(frozen=True)
class Term:
    """``coefficient`` times the number of rows that satisfy ``condition``, or the sum of ``column`` over them."""

    coefficient: Fraction
    condition: Condition
    column: str | None = None


@dataclass(frozen=True)
class Output:
    """One private column of a result: a sum of terms and a public constant."""

    name: str
    terms: tuple[Term, ...]
    constant: Fraction = Fraction(0)

    @property
    def sums(self) -> bool:
        """True where a SUM is involved, whose errors are in units of their own."""
        return any(term.column is not None for term in self.terms)


@dataclass(frozen=True)
class KeyOutput:
    """A group key among the columns of a result; ``name`` is its alias."""

    name: str
    domain: KeyDomain = field(repr=False)


@dataclass(frozen=True)
class Query:
    """One statement, understood.

    ``name`` is that of its result: a view's (``named``) or q1, q2, ... ``keys`` are all GROUP
    BY columns; the result has one row for each combination of their groups, the last key
    running fastest. ``columns`` are the result's, in SELECT's order. ``weight`` multiplies the
    rows of W; ``text`` is the statement as DuckDB would write it, for the list of releases.
    """

    name: str
    named: bool
    replace: bool
    table: str
    keys: tuple[KeyDomain, ...]
    columns: tuple[KeyOutput | Output, ...]
    weight: float = 1.0
    text: str = field(default="", repr=False)

    @property
    def rows(self) -> int:
        """Number of rows of the result."""
        count = 1
        for key in self.keys:
            count *= len(key)
        return count

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The private columns."""
        return tuple(column for column in self.columns if isinstance(column, Output))


def constant(value: object) -> bool | int | float | str | Fraction | dt.date | dt.datetime:
    """A policy's value as a constant that lines can place (Decimal becomes Fraction)."""
    if isinstance(value, bool | int | float | str | Fraction | dt.datetime | dt.date):
        return value
    return Fraction(str(value))
