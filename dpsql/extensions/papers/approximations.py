"""Approximations of the matrix-mechanism paper, and two ways to better a strategy under L1.

Li, Hay, Rastogi, Miklau and McGregor 2010, section 5:

``svd_root``         singular value approximation: the sensitivity is replaced by ||A||_F / n^1/2, whose minimiser has
                     A^T A proportional to (W^T W)^1/2. By Cauchy-Schwarz on the singular values its
                     error is at most n max_j ((W^T W)^1/2)_jj / tr (W^T W)^1/2 times the singular value bound.
``l2-approximation`` the minimiser under L2 sensitivity (``row_mixing.symmetric_root`` of the certified optimum), used
                     under Laplace noise with its own L1 norm.
``least_rotation``   MinSensitivity: all Q A with Q orthogonal have the same error profile; the one of least
                     L1 norm is sought by Jacobi rotations of pairs of rows (a heuristic, not convex).
``augmented``        unit rows are added until every column reaches the sensitivity. They cost nothing and A^T A
                     only grows, so no error rises.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
from scipy import linalg

from dpsql.common.arrays import Floats

_ANGLES = 24


def svd_root(gram: Floats, Y: Floats) -> Floats:
    """C (v x v) with A = C Y and A^T A = (Y^T gram Y)^1/2 on the row space of Y (v x N).

    With S S = Y Y^T and S gram S = V diag(s) V^T, Z = S^-1 Y has orthonormal rows, Y^T gram Y =
    Z^T (S gram S) Z, so A = diag(s^1/4) V^T S^-1 Y. Cost O(v^3 + v^2 N).
    """
    e, E = linalg.eigh(Y @ Y.T, driver="evd")
    root = np.sqrt(np.maximum(e, e[-1] * 1e-15))
    S, inverse = (E * root) @ E.T, (E / root) @ E.T
    s, V = linalg.eigh(S @ gram @ S, driver="evd")
    s = np.maximum(s, s[-1] * 1e-15)
    # The symmetric root V diag(s^1/4) V^T has rows of smaller L1 norm than the eigenvectors have.
    return np.asarray((V * s**0.25) @ V.T @ inverse)


def least_rotation(C: Floats, Y: Floats, deadline: float, work: float = 2e9) -> Floats:
    """Q C with Q orthogonal and max_j ||Q C y_j||_1 no larger than that of C; Q is a product of pair rotations.

    ``C`` (p x v), ``Y`` (v x N). Every pair of rows is turned by the angle, out of 24, of the least soft
    maximum (a high power mean) of the column norms; sweeps go on while the true norm falls and
    ``work`` (multiplications) lasts. Cost O(p^2 N) a sweep.
    """
    A = C @ Y
    Q = np.eye(C.shape[0])
    norms = np.abs(A).sum(axis=0)
    best, kept = float(norms.max()), Q.copy()
    angles = np.arange(1, _ANGLES) * (np.pi / (2 * _ANGLES))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    p, N = A.shape
    cost = 4.0 * _ANGLES * N
    power = 8.0
    while work > 0 and power <= 256:
        at_start = best
        for i in range(p - 1):
            for k in range(i + 1, p):
                work -= cost
                if work < 0 or monotonic() > deadline:
                    return np.asarray(kept @ C)
                a, b = A[i], A[k]
                rest = norms - np.abs(a) - np.abs(b)
                turned = rest + np.abs(cos * a + sin * b) + np.abs(cos * b - sin * a)
                top = best
                scores = ((turned / top) ** power).sum(axis=1)
                at = int(np.argmin(scores))
                if scores[at] < float(((norms / top) ** power).sum()) * (1.0 - 1e-12):
                    c, s = float(cos[at, 0]), float(sin[at, 0])
                    A[i], A[k] = c * a + s * b, c * b - s * a
                    Q[i], Q[k] = c * Q[i] + s * Q[k], c * Q[k] - s * Q[i]
                    norms = turned[at]
        norms = np.abs(A).sum(axis=0)
        if norms.max() < best:
            best, kept = float(norms.max()), Q.copy()
        if best > at_start * (1.0 - 1e-4):
            power *= 4.0
    return np.asarray(kept @ C)


def augmented(A: Floats, noise: str) -> Floats:
    """[A; diag(d)] without rows of zeros: every column of A (p x N) filled up to the sensitivity of A.

    d_j = s - ||a_j||_1 for Laplace noise, (s^2 - ||a_j||_2^2)^1/2 for Gaussian noise, s the largest norm.
    """
    if noise == "laplace":
        sums = np.abs(A).sum(axis=0)
        top = float(sums.max())
        short = top - sums
    else:
        squares = (A * A).sum(axis=0)
        top = float(np.sqrt(squares.max()))
        short = np.sqrt(np.maximum(squares.max() - squares, 0.0))
    short[short <= 1e-4 * top] = 0.0  # what rounding to integers would lose is not worth a row
    used = np.flatnonzero(short > 0)
    rows = np.zeros((used.size, A.shape[1]))
    rows[np.arange(used.size), used] = short[used]
    return np.vstack([A, rows])
