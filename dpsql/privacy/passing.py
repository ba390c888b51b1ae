"""Which of very many counts pass a threshold with their noise, without a draw for each: by the law of such draws.

Neighbours: all rows of one unit are added or removed; a unit moves the counts x of all cells by at most ``reach`` in L1
norm, and the noise of each is discrete Laplace of scale reach / epsilon. What is shown is every cell with x + Z >=
``least``, and that sum. It is a function of x + Z, which is epsilon-DP (``dpsql.privacy.noise``), so it is
epsilon-DP, purely: nothing is hidden by a delta, and a cell without rows is shown where its noise passes.

Cells of one count are alike, those without rows above all, of which there may be billions. So their part has a simple
law (Cormode, Procopiuc, Srivastava and Tran 2012, "Differentially private summaries for sparse data", filter and
sample). Of m cells of the count n < least, with t = least - n and p = P(Z >= t),

    how many pass is binomial (m, p); which ones: any set of that size, each as likely;
    Z is t and a geometric number beside, as P(Z >= t + k) = p exp(-k / scale).

All three are drawn exactly. The binomial number is the k for which a uniform real lies between the chances of at most
k - 1 and of at most k. Both follow from p, which is known between two whole numbers to any precision, by sums and
products that are rounded to either side; more binary digits of the real are drawn until they decide. Cost: some
microseconds a cell that passes, however many there are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache, partial

import numpy as np

from dpsql.arrays import Floats
from dpsql.errors import InternalError
from dpsql.privacy import draws
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.noise import Noise, sample_from
from dpsql.privacy.threshold import Integers

_AT_ONCE = 32  # cells that pass, on average, of a draw
_GUARD = 32  # further binary digits that rounding may spoil


@dataclass(frozen=True)
class GeometricThreshold:
    """Discrete Laplace noise of that ``scale`` on every count; a cell is shown from ``least`` on. See the module."""

    scale: Fraction
    least: int

    def __post_init__(self) -> None:
        if isinstance(self.least, bool) or not isinstance(self.least, int) or self.least < 1:
            raise InternalError("a threshold of counts is a whole number of at least 1")

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

    def sample(self, counts: Integers, cells: int, taken: Integers) -> tuple[Integers, Integers]:
        """What is shown of ``cells`` cells: the numbers of those that pass, in order, and x + Z of each.

        ``counts`` (n,) are the x of the cells ``taken`` (n,), ascending; all others have 0. From the operating system's
        entropy. How long it takes tells roughly how many cells have rows.
        """
        return sample_passing(self, counts, cells, taken, os.urandom)


def sample_passing(
    law: GeometricThreshold, counts: Integers, cells: int, taken: Integers, source: EntropySource
) -> tuple[Integers, Integers]:
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
            where = mine[apart(word, len(noisy), len(mine), mine[:0])]
        else:
            where = np.array(apart(word, len(noisy), cells, taken), dtype=np.int64)
        places.append(where)
        found.append(np.array(noisy, dtype=np.int64))
    order = np.argsort(np.concatenate(places))
    return np.concatenate(places)[order], np.concatenate(found)[order]


def passing(law: GeometricThreshold, count: int, cells: int, source: EntropySource, word: draws.Words) -> list[int]:
    """Of so many cells of one ``count`` the noisy counts that pass."""
    if count >= law.least:
        return [count + z for z in sample_from(law.noise, cells, source) if count + z >= law.least]
    passed = Chance.of(law.scale, law.least - count).times(cells, word)
    t, s = law.scale.numerator, law.scale.denominator
    return [law.least + draws.geometric(word, t, s) for _ in range(passed)]


def apart(word: draws.Words, count: int, cells: int, taken: Integers) -> list[int]:
    """``count`` different ones of ``cells`` that are not ``taken`` (ascending), every set as likely: by rejection."""
    found: set[int] = set()
    while len(found) < count:
        at = draws.below(word, cells)
        place = int(np.searchsorted(taken, at))
        if place == len(taken) or taken[place] != at:
            found.add(at)  # one that is there is drawn anew
    return list(found)  # which draw goes to which of them is all the same: the draws are alike


@dataclass(frozen=True)
class Chance:
    """An event; ``bounds(bits)`` are whole numbers between which its probability p < 1 times 2^bits lies."""

    bounds: Callable[[int], tuple[int, int]] = field(repr=False)

    @classmethod
    def of(cls, scale: Fraction, least: int) -> Chance:
        """For discrete Laplace noise of ``scale``: P(Z >= least) = q^least / (1 + q), q = exp(-1 / scale), least >= 1.

        What was worked out is kept as long as the event: ``least`` tells a private count, and no cache outlives it.
        """
        return cls(lru_cache(maxsize=None)(partial(_tail, scale, least)))

    def times(self, trials: int, word: draws.Words) -> int:
        """How often it occurs in so many independent trials, of any number: one draw, exactly."""
        bits = trials.bit_length() + 64
        at_once = max(1, (_AT_ONCE << bits) // self.bounds(bits)[1])
        full, rest = divmod(trials, at_once)
        return sum(self._draw(n, word) for n in [at_once] * full + [rest] * (rest > 0))

    def _draw(self, trials: int, word: draws.Words) -> int:
        drawn, bits = word(), 64
        while (found := self._decided(trials, drawn, bits)) is None:
            drawn, bits = (drawn << 64) | word(), bits + 64
        return found

    def _decided(self, trials: int, drawn: int, bits: int) -> int | None:
        """k, where F(k - 1) <= u < F(k) for all reals u of these binary digits, F(k) = P(at most k); else None.

        The k-th term of F is C(n, k) (p / (1 - p))^k (1 - p)^n.
        """
        work = bits + 2 * trials.bit_length() + _GUARD
        one, u = 1 << work, drawn << (work - bits)
        p_low, p_high = self.bounds(work)
        odds_low, odds_high = (p_low << work) // (one - p_low), -((-p_high << work) // (one - p_high))
        low, high = _power(one - p_high, trials, work, up=False), _power(one - p_low, trials, work, up=True)
        below_low = below_high = 0
        for k in range(trials):
            below_low, below_high = below_low + low, below_high + high
            if u + (1 << (work - bits)) <= below_low:
                return k
            if u < below_high:
                return None
            low = low * (trials - k) * odds_low // ((k + 1) << work)
            high = -(-high * (trials - k) * odds_high // ((k + 1) << work))
        return trials


def _power(x: int, n: int, bits: int, *, up: bool) -> int:
    """(x / 2^bits)^n 2^bits, rounded up or down at every step, 0 <= x <= 2^bits."""
    found = 1 << bits
    for digit in f"{n:b}":
        for factor in (found, x)[: 1 + (digit == "1")]:
            found = -(-found * factor >> bits) if up else found * factor >> bits
    return found


def _tail(scale: Fraction, least: int, bits: int) -> tuple[int, int]:
    """Whole numbers between which P(Z >= least) 2^bits lies, at most 2 apart."""
    low, high = _exp_minus(least / scale, bits + _GUARD)
    q_low, q_high = _exp_minus(1 / scale, bits + _GUARD)
    one = 1 << (bits + _GUARD)
    return (low << bits) // (one + q_high), -((-high << bits) // (one + q_low))


def _exp_minus(x: Fraction, bits: int) -> tuple[int, int]:
    """Whole numbers between which exp(-x) 2^bits lies, x >= 0, close together.

    exp(x / 2^n) by its series, of which every term is rounded to either side, then its inverse, squared n times.
    """
    halvings = max(0, (math.ceil(2 * x) - 1).bit_length())
    work = bits + 2 * halvings + 16
    up, down = x.numerator, x.denominator << halvings
    low = high = term_low = term_high = 1 << work
    number = 0
    while term_high > 1:
        number += 1
        term_low = term_low * up // (down * number)
        term_high = -(-term_high * up // (down * number))
        low, high = low + term_low, high + term_high
    high += 2  # the terms that follow are at most half as large each
    low, high = (1 << 2 * work) // high, -(-(1 << 2 * work) // low)
    for _ in range(halvings):
        low, high = low * low >> work, -(-high * high >> work)
    return low >> (work - bits), -(-high >> (work - bits))
