"""Integer noise, drawn exactly from the operating system's entropy.

Guarantee (neighbours: add or remove one unit). Let y = B x be integer and let a neighbour move
it by at most D in L2 norm (D_1 in L1 norm).

- Rounded Gaussian: y + round(N(0, sigma^2)) per coordinate. As y is an integer this equals
  round(y + N(0, sigma^2)), post-processing of the Gaussian mechanism: mu-GDP with
  mu = D / sigma, calibrated by Balle and Wang 2018, with nothing lost to the rounding.
- Discrete Laplace: y + Z, P(Z = z) proportional to exp(-|z|/b) (Ghosh, Roughgarden and
  Sundararajan 2009). The ratio of two shifted laws is at most exp(D_1/b), so b = D_1/epsilon
  gives pure epsilon-DP.

Both hold for the laws themselves, not for floating-point stand-ins: no float takes part in a
draw. Many Gaussian draws are made over arrays (`dpsql.privacy.normals`), by the same law.
`Noise.sample` reads `os.urandom` and nothing else, keeps no entropy between calls, and is
therefore safe after a fork. The time of a draw depends on its size a little, as in every exact
rejection sampler; draw all noise before the data are touched.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from dpsql.errors import DataError, InternalError

_WORD = 64
_BLOCK = 8192  # bytes read from the entropy source at a time, inside one call only
_MANY = 1024  # Gaussian draws from which they are made together
_LARGEST = 2**1000  # keeps variances within the floats that error bars are made of


class EntropySource(Protocol):
    """Where random bytes come from. Only tests have any other than the operating system."""

    def __call__(self, size: int, /) -> bytes:
        """``size`` independent uniform bytes."""
        ...


@dataclass(frozen=True)
class Noise:
    """A law of integer noise, independent and identical for every coordinate.

    kind: "gaussian" (rounded Gaussian) or "laplace" (discrete Laplace).
    parameter: the exact rational sigma^2 of the continuous Gaussian, or the scale b of the Laplace.
    Make one with `Noise.gaussian`, `Noise.laplace`, `gaussian_noise` or `laplace_noise`.
    """

    kind: str
    parameter: Fraction

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "laplace"):
            raise InternalError(f"noise kind {self.kind!r} is not known; use 'gaussian' or 'laplace'")
        if not isinstance(self.parameter, Fraction):
            raise InternalError("a noise parameter must be a Fraction, so that it is exact")
        if not 0 < self.parameter <= _LARGEST:
            raise DataError("the noise scale must be positive and below 2^1000; ask for more epsilon")

    @classmethod
    def gaussian(cls, variance: Fraction) -> Noise:
        """round(N(0, variance)) on the integers."""
        return cls("gaussian", Fraction(variance))

    @classmethod
    def laplace(cls, scale: Fraction) -> Noise:
        """P(z) = (1 - q)/(1 + q) q^|z| with q = exp(-1/scale)."""
        return cls("laplace", Fraction(scale))

    @property
    def variance(self) -> float:
        """Variance of one integer draw, rounded up.

        Gaussian: sigma^2 + 1/12. By Poisson summation the exact variance of round(N(0, sigma^2))
        is sigma^2 + 1/12 + sum over k >= 1 of (-1)^k (4 sigma^2 + 1/(pi k)^2) exp(-2 (pi k sigma)^2),
        an alternating series of falling terms that starts below 0; it is negligible from sigma = 1.
        Laplace: 2q/(1 - q)^2 = 1/(2 sinh(1/(2b))^2), q = exp(-1/b).
        """
        if self.kind == "gaussian":
            return float(self.parameter + Fraction(1, 12)) * (1.0 + 1e-15)
        half = float(1 / (2 * self.parameter))
        if half > 300.0:
            return 2.0 * math.exp(-600.0)
        return (0.5 / math.sinh(half) ** 2) * (1.0 + 1e-12)

    def sample(self, count: int) -> list[int]:
        """``count`` independent draws, Python ints of any size, from OS entropy.

        About 4 microseconds a draw. The law is exact; see `_normal` and `_laplace` for the proofs.
        """
        return sample_from(self, count, os.urandom)


def gaussian_noise(l2_squared: int, mu_squared: Fraction) -> Noise:
    """Noise that makes integer answers of squared L2 sensitivity ``l2_squared`` mu-GDP.

    Variance l2_squared / mu_squared, exact. Neighbours: add or remove one unit. Raises DataError.
    """
    _positive(l2_squared, mu_squared, "mu squared")
    return Noise.gaussian(Fraction(l2_squared) / Fraction(mu_squared))


def laplace_noise(l1: int, epsilon: Fraction) -> Noise:
    """Noise that makes integer answers of L1 sensitivity ``l1`` epsilon-DP, purely.

    Scale l1 / epsilon, exact. Neighbours: add or remove one unit. Raises DataError.
    """
    _positive(l1, epsilon, "epsilon")
    return Noise.laplace(Fraction(l1) / Fraction(epsilon))


def _positive(sensitivity: int, budget: Fraction, name: str) -> None:
    if isinstance(sensitivity, bool) or not isinstance(sensitivity, int):
        raise InternalError("a sensitivity must be a Python int, computed exactly from the strategy")
    if sensitivity < 1:
        raise DataError("a sensitivity must be at least 1; a batch that no row can change needs no noise")
    if isinstance(budget, float) or budget <= 0:
        raise DataError(f"{name} must be an exact positive number to calibrate noise")


def sample_from(noise: Noise, count: int, source: EntropySource) -> list[int]:
    """``count`` draws of ``noise`` with bytes from ``source``. FOR TESTS ONLY.

    Private with ``os.urandom`` alone: whoever can repeat the source can take the noise off.
    Measurements call `Noise.sample`, which offers no choice; a test keeps it so.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InternalError(f"the number of draws must be an int of at least 0, not {count!r}")
    words = _words(source)
    if noise.kind == "gaussian":
        p, q = noise.parameter.numerator, noise.parameter.denominator
        if count >= _MANY:
            from dpsql.privacy.normals import rounded_normals  # the same law over arrays, built on the code below

            many = rounded_normals(p, q, count, source)
            if many is not None:
                return many
        return [_rounded_normal(words, p, q) for _ in range(count)]
    t, s = noise.parameter.numerator, noise.parameter.denominator
    return [_laplace(words, t, s) for _ in range(count)]


_Words = Callable[[], int]


def _words(source: EntropySource) -> _Words:
    """A function that returns uniform 64-bit words; its block of bytes dies with the call."""
    block: list[int] = []

    def word() -> int:
        if not block:
            raw = source(_BLOCK)
            if len(raw) != _BLOCK:
                raise InternalError("the entropy source returned too few bytes")
            block.extend(memoryview(raw).cast("Q"))
        return block.pop()

    return word


# A uniform real on (0, 1) is the list of its 64-bit digits drawn so far; it grows when a
# comparison needs more. Equal reals have probability 0, so every comparison ends.


def _less(word: _Words, left: list[int], right: list[int]) -> bool:
    """Whether left < right, drawing further digits of both while they agree."""
    place = 0
    while True:
        if place == len(left):
            left.append(word())
        if place == len(right):
            right.append(word())
        if left[place] != right[place]:
            return left[place] < right[place]
        place += 1


_HALF = 1 << (_WORD - 1)


def _exp_minus_half(word: _Words) -> bool:
    """True with probability exp(-1/2). Karney 2016, Algorithm H (von Neumann's method).

    A run 1/2 > u_1 > u_2 > ... of length at least n has probability (1/2)^n / n!, so the run's
    length is even with probability sum of (-1/2)^n / n! = exp(-1/2).
    """
    last = [word()]
    if last[0] >= _HALF:
        return True
    while True:
        following = [word()]
        if not _less(word, following, last):
            return False
        last = [word()]
        if not _less(word, last, following):
            return True


def _below(word: _Words, bound: int) -> int:
    """A uniform integer in [0, bound), by rejection of random bit strings."""
    size = (bound - 1).bit_length()
    if size <= _WORD:
        shift = _WORD - size
        while True:
            value = word() >> shift
            if value < bound:
                return value
    count = -(-size // _WORD)
    shift = count * _WORD - size
    while True:
        value = 0
        for _ in range(count):
            value = (value << _WORD) | word()
        value >>= shift
        if value < bound:
            return value


def _accept_fraction(word: _Words, k: int, x: list[int]) -> bool:
    """True with probability exp(-x (2k + x) / (2k + 2)). Karney 2016, Algorithm B.

    A run x > z_1 > z_2 > ... in which every step also wins an independent coin of probability
    f = (2k + x)/(2k + 2) has length at least n with probability (x f)^n / n!, so its length is
    even with probability exp(-x f). The coin: of 2k + 2 equally likely faces 2k win, one wins
    if a further uniform is below x, one loses.
    """
    last = x
    even = True
    faces = 2 * k + 2
    while True:
        z = [word()]
        if not _less(word, z, last):
            return even
        face = _below(word, faces)
        if face == faces - 1 or (face == faces - 2 and not _less(word, [word()], x)):
            return even
        last = z
        even = not even


def _normal(word: _Words) -> tuple[int, list[int]]:
    """|N(0, 1)| as its integer part and the digits of its fraction. Karney 2016, Algorithm N.

    k is proposed with probability proportional to exp(-k/2) and kept with exp(-k(k-1)/2), in all
    exp(-k^2/2); the fraction x is uniform and kept with exp(-x(2k + x)/(2k + 2))^(k+1) =
    exp(-x(2k + x)/2). The product is exp(-(k + x)^2/2), the half-normal density. Keeping x looks
    only at comparisons that its drawn digits have decided; the digits not drawn yet stay uniform.
    """
    while True:
        k = 0
        while _exp_minus_half(word):
            k += 1
        for _ in range(k * (k - 1)):
            if not _exp_minus_half(word):
                break
        else:
            x = [word()]
            for _ in range(k + 1):
                if not _accept_fraction(word, k, x):
                    break
            else:
                return k, x


def _rounded_normal(word: _Words, p: int, q: int) -> int:
    """round(N(0, p/q)), exactly.

    After b digits |N(0, 1)| lies in [n, n + 1] / 2^b. For a value v = sqrt(p/q) n / 2^b the
    nearest integer is the largest j with 2j - 1 <= 2v, and as 2j - 1 is an integer that is
    j = (floor(2v) + 1) // 2 with floor(2v) = isqrt(floor(4 p n^2 / (q 4^b))), all in integers. It is
    monotone in n, so if both ends round to the same j so does the value; else more digits are drawn.
    A boundary itself has probability 0. The sign is a fair bit of its own.
    """
    k, x = _normal(word)
    return _rounded(word, k, x, bool(word() & 1), p, q)


def _rounded(word: _Words, k: int, x: list[int], negative: bool, p: int, q: int) -> int:
    """round(sqrt(p/q) (k + x)) with a sign, drawing further digits of x while they are needed."""
    n, bits, used = k, 0, 0
    while True:
        while used < len(x):
            n = (n << _WORD) | x[used]
            bits += _WORD
            used += 1
        scale = 2 * bits - 2
        low = (math.isqrt((p * n * n // q) >> scale) + 1) // 2
        high = (math.isqrt((p * (n + 1) * (n + 1) // q) >> scale) + 1) // 2
        if low == high:
            return -low if negative else low
        x.append(word())


def _exp_minus(word: _Words, numerator: int, denominator: int) -> bool:
    """True with probability exp(-g), g = numerator/denominator in [0, 1]. Canonne et al. 2020, Alg. 1.

    Coins of probability g/1, g/2, ... are thrown until one loses; n wins or more have probability
    g^n / n!, so the number of wins is even with probability exp(-g).
    """
    k = 1
    while _below(word, denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def _laplace(word: _Words, t: int, s: int) -> int:
    """Discrete Laplace of scale t/s. Canonne, Kamath and Steinke 2020, Algorithm 2.

    u in [0, t) kept with exp(-u/t), plus t times a geometric number of exp(-1) coins, is geometric
    with P(X >= x) = exp(-x/t); floor(X/s) is geometric with ratio exp(-s/t). A fair sign makes it
    two-sided; one of the two zeros is rejected, or 0 would count twice.
    """
    while True:
        u = _below(word, t)
        if not _exp_minus(word, u, t):
            continue
        v = 0
        while _exp_minus(word, 1, 1):
            v += 1
        magnitude = (u + t * v) // s
        if word() & 1:
            if magnitude:
                return -magnitude
        else:
            return magnitude
