"""Least squares with a strategy: prepared once, applied to any workload.

B = root @ rows with independent integer ``rows``; root (p x v) falls into connected parts
that are factored apart, so a strategy of ten thousand separate counts costs no
ten-thousandfold square matrix.

A strategy of every cell and few sums beside them, A = [D; T] with D diagonal and rows in any order, needs no factor of
A. With X = C D^-1, Y = T D^-1 and S = I + Y Y^T (p x p for the p rows of T) Woodbury's identity gives, M = A^T A,

    C M^-1 A^T = [X - X Y^T S^-1 Y, X Y^T S^-1],    tr(G M^-1) = tr(D^-1 G D^-1) - tr(S^-1 Y D^-1 G D^-1 Y^T):

products of O(p v^2) where a factor of A takes O(v^3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints, Matrix, Sparse
from dpsql.common.numerics import SEED
from dpsql.errors import InternalError
from dpsql.linalg.basis import choose_basis, coordinates
from dpsql.linalg.forms import dense, is_sparse, row_squares
from dpsql.linalg.inner import Diagonal
from dpsql.linalg.linked import linked_by
from dpsql.linalg.ranges import changes_of, product_of
from dpsql.workloads.families.matrix import Workload

LARGE_PRODUCT = 2**31  # multiplications
_FEW = 0.125  # of the entries of a matrix, up to which it is kept sparse


class Frame:
    """B = root @ rows in parts. ``thin``: every part is a single measurement of a single row."""

    def __init__(self, mixing: Matrix, basis: Csr, independent: bool = False) -> None:
        """``independent``: the rows of ``basis`` are known to be."""
        root = mixing.astype(np.float64)
        self._rows = basis
        if not independent:
            chosen = choose_basis(basis, Diagonal(np.ones(basis.shape[0])))
            self._rows, root = chosen.rows, root @ chosen.coords
        self._held: tuple[Sparse, Matrix] | None = None
        self._back: Csr | None = None
        self._root = sparse.csc_array(root)
        self._p, v = self._root.shape
        number, left, right = linked_by(self._root)
        size_p, size_v = np.bincount(left, minlength=number), np.bincount(right, minlength=number)
        lone = (size_p == 1) & (size_v == 1)
        self._single = np.flatnonzero(lone[right])
        self.thin = self._single.size == v
        self._part, self._tall = right, size_p  # the part of each row, how much is measured in each part
        self._parts: list[tuple[Ints, Ints, Factor]] = []
        by_p, by_v = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
        end_p, end_v = np.cumsum(size_p), np.cumsum(size_v)
        factors: dict[tuple[tuple[int, ...], bytes], Factor] = {}  # of problems that are alike, once
        for c in np.flatnonzero((size_v > 0) & ~lone):
            p_rows = by_p[end_p[c] - size_p[c] : end_p[c]]
            v_rows = by_v[end_v[c] - size_v[c] : end_v[c]]
            block = self._block(p_rows, v_rows)
            key = (block.shape, block.tobytes())
            if key not in factors:
                factors[key] = BesideCells.of(block) or Factored.of(block)
            self._parts.append((p_rows, v_rows, factors[key]))
        self._inverse = np.zeros(self._single.size)
        self._owner = np.zeros(self._single.size, dtype=np.int64)
        if self._single.size:
            ends = self._root.indptr[self._single]
            self._inverse, self._owner = (
                1.0 / self._root.data[ends],
                self._root.indices[ends].astype(np.int64),
            )

    def _block(self, p_rows: Ints, v_rows: Ints) -> Floats:
        """The root of one part, dense; ``p_rows`` are all rows that its columns reach, ascending."""
        starts, ends = self._root.indptr[v_rows], self._root.indptr[v_rows + 1]
        out = np.zeros((p_rows.size, v_rows.size))
        for column, (a, b) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            out[np.searchsorted(p_rows, self._root.indices[a:b]), column] = self._root.data[a:b]
        return out

    @property
    def rows(self) -> Csr:
        """The independent integer rows that span what is measured (v x n csr)."""
        return self._rows

    def hold(self, span: Sparse, coords: Matrix) -> None:
        """Keep coordinates that are known: span = coords @ rows."""
        self._held = span, coords

    def coordinates(self, W: Workload) -> Matrix:
        """coords (q x v), W.span = coords @ rows; InternalError where W is not in the row space."""
        # Two workloads of one batch differ in their scales only: the coordinates of the last span are kept.
        if self._held is None or not same_rows(self._held[0], W.span):
            if same_rows(W.span, self._rows):
                coords: Matrix = sparse.eye_array(self._rows.shape[0], format="csr")
            else:
                coords = coordinates(W.span, self._rows)
            self._held = W.span, coords
        return self._held[1]

    def _along(self, W: Workload) -> Csr | None:
        """coords @ root^+ (q x p), where that has few entries: R without the inner factor of W."""
        coords = self.coordinates(W)
        if not is_sparse(coords):
            return None
        # A row has entries for all that is measured in the parts that it reaches.
        reached = sparse.csr_array(
            (np.ones(coords.nnz), self._part[coords.indices], coords.indptr.copy()),
            shape=(coords.shape[0], self._tall.size),
        )
        reached.sum_duplicates()
        if int(self._tall[reached.indices].sum()) > _FEW * coords.shape[0] * self._p:
            return None
        if self._back is None:
            self._back = self._inverted()
        return sparse.csr_array(coords @ self._back)

    def _inverted(self) -> Csr:
        """root^+ (v x p), part by part."""
        inverses: dict[int, Floats] = {}
        at_v, at_p, values = [self._single], [self._owner], [self._inverse]
        for p_rows, v_rows, factor in self._parts:
            if id(factor) not in inverses:
                inverses[id(factor)] = factor.answers(np.eye(v_rows.size))
            at_v.append(np.repeat(v_rows, p_rows.size))
            at_p.append(np.tile(p_rows, v_rows.size))
            values.append(inverses[id(factor)].ravel())
        places = np.concatenate(at_v), np.concatenate(at_p)
        found = sparse.csr_array(
            sparse.coo_array((np.concatenate(values), places), shape=(self._root.shape[1], self._p))
        )
        found.eliminate_zeros()
        return found

    def trace(self, W: Workload) -> float:
        """||W B^+||_F^2 = tr(W M^-1 W^T), M = root^T root in row coordinates."""
        diagonal = W.inner.diagonal()
        H = None if diagonal is not None else W.inner.gram()
        return sum((_weighted_square(half, diagonal, H) for half in self._halves(W)), 0.0)

    def variances(self, W: Workload) -> Floats:
        """||w_i B^+||^2 for every query of W (m,): the diagonal of W M^-1 W^T."""
        return np.asarray(np.sum([W.inner.variances(half) for half in self._halves(W)], axis=0))

    def _halves(self, W: Workload) -> Iterator[Matrix]:
        """Matrices of q rows; side by side they are coords @ root^+ but for a rotation of each part."""
        along = self._along(W)
        if along is not None:
            yield along
            return
        coords = self.coordinates(W)
        if self._single.size:
            part = coords[:, self._single]
            yield part @ sparse.diags_array(self._inverse) if is_sparse(part) else part * self._inverse[None, :]
        for _, v_rows, factor in self._parts:
            mine = _columns_of(coords, v_rows)
            rows = _other_than_zero(mine)
            found = factor.half(mine[rows])
            if rows.size < mine.shape[0]:
                half = np.zeros((mine.shape[0], found.shape[1]))
                half[rows] = found
                found = half
            yield found

    def reconstruction(self, W: Workload, most: int) -> Matrix | None:
        """R (m x p) with R B = W; csr where few of its entries are not 0, else dense.

        None where it would have more than ``most`` entries, or a quarter of that other than 0.
        Raises InternalError where the residual exceeds 1e-9 of the largest entry of W.
        """
        F, along = W.inner.matrix(), self._along(W)
        size = F.shape[0] * self._p
        answers = F @ self.coordinates(W)
        if along is not None and is_sparse(F) and is_sparse(answers):
            entries = int(np.diff(along.indptr)[F.indices].sum())
            if entries <= (size if self.thin else _FEW * size) if size <= most else entries <= most // 4:
                out = sparse.csr_array(F @ along)
                rest = abs(sparse.csr_array(out @ self._root - answers)).max() if out.nnz else 0.0
                _check(float(rest), answers.data)
                return out
        return None if size > most else self._written_out(answers)

    def _written_out(self, answers: Matrix) -> Matrix:
        """R of ``answers`` in row coordinates; csr where three quarters of it are empty, as beside many parts."""
        out = np.zeros((answers.shape[0], self._p))
        if self._single.size:
            out[:, self._owner] = dense(answers[:, self._single]) * self._inverse
        # R root = answers in row coordinates, part by part; rows are independent, so R B = W follows.
        rest = 0.0
        for p_rows, v_rows, factor in self._parts:
            mine = _columns_of(answers, v_rows)
            rows = _other_than_zero(mine)
            found = factor.answers(mine[rows])
            rest = float(np.maximum(rest, _residual(found, self._block(p_rows, v_rows), mine[rows])))
            if found.shape == out.shape:
                out = found
            else:
                out[np.ix_(rows, p_rows)] = found
        _check(rest, answers.data if is_sparse(answers) else answers)
        return sparse.csr_array(out) if np.count_nonzero(out) <= 2 * _FEW * out.size else out


def _columns_of(matrix: Matrix, columns: Ints) -> Matrix:
    return matrix if columns.size == matrix.shape[1] else matrix[:, columns]


def _other_than_zero(matrix: Matrix) -> Ints:
    """The rows that have entries: of many parts each sees few of the queries."""
    held = np.diff(sparse.csr_array(matrix).indptr) if is_sparse(matrix) else matrix.any(axis=1)
    return np.flatnonzero(held)


def _check(rest: float, answers: Floats) -> None:
    if not rest <= 1e-9 * max(float(np.abs(answers).max(initial=0.0)), 1e-300):  # also where it is no number
        raise InternalError("strategy: the reconstruction does not reproduce the workload to 1e-9")


@dataclass(frozen=True, eq=False)
class Factored:
    """A = Q R, the identity for Q where it is None."""

    Q: Floats | None
    R: Floats

    @classmethod
    def of(cls, A: Floats) -> Factored:
        """Raises InternalError where columns of A are dependent."""
        Q: Floats | None = None
        R = A
        if A.shape[0] != A.shape[1] or np.tril(A, -1).any():
            left, right = scipy.linalg.qr(A, mode="economic", check_finite=False)
            Q, R = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
        diagonal = np.abs(np.diag(R))
        if diagonal.size < A.shape[1] or diagonal.min() <= diagonal.max() * 1e-14:
            raise InternalError("strategy: it measures fewer dimensions than its basis has")
        return cls(Q, R)

    def half(self, coords: Matrix) -> Floats:
        """C R^-1 for C = ``coords``: C (A^T A)^-1 C^T is its product with its transpose."""
        q, v = coords.shape
        changes = changes_of(coords) if q >= 4 * v and q * v * v > LARGE_PRODUCT else None
        if changes is not None:
            return product_of(changes, scipy.linalg.solve_triangular(self.R, np.eye(v), check_finite=False))
        return np.asarray(scipy.linalg.solve_triangular(self.R, dense(coords).T, trans="T", check_finite=False).T)

    def answers(self, coords: Matrix) -> Floats:
        """C (A^T A)^-1 A^T."""
        half = self.half(coords)
        return half if self.Q is None else np.asarray(half @ self.Q.T)


def _residual(R: Floats, block: Floats, answers: Matrix) -> float:
    """The largest entry of R block - answers; along 16 random directions where the product is large.

    A row of which one entry is too large passes all of them with a probability below 1e-9.
    """
    if R.shape[0] * block.size <= LARGE_PRODUCT:
        return float(np.abs(R @ block - dense(answers)).max(initial=0.0))
    directions = np.random.default_rng(SEED).normal(size=(block.shape[1], 16))
    return float(np.abs(R @ (block @ directions) - answers @ directions).max(initial=0.0))


def same_rows(a: Sparse, b: Sparse) -> bool:
    """Are two csr matrices stored alike?"""
    return a is b or (
        a.shape == b.shape
        and np.array_equal(a.indptr, b.indptr)
        and np.array_equal(a.indices, b.indices)
        and np.array_equal(a.data, b.data)
    )


def _weighted_square(part: Matrix, diagonal: Floats | None, H: Floats | None) -> float:
    """tr(part^T H part) for H given or diagonal."""
    if diagonal is not None:
        return float(row_squares(part) @ diagonal)
    if is_sparse(part):
        products = sparse.coo_array(part @ part.T)
        return float(np.sum(np.asarray(H)[products.row, products.col] * products.data))
    return float(np.sum((H @ part) * part))


_BESIDE = 0.5  # rows of T a column, at most
_LEFT = 1e-5  # of the first trace: less that is left of it shows its rounding


def cells_first(A: Floats) -> Ints | None:
    """The rows of A (p x v) in an order that makes its top diagonal; None where some column has no row of its own."""
    single = np.flatnonzero(np.count_nonzero(A, axis=1) == 1)
    single = single[np.argsort(-abs(A[single]).max(axis=1), kind="stable")]  # of a column the longest
    column = np.argmax(A[single] != 0, axis=1)
    found, first = np.unique(column, return_index=True)
    if found.size < A.shape[1]:
        return None
    top = single[first]
    return np.concatenate([top, np.setdiff1d(np.arange(A.shape[0]), top)])


@dataclass(frozen=True, eq=False)
class BesideCells:
    """``diagonal`` (v,) of D, ``scaled`` (p x v) Y, and the lower Cholesky factor ``lower`` (p x p) of S.

    ``order`` (v + p,): the rows of A that [D; T] has.
    """

    diagonal: Floats
    scaled: Floats
    lower: Floats
    order: Ints

    @classmethod
    def of(cls, A: Floats) -> BesideCells | None:
        """None for A (p + v x v) of another form, or with so short cells that rounding would show in S."""
        v = A.shape[1]
        order = cells_first(A) if v < A.shape[0] <= (1.0 + _BESIDE) * v else None
        if order is None:
            return None
        diagonal = A[order[:v], np.arange(v)]
        scaled = A[order[v:]] / diagonal
        if np.square(scaled).sum() * _LEFT**2 > 1.0:  # S is positive definite in floats well beyond this
            return None
        S = scaled @ scaled.T
        S.flat[:: S.shape[0] + 1] += 1.0
        return cls(diagonal, scaled, scipy.linalg.cholesky(S, lower=True), order)

    def trace(self, gram: Floats) -> float | None:
        """tr(gram M^-1); None where rounding may show in it."""
        first = float(np.sum(np.diag(gram) / self.diagonal**2))
        half = scipy.linalg.solve_triangular(self.lower, self.scaled, lower=True) / self.diagonal
        found = first - float(np.sum((half @ gram) * half))
        return found if found > _LEFT * first else None

    def half(self, coords: Matrix) -> Floats:
        """``answers``: C M^-1 C^T is its product with its transpose."""
        return self.answers(coords)

    def answers(self, coords: Matrix) -> Floats:
        """C M^-1 A^T (q x v + p) for C = ``coords`` (q x v)."""
        v = self.diagonal.size
        X = dense(coords) / self.diagonal
        beside = scipy.linalg.cho_solve((self.lower, True), (X @ self.scaled.T).T).T
        out = np.empty((X.shape[0], self.order.size))
        out[:, self.order[:v]] = X - beside @ self.scaled
        out[:, self.order[v:]] = beside
        return out


Factor: TypeAlias = Factored | BesideCells
