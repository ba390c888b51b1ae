"""Integer measurements of the residuals of histograms, never written out as one matrix.

x holds histograms, one after the other: of layout l a count for each combination of its axes' regions, then each
measure's sums. A residual is a product of small integer matrices, one an axis, on a marginal of one histogram. All
residuals together are B.

Sensitivity. A row of the table is in at most one cell of each histogram, hence in at most one cell of every marginal,
and changes the count there by 1 and a sum by at most 1 in size. So it moves residual T by at most the longest column of
B_T, and as residuals are separate rows of B,

    ||B c||^2 <= sum_T max_j ||B_T e_j||^2,        ||B c||_1 <= sum_T max_j ||B_T e_j||_1,

exact where all columns of each B_T have one length, as those of d I - 1 1^T do. The columns of a Kronecker product
have the products of its factors' norms: Python integers throughout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Generic, TypeVar

import numpy as np

from dpsql.common.arrays import Ints
from dpsql.common.numerics import TOGETHER
from dpsql.errors import DataError, InternalError
from dpsql.linalg.blocks import AxisIntegers, Mixed, Residual, digest_of
from dpsql.linalg.exact import by_words, room
from dpsql.workloads.expr.regions import IntArray

_LEAST = 3  # bits of the data in a word, at least: more of them take fewer passes
_LONG = 512  # regions from which the columns of a factor are not found one by one


@dataclass(frozen=True)
class Histogram:
    """x[start : start + product of sizes]: one component of a table by ``axes`` (numbers of the table's axes)."""

    table: int
    component: int
    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + prod(self.sizes)


P = TypeVar("P")


class InWords(ABC, Generic[P]):
    """``Integers`` that are measured part by part, the data in words of which every product with a part fits int64."""

    @abstractmethod
    def _measured(self) -> Sequence[P]:
        """The parts, in the order of y."""

    @abstractmethod
    def _growth(self, part: P, /) -> int:
        """|B x| <= growth x the largest |entry| of x, of one part."""

    @abstractmethod
    def _product(self, word: Ints, /) -> Ints:
        """B of one word of x, in int64."""

    @property
    def written(self) -> None:
        """None: B is never written out."""
        return None

    @cached_property
    def _width(self) -> int:
        """Bits of the data in one word.

        Sums on the way may leave int64, which is exact modulo 2^64: ``Centre(1)`` grows by 0, what it gives is 0.
        """
        return room(max(self._growth(part) for part in self._measured()))

    @property
    def fits(self) -> bool:
        """Whether at least 3 bits of the data fit an int64 product."""
        return self._width >= _LEAST

    def check(self) -> None:
        """DataError where it does not fit."""
        if not self.fits:
            raise DataError(
                "the strategy's integers are too large to measure exactly; plan with a larger tolerance, or group by "
                "fewer columns"
            )

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """B x in words of x: |x| < 2^bits."""
        self.check()
        return by_words(self._product, x, bits, self._width)


@dataclass(frozen=True, eq=False)
class KroneckerIntegers(InWords[Residual]):
    """B as residuals of histograms; an ``Integers``. y has the residuals one after the other, their last axis fastest.

    Raises InternalError where a residual names axes that its histogram has not.
    """

    histograms: tuple[Histogram, ...]
    residuals: tuple[Residual, ...] = field(repr=False)

    def __post_init__(self) -> None:
        for residual in self.residuals:
            held = self.histograms[residual.histogram]
            place = [held.axes.index(axis) if axis in held.axes else -1 for axis in residual.axes]
            fits = place == sorted(set(place)) and -1 not in place and len(residual.integers) == len(place)
            if not fits or any(part.d != held.sizes[at] for part, at in zip(residual.integers, place, strict=True)):
                raise InternalError("a residual does not fit its histogram")

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n entries of x)."""
        return sum(residual.rows for residual in self.residuals), max((h.stop for h in self.histograms), default=0)

    def _measured(self) -> Sequence[Residual]:
        return self.residuals

    def _growth(self, residual: Residual) -> int:
        """|B_T x| <= growth x the largest |entry| of the histogram."""
        held = self.histograms[residual.histogram]
        summed = prod(size for axis, size in zip(held.axes, held.sizes, strict=True) if axis not in residual.axes)
        return residual.multiplier * summed * prod(part.growth for part in residual.integers)

    def _product(self, word: Ints) -> Ints:
        out = np.zeros(self.shape[0], dtype=np.int64)
        for some, starts in self._by_factors:
            held = [self.histograms[residual.histogram] for residual in some]
            tables = np.stack([word[one.start : one.stop] for one in held])
            multipliers = np.array([residual.multiplier for residual in some], dtype=np.int64)
            parts = multipliers[:, None] * self._parts(some[0], tables).reshape(len(some), -1)
            out[starts[:, None] + np.arange(some[0].rows)] = parts
        return out

    @cached_property
    def _by_factors(self) -> list[tuple[list[Residual], Ints]]:
        """Residuals that are measured alike of histograms alike, and where each begins in y."""
        found: dict[object, list[tuple[Residual, int]]] = {}
        at = 0
        for residual in self.residuals:
            held = self.histograms[residual.histogram]
            kept = tuple(axis in residual.axes for axis in held.axes)
            found.setdefault((held.sizes, kept, *map(id, residual.integers)), []).append((residual, at))
            at += residual.rows
        out = []
        for alike in found.values():
            few = max(1, TOGETHER // prod(self.histograms[alike[0][0].histogram].sizes))
            for first in range(0, len(alike), few):
                some = alike[first : first + few]
                out.append(([residual for residual, _ in some], np.array([start for _, start in some])))
        return out

    def _parts(self, residual: Residual, tables: Ints) -> Ints:
        """B_T of histograms alike (histograms x cells), in int64."""
        held = self.histograms[residual.histogram]
        gone = tuple(1 + at for at, axis in enumerate(held.axes) if axis not in residual.axes)
        part = tables.reshape(len(tables), *held.sizes)
        part = part.sum(axis=gone, dtype=np.int64) if gone else part
        for at, integers in enumerate(residual.integers):
            part = integers.times(part, 1 + at)
        return np.asarray(part)

    def residuals_of(self, entry: IntArray) -> list[Residual]:
        """The residuals of the histograms that a layout fills; InternalError where it fills one in part or twice."""
        found: set[int] = set()
        for row in entry:
            used = row[row >= 0]
            if not used.size:
                continue
            first, last = int(used.min()), int(used.max())
            mine = [i for i in self._near(first) if self.histograms[i].start <= first < self.histograms[i].stop]
            if len(mine) != 1 or last >= self.histograms[mine[0]].stop or mine[0] in found:
                raise InternalError("a layout's entries are not those of histograms of its own")
            found.add(mine[0])
        return [residual for number in sorted(found) for residual in self._by_histogram[number]]

    @cached_property
    def _starts(self) -> Ints:
        return np.array([h.start for h in self.histograms], dtype=np.int64)

    def _near(self, place: int) -> range:
        at = int(np.searchsorted(self._starts, place, side="right"))
        return range(max(0, at - 1), at)

    @cached_property
    def _by_histogram(self) -> list[list[Residual]]:
        found: list[list[Residual]] = [[] for _ in self.histograms]
        for residual in self.residuals:
            found[residual.histogram].append(residual)
        return found

    def norms(self, entry: IntArray) -> tuple[int, int]:
        """The sums of the residuals' longest columns; see the module for the proof."""
        found = [residual.norms for residual in self.residuals_of(entry)]
        return sum(l1 for l1, _ in found), sum(l2 for _, l2 in found)

    def largest_norm(self, entry: IntArray, order: int) -> float:
        """The same from the entries of the factors, applied to unit vectors in floats."""
        total = 0.0
        for residual in self.residuals_of(entry):
            one = float(residual.multiplier) ** order
            for part in residual.integers:
                one *= _longest(part, order)
            total += one
        return total

    def share_no_measurement(self, entries: Sequence[IntArray]) -> bool:
        """Each residual reads one histogram, so layouts with histograms of their own are measured apart."""
        found = [{residual.histogram for residual in self.residuals_of(entry)} for entry in entries]
        return sum(len(mine) for mine in found) == len(set().union(*found))

    def digest(self) -> str:
        """Of histograms, factors and multipliers."""
        return digest_of(self.residuals, self.histograms)


def _longest(part: AxisIntegers, order: int) -> float:
    """The largest L1 or squared L2 norm of a column of a factor, from its product with the identity; of a long matrix
    from its entries, which that product takes seconds to find again.
    """
    if part.d <= _LONG:
        columns = part.times(np.eye(part.d, dtype=np.int64), 0)
    elif isinstance(part, Mixed):
        columns = part.matrix
    else:
        first = np.zeros((part.d, 2), dtype=np.int64)  # all columns of these kinds are alike
        first[0, 0] = first[-1, 1] = 1
        columns = part.times(first, 0)
    size = np.abs(columns.astype(np.float64))
    return float((size**order).sum(axis=0).max())
