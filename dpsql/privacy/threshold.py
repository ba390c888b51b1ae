"""Which values a column has, found privately: noisy counts, of which only those from a threshold on are shown.

Neighbours: all rows of one unit are added or removed. Counted are the values of a column, each once for a unit, at most
``groups`` values for a unit (those of other units never depend on it); a unit of one row has one. The mechanism adds
integer noise to the count of every value that some row has, and shows value and noisy count where that is at least
``least``. Values that no row has are never shown, whatever noise they would have had: an analyst cannot tell "no row"
from "too few rows" but by the chance below, so no noise is drawn for them.

Guarantee. Let D hold the unit u and D' be D without it, S the s <= k values that only u has, p the chance that noise
shows one of S. Noise is independent from value to value, so with probability 1 - p, independently of all other values,
the outcome on D is that of M(D), which never shows S; on D' it is M(D') always. M counts values that both have, of
which u moves at most k - s, by 1 each. So the outcome is (1 - p) M(D) + p (anything) on D and M(D') on D', and the
mechanism is "p-approximately" as private as M (Bun and Steinke 2016, Def. 8.1). Both kinds of noise bound p by
``delta``:

- ``GaussianThreshold``: M is mu-GDP, since its counts move by at most sqrt(k) in the L2 norm and have variance
  k / mu^2. A value that only u has is shown with probability 1 - Phi((least - 3/2) / sigma), so that
  p <= 1 - Phi((least - 3/2) / sigma)^k: largest for s = k, a unit alone in all its values.
- ``OptimalSelection``: each count by itself is (epsilon/k, delta/k)-DP, noisy count included, and a unit moves k of
  them. A mechanism that is (epsilon, delta)-DP is delta-approximately epsilon-DP (Kairouz, Oh and Viswanath 2015).

Composition. Steps that are delta_i-approximately private, chosen adaptively, of which the delta_i add up to at most d
on every path: the transcript has a law of at least (1 - d) times that of the steps without failures, pointwise, for
both neighbours, so P(A) <= (1 - d) Q(A) + d <= (1 - d)(e^epsilon Q'(A) + delta') + d <= e^epsilon P'(A) + delta' + d,
where the steps without failures are (epsilon, delta')-DP together. So deltas of thresholds add up, in an amount that is
apart from what Gaussian releases use of a policy's delta (``dpsql.privacy.reserve``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from dpsql.errors import DataError, InternalError
from dpsql.privacy.noise import Noise

Integers: TypeAlias = NDArray[np.int64]
_WHOLE = 2**64  # probabilities of OptimalSelection are whole numbers over this
_LEAST_EPSILON = Fraction(1, 10_000)  # of one value: below, the law has too many entries
_HAIR = 1e-9  # what floats may be off, with room
LARGEST = 2**40
"""A threshold past this is no threshold: no table has so many units."""


@dataclass(frozen=True)
class GaussianThreshold:
    """Rounded Gaussian noise of variance groups / mu^2; a value is shown from ``least`` on. See the module."""

    groups: int
    mu_squared: Fraction
    delta: Fraction

    @cached_property
    def noise(self) -> Noise:
        """The law of the noise of one count."""
        return Noise.gaussian(self.groups / self.mu_squared)

    @property
    def kind(self) -> str:
        """The noise of its charge."""
        return "gaussian"

    @property
    def parameter(self) -> Fraction:
        """What its charge pays for."""
        return self.mu_squared

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise, before rounding."""
        return math.sqrt(float(self.noise.parameter))

    def failure(self, least: int) -> float:
        """The chance that a threshold shows a value of a unit that is alone in all its values.

        A count of 1 passes where 1 + round(N) >= least, that is N >= least - 3/2.
        """
        return -math.expm1(self.groups * float(log_ndtr((least - 1.5) / self.sigma)))

    @cached_property
    def least(self) -> int:
        """The smallest threshold whose ``failure`` is at most delta. DataError past 2^40."""
        allowed = float(self.delta) * (1.0 - _HAIR)
        tail = -math.expm1(math.log1p(-allowed) / self.groups)
        first = 1.5 - self.sigma * float(ndtri(tail))
        if not first < LARGEST:
            raise DataError("the threshold would be larger than any table: ask for more epsilon or more delta")
        found = max(2, math.floor(first) - 2)
        while self.failure(found) > allowed:
            found += 1
        return found

    @property
    def half(self) -> int:
        """The count from which a value is shown with a probability of at least one half."""
        return self.least

    @property
    def stderr(self) -> float:
        """The standard deviation of a noisy count."""
        return math.sqrt(self.noise.variance)

    @property
    def spread(self) -> int:
        """No noise is larger than this, but for a chance that floats round to 0."""
        return math.ceil(40 * self.sigma) + 1

    def sample(self, count: int) -> Integers:
        """``count`` independent draws from the operating system's entropy."""
        return self.noise.sample_many(count)

    def log_tail(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """log P(noise >= at), elementwise."""
        return np.asarray(log_ndtr((0.5 - at) / self.sigma))


@dataclass(frozen=True)
class OptimalSelection:
    """The selection that shows most values of any (epsilon, delta)-DP one, for units in one group; counts included.

    A value of count n is shown with probability p_n = min(r p_(n-1) + d, 1 - (1 - p_(n-1) - d) / r, 1), p_0 = 0
    (Desfontaines, Voss, Gipson and Mandayam 2022, Thm 1), r = e^(epsilon / groups) and d = delta / groups. It is the
    threshold of a noise law: P(noise = least - j) = p_j - p_(j-1). Here every p_n is a whole number over 2^64 and r a
    rational below e^(epsilon / groups), so that a draw looks one random word up, and what the law must satisfy is
    checked in whole numbers at construction: with w_j = p_j - p_(j-1), w_1 <= d, and the sums over j of
    max(0, w_j - r w_(j-1)) and of max(0, w_j - r w_(j+1)) are at most d. These are the hockey-stick divergences of
    n + noise from n - 1 + noise, both ways; what is shown is a function of it. Raises DataError.
    """

    groups: int
    epsilon: Fraction
    delta: Fraction
    passing: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        each = self.epsilon / self.groups
        allowed = math.floor(self.delta / self.groups * _WHOLE)
        if not _LEAST_EPSILON <= each <= 20:
            raise DataError("a selection needs an epsilon of 0.0001 to 20 for each group of a unit; ask for another")
        ratio = Fraction(math.floor(math.exp(float(each) * (1.0 - 1e-15)) * (1.0 - 1e-14) * 2**48), 2**48)
        step, passing = allowed, [0]
        for _ in range(8):
            if step < 1000:
                break
            passing = _passing(ratio, step)
            over = _divergence(passing, ratio) - allowed
            if over <= 0:
                object.__setattr__(self, "passing", tuple(passing[1:]))
                return
            step -= math.ceil(over) + 16
        raise DataError("delta is too small for a selection of this epsilon; ask for a delta of at least 1e-14")

    @property
    def kind(self) -> str:
        """The noise of its charge."""
        return "laplace"

    @property
    def parameter(self) -> Fraction:
        """What its charge pays for."""
        return self.epsilon

    @cached_property
    def _places(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """The words below which a draw is noise least - 1, least - 2, ..., and log p_1, log p_2, ..."""
        words = np.array(self.passing[:-1], dtype=np.uint64)
        return words, np.log(np.array([value / _WHOLE for value in self.passing]))

    @cached_property
    def least(self) -> int:
        """The threshold: such that the noise has the mean 0, but for rounding."""
        steps = np.diff(np.array([0, *self.passing], dtype=object))
        mean = Fraction(sum(j * w for j, w in enumerate(steps.tolist(), 1)), _WHOLE)
        return round(mean)

    @cached_property
    def half(self) -> int:
        """The count from which a value is shown with a probability of at least one half."""
        return 1 + next(j for j, value in enumerate(self.passing) if 2 * value >= _WHOLE)

    @cached_property
    def stderr(self) -> float:
        """The standard deviation of a noisy count."""
        steps = np.diff(np.array([0, *self.passing], dtype=object)).tolist()
        squares = sum(w * (self.least - j) ** 2 for j, w in enumerate(steps, 1))
        return math.sqrt(squares / _WHOLE)

    @property
    def spread(self) -> int:
        """No noise is larger than this."""
        return len(self.passing)

    def sample(self, count: int) -> Integers:
        """``count`` independent draws from the operating system's entropy: one 64-bit word each."""
        drawn = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return self.least - 1 - np.searchsorted(self._places[0], drawn, side="right").astype(np.int64)

    def log_tail(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """log P(noise >= at), elementwise: log p_j with j = least - at."""
        place = np.clip(self.least - np.asarray(at, dtype=np.int64), 0, len(self.passing))
        return np.where(place > 0, self._places[1][np.maximum(place, 1) - 1], -np.inf)


Threshold: TypeAlias = GaussianThreshold | OptimalSelection


def _passing(ratio: Fraction, step: int) -> list[int]:
    """p_0, p_1, ... over 2^64, up to the first that is 1; each rounded to the side of less."""
    up, down = ratio.numerator, ratio.denominator
    found = [0]
    while found[-1] < _WHOLE:
        last = found[-1]
        rest = max(0, _WHOLE - last - step)
        found.append(min(last * up // down + step, _WHOLE - -(-rest * down // up), _WHOLE))
    return found


def _divergence(passing: list[int], ratio: Fraction) -> Fraction:
    """The larger of the two divergences that the law must hold, over 2^64 (see ``OptimalSelection``)."""
    up, down = ratio.numerator, ratio.denominator
    steps = [after - before for before, after in pairwise(passing)]
    if min(steps) < 0:
        raise InternalError("a probability of selection falls with the count")
    beside = [0, *steps, 0]
    sums = [
        sum(max(0, down * here - up * other) for here, other in zip(steps, others, strict=True))
        for others in (beside[:-2], beside[2:])
    ]
    return Fraction(max(*sums, down * steps[0]), down)


class Passing(Protocol):
    """A law of noise with a threshold."""

    @property
    def least(self) -> int: ...
    @property
    def spread(self) -> int: ...
    def log_tail(self, at: NDArray[np.float64], /) -> NDArray[np.float64]: ...


def intervals(law: Passing, shown: Integers, alpha: float, *, from_count: int = 1) -> tuple[Integers, Integers]:
    """Confidence intervals of the counts behind noisy ones that passed, at least ``from_count``, pointwise.

    The law of a noisy count that is shown is conditioned on having passed: P(y >= v | y >= least). It grows with the
    count n (noise is log-concave), so that the counts which do not make what was seen unlikely, at alpha/2 on either
    side, are an interval: its coverage, given that the value is shown, is at least 1 - alpha. O(values log range).
    """
    seen = shown.astype(np.float64)
    low = _first(seen, law, from_count, lambda n: _conditional(law, seen - n, law.least - n) >= math.log(alpha / 2))
    # P(y <= v | passed) < alpha/2 from some n on; the last n before is the upper end.
    over = _first(
        seen, law, from_count, lambda n: _conditional(law, seen + 1 - n, law.least - n) > math.log1p(-alpha / 2)
    )
    return low, np.maximum(low, over - 1)


def _conditional(law: Passing, at: NDArray[np.float64], least: NDArray[np.float64]) -> NDArray[np.float64]:
    """log P(noise >= at | noise >= least)."""
    passed = law.log_tail(least)
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(passed), -np.inf, law.log_tail(at) - passed)


def _first(
    seen: NDArray[np.float64], law: Passing, first: int, holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]]
) -> Integers:
    """The least count from ``first`` on where ``holds``, which is monotone; at most a spread above what was seen."""
    low = np.full(seen.shape, float(first))
    high = np.maximum(seen + law.spread, low)
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        true = holds(middle)
        high = np.where(true, middle, high)
        low = np.where(true, low, np.minimum(middle + 1, high))
    return low.astype(np.int64)
