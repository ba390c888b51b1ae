"""Integer products of any size, without rounding.

int64 products wrap silently. The data are split into words so short that every product of a word provably fits, by a
bound on the public matrix alone; the words are put together again as Python integers. How many there are follows from
a public bound on the data, and no check looks at the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Flags, Floats, Ints, Matrix, Sparse
from dpsql.errors import DataError
from dpsql.linalg.forms import dense, is_sparse

CHUNK = 4096
_LEAST = 4  # bits of the data in a word, at least
SPARSE_COST = 50  # a product of two sparse entries takes as long as so many dense ones

Word = TypeVar("Word", Ints, Floats)


def room(growth: int) -> int:
    """Bits of a word whose product fits 62 bits, where |B x| <= ``growth`` |x|."""
    return 62 - growth.bit_length()


def words_of(x: Sequence[int] | NDArray[np.object_], bits: int, width: int, last: int = 0) -> list[Ints]:
    """x = sum_k word_k 2^(width k) for |x| < 2^bits: words from 0 to below 2^width, the last one signed.

    The last is below 2^max(width, last) in size.
    """
    rest, found = np.array(x, dtype=object), []
    while bits > max(width, last):
        found.append((rest & ((1 << width) - 1)).astype(np.int64))
        rest, bits = rest >> width, bits - width
    return [*found, rest.astype(np.int64)]


def by_words(
    apply: Callable[[Ints], NDArray[np.int64] | NDArray[np.object_]],
    x: Sequence[int],
    bits: int,
    width: int,
    last: int = 0,
) -> list[int]:
    """B x exactly, where ``apply`` is B on one word of x as ``words_of`` cuts it: exact for whatever a word holds.

    ``bits``: a public bound, |x| < 2^bits. ``apply`` gives int64 or Python integers. Cost: bits / width products.
    """
    return [int(value) for value in _joined(apply, words_of(x, bits, width, last), width)]


def _joined(
    apply: Callable[[Word], NDArray[np.int64] | NDArray[np.object_]], words: Sequence[Word], width: int
) -> NDArray[np.object_]:
    """sum_k apply(word_k) 2^(width k) in Python integers."""
    total = apply(words[-1]).astype(object)
    for word in reversed(words[:-1]):
        total = (total << width) + apply(word).astype(object)
    return total


def whole(matrix: Array) -> NDArray[np.object_]:
    """The entries as Python integers; floats hold integers below 2^53, whose squares as floats would be rounded."""
    return (matrix.astype(np.int64) if matrix.dtype == np.float64 else matrix).astype(object)


def _row_bound(matrix: Matrix) -> int:
    """A bound on the largest sum of absolute values of a row."""
    return max_abs(matrix) * int(matrix.shape[1])


def word_width(matrix: Matrix) -> int:
    """How many bits of the data one int64 product with ``matrix`` (p x v integers) can take.

    w + log2(columns x largest |entry|) < 63. Raises DataError where less than 4 bits are left; it
    depends on the public matrix alone, so call it before a charge.
    """
    width = room(_row_bound(matrix))
    if width < _LEAST:
        raise DataError("the strategy's integers are too large to measure exactly; plan with a larger tolerance")
    return width


def product(matrix: Matrix, vector: Sequence[int], bits: int) -> list[int]:
    """``matrix @ vector``: integer matrix (p x v, dense or sparse) times Python ints (v,), exactly.

    ``bits``: a public bound, |vector| < 2^bits. Raises DataError as ``word_width``.
    """
    rows, columns = matrix.shape
    if rows == 0 or columns == 0:
        return [0] * rows
    width, held = word_width(matrix), matrix.astype(np.int64)
    return by_words(lambda word: np.asarray(held @ word), vector, bits, width)


def product_bits(matrix: Matrix, bits: int) -> int:
    """A bound on ``product``: |matrix @ vector| < 2^result for every |vector| < 2^bits."""
    return bits + _row_bound(matrix).bit_length()


def product_chunks(mixing: Matrix, columns: Sparse) -> Iterator[Array]:
    """Yield exact dense chunks of mixing @ columns (p x up to 4096 columns).

    ``mixing`` p x v integers (dense or csr), ``columns`` v x N integer csc. Each chunk is float64 where
    |mixing| |columns| stays below 2^53, int64 below 2^63, else Python integers.
    """
    columns = sparse.csc_array(columns)
    bound = 0
    if columns.nnz:
        bound = max_abs(mixing) * int(np.diff(columns.indptr).max()) * max_abs(columns)
    if bound < 2**53:
        yield from float_chunks(mixing, columns)
        return
    kind: type = np.int64 if bound < 2**63 else object
    full: Array = dense(mixing).astype(kind) if kind is np.int64 else whole(dense(mixing))
    for at in range(0, columns.shape[1], CHUNK):
        yield full @ columns[:, at : at + CHUNK].toarray().astype(kind)


def float_chunks(mixing: Matrix, columns: Sparse) -> Iterator[Floats]:
    """The same in floats: of a ``mixing`` of floats, or of integers so small that no sum is rounded."""
    left = mixing.astype(np.float64, copy=False)
    for at in range(0, columns.shape[1], CHUNK):
        part = columns[:, at : at + CHUNK].astype(np.float64)
        if is_sparse(mixing):
            yield dense(left @ part)
        elif part.nnz * SPARSE_COST <= part.shape[0] * part.shape[1]:
            yield np.asarray(sparse.csr_array(part.T) @ left.T).T
        else:
            yield left @ part.toarray()


def max_abs(matrix: Matrix) -> int:
    """Largest absolute entry as a Python integer."""
    data: Array = np.asarray(matrix.data if is_sparse(matrix) else matrix)
    return max((abs(int(data.max())), abs(int(data.min()))), default=0) if data.size else 0


def products(mixing: Matrix, left: Sparse, right: Sparse) -> Array:
    """P^T Q (M x N) for P = mixing @ left and Q = mixing @ right, exactly: int64 below 2^53, else Python integers.

    Long entries are cut into words so short that sums of their products stay below 2^53. Cost: a product of
    p M N for each pair of words; where few entries meet and int64 holds all sums, one for each pair that does. Shapes
    as in ``product_chunks``.
    """
    both = _reached(mixing, left) & _reached(mixing, right)  # all other rows add nothing
    if not both.any():
        return np.zeros((left.shape[1], right.shape[1]), dtype=np.int64)
    mixing = mixing if both.all() else mixing[both]
    few = sparse_products(mixing, left, right)
    if few is not None:
        return np.asarray(few.toarray())
    P = _whole_product(mixing, left)
    Q = P if right is left else _whole_product(mixing, right)
    p, tops = P.shape[0], [max_abs(matrix) for matrix in (P, Q)]
    if object not in (P.dtype, Q.dtype) and p * tops[0] * tops[1] < 2**53:
        held = P.astype(np.float64, copy=False)
        other = held if Q is P else Q.astype(np.float64, copy=False)  # a matrix with itself takes half as long
        return np.asarray(held.T @ other).astype(np.int64)
    width = (53 - p.bit_length()) // 2
    lefts, rights = (
        [word.astype(np.float64) for word in words_of(whole(matrix), top.bit_length(), width)]
        for matrix, top in zip((P, Q), tops, strict=True)
    )
    return _joined(
        lambda right: _joined(lambda left: (left.T @ right).astype(np.int64), lefts, width),
        rights,
        width,
    )


def products_above(mixing: Matrix, columns: Sequence[Sparse], most: int) -> tuple[list[Array], int]:
    """(K, bits): for each of ``columns`` (n x N) whole numbers K (N x N) with K 2^bits never below P^T P.

    P = mixing @ columns. Sums of (2 ``most``)^2 of them fit int64. One product in floats each: of p terms it is off by
    no more than (p + 3) / 2^53 times the squared norm of the longest column of P, of which twice as much is added.
    """
    moved = [_whole_product(mixing, one).astype(np.float64) for one in columns]
    above = []
    for P in moved:
        slack = (P.shape[0] + 8) * 2.0**-52 * float(np.einsum("ij,ij->j", P, P).max(initial=0.0))
        above.append(P.T @ P + slack)
    top = max(float(np.abs(K).max(initial=0.0)) for K in above)
    bits = max(0, int(np.frexp(top)[1]) + 2 * (2 * most).bit_length() - 61)
    return [np.ceil(np.ldexp(K, -bits)).astype(np.int64) for K in above], bits


def _reached(mixing: Matrix, columns: Sparse) -> Flags:
    """The rows of mixing (p x v) that may have entries in mixing @ columns."""
    used = np.bincount(sparse.csc_array(columns).indices, minlength=columns.shape[0]) > 0
    return np.asarray((mixing != 0) @ used) > 0


def _whole_product(mixing: Matrix, columns: Sparse) -> Array:
    chunks = list(product_chunks(mixing, columns))
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis=1)


def sparse_products(mixing: Matrix, left: Sparse, right: Sparse) -> Csr | None:
    """``products`` of sparse matrices in int64, or None where a sum might not fit or too many entries meet."""
    tallest = max(int(np.diff(sparse.csc_array(columns).indptr).max(initial=0)) for columns in (left, right))
    if max_abs(mixing) * max(max_abs(left), max_abs(right)) * tallest >= 2**62:
        return None
    used = np.diff(mixing.tocsc().indptr) if is_sparse(mixing) else np.count_nonzero(mixing, axis=0)
    meet = sum(used.astype(np.float64) @ np.diff(sparse.csr_array(columns).indptr) for columns in (left, right))
    if meet * SPARSE_COST > mixing.shape[0] * (left.shape[1] + right.shape[1]):
        return None
    held = sparse.csr_array(mixing)
    P, Q = (sparse.csr_array(held @ sparse.csr_array(columns)) for columns in (left, right))
    deep = min(int(np.diff(sparse.csc_array(matrix).indptr).max(initial=0)) for matrix in (P, Q))
    if max_abs(P) * max_abs(Q) * deep >= 2**62:
        return None
    meet = int(np.diff(P.indptr).astype(np.float64) @ np.diff(Q.indptr))
    if meet * SPARSE_COST > P.shape[0] * P.shape[1] * Q.shape[1]:
        return None
    return sparse.csr_array(P.T @ Q)
