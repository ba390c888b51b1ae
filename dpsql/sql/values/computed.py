"""Computed columns: value expressions that a batch cuts or sums like columns of their table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from sqlglot import exp

from dpsql.common.notes import Note
from dpsql.policy import ColumnPolicy
from dpsql.policy.values import fold
from dpsql.workloads.expr.batch import Column, Table
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.values import Stored, Value

# Characters of an expression's text in its column's name.
_LONGEST = 60


@dataclass
class Computed:
    """The computed columns of one table, over all statements of a batch.

    Equal values are one column, so that its regions are cut once. Names are the expressions' texts,
    made unique against the table's own columns as identifiers compare. ``notes`` are what a reader of the plan should
    know of the conditions that were read, in order; ``patterns`` the columns and patterns of LIKE that a scan matches.
    ``summed`` holds the expression of each computed column that is summed, by its name.
    """

    base: Table
    notes: dict[Note, None] = field(default_factory=dict)
    patterns: dict[tuple[str, str], None] = field(default_factory=dict)
    summed: dict[str, exp.Expr] = field(default_factory=dict)
    _columns: dict[tuple[Value, Line], list[Column]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _by_name: dict[str, Column] = field(default_factory=dict)
    _domains: dict[str, tuple[Column, KeyDomain]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names |= {fold(name) for name in self.base.schema} | set(self.base.columns)

    def column(
        self,
        value: Value,
        line: Line,
        kind: str,
        text: str,
        *,
        nulls: bool = True,
        summed: tuple[Fraction, Fraction, Fraction | None] | None = None,
    ) -> Column:
        """The column of a value on a line; its bounds and its step where it is ``summed``.

        What is summed and compared, too, is one column: one that was compared first receives the bounds.
        """
        low, high, step = summed or (None, None, None)
        same = self._columns.setdefault((value, line), [])
        for at, found in enumerate(same):
            policy = found.policy
            if summed is None or (policy.lower, policy.upper, policy.step) == (low, high, step):
                return found
            if policy.lower is None:
                bounded = replace(policy, lower=low, upper=high, step=step)
                same[at] = self._by_name[fold(found.name)] = replace(found, policy=bounded)
                return same[at]
        short = "".join(c if c.isprintable() else " " for c in text)[:_LONGEST]
        name, copy = short, 0
        while fold(name) in self._names or not name:
            copy += 1
            name = f"{short} #{copy}"
        self._names.add(fold(name))
        policy = ColumnPolicy(name, lower=low, upper=high, step=step, nulls=nulls)
        column = self._by_name[fold(name)] = Column(name, kind, line, policy, value)
        same.append(column)
        return column

    def over(self, table: Table) -> Computed:
        """The same columns, and those to come, for a statement that reads ``table``: with other joins, say."""
        return self if table is self.base else replace(self, base=table)

    def domain(self, column: Column, made: Callable[[], KeyDomain]) -> KeyDomain:
        """The groups of a column, ``made`` for the first statement that groups by it."""
        held = self._domains.get(column.name)
        if held is None or held[0] is not column:  # a joined column is another one in each statement
            held = self._domains[column.name] = column, made()
        return held[1]

    def named(self, name: str) -> Column:
        """The column of that name, stored or computed."""
        found = self._by_name.get(fold(name))
        return self.base.columns[fold(name)] if found is None else found

    def holding(self, part: Stored) -> Column | None:
        """The column, of the table or of a join, that is the stored column ``part``."""
        if not part.source:
            found = self.base.columns.get(fold(part.name))
            return found if found is not None and found.value is None else None
        return next((column for column in self.base.columns.values() if column.value == part), None)

    @property
    def values(self) -> list[Value]:
        """What is computed for each row."""
        return [value for value, _ in self._columns]

    def table(self) -> Table:
        """The table with the computed columns beside its own."""
        if not self._columns:
            return self.base
        return replace(self.base, columns={**self.base.columns, **self._by_name})
