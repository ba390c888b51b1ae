"""Union of parts: the queries on each set of attributes by a strategy of their own.

A batch of marginals over several attributes has a product of all axes as its cells, yet the
queries of one group tell only few of them apart. Each group is planned on its own merged cells and
lifted; under L1 the sensitivities of the parts add up, so part g measured at share alpha_g costs
E_g / alpha_g^2, least for alpha_g proportional to E_g^(1/3). Shares are then refined on the error
of the consistent least squares over the union, which uses all parts for every query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Matrix
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import Basis, choose_basis, coordinates
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.forms import dense, same_entries
from dpsql.strategies.core.axes import group_rows
from dpsql.strategies.core.blocks import whitened
from dpsql.strategies.core.integer import Piece, check_entries
from dpsql.strategies.core.limits import PAIRED_ROWS
from dpsql.strategies.core.reduce import inverse_of, merge_cells, reduced_basis
from dpsql.strategies.core.simple import image_columns
from dpsql.workloads.families.matrix import OF_ROWS, Workload


def split(W: Workload) -> tuple[Workload, ...]:
    """The sub-workloads of each group, or of each part of a stack; W itself where there are none.

    Rows without ``groups`` are grouped by the axis that they seem to share.
    """
    if isinstance(W.inner, algebra.Blocks):
        out, at = [], 0
        for part, weight in zip(W.inner.parts, W.inner.weights, strict=True):
            rows = sparse.csr_array(W.span[at : at + part.shape[1]])
            at += part.shape[1]
            out.append(Workload(rows, algebra.Blocks((part,), (weight,)), W.contributions, None, W.name))
        return tuple(out)
    if not isinstance(W.inner, algebra.Diagonal):
        return (W,)
    labels = W.groups
    if labels is None:
        found_groups = group_rows(sparse.csr_array(W.span))
        labels = np.zeros(W.shape[0], dtype=np.int64)
        for g, members in enumerate(found_groups or []):
            labels[members] = g
    scale = W.inner.scale
    each = [np.flatnonzero((labels == label) & (scale != 0)) for label in np.unique(labels)]
    return tuple(W.some_rows(mine, scale[mine]) for mine in each if mine.size)


def union_piece(
    W: Workload,
    parts: tuple[Workload, ...],
    plan: Callable[[Workload], tuple[tuple[Piece, ...], float]],
    noise: str,
) -> tuple[Piece, float]:
    """One piece for all of W: each part by ``plan`` (pieces of sensitivity 1 and their error), then joined.

    Returns the piece and its error with shares that add up to 1 (for Gaussian noise, whose squares do).
    """
    planned: list[tuple[tuple[Piece, ...], float]] = []
    lifted: list[Csr] = []
    for part in parts:
        # A part tells few cells apart: plan it over its own classes of cells and lift its rows.
        merged, classes = merge_cells(part)
        planned.append(plan(merged))
        lifted.extend(sparse.csr_array(p.rows @ classes) for p in planned[-1][0])
    return joined_piece(W, planned, lifted, noise)


def joined_piece(
    W: Workload, planned: Sequence[tuple[tuple[Piece, ...], float]], lifted: Sequence[Csr], noise: str
) -> tuple[Piece, float]:
    """One piece for all of W of the ``planned`` parts, whose pieces measure the rows ``lifted``, with its error.

    As ``union_piece``.
    """
    rows = sparse.csr_array(sparse.vstack(lifted, format="csr"))
    owner = np.concatenate([np.full(len(pieces), g) for g, (pieces, _) in enumerate(planned)])
    pieces = [p for pieces, _ in planned for p in pieces]
    check_entries(pieces, joined=True)
    roots = [np.diag(p.root) if p.root.ndim == 1 else p.root for p in pieces]
    roots = [np.asarray(np.kron(np.eye(p.copies), root)) for p, root in zip(pieces, roots, strict=True)]
    basis, coords, held = _placed(W, rows)
    gram = Basis(basis, held).gram(W.inner)
    # Errors E_g / alpha_g^2 under sum alpha = 1 (L1) or sum alpha^2 = 1 (L2).
    squares = noise == "gaussian"
    share = np.array([max(error, 1e-300) ** (1 / 4 if squares else 1 / 3) for _, error in planned])
    share /= np.sqrt((share**2).sum()) if squares else share.sum()
    sizes = [p.copies * (p.blocks or (1,) * p.root.shape[0]) for p in pieces]
    blocks = tuple(size for each in sizes for size in each) if any(p.blocks for p in pieces) else ()
    # Of independent rows each part has its own, and its queries no others, so that these shares are the best.
    if coords is not None and gram.shape[0] <= PAIRED_ROWS:
        metrics = np.zeros((len(planned), *gram.shape))
        at = 0
        for g, root, each in zip(owner, roots, sizes, strict=True):
            moved = whitened(root @ coords[at : at + root.shape[1]], each)
            metrics[g] += moved.T @ moved
            at += root.shape[1]
        share = _refine(share, metrics, gram, squares)
    joined = scipy.linalg.block_diag(*[share[g] * root for g, root in zip(owner, roots, strict=True)])
    piece = Piece(rows, joined, image_columns(rows, W), gram, coords, blocks=blocks, placed=(basis, held))
    return piece, piece.trace(piece.root)


def _placed(W: Workload, rows: Csr) -> tuple[Csr, Matrix | None, Matrix]:
    """(A basis of ``rows``, their coordinates in it, those of the queries of W).

    The basis is that of W where rows are queries. Where ``rows`` are independent, they are the basis, and have None for
    coordinates.
    """
    known, (u, q) = reduced_basis(W), (rows.shape[0], W.span.shape[0])
    if known is not None:
        label = distinct_columns(sparse.csr_array(sparse.vstack([W.span, rows], format="csr").T)).label
        query = np.full(int(label.max(initial=0)) + 1, -1)
        query[label[:q]] = np.arange(q)
        if (label[q:] >= 0).all() and (query[label[q:]] >= 0).all():
            coords = dense(known.coords)
            own = coords[query[label[q:]]]
            order = np.argmax(own, axis=1)
            if u == np.count_nonzero(own) == np.unique(order).size == own.shape[1] and own.max(axis=1).min() == 1.0:
                return rows, None, coords[:, order]  # the basis in another order
            return known.rows, own, coords
    shared = W._cache.setdefault(OF_ROWS, {})
    last: tuple[Csr, tuple[Csr, Matrix | None, Matrix]] | None = shared.get("placed")  # of another weighing, perhaps
    if last is None or not same_entries(last[0], rows):
        frame = choose_basis(rows, algebra.Diagonal(np.ones(u)))
        own = (rows, None) if frame.rows.shape[0] == u else (frame.rows, dense(frame.coords))
        last = shared["placed"] = rows, (*own, coordinates(W.span, own[0]))
    return last[1]


def total_of(W: Workload) -> Workload:
    """The one query that adds up all columns that W sees: the separating query of Li and Miklau 2011, Thm 4.2."""
    seen = (abs(W.span).sum(axis=0) > 0).astype(np.int64)
    return Workload.from_rows(np.asarray(seen)[None, :], [1.0], contributions=W.contributions, name="total")


def _refine(share: Floats, metrics: Floats, gram: Floats, squares: bool) -> Floats:
    """Shares of least joint error tr(gram (sum alpha_g^2 M_g)^-1), sum alpha = 1 (or of squares)."""
    if share.size == 1:
        return share
    try:
        if share.size == 2:
            return _of_two(metrics, gram, squares)
        with np.errstate(over="raise", invalid="raise"):  # as where a sum of metrics is nearly singular
            found = scipy.optimize.minimize(
                log_error, np.log(share), (metrics, gram, squares), jac=True, method="L-BFGS-B", options={"maxiter": 40}
            )
    except (scipy.linalg.LinAlgError, FloatingPointError):
        return share
    return _normal(np.asarray(found.x), squares)


def _of_two(metrics: Floats, gram: Floats, squares: bool) -> Floats:
    """``_refine`` of two parts: in the basis that makes both metrics diagonal the error is a sum of fractions."""
    L = scipy.linalg.cholesky(metrics[0] + metrics[1], lower=True)
    halved = scipy.linalg.solve_triangular(L, metrics[0], lower=True)
    first, V = scipy.linalg.eigh(scipy.linalg.solve_triangular(L, halved.T, lower=True), driver="evd")
    turned = scipy.linalg.solve_triangular(L, V, lower=True, trans="T")
    asked = np.einsum("ij,ij->j", turned, gram @ turned)
    first = np.clip(first, 0.0, 1.0)

    def error(log: float) -> float:
        alpha = _normal(np.array([log, 0.0]), squares)
        return float(np.log(np.sum(asked / (alpha[0] ** 2 * first + alpha[1] ** 2 * (1.0 - first)))))

    found = scipy.optimize.minimize_scalar(error, bounds=(-12.0, 12.0), method="bounded", options={"xatol": 1e-6})
    return _normal(np.array([found.x, 0.0]), squares)


def log_error(logs: Floats, metrics: Floats, gram: Floats, squares: bool) -> tuple[float, Floats]:
    """log of the joint error at the shares exp(logs), scaled to sum 1 (of squares), and its gradient in ``logs``."""
    alpha = _normal(logs, squares)
    flat = metrics.reshape(alpha.size, -1)
    inverse = inverse_of((alpha**2 @ flat).reshape(gram.shape))
    right = inverse @ gram
    value = float(np.trace(right))
    slope = -2.0 * alpha * alpha * (flat @ (right @ inverse).ravel()) / value
    weight = alpha * alpha if squares else alpha
    return float(np.log(value)), slope - weight * float(slope.sum())


def _normal(logs: Floats, squares: bool) -> Floats:
    alpha = np.exp(logs - logs.max())
    return np.asarray(alpha / (np.sqrt((alpha * alpha).sum()) if squares else alpha.sum()))
