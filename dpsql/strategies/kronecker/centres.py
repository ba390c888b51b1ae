"""Where the axes of a structured batch are centred, for Gaussian noise.

Any vector v with 1^T v = 1 splits an axis: I = (I - v 1^T) + v 1^T. With one v for each axis a row w falls into parts
w_T, centred along T and multiplied by the v of the other axes, and measuring the residuals T apart costs

    (sum_T (e_T n_T)^1/2)^2,    e_T n_T = sum over blocks of weight^2 prod_(i in T) c_i prod_(i not in T) m_i,

m = ||M v||^2 of a block's factor M, and c = tr(M Q M^T) n with X of X v = 0 measured of the axis, Q its inverse on what
is orthogonal to 1, n = max_j X_jj = max_j (e_j - v)^T X (e_j - v). With v = 1/d, which suits points, prefixes pay for
totals that their residuals could have told: prefix x prefix over all pairs of ten columns of ten costs 8 % more than
with the best v, and over two columns 17 %.

Steps. Of a fixed v the best X is the optimum of ``dpsql.strategies.gaussian.optimal`` for M (I - v 1^T): with weights
mu on the regions K = U diag(mu) U^T, U = L (I - v 1^T), L^T L = the sum over factors of g_c M^T M / c, X = U^T K^-1/2
U, and mu rises where X_jj is above t = tr K^1/2. Of a fixed X the best v solves a linear system, since m and sum_j mu_j
X_jj are quadratic in v; g_m and g_c are the derivatives of sum_T (e_T n_T)^1/2 by log m and log c. Both are done for
all axes at once, half a step of v each time, and the best v that was met is kept: no step is trusted. An axis of many
regions takes most of the steps over runs of its neighbours, and a few over all of its regions from there.

The mu of the last v are weights of regions for ``dpsql.strategies.kronecker.structured_bound``, valid as any are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from math import log2, prod
from time import monotonic

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints
from dpsql.linalg.blocks import RowBlock, even
from dpsql.strategies.core.limits import ENOUGH, RIDGE
from dpsql.strategies.marginals.multipliers import Place
from dpsql.workloads.compile.structured import Structured, is_marginal

# Of the axes that get centres of their own, the smallest first, sum of d^3 up to which all steps take all regions, a
# few seconds; beyond, up to the second figure, most steps take runs of neighbours, whose own sum is held to the first.
_FEW_CUBES, _MOST_CUBES = 1e7, 1.6e8
_RUNS = 128
_POLISHED = 4  # steps over all regions of such axes, with moving centres and with steady ones
_MAX_TERMS = 1_000_000
_STEADY, _MOVING = 12, 80  # steps with the centres where they were, and with moving ones
_IDLE = 30  # moving ones without a gain, after which no more are made
_FEW = 32  # regions of which one may be left out
_FINENESS = {1: 64, 2: 32, 3: 16}  # integers of a centre over its regions, by the axes of a block that have one
_MOST_BITS, _COARSE = 20, 96  # of a block's centres together; the sum of a centre where they would have more
_FLOOR = 1e-10


@dataclass(frozen=True, eq=False)
class AxisCentre:
    """``integers`` n (d,): v = n / sum n, or None where all regions are alike. ``weights`` mu (d,) for a bound."""

    integers: Ints | None = field(repr=False)
    weights: Floats = field(repr=False)


AxisCentres = Mapping[tuple[int, int], AxisCentre]
"""By table and axis; axes without one have all regions alike."""


def centres_of(batch: Structured, by_place: Mapping[Place, Sequence[RowBlock]], deadline: float) -> AxisCentres:
    """The centres of a batch's axes; none where they save less than a thousandth, or are too large to be searched.

    ``by_place``: residuals with the blocks that have a part there. Cost: 100 steps of O(d^3) for each axis that some
    factor treats other than as groups, and of the blocks' residuals; none past ``deadline`` (monotonic seconds).
    """
    search = _Search.of(batch, by_place, _RUNS)
    if search is None:
        return {}
    for _ in range(_STEADY):
        search.step(moving=False)
    plain, idle = search.best, 0
    for axis in search.axes.values():
        axis.even_mu = axis.mu
    for number in range(_MOVING):
        if monotonic() > deadline:
            return {}
        before = search.best
        search.step(moving=True)
        idle = idle + 1 if search.best > before * (1.0 - 1e-5) else 0
        if idle == _IDLE and number >= _STEADY:
            break
    if search.best**2 > (1.0 - ENOUGH) * plain**2:
        return {key: AxisCentre(None, _short(axis.spread @ axis.even_mu)) for key, axis in search.axes.items()}
    steady = _STEADY
    if any(axis.spread.shape[0] > axis.d for axis in search.axes.values()):
        runs, search, steady = search, _Search.of(batch, by_place, None), _POLISHED
        assert search is not None  # noqa: S101 - as it was over runs
        for key, axis in search.axes.items():
            axis.begin(runs.axes[key])
        for _ in range(_POLISHED):
            if monotonic() > deadline:
                return {}
            search.step(moving=True)
    widest = max(sum((b.table, i) in search.axes for i in b.axes) for b in batch.blocks)
    fine = _FINENESS.get(widest, 8)
    bits = max(
        sum(log2(fine * search.axes[b.table, i].d) for i in b.axes if (b.table, i) in search.axes) for b in batch.blocks
    )
    whole = {
        key: axis.whole(fine if bits <= _MOST_BITS else min(fine, max(1, round(_COARSE / axis.d))))
        for key, axis in search.axes.items()
    }
    for key, axis in search.axes.items():
        axis.v = whole[key] / float(whole[key].sum())
    for _ in range(steady):
        search.step(moving=False)
    return {key: AxisCentre(whole[key], _short(axis.mu)) for key, axis in search.axes.items()}


def _nearly_even(matrix: Csr) -> bool:
    """Whether each region is in a row of its own, but for a few of many: then even centres cost hardly more."""
    rows, d = matrix.shape
    return is_marginal(matrix) or (
        rows == matrix.nnz >= d - d / _FEW
        and len(np.unique(matrix.indices)) == rows
        and bool((np.abs(matrix.data) == abs(matrix.data[0])).all())
    )


def _short(weights: Floats) -> Floats:
    """Weights in five digits: columns alike then have the same ones, and parts of the bound are found once."""
    return np.array([float(f"{weight:.4e}") for weight in weights.tolist()])


def _close(one: Floats, other: Floats) -> bool:
    """Whether derivatives are those of axes alike, which rounding alone tells apart."""
    return bool((np.abs(one - other) <= 1e-12 * np.abs(other)).all())


class _Axis:
    """One axis: the Gram matrices of its factors, its centre and weights, and what they come to.

    ``m`` and ``c`` (factors,) with the largest X_jj for n, ``smooth`` with t instead. ``spread`` (regions x d): the
    regions of each run, in equal shares, where d of them stand for more regions.
    """

    def __init__(self, regions: int, most: int | None) -> None:
        d = regions if most is None else min(regions, most)
        self.d = d
        # The two regions at either end, NULL among them, stay alone.
        run = np.arange(regions)
        if d < regions:
            run[2:-2] = 2 + (np.arange(regions - 4) * (d - 4)) // (regions - 4)
            run[-2:] = d - 2, d - 1
        self.spread: Csr = sparse.csr_array(
            (1.0 / np.bincount(run)[run], (np.arange(regions), run)), shape=(regions, d)
        )
        self.grams: list[Floats] = []
        self.rows: list[Floats] = []  # of which these are the products
        self.entries: list[int] = []  # of each factor's m; that of its c follows
        self.v = self.mu = self.even_mu = self.best_v = np.full(d, 1.0 / d)
        self.m: Floats
        self.c: Floats
        self.smooth: Floats
        self.t: float
        self.root_X: Floats
        self.used_mu: Floats

    def takes(self, matrix: Csr) -> None:
        """A factor's rows (k x regions)."""
        rows = (matrix @ self.spread).toarray().astype(np.float64)
        self.grams.append(rows.T @ rows)
        self.rows.append(rows if len(rows) <= self.d else np.asarray(scipy.linalg.qr(rows, mode="r")[0][: self.d]))

    def begin(self, runs: _Axis) -> None:
        """From the best centre and the weights over runs of the regions."""
        self.v, self.mu = runs.spread @ runs.best_v, runs.spread @ runs.mu
        self.best_v = self.v

    @cached_property
    def kind(self) -> bytes:
        """Columns alike have one."""
        return b"".join(G.tobytes() for G in self.grams)

    def stands(self, other: _Axis) -> bool:
        """Whether it is where another axis of its kind is."""
        mine, theirs = (self.v, self.mu, self.smooth), (other.v, other.mu, other.smooth)
        return all(one is held or np.array_equal(one, held) for one, held in zip(mine, theirs, strict=True))

    def follow(self, other: _Axis) -> None:
        """Take over what ``solve`` found for an axis alike."""
        self.t, self.m, self.c, self.smooth = other.t, other.m, other.c, other.smooth
        self.root_X, self.used_mu, self.mu = other.root_X, other.used_mu, other.mu

    def start(self) -> None:
        """As if what was measured were the axis itself, centred."""
        self.m = np.array([float(self.v @ G @ self.v) for G in self.grams])
        self.c = self.smooth = np.array([float(np.trace(G)) for G in self.grams]) - self.m * self.d

    def solve(self, g_c: Floats) -> None:
        """m and c of the present v and mu, X found for the derivatives ``g_c`` by log c; then mu moves on."""
        gram = self._summed(g_c / np.maximum(self.smooth, 1e-300))
        gram[np.diag_indices(self.d)] += RIDGE * float(np.trace(gram)) / self.d
        pull, root_mu = gram @ self.v, np.sqrt(self.mu)
        gram -= pull[:, None] + (pull - float(pull @ self.v))  # of rows w - w v 1
        s, V = np.linalg.eigh(root_mu[:, None] * gram * root_mu)
        root, V = np.sqrt(np.maximum(s[1:], max(float(s[-1]), 1e-300) * 1e-15)), V[:, 1:]
        self.t = float(root.sum())
        fourth = np.sqrt(root)
        half = (V * fourth).T / root_mu  # half^T half = X
        q = np.einsum("ij,ij->j", half, half)
        back = root_mu[:, None] * (V / fourth)  # back back^T = Q on such rows
        means = [rows @ self.v for rows in self.rows]
        held = [(rows - mean[:, None]) @ back for rows, mean in zip(self.rows, means, strict=True)]
        traces = np.array([float(np.einsum("ij,ij->", part, part)) for part in held])
        self.m = np.array([float(mean @ mean) for mean in means])
        self.c, self.smooth = traces * float(q.max()), traces * self.t
        self.root_X = half[:, :-1] - half[:, -1:]
        self.used_mu = self.mu
        self.mu = np.maximum(self.mu * q / self.t, _FLOOR)
        self.mu = self.mu / float(self.mu.sum())

    def move(self, g_m: Floats, g_c: Floats) -> None:
        """Half a step of v to where the derivatives by it vanish, for X as ``solve`` left it."""
        H = self.root_X  # H^T H = E^T X E with E = [I; -1^T], as a step E z leaves the sum of v
        pull = self._summed(g_m / np.maximum(self.m, 1e-300))
        hold = float(g_c.sum()) / self.t  # a c falls as n does, and n is t = sum mu q
        pulled = pull @ self.v
        left = pull[:-1] - pull[-1]
        left = left[:, :-1] - left[:, -1:] + hold * (H.T @ H)
        right = hold * (H.T @ (H @ (self.used_mu - self.v)[:-1])) - (pulled[:-1] - pulled[-1])
        left[np.diag_indices(self.d - 1)] += 1e-14 * float(np.trace(left))
        z = scipy.linalg.solve(left, right, assume_a="pos", check_finite=False)
        self.v = self.v + 0.5 * np.append(z, -z.sum())

    def _summed(self, weights: Floats) -> Floats:
        out = np.zeros((self.d, self.d))
        for weight, G in zip(weights.tolist(), self.grams, strict=True):
            out += weight * G
        return out

    def whole(self, fineness: int) -> Ints:
        """The best centre in whole numbers."""
        found = np.rint(self.best_v * (fineness * self.d)).astype(np.int64)
        return np.asarray(found // np.gcd.reduce(found))


@dataclass(eq=False)
class _Search:
    """All axes together. A term is weight^2 times an m or c of each factor of a block, in a residual."""

    axes: dict[tuple[int, int], _Axis]
    terms: Csr  # (terms x entries): the m and c that each is the product of
    scale: Floats  # (terms,) what else it is the product of
    place: Ints  # (terms,) the number of its residual
    best: float = np.inf

    @classmethod
    def of(cls, batch: Structured, by_place: Mapping[Place, Sequence[RowBlock]], runs: int | None) -> _Search | None:
        """None where no axis may have a centre of its own, or the terms are too many.

        ``runs``: so many stand for the regions of an axis that has more; None for all regions.
        """
        if sum(len(held) for held in by_place.values()) > _MAX_TERMS:
            return None
        factors = {id(f): (b.table, f) for b in batch.blocks for f in b.factors}
        apart = {(table, axis) for table, f in factors.values() if len(f.axes) > 1 for axis in f.axes}
        sizes: dict[tuple[int, int], int] = {}
        for table, f in factors.values():
            for axis in f.axes:
                d = batch.sizes[table][axis]
                small = 1 < d < _MOST_CUBES ** (1 / 3) and not _nearly_even(f.matrix)
                if (table, axis) not in apart and small:
                    sizes[table, axis] = d
        cubes, taken = 0, 0
        for key, d in sorted(sizes.items(), key=lambda item: item[1]):
            cubes, taken = cubes + d**3, taken + min(d, _RUNS) ** 3
            if cubes > _FEW_CUBES and (cubes > _MOST_CUBES or taken > _FEW_CUBES):
                del sizes[key]
        few = sum(d**3 for d in sizes.values()) <= _FEW_CUBES
        axes = {key: _Axis(d, None if few else runs) for key, d in sizes.items()}
        if not axes:
            return None
        entry: dict[int, int] = {}
        rows: dict[tuple[object, ...], int] = {}  # factors of other keys may have the same
        for number, (table, f) in factors.items():
            held = axes.get((table, f.axes[0])) if len(f.axes) == 1 else None
            if held is not None:
                matrix = f.matrix
                named = (table, f.axes, *(part.tobytes() for part in (matrix.indptr, matrix.indices, matrix.data)))
                if named not in rows:
                    held.takes(matrix)
                    rows[named] = 2 * len(rows)
                    held.entries.append(rows[named])
                entry[number] = rows[named]
        columns: list[int] = []
        ends, scale, place = [0], [], []
        fixed: dict[tuple[int, tuple[int, ...]], float] = {}
        for at, ((table, _, T), blocks) in enumerate(by_place.items()):
            means = even(batch.sizes[table])
            for block in blocks:
                value = (block.weight * block.coefficient) ** 2
                for f in block.factors:
                    inside = tuple(axis for axis in f.axes if axis in T)
                    if id(f) in entry:
                        columns.append(entry[id(f)] + len(inside))
                        continue
                    centred = id(f), inside
                    if centred not in fixed:  # measured by ``Centre``
                        fixed[centred] = f.length(inside, means) * prod(1.0 - means[axis][0] for axis in inside)
                    value *= fixed[centred]
                ends.append(len(columns))
                scale.append(value)
                place.append(at)
        for own in axes.values():
            own.start()
        shape = (len(scale), 2 * len(rows))
        terms = sparse.csr_array(
            (np.ones(len(columns)), np.array(columns, dtype=np.int64), np.array(ends)), shape=shape
        )
        return cls(axes, terms, np.array(scale), np.array(place, dtype=np.int64))

    def step(self, *, moving: bool) -> None:
        """One step of all axes; ``best`` is the least sum_T (e_T n_T)^1/2 that was met."""
        _, g = self._slopes(smooth=True)
        solved: dict[bytes, list[tuple[_Axis, Floats, _Axis]]] = {}
        for axis in self.axes.values():
            g_c, before = g[np.array(axis.entries) + 1], copy(axis)
            twins = solved.setdefault(axis.kind, [])
            twin = next((held for held, h, old in twins if _close(g_c, h) and before.stands(old)), None)
            if twin is None:
                axis.solve(g_c)
                twins.append((axis, g_c, before))
            else:
                axis.follow(twin)
        total, _ = self._slopes(smooth=False)
        if total < self.best:
            self.best = total
            for axis in self.axes.values():
                axis.best_v = axis.v
        if not moving:
            return
        _, g = self._slopes(smooth=True)
        moved: dict[int, list[tuple[Floats, Floats]]] = {}  # axes that follow one share what it solved
        for axis in self.axes.values():
            at = np.array(axis.entries)
            slopes, alike = np.concatenate([g[at], g[at + 1]]), moved.setdefault(id(axis.root_X), [])
            v = next((v for others, v in alike if _close(slopes, others)), None)
            if v is None:
                axis.move(g[at], g[at + 1])
                alike.append((slopes, axis.v))
            else:
                axis.v = v

    def _slopes(self, *, smooth: bool) -> tuple[float, Floats]:
        """sum_T (e_T n_T)^1/2 and its derivatives by the logarithm of every m and c."""
        logs = np.zeros(self.terms.shape[1])
        for axis in self.axes.values():
            at = np.array(axis.entries)
            logs[at] = np.log(np.maximum(axis.m, 1e-300))
            logs[at + 1] = np.log(np.maximum(axis.smooth if smooth else axis.c, 1e-300))
        values = self.scale * np.exp(self.terms @ logs)
        root = np.sqrt(np.bincount(self.place, weights=values))
        share = values / np.maximum(root, 1e-300)[self.place]
        return float(root.sum()), np.asarray(0.5 * (self.terms.T @ share))
