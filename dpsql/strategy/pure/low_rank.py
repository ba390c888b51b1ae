"""The low-rank mechanism under L1 sensitivity: a square mixing of independent rows.

A = C Y with C (v x v) non-singular and Y (v x N) the independent rows; the error
(max_j ||C y_j||_1)^2 tr(gram (C^T C)^-1) is minimised over C (Yuan et al. 2012, section 4, where W = B L is
B = P C^-1, L = C Y with r = rank W). Both the absolute value and the maximum are smoothed,
in three stages of growing sharpness, and L-BFGS starts from the Gaussian optimum, whose
symmetric root has rows of small L1 norm. Not convex: a heuristic, judged by its computed error.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
from scipy import linalg, optimize

from dpsql.arrays import Floats

_STAGES = ((0.3, 20.0), (0.05, 80.0), (0.01, 300.0))


class _Objective:
    """log tr(gram (C^T C)^-1) + 2 log of the smoothed largest L1 column norm, and its gradient.

    |z| is smoothed to (z^2 + mu^2)^1/2, mu being ``soft`` times the mean of |z|, so that multiples of C have one
    value; the maximum to a mean of power ``sharp``.
    """

    def __init__(self, gram: Floats, Y: Floats) -> None:
        self._gram, self._Y = gram, Y
        self.soft, self.sharp = _STAGES[0]

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        v = self._gram.shape[0]
        C = flat.reshape(v, v)
        try:
            P = linalg.inv(C, check_finite=False)
        except linalg.LinAlgError:
            return 1e300, np.zeros_like(flat)
        left = self._gram @ P
        trace = float(np.einsum("ij,ij->", left, P))
        grad = -2.0 * (P.T @ left) @ P.T / trace
        Z = C @ self._Y
        mu = self.soft * float(np.abs(Z).mean())
        size = np.sqrt(Z * Z + mu * mu)
        sums = size.sum(axis=0)
        top = float(sums.max())
        powers = (sums / top) ** self.sharp
        total = float(powers.sum())
        value = np.log(trace) + 2.0 * (np.log(top) + np.log(total) / self.sharp)
        share = powers / (total * sums)
        # d size = (z dz + mu dmu) / size, and dmu = soft times the mean of sign(z) dz.
        by_mu = self.soft / Z.size * float(((mu / size) * share).sum())
        grad = grad + 2.0 * ((Z / size) * share + by_mu * np.sign(Z)) @ self._Y.T
        return float(value), grad.ravel()


def search(gram: Floats, Y: Floats, root: Floats, deadline: float, work: float) -> Floats:
    """C (v x v) of small error, from the start ``root``; steps limited by ``work`` multiplications."""
    v, N = Y.shape
    # Rows of very different length (rounded floats carry a factor 2^36) would mislead the minimiser:
    # C is sought for rows of length 1, and undone at the end.
    length = np.sqrt((Y * Y).mean(axis=1))
    Y, gram, root = Y / length[:, None], gram * np.outer(length, length), root * length
    spread = float(np.abs(root).max())
    root = root / spread
    objective = _Objective(gram, Y)
    limit = int(np.clip(work / (len(_STAGES) * (6.0 * v * v * N + 8.0 * v**3)), 5, 150))

    def exact(C: Floats) -> float:
        trace = float(np.sum((gram @ (P := linalg.inv(C))) * P))
        return trace * float(np.abs(C @ Y).sum(axis=0).max()) ** 2

    def watch(xk: Floats) -> None:
        if monotonic() > deadline:
            raise StopIteration  # the minimiser then returns the point it has

    best, least = root, exact(root)
    C = root
    for soft, sharp in _STAGES:
        if monotonic() > deadline:
            break
        objective.soft, objective.sharp = soft, sharp
        found = optimize.minimize(
            objective,
            C.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=watch,
            options={"maxiter": limit, "maxcor": 15},
        )
        C = np.asarray(found.x).reshape(v, v)
        if np.isfinite(C).all() and np.linalg.cond(C) < 1e10:
            error = exact(C)
            if error < least:
                best, least = C, error
        else:
            break
    return np.asarray(best / length)


def symmetric_root(metric: Floats, gram: Floats) -> Floats:
    """A root C of ``metric`` (C^T C = metric) that is symmetric in the coordinates of ``gram``.

    With gram = S^2 (S symmetric) it is (S^-1 metric S^-1)^1/2 S: the strategy K^-1/4 U for the root U = S Y.
    """
    s, V = linalg.eigh(gram)
    root = np.sqrt(np.maximum(s, s[-1] * 1e-14))
    S, inverse = (V * root) @ V.T, (V / root) @ V.T
    d, Q = linalg.eigh(inverse @ metric @ inverse)
    return np.asarray((Q * np.sqrt(np.maximum(d, d[-1] * 1e-14))) @ Q.T @ S)
