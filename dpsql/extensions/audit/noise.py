"""The integer noise of a measurement against its exact law: too little and too much are both faults.

The draws are those of ``dpsql.measure`` itself, from measurements of rows of zeros that no unit moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import special

from dpsql.common.arrays import Floats
from dpsql.common.pattern_block import PatternBlock, law_of, sizes_of
from dpsql.extensions.audit.world import World
from dpsql.measure import synthetic
from dpsql.privacy import cubes
from dpsql.privacy.noise import Noise

BINS = 40


@dataclass(frozen=True)
class Fit:
    """Chi-square of draws against their law: p-value, and z of what should not be correlated."""

    draws: int
    p: float
    between_neighbours: float
    between_releases: float


def draw(world: World, count: int) -> list[list[int]]:
    """Two measurements of ``count`` zeros each: pure noise."""
    world.tables.fill({})
    still = synthetic.StillEngine(world.tables.engine)
    job = synthetic.with_pure_noise(world.job, count)
    more = job.integers.shape[0] - world.job.integers.shape[0]
    return [synthetic.noisy(job, still)[-more:] for _ in range(2)]


def fit(world: World, count: int) -> Fit:
    """Hold 2 x ``count`` draws against the law that the plan states.

    Products of uncorrelated numbers, signs fair: sum(a b) over the root of sum((a b)^2) has deviation 1.
    """
    first, second = draw(world, count)
    p = chi_square([*first, *second], world.plan.noise)
    noise = world.plan.noise
    pattern = _largest(noise)
    if pattern is not None:  # whose coordinates are correlated
        first, second = (values[:: int(pattern)] for values in (first, second))
    a, b = (np.array([float(value) for value in values]) for values in (first, second))
    return Fit(2 * len(a), p, _deviations(a[1:] * a[:-1]), _deviations(a * b))


def _deviations(products: Floats) -> float:
    return float(products.sum()) / (float(np.linalg.norm(products)) or 1.0)


def chi_square(draws: Sequence[int], noise: Noise) -> float:
    """The p-value of the draws under the law of ``noise``, by about 40 bins of whole numbers.

    Every bin expects at least 20 draws or is merged with its neighbour. Power at 100,000 draws: a scale that is 5 %
    off in either direction has p below 1e-6. Of noise in blocks the draws are blocks of the largest size: their largest
    entries are held against the law of these, and the first ones against that of one coordinate. Of blocks for patterns
    it is the gauge in place of the largest entry, of the Gamma law of as many as there are coordinates.
    """
    pattern = _largest(noise)
    if pattern is not None:
        held = np.array([float(value) for value in draws]).reshape(-1, int(pattern))
        gauges = sizes_of(held.T, pattern.limit)
        return min(1.0, 2 * min(_p_in(gauges, _gauges(pattern, noise)), _p_in(held[:, 0], _values(pattern, noise))))
    if noise.blocks:
        size = max(noise.blocks)
        held = np.array([float(value) for value in draws]).reshape(-1, size)
        parts = ((np.abs(held).max(axis=1), cubes.below_largest), (held[:, 0], cubes.below))
        return min(1.0, 2 * min(_p_of(values, size, noise, law) for values, law in parts))
    edges = _edges(noise)
    expected = np.diff(np.concatenate([[0.0], _below(noise, edges), [1.0]])) * len(draws)
    at = np.searchsorted(np.array(edges, dtype=object), np.array(list(draws), dtype=object), side="left")
    counts = np.bincount(at.astype(np.int64), minlength=len(edges) + 1).astype(float)
    if (counts[expected < 1e-7] > 0).any():
        return 0.0  # a value that the law gives once in ten million audits
    return chi_square_of(counts, expected)


def _largest(noise: Noise) -> PatternBlock | None:
    """The largest block, where it is for patterns."""
    block = max(noise.blocks, default=0)
    return block if isinstance(block, PatternBlock) else None


def _gauges(block: PatternBlock, noise: Noise) -> Callable[[Floats], Floats]:
    return lambda edges: np.asarray(special.gammainc(int(block), np.maximum(edges, 0.0) / float(noise.parameter)))


def _values(block: PatternBlock, noise: Noise) -> Callable[[Floats], Floats]:
    law, b = law_of(block), float(noise.parameter)

    def below(edges: Floats) -> Floats:
        beyond = np.array([law.beyond(abs(edge) / b) for edge in edges])
        return np.where(edges < 0, beyond / 2.0, 1.0 - beyond / 2.0)

    return below


def _p_in(values: Floats, law: Callable[[Floats], Floats]) -> float:
    """The p-value of ``values`` of a fine grid under the distribution function ``law``."""
    place = np.linspace(min(float(values.min()), 0.0) * 1.5 - 1.0, float(values.max()) * 1.5 + 1.0, 4000)
    below = law(place)
    edges = np.unique(np.floor(np.interp(np.arange(1, BINS) / BINS, below, place)) + 0.5)
    expected = np.diff(np.concatenate([[0.0], law(edges), [1.0]])) * len(values)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1).astype(float)
    return chi_square_of(counts, expected)


def _p_of(values: Floats, size: int, noise: Noise, law: Callable[[int, Fraction, Floats], Floats]) -> float:
    """The p-value of ``values`` under the distribution function ``law`` of blocks."""
    far = float(noise.parameter) * (size + 12 * size**0.5 + 20)
    grid = np.unique(np.rint(np.linspace(-far, far, 2000)))
    cumulative = law(size, noise.parameter, grid) if law is cubes.below else np.zeros(grid.size)
    if law is not cubes.below:
        cumulative[grid >= 0] = law(size, noise.parameter, grid[grid >= 0])
    edges = np.unique(grid[np.searchsorted(cumulative, np.arange(1, BINS) / BINS).clip(0, grid.size - 1)])
    below = np.interp(edges, grid, cumulative)
    expected = np.diff(np.concatenate([[0.0], below, [1.0]])) * len(values)
    counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1).astype(float)
    return 0.0 if (counts[expected < 1e-7] > 0).any() else chi_square_of(counts, expected)


def chi_square_of(counts: Floats, expected: Floats) -> float:
    """The p-value of counts; neighbours that expect too few draws are counted together."""
    counts, expected = _merged(counts, expected)
    if len(counts) < 2:
        return 1.0  # one value holds it all, and no other was drawn
    return float(special.chdtrc(len(counts) - 1, float(((counts - expected) ** 2 / expected).sum())))


def _edges(noise: Noise) -> list[int]:
    """The last whole number of each bin but the last, ascending."""
    shares = np.arange(1, BINS) / BINS
    if noise.kind == "gaussian":
        places = special.ndtri(shares) * math.sqrt(float(noise.parameter))
    else:
        far = np.minimum(shares, 1 - shares)
        places = np.sign(shares - 0.5) * -np.log(2 * far) * float(noise.parameter)
    return sorted({math.floor(place) for place in places})


def _below(noise: Noise, edges: Sequence[int]) -> Floats:
    """P(Z <= edge), exactly as the laws are: a rounded normal, a two-sided geometric."""
    if noise.kind == "gaussian":
        deviation = math.sqrt(float(noise.parameter))
        places = [float(Fraction(2 * edge + 1, 2)) / deviation for edge in edges]
        return np.asarray(special.ndtr(np.array(places)), dtype=np.float64)
    scale = float(noise.parameter)
    q = math.exp(-1 / scale)
    # P(Z <= -k) = q^k / (1 + q) for k >= 0, and by symmetry.
    tail = [math.exp(-(-edge if edge < 0 else edge + 1) / scale) / (1 + q) for edge in edges]
    return np.array([t if edge < 0 else 1 - t for t, edge in zip(tail, edges, strict=True)])


def _merged(counts: Floats, expected: Floats, least: float = 20.0) -> tuple[Floats, Floats]:
    held, wanted = [0.0], [0.0]
    for count, share in zip(counts, expected, strict=True):
        if wanted[-1] >= least:
            held.append(0.0)
            wanted.append(0.0)
        held[-1] += count
        wanted[-1] += share
    if len(wanted) > 1 and wanted[-1] < least:
        held[-2:] = [held[-2] + held[-1]]
        wanted[-2:] = [wanted[-2] + wanted[-1]]
    return np.array(held), np.array(wanted)
