"""Noise drawn again, for replicates: from a public, seeded generator, by the law of the release.

Never to be added to anything private: whoever knows the release knows every number of it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from dpsql.arrays import Floats
from dpsql.reconstruct.spread import NoiseModel, parameter


def seed_of(dataset: str, release: int, y: Sequence[int]) -> int:
    """The seed of a release's replicates: from what is public of it, so that everybody draws the same ones."""
    return int.from_bytes(hashlib.sha256(repr((dataset, release, tuple(y))).encode()).digest()[:16], "big")


def normals(seed: int, count: int, width: int) -> Floats:
    """Standard normal variables (count x width)."""
    return np.random.Generator(np.random.PCG64(seed)).standard_normal((count, width))


def replicates(noise: NoiseModel, seed: int, count: int, width: int) -> Floats:
    """z* (count x width): ``count`` replicates of the noise of ``width`` measurements, independent integers as floats.

    The first rows are the same whatever ``count`` is. Gaussian: a normal variable of variance sigma^2, rounded.
    Laplace: P(z) proportional to exp(-|z| / b) as the difference of two geometric variables (floored exponential ones,
    exactly geometric). Floats are good enough here: their law is that of ``dpsql.privacy.noise`` to 1 part in 10^15.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    scale = parameter(noise)
    if noise.kind == "gaussian":
        return cast("Floats", np.rint(math.sqrt(scale) * generator.standard_normal((count, width))))
    both = np.floor(scale * generator.standard_exponential((count, width, 2)))
    return cast("Floats", both[..., 0] - both[..., 1])
