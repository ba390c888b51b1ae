"""Differences between halves of groups, and halves of these, for pure epsilon and a unit that may be in many groups.

Measured is the sum of all g groups and, down a binary tree, at every node the difference between its two halves,
balanced so that all rows h_n are orthogonal (Haar's wavelets, for any g). With weights w_n on the rows

    error = L(w)^2 sum_n k_n / w_n^2,   k_n = h_n^T G h_n / |h_n|^4,   L(w) = max over S of sum_n w_n |h_n 1_S|

over the sets S of at most ``most`` groups: a unit in all groups of a node moves no difference inside it, and one that
moves every difference between pairs moves none of the wider ones. L is a maximum of linear functions, so that the least
error is a convex problem in w. With d_Sn = |h_n 1_S| and weights lambda on sets, its dual is

    max over lambda of (sum_n k_n^1/3 m_n^2/3)^3,   m_n = sum_S lambda_S d_Sn,   w_n = (k_n / m_n)^1/3,

for the least of sum k / w^2 where sum m w <= 1 is at w^3 = k / (t m). Sets are added as they turn out to be the worst
of the weights so far (``dpsql.workloads.compile.nested``, exact for such rows). Nodes that look alike share a weight.

g groups that weigh the same, a unit in all of them: 0.26 g^3 at g = 16, 0.21 g^3 at 50, where single groups have g^3.
For a unit in less than half of the groups single groups are better.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dpsql.common.arrays import Floats, Ints
from dpsql.common.numerics import ROUNDING
from dpsql.errors import InternalError
from dpsql.strategies.core.ascent import ascend
from dpsql.workloads.compile.nested import largest_sums

_ROUNDS = 40
_ADDED = 16  # sizes of sets that a round adds
_STEPS = 500
_DIGITS = 3


class _State:
    """A state of the ascent: t^2 is the dual's value."""

    def __init__(self, shares: Floats, changes: Floats, lam: Floats) -> None:
        each = np.maximum(lam @ changes, 1e-300)
        self.weights = np.cbrt(shares / each)
        total = float(np.cbrt(shares * each * each).sum())
        self.t = total**1.5
        self.q = (changes @ self.weights) * (self.t / total)

    def upper(self) -> float:
        return float(self.q.max()) ** 2


def halves(
    gram: Floats, most: int, tolerance: float, deadline: float, rival: float = np.inf
) -> tuple[Floats, float] | None:
    """(A (g x g) that no set of at most ``most`` groups moves by more than 1 in L1, its error tr(gram (A^T A)^-1)).

    ``deadline``: monotonic seconds, after which the best weights so far are taken. None where no weights come below
    the error ``rival``: by the dual at sets of ``most`` groups as far from each other as can be, moved along.
    """
    rows = differences(gram.shape[0])
    square = np.einsum("ij,ij->i", rows, rows)
    shares = np.einsum("ij,ij->i", rows @ gram, rows) / square**2
    shares = np.maximum(shares, ROUNDING * shares.max())
    kind = _kinds(rows, shares)
    of_kind = np.bincount(kind, weights=shares).astype(np.float64)
    if _spread_bound(rows, most, kind, of_kind) > rival:
        return None
    weights = np.cbrt(of_kind)
    changes = np.zeros((0, of_kind.size))
    best, least = np.inf, rows
    for _ in range(_ROUNDS):
        A = rows * weights[kind][:, None]
        held = largest_sums(A, most)
        if held is None:
            raise InternalError("strategy: differences between halves of groups are not nested")
        far = float(held.best.max())
        error = far**2 * float((of_kind / weights**2).sum())
        if error < best:
            best, least = error, A / far
        new = []
        for size in np.argsort(-held.best, kind="stable")[:_ADDED].tolist():
            inside = np.zeros(rows.shape[1])
            inside[list(held.attaining(size))] = 1.0
            new.append(np.bincount(kind, weights=abs(rows @ inside), minlength=of_kind.size))
        changes = np.unique(np.concatenate([changes, new]), axis=0)
        changes = changes[changes.any(axis=1)]
        start = np.full(len(changes), 1.0 / len(changes))
        state, _, _ = ascend(partial(_State, of_kind, changes), start, 0.1 * tolerance, deadline, _STEPS)
        if best <= (1.0 + tolerance) * state.t**2 or not np.isfinite(state.weights).all():
            break
        weights = state.weights
    return least, best


def _spread_bound(rows: Floats, most: int, kind: Ints, shares: Floats) -> float:
    """The dual's value at equal weights on the sets i, i + g / most, ..., the more of them the fewer groups they have.

    They move the differences between wide halves least, and each of the pairs as often as any.
    """
    groups = rows.shape[1]
    most = min(most, groups)
    places = np.arange(most) * groups // most
    sets = (np.arange(0, -(-groups // most))[:, None] + places[None, :]) % groups
    moved = np.abs(rows[:, sets].sum(axis=2)).mean(axis=1)
    return float(np.cbrt(shares * np.bincount(kind, weights=moved) ** 2).sum()) ** 3


def differences(groups: int) -> Floats:
    """The rows h_n (g x g), orthogonal: the sum of all groups and a difference at each node of a tree.

    Halves are as even as they can be with a power of two on the left: patterns then meet in fewer nodes.
    """
    out, row = np.zeros((groups, groups)), 1
    out[0] = 1.0
    nodes = [(0, groups)]
    while nodes:
        start, size = nodes.pop()
        if size < 2:
            continue
        left = 1 << ((size - 1).bit_length() - 1)
        out[row, start : start + left] = 2.0 * (size - left) / size
        out[row, start + left : start + size] = -2.0 * left / size
        nodes += [(start, left), (start + left, size - left)]
        row += 1
    return out


def _kinds(rows: Floats, shares: Floats) -> Ints:
    """Numbers of kinds: rows of one shape and share, to three digits, are alike."""
    told = np.stack([rows.max(axis=1), rows.min(axis=1), np.count_nonzero(rows, axis=1), _rounded(shares)], axis=1)
    return np.asarray(np.unique(told.round(12), axis=0, return_inverse=True)[1].ravel())


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.{_DIGITS}g}") for value in values / values.max()])
