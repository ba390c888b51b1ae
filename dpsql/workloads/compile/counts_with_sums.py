"""What one unit adds to counts of rows and, beside them, to sums of the same rows within bounds (``UnitSum``).

Of a unit's N_g rows in group g the scan of a count keeps at most m in all groups together. The scan of a sum adds up
all N_g, clamps the total to its bound and rounds it to steps, which never decreases where the total grows. I(N) is what
N rows can add so.

**Claim.** Where no bound is on several sums together, a unit adds n_g rows and sums s_g in I(n_g), or sum n_g = m and
s_g is in some I(N) with N >= n_g. **Proof.** Of at most m rows all count. Of more m do, at most N_g of them in g. QED.

A row that counts and may add nothing, as where the summed column is NULL, has 0 as one more value. So the vectors are,
of one group, the corners of I(n) for each whole n, and of m rows those of all I(N). Of several groups any row may be
taken to have 0, too: then I(n) is concave above and convex below, so that extreme points with sum n_g < m have each n_g
where an end of I bends, and those with sum n_g = m are m rows in one group beside any sums.

Sums are in units of the most that a unit adds to a cell, of which ends are fractions: vectors are written as multiples
by ``_FINEST`` at most, rounded outwards where no such multiple is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, islice, product
from math import ceil, comb, floor, lcm

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Ints
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.compile.cells_of_a_row import walked
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.expr.unit_sums import UnitSum
from dpsql.workloads.expr.values import stored
from dpsql.workloads.families.patterns import ENOUGH

_FINEST = 64
Ends = tuple[Fraction, Fraction]
Vector = dict[int, int]
"""What is added to entries of x, by their numbers."""
Groups = Mapping[int, Mapping[int, Sequence[Ends]]]
"""By the entry of a group's count the entries of its sums, with I(n) for each n up to m."""
Boxes = Mapping[int, Mapping[int, tuple[int, int]]]
"""By the number of rows of a group the ends of its sums, by their entries."""


@dataclass(frozen=True)
class JointList:
    """``vectors`` (n x count), each ``times`` as long as it is; ``exact``: a unit adds just these and their means."""

    vectors: sparse.csc_array = field(repr=False)
    times: int
    exact: bool


def counts_with_sums(rows: Layout, sums: Sequence[Layout], size: int) -> JointList | None:
    """What a unit adds to ``rows`` and ``sums`` together, of ``size`` entries.

    None where a row could enter a sum without being counted, for sources that are not followed, and for more than
    5,000 vectors. Cost: O(m) for each sum.
    """
    if not sums or not _followed(rows, sums):
        return None
    m, several, exact = rows.source.most, rows.filled.size > 1, True
    groups: dict[int, dict[int, list[Ends]]] = {count: {} for count in rows.filled.tolist()}
    for layout in sums:
        added = layout.source.added
        met = None if added is None else _met(rows, layout, added)
        if added is None or met is None:
            return None
        pairs, zero = met
        ends = [_ends(added, m, n, zero=zero or several) for n in range(m + 1)]
        for count, entry in pairs:
            groups[count][entry] = ends
        uncut = added.stride == 1 and layout.multiplicity == layout.filled.size and not _cut((rows, layout), added)
        exact &= uncut and (zero or not several or added.shift <= 0)
    every = [ends for group in groups.values() for ends in group.values()]
    whole = lcm(*(end.denominator for ends in every for both in ends for end in both))
    times = min(whole, _FINEST)
    bends = [n for n in range(1, m) if any(_bends(ends, n) for ends in every)]
    boxes = [
        {n: {entry: _rounded(ends[n], times) for entry, ends in group.items()} for n in (*bends, m)}
        for group in groups.values()
    ]
    found = _of_several(groups, boxes, sums, m, times) if several else _of_one(groups, boxes, times)
    vectors = list(islice(found, ENOUGH + 1))
    if len(vectors) > ENOUGH:
        return None
    at = [(entry, column, value) for column, one in enumerate(vectors) for entry, value in one.items() if value]
    places, columns, values = np.array(at, dtype=np.int64).T
    listed = sparse.csc_array((values, (places, columns)), shape=(size, len(vectors)))
    return JointList(listed, times, exact and whole <= _FINEST)


def _followed(rows: Layout, sums: Sequence[Layout]) -> bool:
    """Whether the layouts are few, and of a form that the module knows: counts of rows, and sums that bounds clamp."""
    source, ways = rows.source, rows.filled.size
    for layout in sums:
        most = min(layout.multiplicity, layout.filled.size)
        ways *= 2**most * comb(layout.filled.size, most)
    if not ways or max(source.most, ways) > 4 * ENOUGH:
        return False
    plain = (
        isinstance(rows.cells, Cells) and rows.entry.shape[0] == 1 and rows.every is None and source.unit is not None
    )
    others = source.distinct or source.caps or source.of or source.windows or source.order or rows.tie or rows.together
    return (
        plain
        and source.unit is not None
        and not others
        and {join.name for join in source.joins} <= {*source.path}
        and all(
            layout.source.added is not None
            and isinstance(layout.cells, Cells)
            and layout.every is None
            and replace(layout.source, distinct=False, added=None) == source
            and all(bound.alone and not bound.grouped for bound in layout.source.added.bounds)
            for layout in sums
        )
    )


def _met(rows: Layout, layout: Layout, added: UnitSum) -> tuple[list[tuple[int, int]], bool] | None:
    """The count and the sum of each group, and whether a row that counts may add nothing to its sum.

    None where a row may add something without being counted, or where a sum and a count are not of the same group.
    """
    scans, told = [rows, layout], None
    for axis in rows.cells.axes:
        if isinstance(axis, LineAxis) and axis.column == added.row.column:  # tells where the summed column is NULL
            told, places = axis, np.arange(axis.size)
            alone = replace(
                rows.listed_cells, axes=(axis,), transitions=(places.astype(np.int32)[None],), cell_of_state=places
            )
            scans.append(replace(rows, cells=alone, entry=places[None]))
    walk = walked(scans)
    if walk is None:
        return None
    count, entry = _entries(rows, walk.states[0]), _entries(layout, walk.states[1])
    null = np.zeros(count.size, dtype=bool)
    if told is not None and told.null_region >= 0:
        null = walk.states[2] == told.null_region
    pairs = np.unique(np.stack([count, entry])[:, (count >= 0) & (entry >= 0)], axis=1)
    lost = bool(((count < 0) & (entry >= 0) & ~null).any())
    once = all(np.unique(side).size == side.size for side in pairs)
    if lost or not once or pairs.shape[1] < layout.filled.size:
        return None
    nothing = told is None or added.row.line.kind == "real" or bool(((count >= 0) & (null | (entry < 0))).any())
    return list(zip(*pairs.tolist(), strict=True)), nothing


def _entries(layout: Layout, state: Ints) -> Ints:
    """The entry of x that each last state of a walk leads to, -1 for none."""
    cell = np.where(state >= 0, layout.listed_cells.cell_of_state[state], -1)
    found: Ints = np.where(cell >= 0, layout.entry.max(axis=0)[cell], -1)
    return found


def _cut(layouts: Sequence[Layout], added: UnitSum) -> bool:
    """Whether rows of a group may have fewer values of the summed column than its bounds hold."""
    read = set(stored(layouts[0].functions.value(added.row.column, added.row.line)))
    axes = ((axis, layout.functions.of(axis).of) for layout in layouts for axis in layout.cells.axes)
    return any(read & {*of} and (not isinstance(axis, LineAxis) or bool(axis.cuts)) for axis, of in axes)


def _ends(added: UnitSum, m: int, n: int, *, zero: bool) -> Ends:
    """I(n), over the most that a unit adds to a cell; of m rows what any number from m on can add."""
    low, high = added.shift, added.shift + added.row.grid
    if zero:
        low, high = min(low, 0), max(high, 0)
    rounding = Fraction(int(added.stride > 1 and n > 0), 2)
    lower, upper = Fraction(added.lower), Fraction(added.upper)
    first = lower if n == m and low < 0 else max(lower, Fraction(n * low, added.stride) - rounding)
    last = upper if n == m and high > 0 else min(upper, Fraction(n * high, added.stride) + rounding)
    return min(first, upper) / added.in_cell, max(last, lower) / added.in_cell


def _bends(ends: Sequence[Ends], n: int) -> bool:
    """Whether one end at n is not the mean of those at n - 1 and n + 1."""
    return any(2 * here != before + after for before, here, after in zip(*ends[n - 1 : n + 2], strict=True))


def _rounded(ends: Ends, times: int) -> tuple[int, int]:
    return floor(ends[0] * times), ceil(ends[1] * times)


def _corners(box: Mapping[int, tuple[int, int]]) -> Iterator[Vector]:
    """Each entry at one of its ends."""
    for chosen in product(*(sorted({*ends}) for ends in box.values())):
        yield dict(zip(box, chosen, strict=True))


def _of_one(groups: Groups, boxes: Sequence[Boxes], times: int) -> Iterator[Vector]:
    """Of one group: the corners for each number of rows."""
    for count, box in zip(groups, boxes, strict=True):
        yield from ({count: n * times, **corner} for n in box for corner in _corners(box[n]))


def _of_several(groups: Groups, boxes: Sequence[Boxes], sums: Sequence[Layout], m: int, times: int) -> Iterator[Vector]:
    """Of several groups: m rows in one of them beside any sums, and fewer rows, each group at a bend of its ends."""
    most = {entry: ends for box in boxes for entry, ends in box[m].items()}
    beside = [
        [
            vector
            for chosen in combinations(layout.filled.tolist(), min(layout.multiplicity, layout.filled.size))
            for vector in _corners({entry: most[entry] for entry in chosen})
        ]
        for layout in sums
    ]
    for count in groups:
        for vectors in product(*beside):
            yield {count: m * times} | {entry: value for vector in vectors for entry, value in vector.items()}
    few: list[tuple[int, Vector]] = [(0, {})]
    for count, box in zip(groups, boxes, strict=True):
        corners = ((n, corner) for n in box if n < m for corner in _corners(box[n]))
        mine = [(n, {count: n * times, **corner}) for n, corner in corners if any(corner.values())]
        more = [(k + n, vector | one) for k, vector in few for n, one in mine if k + n < m]
        yield from (vector for _, vector in more)
        few += more
