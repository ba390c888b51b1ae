"""The least largest variance of any query (objective "max"): the total error of weighed queries, again and again.

For every w >= 0 with sum 1 over the queries the largest variance is at least the average under w, and the least average
is the least total error of D_w^1/2 W. So the weights rise with the variances v_i of the last round, w_i <- w_i v_i^2
(w_i v_i for Laplace noise, where larger steps miss), the total error of D_w^1/2 W is minimised anew, and the best round
is taken. Nothing is certified but what holds of every strategy: the largest variance is at least the least total error
over the number of queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Ints, Matrix
from dpsql.errors import DataError, InternalError
from dpsql.linalg.forms import is_sparse
from dpsql.linalg.inner import Diagonal, Inner
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.workloads.families.matrix import Workload

Total = Callable[[Workload, str], MatrixStrategy]
"""A selection by total error: (workload, method) to strategy."""

MOST_QUERIES = 2**23
_ROUNDS = 12  # of the minimisation in rounds; more gain little


@dataclass(frozen=True, eq=False)
class Weighted(Inner):
    """The inner factor diag(sqrt(weights)) F: squared errors of query i count ``weights[i]`` times."""

    inner: Inner
    weights: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    def gram(self, weights: Floats | None = None) -> Floats:
        return self.inner.gram(self.weights if weights is None else self.weights * weights)

    def matrix(self) -> Matrix:
        entries = self.inner.matrix()
        root = np.sqrt(self.weights)
        return sparse.csr_array(sparse.diags_array(root) @ entries) if is_sparse(entries) else root[:, None] * entries

    def coupling(self) -> Ints:
        return self.inner.coupling()


def reweighted(W: Workload, weights: Floats) -> Workload:
    """diag(sqrt(weights)) W: its total squared error is the weighted sum of the squared errors of W's queries."""
    plain = isinstance(W.inner, Diagonal)
    scaled = Diagonal(W.scale * np.sqrt(weights)) if plain else Weighted(W.inner, weights)
    exact = None if W.exact is None else np.sqrt(weights)[:, None] * W.exact
    return Workload(W.span, scaled, W.contributions, W.groups, W.name, (), exact, W.units)


def check_size(queries: int) -> None:
    """DataError where there are too many queries to weigh each."""
    if queries > MOST_QUERIES:
        raise DataError(
            f"strategy: the largest error weighs each of {queries:,} queries by itself, at most {MOST_QUERIES:,}; "
            "use objective='total', or ask fewer queries"
        )


def minimise_largest(
    start: MatrixStrategy,
    method: str,
    deadline: float,
    total: Total,
    say: Callable[[str], None],
) -> MatrixStrategy:
    """The strategy whose largest variance of a query is least, from ``start``, that of least total error.

    The largest variance is never above that of ``start``, whose planned workload and noise it is for.

    ``Strategy.lower_bound`` is then the least total error over the number of queries (None with Laplace noise), which
    may be far below what can be reached: there is no gap. Ends at ``deadline`` (monotonic seconds), or after 12 rounds.
    """
    W = start.planned
    found = [(start.largest(W), start.method, start)]
    say(f"{start.method}: largest error {found[0][0]:.6g}")
    # Weights do not change the identity, only which strategy is best: then all methods are tried again.
    again = method if start.noise == "gaussian" or start.method == "identity" else start.method
    found += _rounds(W, start, again, deadline, total, say)
    _, name, best = min(found, key=lambda f: f[0])
    return replace(
        best,
        method=name,
        expected=best.error(W),
        lower_bound=None if start.lower_bound is None else start.lower_bound / W.shape[0],
        considered=tuple((label, largest) for largest, label, _ in found),
        planned=W,
        objective="max",
    )


def _rounds(
    W: Workload,
    start: MatrixStrategy,
    method: str,
    deadline: float,
    total: Total,
    say: Callable[[str], None],
) -> list[tuple[float, str, MatrixStrategy]]:
    """Minimise the total error of D_w^1/2 W again and again: the best of it, if any is better than ``start``."""
    weights = np.full(W.shape[0], 1.0 / W.shape[0])
    now, largest = start, start.largest(W)
    best: tuple[float, str, MatrixStrategy] | None = None
    idle = 0
    for _ in range(_ROUNDS):
        if monotonic() >= deadline or idle == 2:
            break
        variances = now.variances(W)
        weights = weights * variances ** (2.0 if start.noise == "gaussian" else 1.0)
        weights = weights / float(weights.sum())
        try:
            now = total(reweighted(W, weights), method)
            found = now.largest(W)
        except (DataError, InternalError):
            break  # it has lost the structure that made it small enough, or weights are too far apart for integers
        idle = 0 if found < largest * (1.0 - 1e-3) else idle + 1
        if found < largest:
            largest, best = found, (found, f"{now.method}, reweighted", now)
            say(f"{best[1]}: largest error {largest:.6g}")
    return [] if best is None else [best]
