"""Finds the parts of a Gram matrix whose regions fall into a few classes of alike ones.

Exchanging two regions of one class leaves the Gram matrix G (d x d) as it is, and each region is a contribution. With
n_c regions in class c and S its normed indicators (d x k),

    G = sum_c g_c (I_c - 1 1^T / n_c) + S H S^T,

where H n^1/2 = 0 for the Gram matrix of an axis, which is centred (G 1 = 0). The parts are the means of classes, one
copy of dimension k, on which a region of class c is e_c / n_c^1/2, and the contrasts within each class, n_c - 1 copies
of dimension 1, of which a region has the squared length 1 - 1 / n_c. A step costs O(k^3) instead of O(d^3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Floats, Ints
from dpsql.common.numerics import DIGITS
from dpsql.strategies.core.ascent import Solution
from dpsql.strategies.core.symmetric import FLOOR, Lines, Part, solve

_ALIKE = 1e-11  # of the largest entry: how far entries of one class may be apart, by rounding
EXACTLY = 1e-14  # the same where entries are sums of the same terms


@dataclass(frozen=True, eq=False)
class Classes:
    """A Gram matrix by classes: ``label`` (d,), ``sizes`` n (k,), ``within`` g (k,), ``between`` H (k x k)."""

    label: Ints
    sizes: Floats
    within: Floats
    between: Floats


def classes_of(gram: Floats, tolerance: float = _ALIKE) -> Classes | None:
    """The classes of alike regions of a Gram matrix; None where they are more than half as many. Cost O(d^2).

    ``tolerance``: of the largest entry, how far entries of one class may be apart.
    """
    d = gram.shape[0]
    top = float(np.abs(gram).max())
    squares = gram * gram
    cubes = np.einsum("ij,ij->i", squares, gram)
    told = np.stack([np.diag(gram) / top, squares.sum(axis=1) / top**2, cubes / top**3], axis=1)
    _, first, label = np.unique(np.round(told, DIGITS), axis=0, return_index=True, return_inverse=True)
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
    if float(np.abs(whole - gram).max()) > tolerance * top:
        return None
    within = np.where(sizes > 1, diagonal - inside, 1.0)
    if within.min() <= 0:
        return None
    return Classes(label, sizes, within, means * np.sqrt(np.outer(sizes, sizes)))


def solve_classes(classes: Classes, tolerance: float, deadline: float, centred: bool = True) -> Solution:
    """The optimum over single regions, X (d x d), stopped at ``deadline`` (monotonic seconds).

    ``centred``: G 1 = 0, so that what is constant over all regions is no part of the problem.
    """
    n, each, H = classes.sizes, np.eye(classes.sizes.size), classes.between
    basis = scipy.linalg.qr(np.sqrt(n)[:, None])[0][:, 1:] if centred else each
    s, V = np.linalg.eigh(basis.T @ H @ basis)
    root = np.sqrt(np.maximum(s, max(float(s.max(initial=0.0)), 1e-300) * FLOOR))[:, None] * (basis @ V).T
    contrasts = Lines(n - 1.0, np.sqrt(classes.within), np.diag(1.0 - 1.0 / n))
    found = solve([Part(1.0, root, each / np.sqrt(n)), contrasts], tolerance, deadline, start=n / n.sum())
    between, alone = found.metrics
    inner = (between - np.diag(alone)) / np.sqrt(np.outer(n, n))
    X = inner[classes.label][:, classes.label]
    X[np.diag_indices_from(X)] += alone[classes.label]
    return Solution(np.asarray(X), found.lower, found.upper, found.steps, (found.weights / n)[classes.label])
