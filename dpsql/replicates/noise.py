"""Noise drawn again, for replicates: from a public, seeded generator, by the law of the release.

Never to be added to anything private: whoever knows the release knows every number of it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

import numpy as np
from scipy.special import gammaln

from dpsql.arrays import Floats
from dpsql.reconstruct.spread import BlockNoise, NoiseModel, parameter

Generator: TypeAlias = np.random.Generator


def generator_of(*public: object) -> Generator:
    """A generator whose seed is what is public of its use: a release, what is drawn, a caller's seed."""
    digest = hashlib.sha256(repr(public).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


def seed_of(dataset: str, release: int, y: Sequence[int]) -> int:
    """The seed of a release's replicates: from what is public of it, so that everybody draws the same ones."""
    return int.from_bytes(hashlib.sha256(repr((dataset, release, tuple(y))).encode()).digest()[:16], "big")


def normals(seed: int, count: int, width: int) -> Floats:
    """Standard normal variables (count x width)."""
    return np.random.Generator(np.random.PCG64(seed)).standard_normal((count, width))


def replicates(noise: NoiseModel, seed: int, count: int, width: int) -> Floats:
    """``drawn``, one below the other (count x width)."""
    return np.stack(list(drawn(noise, seed, count, width)))


def drawn(noise: NoiseModel, seed: int, count: int, width: int) -> Iterator[Floats]:
    """z*: ``count`` replicates of the noise of ``width`` measurements, integers as floats, one after the other.

    The first ones are the same whatever ``count`` is. Gaussian: a normal variable of variance sigma^2, rounded.
    Laplace: P(z) proportional to exp(-|z| / b) as the difference of two geometric variables (floored exponential ones,
    exactly geometric). Blocks: points of a cube whose radius has the law of ``draws.cube_radius``.
    Floats are good enough here: their law is that of ``dpsql.privacy.noise`` to 1 part in 10^15.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    scale = parameter(noise)
    for _ in range(count):
        if noise.kind == "blocks":
            assert isinstance(noise, BlockNoise)  # noqa: S101 - as its kind says
            yield _in_blocks(generator, noise.blocks, scale)
        elif noise.kind == "gaussian":
            yield np.rint(math.sqrt(scale) * generator.standard_normal(width))
        else:
            both = np.floor(scale * generator.standard_exponential((width, 2)))
            yield both[:, 0] - both[:, 1]


def _in_blocks(generator: np.random.Generator, blocks: Sequence[int], scale: float) -> Floats:
    """One replicate of all blocks: a radius r of probability proportional to (2r + 1)^m exp(-r / scale) for each."""
    sizes = np.array(blocks)
    starts = np.concatenate([[0], np.cumsum(sizes + 1)[:-1]])
    radius, open_ = np.zeros(sizes.size), np.ones(sizes.size, dtype=bool)
    while open_.any():
        steps = np.floor(scale * generator.standard_exponential(int((sizes + 1).sum())))
        found = np.add.reduceat(steps, starts)
        # log of (2r + 1)^m / prod (2r + 2i), i = 1..m
        kept = sizes * np.log(found + 0.5) - gammaln(found + sizes + 1) + gammaln(found + 1)
        taken = open_ & (np.log(generator.random(sizes.size)) < kept)
        radius[taken] = found[taken]
        open_ &= ~taken
    side = np.repeat(2.0 * radius + 1.0, sizes)
    return cast("Floats", np.floor(side * generator.random(side.size)) - np.repeat(radius, sizes))
