"""Cells: combinations of regions that some query of the batch tells apart.

Axes are intersected one at a time. The state of a combination is, for every block of
queries, what is still open of its condition (a residual) and which group it has reached so
far; combinations in the same state are merged after every axis, so that the product of all
axes is never built. Blocks that are conjunctions without keys are alive or dead, and kept as sets
(``dpsql.workloads.cells.alive``). The transition tables that come out are exactly what a scan needs to
send a row's regions to its cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql.common.numerics import TOGETHER
from dpsql.linalg.columns import distinct_columns
from dpsql.workloads.cells import cell_limits
from dpsql.workloads.cells.alive import Alive, is_conjunction, regions_of
from dpsql.workloads.cells.boxes import Boxes
from dpsql.workloads.cells.cell_limits import check_condition, check_counted, check_states, check_sweep, check_work
from dpsql.workloads.cells.cell_table import Block, Cells, counted_of
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, LineAtom, OpaqueAtom, Or, atoms, substitute
from dpsql.workloads.expr.deadline import NONE, Deadline
from dpsql.workloads.expr.regions import AxisTruths, BoolArray, IntArray, mix

# Combinations from which conjunctions are planned without a list of their cells: that costs less there.
BOXES_FROM = 5_000_000

MANY_AXES = 8
"""Columns of one condition from which the order of the axes goes by its parts."""

# From ``TOGETHER`` blocks x regions of one axis on only the pairs of a block and a region that it counts are listed,
# where these are at most one in so many.
_SPARSE = 8


class _Progress:
    """One block on its way through the axes: its residual conditions and partial groups."""

    def __init__(self, block: Block, key_sizes: Mapping[str, int]) -> None:
        self.keys = block.keys
        self.groups = 1
        self.stride: dict[str, int] = {}
        for key in reversed(block.keys):
            self.stride[key] = self.groups
            self.groups *= key_sizes[key]
        # Residuals 0 and 1 are always FALSE and TRUE.
        self.resolutions = 0
        self.residuals: list[Condition] = [FALSE, TRUE]
        if block.condition in (FALSE, TRUE):
            self.start = int(block.condition == TRUE)
        else:
            self.residuals.append(block.condition)
            self.start = 2

    def step(self, axis: AxisTruths, names: frozenset[object]) -> IntArray:
        """Resolve the atoms of one axis: a table (residuals x regions) of new residuals."""
        size = axis.axis.size
        interned: dict[Condition, int] = {FALSE: 0, TRUE: 1}
        table = np.zeros((len(self.residuals), size), dtype=np.int64)
        for number, residual in enumerate(self.residuals):
            every = list(atoms(residual))
            mine = [a for a in dict.fromkeys(every) if _axis_of(a) in names]
            if not mine:
                table[number] = interned.setdefault(residual, len(interned))
                continue
            check_condition(len(mine) * size // 8, axis.axis.name)
            classes, inverse = _classes(np.array([axis.truth(a) for a in mine]))
            self.resolutions += len(every) * classes.shape[1]
            check_condition(self.resolutions, axis.axis.name, cell_limits.MAX_OF_ONE)
            ids = [
                interned.setdefault(substitute(residual, dict(zip(mine, column.tolist(), strict=True))), len(interned))
                for column in classes.T
            ]
            table[number] = np.array(ids)[inverse]
        self.residuals = list(interned)
        return table


def _classes(truths: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """The distinct columns of atoms' truths (atoms x regions) in ascending order, and which each region has."""
    if len(truths) > 1:
        classes, inverse = np.unique(truths, axis=1, return_inverse=True)
        return classes, inverse.ravel()
    # One atom, as nearly always: two columns at most, and no need to sort.
    (holds,) = truths
    if holds.all() or not holds.any():
        return truths[:, :1], np.zeros(len(holds), dtype=np.int64)
    return np.array([[False, True]]), holds.astype(np.int64)


def _axis_of(atom: object) -> object:
    return atom.column if isinstance(atom, LineAtom) else atom.predicate  # type: ignore[attr-defined]


def compile_cells(
    axes: Sequence[AxisTruths],
    blocks: Sequence[Block],
    key_sizes: Mapping[str, int],
    boxes: bool = False,
    deadline: Deadline = NONE,
) -> Cells | Boxes:
    """Intersect the axes one at a time, merging equal states after each.

    ``boxes``: where all blocks are conjunctions and the last axis makes more than ``BOXES_FROM`` combinations, stop
    before it (``dpsql.workloads.cells.boxes``).

    ``key_sizes`` gives the number of groups of each key column. Cost: for every axis, states
    times regions times the blocks that use the axis; for conjunctions without keys, states times the regions where
    one of them begins or ends. States are numbered in the order of the regions. Raises SQLError past the caps and past
    ``deadline``.
    """
    if len(axes) == 1 and not (boxes and axes[0].axis.size > BOXES_FROM):
        alone = _of_one_axis(axes[0], blocks, key_sizes, deadline)
        if alone is not None:
            return alone
    ordered = _in_order(axes, blocks)
    names = [_name_of(a) for a in ordered]
    sets = [b for b, block in enumerate(blocks) if not block.keys and is_conjunction(block.condition)]
    others = sorted(set(range(len(blocks))) - set(sets))
    conditions = [blocks[b].condition for b in sets]
    alive = Alive(conditions, {atom: _axis_of(atom) for condition in conditions for atom in atoms(condition)})
    progress = [_Progress(blocks[b], key_sizes) for b in others]
    users = [{_axis_of(a) for a in atoms(blocks[b].condition)} | set(blocks[b].keys) for b in others]
    state = np.array([[p.start * p.groups] for p in progress], dtype=np.int64).reshape(len(others), 1)
    transitions: list[npt.NDArray[np.int32]] = []
    resolutions = 0
    for axis, name in zip(ordered, names, strict=True):
        deadline.check(len(transitions), len(ordered), "columns and conditions")
        mine = [b for b, used in enumerate(users) if name in used]
        n_states, size = alive.alive.shape[1], axis.axis.size
        if boxes and not others and axis is ordered[-1] and n_states * size > BOXES_FROM:
            holds = alive.holds(axis, name)
            check_sweep(n_states * len(sets) * int(np.count_nonzero(np.diff(holds, axis=1))), len(blocks))
            return Boxes(tuple(a.axis for a in ordered), tuple(transitions), alive.alive, holds)
        check_work(n_states * size, len(mine), len(blocks), axis.axis.name)
        fresh = {}
        for b in mine:
            deadline.check(len(transitions), len(ordered), "columns and conditions")
            before = progress[b].resolutions
            fresh[b] = _advance(progress[b], state[b], axis, name)
            resolutions += progress[b].resolutions - before
            check_condition(resolutions, axis.axis.name)
        told_apart = max((np.unique(codes).size for codes in fresh.values()), default=0)
        check_states(told_apart, len(sets), len(others), axis.axis.name)
        holds = alive.holds(axis, name)
        if told_apart == n_states * size:  # by one block already: nothing is to be merged
            first, after = np.arange(told_apart), np.arange(told_apart, dtype=np.int32).reshape(n_states, size)
        else:
            first, after = _merge(alive, holds, state, fresh)
        check_states(len(first), len(sets), len(others), axis.axis.name)
        transitions.append(after)
        origin, region = np.divmod(first, size)
        state = state[:, origin]
        for b, codes in fresh.items():
            state[b] = codes[origin, region]
        alive.step(holds, origin, region)
    groups = np.array([[p.groups] for p in progress], dtype=np.int64).reshape(len(others), 1)
    # A block that holds has residual 1, that is a state of groups + label; dead blocks are 0.
    marks = np.where(state == 0, -1, state - groups)
    counted = (marks >= 0).any(axis=0) | alive.alive.any(axis=0)
    cell_of_state = np.where(counted, np.cumsum(counted) - 1, -1)
    kept = alive.alive[:, counted]
    check_counted(int(np.count_nonzero(kept)) + int(np.count_nonzero(marks >= 0)), int(counted.sum()), len(blocks))
    held = counted_of(kept, marks[:, counted], sets, others)
    return Cells(tuple(a.axis for a in ordered), tuple(transitions), cell_of_state, held)


def _of_one_axis(
    axis: AxisTruths, blocks: Sequence[Block], key_sizes: Mapping[str, int], deadline: Deadline
) -> Cells | None:
    """The cells of one axis without a table of blocks x regions; None where most blocks count most regions, or few.

    Cost: the pairs of a block and a region that it counts, sorted.
    """
    size = axis.axis.size
    if len(blocks) * size < TOGETHER:
        return None
    sets = [b for b, block in enumerate(blocks) if not block.keys and is_conjunction(block.condition)]
    others = sorted(set(range(len(blocks))) - set(sets))
    check_work(size, len(others), len(blocks), axis.axis.name)
    at, inside = regions_of(axis, [blocks[b].condition for b in sets], len(blocks) * size // _SPARSE)
    if at is None or inside is None:
        return None
    place, region, value = [np.asarray(sets, dtype=np.int64)[at]], [inside], [np.ones(len(at), dtype=np.int64)]
    resolutions = 0
    for done, b in enumerate(others):
        deadline.check(done, len(others), "groupings")
        progress = _Progress(blocks[b], key_sizes)
        (after,) = _advance(progress, np.array([progress.start * progress.groups]), axis, _name_of(axis))
        resolutions += progress.resolutions
        check_condition(resolutions, axis.axis.name)
        held = np.flatnonzero(after)
        place.append(np.full(len(held), b))
        region.append(held)
        # A block that holds has residual 1, that is a state of groups + label.
        value.append(after[held] - progress.groups + 1)
    check_counted(sum(map(len, place)), size, len(blocks))
    entries = (np.concatenate(value).astype(np.int32), (np.concatenate(place), np.concatenate(region)))
    counted = sparse.csr_array(sparse.coo_array(entries, shape=(len(blocks), size)))
    # Regions that all blocks treat alike are one state, numbered in the order of the regions.
    found = distinct_columns(counted)
    _, first, state = np.unique(found.label, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    cell_of_state = found.label[first[order]]
    kept = sparse.csr_array(counted.tocsc()[:, found.keep])
    return Cells((axis.axis,), (rank[state].reshape(1, size),), cell_of_state, kept)


def _in_order(axes: Sequence[AxisTruths], blocks: Sequence[Block]) -> list[AxisTruths]:
    """Axes by size; where a condition is no conjunction of few columns, those that one part of it names together.

    (a1 AND b1) OR (a2 AND b2) OR ... leaves 2^k states open where all a come first, and two where each b follows its a.
    """
    ordered = sorted(axes, key=lambda a: a.axis.size)
    part = {_name_of(axis): number for number, axis in enumerate(ordered)}
    wide = [
        found
        for block in blocks
        if not is_conjunction(block.condition)
        for found in ({_axis_of(atom) for atom in atoms(block.condition)},)
        if len(found) >= MANY_AXES
    ]
    if not wide:
        return ordered
    for block in blocks:
        for together in _innermost(block.condition):
            joined = {part[name] for name in together}
            least = min(joined)
            part = {name: least if number in joined else number for name, number in part.items()}
    largest: dict[int, int] = {}
    for number, axis in enumerate(ordered):
        largest[part[_name_of(axis)]] = number
    return sorted(ordered, key=lambda a: largest[part[_name_of(a)]])


def _innermost(condition: Condition) -> Iterator[set[object]]:
    """The axes of each conjunction of atoms."""
    if isinstance(condition, And | Or):
        whole = isinstance(condition, And) and all(isinstance(o, LineAtom | OpaqueAtom) for o in condition.operands)
        if whole:
            yield {_axis_of(atom) for atom in atoms(condition)}
        else:
            for operand in condition.operands:
                yield from _innermost(operand)


def _name_of(axis: AxisTruths) -> object:
    return axis.axis.column if hasattr(axis.axis, "column") else axis.axis.predicate


def _merge(
    alive: Alive, holds: BoolArray, state: IntArray, fresh: Mapping[int, IntArray]
) -> tuple[IntArray, npt.NDArray[np.int32]]:
    """(the first combination in each new state, the new state of every combination: states x regions).

    Combinations are numbered state by state. They are grouped by a hash of their state, and then compared.
    """
    n_states, size = alive.alive.shape[1], holds.shape[1]
    kept = [b for b in range(len(state)) if b not in fresh]
    for salt in (1, 2, 3):  # one fails with a probability below 1e-5; then states are compared one by one
        codes = mix(np.arange(len(state), dtype=np.uint64) + (np.uint64(salt) << np.uint64(33)))
        rest = np.zeros(n_states, dtype=np.uint64)
        for b in kept:
            rest += mix(state[b].astype(np.uint64) ^ codes[b])
        at, found, runs, done = [], [], [], 0
        for starts, hashes in alive.sweep(holds, salt):
            here = slice(done, done + len(starts))
            hashes += rest[here, None]
            for b, after in fresh.items():
                # A block that is no conjunction may change anywhere.
                hashes += mix(after[here].astype(np.uint64) ^ codes[b])
                starts[:] = True
            flat = np.flatnonzero(starts.ravel())
            at.append(flat + done * size)
            found.append(hashes.ravel()[flat])
            runs.append(starts)
            done += len(starts)
        places = np.concatenate(at)
        _, first, inverse = np.unique(np.concatenate(found), return_index=True, return_inverse=True)
        mates = places[first][inverse]
        other = np.flatnonzero(mates != places)
        if _same_states(alive, holds, state, fresh, kept, (places[other], mates[other])):
            # States in the order in which the combinations reach them.
            order = np.argsort(first)
            rank = np.empty(len(order), dtype=np.int32)
            rank[order] = np.arange(len(order), dtype=np.int32)
            return places[first[order]], _spread(rank[inverse], runs)
    return _merge_exactly(alive, holds, state, fresh)


def _spread(after: npt.NDArray[np.int32], runs: list[BoolArray]) -> npt.NDArray[np.int32]:
    """What holds for the first combination of each run, for all of them (states x regions)."""
    out, done = [], 0
    for starts in runs:
        number = np.cumsum(starts.ravel()) - 1
        out.append(after[done + number].reshape(starts.shape))
        done += int(number[-1]) + 1 if number.size else 0
    return np.concatenate(out)


def _same_states(
    alive: Alive,
    holds: BoolArray,
    state: IntArray,
    fresh: Mapping[int, IntArray],
    unchanged: Sequence[int],
    pairs: tuple[IntArray, IntArray],
) -> bool:
    """Whether the combinations of each pair are in one state: hashes only speed up this comparison."""
    places, mates = pairs
    if any(not np.array_equal(after.ravel()[places], after.ravel()[mates]) for after in fresh.values()):
        return False
    size = holds.shape[1]
    if unchanged:
        origins = np.unique(np.stack([places // size, mates // size], axis=1), axis=0)
        if not all(np.array_equal(state[b, origins[:, 0]], state[b, origins[:, 1]]) for b in unchanged):
            return False
    return alive.same(holds, places, mates)


def _merge_exactly(
    alive: Alive, holds: BoolArray, state: IntArray, fresh: Mapping[int, IntArray]
) -> tuple[IntArray, npt.NDArray[np.int32]]:
    """As ``_merge`` by comparing whole states; reached only where different ones share a hash three times."""
    seen: dict[bytes, int] = {}
    first: list[int] = []
    n_states, size = alive.alive.shape[1], holds.shape[1]
    inverse = np.empty(n_states * size, dtype=np.int32)
    for at in range(len(inverse)):
        column = state[:, at // size].copy()
        for b, after in fresh.items():
            column[b] = after.ravel()[at]
        held = np.packbits(alive.alive[:, at // size] & holds[:, at % size])
        inverse[at] = seen.setdefault(column.tobytes() + held.tobytes(), len(seen))
        if inverse[at] == len(first):
            first.append(at)
    return np.array(first, dtype=np.int64), inverse.reshape(n_states, size)


def _advance(progress: _Progress, state: IntArray, axis: AxisTruths, name: object) -> IntArray:
    """States (one a row) of one block after an axis, for all its regions: (states x regions)."""
    table = progress.step(axis, frozenset([name]))
    residual, label = np.divmod(state, progress.groups)
    after = table[residual]
    labels = np.broadcast_to(label[:, None], after.shape)
    if isinstance(name, str) and name in progress.stride:
        key = axis.key_of_region
        if key is None:
            raise ValueError("a key column was cut without its groups")
        labels = labels + np.maximum(key, 0) * progress.stride[name]
        after = np.where(key < 0, 0, after)
    return np.where(after == 0, 0, after * progress.groups + labels)
