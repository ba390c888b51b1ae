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

from dpsql.errors import DataError, InternalError
from dpsql.privacy import draws
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.normals import rounded_normals

_MANY = 1024  # Gaussian draws from which they are made together
_LARGEST = 2**1000  # keeps variances within the floats that error bars are made of


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

        About 4 microseconds a draw. The law is exact; see `draws.normal` and `draws.laplace` for the proofs.
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
    return [draws.laplace(word, t, s) for _ in range(count)]
