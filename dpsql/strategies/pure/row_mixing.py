"""Mixings of independent rows for L1 sensitivity: as many measurements as the rank, each a combination of the rows.

A = C Y with C (v x v) non-singular and Y (v x N) the independent rows; the error (max_j ||C y_j||_1)^2 tr(gram (C^T
C)^-1) is minimised over C: the problem of Yuan et al. 2012, section 4, at r = rank W, solved otherwise. Absolute values
and maximum are smoothed, in three stages of growing sharpness, and L-BFGS starts from the Gaussian optimum, whose
symmetric root has rows of small L1 norm. Not convex: a heuristic, judged by its computed error. Where one unit is in
several groups, turning the rows matters: two groups have the error 4.98 from the symmetric root, 4 as their sum and
difference. ``turned_search`` tries some turns.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
import scipy

from dpsql.common.arrays import Floats
from dpsql.strategies.pure.halves import differences
from dpsql.strategies.pure.p_identity import HOPEFUL

_STAGES = ((0.3, 20.0), (0.05, 80.0), (0.01, 300.0))
_ROUNDS = 6
WIDTH = 10  # columns for each row of C that a round of a turned search takes on
MOST_COLUMNS = 200  # the same of any search with more than twice as many
_STEPS = 75  # of a round
_BEYOND = 1.01  # how far columns that were left out may go beyond the others
_TURNS = 5
_SHARE = 0.05  # of the work, for all turns together
_SEED = 20_261


class _Objective:
    """log tr(gram (C^T C)^-1) + 2 log of the smoothed largest L1 column norm, and its gradient.

    |z| is smoothed to (z^2 + mu^2)^1/2, mu being ``soft`` times the mean of |z|, so that multiples of C have one
    value; the maximum to a mean of power ``sharp``.
    """

    def __init__(self, gram: Floats, Y: Floats, soft: float = 0.3, sharp: float = 20.0) -> None:
        self._gram, self._Y = gram, Y
        self.soft, self.sharp = soft, sharp

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        v = self._gram.shape[0]
        C = flat.reshape(v, v)
        try:
            P = scipy.linalg.inv(C, check_finite=False)
        except scipy.linalg.LinAlgError:
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


def turned_search(gram: Floats, Y: Floats, root: Floats, deadline: float, work: float, rival: float = np.inf) -> Floats:
    """The best C of ``search`` from ``root`` and, over the columns that matter, from a few turns of it."""
    v = Y.shape[0]
    cost = len(_STAGES) * _ROUNDS * _STEPS * (6.0 * WIDTH * v**3 + 1e5)
    rng, tree = np.random.default_rng(_SEED), differences(v)
    turns = [tree / np.linalg.norm(tree, axis=1)[:, None]]
    turns += [scipy.linalg.qr(rng.standard_normal((v, v)))[0] for _ in range(_TURNS - 1)]
    found = [search(gram, Y, root, deadline, work, rival=rival)]
    for turn in turns[: int(_SHARE * work / cost)]:
        if monotonic() < deadline:
            found.append(search(gram, Y, turn @ root, deadline, work, WIDTH * v, rival))
    return min(found, key=lambda C: error_of(gram, C, Y))


def error_of(gram: Floats, C: Floats, Y: Floats) -> float:
    """(max_j ||C y_j||_1)^2 tr(gram (C^T C)^-1)."""
    trace = float(np.sum((gram @ (P := scipy.linalg.inv(C))) * P))
    return trace * float(np.abs(C @ Y).sum(axis=0).max()) ** 2


def search(
    gram: Floats,
    Y: Floats,
    root: Floats,
    deadline: float,
    work: float,
    width: int | None = None,
    rival: float = np.inf,
) -> Floats:
    """C (v x v) of small error, from the start ``root``; steps limited by ``work`` multiplications.

    Ends after the first stage, or in its midst, where that is far above the error ``rival`` of another strategy.

    ``width``: begin each stage with so many columns, the longest, and take on as many that turn out to be longer; of
    very many columns this is done without being asked for.
    """
    v, N = Y.shape
    most, counted = 150 if width is None else _STEPS, N
    if width is None and 2 * MOST_COLUMNS * v < N:
        width = counted = MOST_COLUMNS * v
    # Rows of very different length (rounded floats carry a factor 2^36) would mislead the minimiser:
    # C is sought for rows of length 1, and undone at the end.
    length = np.sqrt((Y * Y).mean(axis=1))
    Y, gram, root = Y / length[:, None], gram * np.outer(length, length), root * length
    spread = float(np.abs(root).max())
    root = root / spread
    steps = int(np.clip(work / (len(_STAGES) * (6.0 * v * v * counted + 8.0 * v**3)), 5, most))

    def watch(xk: Floats) -> None:
        if monotonic() > deadline:
            raise StopIteration  # the minimiser then returns the point it has

    def hopeless(error: float) -> bool:
        return error > HOPEFUL * rival

    def stage(C: Floats, soft: float, sharp: float) -> Floats:
        held = np.arange(N) if width is None else np.argsort(-np.abs(C @ Y).sum(axis=0), kind="stable")[:width]
        for _ in range(_ROUNDS):
            objective = _Objective(gram, Y[:, held], soft, sharp)
            found = scipy.optimize.minimize(
                objective,
                C.ravel(),
                jac=True,
                method="L-BFGS-B",
                callback=watch,
                options={"maxiter": steps, "maxcor": 15},
            )
            C = np.asarray(found.x).reshape(v, v)
            sums = np.abs(C @ Y).sum(axis=0)
            if width is None or not sums.max() > _BEYOND * sums[held].max() or monotonic() > deadline:
                break
            if hopeless(error_of(gram, C, Y[:, held])):
                break
            held = np.union1d(held, np.argsort(-sums, kind="stable")[:width])
        return C

    best, least = root, error_of(gram, root, Y)
    C = root
    for soft, sharp in _STAGES:
        if monotonic() > deadline:
            break
        C = stage(C, soft, sharp)
        if np.isfinite(C).all() and np.linalg.cond(C) < 1e10:
            error = error_of(gram, C, Y)
            if error < least:
                best, least = C, error
            if hopeless(least):
                break
        else:
            break
    return np.asarray(best / length)


def symmetric_root(metric: Floats, gram: Floats) -> Floats:
    """A root C of ``metric`` (C^T C = metric) that is symmetric in the coordinates of ``gram``.

    With gram = S^2 (S symmetric) it is (S^-1 metric S^-1)^1/2 S: the strategy K^-1/4 U for the root U = S Y.
    """
    s, V = scipy.linalg.eigh(gram, driver="evd")
    root = np.sqrt(np.maximum(s, s[-1] * 1e-14))
    S, inverse = (V * root) @ V.T, (V / root) @ V.T
    d, Q = scipy.linalg.eigh(inverse @ metric @ inverse, driver="evd")
    return np.asarray((Q * np.sqrt(np.maximum(d, d[-1] * 1e-14))) @ Q.T @ S)
