"""Noise drawn again, for replicates: from a public, seeded generator, by the law of the release.

Never to be added to anything private: whoever knows the release knows every number of it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import TypeAlias, cast

import numpy as np
from scipy.special import gammaln

from dpsql.common.arrays import Floats, Ints
from dpsql.common.pattern_block import PatternBlock
from dpsql.privacy.pattern_draws import pattern
from dpsql.reconstruct.spread import BlockNoise, NoiseModel, parameter

Generator: TypeAlias = np.random.Generator

_AT_ONCE, _MOST_AT_ONCE = 2**20, 64
"""Numbers, and replicates, that one generator draws."""


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
    exactly geometric). Blocks: points of a cube whose radius has the law of ``draws.cube_radius``, or for patterns the
    draws of a release.
    Floats are good enough here: their law is that of ``dpsql.privacy.noise`` to 1 part in 10^15.
    """
    scale = parameter(noise)
    each = min(max(_AT_ONCE // max(width, 1), 1), _MOST_AT_ONCE)
    for first in range(0, count, each):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(first,))))
        if noise.kind == "blocks" and isinstance(noise, BlockNoise):
            held = _in_blocks(generator, each, noise, scale)
        elif noise.kind == "gaussian":
            held = np.rint(math.sqrt(scale) * generator.standard_normal((each, width)))
        else:
            both = np.floor(scale * generator.standard_exponential((2, each, width)))
            held = both[0] - both[1]
        yield from held[: count - first]


def _in_blocks(generator: Generator, count: int, noise: BlockNoise, scale: float) -> Floats:
    """Replicates of all blocks, those for patterns one after the other."""
    single = [1 if isinstance(block, PatternBlock) else block for block in noise.blocks]
    found = _in_cubes(generator, count, np.array(single), scale)
    if not any(isinstance(block, PatternBlock) for block in noise.blocks):
        return found
    t, s = Fraction(scale).as_integer_ratio()
    ends, parts = np.cumsum(single), []
    for end, block in zip(ends.tolist(), noise.blocks, strict=True):
        if isinstance(block, PatternBlock):
            drawn_ones = [pattern(partial(_word, generator), int(block), block.limit, t, s) for _ in range(count)]
            parts.append(np.array(drawn_ones, dtype=np.float64))
        else:
            parts.append(found[:, end - block : end])
    return np.concatenate(parts, axis=1)


def _word(generator: Generator) -> int:
    return int(generator.integers(0, 2**64, dtype=np.uint64))


def _in_cubes(generator: Generator, count: int, sizes: Ints, scale: float) -> Floats:
    """Replicates of all blocks: a radius r of probability proportional to (2r + 1)^m exp(-r / scale) for each.

    Proposed as the sum of m + 1 geometric variables, a negative binomial one.
    """
    m = np.tile(sizes, (count, 1))
    radius, open_ = np.zeros(m.shape), np.ones(m.shape, dtype=bool)
    while open_.any():
        of = m[open_]
        found = generator.negative_binomial(of + 1, -math.expm1(-1 / scale)).astype(np.float64)
        # log of (2r + 1)^m / prod (2r + 2i), i = 1..m
        kept = of * np.log(found + 0.5) - gammaln(found + of + 1) + gammaln(found + 1)
        taken = np.log(generator.random(of.size)) < kept
        radius[open_] = np.where(taken, found, 0.0)
        open_[open_] = ~taken
    radius = np.repeat(radius, sizes, axis=1)
    return cast("Floats", np.floor((2.0 * radius + 1.0) * generator.random(radius.shape)) - radius)
