"""Many rounded Gaussians at once: the algorithms of ``dpsql.privacy.draws`` over arrays, with the same law, exactly.

Each step of Karney 2016 (Algorithms N, H and B) is taken for all draws that still need it. Why the law is the same:

- *Draws are independent.* Every coin, digit and sign of every draw is bits of the source that no other draw sees, and
  each draw's own sequence of steps is that of ``draws.normal``. What the array code draws and a draw then does not
  look at (a die's face after a lost comparison) is independent of all else and changes nothing.
- *Uniform reals are exact.* A real is its first 64 binary digits; where a comparison finds them equal, further digits
  of both are drawn and kept (``draws.less``), so none is decided by a truncation. Digits that no comparison has
  looked at are uniform still: an accepted fraction's later digits may be drawn when they are needed.
- *Dice are exact*: a face out of 2 k + 2 by rejection of bit strings.
- *Rounding is exact*: by a bracket in 64-bit integers (``rounded_normals``) where both its ends round alike, and
  by ``draws.rounded`` in integers of any size, with the same digits, elsewhere. Every product and sum of the bracket
  stays below 2^64: S < 2^58 and k <= 31, so k S + S + k + 3 + 2^55 < 2^64.
- *Nothing is cut off.* A whole part above 31, whose probability is below 10^-200, is an error and no draw. The law
  of what is released is the exact one on the condition that this did not happen: a statistical distance below 10^-200 a
  draw, and the only one. Floats take no part.

Entropy comes from the given source alone and none is kept between calls: safe after a fork.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import InternalError
from dpsql.privacy.draws import EntropySource, Words, less, rounded, words

Places = NDArray[np.intp]
Digits = NDArray[np.uint64]
Flags = NDArray[np.bool_]
_Coin: TypeAlias = Callable[[Places], Flags]

_CHUNK = 1 << 15
_HALF = np.uint64(1 << 63)
_LOW, _32 = np.uint64((1 << 32) - 1), np.uint64(32)
_SIGMA_BITS, _LEAST_SCALE, _MOST_WHOLE = 58, 1, 31
# Bits of the largest face of the die 2 k + 2, whole parts up to 31; larger ones are left to the scalar code.
_FACE_BITS = np.array([(2 * k + 1).bit_length() for k in range(_MOST_WHOLE + 1)], dtype=np.uint64)


def rounded_normals(p: int, q: int, count: int, source: EntropySource) -> NDArray[np.int64] | None:
    """``count`` independent round(N(0, p/q)); None where sigma needs longer integers than 64 bits.

    One to three microseconds a draw. Proof of the rounding: with S = floor(2^s sigma) and |N| in [n, n + 1] / 2^64,
    n = k 2^64 + X, the value 2^s sigma |N| lies between I = k S + floor(S X / 2^64) and
    (S + 1)(n + 1) / 2^64 <= I + k + 3; where both ends round to the same integer, so does the value.
    """
    scale = _SIGMA_BITS - 2
    while scale >= _LEAST_SCALE and math.isqrt((p << (2 * scale)) // q) >= 1 << _SIGMA_BITS:
        scale -= 1
    if scale < _LEAST_SCALE:
        return None
    S = math.isqrt((p << (2 * scale)) // q)
    drawn = _Draws(source)
    out = np.empty(count, dtype=np.int64)
    for at in range(0, count, _CHUNK):
        out[at : at + _CHUNK] = _chunk(drawn, min(_CHUNK, count - at), p, q, S, scale)
    return out


def _chunk(drawn: _Draws, count: int, p: int, q: int, S: int, scale: int) -> NDArray[np.int64]:
    k, x = _normals(drawn, count)
    negative = np.unpackbits(np.frombuffer(drawn.raw(-(-count // 8)), dtype=np.uint8))[:count].astype(bool)
    # floor(S X / 2^64) by halves of 32 bits; S < 2^58, so no partial sum leaves 64 bits.
    high, low = np.uint64(S >> 32), np.uint64(S & 0xFFFFFFFF)
    x_high, x_low = x.first >> _32, x.first & _LOW
    first = high * x_low + ((low * x_low) >> _32)
    second = low * x_high
    carry = ((first & _LOW) + (second & _LOW)) >> _32
    least = k * np.uint64(S) + high * x_high + (first >> _32) + (second >> _32) + carry
    half, shift = np.uint64(1 << (scale - 1)), np.uint64(scale)
    lower = (least + half) >> shift
    upper = (least + k + np.uint64(3) + half) >> shift
    values = lower.astype(np.int64)
    out: NDArray[np.int64] = np.where(negative, -values, values)
    for i in np.flatnonzero(lower != upper).tolist():
        out[i] = rounded(drawn.word, int(k[i]), x.digits(i), bool(negative[i]), p, q)
    return out


@dataclass(eq=False)
class _Reals:
    """Uniform reals on (0, 1): first 64 digits (m,), and further ones of the few that a comparison asked for."""

    first: Digits
    more: dict[int, list[int]] = field(default_factory=dict)

    def digits(self, i: int) -> list[int]:
        return [int(self.first[i]), *self.more.get(i, [])]


class _Draws:
    """64-bit words of the source, as arrays or one by one."""

    def __init__(self, source: EntropySource) -> None:
        self._source = source
        self.word: Words = words(source)

    def raw(self, size: int) -> bytes:
        found = self._source(size)
        if len(found) != size:
            raise InternalError("the entropy source returned too few bytes")
        return found

    def words(self, count: int) -> Digits:
        return np.frombuffer(self.raw(8 * count), dtype=np.uint64) if count else np.empty(0, dtype=np.uint64)

    def reals(self, count: int) -> _Reals:
        return _Reals(self.words(count))

    def less(self, left: _Reals, i: Places, right: _Reals, j: Places) -> Flags:
        """left[i] < right[j], elementwise; equal digits are continued."""
        a, b = left.first[i], right.first[j]
        out = a < b
        for at in np.flatnonzero(a == b).tolist():
            mine, other = int(i[at]), int(j[at])
            one, two = left.digits(mine), right.digits(other)
            out[at] = less(self.word, one, two)
            left.more[mine], right.more[other] = one[1:], two[1:]
        return np.asarray(out)

    def faces(self, k: Digits) -> Digits:
        """A uniform face of a die of 2 k + 2 faces, k <= 31, by rejection."""
        shift, bound = np.uint64(64) - _FACE_BITS[k], np.uint64(2) * k + np.uint64(2)
        out = self.words(k.size) >> shift
        again = np.flatnonzero(out >= bound)
        while again.size:
            out[again] = self.words(again.size) >> shift[again]
            again = again[out[again] >= bound[again]]
        return np.asarray(out)

    def exp_minus_half(self, count: int) -> Flags:
        """True with probability exp(-1/2), ``count`` times. Algorithm H, see ``draws.exp_minus_half``."""
        out = np.ones(count, dtype=np.bool_)
        last = self.reals(count)
        active = np.flatnonzero(last.first < _HALF)
        last = _Reals(last.first[active])
        while active.size:
            for even in (False, True):
                following = self.reals(active.size)
                every = np.arange(active.size)
                longer = self.less(following, every, last, every)
                out[active[~longer]] = even
                active, last = active[longer], _selected(following, longer)
        return out

    def accept_fraction(self, k: Digits, x: _Reals, chosen: Places) -> Flags:
        """True with probability exp(-x (2k + x) / (2k + 2)) for ``chosen``. Algorithm B, ``draws.accept_fraction``."""
        out = np.zeros(chosen.size, dtype=np.bool_)
        place, last, where, even = np.arange(chosen.size), x, chosen, True
        while place.size:
            z = self.reals(place.size)
            going = self.less(z, np.arange(place.size), last, where)
            faces = self.faces(k[chosen[place]])
            left = np.uint64(2) * k[chosen[place]] + np.uint64(1) - faces  # 0: the coin loses; 1: x decides
            going &= left != 0
            asked = np.flatnonzero(going & (left == 1))
            u = self.reals(asked.size)
            going[asked] = self.less(u, np.arange(asked.size), x, chosen[place[asked]])
            out[place[~going]] = even
            place, last, even = place[going], _selected(z, going), not even
            where = np.arange(place.size)
        return out


def _selected(reals: _Reals, flags: Flags) -> _Reals:
    """The reals that are flagged, renumbered."""
    if not reals.more:
        return _Reals(reals.first[flags])
    rank = np.cumsum(flags) - 1
    return _Reals(reals.first[flags], {int(rank[i]): m for i, m in reals.more.items() if flags[i]})


def _normals(drawn: _Draws, count: int) -> tuple[Digits, _Reals]:
    """|N(0, 1)| as whole parts and fractions. Algorithm N, see ``draws.normal``.

    A whole part above 31 (probability below 1e-200 after acceptance) is an error instead of an endless table.
    """
    whole, fraction = np.zeros(count, dtype=np.uint64), _Reals(np.zeros(count, dtype=np.uint64))
    pending = np.arange(count)
    while pending.size:
        k = np.zeros(pending.size, dtype=np.int64)
        active = np.arange(pending.size)
        while active.size:
            active = active[drawn.exp_minus_half(active.size)]
            k[active] += 1
        accepted = np.ones(pending.size, dtype=np.bool_)
        _repeat(accepted, np.arange(pending.size), k * (k - 1), lambda some: drawn.exp_minus_half(some.size))
        live = np.flatnonzero(accepted)
        if live.size and int(k[live].max()) > _MOST_WHOLE:
            raise InternalError("a Gaussian above 32 standard deviations: the entropy source is broken")
        x, whole_parts = drawn.reals(live.size), k[live].astype(np.uint64)
        good = np.ones(live.size, dtype=np.bool_)

        def within(some: Places, whole_parts: Digits = whole_parts, x: _Reals = x) -> Flags:
            return drawn.accept_fraction(whole_parts, x, some)

        _repeat(good, np.arange(live.size), k[live] + 1, within)
        done = pending[live[good]]
        whole[done], fraction.first[done] = whole_parts[good], x.first[good]
        for i, digits in _selected(x, good).more.items():
            fraction.more[int(done[i])] = digits
        accepted[live[~good]] = False
        pending = pending[~accepted]
    return whole, fraction


def _repeat(accepted: Flags, active: Places, times: NDArray[np.int64], coin: _Coin) -> None:
    """accepted[i] stays True where coin wins times[i] times in a row."""
    step = 0
    active = active[times[active] > 0]
    while active.size:
        wins = coin(active)
        accepted[active[~wins]] = False
        step += 1
        active = active[wins]
        active = active[times[active] > step]
