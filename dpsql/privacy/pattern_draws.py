"""Draws of the noise of a block for 0/1 patterns, exactly: probability of z in proportion to q^n(z).

n(z) = n(z+) + n(z-), n(x) = max(max x, floor(sum x / l)), and why that is private: ``dpsql.common.pattern_block``.

One side. Let x in {0, 1, ...}^j. For whole t the points with n(x) <= t are those with every x_i <= t and sum x <= l R
- 1, R = t + 1. They are as many as the words y in {0, ..., t}^j with fewer than l descents (y_i < y_(i-1)), by y_i =
(x_1 + ... + x_i) mod R and back by x_i = y_i - y_(i-1), plus R at a descent, y_0 = 0: that is x_i in {0, ..., t}, and
sum x = y_j + R d for d descents, below l R just where d < l. A word is its *standard permutation* pi (the ranks of its
letters, of equal ones those on the left first), which has its descents, beside its letters in order a_1 <= ... <= a_j;
between a_k and a_(k+1) the rank k + 1 may stand on the left of the rank k (a descent of the inverse of pi), and just
there a_(k+1) is larger than a_k. So with e(pi) descents of the inverse, and gaps g_1, ..., g_(j+1) >= 0 that add up to
t - e(pi), every word is reached once. Drawn are pi, uniform among the permutations with fewer than l descents, kept
with probability q^e(pi), and gaps of independent geometric laws of ratio q: (x, t) then has a probability proportional
to q^t, and x the sum of it over t >= n(x), q^n(x) / (1 - q).

Both sides. A set S of j coordinates for z+ is drawn with a probability in proportion to the pairs of permutations,
a_j a_(m-j) for a_j of them with fewer than l descents. Then x on S and x' elsewhere are as above, z = x - x', and what
has a zero on S is rejected: every z is reached by one S. What is rejected for one reason or another is drawn anew as a
whole, so that the law is proportional to the product. About exp(-m / 2b) is kept, as of ``draws.cube``.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate, pairwise
from math import comb

from dpsql.privacy.draws import Words, below, geometric


def pattern(word: Words, size: int, limit: int, t: int, s: int) -> list[int]:
    """z in Z^size with probability proportional to q^n(z), q = exp(-s/t), for patterns of at most ``limit`` ones."""
    ends = _ends_of_sides(size, limit)
    while True:
        j = bisect_right(ends, below(word, ends[-1]))
        first, second = permutation(word, j, limit), permutation(word, size - j, limit)
        if geometric(word, t, s) < inverse_descents(first) + inverse_descents(second):
            continue
        positive, negative = side(word, first, t, s), side(word, second, t, s)
        if 0 not in positive:
            return _placed(word, positive, [-x for x in negative])


def _placed(word: Words, first: list[int], second: list[int]) -> list[int]:
    """``first`` on a uniform set of coordinates, each list in its order."""
    merged, left, right = [], first[::-1], second[::-1]
    while left or right:
        merged.append((left if below(word, len(left) + len(right)) < len(left) else right).pop())
    return merged


def side(word: Words, ranks: list[int], t: int, s: int) -> list[int]:
    """x from the standard permutation of its word: ``ranks`` 1..j."""
    place = sorted(range(len(ranks)), key=ranks.__getitem__)
    letters, at = [0] * len(ranks), 0
    for k, i in enumerate(place):
        at += geometric(word, t, s) + (k > 0 and i < place[k - 1])
        letters[i] = at
    whole = at + geometric(word, t, s) + 1
    pairs = pairwise([(0, 0), *zip(letters, ranks, strict=True)])
    return [y - x + (whole if b < a else 0) for (x, a), (y, b) in pairs]


def inverse_descents(ranks: list[int]) -> int:
    """The ranks k + 1 that stand on the left of the rank k."""
    place = sorted(range(len(ranks)), key=ranks.__getitem__)
    return sum(later < earlier for earlier, later in pairwise(place))


def permutation(word: Words, size: int, limit: int) -> list[int]:
    """A uniform permutation of 1..size with fewer than ``limit`` descents.

    1, 2, ... are put in. The number n leaves the descents as they are within one or at the end, d + 1 places for d of
    them, and makes one more elsewhere; so those of n with d descents are (d + 1) times those of n - 1 with d and (n -
    d) times those with d - 1 (Euler), by which the number of descents after each step is drawn backwards.
    """
    counts = _descents(size, limit)
    d = bisect_right(ends := list(accumulate(counts[size])), below(word, ends[-1]))
    grown = []
    for n in range(size, 1, -1):
        stays = below(word, counts[n][d]) < (d + 1) * counts[n - 1][d]
        grown.append(stays)
        d -= not stays
    found = [1] if size else []
    for n, stays in enumerate(reversed(grown), 2):
        falls = [i for i in range(1, n - 1) if found[i] < found[i - 1]]
        places = [*falls, n - 1] if stays else sorted({*range(n - 1)} - {*falls})
        found.insert(places[below(word, len(places))], n)
    return found


@lru_cache(64)
def _descents(size: int, limit: int) -> list[list[int]]:
    """The permutations of 1..n with d < ``limit`` descents, for n = 0..size: Eulerian numbers."""
    counts = [[1] + [0] * (limit - 1)]
    counts.append(counts[0])
    for n in range(2, size + 1):
        last = counts[-1]
        counts.append([(d + 1) * last[d] + ((n - d) * last[d - 1] if d else 0) for d in range(limit)])
    return counts


@lru_cache(64)
def _ends_of_sides(size: int, limit: int) -> list[int]:
    """Cumulative weights of the numbers 0..size of coordinates of z+: sets of that size times their permutations."""
    each = [sum(row) for row in _descents(size, limit)]
    return list(accumulate(comb(size, j) * each[j] * each[size - j] for j in range(size + 1)))
