"""Terms: what one table's queries count and sum, group by group, and the axes that this needs.

A batch is compiled in one of two ways (``compile`` and ``structured``). Both read a term alike: an output sums
coefficient x rows, or coefficient x (middle x rows + half width x centred sum), over the rows where the term's
condition holds, the summed column is not NULL and the row is in the group. Blocks take rows with NULL in, too, where
their centred sum is that of 0 (``Measure.at_null``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dpsql.errors import SQLError
from dpsql.policy.values import fold
from dpsql.workloads.expr.batch import CaseKey, Query, Table, Term
from dpsql.workloads.expr.conditions import Condition, Like, LineAtom, OpaqueAtom, Predicate, atoms
from dpsql.workloads.expr.measures import MAX_STEPS, Measure, measure_of
from dpsql.workloads.expr.regions import AxisTruths, IntArray, KeyDomain, line_axis, opaque_axis


class Measures:
    """The measures of one table, in the order in which its terms first need them.

    ``distinguished``: the columns that tell rows apart anyway. A NULL in any other adds what 0 adds where 0 is on the
    measure's grid, so that it need not be told apart; None where every NULL is.
    """

    def __init__(self, table: Table, distinguished: Collection[object] | None = None) -> None:
        self.table = table
        self.distinguished = distinguished
        self.found: dict[tuple[str, int], Measure] = {}

    def of(self, term: Term) -> Measure | None:
        """What a term sums; None for a count."""
        if term.column is None:
            return None
        column = self.table.columns[fold(term.column)]
        policy = column.policy
        if (term.column, term.power) not in self.found:
            lower, upper = column.ends
            measure = measure_of(
                *(term.column, column.line, lower, upper, policy.step),
                self.table.policy.key("columns", column.name),
                term.power,
            )
            # Of a column with values of its own, or only some of them, rows of others are in no cell, as NULL is.
            free = self.distinguished is not None and term.column not in self.distinguished and column.closed is None
            if policy.nulls and free:
                measure = replace(measure, at_null=measure.at_zero)
            self.found[term.column, term.power] = measure
        return self.found[term.column, term.power]

    def not_null(self, term: Term) -> Condition | None:
        """Where the summed column is not NULL, if the policy allows NULL there and it is told apart."""
        measure = self.of(term)
        if measure is None or measure.at_null is not None:
            return None
        column = self.table.columns[fold(measure.column)]
        return LineAtom(column.name, ((None, None),)) if column.policy.nulls else None

    def place(self, measure: Measure) -> int:
        """The number of a measure, from 1."""
        return 1 + list(self.found).index((measure.column, measure.power))


def summed(queries: Iterable[Query], tables: Mapping[str, Table]) -> Iterator[Measure]:
    """The measures that queries sum of rows of tables, not of what is computed of all rows of a unit."""
    for query in queries:
        table = tables[query.table]
        if table.source is None or table.source.of is None:
            measures = Measures(table)
            found = (measures.of(term) for output in query.outputs for term in output.terms)
            yield from (measure for measure in found if measure is not None)


def case_groups(query: Query) -> Iterator[tuple[tuple[Condition, ...], IntArray]]:
    """For each combination of the query's case groups: their conditions, and the row of each label over the other keys.

    Labels and rows count groups with the last key running fastest.
    """
    sizes = [len(key) for key in query.keys]
    row = np.arange(query.rows).reshape(sizes)
    cased = [at for at, key in enumerate(query.keys) if isinstance(key, CaseKey)]
    for chosen in itertools.product(*(range(sizes[at]) for at in cased)):
        where: list[int | slice] = [slice(None)] * len(sizes)
        conditions: list[Condition] = []
        for at, group in zip(cased, chosen, strict=True):
            key = query.keys[at]
            assert isinstance(key, CaseKey)  # noqa: S101 - narrows the type for the checker
            where[at] = group
            conditions.append(key.conditions[group])
        yield tuple(conditions), row[tuple(where)].ravel()


def axes_of(table: Table, conditions: Iterable[Condition], keys: Mapping[str, KeyDomain]) -> list[AxisTruths]:
    """The axes that conditions and keys of one table tell apart: opaque predicates, then columns."""
    on_line: dict[str, list[LineAtom]] = {name: [] for name in keys}
    opaque: dict[Predicate, None] = {}
    for condition in conditions:
        for atom in atoms(condition):
            if isinstance(atom, OpaqueAtom):
                opaque[atom.predicate] = None
            else:
                on_line.setdefault(atom.column, []).append(atom)
    axes = [opaque_axis(p, table.columns[fold(p.column if isinstance(p, Like) else p.left)].line) for p in opaque]
    for name, found in on_line.items():
        column = table.columns[fold(name)]
        axes.append(line_axis(name, column.line, found, closed=column.closed, nulls=column.nulls, keys=keys.get(name)))
    return axes


def distinguished_columns(queries: Iterable[Query]) -> set[object]:
    """The columns that keys, conditions or squares of queries over one table look at, besides what they sum."""
    found: set[object] = set()
    for query in queries:
        found.update(key.column for key in query.keys if isinstance(key, KeyDomain))
        conditions = [held for key in query.keys if isinstance(key, CaseKey) for held in key.conditions]
        for output in query.outputs:
            conditions.extend(term.condition for term in output.terms)
            found.update(term.column for term in output.terms if term.power != 1)
        for atom in (atom for condition in conditions for atom in atoms(condition)):
            if isinstance(atom, LineAtom):
                found.add(atom.column)
            else:
                predicate = atom.predicate
                found.update([predicate.column] if isinstance(predicate, Like) else [predicate.left, predicate.right])
    return found


def keys_of(queries: Iterable[Query]) -> dict[str, KeyDomain]:
    """The key columns of queries over one table, by name."""
    return {key.column: key for query in queries for key in query.keys if isinstance(key, KeyDomain)}


def common_unit(values: Sequence[Fraction], name: str) -> Fraction:
    """The largest unit of which all values are integer multiples."""
    if not values:
        return Fraction(1)
    values = list(dict.fromkeys(values))
    denominator = math.lcm(*(value.denominator for value in values))
    numerators = [int(value * denominator) for value in values]
    unit = Fraction(math.gcd(*numerators), denominator)
    if max(abs(value / unit) for value in values) > MAX_STEPS:
        raise SQLError(
            f"the coefficients and bounds of {name} differ too finely (beyond 2^40 of their common unit): "
            "use rounder coefficients or bounds"
        )
    return unit
