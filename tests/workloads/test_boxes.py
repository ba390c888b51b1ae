"""Conjunctions as sets: cells against the general path, boxes against cells, norms against every column."""

from __future__ import annotations

import random
from fractions import Fraction

import duckdb
import numpy as np
import pytest
from helpers import exact, job_of, policy_of, tables_of

from dpsql.errors import IntegrityError, SQLError
from dpsql.linalg.norms import column_norms
from dpsql.measure import ConnectionEngine
from dpsql.workloads.cells import cell_limits
from dpsql.workloads.cells import merging as cells_module
from dpsql.workloads.cells.alive import words
from dpsql.workloads.cells.boxes import Boxes, BoxIntegers, BoxWorkload
from dpsql.workloads.cells.cell_table import Block
from dpsql.workloads.cells.merging import compile_cells
from dpsql.workloads.compile.compiled import compile_batch
from dpsql.workloads.expr.conditions import TRUE, LineAtom, atoms, conjunction, disjunction
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import AxisTruths, line_axis

LINE = line_of("INTEGER")
SIZE = 9


def _box(rng: random.Random, columns: str = "abc") -> LineAtom:
    atoms_ = []
    for column in columns:
        if rng.random() < 0.8:
            low, high = sorted(rng.choices(range(SIZE), k=2))
            atoms_.append(LineAtom(column, (((low, 0), (high + 1, 0)),), rng.random() < 0.2))
    return conjunction(*atoms_) if atoms_ else TRUE


def _axes(blocks: list[Block], columns: str = "abc") -> list[AxisTruths]:
    points = [LINE.point(v) for v in range(SIZE)]
    return [
        line_axis(c, LINE, [a for b in blocks for a in atoms(b.condition) if a.column == c], closed=points, nulls=True)
        for c in columns
    ]


def _regions(axes: list[AxisTruths]) -> dict[str, np.ndarray]:
    sizes = [axis.axis.size for axis in axes]
    every = np.indices([size + 1 for size in sizes]).reshape(len(sizes), -1) - 1  # -1: a row outside
    return {axis.axis.column: every[i] for i, axis in enumerate(axes)}


def _told(cells, blocks: int, regions: dict[str, np.ndarray]) -> np.ndarray:
    """Which blocks count each row of regions: (rows x blocks)."""
    where = cells.locate([regions[axis.column] for axis in cells.axes])
    if isinstance(cells, Boxes):
        found = np.zeros((len(where), blocks), dtype=bool)
        found[where >= 0] = cells.sets(where[where >= 0]).T
        return found
    held = np.zeros((len(cells) + 1, blocks), dtype=bool)  # the last: in no cell
    block, at, _ = cells.members(np.arange(blocks))
    held[at, block] = True
    return held[where]


@pytest.mark.parametrize("seed", range(6))
def test_sets_make_the_cells_of_the_general_path(seed, monkeypatch):
    rng = random.Random(seed)
    blocks = list(dict.fromkeys(Block(_box(rng)) for _ in range(12)))
    if seed % 2:  # some that are no conjunctions
        blocks += [Block(disjunction(_box(rng, "a"), _box(rng, "bc"))) for _ in range(4)]
        blocks = list(dict.fromkeys(blocks))
    axes = _axes(blocks)
    regions = _regions(axes)
    quick = compile_cells(axes, blocks, {})
    monkeypatch.setattr(cells_module, "is_conjunction", lambda condition: False)
    general = compile_cells(axes, blocks, {})
    assert len(quick) == len(general)
    assert np.array_equal(_told(quick, len(blocks), regions), _told(general, len(blocks), regions))


def test_equal_hashes_are_told_apart(monkeypatch):
    rng = random.Random(1)
    blocks = list(dict.fromkeys(Block(_box(rng)) for _ in range(8)))
    axes = _axes(blocks)
    wanted = compile_cells(axes, blocks, {})
    for module in ("dpsql.workloads.cells.alive.mix", "dpsql.workloads.cells.merging.mix"):
        monkeypatch.setattr(module, lambda values: np.zeros_like(values))
    found = compile_cells(axes, blocks, {})
    assert np.array_equal(found.counted.toarray(), wanted.counted.toarray())
    assert all(np.array_equal(a, b) for a, b in zip(found.transitions, wanted.transitions, strict=True))


def test_words_keep_every_bit():
    sets = np.random.default_rng(0).random((130, 7)) < 0.5
    held = words(sets)
    assert held.shape == (3, 7)
    back = np.unpackbits(held.T.copy().view(np.uint8), axis=1)[:, :130]
    assert np.array_equal(back.T.astype(bool), sets)


@pytest.mark.parametrize("seed", range(4))
def test_boxes_are_the_cells(seed, monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    rng = random.Random(seed)
    blocks = list(dict.fromkeys(Block(_box(rng)) for _ in range(3 + 20 * seed)))
    axes = _axes(blocks)
    boxes = compile_cells(axes, blocks, {}, boxes=True)
    cells = compile_cells(axes, blocks, {})
    assert isinstance(boxes, Boxes)
    assert len(boxes) == len(blocks)
    assert boxes.pairs >= len(cells)
    assert boxes.combinations == cells.combinations
    regions = _regions(axes)
    assert np.array_equal(_told(boxes, len(blocks), regions), _told(cells, len(blocks), regions))
    sample = boxes.spread(50)
    assert boxes.sets(sample).any(axis=0).all()
    reached = boxes.sets(np.arange(boxes.pairs)).any(axis=1)
    assert np.array_equal(boxes.sets(sample).any(axis=1), reached)  # every block that some row can be in
    assert np.array_equal(boxes.members(np.arange(len(blocks)))[1], np.flatnonzero(reached))


@pytest.mark.parametrize("seed", range(4))
def test_norms_are_those_of_every_column(seed, monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    rng, draws = random.Random(seed), np.random.default_rng(seed)
    blocks = list(dict.fromkeys(Block(_box(rng)) for _ in range(25)))
    boxes = compile_cells(_axes(blocks), blocks, {}, boxes=True)
    m = len(blocks)
    every = boxes.columns(np.arange(boxes.pairs))
    for M in (
        draws.integers(-(2**40), 2**40, size=(9, m)),
        draws.integers(-2, 3, size=(30, m)),
        np.tile(draws.integers(0, 2, size=(1, m)), (4, 1)),  # many columns attain the largest norm
    ):
        l1, l2 = column_norms(M, every)
        found = boxes.norms(M)
        assert found[1] == l2
        assert l1 <= found[0] <= int((len(M) * l2) ** 0.5) + 2
        assert boxes.largest_square(M.astype(float)) == pytest.approx(l2, rel=1e-9)
    for diagonal in (np.ones(m, dtype=np.int64), draws.integers(1, 2**20, size=m)):
        assert boxes.norms(np.diag(diagonal)) == column_norms(np.diag(diagonal), every)
    # In single precision, over some states.
    T = draws.normal(size=(5, m))
    wanted = ((T @ every.toarray()) ** 2).sum(axis=0).reshape(-1, boxes.holds.shape[1])
    some = np.arange(0, boxes.alive.shape[1], 2)
    found = np.concatenate([part for _, part in boxes.squares(T, some, single=True)])
    assert found == pytest.approx(wanted[some], abs=1e-4 * wanted.max())


def test_totals_are_exact(monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    rng, draws = random.Random(3), np.random.default_rng(3)
    blocks = list(dict.fromkeys(Block(_box(rng)) for _ in range(20)))
    boxes = compile_cells(_axes(blocks), blocks, {}, boxes=True)
    pairs = draws.integers(0, boxes.pairs, size=9000)
    counts = draws.integers(0, 2**62, size=9000)
    held = boxes.sets(pairs)
    wanted = [sum(int(c) for c in counts[row]) for row in held]
    assert max(wanted) > 2**63
    assert boxes.totals(pairs, counts) == wanted


def test_caps(monkeypatch):
    rng = random.Random(4)
    blocks = list(dict.fromkeys(Block(_box(rng)) for _ in range(20)))
    axes = _axes(blocks)
    monkeypatch.setattr(cell_limits, "MAX_COUNTED", 100)
    with pytest.raises(SQLError, match=r"query blocks count [\d,]+; at most 100 are planned: split the batch"):
        compile_cells(axes, blocks, {})
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    assert isinstance(compile_cells(axes, blocks, {}, boxes=True), Boxes)
    monkeypatch.setattr(cell_limits, "MAX_SWEEP", 100)
    with pytest.raises(SQLError, match="steps to tell apart, at most 100 are planned: split the batch"):
        compile_cells(axes, blocks, {}, boxes=True)


POLICY = """
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 20 }
b = { lower = 0, upper = 20 }
c = { lower = 0, upper = 20 }
"""


def _table() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("""CREATE TABLE t AS SELECT CAST(CASE WHEN i % 17 = 0 THEN NULL ELSE hash(i) % 21 END AS INTEGER) AS a,
                CAST(hash(i + 5000) % 21 AS INTEGER) AS b, CAST(hash(i + 9000) % 24 AS INTEGER) AS c
                FROM range(400) r(i)""")
    return con


def _batch(number: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    shown = []
    for _ in range(number):
        parts = [
            "{} BETWEEN {} AND {}".format(column, *sorted(rng.choices(range(21), k=2)))
            for column in "abc"
            if rng.random() < 0.9
        ]
        shown.append(f"COUNT_IF({' AND '.join(parts) or 'TRUE'})")
    shown.append("COUNT_IF(a < 5) - COUNT_IF(b < 5)")
    shown.append("COUNT_IF(a > 5 AND a < 3)")
    return "SELECT " + ", ".join(f"{text} AS n{i}" for i, text in enumerate(shown)) + " FROM t"


def test_exact_counts_of_boxes(monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    con = _table()
    sql = _batch(30)
    found = exact(sql, policy_of(POLICY), con)
    assert isinstance(found.compiled.layouts[0].cells, Boxes)
    assert found.answers == [Fraction(value) for value in con.execute(sql).fetchone()]
    assert found.compiled.answered.size == len(found.answers) - 1  # one condition cannot hold
    assert found.compiled.cells == found.compiled.layouts[0].cells.pairs


def test_a_sensitivity_too_small_is_not_measured(monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    con, policy = _table(), policy_of(POLICY)
    compiled = exact(_batch(30), policy, con).compiled
    job = job_of(compiled, policy)
    boxes = compiled.layouts[0].cells
    integers = BoxIntegers(job.integers.mixing, job.integers.basis, boxes=boxes)
    charge = type("Charge", (), {"noise": "gaussian"})()
    depth = integers.norms(compiled.layouts[0].entry)[1]
    for sensitivity, right in ((depth, True), (depth - 1, False)):
        held = type(job)(compiled.layouts, integers, 1, sensitivity, charge, {}, {}, {})
        if right:
            held.check_sensitivity()
        else:
            with pytest.raises(IntegrityError, match="sensitivity"):
                held.check_sensitivity()
    # Integers that know nothing of boxes are never taken for ones over cells.
    with pytest.raises(SQLError, match="meet in one cell"):
        job.integers.norms(compiled.layouts[0].entry)


def test_sums_keys_and_two_tables_have_cells(monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    con = _table()
    con.execute("CREATE TABLE u AS FROM t")
    policy = policy_of(POLICY + POLICY.replace("tables.t", "tables.u"))
    boxes = _batch(6)
    for sql in (boxes + "; SELECT SUM(a) FROM t", boxes + "; SELECT b, COUNT(*) FROM t GROUP BY b",
                boxes + "; " + boxes.replace("FROM t", "FROM u")):  # fmt: skip
        found = exact(sql, policy, con)
        assert not any(isinstance(layout.cells, Boxes) for layout in found.compiled.layouts)


def test_the_workload_over_boxes_holds_columns_of_them(monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    con, policy = _table(), policy_of(POLICY)
    compiled = exact(_batch(30), policy, con).compiled
    W = compiled.workload(compiled.scale)
    assert isinstance(W, BoxWorkload)
    every = W.boxes.sets(np.arange(W.boxes.pairs))
    held = {column.tobytes() for column in every.T}
    assert {column.tobytes() for column in W.contributions.toarray().T.astype(bool)} <= held


def test_boxes_can_be_left_out(monkeypatch):
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    con, policy = _table(), policy_of(POLICY)
    tables = tables_of(policy, ConnectionEngine(con))
    compiled = exact(_batch(5), policy, con).compiled
    listed = compile_batch(compiled.queries, tables, boxes=False)
    assert not isinstance(listed.layouts[0].cells, Boxes)
    assert listed.cells < compiled.cells
