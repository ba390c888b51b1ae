"""Small counts are not shown: numbers whose count may lie under a table's ``minimum``, as many custodians must.

Post-processing of what was measured, for whoever reads results; the guarantee is that of the noise, with it or without.
A number is judged by the noisy sizes of the sets of rows that enter it with one coefficient each
(``workload.compile.level_sets``), whatever it is written as, each by the lower end of its 95 % interval; a quantile by
the rows that it ranks. A number with a set whose size does not follow from the numbers of the same SELECT is not shown
either. A hidden number is NULL, and so are its errors; ``c_hidden`` beside it says so. It happens before all that a
statement does with its noisy tables, so that nothing that is worked out of a hidden number can show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.reconstruct import RowsOfAnswers, evaluate
from dpsql.reconstruct.spread import NoiseModel
from dpsql.release.record import Column
from dpsql.sql.outer.relation import HIDDEN
from dpsql.workloads.compile.level_sets import MOST_TOGETHER, Judge, judged_by
from dpsql.workloads.expr.batch import Core, Derived, Measured, Ranked
from dpsql.workloads.expr.formulas import Leaf, Number, Product, Statistic, Sum, affine, narrowed

Mask = NDArray[np.bool_]
LEVEL = 0.05
"""1 - confidence of the intervals that judge, whatever confidence is asked for in the results."""


class Estimated(Protocol):
    """What says how far estimates of a plan may be off."""

    @property
    def widths(self) -> Floats: ...
    @property
    def noise(self) -> NoiseModel: ...
    @property
    def alpha(self) -> float: ...
    @property
    def answers(self) -> RowsOfAnswers: ...
    @property
    def compiled(self) -> Scaled: ...


class Scaled(Protocol):
    """What says by how much estimates are scaled: L."""

    @property
    def common_steps(self) -> int: ...


def hidden(
    core: Core, column: Measured | Derived | Ranked, values: Floats, plan: Estimated, slices: Sequence[slice]
) -> Mask:
    """Which numbers of a column are not shown, row by row; ``core`` has a minimum.

    ``values`` (m,): estimates of all outputs, of which ``slices`` are the core's.
    """
    rows = slices[0].stop - slices[0].start
    judges = _judges(core, column)
    small = np.full(rows, not judges)
    for judge in judges or ():
        small |= _lower_ends(judge, values, plan, slices) < float(core.minimum or 0)
    return small


def _judges(core: Core, column: Measured | Derived | Ranked) -> list[Judge] | None:
    if isinstance(column, Ranked):
        return judged_by(core, column.prefixes[-1:])
    if isinstance(column, Measured):
        return judged_by(core, (column.output,))
    formula, used = narrowed(column.formula)
    linear = affine(formula, len(used))
    if linear is None and len(used) > MOST_TOGETHER and not isinstance(formula, Statistic):
        return None  # what so many numbers tell together is not looked at
    return judged_by(core, used, None if linear is None else linear[0].tolist())


def _lower_ends(judge: Judge, values: Floats, plan: Estimated, slices: Sequence[slice]) -> Floats:
    """The lower ends of the 95 % intervals of a linear combination of outputs, row by row."""
    parts = [slices[at] for at in judge]
    if len(judge) == 1 and plan.alpha == LEVEL:
        ((weight,), (part,)) = judge.values(), parts
        return np.asarray(weight * values[part] - abs(weight) * plan.widths[part])
    formula = Sum(tuple(Product((Number(weight), Leaf(at))) for at, weight in enumerate(judge.values())))
    estimates = np.stack([values[part] for part in parts], axis=1)
    rows = plan.answers.rows(parts, plan.noise)
    return evaluate(formula, estimates, rows, plan.noise, LEVEL, divisor=plan.compiled.common_steps).low


def counted(number: str, columns: Sequence[Column], minimum: int | None) -> tuple[Column, ...]:
    """The columns of a table of counts ``number``, with its errors, in which small ones are NULL, and the mark."""
    if minimum is None:
        return tuple(columns)
    low = next(values for name, _, values in columns if name == f"{number}_low")
    small = [float(str(end)) < minimum for end in low]
    shown: list[Column] = []
    for name, kind, values in columns:
        if name in (number, f"{number}_low", f"{number}_high"):
            values = [None if left_out else value for value, left_out in zip(values, small, strict=True)]
        shown.append((name, kind, values))
    return (*shown, (f"{number}{HIDDEN[0]}", "BOOLEAN", small))
