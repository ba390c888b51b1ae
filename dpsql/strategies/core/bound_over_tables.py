"""A lower bound for a unit that moves several tables at once, from what is known of each by itself.

Of table t some law of what a unit moves, c_t, has the second moment N_t N_t^T in coordinates in which the Gram matrix
is the identity, N_t with a column for each c_t times the root of its chance, and e those roots, a unit vector: the mean
is N_t e. Let a unit move the tables of a set A, each by its law and apart from the others, with chance lambda_A. With
Pi = sum_A lambda_A 1_A 1_A^T, p its diagonal,

    M = R R^T,    R = [diag p_t^1/2 N_t (I - e e^T),  diag(N_t e) Pi^1/2],

since tables share their means alone. The nuclear norm of R is at least <Q, R> for every Q of norm 1. N_t = P_t S_t with
S_t = (N_t^T N_t)^1/2 and Q = diag(P_t) [I - e e^T, diag(e) V], V of norm 1, give

    tr M^1/2 >= sum_t p_t^1/2 (n_t - s_t) + tr (diag(s) Pi diag(s))^1/2,    n_t = tr S_t,  s_t = e^T S_t e.

The square of that bounds the error of every strategy, for any chances. It does not grow with s_t, as no column of
Pi^1/2 is longer than p_t^1/2, so that |N_t e|, which is no less, may stand for s_t. It is the dual of a problem of
``dpsql.strategies.core.symmetric`` whose orbits are the sets: (n_t - s_t)^2 copies of a line for each table, which the
sets that hold it move by 1, and a part with root diag(s), which a set moves by 1_A.

It also holds for laws of the same or a larger covariance N_t (I - e e^T) N_t^T and a longer mean: |R|_* is convex in
what a mean is multiplied by and even, as the signs of a table's rows of R and of its own columns may be changed
together. So numbers of groups by lot, s of g, are bounded by one group times (s (g - s) / (g - 1))^1/2, mean and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.numerics import ROUNDING, SINGULAR
from dpsql.strategies.core.symmetric import Lines, Part, solve

_EVERY = 7  # tables of which all sets are tried


def least_of_tables(norms: Sequence[tuple[float, float]], sets: Floats | None = None) -> float:
    """The best bound of the module over chances of sets of tables.

    ``norms``: (n_t, at least s_t) of each table. ``sets`` (k, tables) of 0 and 1: those that a unit may move, if not
    any. Cost: the roots of some dozens of matrices of the order of the tables.
    """
    n, s = np.array(norms, dtype=np.float64).reshape(-1, 2).T
    if n.size == 0 or n.max() <= 0:
        return 0.0
    if n.size == 1:
        return float(n[0]) ** 2
    n, s = n / n.max(), np.minimum(s, n) / n.max()
    sets = _sets(n, s) if sets is None else sets
    parts = Lines((n - s) ** 2, np.ones(n.size), sets), Part(1.0, np.diag(s), sets)
    return float((1.0 - ROUNDING) * solve(parts, 1e-7).lower * max(t for t, _ in norms) ** 2)


def _sets(n: Floats, s: Floats) -> Floats:
    """Sets of tables, a row of 0 and 1 each: all of few; of many each, all, all but one, and all of small means."""
    T = n.size
    if T <= _EVERY:
        return np.array(list(product((0.0, 1.0), repeat=T)))[1:]
    order = np.argsort(s / np.maximum(n, SINGULAR), kind="stable")
    first = np.zeros((T, T))
    first[:, order] = np.tri(T)
    return np.unique(np.concatenate([np.eye(T), 1.0 - np.eye(T), first]), axis=0)


__all__ = ["least_of_tables"]
