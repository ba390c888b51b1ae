"""Sums of what each unit adds, within bounds: a unit counts once in a cell, with the sum of its rows there.

Bounds are in whole steps. In a cell of the query, or in each group of a bound's expression that meets
it, what a unit adds is clamped to [lower, upper]. Of more than ``limit`` of these sums the scan keeps so many, chosen
by a hash over the unit, but where a bound is on all of them together. Where the absolute values of a group, or of all,
exceed a bound, they are scaled to it, towards 0.

**Claim.** A unit adds a vector s over cells with |s_c| <= ``in_cell`` and sum |s_c| <= ``in_all``, from 0 on where no
bound lets it add less. **Proof.** Each step is a function of the unit's own rows and of public data, so that D and
D - u differ by s alone. Scaling replaces s_c by trunc(s_c T / total), whose absolute values sum to T at most, and
lowers absolute values, so that it breaks no other bound. A cell sums one clamped number of each group of a bound that
it meets, at most ``limit`` of them, each at most the bound. QED.

So by convexity norms are largest where so many cells as ``in_all`` holds have ``in_cell`` each: s / in_cell lies in the
hull of sums of at most ceil(in_all / in_cell) cells, and in that of at most ``limit``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.measures import Measure


@dataclass(frozen=True)
class SumBound:
    """``lower`` <= 0 <= ``upper`` in steps, for each group of ``cap``, or of all rows of a unit together (None).

    ``inside``: each cell lies in one group. ``alone``: the scan has one sum of each group, so that a clamp is enough.
    ``grouped``: the scan tells rows apart by its groups.
    """

    lower: int
    upper: int
    cap: Cap | None
    inside: bool
    alone: bool
    grouped: bool
    text: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def most(self) -> int:
        """The largest absolute value."""
        return max(-self.lower, self.upper)

    def groups(self, limit: int | None) -> int:
        """Of how many groups a unit adds something, of at most ``limit`` sums."""
        size = 1 if self.cap is None else self.cap.axis.size
        return size if limit is None else min(limit, size)


@dataclass(frozen=True)
class UnitSum:
    """The sum of ``row`` over the rows of each unit, in steps of ``stride`` of its own, within all of ``bounds``.

    ``limit``: how many sums of a unit the scan keeps, None where a bound is on all of them together.
    """

    row: Measure
    stride: int
    bounds: tuple[SumBound, ...]
    limit: int | None

    @property
    def shift(self) -> int:
        """The steps of a row's least value from 0."""
        return int(self.row.lower / self.row.step)

    @property
    def lower(self) -> int:
        """The least of one clamped sum."""
        return max(bound.lower for bound in self.bounds)

    @property
    def upper(self) -> int:
        """The greatest of one clamped sum."""
        return min(bound.upper for bound in self.bounds)

    @property
    def caps(self) -> tuple[Cap, ...]:
        """By whose groups the rows of a cell are told apart."""
        return tuple(bound.cap for bound in self.bounds if bound.cap is not None and bound.grouped)

    @property
    def in_all(self) -> int:
        """The most that a unit adds to all cells together."""
        return min(bound.most * bound.groups(self.limit) for bound in self.bounds)

    @property
    def in_cell(self) -> int:
        """The most that a unit adds to one cell."""
        within = (bound.most * (1 if bound.inside else bound.groups(self.limit)) for bound in self.bounds)
        return min(*within, self.in_all)

    @property
    def cells(self) -> int:
        """How many cells of ``in_cell`` each a unit fills at most, the last perhaps in part."""
        found = -(-self.in_all // self.in_cell)
        return found if self.limit is None else min(self.limit, found)
