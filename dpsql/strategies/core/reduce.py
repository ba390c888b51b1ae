"""From a workload to independent small problems: blocks, bases, merged columns.

Equal columns are merged and columns of zeros dropped; queries that share no cell (and no
record) are planned apart, each at full sensitivity, since one record is in one of them
only: with G and the diagonal constraint both block diagonal the least error is the sum of
the blocks' least errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints, Matrix, Sparse
from dpsql.common.chain import Step
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import Basis, choose_basis
from dpsql.linalg.columns import Distinct, columns_at, disjoint_blocks, distinct_columns
from dpsql.linalg.forms import MATRIX_CAP, RANK_CAP
from dpsql.strategies.core.copies import Copies, copies_of
from dpsql.workloads.families.matrix import OF_ROWS, Workload

_FEW = 16  # problems that are reduced whatever the time: a plan is worth more than a refusal


@dataclass(frozen=True, eq=False)
class Block:
    """One problem: choose M >= 0 (v x v) so that tr(gram M^-1) max_j y_j^T M y_j is least.

    ``basis`` (v x n) integer rows; ``gram`` (v x v) of the queries in basis coordinates;
    ``columns`` (v x N) distinct columns, up to sign, of basis @ contributions; ``places`` (N,) their
    column numbers in ``contributions`` (in W where that is None).
    A block with ``gram`` of one dimension is a bundle of single rows that share no column:
    each is a problem of its own with that entry. A block with ``copies`` is the first of problems that are alike:
    the others have the same answer over cells of their own. ``cells``: the distinct columns of the basis, and
    ``coords`` (q x v) all queries in it, as floats know them, where these are known.
    """

    basis: Csr
    gram: Floats
    columns: Sparse
    places: NDArray[np.int64]
    copies: Copies | None = None
    cells: Distinct | None = None
    coords: Matrix | None = None

    @property
    def count(self) -> int:
        """How many problems it stands for, a bundle being one."""
        return 1 if self.copies is None else self.copies.count

    @property
    def rank(self) -> int:
        """v, the number of basis rows."""
        return int(self.basis.shape[0])

    @property
    def solo(self) -> bool:
        """Is this a bundle of single rows?"""
        return self.gram.ndim == 1

    def factor(self) -> Floats:
        """R (v x v), upper triangular, R^T R = gram."""
        return cholesky(self.gram)


def cholesky(M: Floats) -> Floats:
    """Upper triangular C with C^T C = M for a positive definite M, repaired at rounding level."""
    try:
        return np.asarray(scipy.linalg.cholesky(M))
    except scipy.linalg.LinAlgError:
        s, V = scipy.linalg.eigh(M, driver="evd")
        root = np.sqrt(np.maximum(s, s[-1] * 1e-14))[:, None] * V.T
        R = scipy.linalg.qr(root, mode="r")[0][: M.shape[0]]
        return np.asarray(R * np.where(np.diag(R) < 0, -1.0, 1.0)[:, None])


def reduce_workload(W: Workload, deadline: float = np.inf, last: float = np.inf) -> tuple[Block, ...]:
    """The independent problems of W, those that are alike as one, in a fixed order.

    Kept with W: a batch that two kinds of noise could pay for is reduced once. Raises DataError above rank 6000 in one
    block, where ``deadline`` (monotonic seconds) passes before all of them are reduced, and where the choice of rows
    of one of them, or its Gram matrix, would end after ``last``.
    """
    if "blocks" not in W._cache:
        W._cache["blocks"] = _reduce(W, deadline, last)
    return W._cache["blocks"]  # type: ignore[no-any-return]


def reductions(W: Workload) -> tuple[Step, ...]:
    """What ``reduce_workload`` makes of W, as steps; of sources that are planned in teams, that they are.

    Cost: the reduction, which planning kept with W, but for a strategy that was read from a file.
    """
    if W.units is not None and not W.units.listable:
        text = "what one unit can change is not listed; sources are planned in teams, under an upper bound"
        return (Step("sources", False, text),)
    found, blocks = list[Step](), reduce_workload(W)
    single = sum(block.basis.shape[0] for block in blocks if block.solo)
    problems = sum(block.count for block in blocks if not block.solo)
    if single or problems > 1:
        parts = [f"{problems:,} independent problems"] * bool(problems)
        parts += [f"{single:,} queries that share no cell with others"] * bool(single)
        found.append(Step("split", True, " and ".join(parts)))
    if any(block.count > 1 for block in blocks):
        different = sum(not block.solo for block in blocks)
        found.append(Step("copies", True, f"problems that are alike are planned once, which leaves {different:,}"))
    return tuple(found)


def reduced_basis(W: Workload) -> Basis | None:
    """The basis that W was reduced to, where that was done and W is one problem."""
    blocks, diagonal = W._cache.get("blocks", ()), W.inner.diagonal()
    if len(blocks) != 1 or blocks[0].coords is None or diagonal is None or not (diagonal > 0).all():
        return None
    return Basis(blocks[0].basis, blocks[0].coords)


def distinct_cells(W: Workload) -> Distinct:
    """The distinct columns of ``W.span``, which are those of any rows that span it; kept with W and its weighings."""
    shared = W._cache.setdefault(OF_ROWS, {})
    if "cells" not in shared:
        shared["cells"] = distinct_columns(W.span)
    return shared["cells"]  # type: ignore[no-any-return]


def merge_cells(W: Workload) -> tuple[Workload, Csr]:
    """(W over classes of equal columns, the classes L): W = W' L and x' = L x for 0/1 rows of L.

    Columns of zeros are in no class. Every strategy over x' is one over x with the same error, and
    one record moves x' by a column of L @ contributions, so the sensitivities are the same too.
    """
    shared = W._cache.setdefault(OF_ROWS, {})
    if "merged" not in shared:
        found = distinct_cells(W)
        used = np.flatnonzero(found.label >= 0)
        shape = (found.keep.size, found.label.size)
        L = sparse.csr_array((np.ones(used.size, dtype=np.int64), (found.label[used], used)), shape=shape)
        corners = None
        if W.contributions is not None:
            moved = sparse.csr_array(L @ W.contributions)
            corners = columns_at(moved, distinct_columns(moved, up_to_sign=True).keep)
        shared["merged"] = columns_at(W.span, found.keep), corners, L, {}
    span, corners, L, own = shared["merged"]
    return Workload(span, W.inner, corners, W.groups, W.name, _cache={OF_ROWS: own}), L


def _reduce(W: Workload, deadline: float, last: float) -> tuple[Block, ...]:
    span, inner = W.span, W.inner
    diagonal = weight = inner.diagonal()
    back: Csr | None = None
    if diagonal is not None:
        kept, diagonal, back = _merge_rows(span, diagonal)
        span = _rows_at(span, kept)
        inner = algebra.Diagonal(np.sqrt(diagonal))
        coupling = np.arange(span.shape[0])
    else:
        coupling = inner.coupling()
    if span.shape[0] == 0:
        raise DataError("strategy: every query of the workload is zero; nothing is to be measured")
    shared = W._cache.setdefault(OF_ROWS, {})
    if "moved" not in shared:
        moved = W.moved(span)
        found = distinct_columns(moved, up_to_sign=True)
        held = columns_at(moved, found.keep)
        shared["moved"] = found, held, *disjoint_blocks(held, coupling)
    found, held, number, label = shared["moved"]
    sizes = np.bincount(label, minlength=number)
    single = np.flatnonzero(sizes[label] == 1)
    out: list[Block] = []
    if single.size and diagonal is not None:
        basis = sparse.csr_array(span[single])
        out.append(Block(basis, diagonal[single], *_columns(basis, W, None)))
    if diagonal is None and inner.shape[1] ** 2 > MATRIX_CAP:
        raise DataError(
            f"strategy: the workload's inner Gram matrix would have {inner.shape[1]} x {inner.shape[1]} entries, above "
            f"the cap of {MATRIX_CAP}; plan its factors or parts apart"
        )
    if diagonal is not None and number > 1:
        return (*out, *_separate_blocks(span, diagonal, held, found.keep, label, W, deadline, last))
    gram = None if diagonal is not None else inner.gram()
    for b in range(number):
        if sizes[b] == 1 and diagonal is not None:
            continue
        rows = np.flatnonzero(label == b)
        part = span if rows.size == span.shape[0] else sparse.csr_array(span[rows])
        if gram is not None:
            own: algebra.Inner = _Given(gram[np.ix_(rows, rows)])
        else:
            assert diagonal is not None  # noqa: S101 - for the type checker: one of the two is there
            own = algebra.Diagonal(np.sqrt(diagonal[rows]))
        # Columns are alike in the basis exactly where they are alike in the rows that it spans.
        reuse = None
        if number == 1 and W.contributions is None and not (span.data < 0).any():
            reuse = found
        elif number == 1 and W.exact is None and (weight is None or weight.all()):
            reuse = distinct_cells(W)
        _check_room(part, 2 * found.keep.size)
        before = _before(last, number, b, W)
        chosen: Basis | None = shared.get("basis") if number == 1 else None
        if chosen is None:
            chosen = shared["basis"] = choose_basis(part, own, exact=W.exact is None, found=reuse, before=before)
        _check_rank(chosen.rows.shape[0])
        before(chosen.gram_seconds())
        mine = found.keep[abs(held[rows]).sum(axis=0) > 0] if number > 1 else found.keep
        columns: tuple[Sparse, Ints]
        if number == 1 and chosen.picked is not None:  # of the very rows that are moved already
            columns = sparse.csc_array(_rows_at(held, chosen.picked)), mine
        else:
            columns = _columns(chosen.rows, W, mine)
        coords = back @ chosen.coords if number == 1 and back is not None else None
        out.append(Block(chosen.rows, chosen.gram(own), *columns, cells=reuse, coords=coords))
    return tuple(out)


def _separate_blocks(
    span: Csr, weight: Floats, image: Csr, keep: Ints, label: Ints, W: Workload, deadline: float, last: float
) -> list[Block]:
    """The blocks of at least two rows, each reduced over its own columns: so many cost no more than one."""
    out, shared = list[Block](), W._cache[OF_ROWS]
    problems = copies_of(span, weight, image, label)
    for done, copies in enumerate(problems):
        if done and len(problems) - done > _FEW and monotonic() > deadline:
            raise _late(len(problems), done, W)
        rows, cells = copies.rows[0], copies.cells[0]
        part = sparse.csr_array(span[rows])
        local = sparse.csr_array(
            (part.data, np.searchsorted(cells, part.indices), part.indptr), shape=(rows.size, cells.size)
        )
        _check_room(local, 2 * copies.places.shape[1])
        own = algebra.Diagonal(np.sqrt(weight[rows]))
        before = _before(last, len(problems), done, W)
        key = "basis", rows.tobytes()
        if key not in shared:
            shared[key] = choose_basis(local, own, exact=W.exact is None, before=before)
        chosen: Basis = shared[key]
        _check_rank(chosen.rows.shape[0])
        before(chosen.gram_seconds())
        held = sparse.csr_array(chosen.rows)
        basis = sparse.csr_array((held.data, cells[held.indices], held.indptr), shape=(held.shape[0], span.shape[1]))
        columns, places = _columns(basis, W, keep[copies.places[0]])
        mine = replace(copies, places=keep[copies.places]) if copies.count > 1 else None
        out.append(Block(basis, chosen.gram(own), columns, places, mine))
    return out


def _late(parts: int, done: int, W: Workload) -> DataError:
    return DataError(
        f"strategy: the batch falls into {parts:,} parts over {W.span.shape[1]:,} cells, and the time limit ended when "
        f"{done:,} of them were reduced; allow more time, or ask for fewer groups"
    )


def _before(last: float, parts: int, done: int, W: Workload) -> Callable[[float], None]:
    """What refuses a product or a choice of rows that would end after ``last``."""

    def check(seconds: float) -> None:
        if last < np.inf and monotonic() + seconds > last:
            raise _late(parts, done, W)

    return check


def _check_rank(rank: int) -> None:
    if rank > RANK_CAP:
        raise DataError(
            f"strategy: one part of the workload has rank {rank}, above the cap of {RANK_CAP}; split the batch or "
            "coarsen its groups"
        )


def _check_room(rows: Csr, distinct: int) -> None:
    """DataError where choosing a basis of ``rows`` (q x n) would need a dense matrix of more than 2^27 entries.

    ``distinct``: no more columns than this differ.
    """
    q, n = rows.shape
    width = min(n, distinct, 8 * q + 64)  # as linalg.basis compresses
    if q * width > MATRIX_CAP and int(np.bincount(rows.indices, minlength=1).max()) > 1:
        raise DataError(
            f"strategy: {q} distinct queries in one part of the workload would need a matrix of {q} x {width} entries, "
            f"above the cap of {MATRIX_CAP}; split the batch or coarsen its groups"
        )


def _columns(basis: Sparse, W: Workload, keep: Ints | None) -> tuple[Sparse, Ints]:
    moved = W.moved(basis)
    if keep is None:
        keep = distinct_columns(moved, up_to_sign=True).keep
    return sparse.csc_array(columns_at(moved, keep)), keep


def _rows_at(matrix: Csr, rows: Ints) -> Csr:
    """Those rows; the matrix itself where they are all of them, in their order."""
    every = rows.size == matrix.shape[0] and np.array_equal(rows, np.arange(rows.size))
    return matrix if every else sparse.csr_array(matrix[rows])


def _merge_rows(span: Csr, weight: Floats) -> tuple[Ints, Floats, Csr | None]:
    """The numbers of the distinct rows, their squared weights added up, and all rows as multiples of these (q x k).

    Rows of zeros or without weight go. The multiples, 1 and -1, are not given where a row other than 0 goes.
    """
    found = distinct_columns(sparse.csr_array(span.T), up_to_sign=True)
    used = np.flatnonzero(found.label >= 0)
    total = np.bincount(found.label[used], weights=weight[used], minlength=found.keep.size)
    alive = total > 0
    kept = found.keep[alive]
    if not alive.all() or not span.has_sorted_indices or not span.data.all():
        return kept, np.asarray(total[alive], dtype=np.float64), None
    first = np.zeros(span.shape[0], dtype=np.int64)
    first[used] = span.data[span.indptr[used]]
    label = found.label[used]
    back = sparse.csr_array(
        (np.sign(first[used] * np.sign(first[kept[label]])), (used, label)), (first.size, kept.size)
    )
    return kept, np.asarray(total, dtype=np.float64), back


@dataclass(frozen=True, eq=False)
class _Given(algebra.Inner):
    """An inner factor known by its Gram matrix alone."""

    values: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return (self.values.shape[0], self.values.shape[0])

    def gram(self, weights: Floats | None = None) -> Floats:
        return self.values if weights is None else super().gram(weights)

    def matrix(self) -> Matrix:
        return cholesky(self.values)


def inverse_of(M: Floats) -> Floats:
    """M^-1 of a positive definite M (n x n), in a fraction of what solving for all units takes; else LinAlgError."""
    factor, failed = scipy.linalg.lapack.dpotrf(M)
    if failed:
        raise scipy.linalg.LinAlgError("the matrix is not positive definite")
    half, _ = scipy.linalg.lapack.dpotri(factor)
    half.flat[:: len(M) + 1] *= 0.5
    return np.asarray(half + half.T)
