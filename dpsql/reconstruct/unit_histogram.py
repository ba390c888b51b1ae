"""What a limit on the rows of a unit cuts, from a noisy histogram of units by their number of rows. Post-processing.

Buckets 1, 2, ..., 10, then up to the powers of two, the last up to a public bound: a unit of bucket i has from l_i to
u_i rows. y_i = n_i + z_i with independent noise of one law. With the limit k the true loss lies between the sums of
n_i (l_i - k)+ and n_i (u_i - k)+, so that with z_a, z_b the half-widths of the noise in the two sums

    sum_i y_i (l_i - k)+ - z_a  <=  lost(k)  <=  sum_i y_i (u_i - k)+ + z_b

holds unless the noise in one of the sums is beyond its half-width on one side, which has a chance of alpha / 2 each.
All buckets take part, small ones too: which counts are left out would depend on their noise. For every k at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.numerics import ALPHA
from dpsql.reconstruct.intervals import half_widths
from dpsql.reconstruct.spread import NoiseModel


def ends_of(largest: int) -> tuple[int, ...]:
    """The largest number of rows of each bucket, where no unit has more than ``largest``."""
    powers = (2**power for power in range(4, largest.bit_length()))
    ends = {*range(1, min(10, largest) + 1), *powers, largest}
    return tuple(sorted(end for end in ends if end <= largest))


def beyond(largest: int, limit: int) -> Floats:
    """How many rows beyond the limit a unit in the middle of each bucket has: what weighs the noise of a bucket."""
    ends = np.array(ends_of(largest), dtype=np.float64)
    return np.asarray(np.maximum((np.append(1.0, ends[:-1] + 1) + ends) / 2 - limit, 0.0))


@dataclass(frozen=True)
class Estimate:
    """A sum over all units: a value, its standard error, and the ends of an interval that holds it."""

    value: float
    stderr: float
    low: float
    high: float


@dataclass(frozen=True)
class UnitHistogram:
    """Noisy counts ``units`` of the buckets that end at ``ends``, with independent noise of one law."""

    ends: tuple[int, ...]
    units: tuple[int, ...]
    noise: NoiseModel

    @cached_property
    def _bounds(self) -> tuple[Floats, Floats]:
        high = np.array(self.ends, dtype=np.float64)
        return np.append(1.0, high[:-1] + 1), high

    def rows(self) -> Estimate:
        """How many rows all units have."""
        return self._sum(*self._bounds)

    def rows_beyond(self, limit: int, least: str = "same") -> Estimate:
        """How many rows all units have beyond ``limit`` each.

        ``least``: what of it a unit is known to have: "same", all of it; "one" row of what is more than none; "none".
        """
        low, high = (np.maximum(end - limit, 0.0) for end in self._bounds)
        return self._sum({"same": low, "one": np.minimum(low, 1.0), "none": 0.0 * low}[least], high)

    def units_beyond(self, limit: int) -> Estimate:
        """How many units have more rows than ``limit``."""
        low, high = self._bounds
        return self._sum((low > limit).astype(float), (high > limit).astype(float))

    def _sum(self, low: Floats, high: Floats) -> Estimate:
        weights = np.stack([low, high, (low + high) / 2])
        sums = weights @ np.array(self.units, dtype=np.float64)
        errors = self.noise.variance**0.5 * np.linalg.norm(weights, axis=1)
        below, above, _ = half_widths(weights, self.noise, ALPHA)
        ends = max(0.0, float(sums[0] - below)), max(float(sums[1] + above), float(errors[1]))
        return Estimate(float(np.clip(sums[2], *ends)), float(errors[2]), *ends)
