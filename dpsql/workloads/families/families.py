"""Workload families of the papers, and how they are combined: products, stacks, weights.

Sizes are numbers of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import hypot, prod
from operator import index
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from dpsql.common.arguments import LARGEST, all_of, one_of, sizes, taking
from dpsql.common.arrays import Array, Floats
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.exact import max_abs
from dpsql.linalg.forms import MATRIX_CAP, dense, same_entries, sparse_kron
from dpsql.linalg.forms import kron as dense_kron
from dpsql.linalg.modular import identity_csr
from dpsql.workloads.families.marginals import Marginals, spelled
from dpsql.workloads.families.matrix import Workload, from_matrix

__all__ = ["all_predicate", "all_range", "from_matrix", "identity", "kron", "prefix", "stack", "total", "weighted"]


def check_size(value: int, what: str = "n") -> int:
    """A number of cells or queries: a whole number of at least 1, else DataError."""
    try:
        size = index(value)
    except TypeError:
        size = 0
    if size < 1:
        raise DataError(f"workload: {what} must be a whole number of at least 1")
    if size > LARGEST:
        raise DataError(f"workload: {what} is at most {LARGEST} where every cell is listed; take fewer, or marginals")
    return size


def identity(n: int) -> Workload:
    """Every cell count: W = I (n x n)."""
    size = check_size(n)
    return Workload(identity_csr(size), algebra.Diagonal(np.ones(size)), name=f"identity({size})")


def total(n: int) -> Workload:
    """The one query that counts everything: a row of n ones."""
    size = check_size(n)
    row = sparse.csr_array(np.ones((1, size), dtype=np.int64))
    return Workload(row, algebra.Diagonal(np.ones(1)), name=f"total({size})")


def prefix(n: int) -> Workload:
    """The n prefix counts x_1 + ... + x_i (the cumulative distribution)."""
    size = check_size(n)
    return Workload(identity_csr(size), algebra.Prefixes(size), name=f"prefix({size})")


@taking(shape=sizes())
def all_range(shape: int | Sequence[int]) -> Workload:
    """All ranges over ``shape`` (Li and Miklau 2013, Ex. 2.10); over several axes all boxes.

    m = prod n_i (n_i + 1) / 2 queries over prod n_i cells, kept by their Gram matrix.
    """
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if not sizes:
        raise DataError("workload: a shape needs at least one axis")
    axes = []
    for value in sizes:
        size = check_size(value, "each size of a shape")
        axes.append(Workload(identity_csr(size), algebra.Ranges(size), name=f"all_range({size})"))
    return axes[0] if len(axes) == 1 else kron(*axes, name=f"all_range{tuple(int(s) for s in sizes)}")


def all_predicate(n: int) -> Workload:
    """All 2^n predicate counts over n cells (Li and Miklau 2013, Ex. 2.11), kept by their Gram matrix.

    W^T W = 2^(n-2) (I + J): half of the predicates hold a cell, a quarter of them a pair. Above 512
    cells the workload is the one meant times 2^-(n/2 - 1), so W^T W = I + J, and its ``log2_scale`` is
    n/2 - 1: errors and bounds of the workload meant are 4^log2_scale times larger.
    """
    size = check_size(n)
    scale = 0.0 if size <= 512 else size / 2 - 1  # 2^512 and its square are well inside float range
    return Workload(identity_csr(size), algebra.Predicates(size, scale), name=f"all_predicate({size})")


@overload
def kron(first: Workload, /, *parts: Workload, name: str = "") -> Workload: ...
@overload
def kron(first: Marginals, /, *parts: Marginals, name: str = "") -> Marginals: ...
@overload
def kron(*parts: Workload | Marginals, name: str = "") -> Workload | Marginals: ...
@taking(parts=all_of(Workload, Marginals))
def kron(*parts: Workload | Marginals, name: str = "") -> Workload | Marginals:
    """The Kronecker product: every combination of one query of each part.

    One record is in one cell of each part, so parts must not carry ``contributions``
    (DataError). A product of Marginals is Marginals over all their attributes, in the order of the parts: its rows
    run by pairs of sets, not by the rows of the first part. Marginals beside other workloads are written out
    (DataError above 2^27 entries).
    """
    cubes = [p.as_marginals for p in parts if p.as_marginals is not None]
    if cubes and len(cubes) == len(parts):
        return cubes[0] if len(cubes) == 1 else reduce(_product, cubes).named(name)
    return _kron(tuple(p.explicit() for p in parts), name)


def _kron(parts: tuple[Workload, ...], name: str) -> Workload:
    check_plain(parts, "kron")
    if len(parts) == 1:
        return parts[0]
    if prod(max_abs(p.span) for p in parts) >= 2**62:
        if prod(p.shape[0] * p.shape[1] for p in parts) > MATRIX_CAP:
            raise DataError("workload: a product of several large float matrices; round them to integers first")
        return from_matrix(_entries(parts), name=name or " x ".join(p.name or "W" for p in parts))
    span = reduce(sparse_kron, (p.span for p in parts))
    flat = tuple(f for p in parts for f in (p.factors or (p,)))
    exact = None
    if any(p.exact is not None for p in parts) and prod(p.shape[0] * p.shape[1] for p in parts) <= 2**24:
        exact = _entries(parts)
    label = name or " x ".join(p.name or "W" for p in parts)
    return Workload(span, algebra.Kron(tuple(p.inner for p in parts)), name=label, factors=flat, exact=exact)


@overload
def stack(first: Workload, /, *parts: Workload, name: str = "") -> Workload: ...
@overload
def stack(first: Marginals, /, *parts: Marginals, name: str = "") -> Workload | Marginals: ...
@overload
def stack(*parts: Workload | Marginals, name: str = "") -> Workload | Marginals: ...
@taking(parts=all_of(Workload, Marginals))
def stack(*parts: Workload | Marginals, name: str = "") -> Workload | Marginals:
    """All queries of all parts over the same n columns; each part becomes a group of its own.

    A stack of Marginals over attributes of the same sizes is Marginals, their sets in order of appearance; a set
    that several parts name is there once, with its weights added up in squares: every error is the same, with fewer
    rows. Marginals beside other workloads are written out (DataError above 2^27 entries).
    Raises DataError where the numbers of columns, the contributions or the ``log2_scale`` differ.
    """
    cubes = [p.as_marginals for p in parts if p.as_marginals is not None]
    if len(cubes) == len(parts) and len({p.sizes for p in cubes}) == 1:
        squares: dict[tuple[int, ...], float] = {}
        for cube in cubes:
            for S, w in zip(cube.sets, cube.weights, strict=True):
                squares[S] = hypot(squares.get(S, 0.0), w)
        label = name or " + ".join(p.name or "W" for p in cubes)
        return Marginals(cubes[0].sizes, tuple(squares), tuple(squares.values()), label)
    if parts and any(p.shape[1] != parts[0].shape[1] for p in parts):
        raise DataError(
            f"workload: parts of {', '.join(spelled(p.shape[1]) for p in parts)} columns cannot be stacked; "
            "give equal numbers"
        )
    return _stack(tuple(p.explicit() for p in parts), name)


def _stack(parts: tuple[Workload, ...], name: str) -> Workload:
    if not parts:
        raise DataError("workload: stack needs at least one part")
    if len({p.log2_scale for p in parts}) > 1:
        raise DataError("workload: these parts are kept at different scales (log2_scale) and cannot be stacked")
    extreme = parts[0].contributions
    for p in parts[1:]:
        same = p.contributions is extreme or (
            p.contributions is not None and extreme is not None and same_entries(p.contributions, extreme)
        )
        if not same:
            raise DataError("workload: stacked parts need the same contributions")
    span = sparse.csr_array(sparse.vstack([p.span for p in parts], format="csr"))
    groups = None
    if sum(p.shape[0] for p in parts) <= MATRIX_CAP:
        groups = np.repeat(np.arange(len(parts)), [p.shape[0] for p in parts])
    label = name or " + ".join(p.name or "W" for p in parts)
    inner: algebra.Inner = algebra.Blocks(tuple(p.inner for p in parts), (1.0,) * len(parts))
    if all(isinstance(p.inner, algebra.Diagonal) for p in parts):
        inner = algebra.Diagonal(np.concatenate([p.scale for p in parts]))
    exact = None
    if any(p.exact is not None for p in parts):
        exact = np.vstack([p.matrix() for p in parts])
    return Workload(span, inner, extreme, groups, label, exact=exact)


@overload
def weighted(W: Workload, weights: ArrayLike) -> Workload: ...
@overload
def weighted(W: Marginals, weights: ArrayLike) -> Workload | Marginals: ...
@taking(W=one_of(Workload, Marginals))
def weighted(W: Workload | Marginals, weights: ArrayLike) -> Workload | Marginals:
    """diag(weights) @ W: a weight of 4 makes that query's squared error count 16 times.

    ``weights`` is one number or one number a query. Marginals stay Marginals under a weight above zero that is the
    same on all queries of a set; under others they are written out. Raises DataError for wrong shapes, zeros
    or non-finite numbers; a weight a query needs the matrix of W, at most 2^27 entries.
    """
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DataError("workload: weights must be real numbers") from None
    if not (np.isfinite(values).all() and (values != 0).all()):
        raise DataError("workload: weights must be finite and not zero; leave a query out instead")
    m = W.shape[0]
    if values.ndim and values.shape != (m,):
        raise DataError(f"workload: {values.size} weights for {m} queries; give one number or one a query")
    label = f"weighted({W.name or 'W'})"
    cube = W.as_marginals
    factors = None if cube is None else _by_set(cube, values)
    if cube is not None and factors is not None:
        each = tuple(w * f for w, f in zip(cube.weights, factors, strict=True))
        return Marginals(cube.sizes, cube.sets, each, label)
    W = W.explicit()
    exact = None if W.exact is None else W.exact * (values[:, None] if values.ndim else values)
    inner: algebra.Inner
    if isinstance(W.inner, algebra.Diagonal):
        inner = algebra.Diagonal(W.inner.scale * values)
    elif values.ndim == 0:
        inner = algebra.Blocks((W.inner,), (float(values),))
    else:
        inner = algebra.Dense(dense(W.inner.matrix()) * values[:, None])
    return Workload(W.span, inner, W.contributions, W.groups, label, exact=exact)


def _entries(parts: Sequence[Workload]) -> Floats:
    return reduce(dense_kron, (p.matrix() for p in parts), np.ones((1, 1)))


def _product(a: Marginals, b: Marginals) -> Marginals:
    """The Kronecker product of marginals: the marginals on every union of a set of each."""
    k = len(a.sizes)
    pairs = [
        (S, T, v * w) for S, v in zip(a.sets, a.weights, strict=True) for T, w in zip(b.sets, b.weights, strict=True)
    ]
    sets = tuple((*S, *(i + k for i in T)) for S, T, _ in pairs)
    label = f"{a.name or 'W'} x {b.name or 'W'}"
    return Marginals((*a.sizes, *b.sizes), sets, tuple(w for _, _, w in pairs), label)


def _by_set(W: Marginals, values: Array) -> list[float] | None:
    """One factor above zero for each set, where the weights (one, or one a query) are alike within every set."""
    if values.ndim == 0:
        return [float(values)] * len(W.sets) if values > 0 else None
    found, at = [], 0
    for S in W.sets:
        count = prod(W.sizes[i] for i in S)
        part = values[at : at + count]
        at += count
        if part[0] <= 0 or (part != part[0]).any():
            return None
        found.append(float(part[0]))
    return found


def check_plain(parts: Sequence[Workload], what: str) -> None:
    """Refuse no parts at all, and parts with contributions."""
    if not parts:
        raise DataError(f"workload: {what} needs at least one part")
    if any(p.contributions is not None for p in parts):
        raise DataError(f"workload: {what} takes workloads of counts only; these carry contributions")
