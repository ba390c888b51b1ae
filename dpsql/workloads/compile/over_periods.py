"""A batch of one period measured over several: its cells once for each, the period of a row before them.

What a row of period s adds to the numbers of release t is C_ts times what it adds to those of its own period
(``dpsql.linalg.over_time``): B_t = (C_t0 B, ..., C_tt B) over the cells of all periods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Json
from dpsql.errors import SQLError
from dpsql.linalg.over_time import OverTime
from dpsql.policy.periods import Periods
from dpsql.policy.values import fold
from dpsql.workloads.cells.boxes import Boxes
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.cells.integers import Factored, Integers
from dpsql.workloads.compile.confined import interval_of
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.expr.conditions import union
from dpsql.workloads.expr.lines import Cut
from dpsql.workloads.expr.regions import Axis, IntArray, LineAxis


@dataclass(frozen=True)
class ByPeriod(Cells):
    """``inner`` once for each of several periods: ``axes[at]``, which has one region there, has one for each here."""

    inner: Cells | Grid = field(repr=False, kw_only=True)
    at: int = field(kw_only=True)

    @property
    def count(self) -> int:
        """How many periods there are."""
        return self.axes[self.at].size

    def __len__(self) -> int:
        return self.count * len(self.inner)

    def locate(self, regions: Sequence[IntArray]) -> IntArray:
        """Period by period the cell of ``inner``; -1 for rows of no period, or of no cell."""
        period = regions[self.at]
        alone = [np.minimum(region, 0) if place == self.at else region for place, region in enumerate(regions)]
        cell = self.inner.locate(alone)
        return np.where(cell < 0, -1, period * len(self.inner) + cell)


@dataclass(frozen=True, eq=False)
class Over:
    """One release of a horizon: a batch of one period, and how it is measured of this period and of earlier ones.

    ``measured``: C, ``place`` the row of it, ``first`` the number of the period of row 0. ``layouts`` and ``integers``
    (B) are those of the period alone. ``paid``: the ids of the charges by which the earlier periods paid for the whole
    of their columns of C, oldest first.
    """

    measured: OverTime
    periods: Periods
    first: int
    place: int
    paid: tuple[str, ...] = field(repr=False)
    layouts: tuple[Layout, ...] = field(repr=False)
    integers: Integers = field(repr=False)

    @property
    def numbers(self) -> range:
        """The periods that are read: this one, and those before it that the horizon still measures."""
        return range(self.first + self.measured.reads(self.place).start, self.first + self.place + 1)

    @property
    def description(self) -> Json:
        """What a charge says of it: equal digests are equal C."""
        return {"digest": self.measured.digest(), "place": self.place}

    def all_layouts(self) -> tuple[Layout, ...]:
        """The layouts over all periods; those of the k-th fill the k-th stretch of x, as long as that of one period.

        Raises SQLError where the batch asks more of the day of a row than its period, or more of a table than rows.
        """
        width = self.integers.shape[1]
        return tuple(_over(layout, width, self.periods, self.numbers) for layout in self.layouts)

    def all_integers(self) -> Factored:
        """B_t = (C_t0 B, ..., C_tt B), of the periods that are read. SQLError where B is never written out."""
        if self.integers.written is None:
            raise SQLError("a batch over a horizon is measured by one matrix; ask for fewer groups")
        row, (mixing, basis) = self.measured.row(self.place)[-len(self.numbers) :], self.integers.written
        weighed = sparse.kron(np.array([row], dtype=np.int64), sparse.csr_array(mixing), format="csr")
        several = sparse.kron(sparse.eye_array(len(row), dtype=np.int64), basis, format="csr")
        return Factored(sparse.csr_array(weighed), sparse.csr_array(several))

    def sensitivity(self, common_steps: int) -> int:
        """The squared L2 norm, exact, of all that one row of any period moves in all releases of the horizon."""
        one = sensitivity_of("gaussian", self.integers, self.layouts)
        return self.measured.l2_squared * one * common_steps**2


def _over(layout: Layout, width: int, periods: Periods, numbers: Sequence[int]) -> Layout:
    cells = layout.cells
    held = [at for at, axis in enumerate(cells.axes) if fold(axis.name) == fold(periods.column)]
    if not layout.source.plain or isinstance(cells, Boxes) or layout.every is not None:
        raise SQLError(
            f"a batch over a horizon counts and sums single rows of {layout.table} by groups; this one asks more of "
            "them: release it of each period alone"
        )
    axis = cells.axes[held[0]] if len(held) == 1 else None
    if not isinstance(axis, LineAxis) or axis.size != 1 or axis.null_region >= 0 or axis.column in layout.values:
        raise SQLError(
            f"a batch over a horizon asks nothing of {periods.column} but its period, which it has without being "
            "asked; leave the column out, or release the batch of each period alone"
        )
    spread = _by_period(axis, periods, numbers)
    axes: tuple[Axis, ...] = (*cells.axes[: held[0]], spread, *cells.axes[held[0] + 1 :])
    nothing = sparse.csr_array(np.zeros((0, 0), dtype=np.int32))
    made = ByPeriod(axes, (), np.zeros(0, np.int64), nothing, inner=cells, at=held[0])
    entry = [np.where(layout.entry >= 0, layout.entry + at * width, -1) for at in range(len(numbers))]
    source = layout.source
    if source.only is not None:
        days = union([interval_of(periods, source.only.line, number) for number in numbers])
        source = replace(source, only=replace(source.only, intervals=days))
    return replace(layout, cells=made, entry=np.concatenate(entry, axis=1), source=source)


def _by_period(axis: LineAxis, periods: Periods, numbers: Sequence[int]) -> LineAxis:
    """The axis with a region for each of the periods, which follow each other."""
    cuts: list[Cut] = []
    for number in numbers:
        low, high = interval_of(periods, axis.line, number)
        assert low is not None and high is not None  # noqa: S101, PT018 - periods have ends
        if cuts and cuts[-1] != low:
            raise SQLError("the periods of a horizon follow each other")
        cuts = [*(cuts or [low]), high]
    pieces = np.array([-1, *range(len(numbers)), -1], dtype=np.int64)
    return replace(axis, cuts=tuple(cuts), pieces=pieces, size=len(numbers))
