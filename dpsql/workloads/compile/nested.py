"""How far a unit in some of many groups moves B x in L1, where the rows of B are nested: exact.

Neighbours: one unit is added or removed. It counts in a set S of at most ``most`` groups, and moves B x by the sum of
the columns S. Rows are nested where they can be taken in an order in which each one's support is a union of bundles,
sets of columns that rows before it have bound together, on each of which it is constant; it then binds these into one.
Such are single groups, sums of groups, differences between halves of groups and between halves of these. Let F_b(s) be
the largest L1 norm of the rows bound in b over sets of s columns of b. Rows that bind b_1, ..., b_k with values v_ri
see of a set only its sizes s_i in these, so that

    F(s) = max over s_1 + ... + s_k = s of sum_i F_(b_i)(s_i) + sum_r |sum_i v_ri s_i|,

and as |x| is the larger of x and -x, that is the largest, over signs e_r of the rows, of the (max, +) convolution of
F_(b_i)(s) + s sum_r e_r v_ri. By induction no set exceeds F, and one attains it. Bundles that nothing binds add up the
same way. Cost: O(g^2) for g columns and each choice of signs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dpsql.common.arrays import Array, Ints

_SIGNED = 4  # rows that bind the same bundles: their signs are tried


@dataclass(frozen=True, eq=False)
class Bundle:
    """Columns bound together: ``best`` (s,) is F(0), F(1), ..., ``chosen`` (s,) which of ``ways`` attains it.

    A way has the bundles that it joins and the number of columns of the last of the first k + 1 of them, for each k and
    their number together.
    """

    columns: Ints
    best: Array
    chosen: Ints
    ways: tuple[tuple[tuple[Bundle, ...], tuple[Ints, ...]], ...] = ()

    def attaining(self, size: int) -> Iterator[int]:
        """The columns of a set of ``size`` columns that attains F."""
        if not self.ways:
            yield from self.columns[:size].tolist()
            return
        bundles, splits = self.ways[int(self.chosen[size])]
        for bundle, split in zip(bundles[:0:-1], splits[::-1], strict=True):
            taken = int(split[size])
            yield from bundle.attaining(taken)
            size -= taken
        yield from bundles[0].attaining(size)


def largest_sums(rows: Array, most: int) -> Bundle | None:
    """The bundle of all columns of ``rows`` (p x g), with sets of at most ``most``; None where rows are not nested.

    Exact for integers of any size: int64 where all sums fit, else Python integers; floats are for planning.
    """
    rows = np.asarray(rows)
    if rows.dtype != np.float64 and sum(int(value) for value in abs(rows).sum(axis=1, dtype=object)) >= 2**61:
        rows = rows.astype(object)
    zero = rows[0, 0] * 0
    held = [Bundle(np.array([i]), np.array([zero, zero]), np.zeros(2, dtype=np.int64)) for i in range(rows.shape[1])]
    home = np.arange(rows.shape[1])
    for support, mine in _by_support(rows):
        bound = np.unique(home[support])
        first = np.array([held[b].columns[0] for b in bound])
        if sum(held[b].columns.size for b in bound) > support.size:
            return None
        if any((mine[:, held[b].columns] != mine[:, [j]]).any() for b, j in zip(bound, first, strict=True)):
            return None
        joined = _bind([held[b] for b in bound], mine[:, first], most)
        if joined is None:
            return None
        held[bound[0]] = joined
        home[support] = bound[0]
    return _bind([held[b] for b in np.unique(home)], rows[:0, :1], most)


def _by_support(rows: Array) -> Iterator[tuple[Ints, Array]]:
    """Each support, the smallest first, and the rows that have it."""
    found: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows != 0):
        if row.any():
            found.setdefault(row.tobytes(), []).append(number)
    for numbers in sorted(found.values(), key=lambda numbers: np.count_nonzero(rows[numbers[0]])):
        yield np.flatnonzero(rows[numbers[0]]), rows[numbers]


def _bind(bundles: Sequence[Bundle], values: Array, most: int) -> Bundle | None:
    """The bundle of all, read by rows with ``values`` (rows x bundles) on them; None for too many signs."""
    if len(bundles) == 1:
        # One bundle: every row adds |v| s, whatever its sign.
        values = abs(values).sum(axis=0, keepdims=True)
    elif len(values) > _SIGNED:
        return None
    columns = np.concatenate([bundle.columns for bundle in bundles])
    ways, reached = [], []
    for signs in product((1, -1), repeat=len(values) if len(bundles) > 1 else 0):
        slopes = values.sum(axis=0) if not signs else np.array(signs) @ values
        total: Any = None
        splits: list[Ints] = []
        for bundle, slope in zip(bundles, np.broadcast_to(slopes, len(bundles)), strict=True):
            value = bundle.best + slope * np.arange(bundle.best.size)
            if total is None:
                total = value
                continue
            total, split = _convolved(total, value, most)
            splits.append(split)
        ways.append((tuple(bundles), tuple(splits)))
        reached.append(total)
    stacked = np.stack(reached)
    return Bundle(columns, stacked.max(axis=0), stacked.argmax(axis=0), tuple(ways))


def _convolved(one: Array, other: Array, most: int) -> tuple[Array, Ints]:
    """max over u + v = s of one_u + other_v for s up to ``most``, and that v."""
    size = min(most, one.size + other.size - 2) + 1
    low = one.min() + other.min() - 1
    best, split = np.full(size, low, dtype=np.result_type(one, other)), np.zeros(size, dtype=np.int64)
    short, long = (one, other) if one.size <= other.size else (other, one)
    for u in range(min(short.size, size)):
        tried = short[u] + long[: size - u]
        better = tried > best[u : u + tried.size]
        best[u : u + tried.size][better] = tried[better]
        taken = np.full(tried.size, u) if short is other else np.arange(tried.size)
        split[u : u + tried.size][better] = taken[better]
    return best, split
