"""The least error over regions that fall into a few classes of alike ones: the problem of the classes.

Where exchanging two regions of one class leaves the Gram matrix G (d x d) as it is, so does it the set of optimal X
(``dpsql.strategies.gaussian.optimal``), which is convex: one of them is invariant, and equal weights within a class
prove it. With n_c regions in class c and S its normed indicators (d x k),

    G = sum_c g_c (I_c - 1 1^T / n_c) + S H S^T,

where H n^1/2 = 0 for the Gram matrix of an axis, which is centred (G 1 = 0). For weights lambda, constant on classes,
(Lambda^1/2 G Lambda^1/2)^1/2 has (lambda_c g_c)^1/2 on the n_c - 1 contrasts within class c, and the root of a matrix
of order k on the rest. A step costs O(k^3) instead of O(d^3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Floats, Ints
from dpsql.strategies.core.ascent import ascend

_ALIKE = 1e-11  # of the largest entry: how far entries of one class may be apart, by rounding
EXACTLY = 1e-14  # the same where entries are sums of the same terms
_DIGITS = 9
_FLOOR = 1e-15


@dataclass(frozen=True, eq=False)
class Classes:
    """A Gram matrix by classes: ``label`` (d,), ``sizes`` n (k,), ``within`` g (k,), ``between`` H (k x k)."""

    label: Ints
    sizes: Floats
    within: Floats
    between: Floats


def classes_of(gram: Floats, apart: float = _ALIKE) -> Classes | None:
    """The classes of alike regions of a Gram matrix; None where they are more than half as many. Cost O(d^2).

    ``apart``: of the largest entry, how far entries of one class may be apart.
    """
    d = gram.shape[0]
    top = float(np.abs(gram).max())
    squares = gram * gram
    cubes = np.einsum("ij,ij->i", squares, gram)
    told = np.stack([np.diag(gram) / top, squares.sum(axis=1) / top**2, cubes / top**3], axis=1)
    _, first, label = np.unique(np.round(told, _DIGITS), axis=0, return_index=True, return_inverse=True)
    label = label.ravel()
    k = first.size
    if 2 * k > d:
        return None
    sizes = np.bincount(label, minlength=k).astype(np.float64)
    held = sparse.csr_array((np.ones(d), (label, np.arange(d))), shape=(k, d))
    totals = np.asarray(held @ (held @ gram).T).T
    diagonal = np.bincount(label, weights=np.diag(gram), minlength=k) / sizes
    inside = (np.diag(totals) - sizes * diagonal) / np.maximum(sizes * (sizes - 1), 1.0)
    means = totals / np.outer(sizes, sizes)
    entries = means.copy()
    np.fill_diagonal(entries, inside)
    whole = entries[label][:, label]
    np.fill_diagonal(whole, diagonal[label])
    if float(np.abs(whole - gram).max()) > apart * top:
        return None
    within = np.where(sizes > 1, diagonal - inside, 1.0)
    if within.min() <= 0:
        return None
    return Classes(label, sizes, within, means * np.sqrt(np.outer(sizes, sizes)))


class _Weighted:
    """A state of the ascent: ``weights`` (k,) are those of whole classes."""

    def __init__(self, held: Classes, weights: Floats, centred: bool) -> None:
        self._held = held
        n, lam = held.sizes, weights / held.sizes
        root = np.sqrt(lam)
        middle = root[:, None] * held.between * root
        if centred:
            # What is constant over all regions is no part of the problem: an orthonormal basis without it.
            rest = scipy.linalg.qr((np.sqrt(n) / root)[:, None])[0][:, 1:]
            s, V = np.linalg.eigh(rest.T @ middle @ rest)
            V = rest @ V
        else:
            s, V = np.linalg.eigh(middle)
        s = np.maximum(s, max(float(s.max(initial=0.0)), 1e-300) * _FLOOR)
        self._between = (V * np.sqrt(s)) @ V.T / np.outer(root, root)
        self._within = np.sqrt(held.within / lam)
        self.t = float(((n - 1) * np.sqrt(lam * held.within)).sum() + np.sqrt(s).sum())
        self.q = ((n - 1) * self._within + np.diag(self._between)) / n

    def upper(self) -> float:
        return self.t * float(self.q.max())

    def metric(self) -> Floats:
        """X (d x d), before it is scaled to sensitivity 1."""
        held = self._held
        inner = (self._between - np.diag(self._within)) / np.sqrt(np.outer(held.sizes, held.sizes))
        X = inner[held.label][:, held.label]
        X[np.diag_indices_from(X)] += self._within[held.label]
        return np.asarray(X)


def solve_classes(
    held: Classes, tolerance: float, deadline: float, centred: bool = True
) -> tuple[Floats, float, float, Floats, int]:
    """(X of unit largest diagonal, lower, upper bound on the least tr(G X^+), lambda (d,), steps).

    ``optimal.solve`` for classes, stopped at ``deadline`` (monotonic seconds). ``centred``: G 1 = 0.
    """
    start = held.sizes / held.sizes.sum()
    state, weights, steps = ascend(lambda lam: _Weighted(held, lam, centred), start, tolerance, deadline, 2000)
    lam = (weights / held.sizes)[held.label]
    return state.metric() / state.q.max(), state.t**2, state.upper(), lam, steps
