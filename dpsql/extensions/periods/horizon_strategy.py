"""What is measured after each period of a horizon so that sums over windows, and all so far, have the least error.

W holds the windows of each length that is asked (a window as long as the horizon is the total so far), each length
weighed by what the singular value bound says of it alone. A lower triangular C loses nothing: the error of a strategy
depends on C^T C alone, and every positive definite matrix has such a root (Cholesky); C^-1 and W C^-1 are then lower
triangular, so that no answer waits for a later measurement. What is sought here is of the form T diag(d), T Toeplitz
with the kernel f and d the inverse norms of its columns, so that every period is paid in full: n numbers instead of
n^2 / 2. With f the coefficients of (1 - z)^-1/2 that is the normalised square root of prefix sums (Henzinger, Kalinin
and Upadhyay 2025, arXiv 2509.14334; the root itself: Fichtenberger, Henzinger and Upadhyay 2023). From there f
descends on the squared error of W itself (L-BFGS), as few as ``bands`` of its coefficients not zero where later
measurements are to read no more periods.

The total squared error of 1,024 prefixes is 2.5 % above the certified least of any matrix mechanism
(benchmarks/periods.py).
``lower`` is the singular value bound (Li and Miklau 2013), which no matrix mechanism with Gaussian noise passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InternalError
from dpsql.linalg.over_time import LONGEST, OverTime, lower_toeplitz, reciprocal, window_sums

_KERNEL_BITS, _FACTOR_BITS = 16, 10
_STEPS = 100


@dataclass(frozen=True)
class Horizon:
    """C for the ``windows`` of a horizon, and how near it is.

    ``error``: the mean over the windows' lengths of their total squared error, each over its own singular value bound,
    of the integers that are measured; ``lower``: no Gaussian matrix mechanism has less.
    """

    measured: OverTime = field(repr=False)
    windows: tuple[int, ...]
    error: float
    lower: float


def least_over_time(n: int, windows: Sequence[int], bands: int | None = None) -> Horizon:
    """What is measured over ``n`` periods for sums over all so far and over ``windows``. DataError.

    ``bands``: how many periods a measurement may read, all so far by default. Cost O(n^2) a step, 3 s at n = 1,000.
    """
    lengths = tuple(sorted({*windows, n}))
    width = n if bands is None else bands
    if not 1 <= n <= LONGEST or lengths[0] < 1 or lengths[-1] > n or not 1 <= width <= n:
        raise DataError(
            f"strategy: a horizon has 1 to {LONGEST:,} periods, and windows and bands of 1 up to as many; these are "
            f"{n:,} periods, windows of {', '.join(f'{length:,}' for length in lengths)} and {width:,} bands"
        )
    squares = [_gram(n, length) for length in lengths]
    shares = [1.0 / (len(lengths) * _nuclear(gram) ** 2 / n) for gram in squares]
    lower = _nuclear(np.tensordot(shares, squares, axes=1)) ** 2 / n

    def error(f: Floats) -> tuple[float, Floats]:
        return _error(f, n, lengths, shares)

    start = _root(width)
    found = scipy.optimize.minimize(error, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    best = min((start, np.asarray(found)), key=lambda f: error(f)[0] if f[0] > 0 else np.inf)
    measured = _integers(best, n)
    totals = (measured.spread(length).sum() for length in lengths)
    return Horizon(measured, lengths, float(sum(s * t for s, t in zip(shares, totals, strict=True))), float(lower))


def least_endless(windows: Sequence[int]) -> OverTime:
    """What is measured after each of any number of periods, for sums over windows of these lengths. DataError.

    T alone, with as many coefficients f as the longest window has periods, so that each measurement reads no more of
    them and every column has one norm whatever comes later. Its errors do not grow with the number of periods, but
    those of totals of all so far do, as of independent releases of weight 1 / f(1). f starts from the coefficients of
    (1 - z)^-1/2, which fall, so that f has no root within the unit circle (Enestrom and Kakeya) and 1 / f fades; from
    there it descends on the windows' squared errors, each over its own at the start, and stays if 1 / f fades still.
    Cost O(w log w) a step for a longest window of w periods.
    """
    lengths = tuple(sorted({*windows}))
    if not lengths or not 1 <= lengths[0] <= lengths[-1] <= LONGEST:
        raise DataError(f"strategy: an endless horizon has windows of 1 to {LONGEST:,} periods")
    start = _root(lengths[-1])
    first = _settled(start, lengths, (1.0,) * len(lengths), separate=True)[0]
    shares = [1.0 / each for each in np.atleast_1d(first)]

    def error(f: Floats) -> tuple[float, Floats]:
        total, slope = _settled(f, lengths, shares)
        return float(total), slope

    found = np.asarray(
        scipy.optimize.minimize(error, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    )
    made = [_scaled(f) for f in (start, found) if f[0] > 0]
    totals = [sum(s * held.settled(length) for s, length in zip(shares, lengths, strict=True)) for held in made]
    return made[-1] if made[-1].stable and totals[-1] < totals[0] else made[0]


def _scaled(f: Floats) -> OverTime:
    """T in integers, f(0) = 2^16."""
    return OverTime(tuple(np.rint(f / f[0] * 2.0**_KERNEL_BITS).astype(np.int64).tolist()), ())


def _settled(
    f: Floats, windows: Sequence[int], shares: Sequence[float], *, separate: bool = False
) -> tuple[Floats | float, Floats]:
    """|f|^2 times the weighed squared errors of windows of T^-1 z after long, and its gradient by f, or ``separate``.

    The sums over a window are z times h = (1 + ... + z^(L - 1)) g, g = 1 / f, whose squares add up to their error; as
    power series dg = -g g df.
    """
    n, norm = 8 * f.size, float(f @ f)
    held = np.zeros(n)
    held[: f.size] = f
    try:
        g = reciprocal(held)
    except InternalError:  # a step too far: 1 / f does not fade
        return np.inf, np.zeros(f.size)
    each, by_g = [], np.zeros(n)
    for window, share in zip(windows, shares, strict=True):
        h = window_sums(g, window)
        each.append(share * float(h @ h))
        by_g += 2.0 * share * window_sums(h[::-1], window)[::-1]
    length = scipy.fft.next_fast_len(2 * n, real=True)
    waves = scipy.fft.rfft(g, length)
    squared = scipy.fft.rfft(scipy.fft.irfft(waves * waves, length)[:n], length)
    by_f = -scipy.fft.irfft(scipy.fft.rfft(by_g, length) * np.conj(squared), length)[: f.size]
    total = norm * np.array(each)
    return (total if separate else float(total.sum())), np.asarray(norm * by_f + 2.0 * sum(each) * f)


def _root(n: int) -> Floats:
    """The first coefficients of (1 - z)^-1/2."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))])


def _integers(f: Floats, n: int) -> OverTime:
    """T diag(d) in integers, f(0) = 2^16 and the largest d = 2^10."""
    kernel = np.rint(f / f[0] * 2.0**_KERNEL_BITS).astype(np.int64)
    lengths = _norms(kernel.astype(np.float64), n)
    factors = np.rint(lengths.min() / lengths * 2.0**_FACTOR_BITS).astype(np.int64)
    return OverTime(tuple(kernel.tolist()), tuple(factors.tolist()))


def _norms(f: Floats, n: int) -> Floats:
    """The norms of the columns of T: of the first n, n - 1, ..., 1 coefficients."""
    sums = np.cumsum(f * f)
    return np.asarray(np.sqrt(sums[np.minimum(np.arange(n, 0, -1), f.size) - 1]))


def _gram(n: int, window: int) -> Floats:
    """W^T W of the sums over windows of one length: how many hold both of two periods."""
    later = np.maximum.outer(np.arange(n), np.arange(n))
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return np.asarray(np.clip(np.minimum(n - later, window - apart), 0, None), dtype=np.float64)


def _nuclear(gram: Floats) -> float:
    return float(np.sqrt(np.clip(np.linalg.eigvalsh(gram), 0.0, None)).sum())


def _error(f: Floats, n: int, windows: Sequence[int], shares: Sequence[float]) -> tuple[float, Floats]:
    """The weighed squared error of T diag(d), and its gradient by f.

    C^-1 = N T(g), N the norms of T's columns and g = 1 / f. With M = C^-1 and E = tr(M^T G M) the slope by M is
    2 G M = 2 W^T W M, sums over windows forth and back; by g_k it is the sum of a diagonal of N (2 G M), and
    dg = -g g df as power series.
    """
    held = np.zeros(n)
    held[: f.size] = f
    g, norms = reciprocal(held), _norms(f, n)
    inverse = lower_toeplitz(g)
    M = norms[:, None] * inverse
    total, slope = 0.0, np.zeros((n, n))
    for window, share in zip(windows, shares, strict=True):
        sums = window_sums(M, window)
        total += share * float(np.vdot(sums, sums))
        slope += 2.0 * share * window_sums(sums[::-1], window)[::-1]
    by_norm = np.einsum("ij,ij->i", slope, inverse)
    by_g = _diagonals(np.tril(norms[:, None] * slope))
    length = scipy.fft.next_fast_len(2 * n, real=True)
    waves = scipy.fft.rfft(g, length)
    squared = scipy.fft.rfft(scipy.fft.irfft(waves * waves, length)[:n], length)
    by_f = -scipy.fft.irfft(scipy.fft.rfft(by_g, length) * np.conj(squared), length)[: f.size]
    held_by = np.cumsum(by_norm / norms)
    return total, np.asarray(by_f + f * held_by[n - 1 - np.arange(f.size)])


def _diagonals(lower: Floats) -> Floats:
    """The sums of the diagonals of a lower triangular matrix, from the main one down."""
    n = len(lower)
    padded = np.zeros((n, 2 * n + 1))  # read in rows of 2 n numbers, a diagonal stands in one column
    padded[:, :n] = lower[:, ::-1]
    skewed = padded.ravel()[: n * 2 * n].reshape(n, 2 * n)
    return np.asarray(skewed.sum(axis=0)[n - 1 : 2 * n - 1])
