"""What no contribution exceeds, from the products K of the columns that it is a sum of, without a list.

For sums of one column of each of some classes (``Part``) and for units tied to the rows that they are counted by
(``Tied``) these bound c^T K c by what a row of K adds at most beside as many others: exactly where columns of a source
are alike. K is of whole numbers or floats, and so are the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Floats, Ints
from dpsql.workloads.families.contributions import Tied

KINDS = 4  # lengths of columns of one source that are told apart
ALL_PRODUCTS = 1_500  # columns between which all products are formed
PRODUCTS = 4_000  # columns between which some are
MEETINGS = 20_000_000  # sizes x corners that are tried


def reached(products: Array, parts: Sequence[tuple[Ints, int]]) -> Any:
    """The better of both bounds on the longest sum."""
    plain, kinds = reach(products, parts), reach_by_kinds(products, parts)
    return plain if kinds is None else min(plain, kinds)


def reach(products: Array, parts: Sequence[tuple[Ints, int]]) -> Any:
    """Never below the largest c^T K c, for K = ``products`` (N x N) and c with at most one column of each of ``most``
    classes, for every (labels of its columns, most) of ``parts``, which follow each other.

    c^T K c adds up, over the columns i of c, what the K_ij of its columns j come to: a row adds at most its own entry
    and the largest of as many other classes, and c at most the largest such rows.
    """
    diagonal = np.diag(products).copy()
    row = diagonal.copy()
    start = 0
    for label, most in parts:
        own = np.arange(start, start + label.size)
        best = of_classes(products[:, own], label)
        best[own, np.unique(label, return_inverse=True)[1]] = 0
        best = np.maximum(best, 0)
        some = np.sort(best, axis=1)[:, ::-1]
        row += some[:, :most].sum(axis=1)
        row[own] -= some[own, most - 1] if some.shape[1] >= most else 0
        start += label.size
    start, total = 0, 0
    for label, most in parts:
        held = np.maximum(of_classes(row[None, start : start + label.size], label)[0], 0)
        total += np.sort(held)[::-1][:most].sum()
        start += label.size
    return total


def reach_by_kinds(products: Array, parts: Sequence[tuple[Ints, int]]) -> Any:
    """``reach`` at each number of columns of each kind, which tells columns of one part apart by their length.

    A row then adds its own entry and of each kind the largest of as many other classes as there are. None for many.
    """
    kinds: list[tuple[Ints, Ints, int, int]] = []
    start = 0
    for number, (label, most) in enumerate(parts):
        own = np.arange(start, start + label.size)
        told = _lengths(np.diag(products)[own])
        for one in np.unique(told) if told.max(initial=0) < KINDS else []:
            kinds.append((own[told == one], label[told == one], most, number))
        if told.max(initial=0) >= KINDS:
            kinds.append((own, label, most, number))
        start += label.size
    limits = [min(most, np.unique(label).size) for _, label, most, _ in kinds]
    if prod(limit + 1 for limit in limits) * start > MEETINGS:
        return None
    sizes = np.stack(np.meshgrid(*(np.arange(k + 1) for k in limits), indexing="ij")).reshape(len(kinds), -1)
    for number, (_, most) in enumerate(parts):
        mine = [k for k, kind in enumerate(kinds) if kind[3] == number]
        sizes = sizes[:, sizes[mine].sum(axis=0) <= most]
    labels = np.concatenate([label for label, _ in parts])
    of_part = np.repeat(np.arange(len(parts)), [label.size for label, _ in parts])
    best = []
    for own, label, _, number in kinds:
        value = of_classes(products[:, own], label)
        # The class of the row itself comes last: it is taken only where no c has so many others.
        same = (labels[:, None] == np.unique(label)[None, :]) & (of_part == number)[:, None]
        value = np.where(same, value.min(axis=1, keepdims=True), value)
        ranked = np.sort(value, axis=1)[:, ::-1].cumsum(axis=1)
        best.append(np.concatenate([ranked[:, :1] * 0, ranked], axis=1))
    total = sizes[0] * (products[0, 0] * 0)
    for k, (own, label, _, _) in enumerate(kinds):
        row = np.diag(products)[own][:, None] + sum(
            best[j][own][:, np.maximum(sizes[j] - (j == k), 0)] for j in range(len(kinds))
        )
        ranked = np.sort(of_classes(row.T, label), axis=1)[:, ::-1].cumsum(axis=1)
        padded = np.concatenate([ranked[:, :1] * 0, ranked], axis=1)
        total = total + padded[np.arange(sizes.shape[1]), sizes[k]]
    return total.max()


def reach_tied(products: Array, tied: Tied) -> Any:
    """Never below the largest c^T K c over the sums c of ``tied``, for K = ``products`` (2c x 2c) over its columns.

    At each number s of classes, and for each corner of which the other rows are or none: a class adds at most its best
    row of K, that is its own entry, the s - 1 largest of other classes and twice the others' product. The class that
    has the others is one of the s. Or by ``_tied_by_corners``, if that is less. None for many.
    """
    label, most, c = tied.label, tied.most, tied.label.size
    inside, free = np.flatnonzero(label >= 0), np.flatnonzero(label < 0)
    if inside.size * c * tied.limit > MEETINGS:
        return None
    alone, cross = np.diag(products)[c:], products[np.ix_(inside, c + np.arange(c))]
    own = np.unique(label[inside], return_inverse=True)[1]
    together = products[np.ix_(inside, inside)]
    best = of_classes(together, own)
    best = np.where(own[:, None] == np.arange(best.shape[1])[None, :], best.min(axis=1, keepdims=True), best)
    others = np.sort(best, axis=1)[:, ::-1].cumsum(axis=1)
    total = max(most**2 * alone[tied.alone].max(initial=0), 0)
    for s in range(1, tied.limit + 1):
        row = np.diag(together) + (others[:, s - 2] if s > 1 else 0)
        total = max(total, np.sort(of_classes(row[None, :], own)[0])[::-1][:s].sum())
        left = most - s
        if not left:
            continue
        beside = row[:, None] + 2 * left * cross
        by_class = of_classes(beside.T, own)
        if free.size:
            ranked = np.sort(by_class[free], axis=1)[:, ::-1][:, :s].sum(axis=1)
            total = max(total, (ranked + left**2 * alone[free]).max())
        mine = by_class[inside]
        mine[np.arange(inside.size), own] = mine.min(axis=1)
        ranked = np.sort(mine, axis=1)[:, ::-1][:, : s - 1].sum(axis=1)
        total = max(total, (beside[np.arange(inside.size), inside] + ranked + left**2 * alone[inside]).max())
    return min(total, _tied_by_corners(products, tied, total))


def _tied_by_corners(products: Array, tied: Tied, fallback: Any) -> Any:
    """``reach_tied`` by how many classes have their first corner, their second and so on; ``fallback`` for many.

    A pair of corners adds at most the largest such product between two classes. Exact where classes are alike.
    """
    label, most, c = tied.label, tied.most, tied.label.size
    inside, free = np.flatnonzero(label >= 0), np.flatnonzero(label < 0)
    order = inside[np.argsort(label[inside], kind="stable")]
    place = np.arange(order.size) - np.searchsorted(label[order], label[order])
    corners = [order[place == t] for t in range(int(place.max(initial=-1)) + 1)]
    T = len(corners)
    if not 0 < T <= KINDS or (tied.limit + 1) ** T * T > MEETINGS:
        return fallback

    def largest(a: Ints, b: Ints, further: int) -> Any:
        between = products[np.ix_(a, b + further)]
        return np.where(label[a][:, None] == label[b][None, :], between.min(), between).max()

    one, more, cross = np.diag(products)[:c], np.diag(products)[c:], np.diagonal(products, c)
    n = np.stack(np.meshgrid(*(np.arange(tied.limit + 1),) * T, indexing="ij")).reshape(T, -1)
    n = n[:, (n.sum(axis=0) <= tied.limit) & (n.sum(axis=0) > 0)]
    n = n.astype(object) if products.dtype == object else n  # products that no word holds are not to meet words
    left = most - n.sum(axis=0)
    total = sum(n[t] * one[own].max() for t, own in enumerate(corners))
    for t, u in product(range(T), repeat=2):
        total = total + n[t] * (n[u] - (t == u)) * largest(corners[t], corners[u], 0)
    best = max(total.max(), most**2 * more[tied.alone].max(initial=0))
    for u, own in enumerate([*corners, free] if free.size else corners):
        beside = sum((n[t] - (t == u)) * largest(mine, own, c) for t, mine in enumerate(corners))
        beside = beside + cross[own].max() * (u < T)
        longer = total + 2 * left * beside + left**2 * more[own].max()
        best = max(best, longer[n[u] > 0].max() if u < T else longer.max())
    return best


def longest_sum(columns: Floats, label: Ints, most: int) -> float:
    """The squared L2 norm that no sum of columns of ``columns`` (p x N), of each of ``most`` classes one, exceeds.

    In floats what ``bounded_norm`` says of one source in integers.
    """
    norms = np.sort(of_classes(np.einsum("ij,ij->j", columns, columns)[None, :], label)[0])[::-1][:most]
    triangle = float(np.sqrt(norms).sum()) ** 2
    if label.size > PRODUCTS:
        return triangle
    if label.size <= ALL_PRODUCTS:
        return longest_by_products(columns.T @ columns, label, most)
    held = sparse.csr_array(columns)
    K = sparse.coo_array(held.T @ held) if held.nnz < 0.05 * columns.size else sparse.coo_array(columns.T @ columns)
    inside = float(K.data[label[K.row] != label[K.col]].max(initial=0.0))
    sizes = np.arange(1, norms.size + 1)
    return min(triangle, float((np.cumsum(norms) + sizes * (sizes - 1) * inside).max()))


def longest_by_products(K: Floats, label: Ints, most: int) -> float:
    """``longest_sum`` from the products K (N x N) of all columns."""
    norms = np.sort(of_classes(np.diag(K)[None, :], label)[0])[::-1][:most]
    return min(float(np.sqrt(np.maximum(norms, 0.0)).sum()) ** 2, float(reached(K, [(label, most)])))


def of_classes(values: Array, label: Ints) -> Array:
    """The largest of each class along the second axis, in the order of their labels."""
    order = np.argsort(label, kind="stable")
    return np.maximum.reduceat(values[:, order], np.flatnonzero(np.diff(label[order], prepend=-1)), axis=1)


def _lengths(values: Array) -> Ints:
    """The number of each entry among those that differ, floats to nine digits of the largest."""
    if values.dtype == np.float64:
        values = (values / max(float(np.abs(values).max(initial=0.0)), 1e-300)).round(9)
    return np.asarray(np.unique(values, return_inverse=True)[1].ravel())
