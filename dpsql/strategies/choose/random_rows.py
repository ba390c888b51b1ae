"""A lower bound for counts of units and rows over the same rows, by units whose rows are in random columns.

A unit has rows in s of J columns of ``Patterns``, which are drawn at random, one in each, and all others that may count
in one of them, or none. It moves queries by y = A u + R r, u the groups that it is counted in and r its rows by column.
With weights lambda on such units and M = sum_k lambda_k E[y y^T] no strategy has less error than (tr M^1/2)^2.

With n_g columns in group g, of which o_gh are in group h too, and m rows in all,

    E[u_g u_h] = 1 - Q(n_g) - Q(n_h) + Q(n_g + n_h - o_gh),    Q(n) = C(J - n, s) / C(J, s), that none of n is drawn,
    E[u_g r_j] = m / J (1 - q_g + q_g [j in g]),               q_g = C(J - 1 - n_g, s - 1) / C(J - 1, s - 1),
    E[r_j^2] = E[w^2] s / J,                                   E[r_j r_k] = (m^2 - s E[w^2]) / (J (J - 1)),

where w are the rows of a drawn column. All of it is exact, whatever the groups are; only the weights are a guess: those
that are best where all groups of a count are alike and nothing is seen but the contrasts between them.

Columns with equal queries, but for a group of their own in one count, are exchangeable. Contrasts between them separate
from all else, so that ten thousand groups beside their total leave a 2 x 2 and a 4 x 4 problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from dpsql.common.arrays import Csr, Floats, Ints
from dpsql.linalg.columns import distinct_columns
from dpsql.strategies.choose.team_bounds import squared_root_trace
from dpsql.strategies.core.limits import CUBES, SIZES
from dpsql.strategies.core.symmetric import Part, solve
from dpsql.workloads.families.matrix import Workload
from dpsql.workloads.families.patterns import Patterns


@dataclass(frozen=True)
class Draw:
    """Units with rows in ``columns`` of ``J`` columns, ``rows`` in all."""

    J: int
    columns: int
    rows: int

    @property
    def squares(self) -> float:
        """The expected sum of the squares of a unit's rows by column."""
        s = self.columns
        return float((self.rows - s + 1) ** 2 + s - 1)

    def none_of(self, n: Ints) -> Floats:
        """The chance that none of ``n`` columns is drawn."""
        return _choose(self.J - n, self.columns) / _choose(np.array(self.J), self.columns)

    def none_beside(self, n: Ints) -> Floats:
        """The same given that a column that is none of them is drawn."""
        s = self.columns - 1
        return _choose(self.J - 1 - n, s) / _choose(np.array(self.J - 1), s)

    @property
    def of_two(self) -> float:
        """E[r_j r_k] of two columns."""
        return 0.0 if self.J == 1 else (self.rows**2 - self.squares) / (self.J * (self.J - 1.0))

    @property
    def contrast(self) -> Floats:
        """The second moment (2 x 2) of what a unit, and its rows, do to a contrast between two columns."""
        one, two, beside = (
            float(chance) for chance in (*self.none_of(np.array([1, 2])), self.none_beside(np.array(1)))
        )
        cross = self.rows / self.J * beside
        return np.array([[one - two, cross], [cross, self.squares / self.J - self.of_two]])


def _choose(n: Ints, k: int) -> Floats:
    value = np.exp(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(np.maximum(n - k, 0) + 1.0))
    return np.where(n >= k, value, 0.0)


@dataclass(frozen=True, eq=False)
class _Queries:
    """Weighted queries of units (q x N) in groups, ``inside`` (N x J) of columns, and of ``rows`` by column (q x J).

    ``count`` (N,): the number of each group's count of units.
    """

    units: Csr
    rows: Csr
    inside: Csr
    count: Ints

    @cached_property
    def sizes(self) -> Ints:
        """How many columns each group has (N,)."""
        return np.asarray(self.inside.sum(axis=1)).ravel().astype(np.int64)

    @cached_property
    def shared(self) -> tuple[Ints, Ints, Ints]:
        """The pairs of groups that share columns, and how many."""
        held = sparse.coo_array(self.inside @ self.inside.T)
        first, second = (np.asarray(each, dtype=np.int64) for each in held.coords)
        return first, second, held.data.astype(np.int64)

    @cached_property
    def total(self) -> Floats:
        """What queries of rows come to with one in each column (q,)."""
        return np.asarray(self.rows.sum(axis=1), dtype=np.float64).ravel()

    def second(self, draws: Sequence[tuple[float, Draw]]) -> Floats:
        """The sum of E[y y^T] (q x q) of some units, each with its share."""
        sizes, of_size = np.unique(self.sizes, return_inverse=True)
        (a, b, both), n = self.shared, self.sizes
        chance, more = np.zeros((sizes.size, sizes.size)), np.zeros(a.size)
        beside, first, alone, apart = np.zeros(n.size), np.zeros(n.size), 0.0, 0.0
        for share, draw in draws:
            one, none = draw.none_of(sizes), draw.none_of(sizes[:, None] + sizes[None, :])
            chance += share * (1.0 - one[:, None] - one[None, :] + none)
            more += share * (draw.none_of(n[a] + n[b] - both) - draw.none_of(n[a] + n[b]))
            met = draw.none_beside(n) * (share * draw.rows / draw.J)
            beside += met
            first += share * draw.rows / draw.J - met
            alone += share * (draw.squares / draw.J - draw.of_two)
            apart += share * draw.of_two
        by_size = sparse.csr_array((np.ones(n.size), (np.arange(n.size), of_size)))
        summed = (self.units @ by_size).toarray()
        found = summed @ chance @ summed.T
        close = sparse.csr_array((more, (a, b)), shape=(n.size, n.size))
        found += (self.units @ close @ self.units.T + alone * (self.rows @ self.rows.T)).toarray()
        cross = (self.units @ sparse.diags_array(beside) @ (self.inside @ self.rows.T)).toarray()
        cross += np.outer(self.units @ first, self.total)
        return np.asarray(found + cross + cross.T + apart * np.outer(self.total, self.total))

    def exchanged(self) -> tuple[list[tuple[int, Floats]], _Queries]:
        """(The number and weights of contrasts of each class of exchangeable columns; the remaining queries)."""
        owner = [t for t in np.unique(self.count) if (self.sizes[self.count == t] == 1).all()]
        if not owner or np.count_nonzero(self.count == owner[0]) < self.inside.shape[1]:
            return [], self
        column = sparse.coo_array(self.inside[np.flatnonzero(self.count == owner[0])]).coords[1]
        mine, J = np.flatnonzero(self.count == owner[0])[np.argsort(column)], self.inside.shape[1]
        units, rows = self.units[:, mine], self.rows
        others = self.units[:, np.flatnonzero(self.count != owner[0])]
        many = [np.diff(sparse.csr_array(each).indptr) for each in (units, rows, others)]
        single = [(n == 1) & (sum(many) == 1) for n in many[:2]]
        weight = [
            np.asarray(sparse.csr_array(each[np.flatnonzero(one)]).power(2).sum(axis=0)).ravel()
            for each, one in zip((units, rows), single, strict=True)
        ]
        coarse = sparse.csc_array(
            sparse.vstack([self.inside[np.flatnonzero(self.count != owner[0])], rows[~single[1]]])
        )
        alike = distinct_columns(coarse).label
        told = np.stack([alike, *(each.round(9) for each in weight)])
        label = np.unique(told, axis=1, return_inverse=True)[1].ravel()
        if many[0][~single[0]].any():
            return [], self
        often = np.bincount(label)
        mean = sparse.csr_array((1.0 / np.sqrt(often[label]), (label, np.arange(J))))
        root = [np.sqrt(np.bincount(label, each) / often) for each in weight]
        kept = np.flatnonzero(~single[0] & ~single[1])
        place = sparse.csr_array((np.ones(J), (np.arange(J), mine)), shape=(J, self.units.shape[1]))
        asked = [sparse.diags_array(each) @ mean for each in root]
        none = [sparse.csr_array((often.size, each.shape[1])) for each in (self.rows, self.units)]
        rest = _Queries(
            sparse.csr_array(sparse.vstack([self.units[kept], asked[0] @ place, none[1]])),
            sparse.csr_array(sparse.vstack([self.rows[kept], none[0], asked[1]])),
            self.inside,
            self.count,
        )
        return [(int(n) - 1, np.array([u, r])) for n, u, r in zip(often, *root, strict=True) if n > 1], rest

    def contrasts(self, draws: Sequence[Draw]) -> list[Part]:
        """What is seen of contrasts between the groups of each count, as if all of them were alike."""
        parts = []
        for t in np.unique(self.count):
            mine = np.flatnonzero(self.count == t)
            g = mine.size
            n = np.array([draws[0].J / g])
            weight = (np.asarray(self.units.power(2).sum(axis=0)).ravel()[mine].mean(), self._of_rows(mine))
            if g < 2 or min(weight) <= 0.0:
                continue
            moments = []
            for draw in draws:
                units = float((draw.none_of(n) - draw.none_of(2 * n))[0])
                meet = draw.squares + draw.of_two * draw.J * (float(n[0]) - 1.0)
                rows = max((meet - (draw.rows**2 - meet) / (g - 1.0)) / g, 0.0)
                cross = min(draw.rows / g * float(draw.none_beside(n)[0]), (max(units, 0.0) * rows) ** 0.5)
                moments.append([[max(units, 0.0), cross], [cross, rows]])
            if min(np.max([np.diag(moment) for moment in moments], axis=0)) > 0.0:
                parts.append(Part(g - 1.0, np.diag(np.sqrt(weight)), np.array(moments)))
        return parts

    def _of_rows(self, mine: Ints) -> float:
        """The weight of queries that read just the rows of one of the groups ``mine``."""
        read = sparse.csr_array(self.rows)
        first = np.flatnonzero(np.diff(read.indptr))
        if not first.size:
            return 0.0
        group = np.full(self.inside.shape[1], -1)
        held = sparse.coo_array(self.inside[mine])
        group[held.coords[1]] = held.coords[0]
        size = np.bincount(group[group >= 0], minlength=mine.size)
        ends = [of.reduceat(group[read.indices], read.indptr[first]) for of in (np.minimum, np.maximum)]
        just = (ends[0] == ends[1]) & (ends[0] >= 0)
        just &= np.diff(read.indptr)[first] == np.where(just, size[ends[0]], -1)
        return float((read.data[read.indptr[first[just]]] ** 2).sum()) / mine.size


def least_of_random_rows(V: Workload, patterns: Patterns, tolerance: float, deadline: float) -> float:
    """The lower bound of the module for V, whose queries are a list of rows over ``patterns``; 0.0 for too many.

    Cost: the eigenvalues of a matrix of as many rows as V has queries, but for those that are exchanged.
    """
    diagonal = V.inner.diagonal()
    if diagonal is None or patterns.rows is None:
        return 0.0
    regular = (patterns.cells >= 0).all(axis=0) & (patterns.rows >= 0)
    used = np.flatnonzero(regular | (2 * np.count_nonzero(regular) < regular.size))
    cells, J = patterns.cells[:, used], used.size
    counted, groups = cells >= 0, [np.unique(own[own >= 0]) for own in cells]
    starts = np.cumsum([0, *(found.size for found in groups)])
    place = [start + np.searchsorted(found, own) for start, found, own in zip(starts, groups, cells, strict=False)]
    at = np.stack(place)[counted], np.nonzero(counted)[1]
    inside = sparse.csr_array((np.ones(at[0].size), at), shape=(int(starts[-1]), J))
    count = np.repeat(np.arange(len(groups)), np.diff(starts))
    span = sparse.csc_array(sparse.diags_array(np.sqrt(diagonal)) @ V.span)
    rows = sparse.csc_array(
        span[:, np.maximum(patterns.rows[used], 0)] @ sparse.diags_array(1.0 * (patterns.rows[used] >= 0))
    )
    rows.eliminate_zeros()
    whole = _Queries(sparse.csr_array(span[:, np.concatenate(groups)]), sparse.csr_array(rows), inside, count)
    sizes = np.unique(np.geomspace(1, min(patterns.most, J), SIZES).round().astype(np.int64)).tolist()
    draws = [Draw(J, s, m) for s in sizes for m in sorted({s, patterns.most})]
    parts = whole.contrasts(draws)
    lam = solve(parts, tolerance, deadline).weights if parts else np.full(len(draws), 1.0)
    chosen = [(share, draw) for share, draw in zip((lam / lam.sum()).tolist(), draws, strict=True) if share > 0.0]
    alike, rest = whole.exchanged()
    if float(rest.units.shape[0]) ** 3 > CUBES:
        return 0.0
    apart = sum((share * draw.contrast for share, draw in chosen), np.zeros((2, 2)))
    trace = squared_root_trace(rest.second(chosen)) ** 0.5
    trace += sum(n * squared_root_trace(apart * np.outer(root, root)) ** 0.5 for n, root in alike)
    return float(trace) ** 2
