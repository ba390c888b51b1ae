"""Rows of reconstruction written out, for combinations of several answers: averages, ratios and quantiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError
from dpsql.linalg.blocks import AxisIntegers, RowBlock, RowFactor

from .residual_estimates import Estimate, ResidualEstimates, tag, within

MOST = 2**24  # entries of explicit rows made at once


@dataclass(frozen=True, eq=False)
class ResidualRows:
    """The rows of R of blocks, written out or as their inner products."""

    estimates: ResidualEstimates

    def reach(self, block: RowBlock) -> int:
        """How many measurements a block's rows have weights on."""
        if not any(residual.whole for residual in self.estimates.residuals):
            return sum(residual.rows for residual in self.estimates.parts(block))
        rows = {at: r.rows for estimate in self.estimates.parts(block) for r, at, _ in estimate.sources}
        return sum(rows.values())

    def explicit(self, block: RowBlock, chosen: Ints | None = None) -> dict[int, Floats]:
        """Rows of R of a block (all, or the ``chosen``) on each measurement, by where it begins in y."""
        out: dict[int, Floats] = {}
        for estimate, rows in self._centred(block, chosen):
            for residual, at, weight in estimate.sources:
                if residual.whole:
                    shape = [part.p if axis in estimate.axes else 1
                             for axis, part in zip(residual.axes, residual.integers, strict=True)]  # fmt: skip
                    wide = np.broadcast_to(rows.reshape(-1, *shape), (rows.shape[0], *residual.shape))
                    mine = weight * estimate.multiplier * wide.reshape(rows.shape[0], -1)
                else:
                    mine = rows
                out[at] = out[at] + mine if at in out else mine
        return out

    def _centred(self, block: RowBlock, chosen: Ints | None = None) -> Iterator[tuple[Estimate, Floats]]:
        """Rows of a block on each residual, as if that were measured once."""
        means = self.estimates.means[block.table]
        count = block.stop - block.start
        groups = np.arange(count) if chosen is None else chosen
        labels = np.unravel_index(groups, block.key_sizes) if block.key_sizes else ()
        # Of each factor the rows that these groups need, and which of them each group has.
        factors: list[tuple[RowFactor, Ints]] = []
        for factor in block.factors:
            mine = np.zeros(len(groups), dtype=np.int64)
            for key in factor.keys:
                mine = mine * block.key_sizes[key] + labels[key]
            needed, mine = np.unique(mine, return_inverse=True)
            few = needed.size < factor.matrix.shape[0]
            factors.append((replace(factor, matrix=factor.matrix[needed]) if few else factor, mine))
        for residual in self.estimates.parts(block):
            order: list[int] = []
            if len(groups) * residual.rows > 16 * MOST:
                raise DataError(
                    "an average or ratio over so many groups at once needs too much memory; group by fewer columns"
                )
            rows: Floats = np.full((len(groups), 1), block.coefficient / residual.multiplier)
            for factor, mine in factors:
                inside, integers = within(factor, residual)
                flat = factor.weights(inside, integers, means)[mine]
                order.extend(inside)
                rows = (rows[:, :, None] * flat[:, None, :]).reshape(len(groups), -1)
            shape = [residual.integers[residual.axes.index(axis)].p for axis in order]
            rows = rows.reshape(len(groups), *shape).transpose(0, *(1 + np.argsort(order)))
            yield residual, np.ascontiguousarray(rows).reshape(len(groups), -1)

    def products(self, mine: Sequence[Sequence[RowBlock]], groups: int) -> Floats | None:
        """Inner products (g x k x k) of the outputs' rows, factor by factor.

        None where blocks fall into factors over different axes, so that products of factors are not those of rows.
        """
        gram = np.zeros((groups, len(mine), len(mine)))
        for (i, left), (j, right) in combinations_with_replacement(list(enumerate(mine)), 2):
            for one in left:
                for other in right:
                    if (one.table, one.component) != (other.table, other.component):
                        continue
                    shared = [part for part in self.estimates.parts(one) if set(part.axes) <= set(other.axes)]
                    for residual in shared:
                        found = self._product(one, other, residual)
                        if found is None:
                            return None
                        gram[:, i, j] += found
            gram[:, j, i] = gram[:, i, j]
        return gram

    def with_one(self, block: RowBlock, other: RowBlock) -> Floats:
        """Inner products of every row of a block with the row of the same groups in ``other``, which is one output."""
        found: Floats = np.zeros(block.stop - block.start)
        if (block.table, block.component) != (other.table, other.component):
            return found
        for residual in self.estimates.parts(block):
            if set(residual.axes) <= set(other.axes):
                part = self._product(block, other, residual)
                if part is None:
                    return self._written_with_one(block, other)
                found += part
        return found

    def _written_with_one(self, block: RowBlock, other: RowBlock) -> Floats:
        """The same from rows written out, a few at a time."""
        found: Floats = np.zeros(block.stop - block.start)
        step = max(1, MOST // max(1, self.reach(block), self.reach(other)))
        for low in range(0, len(found), step):
            chosen = np.arange(low, min(len(found), low + step))
            theirs = self.explicit(other, chosen % (other.stop - other.start))
            for at, rows in self.explicit(block, chosen).items():
                if at in theirs:
                    found[chosen] += np.einsum("gp,gp->g", rows, theirs[at])
        return found

    def _product(self, one: RowBlock, other: RowBlock, residual: Estimate) -> Floats | None:
        """Inner products of the rows of ``one`` in a residual with those of the same groups of one output ``other``.

        None where their factors are over different axes.
        """
        scale = one.coefficient * other.coefficient / float(residual.multiplier) ** 2
        held: dict[tuple[tuple[int, ...], tuple[int, ...]], RowFactor] = {}
        for factor in other.factors:
            inside, _ = within(factor, residual)
            if factor.keys or inside:
                held[factor.keys, inside] = factor
            else:
                scale *= float(factor.weights((), (), self.estimates.means[one.table])[0, 0])
        parts = []
        for factor in one.factors:
            inside, integers = within(factor, residual)
            keys = factor.keys if one.outputs == 1 else tuple(key - 1 for key in factor.keys if key)
            second = held.pop((keys, inside), None)
            if second is None and (keys or inside):
                return None
            parts.append(self._dot(factor, second, inside, integers, self.estimates.means[one.table]))
        return None if held else one.outer(parts) * scale

    def _dot(
        self,
        first: RowFactor,
        second: RowFactor | None,
        inside: tuple[int, ...],
        integers: tuple[AxisIntegers, ...],
        means: tuple[Floats, ...],
    ) -> Floats:
        """Inner products of a factor's rows with those of another, repeated for each output; with 1 without another."""
        memo = (id(first), id(second), inside, *(tag(part) for part in integers))
        if memo not in self._dots:
            if second is not None and first.matrix is second.matrix:
                self._dots[memo] = first.squares(inside, integers, means)
            else:
                weights = first.weights(inside, integers, means)
                theirs = np.ones((1, 1)) if second is None else second.weights(inside, integers, means)
                self._dots[memo] = np.einsum("kgp,gp->kg", weights.reshape(-1, *theirs.shape), theirs).ravel()
        return self._dots[memo]

    @cached_property
    def _dots(self) -> dict[tuple[object, ...], Floats]:
        return {}

    def explicit_products(self, mine: Sequence[Sequence[RowBlock]], groups: int) -> Floats:
        """The same from rows written out, a few groups at a time."""
        gram = np.zeros((groups, len(mine), len(mine)))
        widest = max((self.reach(b) for blocks in mine for b in blocks), default=1)
        step = max(1, MOST // max(1, widest))
        for low in range(0, groups, step):
            chosen = np.arange(low, min(groups, low + step))
            held: dict[int, list[tuple[int, Floats]]] = {}
            for number, blocks in enumerate(mine):
                for block in blocks:
                    for at, rows in self.explicit(block, chosen).items():
                        held.setdefault(at, []).append((number, rows))
            for found in held.values():
                for i, left in found:
                    for j, right in found:
                        gram[chosen, i, j] += np.einsum("gp,gp->g", left, right)
        return gram

    def all_columns(self, mine: Sequence[Sequence[RowBlock]], groups: int) -> Floats:
        starts: dict[int, int] = {}
        width = 0
        for blocks in mine:
            for block in blocks:
                for estimate in self.estimates.parts(block):
                    for residual, at, _ in estimate.sources:
                        if at not in starts:
                            starts[at] = width
                            width += residual.rows
        if groups * len(mine) * width > 16 * MOST:
            raise DataError(
                "an average, ratio or quantile over so many groups needs too much memory with Laplace noise; group by "
                "fewer columns, or give a delta"
            )
        out = np.zeros((len(mine), groups, width))
        for number, blocks in enumerate(mine):
            for block in blocks:
                for at, rows in self.explicit(block).items():
                    out[number, :, starts[at] : starts[at] + rows.shape[1]] += rows
        return out.reshape(-1, width)


def roots_of(gram: Floats) -> Floats:
    """A root of each positive semidefinite matrix (g x k x k), row by row: the rows' inner products are gram."""
    s, V = np.linalg.eigh(gram)
    return np.asarray(V * np.sqrt(np.maximum(s, 0.0))[:, None, :])
