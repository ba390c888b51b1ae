"""Strategies for a half-width of its own for every query: the least budget subject to var_i <= c_i for all i.

The variance of query i is (noise level) x p_i, p_i = max_j ||a_j||^2 ||w_i A^+||^2, and the budget falls as the noise
level rises. So the least budget belongs to the strategy of least max_i p_i / c_i, which is the least largest variance
(objective "max", ``dpsql.strategies.choose.minimax``) of the workload diag(c)^-1/2 W.

Batches of blocks are weighed by ``dpsql.strategies.kronecker.largest``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.strategies.core.base import PURE
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.kronecker.largest import least_largest
from dpsql.strategies.kronecker.structured import StructuredStrategy
from dpsql.strategies.selection import select
from dpsql.workloads.cells.boxes import BoxWorkload
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.families.matrix import Workload

Say = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """How near to the least to go, seconds from now, and who is told of progress; as ``select`` takes them."""

    tolerance: float = 1e-3
    time_limit: float | None = None
    progress: Say | None = None


def strategies_for(
    W: Workload, noise: str, limits: Limits = Limits(), start: MatrixStrategy | None = None
) -> tuple[MatrixStrategy, ...]:
    """Strategies for W = diag(1 / target) x queries: the one of least largest variance, and the one it started from.

    ``start``: None for that of least total error; another one is taken ``instead``.
    With Gaussian noise the first needs the least budget of both. Half-widths of pure noise are not the same multiple of
    all standard errors, so there the other may need less, and the caller compares. Where queries are too many to be
    weighed one by one, the start alone. Raises as ``select``.
    """
    say, began = limits.progress or (lambda _: None), monotonic()
    tolerance, time_limit = limits.tolerance, limits.time_limit

    def total(V: Workload, method: str) -> MatrixStrategy:
        left = None if time_limit is None else max(time_limit - (monotonic() - began), 1e-9)
        return select(V, noise, method, tolerance=tolerance, time_limit=left, progress=limits.progress)

    start = total(W, "auto") if start is None else start.instead(W, "total")
    if isinstance(W, BoxWorkload):
        return (start,)
    from dpsql.strategies.choose.minimax import check_size, minimise_largest

    deadline = np.inf if time_limit is None else began + time_limit
    best: MatrixStrategy | None = None
    try:
        check_size(W.shape[0])
        best = minimise_largest(start, "auto", deadline, total, say)
    except DataError:
        say("too many queries to weigh each; the strategy that this starts from stays")
    if best is None:
        return (start,)
    return (best,) if noise == "gaussian" else (best, start)


def strategies_within(
    batch: Batch, targets: Floats, noise: str, limits: Limits = Limits()
) -> tuple[MatrixStrategy | StructuredStrategy, ...]:
    """``strategies_for`` a batch and ``targets`` (m,); of blocks the one of ``least_largest``. Not along a line."""
    if isinstance(batch, Structured):
        tolerance, left, say = limits.tolerance, limits.time_limit, limits.progress or (lambda _: None)
        return (least_largest(batch, noise, tolerance=tolerance, time_limit=left, say=say, targets=targets),)
    with np.errstate(over="ignore"):  # scales that are not finite are refused
        W = batch.weighed(1.0 / targets).weighted
    assert isinstance(W, Workload)  # noqa: S101 - as the batch is one matrix
    return strategies_for(W, PURE if noise == "laplace" else noise, limits)
