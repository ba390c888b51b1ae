"""Pure noise in blocks: which rows are measured together, and how they are turned.

A block of m rows whose entries lie within [-1, 1] costs epsilon once and (m + 1)(m + 2) / 6 times the variance of a
Laplace measurement (``dpsql.strategies.core.blocks``); one by one m rows that a unit moves together cost m^2 times. So
rows that the same units move belong together, rows that are never moved together apart.

What lies between 0 and 1, as the counts of overlapping filters, fills half of the interval. The *lift* measures
2 w - 1 for each row w and -1 beside them, 1 the row of ones over all that a unit can change: m + 1 rows of the block,
whose entries are all +-1. The difference u_i = z_i - z_0 of two answers then has the noise of the norm whose ball is
the hull of {0, 1}^m and {0, -1}^m, N(u) = max u+ + max u-, and all m of them m (m + 2)(m + 3) / 12 times the variance
of one Laplace measurement, against m^3 one by one. Proof: z is uniform in {-r..r}^(m + 1) given r, u comes from max(0,
2r + 1 - N(u)) of its points, and the sum over r of q^r max(0, 2r + 1 - N(u)) falls by q where N grows by 2.

Starts are the rows as they are and lifted, in one block, in blocks joined two by two while the error falls, and all of
these turned by descent (log of the error, with maxima smoothed in stages, as in ``dpsql.strategies.pure.row_mixing``).
Not convex: a heuristic, judged by its computed error. A start is turned only where its blocks could be worth it
(``least_of``), for the blocks stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints
from dpsql.linalg.forms import quick
from dpsql.linalg.long_calls import eigh
from dpsql.strategies.core.blocks import deviations, factor
from dpsql.strategies.core.reduce import Block
from dpsql.strategies.pure.row_mixing import MOST_COLUMNS

_STAGES = ((8, 0.3, 20.0), (20, 0.1, 60.0), (60, 0.03, 200.0), (200, 0.01, 600.0))
_JOINED = 48  # rows up to which blocks are joined two by two
_POLISHED = 3  # starts that are turned
_SHORT = 0.5  # of the largest norm: what rows that are turned again leave out
_FEWEST, _MOST_STEPS = 5, 120  # steps of a stage; of the fewest none is expected to gain a factor of more than ...
_HOPEFUL = 3.0
_MEMORY = 15


@dataclass(frozen=True, eq=False)
class Draft:
    """Rows C (p x v, p >= v) in coordinates of the problem, those of a block one after the other; ``error`` of them."""

    C: Floats
    blocks: tuple[int, ...]
    error: float


def norms(Z: Floats, blocks: Sequence[int]) -> Floats:
    """The sum over blocks of rows of the largest absolute entry, for each column of Z."""
    starts = np.concatenate([[0], np.cumsum(blocks)[:-1]])
    return np.asarray(np.maximum.reduceat(np.abs(Z), starts, axis=0).sum(axis=0))


def lifted(Y: Floats, total: Floats | None) -> Floats:
    """Rows (in coordinates of Y, the last that of the row of ones unless ``total`` has its own) moved to [-1, 1].

    ``total`` (v,): the row of ones in coordinates of Y, None where Y (v + 1 x N) has it as its last row.
    """
    if total is None:
        total = np.eye(Y.shape[0])[-1]
    rows = np.eye(Y.shape[0])
    low, high = Y.min(axis=1), Y.max(axis=1)
    rows = rows - np.outer((low + high) / 2.0, total)
    rows[int(np.argmax(np.abs(total)))] = total  # of the rows that add up to it one is known from the others
    return rows


def error_of(gram: Floats, C: Floats, Y: Floats, blocks: Sequence[int]) -> float:
    """(largest norm of a column of C Y)^2 tr(gram M^-1), M = C^T C with rows over the deviations of their noise."""
    even = C / deviations(blocks)[:, None]
    try:
        R = scipy.linalg.qr(even, mode="r", check_finite=False)[0][: C.shape[1]]
        if np.abs(np.diag(R)).min() <= 1e-12 * np.abs(np.diag(R)).max():
            return np.inf
        inverse = scipy.linalg.solve_triangular(R, np.eye(R.shape[0]), check_finite=False)
    except (scipy.linalg.LinAlgError, ValueError):
        return np.inf
    return float(norms(C @ Y, blocks).max()) ** 2 * float(np.sum((gram @ inverse) * inverse))


def least_of(gram: Floats, Y: Floats) -> float:
    """A lower bound on the error of all rows for Gaussian noise: (tr K^1/2)^2, K = R Y Y^T R^T / N, R^T R = gram.

    Rows C in blocks of m_k have no error below min_k (m_k + 1)(m_k + 2) / (6 m_k) times it. Proof: C over the square
    roots of the sizes of its blocks has columns whose 2-norm is at most their sum of largest entries, and its rows'
    noise has that many times the variance which Gaussian noise for columns of such a norm would have.
    """
    S = Y @ Y.T / Y.shape[1]
    values, vectors = eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return float(np.sqrt(np.maximum(scipy.linalg.eigvalsh(root.T @ S @ root), 0.0)).sum()) ** 2


def too_large(block: Block, rival: float) -> bool:
    """Can nothing that ``search`` finds for a block come below the error ``rival``? Cost: two products of v x v x N.

    Rows too many to be joined two by two are all in one block, whose error is at least (v + 1)(v + 2) / (6 v) times
    that for Gaussian noise (``least_of``), which is at least (tr K)^3 / tr K^2 (Hoelder).
    """
    if block.rank <= _JOINED:
        return False
    Y = quick(block.columns.astype(np.float64))
    K = block.gram @ (Y @ Y.T) / Y.shape[1]  # which has the eigenvalues of K
    least = float(np.trace(K)) ** 3 / float(np.einsum("ij,ji->", K, K))
    return least * factor(block.rank) / block.rank > rival


def least_in_blocks(gram: Floats, Y: Floats) -> float:
    """A lower bound on what ``search`` finds; 0 where that takes longer to know than a short search."""
    v = Y.shape[0]
    return least_of(gram, Y) * factor(v) / v if v > _JOINED else 0.0


def search(
    gram: Floats, Y: Floats, starts: Sequence[Floats], deadline: float, work: float, rival: float = np.inf
) -> Draft:
    """The best rows and blocks from square ``starts`` (v x v), steps limited by ``work`` multiplications.

    ``gram`` (v x v) of the queries, ``Y`` (v x N) what a unit can change, in the same coordinates. What cannot come
    below the error ``rival`` is not searched for.
    """
    drafts: list[Draft] = []
    for start in starts:
        reach = np.abs(start @ Y).max(axis=1)
        if not reach.min() > 0:
            continue
        C = start / reach[:, None]
        whole = (C.shape[0],)
        drafts.append(Draft(C, whole, error_of(gram, C, Y, whole)))
        if 2 < C.shape[0] <= _JOINED and monotonic() < deadline:
            drafts.append(_joined(gram, C, Y, (1,) * C.shape[0]))
    drafts.sort(key=lambda draft: draft.error)
    best = drafts[0]
    p, N = Y.shape[0] + 1, Y.shape[1]
    steps = int(np.clip(work / (_POLISHED * len(_STAGES) * (6.0 * p * p * N + 12.0 * p**3)), _FEWEST, _MOST_STEPS))
    least = least_of(gram, Y)
    for draft in drafts[:_POLISHED]:
        if monotonic() > deadline:
            break
        goal = min(rival, best.error)
        hopeless = steps == _FEWEST and draft.error > _HOPEFUL * goal
        if hopeless or least * min(factor(m) / m for m in draft.blocks) >= goal:
            continue
        turned = _turned(gram, Y, draft, steps, deadline, goal)
        best = turned if turned.error < best.error else best
    return best


def turned_on(gram: Floats, Y: Floats, C: Floats, blocks: tuple[int, ...], deadline: float) -> Draft:
    """Rows that were found for parts of the problem, turned for the whole of it, in their blocks or in some of these
    joined, whichever has less error before.

    Changes of less than half the largest norm have no share in the smoothed largest one and are left out; every stage
    is judged by all.
    """
    draft = Draft(C, blocks, error_of(gram, C, Y, blocks))
    if C.shape[0] == C.shape[1] <= _JOINED:
        starts = np.concatenate([[0], np.cumsum(blocks)[:-1]])
        reach = np.maximum.reduceat(np.abs(C @ Y).max(axis=1), starts)
        joined = _joined(gram, C / np.repeat(reach, blocks)[:, None], Y, blocks)
        draft = min(draft, joined, key=lambda one: one.error)
    reach = norms(draft.C @ Y, draft.blocks)
    return _turned(gram, Y, draft, _MOST_STEPS, deadline, np.inf, Y[:, reach >= _SHORT * reach.max()])


def _joined(gram: Floats, C: Floats, Y: Floats, blocks: tuple[int, ...]) -> Draft:
    """Rows in blocks of reach 1: two blocks become one while the error falls, shares of epsilon by the cube root.

    A square C answers by its inverse, so that rows of the total weight e_i cost sum_k f_k e_k / share_k^2: for a column
    that reaches all of every block, least at shares proportional to (f_k e_k)^(1/3).
    """
    P = scipy.linalg.inv(C)
    weight = np.einsum("ij,ij->j", P, gram @ P)
    weight = np.maximum(weight, 1e-3 * weight.mean())  # a row that no query needs is still measured
    reach = np.abs(C @ Y)
    ends = np.cumsum(blocks).tolist()
    groups = [list(range(end - size, end)) for end, size in zip(ends, blocks, strict=True)]
    tops = np.stack([reach[group].max(axis=0) for group in groups])

    def costs(groups: Sequence[Sequence[int]]) -> Floats:
        return np.array([factor(len(g)) * float(weight[list(g)].sum()) for g in groups])

    cost = costs(groups)
    best = float((np.cbrt(cost) @ tops).max()) ** 2 * float(np.cbrt(cost).sum())  # a cost over its squared share
    while len(groups) > 1:
        shares = np.cbrt(cost)
        own, found = shares[:, None] * tops, (np.inf, 0, 0)
        total = own.sum(axis=0)
        for i in range(len(groups) - 1):
            # Two blocks leave and one joins, so that a pair takes as long as one column of sums.
            more = costs([groups[i] + other for other in groups[i + 1 :]])
            sums = total - own[i] - own[i + 1 :] + np.cbrt(more)[:, None] * np.maximum(tops[i], tops[i + 1 :])
            rest = shares.sum() - shares[i] - shares[i + 1 :] + np.cbrt(more)
            errors = sums.max(axis=1) ** 2 * rest
            j = int(np.argmin(errors))
            found = min(found, (float(errors[j]), i, i + 1 + j))
        if found[0] >= best * (1.0 - 1e-9):
            break
        best, i, j = found
        groups[i], tops[i] = groups[i] + groups[j], np.maximum(tops[i], tops[j])
        del groups[j]
        tops, cost = np.delete(tops, j, axis=0), costs(groups)
    share = [(factor(len(g)) * float(weight[g].sum())) ** (1.0 / 3.0) for g in groups]
    order = np.concatenate(groups).astype(np.int64)
    blocks = tuple(len(g) for g in groups)
    rows = C[order] * np.repeat(share, blocks)[:, None]
    return Draft(rows, blocks, error_of(gram, rows, Y, blocks))


class _Objective:
    """log tr(gram M^-1) + 2 log of the smoothed largest norm, and its gradient.

    The largest entry of a block is smoothed to a mean of power ``inner``, |z| of a single row to (z^2 + mu^2)^1/2 with
    mu ``soft`` times the mean of |z|, the largest column to a mean of power ``outer``.
    """

    def __init__(self, gram: Floats, Y: Floats, blocks: Sequence[int], inner: int, soft: float, outer: float) -> None:
        self._gram, self._Y = gram, Y
        self._starts: Ints = np.concatenate([[0], np.cumsum(blocks)[:-1]]).astype(np.int64)
        self._sizes = np.array(blocks)
        self._owner: Ints = np.repeat(np.arange(self._sizes.size), blocks)
        self._single = np.repeat(self._sizes == 1, blocks)
        self._any_single = bool(self._single.any())
        self._precision = 1.0 / deviations(blocks) ** 2
        self._inner, self._soft, self._outer = inner, soft, outer

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        C = flat.reshape(-1, self._gram.shape[0])
        try:
            P = np.linalg.inv((C.T * self._precision) @ C)
        except np.linalg.LinAlgError:
            return 1e300, np.zeros_like(flat)
        left = P @ self._gram
        trace = float(np.trace(left))
        if not trace > 0:
            return 1e300, np.zeros_like(flat)
        grad = -2.0 * (self._precision[:, None] * C) @ (left @ P) / trace
        Z = C @ self._Y
        size = np.abs(Z)
        top = np.maximum(np.maximum.reduceat(size, self._starts, axis=0), 1e-300)
        ratio = size / self._spread(top)
        powers = _power(ratio, self._inner - 1)
        ratio *= powers
        mean = np.maximum(np.add.reduceat(ratio, self._starts, axis=0), 1e-300)  # a column may be 0 here
        held = top * mean ** (1.0 / self._inner)
        slope = np.copysign(powers * self._spread(mean ** (1.0 / self._inner - 1.0)), Z)
        if self._any_single:
            mu = self._soft * float(size.mean())
            alone = np.sqrt(Z[self._single] ** 2 + mu * mu)
            held[self._sizes == 1] = alone
            slope[self._single] = Z[self._single] / alone
        sums = np.maximum(held.sum(axis=0), 1e-200)
        most = float(sums.max())
        weight = (sums / most) ** self._outer
        total = float(weight.sum())
        value = np.log(trace) + 2.0 * (np.log(most) + np.log(total) / self._outer)
        share = weight / (total * sums)
        slope *= share
        if self._any_single:
            slope += self._soft / Z.size * float(((mu / alone) * share).sum()) * np.sign(Z)
        grad += 2.0 * slope @ self._Y.T
        return float(value), grad.ravel()

    def _spread(self, values: Floats) -> Floats:
        """The values of each block for each of its rows."""
        return values if len(values) == 1 else values[self._owner]


def _power(base: Floats, exponent: int) -> Floats:
    """``base`` to a whole power from 1 on, by squares: a tenth of the time of the power of floats."""
    found = base if exponent & 1 else None
    while exponent := exponent >> 1:
        base = base * base
        if exponent & 1:
            found = base if found is None else found * base
    assert found is not None  # noqa: S101 - an exponent has a bit
    return found


def _turned(
    gram: Floats, Y: Floats, draft: Draft, steps: int, deadline: float, goal: float, seen: Floats | None = None
) -> Draft:
    """``draft`` after descent in stages of growing sharpness over ``seen`` of the columns, the best of all stages.

    Stages that take all their steps gain less and less: where those that are left and one more, each gaining as much as
    the last, would not come below ``goal``, it ends.
    """
    few = MOST_COLUMNS * Y.shape[0]
    columns = np.arange(Y.shape[1]) if seen is None and Y.shape[1] <= 2 * few else np.zeros(0, dtype=np.int64)

    def watch(xk: Floats) -> None:
        if monotonic() > deadline:
            raise StopIteration

    best, C, before = draft, draft.C, draft.error
    for left, (inner, soft, outer) in zip(range(len(_STAGES) - 1, -1, -1), _STAGES, strict=True):
        if monotonic() > deadline:
            break
        if seen is None and columns.size < Y.shape[1]:  # the longest, whatever they were before
            order = np.argsort(-norms(C @ Y, draft.blocks), kind="stable")
            columns = np.union1d(columns, order[:few])
        held = Y[:, columns] if seen is None else seen
        found = scipy.optimize.minimize(
            _Objective(gram, held, draft.blocks, inner, soft, outer),
            C.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=watch,
            options={"maxiter": steps, "maxcor": _MEMORY},
        )
        C = np.asarray(found.x).reshape(C.shape)
        if not np.isfinite(C).all():
            break
        error = error_of(gram, C, Y, draft.blocks)
        if error < best.error:
            best = Draft(C, draft.blocks, error)
        # The first may lose what sharper ones gain, and what ended early says nothing of those to come.
        told = found.nit >= steps and (C is best.C or left < len(_STAGES) - 1)
        if told and error * min(error / before, 1.0) ** (left + 1) > goal:
            break
        C, before = best.C, error
    return best
