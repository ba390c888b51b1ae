"""Tables of a batch: what one scan reads for all statements about a table, and units counted instead of rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from dpsql.common.numerics import HALF_FIT, SUM_BITS
from dpsql.errors import InternalError, PolicyError
from dpsql.policy import ColumnPolicy
from dpsql.policy.values import fold
from dpsql.workloads.expr.batch import CaseKey, Column, Key, OneUnit, Query, Table, unit_sum_name
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.conditions import FALSE, And, Condition, LineAtom, gather, union
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.measures import measure_of
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.rows import Each, RowSource
from dpsql.workloads.expr.rows import united as united_sources
from dpsql.workloads.expr.unit_sums import SumBound, UnitSum

_MOST_GROUPS, _MOST_COUNTS = 10_000, 100  # up to which counts of units are joined: more take long to tell apart


def distinct_table(table: Table, condition: Condition, keys: Sequence[Key], each: Each | None = None) -> Table:
    """``table`` as units, or as the values of ``each``, counted where a row satisfies ``condition``.

    One Query over it has these keys and one count. The name is fresh, one for equal tables, conditions, keys and what
    is counted. Each unit counts in at most ``max_rows_per_unit`` groups, and not where it is NULL; each value once in
    a group. Groups must not overlap (compile refuses them). Raises InternalError where a table of single rows has no
    unit to count.
    """
    if table.source is None or (table.source.unit is None and each is None):
        raise InternalError(f"{table.name} has no unit to count")
    asked = _signature(keys)
    if each is not None:
        mark = hashlib.sha256(repr((condition, asked, each)).encode()).hexdigest()[:16]
        source = replace(table.source, distinct=True, each=each)
        return replace(table, name=f"{table.name} by {each.column} #{mark}", source=source)
    assert table.source.unit is not None  # noqa: S101 - asked before
    mark = hashlib.sha256(repr((condition, asked)).encode()).hexdigest()[:16]
    name = f"{table.name} by {table.source.unit.name} #{mark}"
    return replace(table, name=name, source=replace(table.source, distinct=True))


def _signature(keys: Sequence[Key]) -> list[tuple[object, ...]]:
    return [
        (key.name, key.labels, key.conditions) if isinstance(key, CaseKey) else (key.column, len(key)) for key in keys
    ]


def sums_table(table: Table, condition: Condition, keys: Sequence[Key], column: Column) -> Table:
    """``table`` as what each unit adds to the sum of ``column`` where a row satisfies ``condition``, within its bounds.

    One Query over it has these keys, whose groups must not overlap, and one sum, of the column ``unit_sum_name``: what
    the bounds let one unit add in a group, in whole steps. Raises InternalError where there is no bound.
    """
    source, bounds = table.source, table.bounds_on(column)
    if source is None or not bounds:
        raise InternalError(f"{table.name} bounds no sum of {column.name}")
    added = _unit_sum(table, column, bounds, keys, source.limit)
    source = replace(source, distinct=True, added=added)
    most = Fraction(added.in_cell) * added.row.step * added.stride
    name, steps = unit_sum_name(column), 2 * added.in_cell
    line = Line("grid", "BIGINT", 0, steps)
    policy = ColumnPolicy(name, lower=-most, upper=most, step=2 * most / steps, nulls=False)
    columns = {**table.columns, fold(name): Column(name, "DOUBLE", line, policy)}
    mark = hashlib.sha256(repr((condition, _signature(keys), added)).encode()).hexdigest()[:16]
    return replace(table, name=f"{table.name} by unit and {column.name} #{mark}", columns=columns, source=source)


def _unit_sum(table: Table, column: Column, bounds: Sequence[OneUnit], keys: Sequence[Key], limit: int) -> UnitSum:
    """The sum and its bounds in whole steps, none of which is exceeded by rounding."""
    lower, upper = column.ends
    row = measure_of(column.name, column.line, lower, upper, column.policy.step, column.policy.where)
    lower, upper = lower // row.step * row.step, -(-upper // row.step) * row.step  # 0 is on the grid
    row = replace(row, lower=lower, upper=upper)
    largest = max(max(-one.lower, one.upper) for one in bounds)
    stride = max(1, math.ceil(largest / row.step / HALF_FIT))
    step, limits = row.step * stride, list[SumBound]()
    inside = [one.cap is None or any(_within(key, one.cap, table) for key in keys) for one in bounds]
    # A cell is one group of such a bound; by groups of others the rows of a cell are told apart.
    is_cell = [
        not keys if one.cap is None else within and len(keys) == 1 and _is_cap(keys[0], one.cap)
        for one, within in zip(bounds, inside, strict=True)
    ]
    told_by = [one for one, whole in zip(bounds, is_cell, strict=True) if one.cap is not None and not whole]
    for one, within, whole in zip(bounds, inside, is_cell, strict=True):
        alone = (whole and not told_by) or (not keys and told_by == [one])
        grouped = one.cap is not None and not (whole and alone)
        ends = -int(-one.lower // step), int(one.upper // step)
        limits.append(SumBound(*ends, one.cap, within, alone=alone, grouped=grouped, text=one.text))
    if max(abs(lower), abs(upper)) / row.step >= 2**SUM_BITS:
        raise PolicyError(
            f"{table.policy.key('at_most')}: values of {column.name} are of more than 2^{SUM_BITS} steps of "
            f"{float(row.step):.6g}; declare a larger step"
        )
    if any(one.most == 0 for one in limits):
        raise PolicyError(
            f"{table.policy.key('at_most')}: a bound on the sum of {column.name} is below its step, {float(step):.6g}; "
            "write a larger one, or declare a smaller step"
        )
    return UnitSum(row, stride, tuple(limits), None if any(one.cap is None for one in bounds) else limit)


def joined_counts(queries: Iterable[Query], tables: Mapping[str, Table]) -> dict[str, Table]:
    """By the names of tables of units counted (``distinct_table``) the one table that stands for all over a source.

    Where they are by the same keys and their conditions differ in one column, whose values exclude each other, as years
    do: no row has its unit counted twice, so that one scan with all their groups counts it in the groups of the same
    rows. Up to ``_MOST_COUNTS`` counts of ``_MOST_GROUPS`` groups.
    """
    counts: dict[RowSource, dict[str, Query]] = {}
    for query in queries:
        source = tables[query.table].source
        if source is not None and source.counts_units:
            counts.setdefault(source, {}).setdefault(query.table, query)
    found: dict[str, Table] = {}
    for mates in counts.values():
        few = 2 <= len(mates) <= _MOST_COUNTS and sum(query.rows for query in mates.values()) <= _MOST_GROUPS
        if not few or not all(_disjoint(*pair) for pair in combinations(mates.values(), 2)):
            continue
        base = next(iter(mates)).rpartition("#")[0]
        marks = sorted(name.rpartition("#")[2] for name in mates)
        name = f"{base}#{hashlib.sha256(repr(marks).encode()).hexdigest()[:16]}"
        found |= {mate: replace(tables[mate], name=name) for mate in mates}
    return found


def _condition(query: Query) -> Condition | None:
    """The condition under which rows have their unit counted; None where ranges are asked for."""
    terms = [term for output in query.outputs for term in output.terms]
    return None if len(terms) != 1 or not all(key.listed for key in query.keys) else terms[0].condition


def _disjoint(query: Query, other: Query) -> bool:
    """Whether two counts of units by the same keys are of rows that no row is among both of, by one column."""
    if query.keys != other.keys:
        return False
    conditions = [condition for condition in (_condition(query), _condition(other)) if condition is not None]
    if len(conditions) < 2:
        return False
    one, two = (set(condition.operands if isinstance(condition, And) else (condition,)) for condition in conditions)
    differ = [*(one - two), *(two - one)]
    lines = [part for part in differ if isinstance(part, LineAtom)]
    if len(lines) != 2 or len(differ) != 2 or lines[0].column != lines[1].column:
        return False
    return gather(And, *lines) == FALSE


def one_row_each(table: Table, keys: Sequence[Key]) -> bool:
    """Whether at most one row of a unit counts in each group of the keys, and no unit is NULL: then rows count units.

    By a bound of ``at_most`` on one of the keys, and ``nulls = false`` on the unit's column.
    """
    source = table.source
    if source is None or source.unit is None or source.path:
        return False
    declared = {fold(name): column for name, column in table.policy.columns.items()}.get(fold(source.unit.name))
    if declared is None or declared.nulls:
        return False
    return any(cap.rows == 1 and any(_within(key, cap, table) for key in keys) for cap in source.caps)


def _within(key: Key, cap: Cap, table: Table) -> bool:
    """Whether each group of the key lies in one group of the bound."""
    if isinstance(key, KeyDomain):
        column = table.columns.get(key.column)
        same = column is not None and column.value == cap.value
        return same and not key.other and (cap.value is not None or key.column == cap.column)
    if isinstance(key, CaseKey):
        column = table.columns.get(cap.column)
        groups = (*cap.parts, LineAtom(cap.column, (), on_null=True))
        return (
            column is not None
            and column.value == cap.value
            and all(
                group in groups or any(gather(And, group, whole) == group for whole in groups)
                for group in key.conditions
            )
        )
    return False


def _is_cap(key: Key, cap: Cap) -> bool:
    """Whether each group of the bound has one group of the key, which lies within them, at most."""
    return not isinstance(key, CaseKey) or {*key.conditions} <= {*cap.parts, LineAtom(cap.column, (), on_null=True)}


def united(tables: Iterable[Table]) -> dict[str, Table]:
    """One table for each name, with the columns and joins of all tables of that name.

    Raises InternalError where two of them mean different things by one column.
    """
    found: dict[str, dict[int, Table]] = {}
    for table in tables:
        found.setdefault(table.name, {})[id(table)] = table
    return {name: _union(list(mates.values())) for name, mates in found.items()}


def chosen_once(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables of a batch, of which those take the least row of a unit that another one finds a row of.

    Where no scan finds rows of a table, which of several rows with one key counts need not be the same for all scans,
    and no more columns are read for it than the batch asks of.
    """
    found, waiting = set[str](), [table.source for table in tables.values() if table.source is not None]
    while waiting:
        source = waiting.pop()
        found |= {fold(join.table) for join in source.joins if join.private}
        waiting += [units.of for units in (source.of, *(join.of for join in source.joins)) if units is not None]
    return {
        name: table
        if table.source is None or not table.source.order or fold(table.source.table) in found
        else replace(table, source=replace(table.source, order=()))
        for name, table in tables.items()
    }


def _union(tables: Sequence[Table]) -> Table:
    if len(tables) == 1:
        return tables[0]
    columns: dict[str, Column] = {}
    for table in tables:
        for name, column in table.columns.items():
            before = columns.setdefault(name, column)
            if before is not column and (before.value, before.type, before.line) != (
                column.value,
                column.type,
                column.line,
            ):
                raise InternalError(f"two columns of {table.name} are named {column.name}")
            if before.only != column.only:
                both = None if before.only is None or column.only is None else union([*before.only, *column.only])
                columns[name] = replace(before, only=both)
    sources = list(dict.fromkeys(table.source for table in tables if table.source is not None))
    return replace(tables[0], columns=columns, source=united_sources(sources) if sources else None)
