"""COUNT(DISTINCT ...) of values: how many values there can be in a cell, by what the batch says of the rows in it.

A row is in a cell only if its values have regions on all axes. Where an axis is over the very column that is counted,
the values in a cell are those of the regions that lead to it; what is computed of some columns, and of nothing else,
has no more values than combinations of theirs. Regions leave out what the policy and the conditions leave out, since
the scan does: no word of the policy is trusted. A value that several cells of one entry have counts once.

**Claim.** In an entry of x with at most d values a unit with at most k rows that count adds a number from 0 to min(d,
k), and to all entries together at most k. How much of that it adds is up to the other units, entry by entry: a value
that one of these has, too, counts without it. So whatever lies between 0 and what its rows could add is a contribution,
in each entry by itself.

**Proof.** The number of values of an entry is that of a union: adding rows adds those of their values that were not
there. They are at most the values of these rows, and at most d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from dpsql.common.arrays import Floats, Ints
from dpsql.policy.values import fold
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.expr.related import Function
from dpsql.workloads.expr.rows import Each
from dpsql.workloads.expr.values import Stored, Value, stored

_MOST_LISTED = 2_000  # extreme contributions


def values_of(each: Each, cells: object, entry: Ints, values: Mapping[str, Value]) -> tuple[Ints, Floats]:
    """The entries of x that count values of ``each``, and how many values each can have at most (inf).

    ``entry`` (cells,): the entry of each of ``cells``, -1 for none; ``values``: what the scan computes, by column.
    """
    entries = np.unique(entry[entry >= 0])
    most = np.full(entries.size, inf)
    if not isinstance(cells, Cells):
        return entries, most
    axes = {at: axis for at, axis in enumerate(cells.axes) if isinstance(axis, LineAxis)}
    for at, axis in axes.items():
        if (axis.column, axis.line, values.get(axis.column)) == (each.column, each.line, each.value):
            most = _values_on(cells, at, axis, entry, entries)
    if each.value is not None and Function(each.value, "", ()).follows:
        combined = np.ones(entries.size)
        for column in stored(each.value):
            found = next((at for at, axis in axes.items() if _is_over(axis, column, values)), None)
            combined *= inf if found is None else _values_on(cells, found, axes[found], entry, entries)
        most = np.minimum(most, combined)
    return entries, np.where(most < 2.0**53, most, inf)


def _is_over(axis: LineAxis, column: Stored, values: Mapping[str, Value]) -> bool:
    """Whether an axis cuts a stored column."""
    value = values.get(axis.column, Stored(axis.column, ""))
    return isinstance(value, Stored) and (value.source, fold(value.name)) == (column.source, fold(column.name))


def _values_on(cells: Cells, place: int, axis: LineAxis, entry: Ints, entries: Ints) -> Floats:
    """How many values, NULL among them, rows of each of ``entries`` can have on one axis, at least 1."""
    pairs = cells.cells_of([at == place for at in range(len(cells.axes))])
    if pairs is None:
        return np.full(entries.size, inf)
    region, cell = pairs  # all regions of one axis are combinations, numbered as they are
    counted = entry[cell] >= 0
    met = np.unique(np.stack([np.searchsorted(entries, entry[cell[counted]]), region[counted]]), axis=1)
    return np.bincount(met[0], weights=_sizes(axis)[met[1]], minlength=entries.size).clip(1)


def _sizes(axis: LineAxis) -> Floats:
    """How many values each region of an axis has, NULL among them."""
    sizes = np.zeros(axis.size)
    least, greatest = axis.line.ends
    for low, high, region in zip((None, *axis.cuts), (*axis.cuts, None), axis.pieces.tolist(), strict=True):
        if region < 0:
            continue
        if axis.line.discrete:
            first, last = least if low is None else low[0], greatest if high is None else high[0] - 1
            sizes[region] += inf if first is None or last is None else max(0, last - first + 1)
        elif low is not None and high is not None and low[0] == high[0]:  # one value alone, but of 0.0 there are two
            sizes[region] += 1 + (low[0] == 0.0)
        else:
            sizes[region] += inf
    if axis.null_region >= 0:
        sizes[axis.null_region] += 1
    return sizes


def extremes(limits: Sequence[int], rows: int, most: int) -> list[dict[int, int]] | None:
    """The corners, but for 0, of all c >= 0 with c_i <= ``limits``[i], a sum of at most ``rows`` and ``most`` entries
    that are not 0; None where they are many.

    All of ``limits`` are at most ``rows``. A corner has some entries at their limits, and where the rows do not suffice
    for one more, what is left of them in one other.
    """
    found: list[dict[int, int]] = []
    stack: list[tuple[int, dict[int, int], int]] = [(0, {}, rows)]
    while stack:
        start, full, left = stack.pop()
        if full:
            found.append(full)
        if len(full) < most and left:
            found += [{**full, i: left} for i, limit in enumerate(limits) if limit > left and i not in full]
            more = [i for i in range(start, len(limits)) if limits[i] <= left]
            stack += [(i + 1, {**full, i: limits[i]}, left - limits[i]) for i in more]
        if len(found) + len(stack) > _MOST_LISTED:
            return None
    return found
