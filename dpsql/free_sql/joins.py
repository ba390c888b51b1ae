"""Joins: the most rows that the tables of FROM can be joined to.

Tables are taken one after the other. A table multiplies the rows by the largest number of its rows that agree in the
columns that equalities compare with earlier tables (its multiplicity), or by all its rows where there are none. Every
order gives an upper bound; the least one counts. An outer join also gives rows in which one side is NULL. For these
its right tables come after its left ones, where a left row has one such row only if nothing matches it; and the right
rows of a FULL JOIN that nothing matches are a case of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

from .extents import times

AROUND = -1
"""The number of the rows that stand around a correlated query, which count as one more table."""
CONSTANT = -2
"""The number of the constants that columns are compared with, which count as one table of one row."""
_MOST_CASES = 64
_MOST_STARTS = 8

Column: TypeAlias = "tuple[int, str]"
"""The number of a table and the name of one of its columns; no name where the comparison casts it to fewer values."""
Equality: TypeAlias = "tuple[tuple[Column, Column], ...]"
"""An equality of two columns: the pairs of columns that it may mean, one unless USING gives a name to several."""


@dataclass(frozen=True)
class Case:
    """Rows of a join in which these tables are not NULL, if the join does not say otherwise.

    ``before``: the tables that come before a table. ``once``: tables with one row at most for each row before.
    """

    tables: tuple[int, ...] = ()
    equalities: tuple[Equality, ...] = ()
    before: Mapping[int, frozenset[int]] = field(default_factory=dict)
    once: frozenset[int] = frozenset()


def where(cases: Sequence[Case], equalities: Sequence[Equality]) -> list[Case]:
    """The cases that are left by equalities of all rows: none in which one compares NULL."""
    cases_left = []
    for case in cases:
        present = {*case.tables, AROUND, CONSTANT}
        if all(any(a in present and b in present for (a, _), (b, _) in one) for one in equalities):
            cases_left.append(replace(case, equalities=(*case.equalities, *equalities)))
    return cases_left


def join(left: Sequence[Case], right: Sequence[Case], kind: str, equalities: Sequence[Equality]) -> list[Case] | None:
    """The cases of a join; None where there are too many.

    ``kind``: INNER, LEFT, RIGHT, FULL, or ONCE where a left row has one right row at most.
    """
    if kind == "RIGHT":
        return join(right, left, "LEFT", equalities)
    if len(left) * len(right) + len(right) > _MOST_CASES:
        return None
    both = [
        Case(
            (*a.tables, *b.tables), (*a.equalities, *b.equalities), {**a.before, **b.before}, frozenset(a.once | b.once)
        )
        for a in left
        for b in right
    ]
    if kind == "INNER":
        return where(both, equalities)
    first = frozenset(table for case in left for table in case.tables)
    matched = []
    for case in both:
        second = [table for table in case.tables if table not in first]
        mine = first & set(case.tables)
        # An equality of left columns alone does not remove left rows.
        of_right = [tuple(pair for pair in one if not {pair[0][0], pair[1][0]} <= mine) for one in equalities]
        matched.append(
            replace(
                case,
                equalities=(*case.equalities, *(one for one in of_right if one)),
                before={**case.before, **{table: mine | case.before.get(table, frozenset()) for table in second}},
                once=case.once | set(second) if kind == "ONCE" else case.once,
            )
        )
    return matched + list(right) if kind == "FULL" else matched


def most_rows(
    cases: Sequence[Case], rows: Mapping[int, float], multiplicity: Callable[[int, frozenset[str]], float]
) -> float:
    """The most rows of all cases; ``multiplicity``: the most rows of a table that agree in columns."""
    return sum(_rows_of(case, rows, multiplicity) for case in cases)


def _rows_of(case: Case, rows: Mapping[int, float], multiplicity: Callable[[int, frozenset[str]], float]) -> float:
    tables = [*case.tables, *(table for table in (AROUND, CONSTANT) if table in rows)]
    compared: dict[int, list[Column]] = {table: [] for table in tables}
    for a, b in (pair for one in case.equalities for pair in one):
        if a[0] in compared and b[0] in compared and a[0] != b[0]:
            compared[a[0]] += [b] if b[1] else []
            compared[b[0]] += [a] if a[1] else []
    starts = sorted(
        (table for table in tables if not case.before.get(table)), key=lambda table: (table != CONSTANT, -rows[table])
    )
    least = inf
    for start in starts[:_MOST_STARTS]:
        least = min(least, _from_start(start, case, tables, compared, rows, multiplicity))
    return least if tables else 1.0


def _from_start(
    start: int,
    case: Case,
    tables: Sequence[int],
    compared: Mapping[int, Sequence[Column]],
    rows: Mapping[int, float],
    multiplicity: Callable[[int, frozenset[str]], float],
) -> float:
    """The rows if ``start`` is the first table and each next one is the one that multiplies them least."""
    factors = {table: 1.0 if table in case.once else rows[table] for table in tables}
    columns: dict[int, frozenset[str]] = dict.fromkeys(tables, frozenset())
    waits = {table: len(case.before.get(table, ())) for table in tables}
    product, table = 1.0, start
    while True:
        product = times(product, factors.pop(table))
        for other, column in compared[table]:
            if other in factors and other not in case.once:
                columns[other] |= {column}
                factors[other] = min(factors[other], multiplicity(other, columns[other]))
        for other in factors:
            waits[other] -= table in case.before.get(other, ())
        if not factors:
            return product
        table = min((other for other in factors if not waits[other]), key=factors.__getitem__)
