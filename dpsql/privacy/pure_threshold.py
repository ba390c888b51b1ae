"""The values of a column, found purely: with noise on the count of every text that there could be.

Neighbours and counts: as in ``dpsql.privacy.threshold``; only texts of a public ``universe`` are values. Every one of
them has a count x, nearly all of them 0, and noise Z of its own, discrete Laplace of scale groups / epsilon. Shown are
those with x + Z >= ``least``, with that sum.

Guarantee: epsilon-DP, purely. A unit moves at most ``groups`` counts by 1 each, so that all x + Z together are
epsilon-DP (``dpsql.privacy.noise``), and what is shown is a function of them. Nothing is hidden by a delta: texts that
nobody has are shown where their noise passes, each as likely, and ``least`` is such that fewer than ``STRAYS`` of them
are expected.

No noise is made for most texts, and the law is that of noise on every one (``dpsql.privacy.counts_above_threshold``),
in two parts:

1. Before a row is read: the texts whose noise passes by itself, Z >= least. How many is binomial, which ones is any set
   of that size, and Z is least and a geometric number beside. They are shown, whatever x is.
2. All others have the law of Z given that Z < least, each by itself. Those with x = 0 are not shown. Of those with
   x > 0, class by class, noise is drawn as in (1) for the threshold least - x, and drawn again for those with
   Z >= least, as often as it takes: that is the law given Z < least, by rejection.

The second part leaves out the texts of the first by their text, after units have been held to ``groups`` values: how
many rows count in a value depends on the rows alone, not on the noise.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.privacy import draws
from dpsql.privacy.counts_above_threshold import GeometricThreshold, passing, passing_by_luck, sample_distinct
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.noise import Noise
from dpsql.privacy.threshold import LARGEST, Integers, Passed, Threshold
from dpsql.privacy.universe import Universe

STRAYS = 0.01
"""How many texts that nobody has are expected to be shown, at most."""


@dataclass(frozen=True)
class PureThreshold(Threshold):
    """Discrete Laplace noise on the count of every text of ``universe``; shown from ``least`` on. See the module."""

    groups: int
    epsilon: Fraction
    universe: Universe
    delta: None = field(default=None, init=False, repr=False)  # nothing fails

    @property
    def parameter(self) -> Fraction:
        return self.epsilon

    @cached_property
    def noise(self) -> Noise:
        return Noise.laplace(self.groups / self.epsilon)

    @cached_property
    def least(self) -> int:
        """The threshold for which fewer than ``STRAYS`` texts without rows are shown. DataError past 2^40."""
        scale = float(self.noise.parameter)  # P(Z >= T) = q^T / (1 + q), q = exp(-1 / scale)
        behind = math.log(self.universe.size) - math.log(STRAYS) - math.log1p(math.exp(-1 / scale))
        found = max(0, math.floor(scale * behind)) + 1
        if found > LARGEST:
            raise DataError("the threshold would be larger than any table: ask for more epsilon or shorter texts")
        return found

    @cached_property
    def each(self) -> GeometricThreshold:
        """What decides about one text."""
        return GeometricThreshold(self.noise.parameter, self.least)

    @property
    def fewest(self) -> int:
        """What has no rows may be shown, too."""
        return 0

    @property
    def spread(self) -> int:
        return self.each.spread

    def log_tail(self, at: Floats) -> Floats:
        """log P(noise >= at), elementwise, of noise on every text."""
        return self.each.log_tail(at)

    def alone(self) -> dict[str, int]:
        """The texts whose noise passes by itself, and that noise; from the operating system's entropy."""
        return alone_from(self, os.urandom)

    def passed(self, counts: Integers, sizes: Integers) -> Passed:
        """As of any ``Threshold``; of values that are not ``alone``."""
        return passed_from(self, counts, sizes, os.urandom)


def alone_from(law: PureThreshold, source: EntropySource) -> dict[str, int]:
    """``PureThreshold.alone`` with bytes from ``source``. FOR TESTS ONLY: private with ``os.urandom`` alone."""
    word, size = draws.words(source), law.universe.size
    noise = passing_by_luck(law.each, 0, size, word)
    numbers = sample_distinct(word, len(noise), size, np.empty(0, dtype=np.int64))
    return {law.universe.text(number): z for number, z in zip(numbers, noise, strict=True)}


def passed_from(law: PureThreshold, counts: Integers, sizes: Integers, source: EntropySource) -> Passed:
    """``PureThreshold.passed`` with bytes from ``source``. FOR TESTS ONLY: private with ``os.urandom`` alone."""
    word = draws.words(source)
    found: list[tuple[int, int, int]] = []
    for which, (count, size) in enumerate(zip(counts.tolist(), sizes.tolist(), strict=True)):
        noisy = _of_class(law, count, size, source, word)
        places = sample_distinct(word, len(noisy), size, counts[:0])
        found += [(which, place, seen) for place, seen in zip(places, noisy, strict=True)]
    parts = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    return parts[:, 0], parts[:, 1], parts[:, 2]


def _of_class(law: PureThreshold, count: int, size: int, source: EntropySource, word: draws.Words) -> list[int]:
    """The noisy counts that pass, given that no noise passes by itself."""
    found: list[int] = []
    while size:
        noisy = passing(law.each, count, size, source, word)
        kept = [seen for seen in noisy if seen - count < law.least]
        found, size = found + kept, len(noisy) - len(kept)
    return found
