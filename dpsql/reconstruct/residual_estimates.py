"""The estimate of each residual once it is measured: as if by one matrix, whatever was measured of it.

Whole tables (``Residual.whole``) on sets S of axes speak of every T inside S: that is the least squares

    u_T = (1 / N_T) sum_S (k_S / prod_(S - T) d) C_T y_S summed over S - T,   N_T = sum_S k_S^2 / prod_(S - T) d,

the sums over the S that contain T. Its noise is that of N_T^1/2 u_T measured plainly, uncorrelated between different T
(``dpsql.strategies.kronecker.structured_blocks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import prod

from dpsql.common.arrays import Floats
from dpsql.linalg.blocks import AxisIntegers, Mixed, Plain, Residual, RowBlock, RowFactor, even

Place = tuple[int, int, tuple[int, ...]]  # table, component, axes


@dataclass(frozen=True, eq=False)
class Estimate:
    """The estimate of one residual: as if it were measured once by ``integers``, ``multiplier`` times.

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
class ResidualEstimates:
    """The estimates, by ``residuals`` in the order of y, of those that ``blocks`` read; ``sizes[t]``: of table t."""

    blocks: tuple[RowBlock, ...] = field(repr=False)
    residuals: tuple[Residual, ...] = field(repr=False)
    sizes: tuple[tuple[int, ...], ...]

    @cached_property
    def places(self) -> dict[Place, Estimate]:
        """The estimate of each residual."""
        found: dict[Place, Estimate] = {}
        tables: dict[Place, list[tuple[Residual, int]]] = {}
        required: set[Place] | None = None
        at = 0
        for residual in self.residuals:
            if residual.whole:
                required = self._required() if required is None else required
                for order in range(len(residual.axes) + 1):
                    for axes in combinations(residual.axes, order):
                        place = (residual.table, residual.component, axes)
                        if place in required:
                            tables.setdefault(place, []).append((residual, at))
            else:
                place = (residual.table, residual.component, residual.axes)
                found[place] = Estimate(*place, residual.integers, float(residual.multiplier), ((residual, at, 1.0),))
            at += residual.rows
        for place, several in tables.items():
            found[place] = self._combined(place, several)
        return found

    def _required(self) -> set[Place]:
        """The residuals of all blocks."""
        found: set[Place] = set()
        for table, component, axes in {(b.table, b.component, b.axes) for b in self.blocks}:
            wide = [axis for axis in axes if self.sizes[table][axis] > 1]
            for order in range(len(wide) + 1):
                found.update((table, component, inside) for inside in combinations(wide, order))
        return found

    def _combined(self, place: Place, several: Sequence[tuple[Residual, int]]) -> Estimate:
        """Whole tables as one measurement of a residual, by least squares."""
        sizes = self.sizes[place[0]]
        shares = [
            float(r.multiplier) / prod(sizes[axis] for axis in r.axes if axis not in place[2]) for r, _ in several
        ]
        precision = sum(share * r.multiplier for share, (r, _) in zip(shares, several, strict=True))
        sources = tuple((r, at, share / precision) for share, (r, at) in zip(shares, several, strict=True))
        return Estimate(*place, tuple(Plain(sizes[axis]) for axis in place[2]), precision**0.5, sources)

    @cached_property
    def means(self) -> tuple[tuple[Floats, ...], ...]:
        """The centre of each axis of each table, which all that is measured of it has."""
        out = [list(even(sizes)) for sizes in self.sizes]
        for residual in self.residuals:
            for axis, part in zip(residual.axes, residual.integers, strict=True):
                if isinstance(part, Mixed) and part.centre is not None:
                    out[residual.table][axis] = part.mean
        return tuple(map(tuple, out))

    @cached_property
    def measured(self) -> int:
        return sum(residual.rows for residual in self.residuals)

    def parts(self, block: RowBlock) -> Iterator[Estimate]:
        """The residuals that a block reads."""
        wide = [axis for axis in block.axes if self.sizes[block.table][axis] > 1]
        for order in range(len(wide) + 1):
            for axes in combinations(wide, order):
                found = self.places.get((block.table, block.component, axes))
                if found is not None:
                    yield found

    @cached_property
    def uneven(self) -> set[tuple[int, int]]:
        """Axes of which something is measured that tells regions apart by more than their names."""
        return {
            (residual.table, axis)
            for residual in self.residuals
            for axis, part in zip(residual.axes, residual.integers, strict=True)
            if hasattr(part, "matrix")
        }


def within(factor: RowFactor, residual: Estimate) -> tuple[tuple[int, ...], tuple[AxisIntegers, ...]]:
    """The axes of a factor in a residual, and what is measured of them."""
    inside = tuple(axis for axis in factor.axes if axis in residual.axes)
    return inside, tuple(residual.integers[residual.axes.index(axis)] for axis in inside)


def tag(part: AxisIntegers) -> object:
    return id(part) if hasattr(part, "matrix") else (type(part), part.d)
