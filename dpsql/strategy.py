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

from dpsql.strategies import LevelStrategy as LevelStrategy
from dpsql.strategies import LinedStrategy as LinedStrategy
from dpsql.strategies import MarginalStrategy as MarginalStrategy
from dpsql.strategies import MatrixStrategy as MatrixStrategy
from dpsql.strategies import RangeStrategy as RangeStrategy
from dpsql.strategies import RangeTransform as RangeTransform
from dpsql.strategies import ResidualPlan as ResidualPlan
from dpsql.strategies import Strategy as Strategy
from dpsql.strategies import StructuredStrategy as StructuredStrategy
from dpsql.strategies import block_strategy as block_strategy
from dpsql.strategies import lined_strategy as lined_strategy
from dpsql.strategies import range_transform as range_transform
from dpsql.strategies import residual_plan as residual_plan
from dpsql.strategies import residual_strategy as residual_strategy
from dpsql.strategies import select as select
from dpsql.strategies import structured_strategy as structured_strategy
from dpsql.strategies.choose.task import catalogue

CATALOGUE = catalogue()
"""The strategies that ``select`` may name: the kernel's, then those of extensions."""

__all__ = [
    "CATALOGUE",
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
