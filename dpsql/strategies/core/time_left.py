"""Whether a step of a plan still fits into its time.

A search looks at the clock between its steps, but over a matrix of thousands of rows one step takes seconds, and so do
the choice of a basis before it, rounding after it and the reconstruction of answers after that. Their cost is known
beforehand, by the sizes of matrices alone: what would end too late is not begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

import numpy as np
from scipy import sparse

from dpsql.linalg.forms import MATRIX_CAP
from dpsql.linalg.linked import linked_by
from dpsql.strategies.core.limits import CUBES
from dpsql.strategies.core.reduce import Block
from dpsql.workloads.families.matrix import Workload

SHARE, GRACE = 1.15, 0.7
"""A selection, and what its strategy makes of a plan, may take SHARE times the limit and GRACE seconds."""
PRODUCT, _STEP = 1e-10, 2e-10
"""Seconds on one slow core for a multiplication: of a product or eigenvalues, and of what a step of a search does."""
_PAIR = 2e-6  # seconds for each pair of groups of which rows and units are counted, where their sums are bounded
_TREES = 3e-7  # seconds for each pair of cells
_SHORT = 0.05  # seconds that always fit


class LateError(Exception):
    """A step was not begun, since it would end too late."""


@dataclass(frozen=True)
class TimeLeft:
    """``deadline``: of searches; ``last``: of all that is done with what they find. Monotonic seconds."""

    deadline: float = inf
    last: float = inf

    @classmethod
    def within(cls, limit: float | None) -> TimeLeft:
        """That of a selection with ``limit`` seconds from now."""
        if limit is None:
            return cls()
        now = monotonic()
        return cls(now + limit, now + SHARE * limit + GRACE)

    def fits(self, seconds: float) -> bool:
        """Whether what takes so long may be begun."""
        return self.last == inf or seconds <= _SHORT or monotonic() + seconds <= self.last

    def less(self, seconds: float) -> TimeLeft:
        """The same where so many seconds are needed afterwards: searches end earlier if they must."""
        return TimeLeft(min(self.deadline, self.last - seconds), self.last - seconds)

    def searches_for(self, seconds: float) -> TimeLeft:
        """The same where so many seconds are needed after the searches, and all else may take as long as before."""
        return replace(self, deadline=min(self.deadline, self.last - seconds))


NO_LIMIT = TimeLeft()


def step_seconds(v: int, N: int) -> float:
    """One step of ``optimal.solve`` for rank v and N columns, and its answer as a metric."""
    return _STEP * v**3 + PRODUCT * v * v * max(0, N - v)


def workload_seconds(blocks: Sequence[Block], W: Workload) -> float:
    """The error of the queries measured as they are asked."""
    return sum(_STEP * W.shape[0] * block.rank**2 for block in blocks if not block.solo)


def cells_seconds(blocks: Sequence[Block]) -> float:
    """A search over weighted sums of cells, its error and the factors of its rows, besides the steps of the search."""
    sizes = [block.columns.shape[1] for block in blocks if not block.solo]
    return float(sum(_STEP * N**3 + _TREES * N**2 for N in sizes))


def parts_seconds(cells: int, rank: int) -> float:
    """A basis of the ``cells`` of all parts, and coordinates in it; of no more than the rank they are queries."""
    return 2.0 * _STEP * float(cells) ** 3 + _TREES * float(cells) ** 2 if cells > rank else 0.0


def unlisted_seconds(W: Workload) -> float:
    """Rounding, bounds and the reconstruction of the answers to W, of what is planned source by source.

    Parts that share no cell are rounded and reconstructed apart, and so are groupings of rows and units, if these are
    large.
    """
    number, rows, columns = linked_by(sparse.csc_array(W.span))
    sizes = np.minimum(np.bincount(rows, minlength=number), np.bincount(columns, minlength=number)).astype(np.float64)
    pairs = _PAIR * (sizes**2).sum() if W.units is not None and W.units.tied else 0.0
    cubes = np.minimum(sizes**3, CUBES) if W.units is not None and W.units.by_grouping else sizes**3
    return float((8.0 * _STEP * cubes).sum() + pairs)


def finish_seconds(blocks: Sequence[Block], W: Workload) -> float:
    """Rounding what was found for ``blocks``, and the reconstruction of the answers to W."""
    m, p = W.shape[0], sum(block.count * block.rank for block in blocks)
    total = 0.0
    for block in blocks:
        if not block.solo:
            total += PRODUCT * block.rank**3
            if np.bincount(block.basis.indices).max() > 1:  # W's coordinates in such rows are solved for
                total += _STEP * block.rank**3
            if m * p <= MATRIX_CAP:
                total += PRODUCT * block.count * m * block.rank**2
    return total
