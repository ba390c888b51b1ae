"""Answers from measured residuals, block by block: no matrix over all numbers is ever made.

y has one part y_T for each residual T (``dpsql.linalg.blocks.Residual``). Stage 1 estimates the residual table
u_T = C B_T^+ y_T / k_T, axis by axis. Stage 2 spreads the u_T of all T within a block's axes evenly over the others,
x^ = sum_T u_T (x) 1 / d, and applies the block's factors: <w, x^> = sum_T <w_T, u_T>. Variances are sums over T of
Kronecker products of the factors' own squared norms. Cost of both: 2^|axes| passes over each block's histogram.

Whole tables (``Residual.whole``) on sets S of axes speak of every T inside S: stage 1 is then the least squares

    u_T = (1 / N_T) sum_S (k_S / prod_(S - T) d) C_T y_S summed over S - T,   N_T = sum_S k_S^2 / prod_(S - T) d,

the sums over the S that contain T. Its noise is that of N_T^1/2 u_T measured plainly, uncorrelated between different T
(``dpsql.strategy.structured_blocks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, combinations_with_replacement
from math import prod
from typing import Any

import numpy as np
from scipy.special import ndtri

from dpsql.errors import DataError, InterfaceError
from dpsql.linalg.blocks import AxisIntegers, Plain, Residual, RowBlock, RowFactor

from .intervals import LATTICE_MATTERS, half_widths
from .spread import Floats, NoiseModel

_LIMIT = 2**400
_MOST = 2**24  # entries of explicit rows made at once
_LAPLACE_WORK = 10**7  # weights of rows whose Laplace quantiles are worked out one by one
_CLASSES = 4_000  # distinct rows of a block whose Laplace quantiles are worked out one by one


Place = tuple[int, int, tuple[int, ...]]  # table, component, axes


@dataclass(frozen=True, eq=False)
class _Estimate:
    """What is known of one residual: as if it were measured once by ``integers``, ``multiplier`` times.

    ``sources``: the measurements that say so, where each begins in y, and what each is multiplied by where there are
    several (whole tables); their axes are at least ``axes``.
    """

    table: int
    component: int
    axes: tuple[int, ...]
    integers: tuple[AxisIntegers, ...]
    multiplier: float
    sources: tuple[tuple[Residual, int, float], ...]

    @property
    def rows(self) -> int:
        """How many numbers the residual is."""
        return prod(part.p for part in self.integers)


@dataclass(frozen=True, eq=False)
class ResidualAnswers:
    """An ``Answers``: number r is the sum of the rows r of ``blocks``. ``sizes[t]`` are the axes' sizes of table t."""

    blocks: tuple[RowBlock, ...] = field(repr=False)
    residuals: tuple[Residual, ...] = field(repr=False)
    sizes: tuple[tuple[int, ...], ...]
    numbers: int

    @cached_property
    def _place(self) -> dict[Place, _Estimate]:
        """What is known of each residual."""
        found: dict[Place, _Estimate] = {}
        tables: dict[Place, list[tuple[Residual, int]]] = {}
        wanted: set[Place] | None = None
        at = 0
        for residual in self.residuals:
            if residual.whole:
                wanted = self._wanted() if wanted is None else wanted
                for order in range(len(residual.axes) + 1):
                    for axes in combinations(residual.axes, order):
                        place = (residual.table, residual.component, axes)
                        if place in wanted:
                            tables.setdefault(place, []).append((residual, at))
            else:
                place = (residual.table, residual.component, residual.axes)
                found[place] = _Estimate(*place, residual.integers, float(residual.multiplier), ((residual, at, 1.0),))
            at += residual.rows
        for place, several in tables.items():
            found[place] = self._combined(place, several)
        return found

    def _wanted(self) -> set[Place]:
        """The residuals of all blocks."""
        found: set[Place] = set()
        for table, component, axes in {(b.table, b.component, b.axes) for b in self.blocks}:
            wide = [axis for axis in axes if self.sizes[table][axis] > 1]
            for order in range(len(wide) + 1):
                found.update((table, component, inside) for inside in combinations(wide, order))
        return found

    def _combined(self, place: Place, several: Sequence[tuple[Residual, int]]) -> _Estimate:
        """Whole tables as one measurement of a residual, by least squares."""
        sizes = self.sizes[place[0]]
        shares = [
            float(r.multiplier) / prod(sizes[axis] for axis in r.axes if axis not in place[2]) for r, _ in several
        ]
        precision = sum(share * r.multiplier for share, (r, _) in zip(shares, several, strict=True))
        sources = tuple((r, at, share / precision) for share, (r, at) in zip(shares, several, strict=True))
        return _Estimate(*place, tuple(Plain(sizes[axis]) for axis in place[2]), precision**0.5, sources)

    @cached_property
    def measured(self) -> int:
        """p."""
        return sum(residual.rows for residual in self.residuals)

    def _parts(self, block: RowBlock) -> Iterator[_Estimate]:
        """The residuals that a block reads."""
        wide = [axis for axis in block.axes if self.sizes[block.table][axis] > 1]
        for order in range(len(wide) + 1):
            for axes in combinations(wide, order):
                found = self._place.get((block.table, block.component, axes))
                if found is not None:
                    yield found

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """R y / L. Relative to the largest count of a block right to about 1e-13, since y_T is nearly centred.

        Raises InterfaceError for another number of measurements, DataError above 2^400.
        """
        if len(y) != self.measured:
            raise InterfaceError(f"the reconstruction has {self.measured} columns but {len(y)} values were measured")
        if y and max(max(y), -min(y)) > _LIMIT:
            raise DataError("a measured value exceeds 2^400; the scale of the measures is out of range")
        values = np.array(y, dtype=np.float64)
        tables: dict[tuple[int, int, tuple[int, ...]], Floats] = {}
        for key, known in self._place.items():
            total: Any = 0.0
            for residual, at, weight in known.sources:
                part = values[at : at + residual.rows].reshape(residual.shape)
                if residual.whole:
                    gone = tuple(number for number, axis in enumerate(residual.axes) if axis not in known.axes)
                    part = weight * (part.sum(axis=gone) if gone else part)
                total = total + part
            for axis, integers in enumerate(known.integers):
                total = integers.solve(total, axis)
            tables[key] = np.asarray(total if known.sources[0][0].whole else total / known.multiplier)
        spread: dict[tuple[int, int, tuple[int, ...]], Floats] = {}
        out = np.zeros(self.numbers)
        for block in self.blocks:
            key = (block.table, block.component, block.axes)
            if key not in spread:
                spread[key] = self._spread(block, tables)
            out[block.start : block.stop] += block.coefficient * _applied(block, spread[key])
        return out / float(divisor)

    def _spread(self, block: RowBlock, tables: dict[tuple[int, int, tuple[int, ...]], Floats]) -> Floats:
        """The estimated histogram over a block's axes."""
        sizes = self.sizes[block.table]
        out = np.zeros([sizes[axis] for axis in block.axes])
        for residual in self._parts(block):
            shape = [sizes[axis] if axis in residual.axes else 1 for axis in block.axes]
            rest = prod(sizes[axis] for axis in block.axes if axis not in residual.axes)
            out += tables[residual.table, residual.component, residual.axes].reshape(shape) / rest
        return out

    def _lengths(self) -> Iterator[tuple[RowBlock, list[Floats]]]:
        """Each block with the squared norms of its rows over every residual (m,), coefficients left out."""
        held: dict[tuple[object, ...], Floats] = {}
        for block in self.blocks:
            found = []
            for residual in self._parts(block):
                parts = []
                for factor in block.factors:
                    inside, integers = _within(factor, residual)
                    key = (id(factor), inside, *(_tag(part) for part in integers))
                    if key not in held:
                        held[key] = factor.squares(inside, integers, self.sizes[block.table])
                    parts.append(held[key])
                found.append(block.outer(parts) / float(residual.multiplier) ** 2)
            yield block, found

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        """Standard errors."""
        return np.asarray(np.sqrt(self._squares * noise.variance) / divisor)

    @cached_property
    def _squares(self) -> Floats:
        """The squared norm of every row of R."""
        out = np.zeros(self.numbers)
        for block, lengths in self._lengths():
            for squared in lengths:
                out[block.start : block.stop] += block.coefficient**2 * squared
        return out

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """Half-widths of the pointwise intervals.

        Gaussian noise: the normal quantile of the standard error, with half of the largest weight added where the
        lattice of the noise matters, as ``half_widths`` does. Laplace noise: rows of equal weights once, exactly as
        ``half_widths`` for up to 4,000 distinct rows of a block and 10^7 weights; beyond, the larger of the quantiles
        of one Laplace variable and of a normal one times the standard error, between which those of sums lie.
        """
        if noise.kind == "gaussian":
            width = float(-ndtri(alpha / 2)) * np.sqrt(self._squares * noise.variance)
            largest = self._largest
            coarse = largest > 2 * LATTICE_MATTERS * width
            return np.asarray(np.where(coarse, width + largest / 2, width) / divisor)
        return self._laplace(noise, alpha) / divisor

    @cached_property
    def _largest(self) -> Floats:
        """At least the largest absolute weight of every row of R."""
        out = np.zeros(self.numbers)
        for block, lengths in self._lengths():
            mine = out[block.start : block.stop]
            for squared in lengths:
                np.maximum(mine, abs(block.coefficient) * np.sqrt(squared), out=mine)
        return out

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
            kinds, first, inverse = self._alike(blocks)
            width = sum(self._reach(block) for block in blocks)
            if kinds > _CLASSES or kinds * width > 8 * _MOST:
                continue
            spent += kinds * width
            if spent > _LAPLACE_WORK:
                continue
            rows = np.concatenate([part for block in blocks for part in self._explicit(block, first).values()], axis=1)
            out[start:stop] = half_widths(rows, noise, alpha)[inverse]
        return out

    def _alike(self, blocks: Sequence[RowBlock]) -> tuple[int, Any, Any]:
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
                if single and len(factor.axes) == 1 and (block.table, factor.axes[0]) not in self._uneven:
                    continue
                code = np.unique(code * factor.matrix.shape[0] + mine, return_inverse=True)[1]
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return len(first), first, inverse

    @cached_property
    def _uneven(self) -> set[tuple[int, int]]:
        """Axes of which something is measured that tells regions apart by more than their names."""
        return {
            (residual.table, axis)
            for residual in self.residuals
            for axis, part in zip(residual.axes, residual.integers, strict=True)
            if hasattr(part, "matrix")
        }

    def _reach(self, block: RowBlock) -> int:
        """How many measurements a block's rows have weights on."""
        if not any(residual.whole for residual in self.residuals):
            return sum(residual.rows for residual in self._parts(block))
        held = {at: r.rows for known in self._parts(block) for r, at, _ in known.sources}
        return sum(held.values())

    def _explicit(self, block: RowBlock, chosen: Any = None) -> dict[int, Floats]:
        """Rows of R of a block (all, or the ``chosen``) on each measurement, by where it begins in y."""
        out: dict[int, Floats] = {}
        for known, rows in self._centred(block, chosen):
            for residual, at, weight in known.sources:
                if residual.whole:
                    shape = [part.p if axis in known.axes else 1
                             for axis, part in zip(residual.axes, residual.integers, strict=True)]  # fmt: skip
                    wide = np.broadcast_to(rows.reshape(-1, *shape), (rows.shape[0], *residual.shape))
                    mine = weight * known.multiplier * wide.reshape(rows.shape[0], -1)
                else:
                    mine = rows
                out[at] = out[at] + mine if at in out else mine
        return out

    def _centred(self, block: RowBlock, chosen: Any = None) -> Iterator[tuple[_Estimate, Floats]]:
        """Rows of a block on each residual, as if that were measured once."""
        sizes = self.sizes[block.table]
        for residual in self._parts(block):
            order: list[int] = []
            parts = []
            for factor in block.factors:
                inside, integers = _within(factor, residual)
                parts.append(factor.weights(inside, integers, sizes).reshape(-1, *(part.p for part in integers)))
                order.extend(inside)
            count = block.stop - block.start
            groups = np.arange(count) if chosen is None else chosen
            if len(groups) * residual.rows > 16 * _MOST:
                raise DataError(
                    "an average or ratio over so many groups at once needs too much memory; group by fewer columns"
                )
            labels = np.unravel_index(groups, block.key_sizes) if block.key_sizes else ()
            rows: Any = np.full((len(groups), 1), block.coefficient / residual.multiplier)
            for factor, part in zip(block.factors, parts, strict=True):
                mine = np.zeros(len(groups), dtype=np.int64)
                for key in factor.keys:
                    mine = mine * block.key_sizes[key] + labels[key]
                flat = part.reshape(part.shape[0], -1)[mine]
                rows = (rows[:, :, None] * flat[:, None, :]).reshape(len(groups), -1)
            shape = [residual.integers[residual.axes.index(axis)].p for axis in order]
            rows = rows.reshape(len(groups), *shape).transpose(0, *(1 + np.argsort(order)))
            yield residual, np.ascontiguousarray(rows).reshape(len(groups), -1)

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Any:
        """The rows of k outputs of one result, output by output.

        Gaussian noise: k columns that give the same inner products within every group, by Cholesky; a combination of
        one group's outputs has the law of its variance. Laplace noise: all columns that any of them uses.
        """
        groups = parts[0].stop - parts[0].start
        mine = [[b for b in self.blocks if (b.start, b.stop) == (part.start, part.stop)] for part in parts]
        if noise.kind != "gaussian":
            return self._all_columns(mine, groups)
        gram = self._products(mine, groups)
        if gram is None:
            gram = self._explicit_products(mine, groups)
        root = _cholesky(gram)
        return root.transpose(1, 0, 2).reshape(-1, len(parts))

    def _products(self, mine: Sequence[Sequence[RowBlock]], groups: int) -> Floats | None:
        """Inner products (g x k x k) of the outputs' rows, factor by factor.

        None where blocks fall into factors over different axes, so that products of factors are not those of rows.
        """
        gram = np.zeros((groups, len(mine), len(mine)))
        for (i, left), (j, right) in combinations_with_replacement(list(enumerate(mine)), 2):
            for one in left:
                for other in right:
                    if (one.table, one.component) != (other.table, other.component):
                        continue
                    shared = [residual for residual in self._parts(one) if set(residual.axes) <= set(other.axes)]
                    for residual in shared:
                        found = self._product(one, other, residual)
                        if found is None:
                            return None
                        gram[:, i, j] += found
            gram[:, j, i] = gram[:, i, j]
        return gram

    def _product(self, one: RowBlock, other: RowBlock, residual: _Estimate) -> Floats | None:
        """Inner products (g,) of two blocks' rows in a residual; None where their factors are over different axes."""
        sizes = self.sizes[one.table]
        sides: list[dict[tuple[tuple[int, ...], tuple[int, ...]], RowFactor]] = []
        scale = one.coefficient * other.coefficient / float(residual.multiplier) ** 2
        for block in (one, other):
            held: dict[tuple[tuple[int, ...], tuple[int, ...]], RowFactor] = {}
            for factor in block.factors:
                inside, _ = _within(factor, residual)
                if not factor.keys and not inside:
                    scale *= float(factor.weights((), (), sizes)[0, 0])
                else:
                    held[factor.keys, inside] = factor
            sides.append(held)
        if sides[0].keys() != sides[1].keys():
            return None
        parts = []
        factors = []
        for key, first in sides[0].items():
            second = sides[1][key]
            inside, integers = _within(first, residual)
            memo = (id(first), id(second), inside, *(_tag(part) for part in integers))
            if memo not in self._dots:
                if first is second:
                    self._dots[memo] = first.squares(inside, integers, sizes)
                else:
                    a, b = first.weights(inside, integers, sizes), second.weights(inside, integers, sizes)
                    self._dots[memo] = np.einsum("ij,ij->i", a, b)
            parts.append(self._dots[memo])
            factors.append(first)
        return (
            RowBlock(one.start, one.stop, one.table, one.component, 1.0, 1.0, one.key_sizes, tuple(factors)).outer(
                parts
            )
            * scale
        )

    @cached_property
    def _dots(self) -> dict[tuple[object, ...], Floats]:
        return {}

    def _explicit_products(self, mine: Sequence[Sequence[RowBlock]], groups: int) -> Floats:
        """The same from rows written out, a few groups at a time."""
        gram = np.zeros((groups, len(mine), len(mine)))
        widest = max((self._reach(b) for blocks in mine for b in blocks), default=1)
        step = max(1, _MOST // max(1, widest))
        for low in range(0, groups, step):
            chosen = np.arange(low, min(groups, low + step))
            held: dict[int, list[tuple[int, Floats]]] = {}
            for number, blocks in enumerate(mine):
                for block in blocks:
                    for at, rows in self._explicit(block, chosen).items():
                        held.setdefault(at, []).append((number, rows))
            for found in held.values():
                for i, left in found:
                    for j, right in found:
                        gram[chosen, i, j] += np.einsum("gp,gp->g", left, right)
        return gram

    def _all_columns(self, mine: Sequence[Sequence[RowBlock]], groups: int) -> Floats:
        starts: dict[int, int] = {}
        width = 0
        for blocks in mine:
            for block in blocks:
                for known in self._parts(block):
                    for residual, at, _ in known.sources:
                        if at not in starts:
                            starts[at] = width
                            width += residual.rows
        if groups * len(mine) * width > 16 * _MOST:
            raise DataError(
                "an average, ratio or quantile over so many groups needs too much memory with Laplace noise; group by "
                "fewer columns, or give a delta"
            )
        out = np.zeros((len(mine), groups, width))
        for number, blocks in enumerate(mine):
            for block in blocks:
                for at, rows in self._explicit(block).items():
                    out[number, :, starts[at] : starts[at] + rows.shape[1]] += rows
        return out.reshape(-1, width)


def _within(factor: RowFactor, residual: _Estimate) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The axes of a factor in a residual, and what is measured of them."""
    inside = tuple(axis for axis in factor.axes if axis in residual.axes)
    return inside, tuple(residual.integers[residual.axes.index(axis)] for axis in inside)


def _tag(part: Any) -> object:
    return id(part) if hasattr(part, "matrix") else (type(part), part.d)


def _applied(block: RowBlock, table: Floats) -> Floats:
    """The rows of a block on a histogram over its axes."""
    held: Any = table
    left = list(block.axes)
    done: list[int] = []  # keys, in the order of the axes in front
    for factor in block.factors:
        places = [len(done) + left.index(axis) for axis in factor.axes]
        moved = np.moveaxis(held, places, range(-len(places), 0)) if places else held
        front = moved.shape[: moved.ndim - len(places)]
        flat = moved.reshape(-1, factor.matrix.shape[1])
        out = (factor.matrix @ flat.T).T.reshape((*front, *(block.key_sizes[key] for key in factor.keys)))
        # New key axes go in front of the axes that are left.
        mine = range(out.ndim - len(factor.keys), out.ndim)
        held = np.moveaxis(out, list(mine), range(len(done), len(done) + len(factor.keys)))
        done.extend(factor.keys)
        left = [axis for axis in left if axis not in factor.axes]
    return np.asarray(held.transpose(np.argsort(done)) if done else held).ravel()


def _cholesky(gram: Floats) -> Floats:
    """A root of each positive semidefinite matrix (g x k x k), row by row: the rows' inner products are gram."""
    s, V = np.linalg.eigh(gram)
    return np.asarray(V * np.sqrt(np.maximum(s, 0.0))[:, None, :])
