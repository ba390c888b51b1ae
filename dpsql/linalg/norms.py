"""Norms of the columns of a product of integers: L1, squared L2, and by blocks of rows; exact, and rough to check them.

Floating point gives a squared norm below the true one for about half of all strategies, and a sensitivity that is too
small is a privacy fault. Sums run in float64 or int64 only where every partial sum provably fits, in Python integers
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Flags, Floats, Ints, Matrix, Sparse
from dpsql.common.pattern_block import PatternBlock, sizes_of
from dpsql.linalg.columns import columns_at, distinct_columns
from dpsql.linalg.exact import CHUNK, SPARSE_COST, max_abs, product_chunks, whole
from dpsql.linalg.forms import dense, is_sparse
from dpsql.linalg.linked import linked_parts

_WRITTEN_OUT = 2**26  # entries of a sparse matrix that is written out
_ROOT_BITS = 32
_FEW_PARTS = 16
_TINY = 4  # rows, or blocks of rows, and columns together
_WORTH_PARTING = 2**26  # multiplications of a product from which its parts are looked for


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a block diagonal matrix: the ``rows`` and the ``inside`` (columns of the matrix) that it takes.

    ``columns``: the distinct ones of what it is multiplied by; ``label`` (N,): each one's place among them, -1 for
    zeros. ``blocks``: the sizes of its blocks of rows.
    """

    rows: Ints
    inside: Ints
    columns: Sparse
    label: Ints
    blocks: tuple[int, ...]

    def of(self, mixing: Matrix) -> Array:
        """The part's own matrix."""
        return np.asarray(dense(mixing)[np.ix_(self.rows, self.inside)])


def column_norms(mixing: Matrix, columns: Sparse, parted: Sequence[Part] | None = None) -> tuple[int, int]:
    """(largest L1, largest squared L2) norm of a column of mixing @ columns, exactly.

    Cost: one p x v x N product, of each part over its distinct columns where ``mixing`` falls into few parts; where
    nothing is negative and columns hold few entries, O(nnz v) instead. Shapes as in ``product_chunks``. ``parted``:
    the parts, where they are known.
    """
    parted = parts_of(mixing, columns) if parted is None else parted
    if parted is not None:
        each = [each_norm(part.of(mixing), part.columns, 1, 2) for part in parted]
        l1, l2 = (_largest_sum([(one[i], part.label) for one, part in zip(each, parted, strict=True)]) for i in (0, 1))
        return l1, l2
    sparse_norms = few_entries(mixing, columns)
    if sparse_norms is not None:
        return int(sparse_norms[0]), int(sparse_norms[1])
    if is_sparse(mixing):
        thin = [_sparse_norms(mixing, columns, order) for order in (1, 2)]
        if thin[0] is not None and thin[1] is not None:
            return int(thin[0].max(initial=0)), int(thin[1].max(initial=0))
    l1 = l2 = 0
    for chunk in product_chunks(mixing, columns):
        a, b = _norms_of(chunk)
        l1, l2 = max(l1, a), max(l2, b)
    return l1, l2


def block_norm(mixing: Matrix, columns: Sparse, blocks: Sequence[int], parted: Sequence[Part] | None = None) -> int:
    """The largest, over columns of mixing @ columns, sum over blocks of rows of the largest absolute entry, exactly.

    Of a block for patterns it is the steps r of a change (``sizes_of``) in place of that entry, and with K such blocks
    2 K - 1 are added: r = ceil(g) + ceil(g') < g + g' + 2 is no convex function as the gauge g + g' is, and a unit may
    change whole numbers that lie between the columns. ``blocks``: sizes that add up to p. Cost and shapes as
    ``product_chunks``, less for rows alone in a block where few entries meet, and of each part over its distinct
    columns where ``mixing`` falls into few; sums beyond 2^53 in Python integers. ``parted``: the parts, where they are
    known.
    """
    if patterns := sum(isinstance(block, PatternBlock) for block in blocks):
        steps = max((max(some) for some in _by_blocks(mixing, columns, blocks) if some), default=0)
        return steps + 2 * patterns - 1
    parted = parts_of(mixing, columns, blocks) if parted is None else parted
    if parted is None:
        return max((max(some) for some in _by_blocks(mixing, columns, blocks) if some), default=0)
    each = [
        [norm for some in _by_blocks(part.of(mixing), part.columns, part.blocks) for norm in some] for part in parted
    ]
    return _largest_sum([(norms, part.label) for norms, part in zip(each, parted, strict=True)])


def _by_blocks(mixing: Matrix, columns: Sparse, blocks: Sequence[int]) -> Iterator[list[int]]:
    """``block_norm`` of every column, some after the other."""
    patterns, rest = pattern_rows(blocks)
    if patterns:
        for chunk in product_chunks(mixing, columns):
            sums: Array = np.zeros(chunk.shape[1], dtype=object)
            for rows, block in patterns:
                sums = sums + sizes_of(whole(chunk[rows]), block.limit)
            if rest.any():
                starts = block_starts([size for size in blocks if not isinstance(size, PatternBlock)])
                sums = sums + np.maximum.reduceat(whole(np.abs(chunk[rest])), starts, axis=0).sum(axis=0)
            yield sums.tolist()
        return
    alone = np.repeat(np.array(blocks) == 1, blocks)
    added = _added(mixing[alone], columns) if alone.any() else None
    if added is not None:
        mixing, blocks = mixing[~alone], [size for size in blocks if size > 1]
        if not blocks:
            yield [int(value) for value in added.tolist()]
            return
    starts, at = block_starts(blocks), 0
    for chunk in product_chunks(mixing, columns):
        tops = np.maximum.reduceat(np.abs(chunk), starts, axis=0) if chunk.size else chunk
        small = tops.dtype != object and len(starts) * int(tops.max(initial=0)) < 2**53
        sums = whole((tops.astype(np.float64) if small else whole(tops)).sum(axis=0))
        if added is not None:
            sums = sums + added[at : at + len(sums)]
        yield sums.tolist()
        at += len(sums)


def _added(mixing: Matrix, columns: Sparse) -> Ints | None:
    """The L1 norm of every column of mixing @ columns (N,), exactly, by a product of sparse matrices.

    None where that would take longer than a dense one, or 62 bits may not hold it.
    """
    if mixing.dtype == object:
        return None
    rows, tallest = sparse.csr_array(mixing), int(np.diff(sparse.csc_array(columns).indptr).max(initial=0))
    if (
        SPARSE_COST * rows.nnz * columns.nnz >= rows.shape[0] * rows.shape[1] ** 2 * columns.shape[1]
        or max_abs(rows) * rows.shape[0] * max_abs(columns) * tallest >= 2**62
    ):
        return None
    return np.ravel(abs(rows.astype(np.int64) @ sparse.csc_array(columns).astype(np.int64)).sum(axis=0))


def block_starts(blocks: Sequence[int]) -> Ints:
    """The first row of each block, (k,)."""
    return np.concatenate([[0], np.cumsum(blocks)[:-1]]).astype(np.int64)


def pattern_rows(blocks: Sequence[int]) -> tuple[list[tuple[Ints, PatternBlock]], Flags]:
    """(the rows of each block for patterns, with the block; which of all rows (p,) are in none)."""
    rest, found = np.ones(sum(blocks), dtype=np.bool_), list[tuple[Ints, PatternBlock]]()
    if not any(isinstance(block, PatternBlock) for block in blocks):
        return found, rest
    for start, block in zip(block_starts(blocks).tolist(), blocks, strict=True):
        if isinstance(block, PatternBlock):
            found.append((np.arange(start, start + block), block))
            rest[start : start + block] = False
    return found, rest


def parts_of(mixing: Matrix, columns: Sparse, blocks: Sequence[int] = ()) -> list[Part] | None:
    """The parts of a block diagonal ``mixing``; by ``blocks``, if any, those that share no block of rows either.

    The norm (or its square) of a column of the product is the sum of those of its parts. None where the product is
    small, or there is one part, or many. Cost O(p v + nnz).
    """
    if is_sparse(mixing) or mixing.ndim != 2 or mixing.size * columns.shape[1] < _WORTH_PARTING:
        return None
    if any(isinstance(block, PatternBlock) for block in blocks):
        return None
    sizes = np.array(blocks, dtype=np.int64) if len(blocks) else np.ones(mixing.shape[0], dtype=np.int64)
    owner, k = np.repeat(np.arange(sizes.size), sizes), sizes.size
    left, right = np.nonzero(mixing)
    component = linked_parts(k + mixing.shape[1], (owner[left], right + k))[1]
    small = np.bincount(component) <= _TINY  # all of these are one part
    label = np.unique(np.where(small[component], -1, component), return_inverse=True)[1]
    number = int(label.max()) + 1
    if not 1 < number <= _FEW_PARTS:
        return None
    held = sparse.csr_array(columns)
    found: list[Part] = []
    for one in range(number):
        rows, inside = np.flatnonzero(label[owner] == one), np.flatnonzero(label[k:] == one)
        mine = sparse.csr_array(held[inside])
        alike = distinct_columns(mine)
        distinct = sparse.csc_array(columns_at(mine, alike.keep))
        found.append(Part(rows, inside, distinct, alike.label, tuple(sizes[label[:k] == one].tolist())))
    return found


def _largest_sum(parts: Sequence[tuple[list[int], Ints]]) -> int:
    """The largest sum, over all columns, of what the parts have for it (0 for the label -1), exactly."""
    fits = sum(max(values, default=0) for values, _ in parts) < 2**62
    total = np.zeros(parts[0][1].size, dtype=np.int64 if fits else object)
    for values, label in parts:
        total += np.array([*values, 0], dtype=total.dtype)[label]
    return int(total.max(initial=0))


def each_norm(mixing: Matrix, columns: Sparse, *orders: int) -> tuple[list[int], ...]:
    """The L1 (of ``orders`` 1) or squared L2 (2) norm of every column of mixing @ columns, exactly.

    Cost and shapes as ``product_chunks``, of a sparse ``mixing`` the entries of the product; Python integers where sums
    leave 2^53.
    """
    thin = [_sparse_norms(mixing, columns, order) for order in orders] if is_sparse(mixing) else [None]
    if all(norms is not None for norms in thin):
        return tuple([int(value) for value in norms] for norms in thin if norms is not None)
    found: tuple[list[int], ...] = tuple([] for _ in orders)
    for chunk in product_chunks(mixing, columns):
        size = np.abs(chunk)
        top = int(size.max(initial=0))
        for out, order in zip(found, orders, strict=True):
            if size.dtype == object or size.shape[0] * top**order >= 2**53:
                out.extend((whole(size) ** order).sum(axis=0).tolist())
            else:
                out.extend(int(value) for value in (size.astype(np.float64, copy=False) ** order).sum(axis=0))
    return found


def _sparse_norms(mixing: Matrix, columns: Sparse, order: int) -> Array | None:
    """``each_norm`` of a sparse product (N,), in int64 where that holds it; None where the product might leave that."""
    tallest = int(np.diff(sparse.csc_array(columns).indptr).max(initial=0))
    widest = int(np.diff(sparse.csc_array(mixing).indptr).max(initial=0))
    top = max_abs(mixing) * max_abs(columns) * tallest
    if top >= 2**62:
        return None
    B = sparse.csc_array(mixing.astype(np.int64) @ sparse.csc_array(columns).astype(np.int64))
    size = np.abs(B.data)
    size = size if top**order * max(1, tallest * widest) < 2**62 else whole(size)
    found = np.zeros(B.shape[1], dtype=size.dtype)
    held = np.flatnonzero(np.diff(B.indptr))
    if held.size:
        found[held] = np.add.reduceat(size**order, B.indptr[held])
    return found


def few_entries(mixing: Matrix, columns: Sparse) -> tuple[float, float] | None:
    """Both norms through mixing^T mixing where mixing, columns >= 0 and columns are very sparse; else None.

    Works in the dtype of ``mixing``: for integers None as well where int64 might not hold the sums.
    """
    p, N = mixing.shape[0], columns.shape[1]
    if is_sparse(mixing) or 20 * columns.nnz > N * p or N < 4096:
        return None
    if mixing.min() < 0 or columns.data.min() < 0:
        return None
    if mixing.dtype.kind == "i":
        weight = int(np.asarray(columns.sum(axis=0)).max())
        if p * (int(mixing.max()) * weight) ** 2 >= 2**62:
            return None
    M = mixing.T @ mixing
    rows: Csr = sparse.csr_array(columns.T.astype(mixing.dtype))
    l1 = (rows @ mixing.sum(axis=0)).max()
    l2 = M.dtype.type(0)
    for at in range(0, N, CHUNK):
        part = rows[at : at + CHUNK]
        l2 = max(l2, part.multiply(part @ M).sum(axis=1).max())
    return l1, l2


def largest_norm(mixing: Matrix, columns: Sparse, order: int, blocks: Sequence[int] = ()) -> float:
    """Largest L1 (order 1) or squared L2 (order 2) norm of a column of mixing @ columns, in floating point.

    By ``blocks``, if any: the sum over these of the largest absolute entry.

    Right to a relative 1e-5; at most a fifth of the cost of ``column_norms``, to check a known norm against.
    """
    csc = sparse.csc_array(columns)
    if pattern_rows(blocks)[0]:
        return _with_patterns(mixing, csc, blocks)
    if blocks:
        mixing, blocks = _pairs_alone(mixing, blocks)
        alone = np.repeat(np.array(blocks) == 1, blocks)
        sizes = _sizes(mixing[alone], csc, 1)
        if not alone.all():
            rows, starts = mixing[~alone].astype(np.float64), block_starts([size for size in blocks if size > 1])
            if _is_sparser(rows, csc):
                rows = sparse.csr_array(rows)
            for at in range(0, csc.shape[1], CHUNK):
                sizes[at : at + CHUNK] += _block_sizes(rows @ csc[:, at : at + CHUNK].astype(np.float64), starts)
        return float(sizes.max(initial=0.0))
    return float(_sizes(mixing, csc, order).max(initial=0.0))


def _with_patterns(mixing: Matrix, csc: Sparse, blocks: Sequence[int]) -> float:
    """``largest_norm`` where some blocks are for patterns."""
    patterns, rest = pattern_rows(blocks)
    starts = block_starts([size for size in blocks if not isinstance(size, PatternBlock)])
    written, largest = sparse.csr_array(mixing.astype(np.float64)), 0.0
    for at in range(0, csc.shape[1], CHUNK):
        chunk = dense(written @ csc[:, at : at + CHUNK].astype(np.float64))
        sizes = _block_sizes(chunk[rest], starts) if rest.any() else np.zeros(chunk.shape[1])
        for rows, block in patterns:
            sizes = sizes + sizes_of(chunk[rows], block.limit)
        largest = max(largest, float(sizes.max(initial=0.0)))
    return largest


def _pairs_alone(mixing: Matrix, blocks: Sequence[int]) -> tuple[Matrix, list[int]]:
    """The same norm with a block for each row of a pair: max(|a|, |b|) = |a + b| / 2 + |a - b| / 2."""
    pairs = block_starts(blocks)[np.array(blocks) == 2]
    if is_sparse(mixing) or not pairs.size:
        return mixing, [*blocks]
    held = mixing.astype(np.float64)
    held[pairs], held[pairs + 1] = (held[pairs] + held[pairs + 1]) / 2, (held[pairs] - held[pairs + 1]) / 2
    return held, [one for size in blocks for one in ((1, 1) if size == 2 else (size,))]


def _block_sizes(entries: Matrix, starts: Ints) -> Floats:
    """The sum over blocks of rows, which begin at ``starts``, of the largest absolute entry of each column."""
    if not is_sparse(entries):
        return np.asarray(np.maximum.reduceat(np.abs(entries), starts, axis=0).sum(axis=0), dtype=np.float64)
    held = sparse.csc_array(entries)
    held.sort_indices()
    column = np.repeat(np.arange(held.shape[1]), np.diff(held.indptr))
    block = np.searchsorted(starts, held.indices, side="right")
    first = np.flatnonzero(np.diff(column * (starts.size + 1) + block, prepend=-1))
    largest = np.maximum.reduceat(np.abs(held.data), first) if first.size else np.zeros(0)
    return np.bincount(column[first], weights=largest, minlength=held.shape[1]).astype(np.float64)


def _sizes(mixing: Matrix, csc: Sparse, order: int) -> Floats:
    """The L1 or squared L2 norm of every column of mixing @ csc (N,), as ``largest_norm``."""
    if not mixing.shape[0]:
        return np.zeros(csc.shape[1])
    if _is_sparser(mixing, csc):
        # Column by column, as they lie in memory.
        held = sparse.csr_array(mixing.astype(np.float64))  # before it is sparse, which Python integers cannot be
        entries = sparse.csr_array(csc.T) @ sparse.csr_array(held.T)
        np.abs(entries.data, out=entries.data) if order == 1 else np.square(entries.data, out=entries.data)
        return np.asarray(entries @ np.ones(entries.shape[1]))
    left = np.asarray(dense(mixing)).astype(np.float32)
    scale = float(np.abs(left).max(initial=0.0)) or 1.0
    left /= scale
    found = np.zeros(csc.shape[1])
    for at in range(0, csc.shape[1], CHUNK):
        chunk = left @ csc[:, at : at + CHUNK].astype(np.float32).toarray()
        norms = np.abs(chunk, out=chunk).sum(axis=0) if order == 1 else np.einsum("ij,ij->j", chunk, chunk)
        found[at : at + CHUNK] = norms
    return found * scale**order


def _is_sparser(mixing: Matrix, csc: Sparse) -> bool:
    """Whether a product of sparse matrices takes less than one written out, as for single counts of many groups."""
    p, v = mixing.shape
    few = SPARSE_COST * (mixing.nnz if is_sparse(mixing) else np.count_nonzero(mixing)) * csc.nnz
    return bool((is_sparse(mixing) and p * v > _WRITTEN_OUT) or few < p * v * csc.shape[1] * v)


def _norms_of(chunk: Array) -> tuple[int, int]:
    if chunk.size == 0:
        return 0, 0
    size = np.abs(chunk)
    p, top = chunk.shape[0], int(size.max())
    values = size.astype(np.float64)
    squares = np.einsum("ij,ij->j", values, values)
    sums = values.sum(axis=0)
    if p * top * top < 2**53:
        return int(sums.max()), int(squares.max())
    # Rounded norms are right to a relative 1e-11 (p < 10^4); only columns that may be the
    # largest are summed again in Python integers.
    near = (squares >= squares.max() * (1 - 1e-9)) | (sums >= sums.max() * (1 - 1e-9))
    exact = whole(size[:, near])
    return int(max(exact.sum(axis=0))), int(max((exact * exact).sum(axis=0)))


def squared_sum(squares: Sequence[int]) -> int:
    """(sum of the square roots)^2, rounded up to a whole number: each root is rounded up in 2^-32 parts."""
    scale = 1 << (2 * _ROOT_BITS)
    roots = 0
    for square in squares:
        root = isqrt(square * scale)
        roots += root + (root * root < square * scale)
    return -(-roots * roots // scale)
