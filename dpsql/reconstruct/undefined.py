"""Groups whose number is NULL for all data, as a denominator is 0 by the statement and the policy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.workloads.expr.formulas import (
    Dated,
    Formula,
    Monotone,
    Negative,
    Product,
    Quotient,
    Statistic,
    Sum,
    affine,
)

Mask = NDArray[np.bool_]


def undefined(formula: Formula, values: Floats, certain: Mask) -> Mask:
    """Groups (g,) in which the formula is NULL by the statement and the policy alone.

    values (g x k): the outputs; certain (g x k): those that do not depend on the data. NULL are a quotient with a
    denominator that is certainly 0, a statistic of a number of rows that is certainly 0, as AVG or STDDEV, and what is
    worked out of either; ``Default`` is never NULL. An estimate that happens to be 0 makes nothing NULL.
    """

    def zero(part: Formula) -> Mask:
        linear = affine(part, values.shape[1])
        if linear is None:
            return np.zeros(len(values), dtype=np.bool_)
        weights, constant = linear
        return np.asarray((values @ weights + constant == 0) & (certain | (weights == 0)).all(axis=1))

    def null(part: Formula) -> Mask:
        match part:
            case Negative(of) | Monotone(of) | Dated(of):
                return null(of)
            case Sum(parts) | Product(parts):
                return np.asarray(np.any([null(one) for one in parts], axis=0), dtype=np.bool_)
            case Quotient(numerator, denominator):
                return null(numerator) | null(denominator) | zero(denominator)
            case Statistic(counted=rows) if rows is not None:
                return zero(rows)
        return np.zeros(len(values), dtype=np.bool_)  # a linear number, or a test that is NULL by itself

    return null(formula)
