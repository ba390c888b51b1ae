"""Counts by a column whose values were found: the discovery measured them, so that asking for them is free.

Post-processing. A discovery counts rows, where a row is the unit, else units, each in at most so many values. Such a
count of each found value is in its release, with an interval given that the value was shown. It answers a batch that
asks for nothing else: of each group of the column COUNT(*), or COUNT(DISTINCT unit) where that counts a unit in no more
groups. How many rows are in the groups OTHER and NULL the discovery did not measure: their numbers are NULL. Noise of
values that passed a threshold has another law than that of a measurement, so these counts combine with none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dpsql.common.arrays import Json
from dpsql.common.numerics import ALPHA
from dpsql.planning.prepare import Prepared, cores_of
from dpsql.policy import Policy
from dpsql.policy.types import Schemas
from dpsql.policy.units import units_in
from dpsql.policy.values import fold
from dpsql.privacy.entries import Entry
from dpsql.release import ReleaseTable
from dpsql.release.books import Books
from dpsql.release.payload import unpack
from dpsql.running.counted import Counted
from dpsql.running.found_domains import KIND, parts_of, values_in
from dpsql.sql import table_of
from dpsql.sql.resolve.row_sources import source_of
from dpsql.workloads.expr.batch import Core, KeyOutput, Measured, Term
from dpsql.workloads.expr.conditions import Constant
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.rows import RowSource

_EVERY = (Term(Fraction(1), Constant(True)),)  # every row or unit, once


def counted_before(prepared: Prepared, policy: Policy, schemas: Schemas, books: Books, alpha: float) -> Counted | None:
    """The answers of a batch that asks for nothing but what discoveries of this data version counted; else None."""
    compiled = prepared.compiled.matrix
    if compiled is None or alpha != ALPHA:
        return None
    figures = np.full((4, compiled.numbers), np.nan)
    rests_on = set[int]()
    for core, slices in cores_of(prepared.understood.answers, compiled.spans):
        source = next(layout.source for layout in compiled.layouts if layout.table == core.queries[0].table)
        column = _counted_column(core, source, policy, schemas)
        units = units_in(policy.tables, source.tables)
        unseen = np.nan if policy.tables[source.table].minimum is None else 0.0  # which that hides again
        newest = None if column is None else _newest(books, *column, units, unseen)
        if newest is None:
            return None
        entry, shown = newest
        key = core.keys[0]
        assert isinstance(key, KeyDomain)  # noqa: S101 - as was asked
        for part in slices:
            for at, value in enumerate(key.values):
                figures[:, part.start + at] = shown.get(value, (np.nan,) * 4)
        rests_on.add(entry.id)
    if not rests_on:
        return None
    values, errors, low, high = figures
    return Counted(prepared.understood.answers, compiled, values, errors, low, high, tuple(sorted(rests_on)))


def _counted_column(core: Core, source: RowSource, policy: Policy, schemas: Schemas) -> tuple[str, str, int] | None:
    """Table and column, where a core asks for counts by that column alone, and in how many groups a unit counts."""
    (key, *more), name = core.keys or (None,), source.table
    plain = all(isinstance(column, KeyOutput | Measured) for column in core.columns)
    counts = all(out.terms == _EVERY and not out.constant for out in core.outputs)
    if more or not isinstance(key, KeyDomain) or not plain or not counts or len(core.queries) > 1:
        return None
    tables = {table: table_of(held, schemas[table]) for table, held in policy.tables.items()}
    whole = source_of(tables[name], policy, tables)
    if source.distinct != (whole.unit is not None) or source.only is not None:
        return None
    if replace(source, distinct=False, limit=whole.limit, protects=whole.protects) != replace(whole, distinct=False):
        return None
    return name, key.column, source.limit


Counts = Mapping[object, tuple[float, ...]]
"""Of each value its count, the standard error of that, and the ends of its interval."""


def _newest(
    books: Books, table: str, column: str, groups: int, units: Mapping[str, str], unseen: float
) -> tuple[Entry, Counts] | None:
    """The newest discovery of a column's values on this version of the data, if it counts ``units`` in so many groups;
    those of before a policy had others are not asked for.
    """
    for entry in reversed(books.entries()):
        if entry.released is None or entry.dataset != books.dataset or entry.description.get("kind") != KIND:
            continue
        for part in parts_of(entry):
            mine = fold(str(part["table"])) == fold(table) and fold(str(part["column"])) == fold(column)
            if mine and not part.get("bounds"):
                if int(part.get("groups", 0)) < groups or entry.description.get("units") != dict(units):
                    return None
                tables = unpack(books.ledger().release(entry.id).payload or b"")[0].listed
                shown = next(one for one in tables if one.name == part["name"])
                return entry, dict(_counts(shown, part, unseen))
    return None


def _counts(shown: ReleaseTable, part: Json, unseen: float) -> Iterator[tuple[object, tuple[float, ...]]]:
    """Value, standard error and the ends of the interval of each found value; ``unseen`` of one that was hidden."""
    _, number, error, low, high, *_ = (values for _, _, values in shown.columns)
    for value, *figures in zip(values_in(shown, str(part["type"])), number, error, low, high, strict=True):
        yield value, tuple(unseen if figure is None else float(figure) for figure in figures)
