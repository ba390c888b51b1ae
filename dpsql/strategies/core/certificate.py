"""The dual weights behind a lower bound, kept so that anyone can evaluate the bound again.

For every lambda >= 0 with sum 1 over the columns that one record can move, ||W C Lambda^1/2||_*^2 is at most the error
of every Gaussian matrix mechanism (``dpsql.strategies.gaussian.optimal``; C the contributions). So a bound need not be
believed: the weights are evaluated on the workload itself. Blocks that share no column have one lambda together: with
t_b^2 the bounds of the blocks and weights in proportion to them, sum_b t_b (t_b^2 / sum t^2)^1/2 squared is sum_b
t_b^2, their sum. For a product of workloads the bounds of the factors multiply (``dpsql.strategies.core.simple``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Floats, Ints, Sparse
from dpsql.common.numerics import AT_ONCE, ROUNDING
from dpsql.errors import DataError
from dpsql.linalg.basis import Basis
from dpsql.strategies.core.reduce import Block, cholesky, reduce_workload
from dpsql.strategies.core.time_left import PRODUCT
from dpsql.workloads.families.matrix import Workload


@dataclass(frozen=True, eq=False)
class Certificate:
    """``weights`` (k,) on the columns ``places`` (k,) of W @ contributions; for a product one a factor instead."""

    places: Ints
    weights: Floats
    factors: tuple[Certificate, ...] = ()


def of_factors(factors: tuple[Certificate, ...]) -> Certificate:
    """The certificate of a Kronecker product."""
    return Certificate(np.zeros(0, dtype=np.int64), np.zeros(0), factors)


def of_blocks(parts: list[tuple[Block, Floats, float]]) -> Certificate:
    """The certificate of blocks that share no column, from (block, its weights (N,), its lower bound)."""
    places = [block.places if block.copies is None else block.copies.places.ravel() for block, _, _ in parts]
    weights = [np.tile(lam * (lower / float(lam.sum())), block.count) for block, lam, lower in parts]
    return Certificate(np.concatenate(places).astype(np.int64), np.concatenate(weights))


def single_weights(block: Block) -> Floats:
    """Weights (N,) for a bundle of rows that share no column: each row's error on its largest entry.

    The least error of such a row is its squared weight times its largest squared entry, the bound of all weight there.
    """
    columns = sparse.csr_array(block.columns)
    size = abs(columns)
    out = np.zeros(columns.shape[1])
    for i in range(columns.shape[0]):
        part = slice(size.indptr[i], size.indptr[i + 1])
        at = part.start + int(np.argmax(size.data[part]))
        out[size.indices[at]] = float(block.gram[i]) * float(size.data[at]) ** 2
    return out


def equal_weights_bound(block: Block, fits: Callable[[float], bool]) -> float:
    """A lower bound on the least error of a block (not a bundle of single rows), of equal weights on its N columns.

    That is (tr K^1/2)^2 for K = R Y Y^T R^T / N, R^T R = gram. Where the time for its eigenvalues does not fit, which
    ``fits`` is asked, at least (tr K)^3 / tr K^2 (Hoelder), and where one product does not, tr K.
    """
    v, N = block.columns.shape
    columns = sparse.csr_array(block.columns).astype(np.float64)
    S = sparse.csr_array(columns @ columns.T)
    plain = v == S.nnz and not (S - sparse.eye_array(v, format="csr")).count_nonzero()
    total = float(np.asarray(S.multiply(block.gram).sum()))
    found: float = total / N
    if plain and fits(PRODUCT * v**3):
        s = scipy.linalg.eigvalsh(block.gram)
        slack = (64.0 + 4.0 * v) * np.finfo(np.float64).eps * float(np.linalg.norm(block.gram))
        found = max(found, float(np.sqrt(np.maximum(s - slack, 0.0)).sum()) ** 2 / N)
        return found * (1.0 - ROUNDING)
    if plain or fits(10.0 * PRODUCT * S.nnz * v):  # a sparse product takes ten times as long
        product = block.gram if plain else np.asarray(S @ block.gram)
        found = max(found, total**3 / (N * float(np.einsum("ij,ji->", product, product))))
    return found * (1.0 - ROUNDING)


def dual_value(W: Workload, certificate: Certificate, basis: Basis | None = None, image: Sparse | None = None) -> float:
    """The lower bound that the weights prove for W; below the exact value by rounding at most, never above it.

    ``basis``: independent rows and coordinates of W in them, where they are at hand, and ``image``: these rows
    @ contributions; they need not be well conditioned, since what rounding can have added to an eigenvalue is
    taken off it. Cost O(nnz + v^2 k + v^3).
    Raises DataError for weights that do not fit W: wrong lengths, unknown columns, negative, not finite, all zero.
    """
    if certificate.factors:
        if len(certificate.factors) != len(W.factors) or W.inner.diagonal() is not None:
            raise DataError("strategy: the certificate is that of another product")
        out = 1.0
        for factor, part in zip(W.factors, certificate.factors, strict=True):
            out *= dual_value(factor, part)
        return out
    places, lam = certificate.places, certificate.weights
    size = W.changes
    if places.ndim != 1 or places.shape != lam.shape or places.size == 0:
        raise DataError("strategy: a certificate has one weight for each of its columns")
    if int(places.min()) < 0 or int(places.max()) >= size:
        raise DataError(f"strategy: a certificate names columns between 0 and {size - 1}")
    if not np.isfinite(lam).all() or float(lam.min()) < 0 or not 0 < float(lam.sum()) < np.inf:
        raise DataError("strategy: the weights of a certificate are finite, not negative and not all zero")
    lam = lam / float(lam.sum())
    if basis is not None and image is not None:
        return nuclear_norm(basis.gram(W.inner), sparse.csc_array(image)[:, places], lam) ** 2
    total = 0.0
    for block in reduce_workload(W):
        if block.copies is not None:
            # A column of a copy that is alike another is named by the first of them; weight elsewhere is left out.
            full = np.bincount(places, weights=lam, minlength=size)
            each, times = np.unique(full[block.copies.places], axis=0, return_counts=True)
            total += sum(
                int(k) * nuclear_norm(block.gram, block.columns, own) for own, k in zip(each, times, strict=True)
            )
            continue
        Y = _image(block.basis, W, places)
        if block.solo:
            total += float(np.sqrt(block.gram * (Y.power(2) @ lam)).sum())
        else:
            total += nuclear_norm(block.gram, Y, lam)
    return total**2


def _image(rows: Sparse, W: Workload, places: Ints) -> Sparse:
    return sparse.csc_array(sparse.csc_array(W.moved(rows))[:, places])


def nuclear_norm(gram: Floats, Y: Sparse, lam: Floats) -> float:
    """A lower bound on the nuclear norm of R Y Lambda^1/2, R^T R = gram.

    Rows of Y are scaled to length 1 under lambda first. The eigenvalues s of R (Y Lambda Y^T) R^T are computed with
    an error of at most a small multiple of v eps ||R||^2 ||Y Lambda Y^T|| (Weyl: no eigenvalue moves farther than the
    norm of the perturbation), so s less that is no larger than the true one.
    """
    v, k = Y.shape
    inner = np.zeros((v, v))
    for at in range(0, k, AT_ONCE):
        part = Y[:, at : at + AT_ONCE].toarray() * np.sqrt(lam[at : at + AT_ONCE])
        inner += part @ part.T
    length = np.sqrt(np.diag(inner))
    length[length == 0] = 1.0
    inner /= np.outer(length, length)
    R = cholesky(gram * np.outer(length, length))
    s = scipy.linalg.eigvalsh(R @ inner @ R.T)
    eps = (64.0 + 4.0 * v) * np.finfo(np.float64).eps
    slack = eps * float(np.linalg.norm(R)) ** 2 * float(np.linalg.norm(inner))
    return float(np.sqrt(np.maximum(s - slack, 0.0)).sum())
