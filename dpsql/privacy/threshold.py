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
mechanism is "p-approximately" as private as M (Bun and Steinke 2016, Def. 8.1). ``GaussianThreshold`` bounds p by
``delta``: M is mu-GDP, since its counts move by at most sqrt(k) in the L2 norm and have variance k / mu^2. A value that
only u has is shown with probability 1 - Phi((least - 3/2) / sigma), so that p <= 1 - Phi((least - 3/2) / sigma)^k:
largest for s = k, a unit alone in all its values. (``dpsql.privacy.pure_threshold`` fails with no chance: it adds noise
to every value of a public universe.)

Composition. Steps that are delta_i-approximately private, chosen adaptively, of which the delta_i add up to at most d
on every path: the transcript has a law of at least (1 - d) times that of the steps without failures, pointwise, for
both neighbours, so P(A) <= (1 - d) Q(A) + d <= (1 - d)(e^epsilon Q'(A) + delta') + d <= e^epsilon P'(A) + delta' + d,
where the steps without failures are (epsilon, delta')-DP together. So deltas of thresholds add up, in an amount that is
apart from what Gaussian releases use of a policy's delta (``dpsql.privacy.reserve``).
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.privacy import draws
from dpsql.privacy.chances import Chance, normals_beyond
from dpsql.privacy.counts_above_threshold import passing_by_luck, sample_distinct
from dpsql.privacy.noise import Noise

Integers: TypeAlias = NDArray[np.int64]
Passed: TypeAlias = tuple[Integers, Integers, Integers]
"""Values that pass, among those of one count each: the class, the place in it, and the noisy count."""
_HAIR = 1e-9  # what floats may be off, with room
_CHUNK = 1 << 20  # draws at a time
_MANY, _RARELY = 4096, math.log(1 / 16)  # values of one count, and their chance to pass, that are decided in bulk
LARGEST = 2**40
"""A threshold past this is no threshold: no table has so many units."""


class Threshold(ABC):
    """What a discovery shows: the law, what its charge pays for, and from which counts on values appear."""

    groups: int
    delta: Fraction | None

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """The law of the noise of one count."""

    @property
    @abstractmethod
    def parameter(self) -> Fraction:
        """What its charge pays for."""

    @property
    @abstractmethod
    def least(self) -> int:
        """Noisy counts from here on are shown, and counts from here on with a probability of at least one half."""

    @property
    def kind(self) -> str:
        """The noise of its charge."""
        return self.noise.kind

    @property
    def fewest(self) -> int:
        """A value that no unit has is not shown."""
        return 1

    @property
    def stderr(self) -> float:
        """The standard deviation of a noisy count."""
        return math.sqrt(self.noise.variance)

    @property
    @abstractmethod
    def spread(self) -> int:
        """No noise is larger than this, but for a chance that floats round to 0."""

    @abstractmethod
    def log_tail(self, at: Floats, /) -> Floats:
        """log P(noise >= at), elementwise."""

    @abstractmethod
    def passed(self, counts: Integers, sizes: Integers, /) -> Passed:
        """Of ``sizes`` values of each count, with noise: class, place in it and noisy count of those that pass."""


@dataclass(frozen=True)
class GaussianThreshold(Threshold):
    """Rounded Gaussian noise of variance groups / mu^2; a value is shown from ``least`` on. See the module."""

    groups: int
    mu_squared: Fraction
    delta: Fraction

    @cached_property
    def noise(self) -> Noise:
        return Noise.gaussian(self.groups / self.mu_squared)

    @property
    def parameter(self) -> Fraction:
        return self.mu_squared

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise, before rounding."""
        return math.sqrt(float(self.noise.parameter))

    def failure(self, least: int) -> float:
        """The chance that a threshold shows a value of a unit that is alone in all its values, at most.

        A count of 1 passes where 1 + round(N) >= least, that is N >= least - 3/2.
        """
        return -math.expm1(self.groups * float(scipy.special.log_ndtr((least - 1.5) / self.sigma)))

    @cached_property
    def least(self) -> int:
        """The smallest threshold whose ``failure`` is at most delta. DataError past 2^40."""
        allowed = float(self.delta) * (1.0 - _HAIR)
        tail = -math.expm1(math.log1p(-allowed) / self.groups)
        first = 1.5 - self.sigma * float(scipy.special.ndtri(tail))
        if not first < LARGEST:
            raise DataError("the threshold would be larger than any table: ask for more epsilon or more delta")
        found = max(2, math.floor(first) - 2)
        while self.failure(found) > allowed:
            found += 1
        return found

    @property
    def spread(self) -> int:
        return math.ceil(40 * self.sigma) + 1

    def sample(self, count: int) -> Integers:
        """``count`` independent draws from the operating system's entropy."""
        return self.noise.sample_many(count)

    def reaches(self, at: int) -> Chance:
        """As of any ``Tailed``."""
        return Chance.gaussian(self.noise.parameter, at)

    def beyond(self, at: int, many: int, word: draws.Words) -> list[int]:
        """As of any ``Tailed``."""
        return normals_beyond(self.noise.parameter, at, many, word)

    def passed(self, counts: Integers, sizes: Integers) -> Passed:
        """As of any ``Threshold``, from the operating system's entropy.

        One draw for each value, a chunk of them at a time; where many have one count and few of these can pass, by the
        law of so many draws (``dpsql.privacy.counts_above_threshold``). Which way it is changes no law.
        """
        bulk = (sizes >= _MANY) & (self.log_tail((self.least - counts).astype(np.float64)) < _RARELY)
        found = [*_each(self, counts, np.where(bulk, 0, sizes)), *_in_bulk(self, counts, sizes, np.flatnonzero(bulk))]
        which, places, noisy = (np.concatenate([np.empty(0, dtype=np.int64), *p]) for p in zip(*found, strict=True))
        order = np.lexsort((places, which))
        return which[order], places[order], noisy[order]

    def log_tail(self, at: Floats) -> Floats:
        return np.asarray(scipy.special.log_ndtr((0.5 - at) / self.sigma))


def _each(law: GaussianThreshold, counts: Integers, sizes: Integers) -> Iterator[Passed]:
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, max(1, total), _CHUNK):
        at = np.arange(first, min(total, first + _CHUNK))
        which = np.searchsorted(ends, at, side="right")
        noisy = counts[which] + law.sample(len(at))
        kept = noisy >= law.least
        which, noisy = which[kept], noisy[kept]
        yield which, at[kept] - (ends[which] - sizes[which]), noisy


def _in_bulk(law: GaussianThreshold, counts: Integers, sizes: Integers, classes: Integers) -> Iterator[Passed]:
    word = draws.words(os.urandom)
    for which in classes.tolist():
        noisy = passing_by_luck(law, int(counts[which]), int(sizes[which]), word)
        places = sample_distinct(word, len(noisy), int(sizes[which]), counts[:0])
        yield np.full(len(noisy), which), np.array(places, dtype=np.int64), np.array(noisy, dtype=np.int64)
