"""The values that the SQL front end hands over: tables, columns and queries, free of syntax."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import ClassVar, Literal

from dpsql.policy import ColumnPolicy, TablePolicy
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.conditions import Condition, LineAtom
from dpsql.workloads.expr.formulas import Formula
from dpsql.workloads.expr.lines import Interval, Line, Scalar
from dpsql.workloads.expr.regions import KeyDomain, LabelColumn
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.values import Evaluate, Stored, Value
from dpsql.workloads.expr.within import meets


@dataclass(frozen=True)
class Column:
    """A column that a batch may use: its name as the schema writes it, type, line, policy.

    ``value`` says what the scan computes for a column that the table does not store: an expression
    over stored columns, or a column of a joined table; None for a stored column of the table itself.
    ``never_null``: in the rows that a statement is about there is no NULL by the policy, though the scan
    may see one where a join finds no row; its groups have no NULL then. ``only``: where all rows lie that a batch is
    about (``planning.by_period``), None for anywhere; rows elsewhere, and NULL, are in no cell. ``exact``: of a summed
    column a value, unit and offset, where each row has exactly unit times value plus offset.
    """

    name: str
    type: str
    line: Line
    policy: ColumnPolicy
    value: Value | None = None
    never_null: bool = False
    only: tuple[Interval, ...] | None = None
    exact: tuple[Value, Fraction, Fraction] | None = field(default=None, repr=False, compare=False)

    def times(self, other: Column) -> Fraction | None:
        """The factor by which each row has more of this column than of ``other``; None where none is proven."""
        if self.exact is None or other.exact is None:
            stored = self.value is None and other.value is None and self.name == other.name
            computed = self.value is not None and (self.value, self.line) == (other.value, other.line)
            return Fraction(1) if stored or (computed and self.ends == other.ends) else None
        (value, unit, offset), (same, one, start) = self.exact, other.exact
        return unit / one if value == same and offset * one == start * unit else None

    @property
    def ends(self) -> tuple[Fraction, Fraction]:
        """The bounds of a column that is summed, which are numbers."""
        return Fraction(self.policy.lower), Fraction(self.policy.upper)  # type: ignore[arg-type]

    @property
    def by_limit(self) -> bool:
        """Whether the bounds are what so many rows of a unit as count can have, where it may have more."""
        computed = not (self.value is None or isinstance(self.value, Stored))
        return not (computed or self.policy.declared) and self.line.kind == "integer" and self.policy.lower is not None

    @property
    def closed(self) -> tuple[Interval | None, ...] | None:
        """The parts of a closed domain: declared ``values`` without OTHER, within ``only``; None for an open one."""
        if self.policy.values is not None and not self.policy.other:
            points = tuple(self.line.point(constant(value)) for value in self.policy.values)
            return points if self.only is None else tuple(p for p in points if p is not None and meets(p, self.only))
        return self.only

    @property
    def nulls(self) -> bool:
        """Whether rows in which the column is NULL are in a cell."""
        return self.policy.nulls and self.only is None


@dataclass(frozen=True)
class OneUnit:
    """What one unit adds to the sum of ``column``: from ``lower`` to ``upper``, in each group of ``cap`` or in all."""

    column: Column
    lower: Fraction
    upper: Fraction
    cap: Cap | None
    text: str = field(default="", compare=False)

    @property
    def most(self) -> Fraction:
        """The largest absolute value."""
        return max(-self.lower, self.upper)

    def on(self, column: Column) -> OneUnit | None:
        """The bound as it is on the sum of a multiple of its column, stored or computed; None of any other."""
        factor = column.times(self.column)
        if factor is None:
            return None
        lower, upper = sorted((factor * self.lower, factor * self.upper))
        return replace(self, column=column, lower=lower, upper=upper)


@dataclass(frozen=True)
class Table:
    """A private table as a batch sees it.

    ``source`` is what the scan reads: the table, what is joined to it, and how many rows of a unit
    count. ``columns`` (by folded name) hold stored, joined and computed ones; ``schema`` has every
    stored column's DuckDB type by its name. ``most_numbers``: how many a statement may release. ``evaluate`` computes
    what a row holds of public constants.
    """

    name: str
    policy: TablePolicy
    columns: Mapping[str, Column] = field(repr=False)
    schema: Mapping[str, str] = field(repr=False)
    source: RowSource | None = None  # None: the table itself, every row
    caps: tuple[Cap, ...] = field(default=(), repr=False)  # what the policy says of the rows of a unit
    sums: tuple[OneUnit, ...] = field(default=(), repr=False)  # and of what these add up to
    most_numbers: int = 200_000
    evaluate: Evaluate | None = field(default=None, repr=False, compare=False)

    def bounds_on(self, column: Column) -> tuple[OneUnit, ...]:
        """The bounds on what one unit adds to the sum of ``column``, where they are below what its rows could add.

        In Euclidean norm: all rows in one group, or the bound in each of as many groups as there may be.
        """
        source = self.source
        if source is None or source.unit is None or source.of is not None or source.windows is not None:
            return ()
        lower, upper = column.ends
        rows = max(-lower, upper) * source.most
        found = tuple(one for one in (bound.on(column) for bound in self.sums) if one is not None)
        squares = (one.most**2 * (1 if one.cap is None else min(source.limit, one.cap.axis.size)) for one in found)
        if self.policy.periods is not None and all(one.cap is not None for one in found):
            return ()  # how many groups of a unit count depends on how many periods are read
        return found if lower < upper and min(squares, default=rows**2) < rows**2 else ()


def unit_sum_name(column: Column) -> str:
    """What units add to the sum of a column, which no table has as one of its own."""
    return f"{column.name} of one unit"


@dataclass(frozen=True)
class Term:
    """``coefficient`` times the number of rows that satisfy ``condition``, or the sum of ``column`` over them.

    ``power`` 2 sums the squares of the column's distances from the middle of its bounds.
    """

    coefficient: Fraction
    condition: Condition
    column: str | None = None
    power: int = 1


@dataclass(frozen=True)
class Output:
    """One private column of a result: a sum of terms and a public constant.

    ``part_of``: what all prefix counts of one quantile have in common, as they are one column together; else empty.
    """

    name: str
    terms: tuple[Term, ...]
    constant: Fraction = Fraction(0)
    part_of: str = field(default="", repr=False, compare=False)

    @property
    def sums(self) -> bool:
        """True where a SUM is involved, whose errors are in units of their own."""
        return any(term.column is not None for term in self.terms)

    @property
    def counts(self) -> bool:
        """True where it is a number of rows or units."""
        plain = all(term.column is None and term.coefficient > 0 for term in self.terms)
        return plain and bool(self.terms) and not self.constant


@dataclass(frozen=True)
class CaseKey:
    """Groups given by conditions: those of an expression, or ranges, which may overlap.

    ``text`` identifies the key; ``labels`` are the released columns that tell its groups apart (two for
    ranges), ``conditions`` say which rows are in which group.
    """

    text: str
    labels: tuple[LabelColumn, ...]
    conditions: tuple[Condition, ...] = field(repr=False)
    listed: ClassVar[Literal[True]] = True

    def __len__(self) -> int:
        return len(self.conditions)

    @property
    def name(self) -> str:
        """The name that plans show for the key."""
        return self.text

    @property
    def atoms(self) -> tuple[LineAtom, ...]:
        """Where its groups lie; none unless all are of one column."""
        found = tuple(condition for condition in self.conditions if isinstance(condition, LineAtom))
        return found if len(found) == len(self) and len({atom.column for atom in found}) == 1 else ()

    @property
    def has_other(self) -> bool:
        """Whether it has a group of unlisted values that a companion tells from NULL."""
        return len(self.labels) > 1 and self.labels[1].name == "other"

    @property
    def others(self) -> tuple[bool, ...]:
        """Whether each group is OTHER."""
        return tuple(map(bool, self.labels[1].values)) if self.has_other else (False,) * len(self)


@dataclass(frozen=True)
class RangeKey:
    """All ranges, or all prefixes, of a column's many declared values, in closed form and not one by one.

    ``family`` is "ranges" (n (n + 1) / 2 groups of n values) or "prefixes" (n). ``ends`` name the released columns
    that tell groups apart. ``values`` are the declared ones in ascending order; where they are a run of whole numbers
    or days, ``first`` is the place of the first on the column's line and ``values`` a range of places, else
    ``points`` are where each value lies. A batch has the same RangeKey in all its queries (``line_batch``).
    """

    text: str
    family: str
    column: str
    type: str
    line: Line
    ends: tuple[str, ...]
    values: tuple[Scalar, ...] | range
    first: int | None = None
    points: tuple[Interval, ...] = field(default=(), repr=False)
    listed: ClassVar[Literal[False]] = False
    has_other: ClassVar[bool] = False

    def __len__(self) -> int:
        n = len(self.values)
        return n * (n + 1) // 2 if self.family == "ranges" else n

    @property
    def name(self) -> str:
        """The name that plans show for the key."""
        return self.text

    @property
    def labels(self) -> tuple[LabelColumn, ...]:
        """The released columns, without their values."""
        return tuple(LabelColumn(end, self.type, ()) for end in self.ends)

    def value(self, at: int) -> Scalar:
        """The declared value number ``at``, from 0."""
        found = self.values[at]
        if self.line.kind == "date" and isinstance(found, int):
            return dt.date(1970, 1, 1) + dt.timedelta(days=found)
        return found


Key = KeyDomain | CaseKey | RangeKey


@dataclass(frozen=True)
class Query:
    """Groups of one table and what is counted or summed in them: one private part of a statement.

    ``keys`` are all GROUP BY columns; there is one row for each combination of their groups, the last
    key running fastest. ``outputs`` are measured. ``weight`` multiplies the rows of W. ``max_error`` is the half-width
    that the statement wants of its numbers, which changes no answer's meaning.
    """

    name: str
    table: str
    keys: tuple[Key, ...]
    outputs: tuple[Output, ...]
    weight: float = 1.0
    max_error: float | None = field(default=None, repr=False)

    @cached_property
    def rows(self) -> int:
        return prod(len(key) for key in self.keys)


@dataclass(frozen=True)
class KeyOutput:
    """A group key among the columns of a noisy table; ``label`` is which of a case key's labels it shows."""

    name: str
    key: Key = field(repr=False)
    label: int = 0


@dataclass(frozen=True)
class Measured:
    """A private number among the columns of a noisy table: output ``output`` of its core.

    ``title`` is what plans call it, where outer SQL gives the column its name.
    """

    name: str
    output: int
    title: str = ""


@dataclass(frozen=True)
class Derived:
    """A column computed from private numbers of the same groups, with an interval of its own: AVG, a ratio.

    ``formula`` names the core's outputs by number; ``bounds`` are what the policy lets the number be.
    """

    name: str
    formula: Formula
    bounds: tuple[float, float] | None = None
    title: str = ""


@dataclass(frozen=True)
class Ranked:
    """A column that is a quantile of another, from private prefix counts: MIN is q = 0, MEDIAN 0.5, MAX 1.

    ``values`` are the declared domain, ascending, as numbers (dates as days since 1970-01-01); output
    ``prefixes[i]`` of the core counts the rows up to ``values[i]``. ``type`` is that of the column: DOUBLE, DATE or
    TIMESTAMP.
    ``starts[i]`` is the first declared value that counts as ``values[i]``: itself, but in domains of many values.
    ``discrete``: the value itself at the rank, nothing between two of them.
    """

    name: str
    q: float
    starts: tuple[float, ...] = field(repr=False)
    values: tuple[float, ...] = field(repr=False)
    prefixes: tuple[int, ...] = field(repr=False)
    type: str = "DOUBLE"
    title: str = ""
    discrete: bool = False


CoreColumn = KeyOutput | Measured | Derived | Ranked


@dataclass(frozen=True)
class Piece:
    """What a summed expression is in the rows where ``condition`` holds.

    It is ``constant`` there or, where ``varying`` is not empty, a value of the row; equal texts are equal values.
    """

    condition: Condition
    constant: Fraction = Fraction(0)
    varying: str = ""


Pieces = Mapping[str, tuple[Piece, ...] | None]
"""The pieces of each summed column of a table, None where they cannot be told; disjoint, and NULL in all other rows."""


@dataclass(frozen=True)
class Core:
    """The private part of one SELECT: a noisy table over the groups of its keys.

    ``queries`` have the same keys; there are several where units are counted beside rows. ``places`` says
    of each output of the core which query has it, and where there. ``minimum``: the least count that its results show;
    where there is one, ``table`` holds the columns of the rows, and ``pieces`` say what is summed in which of them.
    """

    name: str
    queries: tuple[Query, ...]
    places: tuple[tuple[int, int], ...]
    columns: tuple[CoreColumn, ...]
    minimum: int | None = field(default=None, repr=False)
    table: Table | None = field(default=None, repr=False, compare=False)
    pieces: Pieces = field(default_factory=dict, repr=False, compare=False)

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.queries[0].keys

    @property
    def rows(self) -> int:
        return self.queries[0].rows

    @property
    def line(self) -> RangeKey | None:
        """The long line by which it is grouped, if there is one."""
        return next((key for key in self.keys if not key.listed), None)

    @property
    def is_view(self) -> bool:
        """Whether its result is a view that works its rows out when they are taken: all ranges of a long line."""
        return self.line is not None and self.line.family == "ranges"

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The private numbers of a group."""
        return tuple(self.queries[query].outputs[at] for query, at in self.places)


def constant(value: object) -> bool | int | float | str | Fraction | dt.date | dt.datetime:
    """A policy's value as a constant that lines can place (Decimal becomes Fraction)."""
    if isinstance(value, bool | int | float | str | Fraction | dt.datetime | dt.date):
        return value
    return Fraction(str(value))
