"""Which way a batch is compiled: over the product of all regions that it tells apart, or block by block.

One matrix over merged cells has the least error that is known for ranges and conditions, certified, where its rank and
cells are few. Blocks (``structured``) cost what their own columns cost; for marginals they are optimal too. The choice
depends on public sizes alone. Where one matrix takes seconds blocks may do as well, which their own certificate tells
(``blocks_beside``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import combinations, combinations_with_replacement, product
from math import inf, prod

import numpy as np
from scipy import sparse

from dpsql.errors import SQLError
from dpsql.linalg.blocks import RowBlock, RowFactor
from dpsql.linalg.columns import disjoint_blocks
from dpsql.linalg.forms import RANK_CAP
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.compile.cut_tables import CutTables
from dpsql.workloads.compile.structured import (
    MAX_NUMBERS,
    MAX_SHOWN,
    Structured,
    compile_structured,
    is_nearly_marginal,
)
from dpsql.workloads.expr.batch import Query, Table
from dpsql.workloads.expr.deadline import NONE, Deadline
from dpsql.workloads.expr.too_many import check_numbers

FEW_CELLS = 2_000
"""Up to so many combinations of regions a batch is one matrix."""
WORK = 2.5e10
"""rank^2 x cells up to which one matrix is: what its optimum costs a step, a second or two."""
LONG = 1e9
"""rank^2 x cells from which blocks are tried before one matrix, which takes seconds."""
WITH_UNITS = 1e8
"""The same for counts of units, whose sources take longer."""
LONG_AXIS = 2_048
"""Regions of a column from which blocks need every one of them to be a group, or groupings that nest."""
MOST_BESIDE = 500
"""Queries up to which blocks are tried beside one matrix."""
MOST_KINDS = 64
"""Parts of different sizes up to which one matrix is planned part by part."""
WIDE = 2**18
"""Combinations of regions of one condition above which one matrix comes before blocks; of units it comes after."""


def compile_any(
    queries: Sequence[Query], tables: Mapping[str, Table], deadline: Deadline = NONE
) -> Compiled | Structured:
    """The batch compiled one way or the other. Raises SQLError where neither can, with both reasons, or in time."""
    counts = not any(output.sums for query in queries for output in query.outputs)
    check_numbers(queries, MAX_SHOWN if counts else MAX_NUMBERS)
    cut = CutTables(queries, tables, deadline)
    joint: Compiled | None
    structured: Structured | None
    if cut.counted_once:
        return _with_units(queries, tables, cut, deadline)
    if cut.single or sum(map(prod, cut.sizes)) <= FEW_CELLS:
        joint = compile_batch(queries, tables, deadline=deadline)
        if joint.rows.shape[1] <= FEW_CELLS or not _is_large_in_parts(joint):
            return joint
        # Such as counts of very many groups and their total.
        try:
            structured = compile_structured(queries, tables, cut)
        except SQLError:
            return joint
        factors = (factor for block in structured.blocks for factor in block.factors)
        return structured if all(len(f.axes) == 1 and is_nearly_marginal(f.matrix) for f in factors) else joint
    refused = ""
    joint = None
    if cut.widest > WIDE:
        # Blocks would write such a condition out; one matrix over merged cells is often small, or refused at once.
        try:
            joint = compile_batch(queries, tables, boxes=False, deadline=deadline)
        except SQLError as error:
            if deadline.passed():
                raise
            refused = str(error)
        if joint is not None and not _is_large(joint.most_rank, joint.rows.shape[1]):
            return joint
    structured = None
    try:
        structured = compile_structured(queries, tables, cut)
    except SQLError as error:
        if deadline.passed():
            raise
        said = str(error)
    if structured is None and refused:
        raise _neither(refused, said)
    if structured is None:
        return _joint(queries, tables, said, deadline)
    if not structured.pure:
        check_numbers(queries, MAX_NUMBERS)
    if (_is_structured(structured) and not _is_long(structured)) or (joint is None and _is_surely_large(structured)):
        return structured
    if joint is None:
        if refused:
            return structured
        try:
            joint = compile_batch(queries, tables, boxes=False, deadline=deadline)
        except SQLError:
            return structured
    return structured if _is_large_in_parts(joint, _rank(structured)) else joint


def _with_units(
    queries: Sequence[Query], tables: Mapping[str, Table], cut: CutTables, deadline: Deadline
) -> Compiled | Structured:
    """A batch with counts of units, which one matrix knows to be of the very rows that others count, if they are.

    Of very many combinations of regions blocks come first, which may tell that one matrix is too large.
    """
    refused = ""
    if max(map(prod, cut.sizes), default=0) > WIDE:
        with contextlib.suppress(SQLError):
            blocks = compile_structured(queries, tables, cut)
            if _is_surely_large(blocks):
                return blocks
    try:
        joint = compile_batch(queries, tables, deadline=deadline)
        if not _is_large_in_parts(joint) or joint.units.by_grouping:
            return joint
    except SQLError as error:
        if deadline.passed():
            raise
        refused = str(error)
    try:
        return compile_structured(queries, tables, cut)
    except SQLError as error:
        if deadline.passed():
            raise
        if refused:
            raise _neither(refused, str(error)) from None
    return joint


def takes_long(joint: Compiled) -> bool:
    """Whether one matrix that counts units is planned after blocks, which end its search where it cannot win."""
    return _work_in_parts(joint) > WITH_UNITS


def blocks_beside(
    joint: Compiled, queries: Sequence[Query], tables: Mapping[str, Table], deadline: Deadline
) -> Structured | None:
    """A batch of one matrix as blocks; None below ``LONG``, and where it cannot be blocks.

    Blocks of very many queries, such as ranges and lists of all kinds, are no match for one matrix and not tried.
    """
    if len(queries) > MOST_BESIDE or (work := _work_in_parts(joint)) <= LONG:
        return None
    rank, cells = joint.most_rank, joint.rows.shape[1]
    try:
        found = compile_structured(queries, tables, CutTables(queries, tables, deadline))
    except SQLError:
        return None
    return found if min(work, float(min(rank, _rank(found))) ** 2 * cells) >= LONG else None


def over_one_column(batch: Structured) -> bool:
    """Whether all groups and conditions are of one column, whose residuals take as long as one matrix."""
    return len({(block.table, axis) for block in batch.blocks for axis in block.axes}) == 1


def _joint(queries: Sequence[Query], tables: Mapping[str, Table], refused: str, deadline: Deadline) -> Compiled:
    """The batch as one matrix, with why it is not planned as blocks where it cannot be."""
    try:
        return compile_batch(queries, tables, deadline=deadline)
    except SQLError as error:
        if deadline.passed():
            raise
        said = str(error)
    raise _neither(said, refused)


def _neither(joint: str, blocks: str) -> SQLError:
    return SQLError(joint if joint == blocks else f"{joint}; nor is it planned one statement at a time: {blocks}")


def _is_structured(batch: Structured) -> bool:
    """Is one matrix worse, or out of reach?"""
    groupings = {(block.table, block.component, block.axes) for block in batch.blocks}
    alone = batch.pure and len(groupings) == len({(table, component) for table, component, _ in groupings})
    if alone or _shared(batch) > FEW_CELLS:
        return False  # one grouping a table, or many groups in all of them: groups share no cell
    if batch.pure and not any(block.component for block in batch.blocks):
        return True  # marginals: optimal
    if batch.numbers > MAX_NUMBERS // 4:
        return True
    return _is_large(min(batch.answered.size, _rank(batch)), _distinguished_cells(batch))


def _is_long(batch: Structured) -> bool:
    """Whether blocks may be refused for a long column: by days and months one matrix is small parts."""
    longest = max(max(sizes, default=0) for sizes in batch.sizes)
    return longest > LONG_AXIS and any(
        len(f.axes) == 1 and batch.sizes[b.table][f.axes[0]] > LONG_AXIS and not is_nearly_marginal(f.matrix)
        for b in batch.blocks
        for f in b.factors
    )


def _shared(batch: Structured) -> int:
    """The combinations of regions of the columns by whose values all groupings go, the fewest of any table."""
    found: dict[int, set[int]] = {}
    for block in batch.blocks:
        single = (f.axes[0] for f in block.factors if len(f.axes) == 1 and is_nearly_marginal(f.matrix))
        mine = set(single)
        found[block.table] = found.get(block.table, mine) & mine
    return min((prod(batch.sizes[table][axis] for axis in axes) for table, axes in found.items()), default=0)


def _is_large(rank: int, cells: int) -> bool:
    return _work(rank, cells) > WORK


def _work(rank: int, cells: int) -> float:
    """rank^2 x cells, without limit where the rank is out of reach."""
    return float(rank) ** 2 * cells if rank <= RANK_CAP else inf


def _is_large_in_parts(batch: Compiled, rank: int | None = None) -> bool:
    """``_is_large`` of the parts of a batch; ``rank``: the most of the whole, where it is known."""
    return _work_in_parts(batch, rank) > WORK


def _work_in_parts(batch: Compiled, rank: int | None = None) -> float:
    """``_work`` of its parts that share no entry of a cell; ``rank``: the most of the whole, where it is known.

    Parts of one size are nearly always alike, and are then planned once.
    """
    rows = batch.once.rows
    number, label = disjoint_blocks(rows, np.arange(rows.shape[0]))
    if number == 1:
        most = batch.most_rank
        return _work(most if rank is None else min(most, rank), rows.shape[1])
    held = sparse.csc_array(rows)
    reached = np.flatnonzero(np.diff(held.indptr))
    tall, wide = np.bincount(label), np.bincount(label[held.indices[held.indptr[reached]]], minlength=number)
    kinds = np.unique(np.stack([np.minimum(tall, wide), wide]), axis=1)
    if kinds.shape[1] > MOST_KINDS:
        return inf
    return sum(_work(rank, cells) for rank, cells in kinds.T.tolist())


def _is_surely_large(batch: Structured) -> bool:
    """Whether one matrix would be, by two groupings of a table without groups of a column in common.

    Every group of one meets every group of the other, so that all of both are one part, over all cells that either
    tells apart.
    """
    found: dict[tuple[int, tuple[int, ...], int], list[RowBlock]] = {}
    known: set[tuple[object, ...]] = set()
    for block in batch.blocks:
        same = block.table, *sorted((f.axes, id(f.matrix)) for f in block.factors)
        if same not in known and all(len(f.axes) == 1 for f in block.factors):
            found.setdefault((block.table, block.axes, block.stop - block.start), []).append(block)
        known.add(same)
    most = _rank(batch)
    for (table, axes, rows), (other, against, more) in combinations_with_replacement(found, 2):
        least = min(rows + more, most)
        if table == other and _is_large(least, prod(batch.sizes[table][axis] for axis in {*axes, *against})):
            alike = found[table, axes, rows]
            mine = (table, axes, rows) == (other, against, more)
            for pair in combinations(alike, 2) if mine else product(alike, found[other, against, more]):
                cells = _distinguished_by(*pair)
                if _is_large(min(least, cells), cells):
                    return True
    return False


def _distinguished_by(one: RowBlock, other: RowBlock) -> int:
    """The cells that two groupings tell apart of those that both count; 0 where not all groups of both may meet."""
    mine, theirs = ({f.axes: f.matrix.tocsc() for f in block.factors} for block in (one, other))
    cells = 1
    for axis in mine.keys() | theirs.keys():
        held = [factors[axis] for factors in (mine, theirs) if axis in factors]
        counted = np.logical_and.reduce([np.diff(matrix.indptr) > 0 for matrix in held])
        if len(held) == 2 and (min(m.shape[0] for m in held) > 1 or any((abs(m) @ counted == 0).any() for m in held)):
            return 0
        columns = sparse.csc_array(sparse.vstack(held))[:, np.flatnonzero(counted)]
        cells *= len(_columns(columns))
    return cells


def _columns(matrix: sparse.csc_array) -> set[tuple[bytes, bytes]]:
    """The distinct columns."""
    matrix.sort_indices()
    ends = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    return {(matrix.indices[a:b].tobytes(), matrix.data[a:b].tobytes()) for a, b in ends}


def _rank(batch: Structured) -> int:
    """The dimensions of all residuals together: at least the rank of W."""
    found: set[tuple[int, int, tuple[int, ...]]] = set()
    total = 0
    for table, component, axes in {(b.table, b.component, b.axes) for b in batch.blocks}:
        for order in range(min(len(axes), 12) + 1):
            for inside in combinations(axes, order):
                if (table, component, inside) not in found:
                    found.add((table, component, inside))
                    total += prod(batch.sizes[table][axis] - 1 for axis in inside)
    return total


def _distinguished_cells(batch: Structured) -> int:
    """At least so many cells remain however they are merged: those that groupings without conditions tell apart."""
    axes: set[tuple[int, int]] = set()
    known: dict[int, bool] = {}  # a factor is shared by the blocks that need it
    for block in batch.blocks:
        if all(len(factor.axes) == 1 for factor in block.factors):
            for factor in block.factors:
                if id(factor) not in known:
                    known[id(factor)] = _distinguishes_all(factor)
            if all(known[id(factor)] for factor in block.factors):
                axes |= {(block.table, axis) for axis in block.axes}
    by_table: dict[int, int] = {}
    for table, axis in axes:
        by_table[table] = by_table.get(table, 1) * batch.sizes[table][axis]
    return sum(by_table.values())


def _distinguishes_all(factor: RowFactor) -> bool:
    """Whether no two regions are in the same groups."""
    if 2.0 ** min(factor.matrix.shape[0], 64) < factor.matrix.shape[1]:
        return False  # too few groups
    columns = factor.matrix.tocsc()
    columns.sort_indices()
    seen = {columns.indices[a:b].tobytes() for a, b in zip(columns.indptr[:-1], columns.indptr[1:], strict=True)}
    # One region may be in no group: it still differs from all others.
    return len(seen) == columns.shape[1] and bool(np.ptp(columns.data) == 0)
