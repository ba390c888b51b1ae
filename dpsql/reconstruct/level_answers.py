"""Answers from what is measured on levels (``dpsql.workloads.compile.level_integers``), by least squares.

On a part with the readings s = 1, ..., r a number is sum_s g_s u (x), the reading's sums at one child of each axis,
centred among its siblings. From y = C (contrasts of the readings) + z those are estimated by C^-1, centred and over k
on every axis, so that a number has the variance g^T (C^T C)^-1 g times the product of (1 - 1/k) / k^2. Parts are
orthogonal: all of what is measured of one number adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints, Matrix
from dpsql.workloads.compile.level_integers import LevelIntegers

from .intervals import LATTICE_MATTERS
from .least_squares import measured
from .residual_rows import roots_of
from .spread import NoiseModel


@dataclass(frozen=True, eq=False)
class LevelSpan:
    """Numbers [start, stop): of one ``kind`` each, and ``at[axis]`` (levels x numbers) the child of each on a level.

    ``terms``: (kind, part, g) for what numbers of a kind have on a part.
    """

    start: int
    stop: int
    kind: Ints = field(repr=False)
    at: tuple[Ints, ...] = field(repr=False)
    terms: tuple[tuple[int, int, Floats], ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class LevelAnswers:
    """An ``Answers`` of Gaussian noise over what ``integers`` measure."""

    integers: LevelIntegers = field(repr=False)
    spans: tuple[LevelSpan, ...] = field(repr=False)
    numbers: int

    @cached_property
    def _inverse(self) -> list[Floats]:
        """C^-1 of each part."""
        return [np.linalg.inv(part.matrix.astype(np.float64)) for part in self.integers.parts]

    def _weights(self, part: int, g: Floats) -> Floats:
        """The weights of a number with ``g`` on what a part measures of its child, but for that child's own."""
        levels = self.integers.levels(self.integers.parts[part])
        return np.asarray(g @ self._inverse[part]) / float(prod(level.alike for level in levels))

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """R y / L. Raises InterfaceError for another number of measurements, DataError above 2^400."""
        values, tables = measured(y, self.integers.shape[0]), []
        for part, back, at in zip(self.integers.parts, self._inverse, self.integers.starts[:-1].tolist(), strict=True):
            shape = self.integers.shape_of(part)
            table = np.tensordot(back, values[at : at + prod(shape)].reshape(shape), axes=1)
            for axis, level in enumerate(self.integers.levels(part)):
                table = level.solve(table, axis + 1)
            tables.append(table)
        out = np.zeros(self.numbers)
        for span in self.spans:
            mine = out[span.start : span.stop]
            for kind, number, g in span.terms:
                rows = np.flatnonzero(span.kind == kind)
                places = tuple(
                    at[level, rows] for at, level in zip(span.at, self.integers.parts[number].levels, strict=True)
                )
                mine[rows] += np.tensordot(g, tables[number], axes=1)[places]
        return out / float(divisor)

    @cached_property
    def squares(self) -> tuple[Floats, Floats]:
        """The squared norm of every row of R, and the largest that a part has in it."""
        out, most = np.zeros(self.numbers), np.zeros(self.numbers)
        for span in self.spans:
            kinds = int(span.kind.max(initial=-1)) + 1
            total, largest = np.zeros(kinds + 1), np.zeros(kinds + 1)
            for kind, number, g in span.terms:
                levels = self.integers.levels(self.integers.parts[number])
                own = float((self._weights(number, g) ** 2).sum()) * prod(level.share for level in levels)
                total[kind] += own
                largest[kind] = max(largest[kind], own)
            out[span.start : span.stop] = total[span.kind]
            most[span.start : span.stop] = largest[span.kind]
        return out, most

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        return np.asarray(np.sqrt(self.squares[0] * noise.variance) / divisor)

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """Half-widths of pointwise intervals: the normal quantile, with half of (at least) the largest weight added
        where the lattice of the noise matters.
        """
        squares, most = self.squares
        width, largest = float(-scipy.special.ndtri(alpha / 2)) * np.sqrt(squares * noise.variance), np.sqrt(most)
        coarse = largest > 2 * LATTICE_MATTERS * width
        return np.asarray(np.where(coarse, width + largest / 2, width) / divisor)

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """k columns that give the inner products of k outputs of one result in every group, by Cholesky."""
        mine = [next(s for s in self.spans if (s.start, s.stop) == (part.start, part.stop)) for part in parts]
        groups, k = parts[0].stop - parts[0].start, len(parts)
        gram = np.zeros((groups, k, k))
        for i, one in enumerate(mine):
            for j in range(i, k):
                gram[:, i, j] = gram[:, j, i] = self._products(one, mine[j])
        return roots_of(gram).transpose(1, 0, 2).reshape(-1, k)

    def _products(self, one: LevelSpan, other: LevelSpan) -> Floats:
        """Inner products of the rows of R of two outputs, group by group."""
        out = np.zeros(one.stop - one.start)
        by_part: dict[int, list[tuple[int, Floats]]] = {}
        for kind, number, g in other.terms:
            by_part.setdefault(number, []).append((kind, g))
        for kind, number, g in one.terms:
            levels = self.integers.parts[number].levels
            for second, h in by_part.get(number, ()):
                rows = np.flatnonzero((one.kind == kind) & (other.kind == second))
                value = np.full(rows.size, float(self._weights(number, g) @ self._weights(number, h)))
                for axis, (left, right, level) in enumerate(zip(one.at, other.at, levels, strict=True)):
                    value *= self.integers.axes[axis].levels[level].product(left[level, rows], right[level, rows])
                out[rows] += value
        return out


__all__ = ["LevelAnswers", "LevelSpan"]
