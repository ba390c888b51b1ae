"""k-ary randomised response: each value kept with one exact probability, else replaced by one of the others.

A value is a number from 0 to k - 1. What is released is (x + Z) mod k, with Z = 0 with probability ``keep`` and each of
1, ..., k - 1 with probability ``lie``: x itself, or one of the k - 1 *other* values, uniformly (a lie drawn from all k
would pass more than it claims: epsilon 1.53 instead of 1 at k = 4). This is the mechanism of Wang, Ying and Zhang
2015, Eqs. (10) and (11), whose 2^l is k.

Guarantee (neighbours: *replace* the value of one row; the number of rows and which row is which are public). The rows
of a release are independent, each epsilon-DP:

    P(y | x) / P(y | x') is keep/lie, 1 or lie/keep, and keep/lie <= e^epsilon, so at most e^epsilon.

Proof that keep/lie <= e^epsilon: with r = p/q a rational below e^epsilon (``exp_below``), lie = q / (p + (k - 1) q) and
keep = p / (p + (k - 1) q) have ratio r and keep + (k - 1) lie = 1, exactly. A privacy unit with at most k_u rows
pays k_u * epsilon: replacing its rows one after the other multiplies k_u such ratios. It protects values, not whether
somebody takes part.

Release once. Two releases of the same rows are two looks: they cost twice epsilon, and some sixty at epsilon 1 show
the truth, since the truth is the commonest answer.

The offsets Z come from the operating system's entropy alone, in integers, without seeing the data: the time of a
draw cannot depend on them. No entropy is kept between calls, so a fork is safe.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import DataError, InternalError
from dpsql.privacy.amounts import GRID, Number, exact, show, to_units
from dpsql.privacy.draws import EntropySource, check_count

Codes = NDArray[np.int64]

LARGEST_EPSILON = 100
"""Beyond it, one answer in 10^43 is a lie: no protection to speak of."""

LARGEST_DOMAIN = 2**62
"""x + Z stays inside a signed 64-bit integer."""

_BITS = 128  # of e^epsilon after the point; at epsilon 1e-12 a relative 2^-88 of e^epsilon - 1 is lost
_WORD = 64
_CHUNK = 1 << 20  # words read at a time, inside one call only


def exp_below(exponent: Fraction, bits: int = _BITS) -> Fraction:
    """A multiple of 2^-bits that is at most e^exponent, and below it by less than 2 in the last place; exponent >= 0.

    e^x = (e^(x / 2^h))^(2^h). The Taylor series has only positive terms, and every step (x / 2^h, each
    term, each squaring) is rounded down in integers, so no step passes the true value. Cost: some 30 products.
    """
    halvings = (exponent.numerator // exponent.denominator).bit_length() + 8
    # Each squaring doubles the relative error, and e^100 has 145 bits before the point.
    work = bits + 2 * halvings + 32 + 3 * (exponent.numerator // exponent.denominator + 1) // 2
    x = (exponent.numerator << (work - halvings)) // exponent.denominator
    total = term = 1 << work
    i = 0
    while term:
        i += 1
        term = term * x // (i << work)
        total += term
    for _ in range(halvings):
        total = total * total >> work
    return Fraction(total >> (work - bits), 1 << bits)


@dataclass(frozen=True)
class Response:
    """The law of one answer: ``domain_size`` values, kept with probability ``keep``, each other with ``lie``.

    Make it with `Response.of`. Every instance satisfies keep + (k - 1) lie = 1, lie < keep and keep/lie <= e^epsilon:
    construction refuses anything else, so an instance is a proof. Guarantee and relation: see the module.
    """

    domain_size: int
    epsilon: Fraction
    keep: Fraction
    lie: Fraction

    def __post_init__(self) -> None:
        k = self.domain_size
        if isinstance(k, bool) or not isinstance(k, int) or not 2 <= k <= LARGEST_DOMAIN:
            raise DataError("a response needs between 2 and 2^62 values; with one value there is nothing to hide")
        if not all(isinstance(p, Fraction) for p in (self.epsilon, self.keep, self.lie)):
            raise InternalError("the probabilities of a response must be Fractions, so that they are exact")
        if not 0 < self.epsilon <= LARGEST_EPSILON:
            raise DataError(f"epsilon must lie between 0 and {LARGEST_EPSILON} for a response; give for example 1")
        if not 0 < self.lie < self.keep or self.keep + (k - 1) * self.lie != 1:
            raise InternalError("keep must exceed lie, and keep + (k - 1) lie must be 1")
        if self.keep / self.lie > exp_below(self.epsilon):
            raise InternalError("keep/lie must not exceed e^epsilon; make the response with Response.of")

    @classmethod
    def of(cls, domain_size: int, epsilon: Number) -> Response:
        """The response over ``domain_size`` values at ``epsilon``, as close to it as 128 bits after the point allow.

        epsilon: a positive number or decimal text of at most 100; a float counts as its shortest text. It is rounded
        down to a multiple of 1e-12, the grid of the ledger, and the law is that of the rounded figure.
        Raises DataError for anything else, and for a domain below 2 or above 2^62 values.
        """
        asked = exact("epsilon", epsilon, shortest=True)
        granted = Fraction(to_units(asked), GRID)
        if granted > LARGEST_EPSILON:
            raise DataError(f"epsilon must be at most {LARGEST_EPSILON}, where nothing is hidden; give for example 1")
        if not granted:
            raise DataError("epsilon must be at least 1e-12; give for example 1")
        if isinstance(domain_size, bool) or not isinstance(domain_size, int) or domain_size < 2:
            raise DataError("a response needs at least 2 values; with one value there is nothing to hide")
        ratio = exp_below(granted)
        lie = 1 / (ratio + domain_size - 1)
        return cls(domain_size, granted, ratio * lie, lie)

    @property
    def contrast(self) -> Fraction:
        """keep - lie: what is left of the difference of two values, and what estimates are divided by."""
        return self.keep - self.lie

    def unit_epsilon(self, rows: int) -> Fraction:
        """What a privacy unit with up to ``rows`` rows pays: rows * epsilon. Raises DataError below one row."""
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise DataError("a unit has at least 1 row; give the most rows that one unit may have")
        return rows * self.epsilon

    def sample(self, count: int) -> Codes:
        """``count`` independent offsets Z, (count,) int64, from OS entropy; exact. About 0.1 microseconds each.

        Draw them before the data are touched, and each for one row of one release.
        """
        return offsets_from(self, count, os.urandom)

    def shifted(self, values: Codes, offsets: Codes) -> Codes:
        """(values + offsets) mod k: what is released. Both (n,) int64 from 0 to k - 1."""
        if values.shape != offsets.shape:
            raise InternalError("every value needs an offset of its own")
        moved = values + offsets
        moved[moved >= self.domain_size] -= self.domain_size
        return moved

    def __str__(self) -> str:
        return f"one of {self.domain_size:,} values at epsilon {show(self.epsilon)}, for replacing one row"


def offsets_from(response: Response, count: int, source: EntropySource) -> Codes:
    """``count`` offsets of ``response`` with bytes from ``source``. FOR TESTS ONLY.

    Private with ``os.urandom`` alone: whoever can repeat the source can take the lies off. `Response.sample` offers no
    choice; a test keeps it so.

    The law is exact. U is a uniform real, its binary digits drawn in words of 64, and Z = 0 where U < keep. The first
    word decides unless it equals the first word of keep (probability 2^-64 a row): then further words are
    compared, and where keep has no more digits U is not below it. Otherwise Z - 1 is uniform from 0 to
    k - 2, by rejection of words (`_uniform`).
    """
    check_count(count)
    first, rest = divmod(response.keep * (1 << _WORD), 1)
    threshold = np.uint64(first)
    offsets = np.zeros(count, dtype=np.int64)
    for at in range(0, count, _CHUNK):
        part = offsets[at : at + _CHUNK]
        words = _words(source, part.size)
        lies = words > threshold
        for i in np.flatnonzero(words == threshold).tolist():
            lies[i] = not _is_below(rest, source)
        places = np.flatnonzero(lies)
        part[places] = 1 + _uniform(response.domain_size - 1, places.size, source)
    return offsets


def _words(source: EntropySource, count: int) -> NDArray[np.uint64]:
    raw = source(8 * count)
    if len(raw) != 8 * count:
        raise InternalError("the entropy source returned too few bytes")
    return np.frombuffer(raw, dtype=np.uint64)


def _is_below(bound: Fraction, source: EntropySource) -> bool:
    """Whether a fresh uniform real is below ``bound`` in [0, 1), by its words until one differs."""
    while bound:
        digit, bound = divmod(bound * (1 << _WORD), 1)
        word = int(_words(source, 1)[0])
        if word != digit:
            return word < digit
    return False


def _uniform(bound: int, count: int, source: EntropySource) -> Codes:
    """``count`` uniform integers in [0, bound), bound <= 2^62: words modulo bound.

    Words from the last multiple of ``bound`` below 2^64 on are drawn again, so that every remainder has as many words.
    """
    if bound == 1:
        return np.zeros(count, dtype=np.int64)
    last = np.uint64((1 << _WORD) // bound * bound - 1)
    words = _words(source, count)
    out = (words % np.uint64(bound)).astype(np.int64)
    pending = np.flatnonzero(words > last)
    while pending.size:
        words = _words(source, pending.size)
        out[pending] = (words % np.uint64(bound)).astype(np.int64)
        pending = pending[words > last]
    return out
