"""Cells: combinations of regions that some query of the batch tells apart.

Axes are intersected one at a time. The state of a combination is, for every block of
queries, what is still open of its condition (a residual) and which group it has reached so
far; combinations in the same state are merged after every axis, so that the product of all
axes is never built. The transition tables that come out are exactly what a scan needs to
send a row's regions to its cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpsql.errors import SQLError
from dpsql.workload.conditions import FALSE, TRUE, Condition, LineAtom, atoms, substitute
from dpsql.workload.regions import Axis, AxisTruths, IntArray, mix

# Caps on public quantities, so that a batch is refused before it exhausts the machine.
MAX_COMBINATIONS = 20_000_000
MAX_CELLS_TIMES_BLOCKS = 200_000_000
# States are held in memory for all blocks at once, eight bytes each.
MAX_STATES_TIMES_BLOCKS = 100_000_000
# Atoms of a condition times the ways in which one axis resolves it: about 20 s of work.
MAX_RESOLUTIONS = 10_000_000


@dataclass(frozen=True)
class Block:
    """Rows of the workload that share a condition and group keys.

    It has one row per combination of the keys' groups (one row without keys): the number of
    rows of the table for which ``condition`` holds and that lie in the group.
    """

    condition: Condition
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cells:
    """The cells of one table.

    ``transitions[k]`` (states before axis k x regions of axis k) gives the state after it;
    ``cell_of_state`` maps the last state to a cell, -1 for rows that no query counts.
    ``labels`` (cells x blocks) gives the row of each block that counts the cell, or -1.
    """

    axes: tuple[Axis, ...]
    transitions: tuple[npt.NDArray[np.int32], ...] = field(repr=False)
    cell_of_state: IntArray = field(repr=False)
    labels: IntArray = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def combinations(self) -> int:
        """How many combinations of regions there are before merging."""
        product = 1
        for axis in self.axes:
            product *= axis.size
        return product

    def locate(self, regions: Sequence[IntArray]) -> IntArray:
        """The cell of every row of region numbers (one array an axis); -1 where there is none."""
        if not self.axes:
            raise ValueError("a table without axes has one cell; there is nothing to locate")
        state = np.zeros(len(regions[0]), dtype=np.int64)
        outside = np.zeros(len(regions[0]), dtype=bool)
        for table, region in zip(self.transitions, regions, strict=True):
            outside |= region < 0
            state = table[state, np.maximum(region, 0)].astype(np.int64)
        return np.where(outside, -1, self.cell_of_state[state])


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
            _check_condition(len(mine) * size // 8, axis.axis.name)
            classes, inverse = _classes(np.array([axis.truth(a) for a in mine]))
            self.resolutions += len(every) * classes.shape[1]
            _check_condition(self.resolutions, axis.axis.name)
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


def compile_cells(axes: Sequence[AxisTruths], blocks: Sequence[Block], key_sizes: Mapping[str, int]) -> Cells:
    """Intersect the axes one at a time, merging equal states after each.

    ``key_sizes`` gives the number of groups of each key column. Cost: for every axis, states
    times regions times the blocks that use the axis. Raises SQLError past the caps.
    """
    ordered = sorted(axes, key=lambda a: a.axis.size)
    progress = [_Progress(block, key_sizes) for block in blocks]
    users = [{_axis_of(a) for a in atoms(block.condition)} | set(block.keys) for block in blocks]
    state = np.array([[p.start * p.groups for p in progress]], dtype=np.int64)
    salts = mix(np.arange(2 * len(blocks), dtype=np.uint64).reshape(2, -1) + np.uint64(1 << 32))
    transitions = []
    resolutions = 0
    for axis in ordered:
        name = axis.axis.column if hasattr(axis.axis, "column") else axis.axis.predicate
        mine = [b for b, used in enumerate(users) if name in used]
        n_states, size = len(state), axis.axis.size
        _check_work(n_states * size, max(1, len(mine)), len(blocks), axis.axis.name)
        fresh = {}
        signature = np.zeros((2, n_states, size), dtype=np.uint64)
        for b in mine:
            after = _advance(progress[b], state[:, b], axis, name)
            resolutions += progress[b].resolutions
            progress[b].resolutions = 0
            _check_condition(resolutions, axis.axis.name)
            fresh[b] = after
            code = after.astype(np.uint64)
            for half in range(2):
                signature[half] += mix(code ^ salts[half, b])
        kept = [b for b in range(len(blocks)) if b not in fresh]
        if kept:
            for half in range(2):
                signature[half] += mix(state[:, kept].astype(np.uint64) ^ salts[half, kept]).sum(
                    axis=1, dtype=np.uint64
                )[:, None]
        pairs = np.stack([signature[0].ravel(), signature[1].ravel()], axis=1)
        rows = np.ascontiguousarray(pairs).view([("a", np.uint64), ("b", np.uint64)]).ravel()
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        _check_states(len(first), len(blocks), axis.axis.name)
        if not _same_states(inverse, first, state, fresh, kept):
            first, inverse = _merge_exactly(state, fresh, size)
        transitions.append(inverse.reshape(n_states, size).astype(np.int32))
        origin, region = np.divmod(first, size)
        merged = state[origin]
        for b, after in fresh.items():
            merged[:, b] = after[origin, region]
        state = merged
    groups = np.array([p.groups for p in progress], dtype=np.int64)
    # A block that holds has residual 1, that is a state of groups + label; dead blocks are 0.
    labels = np.where(state == 0, -1, state - groups)
    counted = (labels >= 0).any(axis=1)
    cell_of_state = np.where(counted, np.cumsum(counted) - 1, -1)
    return Cells(tuple(a.axis for a in ordered), tuple(transitions), cell_of_state, labels[counted])


def _same_states(
    inverse: IntArray, first: IntArray, state: IntArray, fresh: Mapping[int, IntArray], kept: Sequence[int]
) -> bool:
    """Whether all combinations of a class are in one state: signatures only speed up this comparison."""
    mate = first[inverse]
    if any(not np.array_equal(after.ravel(), after.ravel()[mate]) for after in fresh.values()):
        return False
    size = len(inverse) // len(state)
    pairs = np.unique(np.stack([np.arange(len(inverse)) // size, mate // size], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return all(np.array_equal(state[pairs[:, 0], b], state[pairs[:, 1], b]) for b in kept)


def _merge_exactly(state: IntArray, fresh: Mapping[int, IntArray], size: int) -> tuple[IntArray, IntArray]:
    """(first, inverse) by comparing whole states; reached only where two different ones share a signature."""
    seen: dict[bytes, int] = {}
    first: list[int] = []
    inverse = np.empty(len(state) * size, dtype=np.int64)
    for at in range(len(inverse)):
        row = state[at // size].copy()
        for b, after in fresh.items():
            row[b] = after.ravel()[at]
        inverse[at] = seen.setdefault(row.tobytes(), len(seen))
        if inverse[at] == len(first):
            first.append(at)
    return np.array(first, dtype=np.int64), inverse


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


def _check_condition(work: int, name: str) -> None:
    if work > MAX_RESOLUTIONS:
        raise SQLError(
            f"a condition over {name} and other columns has too many parts ({work:,} steps, at most "
            f"{MAX_RESOLUTIONS:,}): split it over several statements"
        )


def _check_states(states: int, blocks: int, name: str) -> None:
    if states * blocks > MAX_STATES_TIMES_BLOCKS:
        raise SQLError(
            f"the batch tells {states:,} sets of rows apart by {name}, over {blocks:,} query blocks; at most "
            f"{MAX_STATES_TIMES_BLOCKS:,} of the two multiplied are planned: split the batch"
        )


def _check_work(combinations: int, users: int, blocks: int, name: str) -> None:
    if combinations > MAX_COMBINATIONS or combinations * users > MAX_CELLS_TIMES_BLOCKS:
        raise SQLError(
            f"the batch makes {combinations:,} combinations of regions at {name}, over {blocks:,} query "
            f"blocks; at most {MAX_COMBINATIONS:,} combinations and {MAX_CELLS_TIMES_BLOCKS:,} with their "
            "queries are planned: split the batch into batches over fewer columns"
        )
