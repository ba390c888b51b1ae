"""How far one unit can move B x in L1, or by blocks of rows, where its contributions are too many to be listed.

The norm of B c, the sum over blocks of rows of the largest entry (of all entries, where rows are single), is convex,
and c is a sum of corners. So it is at most

- of each source, its ``most`` longest columns of different classes: exact where no block has rows of two classes;
- of units tied to the rows that they are counted by (``Tied``), at each number s of classes, the s longest columns of
  different classes, one of which may have the other rows (or a corner without a class has them): exact there, too;
- for any partition of the rows that leaves blocks whole, the sum over its parts. Rows that share no entry of ``mixing``
  with others tell few corners of a class apart, so that all that a unit changes of them can be listed, or is nested
  (``dpsql.workloads.compile.nested``): exact for these rows.

The least of these is taken. A block for 0/1 patterns with at most l ones (``PatternBlock``) is bounded by itself, one
source after the other, and added: no sum of at most ``most`` columns of different classes has an entry above the sum of
the ``most`` largest of its row, or a sum above that of the ``most`` largest sums of columns. The larger of the one and
of 1/l of the other, rounded up, bounds the steps of each sign. That is exact where no row is moved by two columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Ints, Matrix, Sparse
from dpsql.common.pattern_block import PatternBlock
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.exact import max_abs
from dpsql.linalg.linked import linked_parts
from dpsql.linalg.norms import pattern_rows
from dpsql.workloads.compile.histograms import MAX_ENTRIES
from dpsql.workloads.compile.nested import largest_sums
from dpsql.workloads.families.contributions import Contributions, Part, Tied
from dpsql.workloads.families.reach import ALL_PRODUCTS

ROW_PARTS = 8  # of the rows that are looked at one by one; rows whose contribution bound is computed


def pure_norm(
    mixing: Matrix,
    basis: Sparse,
    parts: Sequence[Part],
    tied: Tied | None,
    blocks: Sequence[int],
    l1_bounds: Sequence[int],
) -> int:
    """A whole number that no norm of mixing @ basis @ c exceeds, for c what one unit can change of ``parts``.

    ``blocks``: the sizes of blocks of rows; none where all are single. ``l1_bounds``: what the L1 norm of each source
    does not exceed.
    """
    patterns, rest = pattern_rows(blocks)
    if patterns:
        each = [_patterned(mixing, basis, part, patterns, limit) for part, limit in zip(parts, l1_bounds, strict=True)]
        if not rest.any():
            return sum(each)
        others = [size for size in blocks if not isinstance(size, PatternBlock)]
        return sum(each) + pure_norm(mixing[rest], basis, parts, tied, others, l1_bounds)
    owner = np.repeat(np.arange(len(blocks)), blocks) if blocks else np.arange(mixing.shape[0])
    images = [_image(mixing, basis, part.corners) for part in parts]
    each = [
        limit if image is None else min(limit, _farthest(image, part, owner))
        for image, part, limit in zip(images, parts, l1_bounds, strict=True)
    ]
    found = sum(each)
    if tied is not None:
        both = _tied(mixing, basis, tied, owner)
        found = found if both is None else min(found, both + sum(each[2:]))
    written = [image for image in images if image is not None]
    if len(written) == len(parts):
        by_rows = _by_row_parts(mixing, written, parts, owner)
        found = found if by_rows is None else min(found, by_rows)
    return found


def _patterned(
    mixing: Matrix, basis: Sparse, part: Part, patterns: Sequence[tuple[Ints, PatternBlock]], l1: int
) -> int:
    """What the sum over the blocks of ``patterns`` of the steps of no sum of corners of ``part`` exceeds."""
    image = _image(mixing, basis, part.corners)
    if image is None or max_abs(image) * image.shape[0] * part.most * part.times >= 2**62:
        return l1  # no steps are more than the L1 norm
    found = 0
    for rows, block in patterns:
        changes = sparse.csr_array(image)[rows].toarray()
        for side in (np.maximum(changes, 0), np.maximum(-changes, 0)):
            inside = np.flatnonzero(side.any(axis=1))
            highest = [_most_together(side[row], part) for row in inside]
            found += max([*highest, -(-_most_together(side.sum(axis=0), part) // block.limit)])
    return found


def _most_together(values: Ints, part: Part) -> int:
    """The largest sum of ``values`` of the corners (c,) that a unit may add up."""
    return part.times * int(np.sort(part.longest(values))[::-1][: part.most].sum())


def _image(mixing: Matrix, basis: Sparse, corners: Sparse) -> Sparse | None:
    """mixing @ basis @ corners (p x c) in int64; None where that may not hold it, or it is large."""
    columns = sparse.csc_array(basis @ corners)
    tallest = int(np.diff(columns.indptr).max(initial=0))
    if mixing.dtype == object or mixing.shape[0] * columns.shape[1] > MAX_ENTRIES:
        return None
    if max_abs(mixing) * max_abs(columns) * max(1, tallest) * mixing.shape[0] >= 2**62:
        return None
    held = sparse.csc_array(sparse.csr_array(mixing).astype(np.int64) @ columns.astype(np.int64))
    held.eliminate_zeros()
    return held


def _norms(columns: Sparse, owner: Ints) -> Ints:
    """Of each column (c,) the sum over the blocks of rows, ``owner`` (p,), of the largest entry; sums fit int64."""
    entries = sparse.coo_array(columns)
    column, block, size = entries.col.astype(np.int64), owner[entries.row], np.abs(entries.data)
    order = np.lexsort((block, column))
    column, block, size = column[order], block[order], size[order]
    found = np.zeros(columns.shape[1], dtype=np.int64)
    first = np.flatnonzero((np.diff(column, prepend=-1) != 0) | (np.diff(block, prepend=-1) != 0))
    if first.size:
        np.add.at(found, column[first], np.maximum.reduceat(size, first))
    return found


def _farthest(columns: Sparse, part: Part, owner: Ints) -> int:
    """What no sum of columns of ``columns`` exceeds, each of another class."""
    longest: list[int] = np.sort(part.longest(_norms(columns, owner)))[::-1][: part.most].tolist()
    return part.times * sum(longest)


def _tied(mixing: Matrix, basis: Sparse, tied: Tied, owner: Ints) -> int | None:
    """What no sum of ``tied`` exceeds; None where entries may be too large."""
    first, more = (_image(mixing, basis, columns) for columns in (tied.first, tied.more))
    if first is None or more is None:
        return None
    if (max_abs(first) + tied.most * max_abs(more)) * mixing.shape[0] >= 2**62:
        return None
    inside, free = tied.label >= 0, tied.label < 0
    alone = _norms(more, owner)
    best = tied.most * int(alone[tied.alone].max(initial=0))
    if not inside.any():
        return best
    seen = Part(sparse.csc_array(first[:, inside]), 1, tied.limit, tied.label[inside])
    mine = sparse.csc_array(more[:, inside])
    single = seen.longest(_norms(seen.corners, owner))
    ranked = np.sort(single)[::-1]
    sums = [0, *np.cumsum(ranked.astype(object)).tolist()]
    for s in range(1, tied.limit + 1):
        left = tied.most - s
        heavy = seen.longest(_norms(seen.corners + left * mine, owner))
        # The s - 1 longest others: one less of these where the class itself is one of them.
        others = np.where(single >= ranked[s - 1], sums[s] - single.astype(object), sums[s - 1])
        best = max(best, sums[s] + left * int(alone[free].max(initial=0)), int((heavy.astype(object) + others).max()))
    return best


def _by_row_parts(mixing: Matrix, images: Sequence[Sparse], parts: Sequence[Part], owner: Ints) -> int | None:
    """The sum over parts of the rows that share no entry of ``mixing``; None where none is better by itself."""
    rows = [sparse.csr_array(image) for image in images]
    entries = np.stack([np.diff(image.indptr) for image in rows])
    label = _row_parts(mixing, owner, np.asarray(entries.sum(axis=0)))
    rest, total = np.zeros(label.size, dtype=bool), 0
    for one in range(int(label.max(initial=-1)) + 1):
        mine = label == one
        columns = [sparse.csc_array(image[mine]) for image in rows]
        exact = _alone(columns, parts, owner[mine])
        # The longest columns of rows that are not listed apart are sought together, which is no more.
        if exact is None or exact >= sum(map(_farthest, columns, parts, repeat(owner[mine]))):
            rest |= mine
        else:
            total += exact
    if rest.all():
        return None
    left = [sparse.csc_array(image[rest]) for image in rows]
    return total + sum(_farthest(columns, part, owner[rest]) for columns, part in zip(left, parts, strict=True))


def _row_parts(mixing: Matrix, owner: Ints, entries: Ints) -> Ints:
    """Numbers of the parts (p,): rows of one block, or with an entry in one column, are together.

    Of many those are told apart that most corners move, by the ``entries`` of each row: others are the last.
    """
    held = sparse.coo_array(mixing)
    p, count = mixing.shape[0], int(owner.max(initial=-1)) + 1
    part = linked_parts(count + mixing.shape[1], (owner[held.row], count + held.col))[1]
    label = np.unique(part[owner], return_inverse=True)[1].reshape(p)
    largest = np.argsort(-np.bincount(label, weights=entries), kind="stable")
    rank = np.empty(largest.size, dtype=np.int64)
    rank[largest] = np.arange(largest.size)
    return np.minimum(rank[label], ROW_PARTS - 1)


def _alone(columns: Sequence[Sparse], parts: Sequence[Part], owner: Ints) -> int | None:
    """The largest norm of some rows, exactly: ``columns`` is what corners of each source move there; else None."""
    seen = [distinct_corners(of_source, part, of_source) for of_source, part in zip(columns, parts, strict=True)]
    seen = [part for part in seen if part.corners.shape[1]]
    if not seen:
        return 0
    p = owner.size
    highest = sum(part.times * part.most * max_abs(part.corners) for part in seen) * p
    if highest >= 2**62 or any(part.corners.shape[1] > ALL_PRODUCTS for part in seen):
        return None
    if len(seen) == 1 and seen[0].label is None and np.unique(owner).size == p:
        nested = largest_sums(seen[0].corners.toarray(), seen[0].most)
        if nested is not None:
            return seen[0].times * int(nested.best.max())
    listed = Contributions((tuple(seen),), p)
    if not listed.listable:
        return None
    return listed.divisor * int(_norms(listed.columns, owner).max(initial=0))


def distinct_corners(image: Sparse, part: Part, corners: Sparse) -> Part:
    """``part`` as rows see it that its corners move by ``image``: the different columns of each class, but for zeros.

    Where all classes have the same ones, as many times one of them are the longest. ``corners``: in whose columns it is
    given, one for each that are alike.
    """
    found = distinct_columns(image)
    nonzero = found.label >= 0
    pairs = np.unique(np.stack([part.labels[nonzero], found.label[nonzero]]), axis=1)
    classes, sizes = np.unique(pairs[0], return_counts=True)
    most = min(part.most, classes.size)
    if classes.size and np.array_equal(pairs[1], np.tile(pairs[1][: sizes[0]], classes.size)):
        return Part(sparse.csc_array(corners[:, found.keep]), part.times * most, 1)
    label = None if (sizes == 1).all() else pairs[0]
    return replace(part, corners=sparse.csc_array(corners[:, found.keep[pairs[1]]]), most=most, label=label)
