"""Integer noise, drawn exactly from the operating system's entropy.

Guarantee (neighbours: add or remove one unit). Let y = B x be integer and let a neighbour move
it by at most D in L2 norm (D_1 in L1 norm).

- Rounded Gaussian: y + round(N(0, sigma^2)) per coordinate. As y is an integer this equals
  round(y + N(0, sigma^2)), post-processing of the Gaussian mechanism: mu-GDP with
  mu = D / sigma, calibrated by Balle and Wang 2018, with nothing lost to the rounding.
- Discrete Laplace: y + Z, P(Z = z) proportional to exp(-|z|/b) (Ghosh, Roughgarden and
  Sundararajan 2009). The ratio of two shifted laws is at most exp(D_1/b), so b = D_1/epsilon
  gives pure epsilon-DP.

- Blocks for 0/1 patterns with at most l ones: P(Z = z) is proportional to exp(-n(z)/b) with n(z) that no pattern
  changes by more than 1, and a change v is a sum of r(v) patterns (``dpsql.common.pattern_block``, with the proof). So
  b = D/epsilon gives pure epsilon-DP where no neighbour moves y by v with r(v) > D. In a sum over blocks r stands for
  such a block where the largest entry stands for another.

- Blocks: the coordinates fall into blocks z_1, z_2, ... and P(Z = z) is proportional to
  exp(-(sum_k max_i |z_ki|)/b): the K-norm mechanism (Hardt and Talwar 2010) of the norm
  ||c|| = sum over blocks of the largest |c_ki|. By the triangle inequality the ratio of two laws
  shifted by c is at most exp(||c||/b), so b = D/epsilon gives pure epsilon-DP where no neighbour
  moves y by more than D in that norm. Blocks of one coordinate are discrete Laplace noise. How much
  of epsilon a block gets is in the integers B: a block of B times k moves k times as far.

They hold for the laws themselves, not for floating-point stand-ins: no float takes part in a
draw (`dpsql.privacy.draws`; many Gaussian draws over arrays, by the same law: `dpsql.privacy.normals`).
`Noise.sample` reads `os.urandom` and nothing else, keeps no entropy between calls, and is
therefore safe after a fork. The time of a draw depends on its size a little, as in every exact
rejection sampler; draw all noise before the data are touched.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpsql.common.pattern_block import PatternBlock, law_of
from dpsql.errors import DataError, InternalError
from dpsql.privacy import cubes, draws
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.normals import rounded_normals
from dpsql.privacy.pattern_draws import pattern

_MANY = 1024  # Gaussian draws from which they are made together
_ALWAYS = 5  # numbers of a block for patterns that keeps a draw in thousands at any scale
_WEIGHED = 400  # numbers of a plain block whose radius is drawn without rejection in a moment
_LARGEST = 2**1000  # keeps variances within the floats that error bars are made of


@dataclass(frozen=True)
class Noise:
    """A law of integer noise.

    kind: "gaussian" (rounded Gaussian), "laplace" (discrete Laplace), both independent and identical for every
    coordinate, or "blocks". parameter: the exact rational sigma^2 of the continuous Gaussian, or the scale b of the
    others. ``blocks``: the sizes of the blocks in the order of the coordinates, for "blocks" alone; a ``PatternBlock``
    has the noise for patterns.
    Make one with `Noise.gaussian`, `Noise.laplace`, `gaussian_noise` or `pure_noise`.
    """

    kind: str
    parameter: Fraction
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "laplace", "blocks"):
            raise InternalError(f"noise kind {self.kind!r} is not known; use 'gaussian', 'laplace' or 'blocks'")
        if (self.kind == "blocks") != bool(self.blocks) or not all(map(_is_block, self.blocks)):
            raise InternalError("noise in blocks has the sizes of its blocks, whole numbers of at least 1")
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
        Laplace: 2q/(1 - q)^2 = 1/(2 sinh(1/(2b))^2), q = exp(-1/b). Blocks: InternalError, see ``variances``.
        """
        if self.blocks:
            raise InternalError("coordinates of noise in blocks have variances of their own")
        if self.kind == "gaussian":
            return float(self.parameter + Fraction(1, 12)) * (1.0 + 1e-15)
        half = float(1 / (2 * self.parameter))
        if half > 300.0:
            return 2.0 * math.exp(-600.0)
        return (0.5 / math.sinh(half) ** 2) * (1.0 + 1e-12)

    @property
    def variances(self) -> NDArray[np.float64]:
        """Of the coordinates of noise in blocks, (p,). Different coordinates are uncorrelated, as signs flip freely; in
        a block for patterns they are correlated as on a fine grid (``PatternLaw``).
        """
        each = {size: _variance(size, self.parameter) for size in set(self.blocks)}
        return np.repeat([each[size] for size in self.blocks], self.blocks)

    def sample(self, count: int) -> list[int]:
        """``count`` coordinates, Python ints of any size, from OS entropy: independent draws, or one of all blocks.

        About 4 microseconds a coordinate, 8 in blocks, 20 in those for patterns. The law is exact; see `draws.normal`,
        `draws.laplace`, `draws.cube` and `pattern_draws.pattern` for the proofs.
        """
        return sample_from(self, count, os.urandom)

    def sample_many(self, count: int) -> NDArray[np.int64]:
        """``count`` independent draws as an array, by the same laws; for noise of which every draw fits 64 bits."""
        many = None
        if self.kind == "gaussian" and count >= _MANY:
            many = rounded_normals(self.parameter.numerator, self.parameter.denominator, count, os.urandom)
        return np.array(self.sample(count), dtype=np.int64) if many is None else many


def gaussian_noise(l2_squared: int, mu_squared: Fraction) -> Noise:
    """Noise that makes integer answers of squared L2 sensitivity ``l2_squared`` mu-GDP.

    Variance l2_squared / mu_squared, exact. Neighbours: add or remove one unit. Raises DataError.
    """
    _positive(l2_squared, mu_squared, "mu squared")
    return Noise.gaussian(Fraction(l2_squared) / Fraction(mu_squared))


def pure_noise(sensitivity: int, epsilon: Fraction, blocks: tuple[int, ...] = ()) -> Noise:
    """Noise that makes integer answers epsilon-DP, purely, that a unit moves by ``sensitivity`` at most.

    In L1 norm without ``blocks``; else in the sum over blocks, of these sizes, of the largest coordinate, or of what
    ``sizes_of`` has for a ``PatternBlock``. Scale sensitivity / epsilon, exact. Neighbours: add or remove one unit.
    Raises DataError.
    """
    _positive(sensitivity, epsilon, "epsilon")
    scale = Fraction(sensitivity) / Fraction(epsilon)
    by_rejection = [size for size in blocks if size > (_ALWAYS if isinstance(size, PatternBlock) else _WEIGHED)]
    largest = max(by_rejection, default=0)
    if largest > draws.FEW_KEPT * scale:
        raise DataError(
            f"noise in a block of {int(largest):,} numbers is drawn by rejection, which takes too long at so large an "
            "epsilon; ask with a smaller one"
        )
    return Noise("blocks", scale, blocks) if blocks else Noise.laplace(scale)


def _is_block(block: object) -> bool:
    return isinstance(block, PatternBlock) or (type(block) is int and block > 0)


def _drawn(word: draws.Words, block: int, t: int, s: int) -> list[int]:
    if isinstance(block, PatternBlock):
        return pattern(word, int(block), block.limit, t, s)
    return draws.cube(word, block, t, s)


def _variance(block: int, scale: Fraction) -> float:
    """Of a coordinate. Of a block for patterns on a fine grid, and 2 b + 1 more: integers were seen to add 0.05 b."""
    if not isinstance(block, PatternBlock):
        return cubes.variance(block, scale)
    b = float(scale)
    return law_of(block).variance * b * b + 2.0 * b + 1.0


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
    draws.check_count(count)
    word = draws.words(source)
    if noise.kind == "gaussian":
        p, q = noise.parameter.numerator, noise.parameter.denominator
        if count >= _MANY:
            many = rounded_normals(p, q, count, source)
            if many is not None:
                listed: list[int] = many.tolist()
                return listed
        return [draws.rounded_normal(word, p, q) for _ in range(count)]
    t, s = noise.parameter.numerator, noise.parameter.denominator
    if noise.blocks:
        if count != sum(noise.blocks):
            raise InternalError(f"noise in blocks of {sum(noise.blocks)} coordinates is asked for {count}")
        single = (draws.laplace(word, t, s) for _ in range(noise.blocks.count(1)))
        parts = ([next(single)] if size == 1 else _drawn(word, size, t, s) for size in noise.blocks)
        return [z for part in parts for z in part]
    return [draws.laplace(word, t, s) for _ in range(count)]
