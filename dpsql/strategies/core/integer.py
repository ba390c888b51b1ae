"""From a real strategy to the integers that are measured.

B = round(2^K root) @ rows, with integer ``rows``. K is raised until the error of B, computed
from B itself, is within tolerance / 10 of the real strategy's. Measurements are reconstructed
with B, so rounding never biases; the sensitivity is that of B, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, gcd, isqrt, log2, sqrt
from time import monotonic

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Ints, Matrix, Sparse
from dpsql.common.pattern_block import PatternBlock
from dpsql.errors import DataError, InternalError
from dpsql.linalg import modular, norms
from dpsql.linalg.exact import float_chunks
from dpsql.linalg.forms import RANK_CAP, dense
from dpsql.linalg.linked import linked_by
from dpsql.strategies.core.blocks import whitened
from dpsql.strategies.core.frame import BesideCells, cells_first
from dpsql.strategies.core.limits import MEASURED
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.workloads.compile.sensitivity import sensitivity_over
from dpsql.workloads.families.matrix import Workload

_FIRST_BITS, _STEP_BITS, _MOST_BITS = 16, 6, 52
_SUM_BITS = 2  # more where bounds of long sums add up what rounding does to each of them
_FAR = 1.5  # error over what was planned that no rounding of nearly the same trace makes
_DENSE_CAP = 2**23
_APART, _FEW_ENTRIES = 2**18, 8  # entries from which parts are looked for, where fewer than one in so many is not 0


@dataclass(frozen=True, eq=False)
class Piece:
    """The strategy of one block: A = root @ rows, before rounding.

    ``rows`` (u x n) integer csr; ``root`` (p x u) floats of full column rank, or (u,) for a
    diagonal. ``columns`` (u x N) the distinct columns, up to sign, of rows @ contributions. ``coords``
    (u x v): rows in independent coordinates, None where they are independent themselves
    (u = v); ``gram`` (v x v, or (v,) for a diagonal) of the workload in those coordinates.
    ``blocks``: sizes of the blocks of rows of the root that have pure noise by the largest entry of each
    (``dpsql.strategies.core.blocks``); none where all are single.
    Where ``copies`` is k > 1, ``rows`` are those of k problems that are alike, one after the other (k u x n): the root
    is that of each, and no record moves two of them.
    ``placed``: independent rows that span ``rows``, of coordinates ``coords``, and the coordinates of all queries of
    the workload in them, where these were worked out. ``MatrixStrategy`` checks them before it uses them.
    """

    rows: Csr
    root: Floats
    columns: Sparse
    gram: Floats
    coords: Matrix | None = None
    copies: int = 1
    blocks: tuple[int, ...] = ()
    placed: tuple[Csr, Matrix] | None = None
    _parted: list[list[norms.Part] | None] = field(default_factory=list, repr=False)  # one entry, once it is known

    @property
    def parted(self) -> list[norms.Part] | None:
        """The parts that the root falls into, kept for every root of the same entries other than 0."""
        if not self._parted:
            self._parted.append(None if self.root.ndim == 1 else norms.parts_of(self.root, self.columns, self.blocks))
        return self._parted[0]

    def trace(self, root: Array) -> float:
        """tr(gram (C^T C)^-1), C = root @ coords, of all copies: the error at sensitivity 1. inf at lost rank."""
        return self.copies * self._trace(root)

    def _trace(self, root: Array) -> float:
        if root.ndim == 1 and self.gram.ndim == 1 and not self.blocks:
            return float(np.sum(self.gram / root.astype(np.float64) ** 2)) if np.all(root) else np.inf
        C = np.diag(root.astype(np.float64)) if root.ndim == 1 else root.astype(np.float64)
        if self.blocks:
            C = whitened(C, self.blocks)
        if self.gram.ndim == 1 or not _mostly_zero(C):
            return _trace_of(C if self.coords is None else np.asarray(C @ dense(self.coords)), self.gram)
        few = sparse.csr_array(C) if self.coords is None else sparse.csr_array(C) @ sparse.csr_array(self.coords)
        few.eliminate_zeros()
        number, of_row, of_column = linked_by(few)
        tall, wide = np.bincount(of_row, minlength=number), np.bincount(of_column, minlength=number)
        entries = few.tocoo()
        alone = (tall == 1)[of_row[entries.row]] & (wide == 1)[of_column[entries.col]]
        total = float(np.sum(np.diag(self.gram)[entries.col[alone]] / entries.data[alone] ** 2))
        for part in np.flatnonzero((wide > 1) | ((wide == 1) & (tall != 1))):
            p, v = np.flatnonzero(of_row == part), np.flatnonzero(of_column == part)
            total += _trace_of(dense(few[p][:, v]), self.gram[np.ix_(v, v)])
        return total

    def norms(self, root: Array) -> tuple[int, int]:
        """Exact (L1, squared L2) sensitivity of the integers root @ rows; by blocks, if any, in place of L1."""
        mixing = sparse.csr_array(sparse.diags_array(root, dtype=root.dtype)) if root.ndim == 1 else root
        parted = None if root.ndim == 1 else self.parted
        l1, l2_squared = norms.column_norms(mixing, self.columns, parted)
        return norms.block_norm(mixing, self.columns, self.blocks, parted) if self.blocks else l1, l2_squared

    def real_norms(self) -> tuple[float, float]:
        """(L1, squared L2) sensitivity of root @ rows in floats; by blocks, if any, in place of L1."""
        parted = self.parted
        if self.blocks and parted is None:
            return norms.largest_norm(self.root, self.columns, 1, self.blocks), np.nan
        quick = None if self.blocks or self.root.ndim == 1 else norms.few_entries(self.root, self.columns)
        if quick is not None:
            return float(quick[0]), float(quick[1])
        if parted is not None:
            sums = np.zeros((2, self.columns.shape[1]))
            for one in (one for one in parted if len(one.rows)):
                chunks = float_chunks(one.of(self.root), one.columns)
                size = np.abs(np.hstack([np.zeros((len(one.rows), 0)), *chunks]))
                if self.blocks:
                    size = np.maximum.reduceat(size, norms.block_starts(one.blocks), axis=0)
                each = np.zeros((2, size.shape[1] + 1))  # the last for columns of zeros
                each[:, :-1] = size.sum(axis=0), np.einsum("ij,ij->j", size, size)
                sums += each[:, one.label]
            return float(sums[0].max()), np.nan if self.blocks else float(sums[1].max())
        if self.root.ndim == 1:
            few = abs(sparse.diags_array(self.root) @ sparse.csr_array(self.columns))
            return float(few.sum(axis=0).max(initial=0.0)), float(few.power(2).sum(axis=0).max(initial=0.0))
        l1 = l2 = 0.0
        for chunk in float_chunks(self.root, sparse.csc_array(self.columns)):
            l1 = max(l1, float(np.abs(chunk).sum(axis=0).max()))
            l2 = max(l2, float(np.einsum("ij,ij->j", chunk, chunk).max()))
        return l1, l2


def _mostly_zero(root: Array) -> bool:
    """Has a large matrix few entries, so that it may fall into parts?"""
    return root.size >= _APART and bool(np.count_nonzero(root) * _FEW_ENTRIES < root.size)


def _trace_of(C: Floats, gram: Floats) -> float:
    """tr(gram (C^T C)^-1) for C (p x v); inf at lost rank."""
    cells = BesideCells.of(C) if gram.ndim == 2 else None
    found = None if cells is None else cells.trace(gram)
    if found is not None:
        return found
    if C.shape[0] != C.shape[1] or not _upper(C):
        C = np.asarray(scipy.linalg.qr(C, mode="r", check_finite=False)[0][: C.shape[1]])
    diagonal = np.abs(np.diag(C))
    if C.shape[0] < C.shape[1] or diagonal.min() <= diagonal.max() * 1e-14:
        return np.inf
    inverse = scipy.linalg.solve_triangular(C, np.eye(C.shape[0]), check_finite=False)
    return float(np.sum((gram @ inverse) * inverse))


def _upper(C: Floats) -> bool:
    return C.shape[0] == C.shape[1] and not np.tril(C, -1).any()


def full_rank(root: Ints) -> bool:
    """Has the integer ``root`` (p x u, or a diagonal) full column rank? Exactly: a "yes" is a proof."""
    if root.ndim == 1:
        return bool(np.all(root))
    p, u = root.shape
    if p < u or not root.any(axis=0).all():
        return False
    if _mostly_zero(root):
        number, of_row, of_column = linked_by(sparse.csr_array(root))
        if number > 1:
            return all(full_rank(root[np.ix_(of_row == part, of_column == part)]) for part in np.unique(of_column))
    if p == u and (_orthogonal_rows(root) or _positive(root)):
        return True
    head = root[:u]
    if not np.tril(head, -1).any() and np.all(np.diag(head)):
        return True  # triangular on top
    values = root.astype(np.float64)
    if float(np.abs(values).max()) ** 2 * p < 2.0**53 and _positive((values.T @ values).astype(np.int64)):
        return True
    return bool(modular.rank(root) == u)


def _orthogonal_rows(root: Ints) -> bool:
    """Are the rows of a square integer matrix orthogonal and none of them zero? Exact where sums fit 2^53."""
    values = root.astype(np.float64)
    if float(np.abs(values).max()) ** 2 * root.shape[1] >= 2.0**53:
        return False
    first = values[0] @ values.T
    if np.count_nonzero(first) != 1:
        return False
    products = values @ values.T
    return bool(np.all(np.diag(products) > 0) and np.count_nonzero(products) == root.shape[0])


def _positive(root: Ints) -> bool:
    """Is a square integer matrix symmetric and positive definite? A "yes" is a proof, in a third of a product's time.

    Cholesky's method in floats of unit u ends without a root of a negative number only where A + E is positive
    semidefinite for an E of norm at most (n + 2) u tr A / (1 - (n + 2) u) (Demmel; Rump 2006). Here it is run of A less
    four times as much on the diagonal, which covers the rounding of the difference, too.
    """
    n, diagonal = root.shape[0], np.diag(root)
    if not np.array_equal(root, root.T) or diagonal.min() <= 0 or int(np.abs(root).max()) >= 2**53:
        return False
    less = root.astype(np.float64)
    less[np.diag_indices(n)] -= 4.0 * (n + 2) * 2.0**-53 * float(diagonal.astype(np.float64).sum())
    try:
        scipy.linalg.cholesky(less, check_finite=False)
    except scipy.linalg.LinAlgError:
        return False
    return True


def leaves_first(root: Floats) -> Floats:
    """The rows of ``root`` (p x u) with one single-entry row for every column on top, where there are such rows.

    A strategy that measures every cell has a diagonal on top then, which proves its rank at once.
    """
    order = cells_first(root)
    return root if order is None else np.asarray(root[order])


def normalise(pieces: tuple[Piece, ...], noise: str) -> tuple[tuple[Piece, ...], float]:
    """Pieces scaled to sensitivity 1 in the norm of ``noise``, and their error."""
    out, total = [], 0.0
    for piece in pieces:
        l1, l2 = piece.real_norms()
        scaled = replace(piece, root=piece.root / (sqrt(l2) if noise == "gaussian" else l1))
        total += scaled.trace(scaled.root)
        out.append(scaled)
    return tuple(out), total


def check_entries(pieces: Sequence[Piece], *, joined: bool = False) -> None:
    """DataError where the roots of copies have more than 2^25 entries together, or too many rows that are dependent.

    ``joined``: entries of one matrix of all roots, zeros too.
    """
    for p in pieces:
        if p.copies > 1 and p.coords is not None and p.rows.shape[0] > RANK_CAP:
            raise DataError(
                f"strategy: {p.rows.shape[0]:,} queries that depend on each other are too many to be measured one by "
                "one; use method='auto'"
            )
    entries = sum(p.copies * p.root.size for p in pieces if p.copies > 1)
    if joined:
        entries = sum(p.copies * p.root.shape[0] for p in pieces) * sum(p.copies * p.root.shape[-1] for p in pieces)
    if entries > MEASURED:
        count = sum(p.copies for p in pieces)
        raise DataError(
            f"strategy: {count:,} parts of the workload would be measured by matrices of {entries:,} entries, above "
            f"the cap of {MEASURED:,}; ask for fewer groups, or coarser ones"
        )


def finish(
    W: Workload,
    method: str,
    noise: str,
    pieces: tuple[Piece, ...],
    target: float,
    tolerance: float,
    lower_bound: float | None,
    considered: tuple[tuple[str, float], ...],
    deadline: float = np.inf,
) -> MatrixStrategy:
    """Round ``pieces``, each of real sensitivity 1, to integers whose error is at most (1 + tolerance/10) target.

    Or to integers from which more precise ones gain no more than that. No record may move two pieces: sensitivities
    are then the largest of the pieces', not their sum; where ``W.units`` may, the sensitivity is that of all pieces
    together. Raises
    InternalError where one does, and where 52 bits do not suffice (rank would be lost). Past ``deadline`` (monotonic
    seconds) the first rounding that keeps the rank is taken, with its own error. Cost a round: one
    triangular inverse and one p x v x N product a piece.
    """
    units = W.units
    if units is None and (len(pieces) > 1 or pieces[0].copies > 1):
        _check_disjoint(W, pieces)
    blocks = _blocks_of(pieces)
    patterned = any(isinstance(block, PatternBlock) for block in blocks)
    peaks = [float(np.abs(p.root).max()) for p in pieces]
    # All pieces share the factor 2^K, or they would not have equal sensitivity.
    bits = _FIRST_BITS - ceil(log2(min(peaks)))
    if units is not None and not units.listable:
        bits += _SUM_BITS
    best: tuple[float, list[Ints], int, int] | None = None
    for extra in range(0, _MOST_BITS - _FIRST_BITS, _STEP_BITS):
        if max(peaks) * 2.0 ** (bits + extra) >= 2.0**52:
            break
        mixings = [np.rint(np.ldexp(p.root, bits + extra)).astype(np.int64) for p in pieces]
        # Noise for patterns is drawn fast at a large scale alone.
        divisor = 1 if patterned else gcd(*(int(np.gcd.reduce(m, axis=None)) for m in mixings))
        mixings = [m // divisor for m in mixings] if divisor > 1 else mixings
        if not all(full_rank(m) for m in mixings):
            continue
        if units is None:
            found = [p.norms(m) for p, m in zip(pieces, mixings, strict=True)]
            l1, l2 = max(a for a, _ in found), max(b for _, b in found)
        else:
            whole = _assemble(mixings, [p.copies for p in pieces]), _stacked(pieces)
            # Of the norm that is not asked for a bound, where working it out takes long: |v|_2 <= |v|_1 <= p^1/2 |v|_2.
            if noise == "laplace":
                l1 = -(-sensitivity_over("laplace", *whole, units, blocks) // units.common)
            if noise == "gaussian" or units.listable:
                l2 = -(-sensitivity_over("gaussian", *whole, units) // units.common**2)
            else:
                l2 = l1 * l1
            if noise == "gaussian":
                l1 = isqrt(whole[0].shape[0] * l2) + 1
        sensitivity = sqrt(l2) if noise == "gaussian" else float(l1)
        trace = sum(p.trace(m) for p, m in zip(pieces, mixings, strict=True))
        error = sensitivity**2 * trace
        before = np.inf if best is None else best[0]
        if best is None or error < before:
            best = (error, mixings, l1, l2)
        # As where the sensitivity is a bound that lies far above what was planned for, which no rounding does.
        bounded = error > _FAR * target and trace * (2.0 ** (bits + extra) / divisor) ** 2 <= (1.0 + tolerance) * target
        settled = bounded or (np.isfinite(error) and before <= (1.0 + tolerance / 10.0) * error)
        late = np.isfinite(best[0]) and monotonic() > deadline
        if error <= (1.0 + tolerance / 10.0) * target or settled or late:
            break
    if best is None or not np.isfinite(best[0]):
        raise InternalError("strategy: rounding to integers loses rank; the workload is too ill-conditioned")
    error, mixings, l1, l2 = best
    # Rows that blocks were reduced to are independent: that need not be found out again.
    alone = len(pieces) == 1 or W.contributions is None or any(p.copies > 1 for p in pieces)
    alone = alone or (units is not None and units.by_grouping) or _share_no_cell(pieces)
    known: dict[str, object] = {"independent": True} if alone and all(p.coords is None for p in pieces) else {}
    if len(pieces) == 1 and pieces[0].placed is not None:
        known["placed"] = pieces[0].placed[0], pieces[0].coords, W.span, pieces[0].placed[1]
    return MatrixStrategy(
        method,
        noise,
        _assemble(mixings, [p.copies for p in pieces]),
        _stacked(pieces),
        W.contributions,
        l1,
        l2,
        error,
        lower_bound,
        considered,
        W,
        blocks=blocks,
        _cache=known,
    )


def _blocks_of(pieces: tuple[Piece, ...]) -> tuple[int, ...]:
    """The blocks of all rows, single ones too; none where all are single."""
    if not any(p.blocks for p in pieces):
        return ()
    return tuple(size for p in pieces for size in p.copies * (p.blocks or (1,) * p.root.shape[0]))


def _stacked(pieces: tuple[Piece, ...]) -> Csr:
    return sparse.csr_array(sparse.vstack([p.rows for p in pieces], format="csr")).astype(np.int64)


def _check_disjoint(W: Workload, pieces: tuple[Piece, ...]) -> None:
    rows = _stacked(pieces)
    sizes = [p.rows.shape[0] // p.copies for p in pieces for _ in range(p.copies)]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    moved = sparse.csc_array(W.moved(rows))
    moved.eliminate_zeros()
    mixed = np.diff(owner[moved.indices]) != 0
    mixed[moved.indptr[1:-1][(moved.indptr[1:-1] > 0) & (moved.indptr[1:-1] < moved.nnz)] - 1] = False
    if mixed.any():
        raise InternalError("strategy: one record moves measurements that were planned apart")


def _share_no_cell(pieces: tuple[Piece, ...]) -> bool:
    """Whether no two pieces have rows over a common column, so that the rows of all are independent if each's are."""
    reached = [np.unique(p.rows.indices) for p in pieces]
    return int(np.unique(np.concatenate(reached)).size) == sum(each.size for each in reached)


def _assemble(mixings: list[Ints], copies: list[int]) -> Matrix:
    """The block diagonal of all mixings, each so many times: dense up to 2^23 entries, else csr."""
    shapes = [(m.size, m.size) if m.ndim == 1 else m.shape for m in mixings]
    p, u = (sum(k * s[axis] for k, s in zip(copies, shapes, strict=True)) for axis in (0, 1))
    if p * u > _DENSE_CAP:
        parts = [sparse.diags_array(m, dtype=m.dtype) if m.ndim == 1 else sparse.csr_array(m) for m in mixings]
        parts = [
            m if k == 1 else sparse.kron(sparse.eye_array(k, dtype=np.int64), m, format="csr")
            for m, k in zip(parts, copies, strict=True)
        ]
        return sparse.csr_array(sparse.block_diag(parts, format="csr")).astype(np.int64)
    out = np.zeros((p, u), dtype=np.int64)
    i = j = 0
    every = [(m, s) for m, s, k in zip(mixings, shapes, copies, strict=True) for _ in range(k)]
    for m, (a, b) in every:
        out[i : i + a, j : j + b] = np.diag(m) if m.ndim == 1 else m
        i, j = i + a, j + b
    return out
