"""The least error where one unit is counted in some of many groups that are alike.

Of each of T sources a unit is counted in s_t <= l_t of g_t groups, which all weigh gamma_t; beside them it moves other
queries by one of N columns, or not at all. Exchanging groups of one source changes neither the Gram matrix nor the
contributions C (``dpsql.workloads.families.contributions``), so that an optimal X is invariant and so is the average of
the dual's weights over each orbit of C: an orbit is a column and the sizes s. Let P_t project the groups of source t
on the contrasts between them, and u_t be their sum. Then for weights lambda of orbits

    M = sum_o lambda_o E[c c^T] = (sum_o lambda_o y_o y_o^T on columns and u)  +  sum_t T_t / (g_t - 1) P_t,

    T_t = sum_o lambda_o tau_ot,   tau_ot = s_t - s_t^2 / g_t,

and the dual's value (``dpsql.strategies.gaussian.optimal``) is t^2 for t = tr (R Y Lambda Y^T R^T)^1/2
+ sum_t (gamma_t (g_t - 1) T_t)^1/2, with R^T R the Gram matrix of the other queries and gamma_t / g_t for each u_t. The
metric has x_t = (gamma_t (g_t - 1) / T_t)^1/2 on P_t, q_o = ||K^-1/4 R y_o||^2 + sum_t x_t tau_ot, and all else is as
there. A step costs O(v^2 N) for v the other queries' rank and T, whatever the number of groups. Where the groups of one
source are of several classes, each class is a source here, and their sizes together are at most l.

With one source and nothing else X = a I + b J, with b < 0 where a unit may be in all groups: what all groups share
is subtracted, because a unit never changes one group up and another down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints
from dpsql.strategies.core.ascent import ascend

_STEPS = 2000
_ORBITS = 40_000


@dataclass(frozen=True, eq=False)
class Orbits:
    """C by its orbits: their ``columns`` (v x N) over the other queries and the sums u, their tau ``spread`` (T x N).

    ``factor`` (v x v): R; ``weights`` (T,): gamma_t (g_t - 1).
    """

    factor: Floats
    columns: Floats
    spread: Floats
    weights: Floats


@dataclass(frozen=True, eq=False)
class Alike:
    """``metric`` (v x v) over the other queries and u, ``contrasts`` x (T,); lower <= least error <= upper.

    ``weights`` (N,): the lambda whose dual value is ``lower``.
    """

    metric: Floats
    contrasts: Floats
    lower: float
    upper: float
    weights: Floats


class _State:
    """A state of the ascent."""

    def __init__(self, held: Orbits, moved: Floats, lam: Floats) -> None:
        K = (moved * lam) @ moved.T
        s, V = scipy.linalg.eigh(K, driver="evd", check_finite=False)
        root = np.sqrt(np.maximum(s, max(s[-1], 1e-300) * 1e-15))
        total = np.maximum(held.spread @ lam, 1e-300)
        self.contrasts = np.sqrt(held.weights / total)
        self.t = float(root.sum() + np.sqrt(held.weights * total).sum())
        half = (V / np.sqrt(root)).T @ moved
        self.q = np.einsum("ij,ij->j", half, half) + self.contrasts @ held.spread
        self._inverse = (V / root) @ V.T

    def upper(self) -> float:
        return self.t * float(self.q.max())

    def metric(self) -> Floats:
        return np.asarray(self._inverse)


def solve_alike(held: Orbits, tolerance: float, deadline: float) -> Alike:
    """Certified optimum to a gap of ``tolerance``; stops at ``deadline`` (monotonic seconds) with the gap reached."""
    moved, N = held.factor @ held.columns, held.columns.shape[1]
    start = np.full(N, 1.0 / N)
    state, lam, _ = ascend(lambda lam: _State(held, moved, lam), start, tolerance, deadline, _STEPS)
    top = float(state.q.max())
    metric = held.factor.T @ state.metric() @ held.factor / top
    return Alike(np.asarray(metric), state.contrasts / top, state.t**2, state.upper(), lam)


def orbits(
    factor: Floats,
    others: Floats,
    groups: Sequence[int],
    weights: Sequence[float],
    source: Sequence[int],
    most: Ints,
    times: Ints,
) -> Orbits | None:
    """The orbits of units that move the other queries by a column of ``others`` (w x N), or not at all.

    ``groups`` g, ``weights`` gamma of each class of alike groups; class i is of source t = ``source[i]``, of whose
    groups at most ``most[t]`` count a unit, ``times[t]`` times each. ``factor`` (w x w) of the other queries. None
    above 40,000.
    """
    w, T = others.shape[0], len(groups)
    limits = [min(int(most[t]), g) for t, g in zip(source, groups, strict=True)]
    if (others.shape[1] + 1) * prod(limit + 1 for limit in limits) > _ORBITS:
        return None
    plain = np.concatenate([np.zeros((w, 1)), others], axis=1)
    sizes = np.stack(np.meshgrid(*(np.arange(k + 1) for k in limits), indexing="ij"), axis=0).reshape(T, -1)
    for t, limit in enumerate(most):
        sizes = sizes[:, sizes[np.asarray(source) == t].sum(axis=0) <= limit]
    n, k = plain.shape[1], sizes.shape[1]
    often = np.asarray(times, dtype=np.float64)[np.asarray(source)][:, None]
    columns = np.concatenate([np.repeat(plain, k, axis=1), np.tile(often * sizes, n)], axis=0)[:, 1:]
    number = np.asarray(groups, dtype=np.float64)
    gamma = np.asarray(weights, dtype=np.float64)
    tau = np.tile(often**2 * (sizes - sizes**2 / number[:, None]), n)[:, 1:]
    whole = scipy.linalg.block_diag(factor, np.diag(np.sqrt(gamma / number))) if w else np.diag(np.sqrt(gamma / number))
    return Orbits(np.asarray(whole), np.asarray(columns, dtype=np.float64), np.asarray(tau), gamma * (number - 1))
