"""Whether an answer from earlier releases is nowhere less precise than what a budget would buy.

Public and free: noise laws, and estimates that were released, decide. Every count, sum and linear combination is
compared by its standard error and the half-width of its interval, both known before anything is measured. The error of
an average, ratio or quantile depends on the answer, so both standard errors are worked out at the answer that is free.
Where a number has no error bar, or outer SQL computes further numbers, the covariances decide: every linear combination
of the statement's numbers must then have at most the variance that the budget would buy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

import numpy as np

from dpsql.common.arrays import Floats, Matrix
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.reconstruct import Errors
from dpsql.reconstruct.combined import CombinedAnswers
from dpsql.reconstruct.spread import NoiseModel, as_dense, as_rows, in_deviations
from dpsql.running.result_tables import Estimates, Planned
from dpsql.workloads.expr.batch import Core, Derived, Ranked

_ROUNDING = 1e-6
"""Relative differences that are rounding alone."""
_RANK = 1e-9
_MOST = 2**24
"""Entries of a reconstruction up to which covariances are compared."""

Pair: TypeAlias = "tuple[Core, Sequence[slice], Sequence[slice]]"
"""A core of a statement, and where its outputs are among the numbers of either answer."""


class Answered(Planned, Protocol):
    """Answers that are known: `earlier.Combination` or `planned_again.PlannedAgain`."""

    @property
    def values(self) -> Floats: ...


def no_worse(free: Answered, plan: PlannedBatch, places: Sequence[int] | None = None) -> bool:
    """Whether no number of a plan's batch is less precise as answered for ``free`` than as planned.

    ``places``: which statements of the free answers those of the plan are, by default the same ones.
    """
    theirs, mine = _by_statement(free), _by_statement(plan)
    pairs = [
        (core, slices, bought)
        for place, statement in zip(range(len(mine)) if places is None else places, mine, strict=True)
        for (core, slices), (_, bought) in zip(theirs[place], statement, strict=True)
    ]
    # A lattice by which combined intervals are rounded outward is no lack of precision.
    known, widths = free.answers, free.widths
    if isinstance(known, CombinedAnswers):
        widths = known.widths(None, free.alpha, outward=False)
    bare = any(answer.outer is not None for answer in plan.queries)
    values = np.zeros(0 if any(core.is_view for core, *_ in pairs) else plan.compiled.numbers)
    for core, slices, bought in pairs:
        for of, part in zip(slices, bought, strict=True):
            if not (_within(free.errors[of], plan.errors[part]) and _within(widths[of], plan.widths[part])):
                return False
        if not any(isinstance(column, Derived | Ranked) for column in core.columns):
            continue
        for of, part in zip(slices, bought, strict=True):
            values[part] = free.values[of]
        compared = _bars(Estimates(free, free.values), Estimates(cast("Planned", plan), values), (core, slices, bought))
        if compared is False:
            return False
        bare = bare or compared is None
    return not bare or _dominated(free, plan, pairs)


def _by_statement(answered: Planned | PlannedBatch) -> list[list[tuple[Core, tuple[slice, ...]]]]:
    cores = iter(answered.cores)
    return [[next(cores) for _ in answer.cores] for answer in answered.queries]


def _within(free: Errors, bought: Errors) -> bool:
    """Whether no figure exceeds the other's; False where the spreads of ranges cannot be compared."""
    return bool(np.all(free <= bought * (1.0 + _ROUNDING)))


def _bars(free: Estimates, plan: Estimates, pair: Pair) -> bool | None:
    """Whether no average, ratio or quantile of a core has a larger error; None where one has no error to compare."""
    core, slices, bought = pair
    found: bool | None = True
    for column in core.columns:
        if isinstance(column, Derived | Ranked):
            mine, theirs = (
                np.asarray(of.unbiased(core, column, parts)[1]) for of, parts in ((free, slices), (plan, bought))
            )
            known = np.isfinite(mine)
            if np.any(mine[known] > theirs[known] * (1.0 + _ROUNDING)):
                return False
            found = found if known.all() else None
    return found


def _dominated(free: Planned, plan: PlannedBatch, pairs: Sequence[Pair]) -> bool:
    """Whether every linear combination of the numbers has at most the variance that is planned.

    With reconstructions X and Y in deviations of their noise, X X' <= Y Y' in the order of quadratic forms: X = Y K, no
    singular value of K above 1 (Douglas 1966). False where the matrices are too large.
    """
    if not pairs or any(core.line is not None for core, *_ in pairs):
        return not pairs
    of = [part for _, slices, _ in pairs for part in slices]
    parts = [part for _, _, bought in pairs for part in bought]
    X = _root(free.answers.rows(of, free.noise), free.noise, free.compiled.common_steps)
    Y = _root(plan.answers.rows(parts, plan.noise), plan.noise, plan.compiled.common_steps)
    if X is None or Y is None:
        return False
    U, s, _ = np.linalg.svd(Y, full_matrices=False)
    U, s = U[:, s > _RANK * s.max(initial=0.0)], s[s > _RANK * s.max(initial=0.0)]
    along = U.T @ X
    if np.linalg.norm(X - U @ along) > _ROUNDING * np.linalg.norm(X):
        return False
    return not s.size or float(np.linalg.norm(along / s[:, None], 2)) ** 2 <= 1.0 + _ROUNDING


def _root(rows: Matrix, noise: NoiseModel, divisor: int) -> Floats | None:
    """A reconstruction in deviations of its noise; None where it is too large."""
    taken = as_rows(rows)
    return None if taken.shape[0] * taken.shape[1] > _MOST else as_dense(in_deviations(taken, noise)) / divisor
