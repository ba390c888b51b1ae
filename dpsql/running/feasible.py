"""Estimates that a table of rows could have: counts not negative, sums within their counts, all parts adding up.

Post-processing of an unbiased release q^ = W x + error, for releases now and earlier ones: free, no row is read.

What is computed. The true x lies in the cone of possible data (``dpsql.workloads.compile.cone``). The estimate is W x
of the x in that cone that comes nearest to q^,

    min || D (W x - q^) ||,        D = 1 / what one row can change of each number (times the hints' weights),

so that all numbers are those of one table: not negative, within their bounds, every total the sum of its parts. "whole"
rounds that x to whole numbers besides, a run of cells at a time (``nonnegative.whole_numbers``).

Where there are more cells than can be listed, a batch of counts by groups is fitted over the tables of its groupings,
rows outside of the groups included: these agree with each other and none is negative, though not every such set of them
is that of one table of rows (``reconstruct.possible_marginals``). True ones are among them, so that what follows holds
here, too; the squared error that does not grow is that of whole tables, the rows outside included.

It is never worse. The possible answers D W x form a convex set that holds the true ones, and a projection onto a convex
set brings every point of it nearer (Nikolov, Talwar and Zhang 2013 use it so): ||D (estimate - W x)|| <= ||D (q^ - W
x)||, of every single release, whatever the noise. The fit ends with a proof of that for its own numbers
(``dpsql.reconstruct.nonnegative``); where it finds none, the release is shown as it is, and a warning says so. It is
the total squared error that plans state; a single number may come out farther off than before, and sums over many empty
groups are above 0 on average. How much is gained depends on the data, so no plan can state it.

What the error columns mean. The estimate is biased, and its error depends on the data, so it cannot be stated from
public values. ``c_stderr`` stays the standard error of the *unbiased* estimate, which is known exactly. The interval is
that of the unbiased estimate, cut to what is possible and widened to hold the estimate that is shown:

    Let [a, b] cover the true answer q with probability 1 - alpha, and let q lie in [f, g] for certain (f = 0 where no
    row can lower the number). Then [a, b] cut to [f, g] covers q whenever [a, b] does, and an interval that
    contains it covers it as well. So coverage is at least 1 - alpha, whatever the estimate. Where [a, b] misses
    [f, g] altogether it has missed q too, and its nearer end is shown.

f and g come from the signs of W @ rays, in exact integers. Of averages, ratios and quantiles the interval is that of
the unbiased release, widened to hold the estimate.

``LOWER_AT_ZERO`` shows unbiased estimates, which may lie below 0, and cuts their intervals to [f, inf) alone, of which
the same holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Sparse
from dpsql.errors import DataError, InterfaceError
from dpsql.planning.plan import Plan
from dpsql.planning.prepare import MOST_LISTED
from dpsql.reconstruct.nonnegative import Problem, whole_numbers
from dpsql.reconstruct.possible_marginals import PossibleMarginals
from dpsql.reconstruct.residual_answers import ResidualAnswers
from dpsql.workloads.compile.compiled import Batch, Compiled
from dpsql.workloads.compile.cone import Cone, cone_of

KINDS = ("unbiased", "feasible", "nonnegative", "whole")
"""What may be asked for; "nonnegative" is an older word for "feasible"."""
LOWER_AT_ZERO = "lower_at_zero"
"""Unbiased numbers with intervals that begin at 0 where no row can lower the number, as of counts."""
_WORK = 2e10
"""Multiplications of a search: of so many it is stopped, wherever it is; what it has is feasible."""
_ROUNDING = 1e-6
"""The share of the planned error by which an estimate may be farther from the truth: rounding."""


@dataclass(frozen=True, eq=False)
class Feasible:
    """``values`` (m,) of W's rows, constants left out; true ones lie between ``floor`` and ``ceiling``."""

    values: Floats = field(repr=False)
    floor: Floats = field(repr=False)
    ceiling: Floats = field(repr=False)

    def interval(self, part: slice, constant: float, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """[low, high] (g,) of the numbers ``part``, cut to what is possible; constants are added to what is here."""
        floor, ceiling = self.floor[part] + constant, self.ceiling[part] + constant
        return np.clip(low, floor, ceiling), np.clip(high, floor, ceiling)


class FromZero(Feasible):
    """Unbiased ``values``, of which the intervals alone are cut: they need not lie within."""


def check_estimates(plan: Plan, kind: str) -> None:
    """Raise where ``plan`` has no estimates of this kind: InterfaceError for an unknown one, DataError else. Free."""
    line = plan.compiled.line
    if kind == LOWER_AT_ZERO:
        if line is not None:
            raise InterfaceError(
                f"the intervals of {line.text} are worked out where they are read; leave lower_at_zero out"
            )
        return
    if kind not in KINDS:
        raise InterfaceError(f"estimates={kind!r} is not known; use one of {', '.join(KINDS)}")
    if kind == "unbiased":
        return
    if line is not None:
        if line.family != "ranges":
            raise InterfaceError(f"{line.text} is estimated without bias only; leave estimates out")
        raise InterfaceError(
            f"the {len(line):,} groups of {line.text} are estimated without bias only; leave estimates={kind!r} out"
        )
    if plan.estimated:
        raise DataError(
            f"estimates={kind!r} is for measurements of a fixed strategy; {plan.strategy.method} gives estimates that "
            "are possible by itself: leave it out"
        )
    if _wide(plan):
        if kind != "whole" and _by_groups(plan):
            return
        other = "a batch of counts by groups alone may have more, with estimates='feasible'; " * (kind != "feasible")
        raise DataError(
            f"estimates={kind!r} needs the cells of a table one by one, and this batch has {plan.cells:,}, at most "
            f"{MOST_LISTED:,}; {other}ask for fewer columns in one batch, or leave it out (nothing was charged)"
        )
    cone = cone_of(_cells(plan))
    if kind == "whole" and not cone.only_counts:
        raise DataError(
            "estimates='whole' is for counts, and the batch has sums, averages or ratios of sums; use "
            "estimates='feasible' (nothing was charged)"
        )


def feasible(plan: Plan, y: Sequence[int], kind: str, *, accuracy: float = 1e-4) -> Feasible:
    """The estimates of a plan's numbers from its measurements ``y`` (p,), as the module says.

    Where none are proven to be no worse, the release's own, and a warning. Of a plan whose errors are estimated its
    own values, which a table has, and what cuts their intervals.
    ``accuracy``: how near a fit over groups comes to the best one, relative to what it moves.
    Cost: a fit over the rays of the cone (``reconstruct.nonnegative``), seconds for some 10,000 of them. Raises as
    ``check_estimates``.
    """
    values = plan.answers.estimate(y, plan.compiled.common_steps)
    if kind == LOWER_AT_ZERO:
        batch = plan.compiled
        floor = _signs(batch)[0] if batch.blocks else _limits(_cells(plan), cone_of(_cells(plan)))[0]
        return FromZero(values, floor, np.full(len(values), np.inf))
    if not plan.estimated:
        check_estimates(plan, kind)
    elif plan.compiled.blocks:
        return Feasible(values, *_signs(plan.compiled))
    if _wide(plan):
        return _over_groups(plan, y, kind, accuracy)
    compiled = _cells(plan)
    cone = cone_of(compiled)
    limits = _limits(compiled, cone)
    if plan.estimated:
        return Feasible(values, *limits)
    weight = compiled.weights
    unit = float(np.sqrt(np.mean((weight * np.asarray(plan.errors)) ** 2))) or 1.0
    over_rays = sparse.csr_array(compiled.rows @ cone.rays).astype(np.float64)
    asked = np.flatnonzero(np.diff(over_rays.indptr))
    A = sparse.csr_array(sparse.diags_array((weight * compiled.scale)[asked] / unit) @ over_rays[asked])
    found = Problem(A, (weight * values)[asked] / unit).solve(most=int(np.clip(_WORK / max(4 * A.nnz, 1), 100, 5000)))
    if not found.never_worse(_ROUNDING * len(asked)):
        _leave(kind)
        return Feasible(values, *limits)
    w = found.w
    if kind == "whole":  # rays are entries of x, in the order of cells
        w = np.concatenate([whole_numbers(w[cone.layout == number]) for number in range(len(compiled.layouts))])
    return Feasible(compiled.scale * np.asarray(over_rays @ w), *limits)


def _leave(kind: str) -> None:
    warnings.warn(
        f"estimates={kind!r} leaves this release as it is: no possible numbers were found that are proven to be as "
        "near to the true ones",
        stacklevel=3,
    )


def _wide(plan: Plan) -> bool:
    """Whether a batch is measured block by block and has more cells than are listed."""
    return plan.cells > MOST_LISTED and plan.compiled.matrix is None


def _by_groups(plan: Plan) -> bool:
    """Whether every number of a batch counts one group: of each axis a region, and none twice in a result."""
    blocks = plan.compiled.blocks
    apart = len({(b.start, b.stop) for b in blocks}) == len(blocks)
    counts = all(b.component == 0 and b.coefficient > 0 and b.weight > 0 for b in blocks)
    groups = all(len(f.axes) == 1 and _one_each(f.matrix) for b in blocks for f in b.factors)
    return bool(blocks) and apart and counts and groups and isinstance(plan.answers, ResidualAnswers)


def _one_each(matrix: Sparse) -> bool:
    """Whether every row is one region with the weight 1, and no region is in two rows."""
    return bool(matrix.nnz == matrix.shape[0] == len(np.unique(matrix.indices)) and (matrix.data == 1).all())


def _over_groups(plan: Plan, y: Sequence[int], kind: str, accuracy: float) -> Feasible:
    """What ``feasible`` says, over the batch's own groups and those that it leaves out of them."""
    answers, batch = plan.answers, plan.compiled
    assert isinstance(answers, ResidualAnswers)  # noqa: S101 - as ``_by_groups`` found
    tables = answers.tables(y)
    errors = np.asarray(plan.errors)  # of ranges alone they are another kind, and those are no blocks
    planned = np.concatenate([b.weight * errors[b.start : b.stop] for b in batch.blocks])
    unit = (float(np.sqrt(np.mean(planned**2))) or 1.0) * batch.common_steps
    for table in sorted({b.table for b in batch.blocks}):
        weights: dict[tuple[int, ...], float] = {}
        for b in batch.blocks:
            if b.table == table:
                weights[b.axes] = weights.get(b.axes, 0.0) + (b.weight * b.coefficient / unit) ** 2
        problem = PossibleMarginals({axes: tables[table, 0, axes] for axes in weights}, weights)
        most = int(np.clip(_WORK / max(4 * problem.work, 1), 100, 5000))
        found, proof = problem.solve(most=most, accuracy=accuracy)
        if proof.never_worse(_ROUNDING * proof.w.size):
            tables.update({(table, 0, axes): x for axes, x in found.items()})
        else:
            _leave(kind)
    values = answers.numbers_of(tables) / float(batch.common_steps)
    return Feasible(values, np.zeros(len(values)), np.full(len(values), np.inf))


def _cells(plan: Plan) -> Compiled:
    """The batch over its cells."""
    if plan.compiled.matrix is not None:
        return plan.compiled.matrix
    held = None if plan.origin is None else plan.origin.prepared.over_cells
    if held is None:
        raise DataError("this plan does not know what it was made from; plan the batch again")
    return held


def _limits(compiled: Compiled, cone: Cone) -> tuple[Floats, Floats]:
    """The least and the largest value that each of W's rows can have, by signs alone: 0, or without limit; of values
    that are counted how many there can be.
    """
    least, most = cone.reach(compiled.rows)
    negative = compiled.scale < 0
    least, most = np.where(negative, -most, least), np.where(negative, -least, most)
    ceiling = np.where(most > 0, np.inf, 0.0)
    if compiled.ceilings is not None:
        ceiling = np.minimum(ceiling, compiled.ceilings)
    return np.where(least < 0, -np.inf, 0.0), ceiling


def _signs(batch: Batch) -> tuple[Floats, Floats]:
    """The same of a batch of blocks: at least 0 where no row is taken off."""
    taken = np.zeros(batch.numbers, dtype=bool)
    for b in batch.blocks:
        taken[b.start : b.stop] |= b.coefficient < 0 or any(f.matrix.data.min(initial=0) < 0 for f in b.factors)
    return np.where(taken, -np.inf, 0.0), np.full(batch.numbers, np.inf)


def holding(value: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """The interval [low, high] widened to hold ``value``; arrays of numbers, or lists (of dates)."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.fmin(low, value), np.fmax(high, value)
    ends = [(a, b) if None in (v, a, b) else (min(a, v), max(b, v)) for v, a, b in zip(value, low, high, strict=True)]
    return [a for a, _ in ends], [b for _, b in ends]
