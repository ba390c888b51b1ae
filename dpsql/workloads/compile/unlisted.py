"""A bound on how far one unit can move B x where its contributions are too many to be listed.

A contribution c adds k_t times s_t different corners of each source t, so

    ||B c||^2 <= sum_t k_t^2 (the s_t longest ||B b||^2 + s_t (s_t - 1) o_t) + 2 sum_(t<u) k_t k_u s_t s_u o_tu

with o_t the largest product of two different columns of B of one source and o_tu of two sources, at the worst sizes s:
exact where the columns of a source are alike, such as groups that B treats alike or that no measurement has two of. A
source whose columns are of a few lengths counts as so many sources under one limit, and the one source of single
corners that has most of them is looked at corner by corner.

Units and the rows that they are counted by are bounded together (``reach_tied``), and so are several counts of units
over the same rows (``dpsql.workloads.families.kinds``).

In L1, and by blocks of rows, it is ``dpsql.workloads.compile.unlisted_pure``; what nested measurements of a source move
together is exact by ``dpsql.workloads.compile.nested``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import inf, prod

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Array, Matrix, Sparse
from dpsql.common.numerics import AT_ONCE
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.exact import max_abs, product_chunks, products, products_above, sparse_products
from dpsql.linalg.norms import column_norms, each_norm, squared_sum
from dpsql.workloads.compile.nested import largest_sums
from dpsql.workloads.compile.unlisted_pure import ROW_PARTS, pure_norm
from dpsql.workloads.compile.unlisted_tied import norm_by_grouping, norm_of_classes, ones_of, tied_norm
from dpsql.workloads.families.contributions import Part, Tied
from dpsql.workloads.families.kinds import kinds_of
from dpsql.workloads.families.patterns import TRIED, Patterns
from dpsql.workloads.families.reach import ALL_PRODUCTS, KINDS, MEETINGS, PRODUCTS, reached
from dpsql.workloads.families.units_and_rows import reach_apart, reach_of_units


def bounded_norm(
    order: int,
    mixing: Matrix,
    basis: Sparse,
    parts: Sequence[Part],
    tied: Tied | None = None,
    patterns: Sequence[Patterns] = (),
    blocks: Sequence[int] = (),
) -> int:
    """A whole number that no L1 (``order`` 1) or squared L2 norm (2) of mixing @ basis @ c exceeds.

    In place of L1 by ``blocks`` of rows, if any. For c what one unit can change of the sources ``parts``, of two that
    are ``tied`` less than of both apart, and of some that count units over the same rows one of their ``patterns``.
    Cost: the norms of all columns, products of those of all sources but the widest of single corners, and the sizes;
    above a few thousand columns or 100,000 sizes the squared sum of the norms that count, of each source the longest,
    or the sum of what each source does by itself where no row is moved by two.
    """
    exact = norm_of_classes(mixing, basis, tied) if tied is not None and len(parts) == 2 and order == 2 else None
    if exact is not None:
        return exact
    if order == 2 and patterns:
        found = _over_same_rows(mixing, basis, parts, patterns)
        if found is None and any(one.rows is not None for one in patterns):
            found = _over_same_rows(mixing, basis, parts, [one.without_rows() for one in patterns])
        # Some vector is nearly as long: no other bound is much less.
        if found is not None and 20 * found <= 21 * sum(_reached_by(mixing, basis, one) for one in patterns):
            return found
        apart = bounded_norm(order, mixing, basis, parts, tied)
        return apart if found is None else min(apart, found)
    held = [_Source.of(mixing, basis, part, order) for part in parts]
    if order == 1:
        known = [source.part.times * source.farthest if source.norms.size else 0 for source in held]
        return pure_norm(mixing, basis, parts, tied, blocks, known)
    held = [source for source in held if source.norms.size]
    if not held:
        return 0
    if len(held) == 1 and held[0].part.most == 1:
        return held[0].part.times ** 2 * int(held[0].norms.max())
    triangle = squared_sum([one.part.times**2 * norm for one in held for norm in one.largest])
    triangle = int(min(triangle, _by_products(mixing, held)))
    if tied is not None and len(parts) == 2:
        triangle = min(triangle, tied_norm(mixing, basis, tied) or triangle)
    single = [source for source in held if source.part.most == 1]
    wide = max(single, key=lambda source: source.norms.size, default=None)
    narrow = [source for source in held if source is not wide]
    kinds = [kind for source in narrow for kind in source.kinds()]
    few = sum(source.norms.size for source in narrow) <= PRODUCTS
    if not few and len(held) > 1 and _no_row_meets(mixing, [source.columns for source in held]):
        triangle = min(triangle, sum(bounded_norm(2, mixing, basis, [source.part]) for source in held))
    if not few or prod(kind.limit + 1 for kind in kinds) > TRIED:
        return triangle
    sizes = np.stack(np.meshgrid(*(np.arange(kind.limit + 1) for kind in kinds), indexing="ij")).reshape(len(kinds), -1)
    for source in narrow:
        mine = [k for k, kind in enumerate(kinds) if kind.part is source.part]
        sizes = sizes[:, sizes[mine].sum(axis=0) <= source.part.most]
    total = np.zeros(sizes.shape[1], dtype=object)
    for k, kind in enumerate(kinds):
        total += kind.longest[sizes[k]] * kind.part.times**2
        if kind.limit > 1:
            total += (sizes[k] * (sizes[k] - 1)).astype(object) * (kind.inside * kind.part.times**2)
        for j, other in enumerate(kinds[:k]):
            most = int(products(mixing, kind.columns, other.columns).max())
            total += (sizes[k] * sizes[j]).astype(object) * (2 * most * kind.part.times * other.part.times)
    if wide is None:
        return min(triangle, int(total.max(initial=0)))
    beside = np.zeros((len(kinds), wide.norms.size), dtype=object)
    for k, kind in enumerate(kinds):
        most_each = products(mixing, wide.columns, kind.columns).max(axis=1).astype(object)
        beside[k] = most_each * (2 * wide.part.times * kind.part.times)
    return min(triangle, _meeting(wide.norms * wide.part.times**2, beside, sizes, total))


def _no_row_meets(mixing: Matrix, columns: Sequence[Sparse]) -> bool:
    """Whether no row of mixing has entries in several of ``columns``, so that what these move adds up in squares."""
    held = ones_of(mixing)  # numbers of entries cannot wrap around to 0, as products of entries could
    used = [np.diff(sparse.csr_array(held @ ones_of(own)).indptr) > 0 for own in columns]
    return int(np.sum(used, axis=0).max(initial=0)) <= 1


def _over_same_rows(mixing: Matrix, basis: Sparse, parts: Sequence[Part], patterns: Sequence[Patterns]) -> int | None:
    """A bound of what a unit adds to counts over the same rows and to the other sources, each time to all of them."""
    columns, norms = list[Sparse](), list[int]()
    for one in patterns:
        own = sparse.csc_array(basis @ (one.listed() if one.listable else one.columns))
        if one.listable:
            columns.append(own)
            norms.append(int(column_norms(mixing, own)[1]))
            continue
        apart, kinds = _rows_apart(mixing, own, one), kinds_of(one)
        bounds = [apart, norm_by_grouping(mixing, basis, one)]
        if apart is None and kinds is not None and kinds.sizes is not None:
            bounds.append(int(kinds.longest(products(mixing, own, own))))
        found = min((bound for bound in bounds if bound is not None), default=None)
        if found is None:
            return None
        columns.append(own)
        norms.append(found)
    together = {number for one in patterns for number in one.parts}
    rest = [part for number, part in enumerate(parts) if number not in together]
    if rest:
        columns.append(sparse.csc_array(basis @ sparse.hstack([part.corners for part in rest], format="csc")))
        norms.append(bounded_norm(2, mixing, basis, rest))
    for i, mine in enumerate(columns):
        for other in columns[:i]:
            few = mine.shape[1] + other.shape[1] <= PRODUCTS
            met = products(mixing, mine, other) if few else sparse_products(mixing, mine, other)
            if met is None or max_abs(met) > 0:
                return squared_sum(norms)
    return sum(norms)


def _reached_by(mixing: Matrix, basis: Sparse, patterns: Patterns) -> int:
    """The longest of a few vectors of ``patterns``."""
    return int(column_norms(mixing, sparse.csc_array(basis @ patterns.some(ROW_PARTS)))[1])


def _rows_apart(mixing: Matrix, columns: Sparse, patterns: Patterns) -> int | None:
    """What no vector of ``patterns`` exceeds where units and rows are measured apart, or only units; else None."""
    if patterns.classes is not None:
        return None
    N = columns.shape[1] - (0 if patterns.rows is None else patterns.cells.shape[1])
    parts = [columns] if patterns.rows is None else [columns[:, :N], columns[:, N:]]
    if not _no_row_meets(mixing, parts):
        return None
    above, bits = products_above(mixing, parts, columns.shape[1])
    if patterns.rows is None:
        return int(reach_of_units(patterns, *above).max()) << bits
    found, kinds = int(reach_apart(patterns, *above)), kinds_of(patterns)
    if kinds is not None and kinds.sizes is not None:
        found = min(found, int(kinds.longest(scipy.linalg.block_diag(*above))))
    return found << bits


def _by_products(mixing: Matrix, held: Sequence[_Source]) -> float:
    """``reach`` of all sources together; of many columns by the products that are not 0; inf where these are many."""
    if sum(source.norms.size for source in held) > ALL_PRODUCTS:
        return _by_few_products(mixing, held)
    parts = [
        (source.part.labels if source.labelled else np.arange(source.norms.size), source.part.most) for source in held
    ]
    columns = sparse.csc_array(sparse.hstack([source.columns for source in held]))
    times = np.concatenate([np.full(source.norms.size, source.part.times, dtype=object) for source in held])
    K = held[0].whole if len(held) == 1 else products(mixing, columns, columns)
    if int(abs(K).max(initial=0)) * int(times.max(initial=1)) ** 2 * K.size < 2**62:
        K, times = K.astype(np.int64), times.astype(np.int64)
    else:
        K = K.astype(object)
    return int(reached(K * times[:, None] * times[None, :], parts))


def _by_few_products(mixing: Matrix, held: Sequence[_Source]) -> float:
    """``reach`` by less: a row adds its own entry and of each source at most its positive products with the others, or
    ``most`` times the largest of these. Exact where no measurement has two columns. inf where many products are not 0.
    """
    columns = sparse.csc_array(sparse.hstack([source.columns for source in held]))
    times, sizes = [source.part.times for source in held], [source.norms.size for source in held]
    found, limits = sparse_products(mixing, columns, columns), sum(source.limit for source in held)
    widest = 0 if found is None else int(np.diff(found.indptr).max(initial=0))
    if found is None or max_abs(found) * max(times) ** 2 * (1 + widest) * (1 + limits) >= 2**62:
        return inf
    each, K = np.repeat(np.array(times, dtype=np.int64), sizes), sparse.coo_array(found)
    data = K.data * each[K.row] * each[K.col]
    row = sparse.csr_array((data, (K.row, K.col)), shape=K.shape).diagonal()
    met = (K.row != K.col) & (data > 0)
    others = sparse.csc_array((data[met], (K.row[met], K.col[met])), shape=K.shape)
    stops = np.cumsum(sizes)
    own = [slice(stop - size, stop) for stop, size in zip(stops.tolist(), sizes, strict=True)]
    for source, mine in zip(held, own, strict=True):
        largest = others[:, mine].max(axis=1).toarray().ravel()
        more = np.full(row.size, source.limit)
        more[mine] -= 1  # beside the column itself
        row += np.minimum(others[:, mine].sum(axis=1), more * largest)
    total = 0
    for source, mine in zip(held, own, strict=True):
        ranked = source.part.longest(row[mine]) if source.labelled else row[mine]
        total += int(np.sort(ranked)[::-1][: source.limit].clip(0).sum())
    return total


def _meeting(alone: Array, beside: Array, sizes: Array, total: Array) -> int:
    """The largest of total_s, with or without alone_j + sum_k beside_kj sizes_ks, over all s and j."""
    if alone.size * sizes.shape[1] > MEETINGS:
        alone, beside = alone.max(keepdims=True), beside.max(axis=1, keepdims=True)
    reach = [int(abs(row).max()) * int(size.max()) for row, size in zip(beside, sizes, strict=True)]
    fits = int(abs(total).max()) + int(alone.max()) + sum(reach) < 2**62
    alone, beside, total = (values.astype(np.int64 if fits else object) for values in (alone, beside, total))
    worst = int(total.max())
    for at in range(0, sizes.shape[1], AT_ONCE):
        here = sizes[:, at : at + AT_ONCE].astype(total.dtype)
        worst = max(worst, int((alone[:, None] + beside.T @ here + total[None, at : at + AT_ONCE]).max()))
    return worst


@dataclass(frozen=True, eq=False)
class _Source:
    """Columns (v x c) of basis @ corners of a source, or some of one length, and the exact norms of mixing @ them."""

    part: Part
    columns: Sparse
    norms: Array
    mixing: Matrix = field(repr=False)

    @classmethod
    def of(cls, mixing: Matrix, basis: Sparse, part: Part, order: int) -> _Source:
        columns = sparse.csc_array(basis @ part.corners)
        if part.most == 1:
            columns = columns[:, distinct_columns(columns).keep]
        return cls(part, columns, np.array(each_norm(mixing, columns, order)[0], dtype=object), mixing)

    @property
    def labelled(self) -> bool:
        """Whether classes of several columns count one at a time."""
        return self.part.label is not None and self.part.most > 1

    @cached_property
    def by_class(self) -> Array:
        """The largest norm of each class."""
        return self.part.longest(self.norms) if self.labelled else self.norms

    @property
    def limit(self) -> int:
        """How many of them count at most."""
        return min(self.part.most, int(self.by_class.size))

    @property
    def largest(self) -> list[int]:
        """The ``limit`` largest norms."""
        return [int(norm) for norm in np.sort(self.by_class)[::-1][: self.limit]]

    @cached_property
    def longest(self) -> Array:
        """The sums of the 0, 1, ..., ``limit`` largest norms."""
        return np.array([0, *accumulate(self.largest)], dtype=object)

    def kinds(self) -> list[_Source]:
        """The columns of each length, which tells those apart that B treats apart; all as one where lengths are many,
        and where one column counts at a time.
        """
        values = sorted(set(self.norms.tolist()))
        if self.part.most == 1 or self.labelled or len(values) > KINDS:
            return [self]
        places = [np.flatnonzero(self.norms == value) for value in values]
        return [replace(self, columns=self.columns[:, mine], norms=self.norms[mine]) for mine in places]

    @property
    def farthest(self) -> int:
        """What none of their sums exceeds in L1."""
        most = int(self.longest[-1])
        if self.limit < 2 or self.labelled or self.norms.size > ALL_PRODUCTS:
            return most
        rows = np.concatenate(list(product_chunks(self.mixing, self.columns)), axis=1)
        held = largest_sums(rows.astype(np.int64) if rows.dtype == np.float64 else rows, self.limit)
        return most if held is None else min(most, int(held.best.max()))

    @cached_property
    def whole(self) -> Array:
        """All products of its columns."""
        return products(self.mixing, self.columns, self.columns)

    @property
    def inside(self) -> int:
        """The largest product of two columns that count together."""
        label = np.asarray(self.part.label) if self.labelled else np.arange(self.norms.size)
        apart = label[:, None] != label[None, :]
        return int(np.where(apart, self.whole, self.whole.min()).max())
