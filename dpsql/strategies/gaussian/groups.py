"""Finds the parts where groups that count units may be exchanged, by themselves or with the rows that they count.

*Groups by themselves.* Of each of T sources a unit is counted in s_t <= l_t of g_t groups, which all weigh gamma_t;
beside them it moves other queries by one of N columns, or not at all. Exchanging groups of one source changes neither
the Gram matrix nor the contributions C (``dpsql.workloads.families.contributions``). An orbit of C is a column and the
sizes s. Let u_t be the sum of the groups of source t, which has gamma_t / g_t in the Gram matrix, and count each group
r_t times. The parts (``dpsql.strategies.core.symmetric``) are

- the other queries and the sums u, one copy, which an orbit moves by its column and r_t s_t;
- for each source the contrasts between its groups, g_t - 1 copies of dimension 1 of weight gamma_t, of which an orbit
  has the squared length r_t^2 (s_t - s_t^2 / g_t).

A step costs O(v^2 N) for v the other queries' rank and T, whatever the number of groups. Where the groups of one source
are of several classes, each class is a source here, and their sizes together are at most l.

With one source and nothing else X = a I + b J, with b < 0 where a unit may be in all groups: what all groups share
is subtracted, because a unit never changes one group up and another down.

*Rows and units by the same groups.* Each of g groups has a problem of its own, d queries over its own cells, and all of
these are one problem: COUNT(*), SUM(x) and COUNT(DISTINCT unit) by the same group. A unit has rows in s <= l of the
groups, at most k in all. Its rows of a group are best in one cell, and those of fixed groups best one in each but one
group, which has all others (norms are convex). With n of a group's rows in its corner j

    m = f_j + (n - 1) r_j,    f_j a first row, which has the unit counted, r_j a further one,

is what it moves there. An orbit of contributions is s, how many rows are further ones, and the corners: of single rows
and of the others one, one of two, or any at random, in groups at random. With N = E sum_i m_i m_i^T and Q = E (sum_i
m_i) (sum_i m_i)^T the parts are

- the contrasts between groups, g - 1 copies of dimension d, second moment N - Q / g;
- the sum of the groups over g^1/2, one copy, second moment Q / g.

That bounds every strategy, and X = A on contrasts and D on the sum reaches it but for contributions that are not
listed: rows whose corners differ otherwise. Of a sum whose corners are +1 and -1 random orbits have Q = N, so that A
and D agree there and no signs matter.

Of many groups A is measured in each by itself: nothing that groups share is taken off, so that B has d^2 entries a
group and not (g d)^2 in all. What that loses, of the order of s / g, is in the gap; the longest contribution is
max tr A N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Floats, Ints
from dpsql.strategies.core.copies import spread
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.limits import SIZES
from dpsql.strategies.core.reduce import Block, cholesky
from dpsql.strategies.core.symmetric import Lines, Part, solve
from dpsql.workloads.families.contributions import Tied
from dpsql.workloads.families.matrix import Workload

_ORBITS = 60_000  # kinds of contributions that are listed
_PAIRS = 4  # corners of a group up to which one of two of them is tried


def parts_of_groups(
    factor: Floats,
    others: Floats,
    groups: Sequence[int],
    weights: Sequence[float],
    source: Sequence[int],
    most: Ints,
    times: Ints,
) -> tuple[Part, Lines] | None:
    """The parts for units that move the other queries by a column of ``others`` (w x N), or not at all.

    ``groups`` g, ``weights`` gamma of each class of alike groups; class i is of source t = ``source[i]``, of whose
    groups at most ``most[t]`` count a unit, ``times[t]`` times each. ``factor`` (w x w) of the other queries. None
    above 60,000 orbits.
    """
    limits = [min(int(most[t]), g) for t, g in zip(source, groups, strict=True)]
    if (others.shape[1] + 1) * prod(limit + 1 for limit in limits) > _ORBITS:
        return None
    plain = np.concatenate([np.zeros((others.shape[0], 1)), others], axis=1)
    sizes = np.stack(np.meshgrid(*(np.arange(k + 1) for k in limits), indexing="ij"), axis=0).reshape(len(groups), -1)
    for t, limit in enumerate(most):
        sizes = sizes[:, sizes[np.asarray(source) == t].sum(axis=0) <= limit]
    n, k = plain.shape[1], sizes.shape[1]
    often = np.asarray(times, dtype=np.float64)[np.asarray(source)][:, None]
    columns = np.concatenate([np.repeat(plain, k, axis=1), np.tile(often * sizes, n)], axis=0)[:, 1:]
    number, gamma = np.asarray(groups, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    squares = np.tile(often**2 * (sizes - sizes**2 / number[:, None]), n)[:, 1:]
    sums = np.diag(np.sqrt(gamma / number))
    root = np.asarray(scipy.linalg.block_diag(factor, sums)) if factor.size else sums
    return Part(1.0, root, columns.T), Lines(number - 1.0, np.sqrt(gamma), squares.T)


@dataclass(frozen=True, eq=False)
class TiedGroups:
    """``apart``: a piece of sensitivity 1 that measures every group by itself, its ``error``; none is below ``lower``.

    ``contrasts`` A and ``total`` D (d x d) of the optimum, under which no kind is longer than 1.
    """

    apart: Piece
    error: float
    lower: float
    groups: int
    contrasts: Floats
    total: Floats

    def joint(self, V: Workload, share: float = 1.0) -> Piece:
        """The optimum over all groups together (g d x g d), or with a ``share`` of what they have in common taken off.

        At 1 no kind is longer than 1.
        """
        g, each = self.groups, np.eye(self.groups)
        shared = share * (self.total - self.contrasts) / g
        metric = np.kron(each, self.contrasts) + np.kron(np.ones((g, g)), shared)
        gram = np.asarray(np.kron(each, self.apart.gram), dtype=np.float64)
        rows = self.apart.rows
        return Piece(rows, cholesky(metric), sparse.csc_array(V.moved(rows)), gram)


def plan_tied_groups(block: Block, tied: Tied, tolerance: float, deadline: float) -> TiedGroups | None:
    """The least error of one problem for each group, ``block`` with its copies; None where groups are not alike.

    The block is one of a workload whose contributions are ``tied.columns``. Cost: O(l n^4 d^2 + d^3) a step, and one
    pass over the contributions.
    """
    g, d = block.count, block.rank
    whole = spread(Piece(block.basis, np.eye(d), block.columns, block.gram), block.copies)
    corners = corners_of_group(whole, tied, g, d) if g > 1 and not block.solo else None
    if corners is None or 2 * min(tied.limit, g, SIZES) * len(_at_random(corners[0])) ** 2 > _ORBITS:
        return None
    second, sums = _kinds(*corners, tied, min(tied.limit, g))
    factor = cholesky(block.gram)
    parts = [Part(g - 1.0, factor, second - sums / g), Part(1.0, factor, sums / g)]
    found = solve(parts, 0.1 * tolerance, deadline)
    contrasts, total = found.metrics
    root = cholesky(contrasts / _farthest(contrasts, *corners, tied, min(tied.limit, g)))
    piece = spread(Piece(block.basis, root, block.columns, block.gram), block.copies)
    return TiedGroups(piece, piece.trace(root), found.lower, g, contrasts, total)


def corners_of_group(piece: Piece, tied: Tied, g: int, d: int) -> tuple[Floats, Floats] | None:
    """(f, r): what a first and a further row of each corner move of a group's ``piece`` (n x d), the same in all.

    None where a row moves two groups, where a group has no or several classes, or where groups differ.
    """
    moved = [sparse.csc_array(piece.rows @ columns) for columns in (tied.first, tied.more)]
    home = np.full(tied.label.size, -1)
    for held in moved:
        for reduce in (np.minimum, np.maximum):
            some = np.flatnonzero(np.diff(held.indptr))
            owner = reduce.reduceat(held.indices // d, held.indptr[some])
            if ((home[some] >= 0) & (home[some] != owner)).any():
                return None
            home[some] = owner
    order = np.argsort(home, kind="stable")
    n = home.size // g
    if (tied.label < 0).any() or home.min() < 0 or (np.bincount(home, minlength=g) != n).any():
        return None
    classes = tied.label[order].reshape(g, n)
    if (classes != classes[:, :1]).any() or np.unique(classes[:, 0]).size < g:
        return None
    found = []
    for held in moved:
        own = sparse.coo_array(held[:, order])
        dense = np.zeros((g, n, d))
        dense[own.col // n, own.col % n, own.row % d] = own.data
        if (dense != dense[:1]).any():
            return None
        found.append(dense[0])
    return found[0], found[1]


def _kinds(first: Floats, more: Floats, tied: Tied, limit: int) -> tuple[Floats, Floats]:
    """(N, Q) (kinds x d x d) of kinds of contributions, in all or in some numbers of groups."""
    most = tied.most
    found: list[tuple[Floats, Floats]] = []
    singles = _at_random(first)
    for s in sorted({round(size) for size in np.geomspace(1, limit, SIZES)}):
        for far in {0, most - s}:
            for heavy in _at_random(first + far * more):
                found += [_kind(heavy, single, s) for single in singles[: len(singles) if s > 1 else 1]]
    # Rows without a unit, which no count counts.
    found += [(np.outer(each, each), np.outer(each, each)) for each in most * more if tied.nobody]
    return np.array([second for second, _ in found]), np.array([sums for _, sums in found])


def _farthest(metric: Floats, first: Floats, more: Floats, tied: Tied, limit: int) -> float:
    """The largest squared norm of all contributions, exactly, where each group is measured by itself."""
    most = tied.most
    one, cross, further = (
        np.einsum("ni,ij,nj->n", a, metric, b) for a, b in ((first, first), (first, more), (more, more))
    )
    s = np.arange(1, limit + 1)
    left = (most - s)[:, None]
    heavy = np.maximum((one + 2 * left * cross + left**2 * further).max(axis=1), one.max())
    return float(max((heavy + (s - 1) * one.max()).max(), most**2 * further.max() * tied.nobody))


def _at_random(moves: Floats) -> list[tuple[Floats, Floats]]:
    """(mean, second moment) of each of ``moves`` (n x d), of any of them at random, of one of two if they are few."""
    n = len(moves)
    some = {(i, j) for i in range(n) for j in range(i + 1) if i == j or n <= _PAIRS} | {tuple(range(n))}
    held = [moves[list(one)] for one in sorted(some)]
    return [(one.mean(axis=0), np.einsum("ij,ik->jk", one, one) / len(one)) for one in held]


def _kind(heavy: tuple[Floats, Floats], single: tuple[Floats, Floats], s: int) -> tuple[Floats, Floats]:
    """(N, Q) of s independent moves, one like ``heavy`` and the others like ``single``, each (mean, second moment)."""
    second = heavy[1] + (s - 1) * single[1]
    cross = (s - 1) * np.outer(heavy[0], single[0])
    return second, second + cross + cross.T + (s - 1) * (s - 2) * np.outer(single[0], single[0])
