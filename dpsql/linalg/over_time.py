"""Lower triangular integer matrices over the periods of a horizon: what is measured after each period."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InternalError

LONGEST = 2_000
"""Periods of a horizon: its errors are worked out from matrices of so many rows and columns."""
BITS = 40
"""Binary digits behind the point of an estimate that later periods rest on."""
_LARGEST = 2**40


@dataclass(frozen=True)
class OverTime:
    """C = T diag(d), T lower triangular and Toeplitz: C_ts = f(t - s) d_s for s <= t, else 0, over n periods.

    ``kernel``: f(0), f(1), ... up to the last that is not 0, at most n of them; ``factors``: d (n,), both integers,
    f(0) > 0 and d > 0. C is square, so C^-1 = diag(1 / d) T^-1 is its least squares estimate, lower triangular too:
    what is estimated of a period needs no later measurement. Without ``factors`` there is no last period: each d_s is
    1, and a column has the norm of the kernel, however many rows there will be. Raises DataError for what is no such
    matrix.
    """

    kernel: tuple[int, ...] = field(repr=False)
    factors: tuple[int, ...] = field(repr=False)

    def __post_init__(self) -> None:
        held = (*self.kernel, *self.factors)
        plain = all(isinstance(value, int) and not isinstance(value, bool) for value in held)
        if not plain or not 1 <= len(self.kernel) <= (len(self.factors) or LONGEST) <= LONGEST:
            raise DataError(f"linalg: a horizon has 1 to {LONGEST:,} periods, with an integer for each")
        if self.kernel[0] < 1 or min(self.factors, default=1) < 1 or max(map(abs, held)) > _LARGEST:
            raise DataError(f"linalg: what is measured over time has positive integers of at most {_LARGEST}")

    def __len__(self) -> int:
        return len(self.factors)

    @property
    def endless(self) -> bool:
        """Whether there is no last period."""
        return not self.factors

    def reads(self, at: int) -> range:
        """The periods, from 0, that the measurement after period ``at`` reads."""
        return range(max(0, at + 1 - len(self.kernel)), at + 1)

    def digest(self) -> str:
        """The SHA-256 of the integers, by which charges name what their horizon measures."""
        return hashlib.sha256(repr((self.kernel, self.factors)).encode()).hexdigest()

    def row(self, at: int) -> list[int]:
        """C_t0, ..., C_tt (t = ``at``, from 0)."""
        width, d = len(self.kernel), self.factors or (1,) * (at + 1)
        return [self.kernel[at - s] * d[s] if at - s < width else 0 for s in range(at + 1)]

    def before(self, at: int, estimates: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
        """What earlier periods add to 2^BITS times the measurement after period ``at``, by the ``estimates`` of them.

        Of as many periods as that measurement reads; nothing, (), where it reads its own alone. Exact.
        """
        row = self.row(at)
        read = [row[place] * np.array(estimates[place], dtype=object) for place in self.reads(at)[:-1]]
        return tuple(np.sum(read, axis=0).tolist()) if read else ()

    def estimate(self, at: int, y: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
        """2^BITS (C^-1 y)_t to the nearest integer, from y_t and what ``before`` says of the periods before it.

        Forward substitution: C_tt e_t = 2^BITS y_t - sum_(s < t) C_ts e_s. An error of rounding, at most half of the
        last binary digit, goes on as noise of that size does in what is measured, and fades with it.
        """
        lead = self.row(at)[-1]
        rest = before or (0,) * len(y)
        return tuple((2 * ((value << BITS) - other) + lead) // (2 * lead) for value, other in zip(y, rest, strict=True))

    @cached_property
    def l2_squared(self) -> int:
        """The largest squared norm of a column, exact: d_s^2 (f(0)^2 + ... + f(n - 1 - s)^2)."""
        if self.endless:
            return sum(value * value for value in self.kernel)
        sums, total = [], 0
        for value in self.kernel:
            total += value * value
            sums.append(total)
        n, last = len(self), len(sums) - 1
        return max(d * d * sums[min(n - 1 - s, last)] for s, d in enumerate(self.factors))

    @cached_property
    def _inverse(self) -> Floats:
        """The first column of T^-1."""
        return self._column(len(self))

    def _column(self, n: int) -> Floats:
        """The first ``n`` entries of it."""
        held, known = np.zeros(n), self.kernel[:n]
        held[: len(known)] = known
        return reciprocal(held)

    def weights(self, at: int) -> Floats:
        """Row ``at`` of C^-1 (at + 1,): by these the measurements so far add up to an estimate of that period."""
        if self.endless:
            return self._column(at + 1)[::-1]
        return np.asarray(self._inverse[at::-1] / self.factors[at])

    def settled(self, window: int) -> float:
        """The squared error of sums over the last ``window`` periods once an endless horizon has gone on for long.

        At noise of variance ``l2_squared``, as in ``spread``, and after 16 times the longer of kernel and window. Of a
        kernel that is ``stable`` it hardly changes afterwards.
        """
        sums = window_sums(self._column(16 * max(len(self.kernel), window)), window)
        return self.l2_squared * float(sums @ sums)

    @property
    def stable(self) -> bool:
        """Whether the noise of an old measurement fades from the estimates of an endless horizon."""
        g = self._column(16 * len(self.kernel))
        return float(g[g.size // 2 :] @ g[g.size // 2 :]) <= 1e-6 * float(g @ g)

    def spread(self, window: int) -> Floats:
        """Squared errors (n,) of the sums over the last ``window`` periods, or all so far, after each period.

        For noise of variance ``l2_squared``, at which one row of any period is paid in full; independent releases of
        each period have the squared error min(t + 1, window). Cost O(n^2).
        """
        n = len(self)
        if window < 1:
            raise DataError("linalg: a window is of one period or more")
        lower = lower_toeplitz(self._inverse) / np.array(self.factors, dtype=np.float64)[:, None]
        sums = window_sums(lower, window)
        found = self.l2_squared * np.einsum("ij,ij->i", sums, sums)
        if not np.isfinite(found).all() or len(found) != n:
            raise InternalError("linalg: a triangular matrix could not be inverted in floats")
        return np.asarray(found)


def lower_toeplitz(column: Floats) -> Floats:
    """The lower triangular Toeplitz matrix with that first column, as a view that is not to be written to."""
    n = len(column)
    held = np.concatenate([np.zeros(n - 1), column])
    return np.lib.stride_tricks.as_strided(held[n - 1 :], (n, n), (8, -8), writeable=False)


def window_sums(M: Floats, window: int) -> Floats:
    """Each row of M plus the ``window`` - 1 rows before it, as far as there are."""
    sums = np.cumsum(M, axis=0)
    if window < len(M):
        sums[window:] -= sums[:-window].copy()
    return np.asarray(sums)


def reciprocal(f: Floats) -> Floats:
    """The coefficients of 1 / f(z), as many as f has: Newton's iteration, twice as many a step. f(0) is not 0."""
    u = np.array([1.0 / f[0]])
    while u.size < f.size:
        size = min(2 * u.size, f.size)
        error = -_series(f[:size], u, size)
        error[0] += 2.0
        u = _series(u, error, size)
    one = _series(f, u, f.size)
    one[0] -= 1.0
    if float(np.abs(one).max()) > 1e-9:
        raise InternalError("linalg: a triangular matrix could not be inverted in floats")
    return u


def _series(a: Floats, b: Floats, size: int) -> Floats:
    """The first ``size`` coefficients of the product of two power series."""
    length = scipy.fft.next_fast_len(a.size + b.size, real=True)
    return np.asarray(scipy.fft.irfft(scipy.fft.rfft(a, length) * scipy.fft.rfft(b, length), length)[:size])
