"""Ends of ranks, which hold where true numbers tie.

A rank counts the rows that come before its own. Percentiles of its replicates take the order of what was released for
the true one: of six numbers that tie each has rank 1, and the one that noise put last is hardly ever first again.

Row j is *surely before* row i where at most c of N replicates have it otherwise, and *surely not before* where at most
c have it before. With s of the m rows surely before row i, and t surely not, i among them, its rank (b + how many are
before) is from b + s to b + m - t. Theorem: where rows go by numbers that are linear in noise of a symmetric law, these
ends miss with probability (m - 1) (c + 1) / (N + 1) at most, whatever the true numbers are. Proof: a miss needs a j
that is surely before without being before in truth, or surely not before being so. Say it is not, d <= 0 for its number
less that of i in truth, where the larger comes first. In a replicate it is d + e + e*, with e the noise that there was
and e* that of the replicate, so that e, -e*_1, ..., -e*_N are independent and of one law. At most c replicates have
d + e + e* <= 0 only if at most c of the -e* are e or more: a probability of (c + 1) / (N + 1) at most. The other case
is its mirror image, and a j has one of the two. Add up over m - 1. So c is the largest number for which this is alpha
at most; 0 where even that is more, of more than alpha (N + 1) rows.

Intervals of ranks from those of all differences are those of Mogstad, Romano, Shaikh and Wilhelm (2024). Here the order
of rows is all that is known of what they go by, in each replicate, and all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats

from .intervals import Spread

_MOST = 200
"""Rows that are ranked among each other: the cost is their number squared times that of replicates."""


def with_ranks(spread: Spread, replicates: Floats, keys: Sequence[Floats], alpha: float) -> Spread:
    """The errors of a column, its ends farther out where it has ranks and these may be others.

    ``replicates`` (1 + N x rows): the answer and its replicates. Ranks are numbers that are, every time, a least one
    and how many of them are smaller: of all rows, or of those that agree in one of ``keys``, or in all but one.
    DENSE_RANK is none: ties make it smaller for all that come after.
    """
    if not np.isfinite(replicates).all():
        return spread
    for together in _partitions(keys, replicates.shape[1]):
        low, high = np.zeros(len(together)), np.zeros(len(together))
        for which in range(int(together.max(initial=-1)) + 1):
            rows = np.flatnonzero(together == which)
            ends = _ends(replicates[:, rows], alpha)
            if ends is None:
                break
            low[rows], high[rows] = ends
        else:
            return Spread(spread.stderr, np.minimum(spread.low, low), np.maximum(spread.high, high))
    return spread


def _partitions(keys: Sequence[Floats], rows: int) -> Iterator[NDArray[np.int64]]:
    """The number of the partition of each row, in each way that rows may be ranked apart."""
    ways: list[list[Floats]] = [
        [],
        *([key] for key in keys),
        *([*keys[:at], *keys[at + 1 :]] for at in range(len(keys)) if len(keys) > 2),
    ]
    for way in ways:
        columns = np.nan_to_num(np.stack([np.zeros(rows), *way], axis=1), nan=-np.inf)
        yield np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def _ends(replicates: Floats, alpha: float) -> tuple[Floats, Floats] | None:
    """The ends of ranks within ``replicates``; None where these are none, or too many."""
    times, rows = len(replicates) - 1, replicates.shape[1]
    if rows > _MOST:
        return None
    unsure = max(int(alpha * (times + 1) / max(rows - 1, 1) + 1e-9) - 1, 0)
    base, low, high = replicates[0].min(), np.zeros(rows), np.zeros(rows)
    for at in range(rows):
        before = replicates < replicates[:, at, None]
        if not (before.sum(axis=1) == replicates[:, at] - base).all():
            return None
        often = before[1:].sum(axis=0)
        others = np.arange(rows) != at
        low[at] = base + (others & (often >= times - unsure)).sum()
        high[at] = base + (others & (often > unsure)).sum()
    return low, high
