"""Theorem 1 of Wang, Ying and Zhang 2015: how large the worst squared error of a statistical query must and may be.

A statistical query is q(x) = sum_i phi_i(x_i) / sum_i c_i with c_i = max phi_i - min phi_i, so that every q moves by 1
over all databases; its distortion is E (estimate - q(x))^2 at the worst x.
"""

from __future__ import annotations

import math

from scipy.special import ndtr

from dpsql.errors import DataError
from dpsql.privacy.response import Response


def distortion_upper_bound(response: Response, rows: int, *, spread: float = 1.0) -> float:
    """At most this is E (proper estimate - q(x))^2, for every statistical query and every x of ``rows`` rows.

    4 spread^2 / (a^2 n), a = keep - lie: Theorem 1's 4 (b - a)^2 g^2 / (c^2 (1 - e^-epsilon)^2 n), g = 1 + (k - 1)
    e^-epsilon, since (1 - e^-epsilon) / g is keep - lie. ``spread`` is the theorem's (b - a) / c: 1 where all rows
    have the same function, else (largest - least value of any phi_i) / (least c_i).

    It holds at every n, for the probabilities that are really used. Proof: Var phi_i(Y) <= c_i^2 / 4, so the unbiased
    estimate of q has variance at most sum_i c_i^2 / (4 a^2 (sum_i c_i)^2) <= spread^2 / (4 a^2 n), and the proper one
    at most four times that. So even a quarter of this figure holds, and a sixteenth for the unbiased estimator; what
    is returned is the figure as the theorem has it.
    """
    _check(rows)
    if not math.isfinite(spread) or spread < 1:
        raise DataError("spread is (b - a) / c and at least 1; leave it out where all rows have the same function")
    return float(4 * (spread / float(response.contrast)) ** 2 / rows)


def distortion_lower_bound(domain_size: int, epsilon: float, rows: int) -> float:
    """The leading term of a lower bound, over *all* epsilon-DP mechanisms (replace one row) with proper estimators.

        (1 - Phi(1))^2 / (16 k (1 + e^epsilon / (k - 1))^3 n)

    No certificate at any finite n: the theorem adds o(1/n) to it, of either sign and of unknown size, and there is no n
    from which the bound is known to hold. Theorem 1 prints epsilon where its proof, Eqs. (20) and (21), has
    e^epsilon; this is the latter. Stated for k = 2^l, on which it depends through k alone; for other k it is the same
    expression, which the paper does not state.
    """
    _check(rows)
    if isinstance(domain_size, bool) or not isinstance(domain_size, int) or domain_size < 2:
        raise DataError("the domain must have at least 2 values")
    if not 0 <= epsilon < math.inf:
        raise DataError("epsilon must be a finite number of at least 0")
    if epsilon > 200:
        return 0.0
    tail = float(ndtr(-1.0))
    return tail**2 / (16 * domain_size * (1 + math.exp(epsilon) / (domain_size - 1)) ** 3 * rows)


def _check(rows: int) -> None:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise DataError("the number of rows must be a whole number of at least 1")
