"""Which of very many counts pass a threshold with their noise, without a draw for each: by the law of such draws.

Neighbours: all rows of one unit are added or removed; a unit moves the counts x of all cells by at most ``reach`` in L1
norm, and the noise of each is discrete Laplace of scale reach / epsilon. What is shown is every cell with x + Z >=
``least``, and that sum. It is a function of x + Z, which is epsilon-DP (``dpsql.privacy.noise``), so it is
epsilon-DP, purely: nothing is hidden by a delta, and a cell without rows is shown where its noise passes.

Cells of one count are alike, those without rows above all, of which there may be billions. So their part has a simple
law, whatever the law of the noise Z is (Cormode, Procopiuc, Srivastava and Tran 2012, "Differentially private summaries
for sparse data", filter and sample). Of m cells of the count n < least, with t = least - n and p = P(Z >= t),

    how many pass is binomial (m, p); which ones: any set of that size, each as likely;
    their Z are independent, each with the law of Z given Z >= t: of discrete Laplace noise t and a geometric number
    beside, as P(Z >= t + k) = p exp(-k / scale).

Proof: m independent Z are m independent coins of chance p, and beside each coin that wins a Z by the law given Z >= t.
Given how many win, every set of so many coins is as likely.

All three are drawn exactly (``dpsql.privacy.chances``). Cost: some ten microseconds a cell that passes, however many
there are.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.privacy import draws
from dpsql.privacy.chances import Chance
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.noise import Noise, sample_from


class Tailed(Protocol):
    """Noise on counts, of which those from ``least`` on are shown."""

    @property
    def least(self) -> int: ...
    def reaches(self, at: int, /) -> Chance:
        """That noise is at least ``at``, which is at least 1."""
        ...

    def beyond(self, at: int, many: int, word: draws.Words, /) -> list[int]:
        """So many independent draws of noise given that it is at least ``at``, which is at least 1."""
        ...


@dataclass(frozen=True)
class GeometricThreshold:
    """Discrete Laplace noise of that ``scale`` on every count; a cell is shown from ``least`` on. See the module."""

    scale: Fraction
    least: int

    def __post_init__(self) -> None:
        if isinstance(self.least, bool) or not isinstance(self.least, int) or self.least < 1:
            raise InternalError("a threshold of counts is a whole number of at least 1")
        if self.spread >= 2**62:  # counts with their noise are 64-bit integers
            raise DataError("the noise of a count would not fit 64 bits; ask with more epsilon")

    @cached_property
    def noise(self) -> Noise:
        """The law of the noise of one count."""
        return Noise.laplace(self.scale)

    @property
    def fewest(self) -> int:
        """What has no rows may be shown, too."""
        return 0

    @property
    def spread(self) -> int:
        """No noise is larger than this, but for a chance that floats round to 0."""
        return math.ceil(800 * self.scale) + 1

    def log_tail(self, at: Floats) -> Floats:
        """log P(noise >= at), elementwise."""
        q = math.exp(-1 / float(self.scale))
        above = -np.maximum(at, 1.0) / float(self.scale) - math.log1p(q)
        below = np.log1p(-np.exp((np.minimum(at, 0.0) - 1.0) / float(self.scale)) / (1.0 + q))
        return np.asarray(np.where(at >= 1, above, below))

    def reaches(self, at: int) -> Chance:
        """As of any ``Tailed``."""
        return Chance.laplace(self.scale, at)

    def beyond(self, at: int, many: int, word: draws.Words) -> list[int]:
        """As of any ``Tailed``."""
        return [at + draws.geometric(word, self.scale.numerator, self.scale.denominator) for _ in range(many)]

    def sample(self, counts: Ints, cells: int, taken: Ints) -> tuple[Ints, Ints]:
        """What is shown of ``cells`` cells: the numbers of those that pass, in order, and x + Z of each.

        ``counts`` (n,) are the x of the cells ``taken`` (n,), ascending; all others have 0. From the operating system's
        entropy. How long it takes tells roughly how many cells have rows.
        """
        return sample_passing(self, counts, cells, taken, os.urandom)


def sample_passing(
    law: GeometricThreshold, counts: Ints, cells: int, taken: Ints, source: EntropySource
) -> tuple[Ints, Ints]:
    """``GeometricThreshold.sample`` with bytes from ``source``. FOR TESTS ONLY: private with ``os.urandom`` alone."""
    if len(counts) != len(taken) or len(taken) > cells:
        raise InternalError("there are more cells with rows than cells")
    if len(counts) and int(counts.min()) < 1:
        raise InternalError("a cell with rows has at least one")
    word = draws.words(source)
    many = counts >= law.least
    noise = sample_from(law.noise, int(many.sum()), source)
    places, found = [taken[many]], [counts[many] + np.array(noise, dtype=np.int64)]
    kept = found[0] >= law.least
    places[0], found[0] = places[0][kept], found[0][kept]
    for count in [0, *np.unique(counts[~many]).tolist()]:
        mine = taken[counts == count] if count else taken[:0]
        noisy = passing(law, count, len(mine) if count else cells - len(taken), source, word)
        if count:
            where = mine[sample_distinct(word, len(noisy), len(mine), mine[:0])]
        else:
            where = np.array(sample_distinct(word, len(noisy), cells, taken), dtype=np.int64)
        places.append(where)
        found.append(np.array(noisy, dtype=np.int64))
    order = np.argsort(np.concatenate(places))
    return np.concatenate(places)[order], np.concatenate(found)[order]


def passing(law: GeometricThreshold, count: int, cells: int, source: EntropySource, word: draws.Words) -> list[int]:
    """Of so many cells of one ``count`` the noisy counts that pass."""
    if count >= law.least:
        return [count + z for z in sample_from(law.noise, cells, source) if count + z >= law.least]
    return passing_by_luck(law, count, cells, word)


def passing_by_luck(law: Tailed, count: int, cells: int, word: draws.Words) -> list[int]:
    """Of so many cells of one ``count`` < ``least`` the noisy counts that pass, without a draw for each cell."""
    at = law.least - count
    return [count + z for z in law.beyond(at, law.reaches(at).times(cells, word), word)]


def sample_distinct(word: draws.Words, count: int, cells: int, taken: Ints) -> list[int]:
    """A uniform sample of ``count`` distinct numbers below ``cells`` outside ``taken`` (ascending): by rejection."""
    sampled: set[int] = set()
    while len(sampled) < count:
        at = draws.below(word, cells)
        place = int(np.searchsorted(taken, at))
        if place == len(taken) or taken[place] != at:
            sampled.add(at)  # a number that is in it already is drawn again
    return list(sampled)  # in any order: the noise of all of them has the same law
