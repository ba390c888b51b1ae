"""Block by block or over one matrix: a batch has the same answers either way, whatever the rows hold.

A row that has no region on some axis of its batch, a value outside a closed domain or a NULL that the policy rules out,
is in no cell of the one matrix. Noiseless answers of both ways are compared on tables that are full of such rows.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from odd_rows import BATCHES, POOLS, ROWS_ALONE, Database, World, drawn, random_batch, sent

import dpsql
from dpsql.measure import reading, row_by_row, scan_sql
from dpsql.planning.plan import Plan
from dpsql.workloads.compile.structured import Structured


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.at(tmp_path)


def planned(world: World, patch: pytest.MonkeyPatch, batch: str, way: str) -> Plan:
    with patch.context() as only_here:
        sent(way, only_here)
        return world.cons["gaussian"].plan(batch, 1, tolerance=0.1)


def noiseless(world: World, plan: Plan, database: Database) -> np.ndarray:
    """The answers (m,) without constants, from B L x and no noise."""
    x = world.x(plan, database)
    y = plan.strategy.measured.times(x, max(map(abs, x), default=0).bit_length() + 1)
    return plan.answers.estimate(y, plan.compiled.common_steps)


def odd(seed: int) -> Database:
    """Rows of which most break some promise of the policy; no unit has more rows than count."""
    rng = random.Random(seed)
    kept = {"patients": [], "visits": [], "labs": []}
    for key in range(12):  # keys and units of their own, so that nothing is truncated and every join finds its row
        kept["patients"].append((key, *drawn(rng, "patients", False)[1:]))
        for visit in range(1 + rng.randrange(2)):
            kept["visits"].append((10 * key + visit, key, *drawn(rng, "visits", False)[2:]))
        kept["labs"].append((10 * key, *drawn(rng, "labs", False)[1:]))
    return {"t": [drawn(rng, "t", turn % 5 == 0) for turn in range(60)], **kept}


def compare(world: World, patch: pytest.MonkeyPatch, batch: str, seeds: range) -> bool:
    """Holds both ways to one answer; False where the batch has one way only."""
    blocks, matrix = (planned(world, patch, batch, way) for way in ("blocks", "matrix"))
    assert not isinstance(matrix.compiled, Structured)
    if not isinstance(blocks.compiled, Structured):
        return False
    for seed in seeds:
        database = odd(seed)
        found, expected = noiseless(world, blocks, database), noiseless(world, matrix, database)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-6)
    return True


LIGHT = (
    "closed beside open",
    "sums",
    "sums alone",
    "opaque",
    "inner join",
    "three tables of one unit",
    "what never holds",
)


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.few(every=6)
def test_both_ways_count_the_same_rows(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert compare(world, monkeypatch, BATCHES[name], range(2))


@pytest.mark.parametrize("name", ["closed beside open", "inner join"])
@pytest.mark.few(every=2)
def test_both_ways_count_the_same_rows_in_scans_apart(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(reading, "MAX_GROUPS", 1)
    assert compare(world, monkeypatch, BATCHES[name], range(2))


@pytest.mark.parametrize("name", ["closed beside open", "sums", "inner join", "three tables of one unit"])
@pytest.mark.few(every=2)
def test_rows_that_are_read_count_as_in_scans(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(reading, "MANY", 1)
    monkeypatch.setattr(row_by_row, "PIECE", 2)
    assert compare(world, monkeypatch, BATCHES[name], range(2))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in BATCHES if name not in LIGHT])
def test_both_ways_count_the_same_rows_in_every_batch(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert compare(world, monkeypatch, BATCHES[name], range(4)) or name not in ROWS_ALONE


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_both_ways_count_the_same_rows_in_random_batches(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    try:
        compare(world, monkeypatch, random_batch(random.Random(seed)), range(3))
    except dpsql.NotSupportedError:  # nothing depends on the data
        pytest.skip("one way refuses the batch")


def test_a_row_outside_a_closed_domain_is_in_no_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = "SELECT b, COUNT(*) FROM t GROUP BY b; SELECT s, COUNT(*) FROM t GROUP BY s; SELECT COUNT(*), SUM(v) FROM t"
    kept = ("x", 1, 0, 5, 0.0, "p")
    rows = [kept, ("x", 9, 0, 5, 0.0, "p"), ("x", None, 0, 5, 0.0, "p"), ("x", 2, 0, 5, 0.0, "r"), kept]
    for way in ("blocks", "matrix"):
        plan = planned(world, monkeypatch, batch, way)
        found = noiseless(world, plan, {"t": rows})
        # b = 1, 2, 3, 4; s = p, q, NULL; all; the sum: b = 9 and NULL and s = 'r' keep their rows out of each.
        np.testing.assert_allclose(found, [2, 0, 0, 0, 2, 0, 0, 2, 10], atol=1e-7)


def test_a_column_of_which_nothing_is_left_counts_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = (
        "SELECT a, COUNT(*) FROM t GROUP BY a; SELECT c, COUNT_IF(s = 'p') - COUNT_IF(s = 'p') FROM t GROUP BY c",
        "SELECT a, COUNT(*) FROM t GROUP BY a; SELECT c, COUNT_IF(b < 0) FROM t GROUP BY c",
        "SELECT a, COUNT(*) FROM t GROUP BY a; SELECT c, COUNT(*) FROM t WHERE b > 4 AND b < 3 GROUP BY c",
    )
    for batch in batches:
        assert compare(world, monkeypatch, batch, range(2)), batch


def test_the_comparison_sees_rows_that_are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_GROUPS", 1)
    monkeypatch.setattr(scan_sql, "is_total", lambda axis: True)
    with pytest.raises(AssertionError):
        compare(world, monkeypatch, BATCHES["closed beside open"], range(2))


def test_the_rows_are_odd() -> None:
    rows = odd(0)["t"]
    b, s = POOLS["t"].index([1, 4, 2, 9, None]), 5
    assert sum(row[b] in (9, None) or row[s] == "r" for row in rows) > len(rows) // 3
