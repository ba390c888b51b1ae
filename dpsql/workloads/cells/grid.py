"""Grids: all combinations of the regions of a few axes, none merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dpsql.workloads.expr.regions import Axis, IntArray


@dataclass(frozen=True)
class Grid:
    """The cells of a histogram over ``axes``: one for each combination of regions, the last axis fastest."""

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return self.combinations

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes' numbers of regions."""
        return tuple(axis.size for axis in self.axes)

    @property
    def combinations(self) -> int:
        """How many cells there are."""
        return prod(self.shape)

    def locate(self, regions: Sequence[IntArray]) -> IntArray:
        """The cell of every row of region numbers (one array an axis); -1 where a region is none."""
        if not self.axes:
            raise ValueError("a table without axes has one cell; there is nothing to locate")
        if all(region.size and region.min() >= 0 for region in regions):
            return np.ravel_multi_index(tuple(regions), self.shape).astype(np.int64, copy=False)
        cell = np.zeros(len(regions[0]), dtype=np.int64)
        outside = np.zeros(len(regions[0]), dtype=bool)
        for axis, region in zip(self.axes, regions, strict=True):
            outside |= region < 0
            cell = cell * axis.size + np.maximum(region, 0)
        return np.where(outside, -1, cell)
