"""The random workload families of the papers. The same parameters and seed are the same workload.

Seeds choose what is asked, never noise: a seeded generator is right here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from scipy import sparse

from dpsql.common.arguments import real, sizes, taking, whole
from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.workloads.families.families import check_size
from dpsql.workloads.families.matrix import Workload, from_matrix

__all__ = ["covering_ranges", "random_ranges", "sampled_ranges", "wdiscrete", "wrange", "wrelated"]

_ENUMERATED = 2**24  # ranges that a biased sample weighs one by one


@taking(m=whole(), n=whole(), seed=whole(0, 2**128))
def random_ranges(m: int, n: int, seed: int) -> Workload:
    """m ranges whose two ends are uniform over n cells (WRange of Yuan et al. 2012, section 6)."""
    queries, size = check_size(m, "m"), check_size(n)
    ends = np.sort(np.random.default_rng(seed).integers(0, size, size=(queries, 2)), axis=1)
    return _boxes([ends[:, 0]], [ends[:, 1]], (size,), f"random_ranges(m={queries}, n={size}, seed={seed})")


@taking(m=whole(), n=whole(), seed=whole(0, 2**128))
def wrange(m: int, n: int, seed: int) -> Workload:
    """WRange of Yuan et al. 2012, section 6: another name of ``random_ranges``."""
    return random_ranges(m, n, seed)


@taking(m=whole(high=2**13), n=whole(high=2**13), seed=whole(0, 2**128), p=real())
def wdiscrete(m: int, n: int, seed: int, p: float = 0.02) -> Workload:
    """m x n entries, 1 with probability p and -1 otherwise (WDiscrete of Yuan et al. 2012, section 6)."""
    queries, size = check_size(m, "m"), check_size(n)
    if not 0 <= p <= 1:
        raise DataError("workload: p is a probability between 0 and 1")
    rows = np.where(np.random.default_rng(seed).random((queries, size)) < p, 1, -1)
    return Workload.from_rows(rows, np.ones(queries), name=f"wdiscrete(m={queries}, n={size}, p={p:g}, seed={seed})")


@taking(m=whole(high=2**13), n=whole(high=2**13), s=whole(high=2**13), seed=whole(0, 2**128))
def wrelated(m: int, n: int, s: int, seed: int) -> Workload:
    """C A with C (m x s) and A (s x n) standard normal: rank s (WRelated of Yuan et al. 2012, section 6)."""
    queries, size, base = check_size(m, "m"), check_size(n), check_size(s, "s")
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((base, size))
    C = rng.standard_normal((queries, base))
    return from_matrix(C @ A, name=f"wrelated(m={queries}, n={size}, s={base}, seed={seed})")


@taking(m=whole(), shape=sizes(), seed=whole(0, 2**128), bias=real())
def sampled_ranges(m: int, shape: int | Sequence[int], seed: int, *, bias: float = 0.0) -> Workload:
    """m distinct queries of ``all_range(shape)`` (Li and Miklau 2011, section 5.1 and its Fig. 2).

    ``bias=0``: uniform without replacement. Otherwise biased: queries are drawn one after the other
    with weight exp(bias * d), d in [0, 1] the Euclidean distance between the centre of the query and
    the centre of the domain over the largest such distance. The paper's footnote wants queries far from
    the centre and then words the exponential the other way; ``bias > 0`` is its purpose (users interested
    in the edges), ``bias < 0`` its words. The rate is ours, the paper gives none. Weighted
    sampling without replacement by the m largest log-weights plus Gumbel noise (exact).
    Raises DataError for more queries than there are ranges, a bias that is not finite, and a biased
    sample from over 2^24 ranges. Cost O(number of ranges) where biased, else O(m); and O(covered cells).
    """
    queries, sizes = check_size(m, "m"), _shape(shape)
    counts = [n * (n + 1) // 2 for n in sizes]
    every = prod(counts)
    if queries > every:
        raise DataError(f"workload: {queries} distinct ranges were asked for and there are {every}")
    if not np.isfinite(bias):
        raise DataError("workload: bias must be a finite number; 0 samples uniformly")
    if every > (_ENUMERATED if bias else 2**62):
        raise DataError(f"workload: {every} ranges are too many to sample from; take a smaller shape")
    rng = np.random.default_rng(seed)
    if bias:
        score = bias * _distances(sizes) + rng.gumbel(size=every)
        chosen = np.sort(np.argpartition(score, every - queries)[every - queries :])
    else:
        chosen = np.sort(rng.choice(every, size=queries, replace=False))
    low, high = [], []
    for first, last in (_unrank(r, n) for r, n in zip(np.unravel_index(chosen, counts), sizes, strict=True)):
        low.append(first)
        high.append(last)
    label = f"sampled_ranges(m={queries}, shape={_label(sizes)}, bias={bias:g}, seed={seed})"
    return _boxes(low, high, sizes, label)


@taking(m=whole(), shape=sizes(), coverage=real(), seed=whole(0, 2**128))
def covering_ranges(m: int, shape: int | Sequence[int], coverage: float, seed: int) -> Workload:
    """m random ranges, each of about the share ``coverage`` of all cells (Li and Miklau 2011, section 5.2).

    The paper groups random ranges by average coverage. Here an axis gets the share coverage^u_i with
    (u_i) uniform on the simplex, as a length rounded to whole cells; the longest axis then takes the length that
    brings the product nearest to ``coverage``; the position is uniform among those that fit. Over
    one axis the length is ``coverage`` n to half a cell, never below one cell. Draws may repeat. Raises
    DataError for a coverage outside (0, 1].
    """
    queries, sizes = check_size(m, "m"), _shape(shape)
    if not 0 < coverage <= 1:
        raise DataError("workload: coverage is the share of cells in a range, above 0 and at most 1")
    rng = np.random.default_rng(seed)
    split = rng.dirichlet(np.ones(len(sizes)), size=queries)
    extent = np.asarray(sizes, dtype=np.float64)
    length = np.clip(np.rint(extent * coverage**split), 1, extent)
    longest = int(np.argmax(extent))
    others = np.delete(length, longest, axis=1).prod(axis=1)
    length[:, longest] = np.clip(np.rint(coverage * extent.prod() / others), 1, extent[longest])
    first = rng.integers(0, (extent - length + 1).astype(np.int64))
    last = first + length.astype(np.int64) - 1
    label = f"covering_ranges(m={queries}, shape={_label(sizes)}, coverage={coverage:g}, seed={seed})"
    return _boxes(list(first.T), list(last.T), sizes, label)


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if not sizes:
        raise DataError("workload: a shape needs at least one axis")
    return tuple(check_size(d, "each size of a shape") for d in sizes)


def _label(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _unrank(rank: Ints, n: int) -> tuple[Ints, Ints]:
    """(first, last) of the ranges over n cells with these numbers, in the order of ``np.triu_indices``."""
    rank = np.asarray(rank, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(n - np.arange(n, dtype=np.int64))])
    first = np.searchsorted(starts, rank, side="right") - 1
    return first, first + rank - starts[first]


def _distances(sizes: tuple[int, ...]) -> Floats:
    """Distance of the centre of every range from the centre of the domain, scaled to at most 1."""
    squared: Floats = np.zeros(1)
    furthest = 0.0
    for n in sizes:
        first, last = np.triu_indices(n)
        off = ((first + last - (n - 1)) / 2.0) ** 2
        squared = (squared[:, None] + off[None, :]).ravel()
        furthest += ((n - 1) / 2.0) ** 2
    return np.asarray(np.sqrt(squared / furthest)) if furthest else squared


def _boxes(low: Sequence[Ints], high: Sequence[Ints], sizes: tuple[int, ...], name: str) -> Workload:
    """The workload of the boxes low <= cell <= high (each end included), one axis an entry, as sparse rows."""
    m, n = len(low[0]), prod(sizes)
    lengths = np.stack([np.asarray(b) - np.asarray(a) + 1 for a, b in zip(low, high, strict=True)], axis=1)
    if np.multiply.reduce(lengths.astype(np.float64), axis=1).sum() > MATRIX_CAP:
        raise DataError(f"workload: {m} ranges cover more than {MATRIX_CAP} cells together; ask for fewer")
    # Axis by axis: every cell found so far is repeated for each place that its range has on the next axis.
    cell, owner = np.zeros(m, dtype=np.int64), np.arange(m)
    for axis, size in enumerate(sizes):
        length = lengths[owner, axis]
        end = np.cumsum(length)
        place = np.arange(end[-1]) - np.repeat(end - length, length)
        cell = np.repeat(cell * size + np.asarray(low[axis])[owner], length) + place
        owner = np.repeat(owner, length)
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=m))])
    rows = sparse.csr_array((np.ones(cell.size, dtype=np.int64), cell, start), shape=(m, n))
    return Workload.from_rows(rows, np.ones(m), name=name)
