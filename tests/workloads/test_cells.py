"""Cells and regions against brute force over the whole product of regions."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from dpsql.errors import SQLError
from dpsql.workloads.cells import cell_limits
from dpsql.workloads.cells import merging as cells_module
from dpsql.workloads.cells.cell_table import Block, Cells
from dpsql.workloads.cells.merging import compile_cells
from dpsql.workloads.expr.conditions import (
    FALSE,
    TRUE,
    And,
    Condition,
    Constant,
    LineAtom,
    Or,
    atoms,
    complement,
    conjunction,
    disjunction,
    gather,
    negate,
    union,
)
from dpsql.workloads.expr.lines import Interval, line_of
from dpsql.workloads.expr.regions import AxisTruths, KeyDomain, line_axis

LINE = line_of("INTEGER")
COLUMNS = ["a", "b", "c"]


def _interval(rng: random.Random) -> Interval:
    low, high = sorted(rng.sample(range(12), 2))
    return (None if rng.random() < 0.2 else (low, 0), None if rng.random() < 0.2 else (high, 0))


def _atom(rng: random.Random) -> LineAtom:
    intervals = union([_interval(rng) for _ in range(rng.randint(1, 3))])
    return LineAtom(rng.choice(COLUMNS), intervals, rng.random() < 0.3)


def _condition(rng: random.Random, depth: int) -> Condition:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([TRUE, FALSE]) if rng.random() < 0.05 else _atom(rng)
    parts = [_condition(rng, depth - 1) for _ in range(rng.randint(2, 3))]
    joined = rng.choice([conjunction, disjunction])(*parts)
    return negate(joined) if rng.random() < 0.3 else joined


def _holds(condition: Condition, row: dict[str, int | None]) -> bool:
    """The meaning of a condition, written down once more."""
    if isinstance(condition, Constant):
        return condition.truth
    if isinstance(condition, And):
        return all(_holds(part, row) for part in condition.operands)
    if isinstance(condition, Or):
        return any(_holds(part, row) for part in condition.operands)
    assert isinstance(condition, LineAtom)
    value = row[condition.column]
    if value is None:
        return condition.on_null
    return any((low is None or low[0] <= value) and (high is None or value < high[0])
               for low, high in condition.intervals)  # fmt: skip


def _rows() -> list[dict[str, int | None]]:
    values = [None, *range(-1, 13)]
    return [dict(zip(COLUMNS, row, strict=True)) for row in itertools.product(values, repeat=3)]


def _located(cells: Cells, axes: dict[str, AxisTruths], rows: list[dict[str, int | None]]) -> np.ndarray:
    if not cells.axes:
        return np.zeros(len(rows), dtype=np.int64)
    regions = []
    for axis in cells.axes:
        found = []
        for row in rows:
            value = row[axis.column]
            if value is None:
                found.append(axis.null_region)
            else:
                found.append(int(axis.pieces[sum(cut[0] <= value for cut in axis.cuts)]))
        regions.append(np.array(found))
    return cells.locate(regions)


def _labels(cells: Cells, blocks: int) -> np.ndarray:
    """The row of each block that counts each cell, or -1: (cells x blocks)."""
    out = np.full((len(cells), blocks), -1, dtype=np.int64)
    block, at, label = cells.members(np.arange(blocks))
    out[at, block] = label
    return out


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.few(every=10)
def test_labels_are_those_of_every_row(seed: int) -> None:
    rng = random.Random(seed)
    keys = {}
    for name in COLUMNS:
        if rng.random() < 0.5:
            values = tuple(rng.sample(range(12), rng.randint(1, 4)))
            keys[name] = KeyDomain(name, "INTEGER", values, tuple(LINE.point(v) for v in values),
                                   rng.random() < 0.5, rng.random() < 0.7)  # fmt: skip
    blocks = list(dict.fromkeys(
        Block(_condition(rng, 2), tuple(rng.sample(sorted(keys), rng.randint(0, len(keys))))) for _ in range(6)
    ))  # fmt: skip
    axes = {
        name: line_axis(
            name, LINE, [a for block in blocks for a in atoms(block.condition) if a.column == name], keys=keys.get(name)
        )
        for name in COLUMNS
        if name in keys or any(a.column == name for block in blocks for a in atoms(block.condition))
    }
    cells = compile_cells(list(axes.values()), blocks, {name: len(key) for name, key in keys.items()})
    rows = _rows()
    where = _located(cells, axes, rows)
    labels = _labels(cells, len(blocks))
    states = set()
    for row, cell in zip(rows, where.tolist(), strict=True):
        wanted = []
        for block in blocks:
            label = 0
            for name in block.keys:
                key, value = keys[name], row[name]
                group = key.null_index if value is None else (
                    key.values.index(value) if value in key.values else key.other_index
                )  # fmt: skip
                label = -1 if group is None or label < 0 else label * len(key) + group
            wanted.append(label if _holds(block.condition, row) else -1)
        if cell < 0 or not len(cells):
            assert max(wanted) < 0
        else:
            assert labels[cell].tolist() == wanted
            states.add(tuple(wanted))
    # No cell is empty, and no two cells are the same to every block.
    assert len(states) == len(cells)


def test_gather_means_the_same() -> None:
    rng = random.Random(5)
    rows = _rows()[::23]
    for _ in range(200):
        parts = [_atom(rng) if rng.random() < 0.8 else _condition(rng, 1) for _ in range(rng.randint(1, 5))]
        both, either = gather(And, *parts), gather(Or, *parts)
        for row in rows:
            assert _holds(both, row) == all(_holds(p, row) for p in parts)
            assert _holds(either, row) == any(_holds(p, row) for p in parts)


def test_gather_folds_a_chain_into_one_atom() -> None:
    points = [LineAtom("a", (LINE.point(i),)) for i in range(0, 5000, 2)]  # type: ignore[arg-type]
    assert isinstance(gather(Or, *points), LineAtom)
    assert gather(And, points[0], points[1]) == FALSE
    assert gather(Or, LineAtom("a", ((None, None),)), LineAtom("a", (), True)) == TRUE


@pytest.mark.long
def test_negation_is_its_own_inverse() -> None:
    rng = random.Random(9)
    rows = _rows()[::37]
    for _ in range(200):
        condition = _condition(rng, 3)
        for row in rows:
            assert _holds(negate(condition), row) != _holds(condition, row)


def test_complement_and_union() -> None:
    rng = random.Random(3)
    for _ in range(300):
        intervals = union([_interval(rng) for _ in range(rng.randint(1, 4))])
        assert complement(complement(intervals)) == intervals
        assert union([*intervals, *complement(intervals)]) == ((None, None),)


def test_rows_outside_a_closed_domain_are_in_no_region() -> None:
    axis = line_axis("a", LINE, [], closed=[LINE.point(1), LINE.point(5)], nulls=False).axis
    assert axis.null_region == -1
    assert [int(axis.pieces[sum(cut[0] <= v for cut in axis.cuts)]) for v in (0, 1, 2, 5, 6)] == [-1, 0, -1, 0, -1]


def test_work_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [LineAtom(c, (LINE.point(i),)) for c in "ab" for i in range(100)]  # type: ignore[arg-type]
    axes = [line_axis(c, LINE, [w for w in wide if w.column == c]) for c in "ab"]
    blocks = [Block(w) for w in wide]
    monkeypatch.setattr(cell_limits, "MAX_COMBINATIONS", 5000)
    with pytest.raises(SQLError, match="10,201 combinations of regions"):
        compile_cells(axes, blocks, {})
    monkeypatch.setattr(cell_limits, "MAX_COMBINATIONS", 20_000_000)
    monkeypatch.setattr(cell_limits, "MAX_STATE_BYTES", 100_000)
    with pytest.raises(SQLError, match="10,201 sets of rows"):
        compile_cells(axes, blocks, {})
    pairs = disjunction(*(conjunction(wide[i], wide[100 + i]) for i in range(100)))
    monkeypatch.setattr(cell_limits, "MAX_RESOLUTIONS", 1000)
    with pytest.raises(SQLError, match="too many parts"):
        compile_cells(axes, [Block(pairs)], {})


def test_regions_that_a_key_tells_apart_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    points = tuple(LINE.point(i) for i in range(40))
    key = KeyDomain("a", "INTEGER", tuple(range(40)), points, False, True)
    atom = LineAtom("a", ((LINE.point(3)[0], LINE.point(17)[1]),))  # type: ignore[index]
    blocks = [Block(TRUE, ("a",)), Block(atom)]
    closed = line_axis("a", LINE, [atom], closed=points, keys=key)
    plain = _labels(compile_cells([closed], blocks, {"a": len(key)}), 2)
    monkeypatch.setattr(cells_module, "_merge", lambda *_: pytest.fail("merged"))
    assert np.array_equal(_labels(compile_cells([closed], blocks, {"a": len(key)}), 2), plain)
    assert plain.shape == (41, 2)
    # A batch of too many is refused before its conditions are held against every region.
    monkeypatch.setattr(cell_limits, "MAX_STATE_BYTES", 300)
    monkeypatch.setattr(cells_module.Alive, "holds", lambda *_: pytest.fail("resolved"))
    with pytest.raises(SQLError, match=r"tells .* sets of rows apart by a, over 2 query blocks"):
        compile_cells([closed], blocks, {"a": len(key)})


@pytest.mark.parametrize("seed", range(20))
def test_one_axis_gives_the_same_cells_from_pairs_as_from_a_table(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    conditions = [LineAtom("a", union([_interval(rng)]), rng.random() < 0.3) for _ in range(6)]
    conditions += [And(tuple(conditions[:2])), Or(tuple(conditions[2:4])), TRUE, FALSE]
    points = tuple(LINE.point(value) for value in (2, 5, 7))
    key = KeyDomain("a", "INTEGER", (2, 5, 7), points, rng.random() < 0.5, rng.random() < 0.5)
    blocks = [Block(condition) for condition in conditions] + [Block(conditions[0], ("a",)), Block(TRUE, ("a",))]
    every = [atom for condition in conditions for atom in atoms(condition)]
    axis = line_axis("a", LINE, every, keys=key, nulls=rng.random() < 0.7)
    wanted = compile_cells([axis], blocks, {"a": len(key)})
    monkeypatch.setattr(cells_module, "TOGETHER", 0)
    monkeypatch.setattr(cells_module, "_SPARSE", 1)
    monkeypatch.setattr(cells_module, "_merge", None)  # the table is not made
    found = compile_cells([axis], blocks, {"a": len(key)})
    assert np.array_equal(found.counted.toarray(), wanted.counted.toarray())
    assert np.array_equal(found.cell_of_state, wanted.cell_of_state)
    assert np.array_equal(found.transitions[0], wanted.transitions[0])
