"""The FROM clause of a scan that adds up what each unit has in each cell, within bounds.

What must hold is proved in ``dpsql.workloads.expr.unit_sums``; that it is what this text does:

- Rows are grouped by unit, cell and the groups of bounds, and added up as HUGEINT, which so many numbers below 2^61
  cannot overflow. Rows in no cell add 0, and are in the groups all the same: no condition leaves a row out.
- Each sum is clamped, and then rounded to steps of the bounds, so that it is below 2^30 and a BIGINT.
- Of more than ``limit`` sums those in a cell come first, in the order of a hash over unit, cell and groups.
- Where sums share a bound, their absolute values are added up by a window over the unit, and the group. A sum above the
  bound is scaled by whole numbers: the product of a sum and a bound is below 2^62.

NULL is a unit like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.errors import InternalError
from dpsql.measure.from_sql import UNIT, CapColumn, hashed, within
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.scan import Column, Relation, Select, same
from dpsql.workloads.expr.unit_sums import UnitSum

CELL, SUM, TOTAL = "a0", "u0", "dpsql_total"


def added_up(
    source: RowSource, rows: Relation, columns: Sequence[Column], caps: Sequence[CapColumn], cells: int
) -> Select:
    """A row for each unit and cell: ``CELL``, -1 for none, and ``SUM``, z' + steps of the measure of the source.

    ``rows`` are those of ``owned_values``, ``columns`` the cell and the steps of a row of them; ``caps`` say in which
    groups of the bounds that sums share it is; there are ``cells``.
    """
    added = source.added
    if added is None:
        raise InternalError(f"{source.table}: no sums of units are asked for")
    groups = [cap.name for cap in caps]
    select = Select((*same(UNIT), *columns, *((cap.name, cap.group) for cap in caps)), rows)
    select = _clamped(select, groups, added)
    if added.limit is not None and cells * _combinations(added) > added.limit:
        order = (_nowhere(), hashed(UNIT, CELL, *groups), *map(tree.Name, (CELL, *groups)))
        place = tree.Window("row_number", (), (tree.Name(UNIT),), order)
        select = within(select, [UNIT, CELL, *groups, SUM], place, added.limit)
    names = iter(groups)
    for bound in added.bounds:
        shared = [UNIT, next(names)] if bound.grouped else [UNIT]
        if not bound.alone:
            select = _scaled(select, [UNIT, CELL, *groups, SUM], shared, bound.most)
    if groups:
        select = Select((*same(UNIT, CELL), (SUM, tree.Cast(_sum(), "BIGINT", bare=True))), select, group_by=2)
    steps = tree.bare("*", tree.bare("+", tree.Name(SUM), tree.long(added.in_cell)), tree.long(2))
    return Select((*same(CELL), (SUM, steps)), select)


def _combinations(added: UnitSum) -> int:
    """How many groups of bounds a cell's rows may be in."""
    count = 1
    for cap in added.caps:
        count *= cap.axis.size
    return count


def _nowhere() -> tree.Value:
    """1 where a sum is in no cell, else 0."""
    return tree.CaseValue(
        ((tree.Compared(tree.Name(CELL), ">=", tree.whole(0)), tree.whole(0)),), tree.whole(1), "INTEGER"
    )


def _sum() -> tree.Value:
    return tree.bare("sum", tree.Name(SUM), type="HUGEINT")


def _clamped(rows: Select, groups: Sequence[str], added: UnitSum) -> Select:
    """One sum for each unit, cell and groups, 0 in no cell, clamped and rounded to the steps of the bounds."""
    inside = tree.Compared(tree.Name(CELL), ">=", tree.whole(0))
    counted = tree.CaseValue(((inside, tree.Name(SUM)),), tree.long(0), "BIGINT")
    names = same(UNIT, CELL, *groups)
    summed = Select((*names, (SUM, counted)), rows)
    summed = Select((*names, (SUM, _sum())), summed, group_by=len(names))
    least, most = (tree.Constant(end * added.stride, "HUGEINT") for end in (added.lower, added.upper))
    clamped = tree.bare("least", tree.bare("greatest", tree.Name(SUM), least, type="HUGEINT"), most, type="HUGEINT")
    if added.stride == 1:
        return Select((*names, (SUM, tree.Cast(clamped, "BIGINT", bare=True))), summed)
    # Rows of 2^61 steps add up to more than a BIGINT holds, and bounds may be as high: it is one once it is divided.
    half, stride = (tree.Constant(steps, "HUGEINT") for steps in (added.stride // 2, added.stride))
    whole = tree.bare("+", tree.bare("abs", clamped, type="HUGEINT"), half, type="HUGEINT")
    size = tree.Cast(tree.bare("//", whole, stride, type="HUGEINT"), "BIGINT", bare=True)
    return Select((*names, (SUM, _signed(size))), summed)


def _signed(size: tree.Value) -> tree.Value:
    """``size`` with the sign of the sum."""
    below = tree.Compared(tree.Name(SUM), "<", tree.whole(0))
    return tree.CaseValue(((below, tree.bare("*", size, tree.long(-1))),), size, "BIGINT")


def _scaled(rows: Select, names: Sequence[str], shared: Sequence[str], most: int) -> Select:
    """The sums scaled where those of one ``shared`` group are above ``most`` together."""
    size = tree.bare("abs", tree.Name(SUM))
    # Of so many cells as are listed the total is below 2^62.
    total = tree.Window("sum", (size,), tuple(map(tree.Name, shared)), type="HUGEINT")
    totals = Select((*same(*names), (TOTAL, tree.Cast(total, "BIGINT", bare=True))), rows)
    part = tree.bare("//", tree.bare("*", size, tree.long(most)), tree.Name(TOTAL))
    above = tree.Compared(tree.Name(TOTAL), ">", tree.long(most))
    scaled = tree.CaseValue(((above, _signed(part)),), tree.Name(SUM), "BIGINT")
    return Select((*same(*(name for name in names if name != SUM)), (SUM, scaled)), totals)
