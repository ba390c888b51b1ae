"""The smoothed matrix mechanism: the L2 problem by first-order descent over positive definite matrices.

Yuan et al. 2012, Appendix B: min max(diag M) tr(G M^-1) over M > 0, the maximum replaced by
f_mu(v) = mu log sum_i exp(v_i / mu) (Eq. 14, within mu log n of it), by non-monotone projected gradients. Kept for
comparison: ``optimal`` solves the same convex problem with a certificate.

Here the logarithm of the product is descended (its minimisers are the same, its scale does not matter), steps are
Barzilai-Borwein steps checked against the largest of the last ten values, and projection keeps the
eigenvalues of M above 1e-9 of the largest.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
from scipy import linalg

from dpsql.common.arrays import Floats

_FLOOR = 1e-9
_MEMORY = 10
_STAGES = (0.3, 0.1, 0.03, 0.01)


def smooth_maximum(v: Floats, mu: float) -> tuple[float, Floats]:
    """(f_mu(v), its gradient) (Eq. 14 and 15): between max v and max v + mu log n."""
    top = float(v.max())
    share = np.exp((v - top) / mu)
    total = float(share.sum())
    return top + mu * float(np.log(total)), share / total


def objective(G: Floats, M: Floats, mu: float) -> tuple[float, Floats]:
    """log f_mu(diag M) + log tr(G M^-1) and its gradient in M."""
    P = linalg.inv(M)
    trace = float(np.sum(G * P))
    high, share = smooth_maximum(np.diag(M), mu)
    gradient = -(P @ G @ P) / trace
    gradient = 0.5 * (gradient + gradient.T)
    gradient[np.diag_indices_from(gradient)] += share / high
    return float(np.log(high) + np.log(trace)), gradient


def descend(G: Floats, deadline: float, steps: int = 60) -> Floats:
    """M (n x n) > 0 of small max(diag M) tr(G M^-1), largest diagonal entry 1, from M = I.

    Four stages of falling mu, ``steps`` steps each. Cost a step: one inverse and one
    eigendecomposition of order n.
    """
    n = G.shape[0]
    M = np.eye(n)
    best, least = M, float(np.trace(G))
    for mu in _STAGES:
        value, gradient = objective(G, M, mu)
        recent, step = [value], 0.5 / float(np.abs(gradient).max())
        for _ in range(steps):
            if monotonic() > deadline:
                return best
            trial = _projected(M - step * gradient)
            new, slope = objective(G, trial, mu)
            while new > max(recent) and step > 1e-12:
                step *= 0.25
                trial = _projected(M - step * gradient)
                new, slope = objective(G, trial, mu)
            if new > max(recent):
                break
            moved, bent = trial - M, slope - gradient
            along = float(np.sum(moved * bent))
            step = float(np.clip(np.sum(moved * moved) / along, 1e-10, 1e6)) if along > 0 else 2.0 * step
            M, gradient = trial, slope
            recent = [*recent[-_MEMORY:], new]
            error = float(np.diag(M).max() * np.sum(G * linalg.inv(M)))
            if error < least:
                best, least = M / float(np.diag(M).max()), error
    return best


def _projected(M: Floats) -> Floats:
    s, V = linalg.eigh(0.5 * (M + M.T), driver="evd")
    return np.asarray((V * np.maximum(s, s[-1] * _FLOOR)) @ V.T)
