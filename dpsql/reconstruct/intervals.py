"""Pointwise error bars of the answers R y.

The error of answer r is sum_i R[r, i] z_i, a weighted sum of independent integer noise.
Intervals state this error alone: not clamping bias of SUM, not truncation of the rows of
a unit. They need no data, so they are known before any budget is spent.

Quantiles of weighted sums of independent Laplace variables, many rows at once.

X = sum_i a_i l_i with l_i Laplace of scale 1, scaled so that Var X = 2 sum a_i^2 = 1. Its
moment generating function is M(z) = prod_i 1 / (1 - (a_i z)^2), and for any line
Re z = c with 0 < c < 1 / max a

    P(X > x) = 1/(2 pi i) * integral of M(z) exp(-z x) / z dz.

On the line c = 0 this is the inversion of Gil-Pelaez (1951), whose integrand oscillates
and, for few weights, falls off only as s^-3. M has no singularity off the real axis, so
the line may be bent into the right half plane, around the poles 1 / a_i:

    z(t) = c + g d (cosh t - 1) + i d sinh t,    d = c / 2, 0 < g < 1.

There exp(-z x) decays doubly exponentially in t, and since g < 1 so does the
Gaussian-like M of many small weights (|M| ~ exp(Re z^2 / 2), Re z^2 -> -inf). The
midpoint rule then converges geometrically (Trefethen and Weideman 2014, section 15).
Choosing c and g by the largest weight of the row, and the constants below, is ours: with
24 nodes the tail is within 1e-6 of its value, relatively, for 0.7 <= x <= 8 and one to
thousands of weights, equal or not (tests compare with closed forms and plain Gil-Pelaez).
The nodes of a row do not depend on x, so M is evaluated once and the root is then found
on 24 numbers a row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.numerics import TOGETHER
from dpsql.common.pattern_block import PatternBlock, law_of
from dpsql.errors import DataError, InterfaceError
from dpsql.reconstruct.spread import (
    KINDS,
    BlockNoise,
    Matrix,
    NoiseModel,
    as_rows,
    parameter,
    row_lengths,
    standard_errors,
)

if TYPE_CHECKING:
    from dpsql.reconstruct.block_sums import Cubes

_NORMAL = NormalDist()
_WIDTH = 0.5
_CROSSING = 0.5  # of the way to the nearest pole on the right
_LEAST, _MOST = 1e-9, 0.95  # what the nodes resolve
_LEAST_IN_BLOCKS, _MOST_IN_BLOCKS = 1e-3, 0.1
_MOST_NUMBERS = 2_000
"""In distinct larger blocks of the sums that are read together; one takes a tenth of a millisecond."""


def quantiles(weights: Floats, alpha: float, cubes: Sequence[Cubes] = ()) -> Floats:
    """The x with P(|X| > x) = alpha for each row, (m,), in standard deviations of X.

    weights: (m x k) non-negative, no row all zero that ``cubes`` adds nothing to; the scale of a row does not matter.
    The relative error is below 1e-5 for 1e-9 <= alpha <= 0.95, of larger blocks as ``block_sums`` says. Outside,
    x is an upper bound: the tail is log-concave, so beyond x0 it falls at least as fast as exp(-r (x - x0)), r the
    hazard rate at x0 (exact for one weight); the density falls away from 0, so
    P(|X| <= x) >= P(|X| <= x0) x / x0 within x0. Cost O(24 m k).
    """
    least, most = (_LEAST_IN_BLOCKS, _MOST_IN_BLOCKS) if cubes else (_LEAST, _MOST)
    if alpha > most:
        return quantiles(weights, most, cubes) * ((1 - alpha) / (1 - most))
    x, rate = _inner(weights, max(alpha, least), cubes)
    return x if alpha >= least else x + math.log(least / alpha) / rate


def deviations_of_sums(weights: Floats, cubes: Sequence[Cubes] = ()) -> Floats:
    """Standard deviations (m,) of sums of Laplace variables of scale 1, and of larger blocks."""
    # Hypot-like scaling: tiny weights must not underflow when they are squared.
    largest = weights.max(axis=1)
    for each in cubes:
        np.maximum.at(largest, each.rows, each.reach)
    found = 2.0 * ((weights / largest[:, None]) ** 2).sum(axis=1)
    for each in cubes:
        np.add.at(found, each.rows, each.variance / largest[each.rows] ** 2)
    return np.asarray(largest * np.sqrt(found))


def _normal_quantile(alpha: float) -> float:
    """The z with P(|Z| > z) = alpha of a standard normal Z."""
    return -_NORMAL.inv_cdf(max(alpha / 2, math.ulp(0.0)))


def _inner(weights: Floats, alpha: float, cubes: Sequence[Cubes]) -> tuple[Floats, Floats]:
    """Quantiles and hazard rates density / tail there, for alpha within what the nodes resolve."""
    scale = deviations_of_sums(weights, cubes)
    squares = (weights / scale[:, None]) ** 2
    start = _normal_quantile(alpha)
    # The saddle point of a normal variable, or half of the way to the first pole.
    peak = np.sqrt(squares.max(axis=1))
    crossing = np.full(len(peak), np.inf)
    for each in cubes:
        reach = each.reach / scale[each.rows]
        np.maximum.at(peak, each.rows, reach)
        np.minimum.at(crossing, each.rows, each.crossing / reach)
    peak = peak[:, None]  # at most sqrt(1/2): one weight alone
    c = np.minimum((start + math.hypot(start, 2.0)) / 2, np.minimum(_CROSSING / peak, crossing[:, None]))
    opening = 0.3 + 0.4 * math.sqrt(2.0) * peak
    # Near the centre exp(-z x) helps little, and the nodes must reach further out.
    step, count = (0.18, 24) if alpha <= 0.3 else (0.12, 60)
    t = (np.arange(count) + 0.5) * step
    z = c + c * _WIDTH * (opening * (np.cosh(t) - 1) + 1j * np.sinh(t))
    slope = c * _WIDTH * (opening * np.sinh(t) + 1j * np.cosh(t))
    products = _reciprocal_products(squares, z * z)
    for each in cubes:
        each.multiply(products, z, scale)
    return _solve(z, products * slope / z * (step / (1j * math.pi)), alpha / 2, start)


def _reciprocal_products(
    squares: Floats, z2: np.ndarray[tuple[int, ...], np.dtype[np.complex128]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.complex128]]:
    """prod_i 1 / (1 - squares[r, i] * z2[r, j]) for every row r and node j, (m x nodes)."""
    eights, powers = _multiplied(squares), z2[:, :, None] ** np.arange(9)
    products = np.empty(z2.shape, dtype=np.complex128)
    step = max(1, TOGETHER // 2 // (eights.shape[2] * z2.shape[1]))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for low in range(0, len(z2), step):
            rows = slice(low, low + step)
            terms = np.empty((*z2[rows].shape, eights.shape[2]), dtype=np.complex128)
            terms.real, terms.imag = powers[rows].real @ eights[rows], powers[rows].imag @ eights[rows]
            while (k := terms.shape[-1]) > 1:  # halving keeps the work contiguous
                half = k // 2
                merged = terms[..., :half] * terms[..., half : 2 * half]
                if k % 2:
                    merged[..., 0] *= terms[..., -1]
                terms = merged
            products[rows] = 1.0 / terms[..., 0]
    # A product past the largest float stands for a reciprocal of nothing.
    products[~np.isfinite(products)] = 0.0
    return products


def _multiplied(squares: Floats) -> Floats:
    """Products of eight of the factors 1 - squares[r, i] w each, as polynomials in w (m x 9 x a number of products)."""
    m, width = squares.shape
    found = np.zeros((m, 2, -(-width // 8) * 8))
    found[:, 0], found[:, 1, :width] = 1.0, -squares
    while found.shape[1] < 9:
        left, right = np.split(found, 2, axis=2)
        found = np.zeros((m, 2 * found.shape[1] - 1, left.shape[2]))
        for power in range(left.shape[1]):
            found[:, power : power + left.shape[1]] += left[:, power, None] * right
    return found


def _solve(
    z: np.ndarray[tuple[int, ...], np.dtype[np.complex128]],
    factor: np.ndarray[tuple[int, ...], np.dtype[np.complex128]],
    tail: float,
    start: float,
) -> tuple[Floats, Floats]:
    """Newton's method on log P(X > x) = log tail, all rows together.

    The density of X is log-concave (a convolution of such), hence so is the tail: every
    step lands on the far side of the root and from there the iteration falls monotonically.
    """
    x = np.full(z.shape[0], start)
    rate = np.empty_like(x)
    for _ in range(50):
        terms = factor * np.exp(-z * x[:, None])
        above = terms.real.sum(axis=1)
        density = (z * terms).real.sum(axis=1)
        rate = density / above
        step = np.log(above / tail) / rate
        x += step
        if np.all(np.abs(step) <= 1e-12 * np.abs(x)):
            break
    return x, rate


# The lattice of the noise is left out of account where it moves a half-width by less
# than this, relatively: for one cell, where sigma or b is above a few hundred.
LATTICE_MATTERS = 1e-3


def half_widths(R: object, noise: NoiseModel, alpha: float = 0.05) -> Floats:
    """Half-width h of the (1 - alpha) interval of each answer, (m,): P(|error| > h) <= alpha.

    R: (m x p) ndarray or scipy sparse matrix; h is in the units of R y; rows of zeros give 0.
    Gaussian noise: normal quantile times standard error (exact for the unrounded normal).
    Laplace noise: the quantile of the same combination of continuous Laplace variables of
    scale b, from its characteristic function (see the head of this module); at alpha = 0.05 it is
    1.960 to 2.118 standard errors. Relative error at most 1e-5 for 1e-9 <= alpha <= 0.95,
    an upper bound outside.

    Integer noise is continuous noise but for its lattice. Where the lattice is not
    negligible (b or sigma below a few hundred on few cells), h is rounded outward: an
    answer that weighs one coordinate w gets the exact lattice quantile, |w| times the
    least k with P(|z| > k) <= alpha; another one gets max |w| / 2 added, half of the
    coarsest step of its error. Why half a step should do: on a lattice of step w the tail
    at a point is that of the error smoothed by w times a uniform variable, half a step
    earlier; and the discrete Laplace has a smaller moment generating function than the
    continuous one of the same b (sinh(u)/u grows). This is an argument, not a proof, for
    weights without a common lattice; exact convolutions of 20,000 random combinations of
    two to six integer weights showed no exception. Ours.

    Noise in blocks: the quantile of the continuous variable, too (``block_sums``), at alpha = 0.05 1.7 to 2.12 standard
    errors; in a block for patterns that of one coordinate (``PatternLaw``). Never above ``log_concave_quantile``, 2.17,
    which serves where blocks are not known, or large, or too many differ: the noise's probability falls with a norm, so
    it is log-concave and symmetric, as every linear combination of its coordinates is (Prekopa).

    Cost O(24 nnz) for Laplace, rows of equal sorted absolute weights once; 1000 x 1000
    takes about 0.2 s. Raises DataError for alpha outside (0, 1) or a non-finite R,
    InterfaceError for an R that is no matrix or an unknown kind of noise.
    """
    level = level_of(alpha)
    matrix = as_rows(R)
    value = parameter(noise)
    largest, support = _largest_and_support(matrix)
    if noise.kind == "gaussian":
        smooth = _normal_quantile(level) * standard_errors(matrix, noise)
    elif noise.kind == "blocks":
        smooth = log_concave_quantile(level) * standard_errors(matrix, noise)
        if isinstance(noise, BlockNoise):
            smooth = np.fmin(smooth, value * _in_blocks(matrix, noise.blocks, level))
    else:
        smooth = value * _laplace(matrix, support, level)
    coarse = largest > 2 * LATTICE_MATTERS * smooth
    widths = np.where(coarse, smooth + largest / 2, smooth)
    single = coarse & (support == 1) & (noise.kind != "blocks")
    widths[single] = largest[single] * _lattice_quantile(noise.kind, value, level)
    return widths


@functools.lru_cache(maxsize=64)
def log_concave_quantile(alpha: float) -> float:
    """The largest x with P(|X| > x) = alpha for a symmetric X of log-concave density and variance 1.

    The largest over a convex set is at its extreme points; with one moment given those have a density whose log is
    flat, then falls linearly, then ends (localisation: Fradelizi and Guedon 2006). Without a flat part the quantile is
    largest, at every alpha: a Laplace variable within [-t, t] of the scale 1, uniform for t near 0. The largest over t
    is found on a grid of ratios of 1.01 and rounded up.
    """
    t = np.geomspace(1e-3, 60.0, 1107)
    left = np.exp(-t)
    mass = 1.0 - left
    second = (2.0 - left * (t * t + 2.0 * t + 2.0)) / mass
    x = -np.log(alpha * mass + left) / np.sqrt(second)
    return float(max(x.max(), math.sqrt(3.0) * (1.0 - alpha))) * (1.0 + 1e-4)


def simultaneous_alpha(alpha: float, m: int, kind: str) -> float:
    """The pointwise alpha at which m intervals hold together with probability 1 - alpha.

    Gaussian: 1 - (1 - alpha)^(1/m), valid for any correlation (Sidak 1967, Thm 1).
    Otherwise the union bound, alpha / m. m = 0 counts as 1.
    """
    level = level_of(alpha)
    if kind not in KINDS:
        raise InterfaceError(f"unknown noise kind {kind!r}; use 'gaussian' or 'laplace'")
    if m < 0:
        raise InterfaceError(f"the number of answers must not be negative, and it is {m}")
    count = max(m, 1)
    return -math.expm1(math.log1p(-level) / count) if kind == "gaussian" else level / count


def level_of(alpha: float) -> float:
    """``alpha`` as a float. Raises DataError where it does not lie strictly between 0 and 1."""
    level = float(alpha)
    if not 0 < level < 1:
        raise DataError(f"alpha must lie strictly between 0 and 1, not {level!r}; 0.05 means 95 %")
    return level


def _largest_and_support(matrix: Matrix) -> tuple[Floats, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Largest absolute weight and number of non-zero weights of each row."""
    if isinstance(matrix, np.ndarray):
        magnitudes = np.abs(matrix)
        largest = magnitudes.max(axis=1, initial=0.0)
        return largest, np.count_nonzero(magnitudes, axis=1).astype(np.int64)
    sizes = abs(matrix)
    sizes.eliminate_zeros()
    largest = sizes.max(axis=1).toarray().ravel() if matrix.shape[1] else np.zeros(matrix.shape[0])
    return largest, np.diff(sizes.indptr).astype(np.int64)


def _laplace(matrix: Matrix, support: np.ndarray[tuple[int, ...], np.dtype[np.int64]], alpha: float) -> Floats:
    """Half-widths for continuous Laplace noise of scale 1.

    Rows go through in batches of similar support, their non-zero weights sorted and padded
    with zeros, so that a sparse R costs its non-zeros; a repeated row is looked up.
    """
    m = support.size
    widths = np.zeros(m)
    order = np.argsort(support, kind="stable")
    order = order[np.searchsorted(support[order], 1) :]
    while order.size:
        most = 1 << int(support[order[0]] - 1).bit_length()  # supports up to the next power of two
        stop = int(np.searchsorted(support[order], most, side="right"))
        stop = min(stop, max(1, (1 << 22) // most))
        rows, order = order[:stop], order[stop:]
        padded = _padded_weights(matrix, rows, int(support[rows[-1]]))
        first: dict[bytes, int] = {}
        place = np.empty(rows.size, dtype=np.int64)
        kept: list[int] = []
        for i, row in enumerate(padded):
            place[i] = first.setdefault(row.tobytes(), len(kept))
            if place[i] == len(kept):
                kept.append(i)
        distinct = padded[kept]
        widths[rows] = (deviations_of_sums(distinct) * quantiles(distinct, alpha))[place]
    return widths


def _beside_patterns(matrix: Matrix, blocks: Sequence[int], alpha: float) -> Floats:
    """``_in_blocks`` where some are for patterns: of rows with one weight, there, and of those with none there."""
    size, support = _largest_and_support(matrix)
    widths, patterned = np.full(matrix.shape[0], np.nan), np.zeros(matrix.shape[1], dtype=np.bool_)
    at = 0
    for block in blocks:
        if isinstance(block, PatternBlock):
            patterned[at : at + block] = True
            inside = _largest_and_support(matrix[:, at : at + block])[1]
            mine = (inside == 1) & (support == 1)
            widths[mine] = size[mine] * law_of(block).quantile(alpha)
        at += block
    free = _largest_and_support(matrix[:, patterned])[1] == 0
    others = [block for block in blocks if not isinstance(block, PatternBlock)]
    if others and free.any():
        widths[free] = _in_blocks(matrix[free][:, ~patterned], others, alpha)
    return widths


def _in_blocks(matrix: Matrix, blocks: Sequence[int], alpha: float) -> Floats:
    """Half-widths for continuous noise in blocks of scale 1, NaN where they are not known; alike rows once."""
    from dpsql.reconstruct.block_sums import Parted

    widths = np.zeros(matrix.shape[0])
    if any(isinstance(block, PatternBlock) for block in blocks):
        return _beside_patterns(matrix, blocks, alpha)
    most = matrix.shape[1] if isinstance(matrix, np.ndarray) else int(np.diff(matrix.indptr).max(initial=0))
    step = max(1, (1 << 22) // max(most, 1))
    for low in range(0, len(widths), step):
        rows = matrix[low : low + step]
        parted = Parted.of(rows, blocks)
        widths[low : low + step][~parted.read] = np.nan
        some = np.flatnonzero((row_lengths(rows) > 0) & parted.read)
        if not some.size:
            continue
        distinct, which = parted.distinct(some)
        cubes = distinct.cubes(_MOST_NUMBERS)
        if cubes is None:
            widths[low + some] = np.nan
        else:
            found = deviations_of_sums(distinct.single, cubes) * quantiles(distinct.single, alpha, cubes)
            widths[low + some] = found[which]
    return widths


def _padded_weights(matrix: Matrix, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]], width: int) -> Floats:
    """The ``width`` largest absolute weights of the given rows, ascending, (len(rows) x width)."""
    chosen = matrix[rows]
    if isinstance(chosen, np.ndarray):
        return np.ascontiguousarray(np.sort(np.abs(chosen), axis=1)[:, -width:])
    counts = np.diff(chosen.indptr)
    padded = np.zeros((rows.size, max(width, int(counts.max()))))
    owner = np.repeat(np.arange(rows.size), counts)
    padded[owner, np.arange(counts.sum()) - np.repeat(chosen.indptr[:-1], counts)] = np.abs(chosen.data)
    padded.sort(axis=1)
    return np.ascontiguousarray(padded[:, -width:])


def _lattice_quantile(kind: str, value: float, alpha: float) -> float:
    """The least integer k with P(|z| > k) <= alpha for one coordinate of noise.

    Rounded Gaussian: P(|z| > k) = 2 Phi(-(k + 1/2) / sigma). Discrete Laplace:
    P(|z| > k) = 2 q^(k + 1) / (1 + q), q = exp(-1/b).
    """
    if kind == "gaussian":
        return float(max(0, math.ceil(_normal_quantile(alpha) * math.sqrt(value) - 0.5)))
    return float(max(0, math.ceil(value * ((math.log(2) - math.log(alpha)) - math.log1p(math.exp(-1 / value))) - 1)))
