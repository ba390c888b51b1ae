"""Pure noise at a large epsilon: strategies of small integers, by the variances that integer noise has there.

A strategy is compared by continuous variances, 2 / epsilon^2 at sensitivity 1. On the integers Laplace noise of the
scale 1 / epsilon is geometric and has the variance 1 / (2 sinh^2(epsilon / 2)): 28 % less at epsilon 2, 71 % less at 4,
the least of any noise for a count that one record moves by 1 (Ghosh, Roughgarden and Sundararajan 2009; Geng and
Viswanath 2014, whose staircase it is on the integers). That holds for integers that a record moves by 1 in all; weights
such as 4096 and 1024 leave noise of a large scale, which is as good as continuous. So from epsilon 1 on the cells and
the queries themselves are compared, too, each with the noise that it would really have.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, sinh

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InternalError
from dpsql.planning.options import PlanOptions
from dpsql.planning.planned_batch import BOUNDED, HUGE
from dpsql.planning.prepare import Prepared, scaled_sensitivity
from dpsql.privacy.charge import Charge
from dpsql.strategies import MatrixStrategy, Strategy, select
from dpsql.strategies.core.simple import workload_error
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.families.matrix import Workload

_NEAR = 2.0  # what integers of blocks of rows may have more of is a small part of it
_WHOLE = ("identity", "workload")  # measured with integers as small as they come


def finest(prepared: Prepared, charge: Charge, strategy: Strategy, options: PlanOptions) -> Strategy:
    """``strategy``, or one of small integers whose error is less at what ``charge`` pays for.

    ``prepared``: as the objective weighs it. For pure noise and listed cells; else ``strategy``.
    """
    compiled = prepared.compiled.matrix
    if charge.epsilon is None or charge.epsilon < 1:
        return strategy
    if compiled is None or not isinstance(strategy, MatrixStrategy) or compiled.cells > BOUNDED:
        return strategy
    workload = strategy.planned
    x = float(charge.epsilon) / 2
    gain = sinh(x) ** -2 if x < HUGE and strategy.objective != "max" else 0.0  # noise of integers moved by 1, halved
    # Where what a unit can change is not listed, sources are planned apart, their cells among what is compared there.
    listed = workload.units is None or workload.units.listable
    methods = [method for method in (_WHOLE if listed else ("workload",)) if method != strategy.method]
    near = [method for method in methods if _drafted(strategy, method) * x * x * gain <= _NEAR * strategy.value]
    best, least = strategy, inf
    try:
        if not near:
            charge.calibrate(scaled_sensitivity(strategy, compiled), strategy.blocks)
            return strategy
        least, methods = _error(compiled, charge, strategy), near
    except DataError:  # its blocks cannot be drawn at so small a scale, so any of the others is better
        pass
    for method in methods:
        if 0.99 * _drafted(strategy, method) * gain / 2 > least:  # a hundredth for what rounding gained or lost
            continue
        try:
            tolerance, limit = options.tolerance, options.time_limit
            other = select(workload, charge.noise, method, tolerance=tolerance, time_limit=limit)
            other = replace(other, objective=strategy.objective)
            error = _error(compiled, charge, other)
        except (DataError, InternalError):  # too large to be measured so, or out of time
            continue
        if error < least * (1.0 - 1e-9):
            considered = {**dict(strategy.considered), **dict(other.considered)}
            best, least = replace(other, considered=tuple(considered.items())), error
    return best


def _drafted(strategy: Strategy, method: str) -> float:
    """The error at which a method was considered, with noise of any numbers; 0 where that is not known."""
    known = dict(strategy.considered).get(method, 0.0)
    if not known and method == "workload" and isinstance(strategy.planned, Workload):
        return workload_error(strategy.planned)
    return known


def _error(compiled: Compiled, charge: Charge, strategy: Strategy) -> float:
    """The squared error of the objective, total or largest, with the noise that the strategy would have."""
    noise = charge.calibrate(scaled_sensitivity(strategy, compiled), strategy.blocks)
    if not noise.blocks:  # one law for all measurements: the total that is known scales with its variance
        return strategy.value * noise.variance / (strategy.sensitivity * compiled.common_steps) ** 2
    errors = strategy.answers_of(compiled).errors(noise, compiled.common_steps)
    squares = weighed_squares(compiled, np.asarray(errors))
    return float(squares.max() if strategy.objective == "max" else squares.sum())


def weighed_squares(compiled: Compiled, errors: Floats) -> Floats:
    """The squared standard errors of the numbers that depend on the data, as the objective weighs them."""
    weights = (compiled.objective / compiled.scale)[compiled.answered]
    return np.asarray((errors[compiled.answered] * weights) ** 2)
