"""The selection that shows most values of any (epsilon, delta)-DP one (``dpsql.privacy.threshold``)."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InternalError
from dpsql.privacy import draws
from dpsql.privacy.chances import Chance
from dpsql.privacy.threshold import Integers, Passed, Threshold, passed

_WHOLE = 2**64  # probabilities of OptimalSelection are whole numbers over this
_LEAST_EPSILON = Fraction(1, 10_000)  # of one value: below, the law has too many entries


@dataclass(frozen=True)
class OptimalSelection(Threshold):
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
        return "laplace"

    @property
    def parameter(self) -> Fraction:
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
        return 1 + next(j for j, value in enumerate(self.passing) if 2 * value >= _WHOLE)

    @cached_property
    def stderr(self) -> float:
        steps = np.diff(np.array([0, *self.passing], dtype=object)).tolist()
        squares = sum(w * (self.least - j) ** 2 for j, w in enumerate(steps, 1))
        return math.sqrt(squares / _WHOLE)

    @property
    def spread(self) -> int:
        return len(self.passing)

    def sample(self, count: int) -> Integers:
        """``count`` independent draws from the operating system's entropy: one 64-bit word each."""
        drawn = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return self.least - 1 - np.searchsorted(self._places[0], drawn, side="right").astype(np.int64)

    def reaches(self, at: int) -> Chance:
        """As of any ``Tailed``: a whole number over 2^64, below 1 as the noise has the mean 0."""
        p = self.passing[self.least - at - 1] if at < self.least else 0
        return Chance(lambda bits: (p << bits >> 64, -(-(p << bits) >> 64)))

    def beyond(self, at: int, many: int, word: draws.Words) -> list[int]:
        """As of any ``Tailed``: a word among those that are large noise."""
        drawn = [draws.below(word, self.passing[self.least - at - 1]) for _ in range(many)]
        return [self.least - 1 - bisect_right(self.passing, one) for one in drawn]

    def passed(self, counts: Integers, sizes: Integers) -> Passed:
        return passed(self, counts, sizes)

    def log_tail(self, at: Floats) -> Floats:
        place = np.clip(self.least - np.asarray(at, dtype=np.int64), 0, len(self.passing))
        return np.where(place > 0, self._places[1][np.maximum(place, 1) - 1], -np.inf)


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
