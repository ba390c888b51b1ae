"""Tests of hypotheses whose null laws include the privacy noise, and Gini's coefficient.

A statistic that is worked out of noisy numbers as if they were exact rejects true hypotheses far too often (Gaboardi,
Lim, Rogers and Vadhan 2016). Here each is a linear form of the numbers, to first order, divided by its standard
deviation under the null hypothesis: that of sampling and that of the noise, whose law is known.

- Two means: (m_1 - m_2) / sqrt(s_1^2 / n_1 + s_2^2 / n_2 + v), v the noise's variance of m_1 - m_2, against Student's t
  with Satterthwaite's degrees of freedom (1946): 2 V^2 / Var(V) for V under the root, the noise of s^2 / n in Var(V).
- Independence of a table N (r x c) with margins p, q: U = (A x B)' N for all A orthogonal to p and B to q, the
  directions in which N moves where nothing that margins say does, has mean 0 and covariance
  V = (A x B)' (n diag(p x q) + Cov(noise)) (A x B); U' V^-1 U is chi-square with (r - 1)(c - 1) degrees of freedom
  (Kifer and Rogers 2017; without noise it is Pearson's statistic). Errors of margins enter to second order alone.

Pure noise has longer tails than normal. A whitened form sum_l a_l z_l of d dimensions has a square T with mean d and
variance 2 d + e, e its excess (``spread.excess``: 3 sum_l |a_l|^4 of Laplace noise, by blocks where it has these), and
so has (nu - 2) / nu times d F for F of d and nu = 4 + 2 d (d + 2) / e degrees of freedom: that is its law here,
chi-square or Student's t where e is 0.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import scipy

from dpsql.common.arrays import Floats
from dpsql.workloads.expr.statistics import Comparison, Gini, Independence

from .fieller import Ratios, fieller
from .fits import joint_covariance, linear_part
from .linear_errors import LinearErrors
from .spread import as_dense, excess, in_deviations


@np.errstate(all="ignore")
def compared(formula: Comparison, values: Floats, errors: LinearErrors) -> Floats:
    """What Welch's test says in all groups (g,); NaN where the noise hides how many rows there are."""
    k = values.shape[1]
    gradient, variance, spread = np.zeros((len(values), k)), np.zeros(len(values)), np.zeros(len(values))
    difference = np.zeros(len(values))
    known = np.ones(len(values), dtype=np.bool_)
    for sign, group in zip((-1.0, 1.0), formula.groups, strict=True):
        (n, n_row), (S, S_row), (Q, Q_row) = (linear_part(part, values) for part in group)
        known &= n > np.maximum(errors.half_widths(errors.combine(np.tile(n_row, (len(n), 1)))), 2.0)
        n = np.maximum(n, 2.0)
        m = S / n
        slope = (S_row - m[:, None] * n_row) / n[:, None]
        gradient += sign * slope
        difference += sign * m
        squares = Q - S**2 / n + n * errors.deviations(errors.combine(slope)) ** 2
        of_mean = np.clip(squares / (n - 1), 0.0, formula.width**2 / 4 * n / (n - 1)) / n
        about = (Q_row - 2 * m[:, None] * S_row + (m * m)[:, None] * n_row) / (n * (n - 1))[:, None]
        variance += of_mean
        spread += 2 * of_mean**2 / (n - 1) + errors.deviations(errors.combine(about)) ** 2
    rows = errors.combine(gradient)
    variance += errors.deviations(rows) ** 2
    t = difference / np.sqrt(variance)
    degrees = np.clip(2 * variance**2 / spread, 1.0, 1e9)
    if errors.noise.kind != "gaussian":
        held = in_deviations(rows, errors.noise)
        fourth = np.array([excess(as_dense(held[at : at + 1]), errors.noise) for at in range(len(t))]) / variance**2
        tails = fourth / (4 * fourth + 6)  # 1 / nu
        t /= np.sqrt(1 - 2 * tails)
        degrees = 1 / (1 / degrees + tails)
    found = {"t": t, "df": degrees, "p_value": 2 * scipy.special.stdtr(degrees, -np.abs(t))}[formula.what]
    return np.where(known, found, np.nan)


@np.errstate(all="ignore")
def independence(formula: Independence, values: Floats, errors: LinearErrors) -> Floats:
    """The statistic, or its p-value, in all groups (g,); NaN where the noise hides how many rows there are."""
    parts = [linear_part(part, values) for part in formula.counts]
    counts, weights = np.stack([value for value, _ in parts], axis=1), np.stack([weight for _, weight in parts])
    noise = np.einsum("ak,gkl,bl->gab", weights, joint_covariance(errors, len(values)), weights, optimize=True)
    total = errors.half_widths(errors.combine(np.tile(weights.sum(axis=0), (len(values), 1))))
    found = np.full(len(values), np.nan)
    for at in map(int, np.flatnonzero(counts.sum(axis=1) > np.maximum(total, 1.0))):
        T, tail = _statistic(counts[at].reshape(formula.rows, -1), noise[at], weights, at, errors)
        d = formula.degrees
        p = scipy.special.chdtrc(d, T) if np.isinf(tail) else scipy.special.fdtrc(d, tail, T * tail / (tail - 2) / d)
        found[at] = T if formula.what == "chisq" else p
    return found


def _statistic(table: Floats, noise: Floats, weights: Floats, group: int, errors: LinearErrors) -> tuple[float, float]:
    """U' V^-1 U of one table, and the nu of its law: infinite where that is chi-square."""
    n = float(table.sum())
    # Half a row at least, where the estimate is below: enough to keep a table from looking impossible.
    margins = [np.maximum(table.sum(axis=axis), 0.5) / n for axis in (1, 0)]
    p, q = (margin / margin.sum() for margin in margins)
    across = np.kron(_orthogonal(p), _orthogonal(q))
    U = across.T @ table.ravel()
    V = across.T @ (n * np.diag(np.outer(p, q).ravel()) + noise) @ across
    try:
        root = np.linalg.cholesky(V)
    except np.linalg.LinAlgError:  # cells so far apart in size that floats lose the small ones
        return np.nan, np.inf
    T = float(np.sum(np.linalg.solve(root, U) ** 2))
    if errors.noise.kind == "gaussian":
        return T, np.inf
    moved = as_dense(in_deviations(errors.rows_of(group), errors.noise))
    whitened = cast("Floats", np.linalg.solve(root, across.T @ weights @ moved))
    fourth = excess(whitened, errors.noise)
    d = len(U)
    return T, 4 + 2 * d * (d + 2) / fourth if fourth > 0 else np.inf


def _orthogonal(p: Floats) -> Floats:
    """An orthonormal basis of what is orthogonal to ``p``, in columns."""
    return cast("Floats", np.linalg.qr(p[:, None], mode="complete")[0][:, 1:])


@np.errstate(all="ignore")
def concentrated(formula: Gini, values: Floats, errors: LinearErrors) -> Ratios:
    """Gini's coefficient in all groups: sum_i C_i (n - C_i) d_i / (n S), C the prefix counts, d the gaps, S the sum.

    That is the mean distance of two rows over twice their mean (Gini 1912). The noise adds Cov(C_i, n - C_i) to each
    product on average, which is taken off; errors are linearised, the quotient has Fieller's interval.
    """
    parts = [linear_part(part, values) for part in formula.prefixes]
    C, rows = np.stack([value for value, _ in parts], axis=1), np.stack([weight for _, weight in parts])
    gaps, last = np.diff(formula.values), float(formula.values[-1])
    n, n_row = C[:, -1:], rows[-1]
    below, over = C[:, :-1], n - C[:, :-1]
    joint = np.einsum("ak,gkl,al->ga", rows[:-1], joint_covariance(errors, len(values)), n_row - rows[:-1],
                      optimize=True)  # fmt: skip
    top = (below * over - joint) @ gaps
    top_row = (over * gaps) @ rows[:-1] + (below * gaps) @ (n_row - rows[:-1])
    S, S_row = n[:, 0] * last - below @ gaps, n_row * last - gaps @ rows[:-1]
    bottom, bottom_row = n[:, 0] * S, n * S_row + S[:, None] * n_row
    found = fieller(top, bottom, top_row, bottom_row, errors)
    clear = found.bounded & (n[:, 0] > 0) & (S > 0)
    return Ratios(
        found.value,
        np.where(clear[:, None], found.gradient, 0.0),
        np.where(clear, found.low, -np.inf),
        np.where(clear, found.high, np.inf),
        clear,
    )
