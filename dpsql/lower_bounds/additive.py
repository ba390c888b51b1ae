"""Lower bounds with constants for any noise that is added: under pure epsilon, and in an account of mu.

Those of pure epsilon are in the units of ``Strategy.error``: times 2 / epsilon^2.

Setting. Answers W x + z, z independent of x, of a law that costs epsilon t where a record moves x by a multiple t of
its column, as that of every norm on the reals does (Laplace noise, noise in blocks). Integers know no part of a record:
noise on them, or a staircase, may have less at a large epsilon, 28 % at 2 and 70 % at 4. Let U be a root of the Gram
matrix (U^T U = G), u_j what one record moves of U x, and S the covariance of the noise of U x; the total squared error
is tr S at least.

Half of the dual. Let p be the density along t u_j. Its mean moves by t u_j, so that for every w (Hammersley, Chapman
and Robbins) (w^T t u_j)^2 <= w^T S w chi^2 with chi^2 = E (p(z - t u_j) / p(z) - 1)^2, at most (e^a - 1)(1 - e^-a) for
a = epsilon t, the variance of a quotient of mean 1 between e^-a and e^a. As t goes to 0, w = S^-1 u_j gives u_j^T S^-1
u_j <= epsilon^2. The least tr S under these conditions is that of Gaussian noise at mu = epsilon: the dual bound over
epsilon^2, which is half of it in units of 2 / epsilon^2. A Laplace matrix mechanism has the whole dual at least, since
no L1 norm is below its L2 norm. The least largest diagonal of W S W^T under these conditions is in the same way that of
Gaussian noise, which bounds the largest error of a query.

Volumes. On an m-dimensional subspace the law has log p(z + v) >= log p(z) - epsilon ||v||, ||.|| the norm whose ball K
is the hull of the projected +-u_j. So {p >= e^(-epsilon t) max p} holds a translate of t K, and grows by it (Brunn and
Minkowski); the symmetric rearrangement of p, of no larger second moment, falls no faster than exp(-epsilon r / R) for
the radius R of a ball of K's volume, and is stochastically largest near 0 where it falls so: E r^2 = m (m + 1) R^2 /
epsilon^2 (Hardt and Talwar 2010, with constants). Orthogonal subspaces add up. Vol K is at least 2^m / m! det(M)^(1/2)
prod |v_j|^(c_j) for any weights lambda, M = sum lambda_j u_j u_j^T, v_j = M^(-1/2) u_j and c_j = lambda_j |v_j|^2, by
the reverse Brascamp-Lieb inequality of functions exp(-|t| / |v_j|) (Barthe 1998); best at the D-optimal design,
lambda_j <- lambda_j |v_j|^2 / m. Exact for the identity.

An account of mu. Whatever the law of z, on the reals or on integers, in one dimension or many, a release that an
account of Gaussian noise charges mu must be no easier to tell apart for neighbours than N(0, 1) and N(mu, 1): both laws
are then one randomised function of these (Dong, Roth and Su 2022, Thm 2.10), and no function raises a chi-square
divergence, so that of z + u_j from z is at most e^(mu^2) - 1. The inequality above at t = 1 gives u_j^T S^-1 u_j <=
e^(mu^2) - 1, where Gaussian noise has mu^2: its least error times mu^2 / (e^(mu^2) - 1) bounds all of them. That is
0.98 of it at mu = 0.18 (epsilon = 1, delta = 1e-9) and 0.79 at mu = 0.67 (epsilon = 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, lgamma, log, pi

import numpy as np
from scipy import linalg

from dpsql.common.arguments import one_of, real, taking
from dpsql.common.arrays import Floats
from dpsql.errors import DataError, quoted
from dpsql.lower_bounds.singular import svd_bound
from dpsql.lower_bounds.spectrum import factors
from dpsql.strategies.choose.task import Task
from dpsql.strategies.core.time_left import TimeLeft
from dpsql.strategies.selection import select
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload

_STEPS = 60  # of the D-optimal design
_RTOL = 1e-10
_LISTED = 4_000_000  # entries of U up to which volumes are bounded


@taking(W=one_of(Workload, Marginals))
def laplace_bound(W: Workload | Marginals, objective: str = "total") -> float:
    """No Laplace strategy has a lower error: the Gaussian optimum's lower bound, certified within 1 %.

    ``objective``: "total", or "max" for the largest error of a query. Of marginals it is the singular value bound,
    by query for the largest; where what a unit can change is not listed, it is that of ``select`` by sources.
    Raises DataError as ``strategy.select``.
    """
    if objective not in ("total", "max"):
        raise DataError(f"bounds: objective {quoted(objective)} is not known; use 'total' or 'max'")
    if W.as_marginals is not None:
        return svd_bound(W) / (W.shape[0] if objective == "max" else 1)
    W = W.explicit()
    if objective == "max" or (W.units is not None and not W.units.listable):
        return float(select(W, tolerance=1e-2, objective=objective).lower_bound or 0.0)
    return Task(W, "gaussian", 1e-2, TimeLeft.within(None), lambda _: None).optimum().lower


@taking(W=one_of(Workload, Marginals))
def pure_bound(W: Workload | Marginals, objective: str = "total") -> float:
    """No noise on the reals whose probability falls with a norm, of pure epsilon, has a lower error.

    That is added noise which costs epsilon t for a move by t records; see the module for others.

    The better of half of ``laplace_bound`` and, of the total, of volume bounds over principal subspaces: each direction
    apart, all together, and those of like singular values. Raises DataError as ``strategy.select``.
    """
    half = laplace_bound(W, objective) / 2.0
    if objective == "max" or W.as_marginals is not None:
        return half
    W = W.explicit()
    if W.span.shape[0] * W.changes > _LISTED:
        return half
    return max(half, *volume_bounds(W))


@taking(W=one_of(Workload, Marginals), mu=real(1e-6, 25))
def account_bound(W: Workload | Marginals, mu: float, objective: str = "total") -> float:
    """No added noise that is mu-GDP has a lower error, itself and not in units of 1 / mu^2.

    For noise of any law and any number of dimensions; what Gaussian noise has at least, times mu^2 / (e^(mu^2) - 1).
    Raises DataError as ``strategy.select``.
    """
    return laplace_bound(W, objective) / expm1(mu**2)


def volume_bounds(W: Workload) -> list[float]:
    """The bounds of the groupings that ``pure_bound`` compares, in its order."""
    R, Y = factors(W)
    U = np.asarray(R @ Y)
    _, s, Vt = linalg.svd(U, full_matrices=False)
    keep = s > _RTOL * s[0]
    U = s[keep, None] * Vt[keep]
    octaves = np.unique(-np.floor(np.log2(s[keep])), return_counts=True)[1]
    return [_grouped(U, sizes) for sizes in ([1] * U.shape[0], [U.shape[0]], octaves.tolist())]


def _grouped(U: Floats, sizes: Sequence[int]) -> float:
    ends = np.cumsum(sizes)
    return sum(_of_volume(U[end - m : end]) for m, end in zip(sizes, ends, strict=True))


def _of_volume(U: Floats) -> float:
    """m (m + 1) / 2 (Vol K / omega_m)^(2/m) for the hull K of +-columns, by a bound of its volume."""
    m = U.shape[0]
    if m == 1:
        return float(np.abs(U).max()) ** 2
    lam = np.full(U.shape[1], 1.0 / U.shape[1])
    best = -np.inf
    for _ in range(_STEPS):
        try:
            L = linalg.cholesky((U * lam) @ U.T, lower=True)
        except linalg.LinAlgError:
            break
        squares = (linalg.solve_triangular(L, U, lower=True) ** 2).sum(axis=0)
        weighted = lam * squares
        used = weighted > 0
        value = float(np.log(np.diag(L)).sum()) + 0.5 * float(weighted[used] @ np.log(squares[used]))
        best = max(best, value)
        lam = weighted / weighted.sum()
    if best == -np.inf:
        raise DataError("bounds: the columns of the workload span too few directions for their volume")
    log_ball = 0.5 * m * log(pi) - lgamma(0.5 * m + 1.0)
    log_volume = m * log(2.0) - lgamma(m + 1.0) + best
    return float(0.5 * m * (m + 1) * exp(2.0 * (log_volume - log_ball) / m) * (1.0 - 1e-9))
