"""Which histograms x holds for a structured batch: one for each set of axes that lies in no other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from dpsql.errors import SQLError, listed
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.kronecker import Histogram
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.too_many import to_leave_out

MAX_HISTOGRAM = 2**22  # cells of one histogram
MAX_ENTRIES = 2**25  # of x, and of one matrix beside it, written out

AxisSet = tuple[int, ...]


def homes_of(sets: Iterable[AxisSet]) -> dict[AxisSet, AxisSet]:
    """For each set the first of the sets that lie in no other and have it; ascending ones of equal size come in order.

    Cost: for each set the larger ones that share its rarest axis.
    """
    by_axis: dict[int, list[tuple[AxisSet, frozenset[int]]]] = {}
    largest: list[AxisSet] = []
    out: dict[AxisSet, AxisSet] = {}
    for axes in sorted(set(sets), key=lambda axes: (-len(axes), axes)):
        if not axes:
            out[axes] = largest[0] if largest else axes
            continue
        near = min((by_axis.get(axis, []) for axis in axes), key=len)
        inside = frozenset(axes)
        home = next((other for other, held in near if inside <= held), None)
        out[axes] = axes if home is None else home
        if home is None:
            largest.append(axes)
            for axis in axes:
                by_axis.setdefault(axis, []).append((axes, inside))
    return out


def lay_out(
    number: int, whole: Layout, sizes: Sequence[int], needed: Mapping[AxisSet, set[int]], start: int
) -> list[tuple[Layout, list[Histogram]]]:
    """A layout for each set of axes that lies in no other, with the components that are ``needed`` there.

    ``whole`` has all axes and measures of table ``number``, of ``sizes``; entries are numbered from ``start``. Units
    counted once in each group have one histogram, of these. Raises SQLError where a histogram or x has more cells than
    the caps, with the columns to drop.
    """
    if whole.source.counts_units:
        used = whole.entry >= 0
        first = whole.entry[used].min() if used.any() else 0
        entry = np.where(used, whole.entry - first + start, -1)
        return [(replace(whole, entry=entry), [Histogram(number, 0, (0,), tuple(sizes), start)])]
    components: dict[AxisSet, set[int]] = {}
    for axes, home in homes_of(needed).items():
        components.setdefault(home, {0}).update(needed[axes])
    _check(components, whole, sizes, start)
    every = (whole.cells.axes, whole.measures)
    out = []
    for axes in sorted(components):
        found = sorted(components[axes])
        shape = tuple(sizes[axis] for axis in axes)
        cells = prod(shape)
        layout = replace(
            whole,
            cells=Grid(tuple(every[0][axis] for axis in axes)),
            measures=tuple(every[1][component - 1] for component in found if component),
            entry=start + np.arange(len(found) * cells, dtype=np.int64).reshape(len(found), -1),
            every=every,
        )
        held = [Histogram(number, component, axes, shape, start + at * cells) for at, component in enumerate(found)]
        out.append((layout, held))
        start += len(found) * cells
    return out


def _check(components: Mapping[AxisSet, set[int]], whole: Layout, sizes: Sequence[int], start: int) -> None:
    total = start
    for axes, found in components.items():
        shape = tuple(sizes[axis] for axis in axes)
        if prod(shape) > MAX_HISTOGRAM:
            raise too_large([whole.cells.axes[axis].name for axis in axes], shape, MAX_HISTOGRAM)
        total += prod(shape) * len(found)
    if total > MAX_ENTRIES:
        named = [[whole.cells.axes[axis].name for axis in axes] for axes in components]
        held = [prod(sizes[axis] for axis in axes) * len(found) for axes, found in components.items()]
        dropped = to_leave_out(named, held, max(0, MAX_ENTRIES - start))
        raise SQLError(
            f"the batch needs {len(components):,} histograms with {total:,} cells and sums together, at most "
            f"{MAX_ENTRIES:,} are planned: ask for fewer groupings, split the batch, coarsen the columns, or leave "
            f"out {listed(dropped)}",
            code="too-large",
        )


def too_large(names: Sequence[str], sizes: Sequence[int], cap: int, what: str = "") -> SQLError:
    """The refusal of a histogram: its size, the cap, and the columns to drop or coarsen, the finest first."""
    ordered = sorted(zip(names, sizes, strict=True), key=lambda pair: -pair[1])
    shown = " x ".join(f"{size:,} regions of {name}" for name, size in ordered[:6]) + (" ..." if len(sizes) > 6 else "")
    left = prod(sizes)
    remedy: list[str] = []
    for name, size in itertools.islice(ordered, len(ordered) - 1):
        left = left // size
        remedy.append(name)
        if left <= cap:
            break
    return SQLError(
        f"a statement combines {shown}: {prod(sizes):,} cells{what}, at most {cap:,} are planned for one statement: "
        f"drop or coarsen {' and '.join(remedy) if remedy else ordered[0][0]}",
        code="too-large",
    )
