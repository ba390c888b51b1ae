"""Exact chances: how often an event occurs in many trials, and Gaussian noise given that it is large.

No float takes part in a draw. A chance p is known between two whole numbers over 2^bits, to any precision, by sums and
products that are rounded to either side. A draw compares it with a uniform real, of which more binary digits are drawn
until they decide; the real's further digits are uniform still, so what is drawn has the law of the real itself.

How often an event of chance p occurs in n independent trials is the k for which a uniform real lies between F(k - 1)
and F(k), F(k) the chance of at most k. Rounded Gaussian noise Z given Z >= t is, for a uniform real u, the largest z
with u P(Z >= t) < P(Z >= z): it is at least z with the chance P(Z >= z) / P(Z >= t).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial

from dpsql.privacy.draws import Words

_AT_ONCE = 32  # cells that pass, on average, of a draw
_GUARD = 32  # further binary digits that rounding may spoil
_LOG2_E = Fraction(3, 2)  # more than log2(e)


@dataclass(frozen=True)
class Chance:
    """An event; ``bounds(bits)`` are whole numbers between which its probability p < 1 times 2^bits lies.

    What was worked out is kept as long as the event: it may tell a private count, and no cache outlives it.
    """

    bounds: Callable[[int], tuple[int, int]] = field(repr=False)

    @classmethod
    def laplace(cls, scale: Fraction, least: int) -> Chance:
        """That discrete Laplace noise is >= least, at least 1: q^least / (1 + q), q = exp(-1 / scale)."""
        return cls(lru_cache(maxsize=None)(partial(_laplace_tail, scale, least)))

    @classmethod
    def gaussian(cls, variance: Fraction, least: int) -> Chance:
        """That round(N(0, variance)) is >= least, at least 1: P(N >= least - 1/2)."""
        return cls(lru_cache(maxsize=None)(partial(_normal_tail, Fraction(2 * least - 1) ** 2 / (4 * variance))))

    def times(self, trials: int, word: Words) -> int:
        """How often it occurs in so many independent trials, of any number: one draw, exactly."""
        bits = trials.bit_length() + 64
        at_once = max(1, (_AT_ONCE << bits) // self.bounds(bits)[1])
        full, rest = divmod(trials, at_once)
        return sum(self._draw(n, word) for n in [at_once] * full + [rest] * (rest > 0))

    def _draw(self, trials: int, word: Words) -> int:
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


def normals_beyond(variance: Fraction, least: int, many: int, word: Words) -> list[int]:
    """``many`` independent draws of round(N(0, variance)) given that it is at least ``least``, ``least`` >= 1."""
    at = lru_cache(maxsize=None)(partial(Chance.gaussian, variance))
    return [_beyond(at, least, word) for _ in range(many)]


def _beyond(at: Callable[[int], Chance], least: int, word: Words) -> int:
    """The largest z with u P(Z >= least) < P(Z >= z): a gallop to one that has not, then halves."""
    drawn, bits = word(), 64

    def passes(z: int) -> bool:
        nonlocal drawn, bits
        while True:
            work = bits + 2 * _GUARD
            (low, high), (own_low, own_high) = at(least).bounds(work), at(z).bounds(work)
            if (drawn + 1) * high <= own_low << bits:
                return True
            if drawn * low >= own_high << bits:
                return False
            drawn, bits = (drawn << 64) | word(), bits + 64

    step = 1
    while passes(least + step):
        step *= 2
    first, last = least + step // 2, least + step  # the first passes, the last does not
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if passes(middle) else (first, middle)
    return first


def _power(x: int, n: int, bits: int, *, up: bool) -> int:
    """(x / 2^bits)^n 2^bits, rounded up or down at every step, 0 <= x <= 2^bits."""
    found = 1 << bits
    for digit in f"{n:b}":
        for factor in (found, x)[: 1 + (digit == "1")]:
            found = -(-found * factor >> bits) if up else found * factor >> bits
    return found


def _laplace_tail(scale: Fraction, least: int, bits: int) -> tuple[int, int]:
    """Whole numbers between which P(Z >= least) 2^bits lies, at most 2 apart."""
    low, high = _exp_minus(least / scale, bits + _GUARD)
    q_low, q_high = _exp_minus(1 / scale, bits + _GUARD)
    one = 1 << (bits + _GUARD)
    return (low << bits) // (one + q_high), -((-high << bits) // (one + q_low))


def _normal_tail(y: Fraction, bits: int) -> tuple[int, int]:
    """Whole numbers between which P(N(0, 1) >= sqrt(y)) 2^bits lies, at most 2 apart.

    It is 1/2 - sqrt(y / 2 pi) exp(-y / 2) S, S = sum over k of y^k / (1 3 5 ... (2k + 1)), whose terms are positive;
    S <= exp(y / 2). It is below exp(-y / 2), too, so that far out nothing needs to be added up.
    """
    if y * 7 > bits * 10:  # exp(-y / 2) < 2^(-bits), as log2(e) / 2 > 0.7
        return 0, 1
    work = bits + _GUARD + math.ceil(y * _LOG2_E / 2) + math.ceil(y).bit_length()
    work += -work % 128  # so that pi is worked out for few of them
    up, down = y.numerator, y.denominator
    sum_low = sum_high = term_low = term_high = 1 << work
    odd = 1
    while term_high > 1 or odd * down < 2 * up:
        odd += 2
        term_low = term_low * up // (down * odd)
        term_high = -(-term_high * up // (down * odd))
        sum_low, sum_high = sum_low + term_low, sum_high + term_high
    sum_high += 2  # the terms that follow are at most half as large each
    exp_low, exp_high = _exp_minus(y / 2, work)
    pi_low, pi_high = _pi(work)
    root_low = math.isqrt((up << (3 * work)) // (2 * down * pi_high))
    root_high = math.isqrt(-(-(up << (3 * work)) // (2 * down * pi_low))) + 1
    middle_low, middle_high = root_low * exp_low * sum_low >> 2 * work, -(-root_high * exp_high * sum_high >> 2 * work)
    half, shift = 1 << (work - 1), work - bits
    return max(0, half - middle_high >> shift), -(-(half - middle_low) >> shift)


@lru_cache(maxsize=64)
def _pi(bits: int) -> tuple[int, int]:
    """Whole numbers between which pi 2^bits lies: 16 arctan(1/5) - 4 arctan(1/239) (Machin)."""
    one = 1 << (bits + _GUARD)
    found = 0
    for factor, x in ((16, 5), (-4, 239)):
        power, odd, sign = one // x, 1, factor
        while power:
            found += sign * (power // odd)
            power, odd, sign = power // (x * x), odd + 2, -sign
    return (found >> _GUARD) - 1, (found >> _GUARD) + 2  # each of fewer than 2^20 terms is off by less than 32


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
