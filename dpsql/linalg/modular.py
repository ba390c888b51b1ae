"""Rank and row space over a prime field: exact where floating point can only estimate.

A minor that is non-zero modulo p is non-zero over the integers, so the rank found here
never exceeds the true one: "independent" is a proof. "Dependent" is wrong with probability
about 1/p for each of the fixed random vectors used.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Matrix, Sparse
from dpsql.linalg.forms import dense

PRIMES = (4_194_301, 4_194_287)  # below 2^22: 256 products sum up to less than 2^52, exact in float64
_BLOCK = 64
_SEED = 20_110


def _mod(values: Array, p: int) -> Array:
    return np.asarray(values - p * np.floor(values / p))


def residues(matrix: Array, p: int) -> Floats:
    """Entries modulo p as float64 (exact); integers of any size, dense."""
    if matrix.dtype == object:
        return np.asarray(np.vectorize(lambda v: int(v) % p, otypes=[np.float64])(matrix))
    return np.asarray(np.mod(matrix.astype(np.int64), p), dtype=np.float64)


def eliminate(work: Floats, width: int, p: int) -> list[int]:
    """Reduce ``work`` (v x (width + extra)) in place to row echelon form; pivot columns.

    Panels of 64 columns are eliminated one at a time, the rest of the matrix is updated by
    one product a panel whose sums stay below 2^53. Cost O(v^2 width), less where most entries stay 0.
    """
    rows, total = work.shape
    pivots: list[int] = []
    top = 0
    for left in range(0, width, _BLOCK):
        right = min(left + _BLOCK, width)
        start = top
        # multipliers of this panel, applied to the trailing columns at once
        trail = work[:, right:]
        for j in range(left, right):
            if top == rows:
                return pivots
            candidates = np.flatnonzero(work[top:, j])
            if candidates.size == 0:
                continue
            pick = top + int(candidates[0])
            if pick != top:
                work[[top, pick]] = work[[pick, top]]
            inverse = pow(int(work[top, j]), -1, p)
            hit = top + 1 + np.flatnonzero(work[top + 1 :, j])
            factor = _mod(work[hit, j] * inverse, p)
            work[hit, j:right] = _mod(work[hit, j:right] - np.outer(factor, work[top, j:right]), p)
            work[hit, j] = factor  # kept below the pivot until the panel is done
            pivots.append(j)
            top += 1
        panel = pivots[len(pivots) - (top - start) :]
        if panel and total > right:
            lower = work[start:, panel]
            for i in range(1, top - start):  # forward substitution inside the panel
                if lower[i, :i].any():
                    trail[start + i] = _mod(trail[start + i] - lower[i, :i] @ trail[start : start + i], p)
            hit = np.flatnonzero(lower[top - start :].any(axis=1))
            trail[top + hit] = _mod(trail[top + hit] - lower[top - start + hit] @ trail[start:top], p)
        for i, j in enumerate(panel):
            work[start + i + 1 :, j] = 0.0
    return pivots


def rank(matrix: Matrix) -> int:
    """Rank of an integer matrix modulo a prime, O(v^2 n); never above the true rank."""
    M = dense(matrix)
    if M.shape[0] > M.shape[1]:
        M = M.T
    best = 0
    for p in PRIMES:
        best = max(best, len(eliminate(residues(M, p), M.shape[1], p)))
        if best == min(M.shape):
            break
    return best


def spans(rows: Csr, basis: Sparse) -> bool:
    """Do ``basis`` (v x n, csr) rows have rank v and does every row of ``rows`` (q x n) lie in their span?

    Three random combinations of ``rows`` are written in the basis on a random sketch of the
    columns and then compared on all n. Cost O(v^3 + nnz).
    """
    v, n = basis.shape
    rng = np.random.default_rng(_SEED)
    for p in PRIMES:
        target = _combine(rng.integers(1, p, size=(3, rows.shape[0])), rows, p)
        sketch = _sketched(v, n, p, rng)
        left = _combine_columns(basis, sketch, p)
        right = np.mod(_exact_product(target.astype(np.int64), sketch, p), p).astype(np.float64)
        # Solve left^T c = right^T by eliminating [left^T | right^T].
        work = np.ascontiguousarray(np.hstack([left.T, right.T]))
        if len(eliminate(work, v, p)) < v:
            continue
        c = np.zeros((v, 3))
        for i in range(v - 1, -1, -1):
            rest = _mod(work[i, v:] - _dot(work[i, i + 1 : v], c[i + 1 :], p), p)
            c[i] = _mod(rest * pow(int(work[i, i]), -1, p), p)
        return bool(np.array_equal(_combine(c.T.astype(np.int64), basis, p), target))
    return False


def independent(rows: Sparse) -> bool:
    """Are ``rows`` (v x n, csr) independent? A "yes" is a proof. Cost O(v^3 + nnz)."""
    v, n = rows.shape
    rng = np.random.default_rng(_SEED)
    return any(
        len(eliminate(_combine_columns(rows, sketch, p), sketch.shape[1], p)) == v
        for p, sketch in ((p, _sketched(v, n, p, rng)) for p in PRIMES)
    )


def _sketched(v: int, n: int, p: int, rng: np.random.Generator) -> Csr:
    """What few combinations of n columns tell v rows apart by; all columns where these are no more."""
    return _sketch(n, 4 * v + 64, p, rng) if n > 8 * v + 128 else identity_csr(n)


def identity_csr(n: int) -> Csr:
    """The n x n identity in int64 csr."""
    return sparse.csr_array(sparse.eye_array(n, dtype=np.int64, format="csr"))


def _sketch(n: int, buckets: int, p: int, rng: np.random.Generator) -> Csr:
    """n x buckets, two random residues a row: keeps the rank of what it multiplies, nearly surely."""
    place = rng.integers(0, buckets, size=(n, 2))
    value = rng.integers(1, p, size=(n, 2))
    return sparse.csr_array((value.ravel(), (np.repeat(np.arange(n), 2), place.ravel())), shape=(n, buckets))


def _exact_product(left: Array, matrix: Sparse, p: int) -> Array:
    """left @ matrix modulo p for int64 residues; columns of ``matrix`` hold below 2^18 entries."""
    return np.asarray(np.mod(np.asarray((matrix.T @ left.T).T), p))


def _combine_columns(rows: Sparse, sketch: Csr, p: int) -> Floats:
    reduced = sparse.csr_array((np.mod(rows.data, p).astype(np.int64), rows.indices, rows.indptr), rows.shape)
    return np.asarray(np.mod((reduced @ sketch).toarray(), p), dtype=np.float64)


def _dot(row: Floats, c: Floats, p: int) -> Floats:
    """row @ c modulo p; sums of 256 products at a time stay exact."""
    out = np.zeros(c.shape[1])
    for at in range(0, row.size, 256):
        out = _mod(out + _mod(row[at : at + 256] @ c[at : at + 256], p), p)
    return out


def _combine(weights: Array, rows: Sparse, p: int) -> Floats:
    """weights @ rows modulo p for csr rows, exactly.

    Residues are below 2^22, so products stay below 2^44 and sums of up to 2^18 of them in int64.
    """
    reduced = sparse.csr_array((np.mod(rows.data, p).astype(np.int64), rows.indices, rows.indptr), rows.shape)
    out = np.zeros((weights.shape[0], rows.shape[1]), dtype=np.int64)
    for at in range(0, rows.shape[0], 2**18):
        out = np.mod(out + np.asarray((reduced[at : at + 2**18].T @ weights[:, at : at + 2**18].T).T), p)
    return out.astype(np.float64)
