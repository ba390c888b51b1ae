"""Least squares from noisy sums, squares and products: coefficients, R^2, correlation, covariance.

Let z = (1, x_1, ..., x_k, y), centred and scaled to [-1, 1], M_hat = sum z z' + E the moments as measured, E of a known
law. With o the other columns of a fit, the residual moment

    S_ab = v_a' M v_b = M_ab - M_ao M_oo^-1 M_ob,    v_a = e_a - M_oo^-1 M_oa on o,

is what is left of columns a and b once the others are taken out (Frisch and Waugh 1933). All that a fit says is made
of these: coefficient j is S_jy / S_jj, 1 - R^2 is S_yy given all over S_yy given the intercept, a covariance is S_xy
given the intercept over n.

- Error. To first order S_ab errs by v_a' E v_b, for small errors of v_a and v_b cancel: linear in the noise, with
  known weights. So a coefficient is a quotient of linear forms and has Fieller's interval (``fieller``; the score
  y - x beta is linear in the noise for the true beta, Anderson and Rubin 1949).
- Bias. To second order E S_hat_ab = S_ab - tr(M_oo^-1 Cov(E_o v_a, E_o v_b)); that trace is added. A quotient r = N / D
  is off by (r Var(D) - Cov(N, D)) / D^2, taken off where D is known well enough for it to have an interval
  (Fuller 1987, section 2.5).
- Regularisation. Where a column cannot be told from the others for the noise, |S_jj| within its error of 0, there is
  no interval, and S_jj is moved to that error: the least ridge with which the value means anything. So are
  eigenvalues of M_oo below the noise. The standard error is that of the value so moved.

The interval is about the fit to the clamped rows. "stderr" adds what sampling adds in a population: s^2 / S_jj, s^2
the residual variance; "p_value" is that of Student's t with it, whose degrees of freedom are Satterthwaite's (1946).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import cast

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.common.numerics import ROUNDING, SINGULAR
from dpsql.errors import InterfaceError
from dpsql.workloads.expr.formulas import Formula, affine
from dpsql.workloads.expr.statistics import Fit

from .fieller import Ratios, fieller
from .linear_errors import LinearErrors


@dataclass(frozen=True, eq=False)
class _Residual:
    """S_ab of g groups: ``value`` (g,), ``bias`` taken off, ``weights`` (g x k) of its error over the outputs."""

    value: Floats
    weights: Floats
    bias: Floats


@dataclass(frozen=True, eq=False)
class _Moments:
    """M (g x q x q) of g groups and the weights of its errors over the outputs, (q x q x k)."""

    values: Floats
    weights: Floats
    errors: LinearErrors = field(repr=False)
    covariance: Floats = field(repr=False)

    @property
    def y(self) -> int:
        return int(self.values.shape[1]) - 1

    def about(self, shifts: Floats) -> _Moments:
        """Of columns moved by ``shifts`` (q,): z_i + shift_i."""
        T = np.eye(len(shifts))
        T[:, 0] += shifts
        weights = np.einsum("ia,abk,jb->ijk", T, self.weights, T)
        return replace(self, values=T @ self.values @ T.T, weights=weights)

    def inverse(self, others: list[int]) -> tuple[Floats, NDArray[np.bool_]]:
        """M_oo^-1 (g x o x o), and in which groups each column of ``others`` is distinct from the rest of them."""
        M = self.values[:, others][:, :, others]
        roots, vectors = np.linalg.eigh(M)
        noise = np.sqrt(np.trace(self._entries(others), axis1=1, axis2=2) / len(others))
        floor = np.maximum(np.maximum(noise, SINGULAR * np.abs(roots).max(axis=1)), 1e-300)
        inverse = np.einsum("gai,gi,gbi->gab", vectors, 1 / np.maximum(roots, floor[:, None]), vectors)
        clear = roots.min(axis=1) > SINGULAR * np.abs(roots).max(axis=1)
        exact = np.linalg.inv(np.where(clear[:, None, None], M, np.eye(len(others))))
        v = np.zeros((len(M), len(others), self.values.shape[1]))
        v[:, :, others] = exact / np.einsum("gaa->ga", exact)[:, :, None]
        for at in range(len(others)):
            pivot = 1 / exact[:, at, at]
            reach = self.errors.half_widths(self.errors.combine(self._weights(v[:, at], v[:, at])))
            clear &= pivot > reach
        return np.where(clear[:, None, None], exact, inverse), clear

    def residual(self, a: int, b: int, others: list[int], inverse: Floats) -> _Residual:
        """S_ab given ``others``, whose M_oo^-1 is ``inverse``."""
        v_a, v_b = self._taken_out(a, others, inverse), self._taken_out(b, others, inverse)
        value = np.einsum("ga,gab,gb->g", v_a, self.values, v_b)
        left, right = (np.einsum("gi,iak->gak", v, self.weights[:, others]) for v in (v_a, v_b))
        bias = np.einsum("gab,gak,gkl,gbl->g", inverse, left, self.covariance, right, optimize=True)
        return _Residual(value + bias, self._weights(v_a, v_b), bias)

    def _taken_out(self, a: int, others: list[int], inverse: Floats) -> Floats:
        v = np.zeros(self.values.shape[:2])
        v[:, others] = -np.einsum("gab,gb->ga", inverse, self.values[:, others, a])
        v[:, a] += 1.0
        return v

    def _weights(self, v_a: Floats, v_b: Floats) -> Floats:
        return cast("Floats", np.einsum("ga,abk,gb->gk", v_a, self.weights, v_b, optimize=True))

    def _entries(self, others: list[int]) -> Floats:
        """E (E_oo E_oo') of each group, (g x o x o)."""
        weights = self.weights[others][:, others]
        return cast("Floats", np.einsum("ack,gkl,bcl->gab", weights, self.covariance, weights, optimize=True))


def joint_covariance(errors: LinearErrors, groups: int) -> Floats:
    """Covariances of all outputs, group by group (g x k x k)."""
    k = errors.outputs
    found = np.zeros((groups, k, k))
    rows = [errors.combine(np.tile(np.eye(k)[at], (groups, 1))) for at in range(k)]
    moving = [at for at in range(k) if errors.deviations(rows[at]).any()]
    for a, b in combinations_with_replacement(moving, 2):
        found[:, a, b] = found[:, b, a] = errors.covariances(rows[a], rows[b])
    return found


def linear_part(part: Formula, values: Floats) -> tuple[Floats, Floats]:
    """(value (g,), weights (k,)) of a part that must be linear in the outputs."""
    found = affine(part, values.shape[1])
    if found is None:
        raise InterfaceError("the parts of a statistic must be linear in the outputs")
    return values @ found[0] + found[1], found[0]


def _moments(formula: Fit, values: Floats, errors: LinearErrors) -> _Moments:
    scales = (1.0, *formula.scales)
    q = len(scales)
    M, weights = np.zeros((len(values), q, q)), np.zeros((q, q, values.shape[1]))
    for (i, j), part in zip(combinations_with_replacement(range(q), 2), formula.moments, strict=True):
        value, weight = linear_part(part, values)
        M[:, i, j] = M[:, j, i] = value / (scales[i] * scales[j])
        weights[i, j] = weights[j, i] = weight / (scales[i] * scales[j])
    return _Moments(M, weights, errors, joint_covariance(errors, len(values)))


@np.errstate(all="ignore")
def fitted(formula: Fit, values: Floats, errors: LinearErrors) -> Ratios:
    """A fit's number for all groups, from estimates ``values`` (g x k) of the outputs; see the module.

    Not bounded where the noise hides a column or the number of rows: without ends. "stderr" and "p_value" have none.
    Cost O(g k^2) for k outputs, and O(nnz of R) for each pair of them.
    """
    M = _moments(formula, values, errors)
    if formula.what == "corr":
        return _correlation(M)
    if formula.what == "r2":
        return _explained(M)
    if formula.what in ("covar_pop", "covar_samp"):
        return _covariance(M, formula)
    return _coefficient(M, formula)


def _coefficient(M: _Moments, formula: Fit) -> Ratios:
    *x_centres, y_centre = formula.centres
    *x_scales, y_scale = formula.scales
    at, factor, constant = formula.at, y_scale, 0.0
    if at:
        factor /= x_scales[at - 1]
    else:  # about 0 of every x, not about their centres
        M = M.about(np.array([0.0, *np.divide(x_centres, x_scales), 0.0]))
        constant = y_centre
    others = [i for i in range(M.y) if i != at]
    inverse, clear = M.inverse(others)
    top, bottom = M.residual(at, M.y, others, inverse), M.residual(at, at, others, inverse)
    ratio = _quotient(top, bottom, M.errors)
    bounded = ratio.bounded & clear
    value = ratio.value * factor + constant
    gradient = ratio.gradient * factor
    if formula.what == "coefficient":
        low, high = ratio.low * factor + constant, ratio.high * factor + constant
        return Ratios(value, gradient, np.where(bounded, low, -np.inf), np.where(bounded, high, np.inf), bounded)
    # What sampling adds: s^2 / S_jj, in the units of the coefficient.
    every = list(range(M.y))
    rest = M.residual(M.y, M.y, every, M.inverse(every)[0]).value
    degrees = np.maximum(M.values[:, 0, 0], 0.0) - len(every)
    known = bounded & (degrees >= 1) & (bottom.value > 0)
    sampled = np.maximum(rest, 0.0) / degrees / bottom.value * factor**2
    noise = M.errors.deviations(M.errors.combine(gradient)) ** 2
    total = np.sqrt(noise + sampled)
    found = total
    if formula.what == "p_value":
        freedom = degrees * ((noise + sampled) / np.where(sampled > 0, sampled, np.nan)) ** 2
        found = 2 * scipy.special.stdtr(np.minimum(np.nan_to_num(freedom, nan=1e9), 1e9), -np.abs(value) / total)
    return _bare(np.where(known, found, np.nan), gradient)


def _quotient(top: _Residual, bottom: _Residual, errors: LinearErrors) -> Ratios:
    """N / D with Fieller's interval, its bias of second order taken off; D moved to its error where that is larger."""
    found = fieller(top.value, bottom.value, top.weights, bottom.weights, errors)
    rows = errors.combine(bottom.weights)
    spread = errors.covariances(rows, rows)
    joint = errors.covariances(errors.combine(top.weights), rows)
    least = errors.half_widths(rows)
    bounded = found.bounded & (bottom.value > least)
    D = np.maximum(bottom.value, np.maximum(least, 1e-300))
    value = top.value / D
    value -= np.where(bounded, (value * spread - joint) / D**2, 0.0)
    low, high = np.where(bounded, found.low, -np.inf), np.where(bounded, found.high, np.inf)
    gradient = (top.weights - value[:, None] * bottom.weights) / D[:, None]
    return Ratios(np.clip(value, low, high), np.nan_to_num(gradient), low, high, bounded)


def _explained(M: _Moments) -> Ratios:
    """R^2 = 1 - S_yy given all / S_yy given the intercept.

    Where R^2 is near 0 it is a square of noise, whose linear part vanishes. The mean of the square is taken off as
    bias; the upper end is moved up by what it may be beside that: a chi-square variable of mean 1 for k columns is at
    most about 1 + (q^2 - 1) / k, q the normal quantile, where the linear part is there as well.
    """
    every = list(range(M.y))
    inverse, clear = M.inverse(every)
    first, some = M.inverse([0])
    rest, whole = M.residual(M.y, M.y, every, inverse), M.residual(M.y, M.y, [0], first)
    ratio = _quotient(rest, whole, M.errors)
    bounded = ratio.bounded & clear & some
    rows = M.errors.combine(rest.weights)
    most = 1 + ((M.errors.half_widths(rows) / M.errors.deviations(rows)) ** 2 - 1) / max(M.y - 1, 1)
    square = most * (rest.bias - whole.bias) / whole.value
    low = np.where(bounded, 1 - ratio.high, -np.inf)
    high = np.where(bounded, 1 - ratio.low + np.maximum(np.nan_to_num(square), 0.0), np.inf)
    return Ratios(1 - ratio.value, -ratio.gradient * bounded[:, None], low, high, bounded)


def _correlation(M: _Moments) -> Ratios:
    """S_xy / sqrt(S_xx S_yy), linearised; its interval is made in Fisher's z = artanh(r) (Fisher 1915)."""
    inverse, clear = M.inverse([0])
    xy, xx, yy = (M.residual(a, b, [0], inverse) for a, b in ((1, 2), (1, 1), (2, 2)))
    bounded = clear.copy()
    sides = []
    for part in (xx, yy):
        reach = M.errors.half_widths(M.errors.combine(part.weights))
        bounded &= part.value > reach
        sides.append(np.maximum(part.value, np.maximum(reach, 1e-300)))
    r = np.clip(xy.value / np.sqrt(sides[0] * sides[1]), ROUNDING - 1, 1 - ROUNDING)
    gradient = xy.weights / np.sqrt(sides[0] * sides[1])[:, None]
    gradient -= r[:, None] / 2 * (xx.weights / sides[0][:, None] + yy.weights / sides[1][:, None])
    gradient = np.where(bounded[:, None], gradient, 0.0)
    half = M.errors.half_widths(M.errors.combine(gradient))
    z, reach = np.arctanh(r), half / (1 - r**2)
    low, high = (np.where(bounded, np.tanh(z + side * reach), side * np.inf) for side in (-1.0, 1.0))
    return Ratios(r, gradient, low, high, bounded)


def _covariance(M: _Moments, formula: Fit) -> Ratios:
    inverse, clear = M.inverse([0])
    xy = M.residual(1, 2, [0], inverse)
    n = M.values[:, 0, 0] - (formula.what == "covar_samp")
    weights = np.tile(M.weights[0, 0], (len(n), 1))
    factor = formula.scales[0] * formula.scales[1]
    ratio = _quotient(xy, _Residual(n, weights, np.zeros_like(n)), M.errors)
    bounded = ratio.bounded & clear
    low, high = np.where(bounded, ratio.low * factor, -np.inf), np.where(bounded, ratio.high * factor, np.inf)
    return Ratios(ratio.value * factor, ratio.gradient * factor * bounded[:, None], low, high, bounded)


def _bare(value: Floats, like: Floats) -> Ratios:
    none = np.full_like(value, np.inf)
    return Ratios(value, np.zeros_like(like), -none, none, np.ones(len(value), dtype=np.bool_))
