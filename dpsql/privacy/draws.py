"""Exact draws from uniform random words: rounded Gaussian, discrete Laplace, blocks of the max-norm, and their steps.

No float takes part in a draw. A uniform real on (0, 1) is the list of its 64-bit digits drawn so far; it grows when a
comparison needs more. Equal reals have probability 0, so every comparison ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

from dpsql.errors import InternalError

_WORD = 64
_HALF = 1 << (_WORD - 1)
FEW_KEPT = 12  # scales beyond which a block keeps hardly a draw, exp(-6) of them
_BLOCK = 8192  # bytes read from the entropy source at a time, inside one call only


class EntropySource(Protocol):
    """Where random bytes come from. Only tests have any other than the operating system."""

    def __call__(self, size: int, /) -> bytes:
        """``size`` independent uniform bytes."""
        ...


def check_count(count: object) -> None:
    """InternalError where a number of draws is no int of at least 0."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InternalError(f"the number of draws must be an int of at least 0, not {count!r}")


Words = Callable[[], int]
"""A function that returns independent uniform 64-bit words."""


def words(source: EntropySource) -> Words:
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


def less(word: Words, left: list[int], right: list[int]) -> bool:
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


def exp_minus_half(word: Words) -> bool:
    """True with probability exp(-1/2). Karney 2016, Algorithm H (von Neumann's method).

    A run 1/2 > u_1 > u_2 > ... of length at least n has probability (1/2)^n / n!, so the run's
    length is even with probability sum of (-1/2)^n / n! = exp(-1/2).
    """
    last = [word()]
    if last[0] >= _HALF:
        return True
    while True:
        following = [word()]
        if not less(word, following, last):
            return False
        last = [word()]
        if not less(word, last, following):
            return True


def below(word: Words, bound: int) -> int:
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


def accept_fraction(word: Words, k: int, x: list[int]) -> bool:
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
        if not less(word, z, last):
            return even
        face = below(word, faces)
        if face == faces - 1 or (face == faces - 2 and not less(word, [word()], x)):
            return even
        last = z
        even = not even


def normal(word: Words) -> tuple[int, list[int]]:
    """|N(0, 1)| as its integer part and the digits of its fraction. Karney 2016, Algorithm N.

    k is proposed with probability proportional to exp(-k/2) and kept with exp(-k(k-1)/2), in all
    exp(-k^2/2); the fraction x is uniform and kept with exp(-x(2k + x)/(2k + 2))^(k+1) =
    exp(-x(2k + x)/2). The product is exp(-(k + x)^2/2), the half-normal density. Keeping x looks
    only at comparisons that its drawn digits have decided; the digits not drawn yet stay uniform.
    """
    while True:
        k = 0
        while exp_minus_half(word):
            k += 1
        for _ in range(k * (k - 1)):
            if not exp_minus_half(word):
                break
        else:
            x = [word()]
            for _ in range(k + 1):
                if not accept_fraction(word, k, x):
                    break
            else:
                return k, x


def rounded_normal(word: Words, p: int, q: int) -> int:
    """round(N(0, p/q)), exactly.

    After b digits |N(0, 1)| lies in [n, n + 1] / 2^b. For a value v = sqrt(p/q) n / 2^b the
    nearest integer is the largest j with 2j - 1 <= 2v, and as 2j - 1 is an integer that is
    j = (floor(2v) + 1) // 2 with floor(2v) = isqrt(floor(4 p n^2 / (q 4^b))), all in integers. It is
    monotone in n, so if both ends round to the same j so does the value; else more digits are drawn.
    A boundary itself has probability 0. The sign is a fair bit of its own.
    """
    k, x = normal(word)
    return rounded(word, k, x, bool(word() & 1), p, q)


def rounded(word: Words, k: int, x: list[int], negative: bool, p: int, q: int) -> int:
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


def exp_minus(word: Words, numerator: int, denominator: int) -> bool:
    """True with probability exp(-g), g = numerator/denominator in [0, 1]. Canonne et al. 2020, Alg. 1.

    Coins of probability g/1, g/2, ... are thrown until one loses; n wins or more have probability
    g^n / n!, so the number of wins is even with probability exp(-g).
    """
    k = 1
    while below(word, denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def geometric(word: Words, t: int, s: int) -> int:
    """P(X >= x) = exp(-x s/t), x = 0, 1, ... Canonne, Kamath and Steinke 2020, Algorithm 2.

    u in [0, t) kept with exp(-u/t), plus t times a geometric number of exp(-1) coins, is geometric
    with P(X >= x) = exp(-x/t); floor(X/s) is geometric with ratio exp(-s/t).
    """
    while True:
        u = below(word, t)
        if exp_minus(word, u, t):
            break
    v = 0
    while exp_minus(word, 1, 1):
        v += 1
    return (u + t * v) // s


def laplace(word: Words, t: int, s: int) -> int:
    """Discrete Laplace of scale t/s. Canonne, Kamath and Steinke 2020, Algorithm 2.

    A fair sign makes a geometric variable two-sided; one of the two zeros is rejected, or 0 would count twice.
    """
    while True:
        magnitude = geometric(word, t, s)
        if word() & 1:
            if magnitude:
                return -magnitude
        else:
            return magnitude


def cube_radius(word: Words, size: int, t: int, s: int) -> int:
    """P(r) proportional to (2r + 1)^size q^r, r = 0, 1, ..., for q = exp(-s/t).

    The sum of size + 1 geometric variables of ratio q has the value r with probability proportional to
    C(r + size, size) q^r. It is kept with (2r + 1)^size / prod over i = 1..size of (2r + 2i), coin by coin, each at
    most 1; as prod (r + i) = size! C(r + size, size), what is kept has the law. About exp(-size s / 2t) are kept, so
    that where these are few the radius is drawn without rejection.

    The sum over r of (2r + 1)^n q^r is that over j = 0..n of B(n, j) q^j / (1 - q)^(n + 1), B the Eulerian numbers of
    type B, which are positive: B(n, j) = (2j + 1) B(n - 1, j) + (2n - 2j + 1) B(n - 1, j - 1) (by r = 0 and
    differentiating). So j with probability proportional to B(n, j) q^j, plus n + 1 geometric variables, has the law.
    """
    if size * s > FEW_KEPT * t:
        return _index(word, size, t, s) + sum(geometric(word, t, s) for _ in range(size + 1))
    while True:
        r = sum(geometric(word, t, s) for _ in range(size + 1))
        if all(below(word, 2 * (r + i)) <= 2 * r for i in range(1, size + 1)):
            return r


def _index(word: Words, size: int, t: int, s: int) -> int:
    """j in 0..size with probability proportional to B(size, j) q^j, q = exp(-s/t), by a uniform real and its bounds.

    The digits of the real, and of q, grow until they decide between two j.
    """
    u, places, bits = 0, 0, 2 * _WORD + math.factorial(size).bit_length() + size
    while True:
        u, places = (u << _WORD) | word(), places + _WORD
        low, high = _ends(size, t, s, bits)
        # u / 2^places <= real <= (u + 1) / 2^places; j is sure where both ends fall on it whatever q is in its bounds.
        first = next(j for j in range(size + 1) if u * low[-1] < high[j] << places)
        last = next((j for j in range(size + 1) if (u + 1) * high[-1] <= low[j] << places), size)
        if first == last:
            return first
        bits += _WORD


@lru_cache(64)
def _ends(size: int, t: int, s: int, bits: int) -> tuple[list[int], list[int]]:
    """Cumulative B(size, j) q^j times 2^bits for j = 0..size, from below and from above."""
    numbers = [1]
    for n in range(1, size + 1):
        numbers = [
            (2 * j + 1) * (numbers[j] if j < n else 0) + (2 * n - 2 * j + 1) * (numbers[j - 1] if j else 0)
            for j in range(n + 1)
        ]
    low, high = _exp_minus_bounds(t, s, bits)
    lows, highs = [1 << bits], [1 << bits]
    for _ in range(size):
        lows.append(lows[-1] * low >> bits)
        highs.append(-(-highs[-1] * high >> bits))
    return (
        list(accumulate(b * power for b, power in zip(numbers, lows, strict=True))),
        list(accumulate(b * power for b, power in zip(numbers, highs, strict=True))),
    )


def _exp_minus_bounds(t: int, s: int, bits: int) -> tuple[int, int]:
    """Whole numbers on both sides of 2^bits exp(-s/t), a few apart.

    exp(-y) for y = s / (t 2^k) < 1/2 by its series, of which no term is left out that is above the last place, then
    squared k times.
    """
    if s > bits * t:
        return 0, 1  # exp(-x) < 2^-x
    k = (s // t).bit_length() + 1
    places, n = bits + k + 8, 0
    low, high = -1, 1  # terms alternate and fall, so those left out are below the last place together
    least = most = 1 << places
    while most > 1:
        low, high = (low - most, high - least) if n % 2 else (low + least, high + most)
        n += 1
        least, most = least * s // (t * n << k), -(-most * s // (t * n << k))
    for _ in range(k):
        low, high = low * low >> places, -(-high * high >> places)
    return low >> (places - bits), -(-high >> (places - bits))


def cube(word: Words, size: int, t: int, s: int) -> list[int]:
    """z in Z^size with probability proportional to q^(max |z_i|), q = exp(-s/t).

    A point of the cube {-r..r}^size, uniformly, for r from ``cube_radius``: z then has the probability of all r that
    reach it, the sum over r >= max |z_i| of q^r = q^(max |z_i|) / (1 - q), but for a constant. Exact at any scale.
    """
    r = cube_radius(word, size, t, s)
    return [below(word, 2 * r + 1) - r for _ in range(size)]
