"""Strategies for a half-width of its own for every query: the least budget subject to var_i <= c_i for all i.

The variance of query i is (noise level) x p_i, p_i = max_j ||a_j||^2 ||w_i A^+||^2, and the budget falls as the noise
level rises. So the least budget belongs to the strategy of least max_i p_i / c_i, which is the least largest variance
(objective "max", ``dpsql.strategy.choose.minimax``) of the workload diag(c)^-1/2 W, and the weights w_i of its dual are
the prices of the constraints: for every w >= 0 with sum w_i = 1,

    max_i p_i / c_i  >=  sum_i w_i p_i / c_i  >=  the least total error of diag(w / c)^1/2 W,

which every lower bound of ``select`` certifies. ``Strategy.gap`` is the certificate: with Gaussian noise no strategy
needs a mu^2 lower by more than that factor.

Batches of blocks (``dpsql.strategy.kronecker.structured``) are weighed by result column, w <- w (p / c)^2 (with Laplace
noise w (p / c)), and planned again for the total error of what is weighed. For marginals all groups of a column have
one variance, so that this is the whole dual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from dpsql.arrays import Floats
from dpsql.errors import DataError
from dpsql.strategy.choose.minimax import check_size, minimise_largest
from dpsql.strategy.choose.select import select
from dpsql.strategy.core.matrix_strategy import MatrixStrategy
from dpsql.strategy.kronecker.structured import OneUnit, StructuredStrategy, structured_strategy
from dpsql.workload.cells.boxes import BoxWorkload
from dpsql.workload.compile.structured import Structured
from dpsql.workload.families.matrix import Workload

Say = Callable[[str], None]

_ROUNDS = 12  # of weighing blocks; more gain little
_IDLE = 3  # rounds without gain after which weighing stops


@dataclass(frozen=True)
class Limits:
    """How near to the least to go, seconds from now, and who is told of progress; as ``select`` takes them."""

    tolerance: float = 1e-3
    time_limit: float | None = None
    progress: Say | None = None


def strategies_for(W: Workload, noise: str, limits: Limits = Limits()) -> tuple[MatrixStrategy, ...]:
    """Strategies for W = diag(1 / target) x queries: the one of least largest variance, and the one it started from.

    With Gaussian noise the first needs the least budget, certified by its ``gap``. Laplace half-widths are 1.96 to
    2.12 standard errors, so there the other may need less, and the caller compares. Where queries are too many to be
    weighed one by one, the strategy of least total error alone. Raises as ``select``.
    """
    say, began = limits.progress or (lambda _: None), monotonic()
    tolerance, time_limit = limits.tolerance, limits.time_limit

    def total(V: Workload, method: str) -> MatrixStrategy:
        left = None if time_limit is None else max(time_limit - (monotonic() - began), 1e-9)
        return select(V, noise, method, tolerance, left, limits.progress)

    start = total(W, "auto")
    if isinstance(W, BoxWorkload):
        return (start,)
    deadline = np.inf if time_limit is None else began + time_limit
    best: MatrixStrategy | None = None
    try:
        check_size(W.shape[0])
        best = minimise_largest(start, "auto", tolerance, deadline, total, say)
    except DataError:
        say("too many queries to weigh each; the total error is least instead")
    if best is None:
        return (start,)
    return (best,) if noise == "gaussian" else (best, start)


def structured_for(
    batch: Structured,
    targets: Floats,
    noise: str,
    limits: Limits = Limits(),
) -> StructuredStrategy:
    """The strategy of a batch of blocks whose largest p_i / ``targets``_i^2 (m,) is least of all rounds.

    ``expected`` and ``lower_bound`` are then of that largest ratio; the bound is the best that a round proved (None
    where no round had one). A target must be the same for all groups of a result column: the least of them counts.
    Cost: up to 12 times ``structured_strategy``. Raises as that does.
    """
    say, tolerance, time_limit = limits.progress or (lambda _: None), limits.tolerance, limits.time_limit
    deadline = None if time_limit is None else monotonic() + time_limit
    spans = sorted({(block.start, block.stop) for block in batch.blocks})
    place = {span: number for number, span in enumerate(spans)}
    least = np.array([float(targets[start:stop].min()) for start, stop in spans])
    sizes = np.array([stop - start for start, stop in spans], dtype=np.float64)
    weight = np.full(len(spans), 1.0 / float(sizes.sum()))
    best: tuple[float, StructuredStrategy] | None = None
    lower, idle = 0.0, 0
    for _ in range(_ROUNDS):
        left = None if deadline is None else deadline - monotonic()
        if best is not None and left is not None and left <= 0:
            break
        scaled = np.sqrt(weight) / least
        blocks = tuple(replace(b, weight=float(scaled[place[b.start, b.stop]])) for b in batch.blocks)
        share = None if left is None else max(left, 1e-9)
        found = structured_strategy(replace(batch, blocks=blocks), noise, tolerance=tolerance, time_limit=share)
        ratios = _ratios(found, spans, least)
        largest = float(ratios.max())
        lower = max(lower, found.lower_bound or 0.0)
        idle = idle + 1 if best is not None and largest > best[0] * (1.0 - 1e-3) else 0
        if best is None or largest < best[0]:
            best = largest, found
            say(f"{found.method}: largest error {largest:.6g}")
        if idle == _IDLE or (lower and best[0] <= (1.0 + tolerance) * lower):
            break
        weight = weight * ratios ** (2.0 if noise == "gaussian" else 1.0)
        weight = np.maximum(weight / float(weight @ sizes), 1e-12 / float(sizes.sum()))
        weight = weight / float(weight @ sizes)
    assert best is not None  # noqa: S101 - the first round always finds one
    largest, chosen = best
    return replace(
        chosen,
        planned=replace(chosen.planned, blocks=batch.blocks),
        expected=largest,
        lower_bound=lower if noise == "gaussian" and lower else None,
        considered=((chosen.method, largest),),
        objective="max",
    )


def _ratios(strategy: StructuredStrategy, spans: list[tuple[int, int]], targets: Floats) -> Floats:
    """The largest p_i / target^2 of each result column."""
    errors = strategy.answers_of(strategy.planned).errors(OneUnit(strategy.noise), 1)
    times = float(strategy.l2_squared) if strategy.noise == "gaussian" else float(strategy.l1) ** 2
    largest = np.array([float(errors[start:stop].max()) for start, stop in spans])
    return np.asarray(times * (largest / targets) ** 2)
