"""Strategies: what is measured so that a whole batch has the least total squared error.

Notation, used inside functions here and in ``dpsql.workload`` and ``dpsql.linalg``:

    W       m x n    workload: m queries over n columns (cells)
    G       n x n    W^T W
    x       n        exact data vector, private; never seen here
    A       p x n    strategy in real numbers
    B       p x n    the same in integers, B = mixing @ basis; what is measured
    y       p        noisy measurements B x + noise
    U       r x N    a root of the Gram matrix, U^T U = G, over N merged columns; r = rank W
    lambda  N        dual weights, >= 0, sum 1
    K       r x r    U diag(lambda) U^T
    X       N x N    A^T A, diagonal at most 1
    M       v x v    X in coordinates of the basis, X = Y^T M Y
"""

from __future__ import annotations

from dpsql.strategies.core.base import Strategy
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.kronecker.level_strategy import LevelStrategy
from dpsql.strategies.kronecker.structured import StructuredStrategy, structured_strategy
from dpsql.strategies.marginals.marginal_strategy import MarginalStrategy, block_strategy, residual_strategy
from dpsql.strategies.marginals.residual import ResidualPlan, residual_plan
from dpsql.strategies.ranges.line_strategy import LinedStrategy, lined_strategy
from dpsql.strategies.ranges.range_strategy import RangeStrategy
from dpsql.strategies.ranges.range_transform import RangeTransform, range_transform
from dpsql.strategies.selection import select

__all__ = [
    "LevelStrategy",
    "LinedStrategy",
    "MarginalStrategy",
    "MatrixStrategy",
    "RangeStrategy",
    "RangeTransform",
    "ResidualPlan",
    "Strategy",
    "StructuredStrategy",
    "block_strategy",
    "lined_strategy",
    "range_transform",
    "residual_plan",
    "residual_strategy",
    "select",
    "structured_strategy",
]
