"""Answers from measured residuals, block by block: no matrix over all numbers is ever made.

y has one part y_T for each residual T (``dpsql.linalg.blocks.Residual``). Stage 1 estimates the residual table
u_T = C B_T^+ y_T / k_T, axis by axis. Stage 2 spreads the u_T of all T within a block's axes over the others as their
centres say, evenly as a rule, x^ = sum_T u_T (x) v, and applies the block's factors: <w, x^> = sum_T <w_T, u_T>.
Variances are sums over T of
Kronecker products of the factors' own squared norms. Cost of both: 2^|axes| passes over each block's histogram.

What whole tables say of each residual is in ``residual_estimates``; rows written out are in ``residual_rows``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints, Matrix
from dpsql.common.numerics import TOGETHER
from dpsql.linalg.blocks import Residual, RowBlock

from .intervals import LATTICE_MATTERS, half_widths
from .least_squares import RowsOfAnswers, measured
from .residual_estimates import Estimate, Place, ResidualEstimates, tag, within
from .residual_rows import MOST, ResidualRows, roots_of
from .spread import NoiseModel

_LAPLACE_WORK = 10**7  # weights of rows whose Laplace quantiles are worked out one by one
_LONGER = 1.42  # of one Laplace variable over the sum of two of the same variance together: sqrt 2 far out
_CLASSES = 4_000  # distinct rows of a block whose Laplace quantiles are worked out one by one

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ResidualAnswers:
    """An ``Answers``: number r is the sum of the rows r of ``blocks``. ``sizes[t]`` are the axes' sizes of table t."""

    blocks: tuple[RowBlock, ...] = field(repr=False)
    residuals: tuple[Residual, ...] = field(repr=False)
    sizes: tuple[tuple[int, ...], ...]
    numbers: int

    @cached_property
    def estimates(self) -> ResidualEstimates:
        """The estimate of each residual."""
        return ResidualEstimates(self.blocks, self.residuals, self.sizes)

    @cached_property
    def written(self) -> ResidualRows:
        return ResidualRows(self.estimates)

    @cached_property
    def _equal_blocks(self) -> list[list[RowBlock]]:
        """The blocks, grouped by equal rows over residuals that were measured equally."""
        entries: dict[int, object] = {}
        found: dict[object, list[RowBlock]] = {}
        for block in self.blocks:
            place = {axis: at for at, axis in enumerate(block.axes)}
            factors = []
            for factor in block.factors:
                matrix = factor.matrix
                if id(factor) not in entries:
                    held = (matrix.indptr, matrix.indices, matrix.data)
                    entries[id(factor)] = matrix.shape, *(part.tobytes() for part in held)
                factors.append((entries[id(factor)], factor.keys, *(place[axis] for axis in factor.axes)))
            means = self.estimates.means[block.table]
            parts = (
                (one.multiplier, *(place[axis] for axis in one.axes), *map(tag, one.integers))
                for one in self.estimates.parts(block)
            )
            kind = block.key_sizes, *factors, *(id(means[axis]) for axis in block.axes), *parts
            found.setdefault(kind, []).append(block)
        return list(found.values())

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """R y / L. Relative to the largest count of a block right to about 1e-13, since y_T is nearly centred.

        Raises InterfaceError for another number of measurements, DataError above 2^400.
        """
        return self.numbers_of(self.tables(y)) / float(divisor)

    def numbers_of(self, tables: Mapping[Place, Floats]) -> Floats:
        """The numbers (m,) that histograms over the blocks' axes give."""
        out = np.zeros(self.numbers)
        for kind in self._equal_blocks:
            for blocks in _batches(kind, self._cells(kind[0])):
                found = _applied(kind[0], np.stack([tables[b.table, b.component, b.axes] for b in blocks]))
                for block, values in zip(blocks, found, strict=True):
                    out[block.start : block.stop] += block.coefficient * values
        return out

    def tables(self, y: Sequence[int]) -> dict[Place, Floats]:
        """L times the estimated histogram over the axes of every block; raises as ``estimate``."""
        residuals, found = self._residuals(y), dict[Place, Floats]()
        for kind in self._equal_blocks:
            new = {(b.table, b.component, b.axes): b for b in kind if (b.table, b.component, b.axes) not in found}
            for blocks in _batches([*new.values()], self._cells(kind[0])):
                places = [(b.table, b.component, b.axes) for b in blocks]
                found.update(zip(places, self._spread(blocks, residuals), strict=True))
        return found

    def _cells(self, block: RowBlock) -> int:
        return prod(len(self.estimates.means[block.table][axis]) for axis in block.axes)

    def _residuals(self, y: Sequence[int]) -> dict[Place, Floats]:
        """L times the estimated residuals; raises as ``estimate``."""
        values = measured(y, self.estimates.measured)
        kinds: dict[object, list[tuple[Place, Estimate]]] = {}
        for key, estimate in self.estimates.places.items():
            kinds.setdefault(tuple(map(tag, estimate.integers)), []).append((key, estimate))
        found: dict[Place, Floats] = {}
        for kind in kinds.values():
            integers = kind[0][1].integers
            for some in _batches(kind, kind[0][1].rows):
                held = np.stack([_gathered(estimate, values) for _, estimate in some])
                for axis, one in enumerate(integers):
                    held = one.solve(held, axis + 1)
                for (key, estimate), table in zip(some, held, strict=True):
                    found[key] = table if estimate.sources[0][0].whole else table / estimate.multiplier
        return found

    def _spread(self, blocks: Sequence[RowBlock], residuals: dict[Place, Floats]) -> Floats:
        """The estimated histograms over the axes of blocks alike: (blocks, regions of each axis)."""
        means = [self.estimates.means[blocks[0].table][axis] for axis in blocks[0].axes]
        out = np.zeros((len(blocks), *map(len, means)))
        for parts in zip(*map(self.estimates.parts, blocks), strict=True):
            inside = [axis in parts[0].axes for axis in blocks[0].axes]
            part = np.stack([residuals[one.table, one.component, one.axes] for one in parts])
            part = part.reshape(len(blocks), *(len(v) if held else 1 for held, v in zip(inside, means, strict=True)))
            for at, (held, v) in enumerate(zip(inside, means, strict=True)):
                if not held:
                    part = part * v.reshape([-1 if place == at else 1 for place in range(len(means))])
            out += part
        return out

    def _lengths(self, block: RowBlock) -> list[Floats]:
        """The squared norms of a block's rows over every residual (m,), coefficients left out."""
        found = []
        for residual in self.estimates.parts(block):
            parts = []
            for factor in block.factors:
                inside, integers = within(factor, residual)
                parts.append(factor.squares(inside, integers, self.estimates.means[block.table]))
            found.append(block.outer(parts) / float(residual.multiplier) ** 2)
        return found

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        return np.asarray(np.sqrt(self._squares * noise.variance) / divisor)

    @property
    def _squares(self) -> Floats:
        """The squared norm of every row of R."""
        return self._norms[0]

    @property
    def _largest(self) -> Floats:
        """At least the largest absolute weight of every row of R."""
        return self._norms[1]

    @cached_property
    def _norms(self) -> tuple[Floats, Floats]:
        squares, largest = np.zeros(self.numbers), np.zeros(self.numbers)
        for kind in self._equal_blocks:
            lengths = self._lengths(kind[0])
            if not lengths:
                continue
            total, most = sum(lengths), np.sqrt(np.max(lengths, axis=0))
            for block in kind:
                squares[block.start : block.stop] += block.coefficient**2 * total
                mine = largest[block.start : block.stop]
                np.maximum(mine, abs(block.coefficient) * most, out=mine)
        return squares, largest

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """Half-widths of the pointwise intervals.

        Gaussian noise: the normal quantile of the standard error, with half of the largest weight added where the
        lattice of the noise matters, as ``half_widths`` does. Laplace noise: rows of equal weights once, exactly as
        ``half_widths`` for up to 4,000 distinct rows of a block and 10^7 weights; beyond, the larger of the quantiles
        of one Laplace variable and of a normal one times the standard error, between which those of sums lie.
        """
        if noise.kind == "gaussian":
            width = float(-scipy.special.ndtri(alpha / 2)) * np.sqrt(self._squares * noise.variance)
            largest = self._largest
            coarse = largest > 2 * LATTICE_MATTERS * width
            return np.asarray(np.where(coarse, width + largest / 2, width) / divisor)
        return self._laplace(noise, alpha) / divisor

    def _laplace(self, noise: NoiseModel, alpha: float) -> Floats:
        deviation = np.sqrt(self._squares * noise.variance)
        one, many = np.ones((1, 1)), np.ones((1, 4096))
        bound = max(float(half_widths(row, noise, alpha)[0]) / float(np.sqrt(row.size * noise.variance))
                    for row in (one, many))  # fmt: skip
        out = bound * deviation
        spans: dict[tuple[int, int], list[RowBlock]] = {}
        spent = 0
        for block in self.blocks:
            spans.setdefault((block.start, block.stop), []).append(block)
        for (start, stop), blocks in spans.items():
            kinds, first, inverse = self._classes(blocks)
            width = sum(self.written.reach(block) for block in blocks)
            if kinds > _CLASSES or kinds * width > 8 * MOST:
                continue
            spent += kinds * width
            if spent > _LAPLACE_WORK:
                continue
            rows = np.concatenate(
                [part for block in blocks for part in self.written.explicit(block, first).values()], axis=1
            )
            out[start:stop] = half_widths(rows, noise, alpha)[inverse]
        return out

    def _classes(self, blocks: Sequence[RowBlock]) -> tuple[int, Ints, Ints]:
        """(how many, first, inverse) of the rows of a span that have the same weights in another order.

        Single regions of one axis do, where all that is measured of the axis treats its regions alike.
        """
        count = blocks[0].stop - blocks[0].start
        code = np.zeros(count, dtype=np.int64)
        for block in blocks:
            labels = np.unravel_index(np.arange(count), block.key_sizes) if block.key_sizes else ()
            for factor in block.factors:
                mine = np.zeros(count, dtype=np.int64)
                for key in factor.keys:
                    mine = mine * block.key_sizes[key] + labels[key]
                single = bool((np.diff(factor.matrix.indptr) == 1).all()) and np.ptp(factor.matrix.data) == 0
                if single and len(factor.axes) == 1 and (block.table, factor.axes[0]) not in self.estimates.uneven:
                    continue
                code = np.unique(code * factor.matrix.shape[0] + mine, return_inverse=True)[1]
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return len(first), first, inverse

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """The rows of k outputs of one result, output by output.

        Gaussian noise: k columns that give the same inner products within every group, by Cholesky; a combination of
        one group's outputs has the law of its variance. Laplace noise: all columns that any of them uses.
        """
        groups = parts[0].stop - parts[0].start
        single = [one for block in self.blocks for one in block.split]
        mine = [[b for b in single if (b.start, b.stop) == (part.start, part.stop)] for part in parts]
        if noise.kind != "gaussian":
            return self.written.all_columns(mine, groups)
        gram = self.written.products(mine, groups)
        if gram is None:
            gram = self.written.explicit_products(mine, groups)
        root = roots_of(gram)
        return root.transpose(1, 0, 2).reshape(-1, len(parts))

    def ranks(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """Rows of the counts of one quantile, for the error of a multiple of one and a multiple of the last together.

        For Gaussian noise two columns: along the last count's row, and the length of what is orthogonal to it. So for
        Laplace noise where the rows are too many to be written out, longer by what a sum of two such variables may be
        nearer to 0 than another of its variance, at any confidence from 30 %: an upper bound.
        """
        width = len(parts) * (parts[0].stop - parts[0].start) * self.estimates.measured
        few = noise.kind != "gaussian" and width <= 4 * MOST
        if few:
            return self.rows(parts, noise)
        shared = self._with_last(parts)
        squares = np.stack([self._squares[part] for part in parts])
        along = shared / np.sqrt(np.where(squares[-1] > 0, squares[-1], 1.0))
        out = np.stack([along, np.sqrt(np.maximum(squares - along**2, 0.0))], axis=2)
        out[-1, :, 1] = 0.0
        return out.reshape(-1, 2) * (1.0 if noise.kind == "gaussian" else _LONGER)

    def _with_last(self, parts: Sequence[slice]) -> Floats:
        """Inner products (k x g) of rows with those of the last part."""
        last = parts[-1]
        near = [block for block in self.blocks if block.start <= last.start < block.stop]
        others = [one for block in near for one in block.split if one.start == last.start]
        out = np.zeros((len(parts), last.stop - last.start))
        for block in self.blocks:
            mine = [place for place, part in enumerate(parts) if block.start <= part.start < block.stop]
            for other in others if mine else ():
                found = self.written.with_one(block, other)
                for place in mine:
                    out[place] += found[parts[place].start - block.start : parts[place].stop - block.start]
        return out


def rank_rows(answers: RowsOfAnswers, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
    """Rows of the counts of one quantile (``parts``), as ``quantile`` takes them: few where few do."""
    return answers.ranks(parts, noise) if isinstance(answers, ResidualAnswers) else answers.rows(parts, noise)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Some items at a time, of so many numbers each that arrays over them stay small."""
    few = max(1, TOGETHER // max(size, 1))
    return (items[at : at + few] for at in range(0, len(items), few))


def _gathered(estimate: Estimate, values: Floats) -> Floats:
    """What was measured of a residual, in its axes' rows."""
    total: Floats = np.zeros(())
    for residual, at, weight in estimate.sources:
        part = values[at : at + residual.rows].reshape(residual.shape)
        if residual.whole:
            gone = tuple(number for number, axis in enumerate(residual.axes) if axis not in estimate.axes)
            part = weight * (part.sum(axis=gone) if gone else part)
        total = total + part
    return np.asarray(total)


def _applied(block: RowBlock, tables: Floats) -> Floats:
    """The rows of a block on histograms over its axes (histograms, regions of each axis)."""
    held = tables
    left = list(block.axes)
    done: list[int] = []  # keys, in the order of the axes in front
    for factor in block.factors:
        places = [1 + len(done) + left.index(axis) for axis in factor.axes]
        moved = np.moveaxis(held, places, range(-len(places), 0)) if places else held
        front = moved.shape[: moved.ndim - len(places)]
        flat = moved.reshape(-1, factor.matrix.shape[1])
        out = (factor.matrix @ flat.T).T.reshape((*front, *(block.key_sizes[key] for key in factor.keys)))
        # New key axes go in front of the axes that are left.
        mine = range(out.ndim - len(factor.keys), out.ndim)
        held = np.moveaxis(out, list(mine), range(1 + len(done), 1 + len(done) + len(factor.keys)))
        done.extend(factor.keys)
        left = [axis for axis in left if axis not in factor.axes]
    order = (0, *(1 + np.argsort(done))) if done else (0,)
    return np.asarray(held.transpose(order)).reshape(len(tables), -1)
