"""Units that are counted beside blocks: sensitivity against all that a person can change, and the bound of errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import engine_of, tables_of, understood
from unit_worlds import Ask, World, asks, enumerated, least

import dpsql
from dpsql.errors import DataError, SQLError
from dpsql.planning import plan
from dpsql.planning.prepare import true_error
from dpsql.policy import Policy
from dpsql.strategies.kronecker import weights_under_bounds
from dpsql.strategy import StructuredStrategy, structured_strategy
from dpsql.workloads.compile import choice, rows_in_classes, sensitivity
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.compile.layout import Layout, common_multiplicity
from dpsql.workloads.compile.rows_in_classes import ClassBound
from dpsql.workloads.compile.sensitivity import rough_sensitivity, sensitivity_of
from dpsql.workloads.compile.structured import Structured, compile_structured

MOST = {"patients": 1, "visits": 3, "labs": 2}
NAMED = [
    Ask("SELECT ward, day, COUNT(*) AS n, COUNT(DISTINCT patient) AS p FROM visits GROUP BY ROLLUP (ward, day)", MOST),
    Ask("SELECT day, COUNT(DISTINCT patient) AS p FROM visits GROUP BY day", MOST),
    Ask("SELECT ward, day, COUNT(DISTINCT patient) AS p FROM visits WHERE cost > 0 GROUP BY ward, day", MOST),
    Ask("SELECT COUNT(*) AS n, COUNT(DISTINCT patient) AS p FROM visits", MOST),
]
ALONE = (1, 2)  # of the named: one count of units


@cache
def world() -> World:
    return World()


def compiled(ask: Ask) -> tuple[Structured, Compiled] | None:
    policy = Policy.parse(ask.policy("gaussian"))
    found = understood(ask.sql, policy, tables_of(policy, engine_of(world().duck)))
    try:
        return compile_structured(found.queries, found.tables), compile_batch(found.queries, found.tables)
    except SQLError:
        return None


@cache
def batches(count: int) -> list[tuple[Ask, Structured, Compiled]]:
    """Named ones, and random ones with counts of units."""
    drawn = [ask for ask in asks(count, 5) if "DISTINCT" in ask.sql]
    found = [(ask, made) for ask in (*NAMED, *drawn) if (made := compiled(ask)) is not None]
    return [(ask, *made) for ask, made in found if any(layout.source.counts_units for layout in made[0].layouts)]


def everything(ask: Ask, layouts: tuple[Layout, ...], size: int, steps: int, most: int) -> list[Any]:
    """What a person can change of x, by the scan itself."""
    held: Any = SimpleNamespace(layouts=layouts, rows=np.zeros((0, size)), common_steps=steps)
    return enumerated(world(), ask, held, most, random.Random(3))


def reached(found: StructuredStrategy, ask: Ask, most: int) -> int:
    """The largest norm of all of it, in units of 1."""
    batch, measured = found.planned, found.measured
    size = batch.histograms[-1].stop
    B = np.array([measured.times([int(i == j) for j in range(size)], 2) for i in range(size)], dtype=object)
    order = 1 if found.noise == "laplace" else 2
    kinds = everything(ask, batch.layouts, size, batch.common_steps, most)
    moved = [abs(one.vectors @ B) ** order for one in kinds if len(one.vectors)]
    # x is in units of 1 / L, as the sensitivity is not.
    return int(max(one.sum(axis=1).max() for one in moved)) // batch.common_steps**order


def planned(batch: Structured, noise: str) -> StructuredStrategy | None:
    try:
        return structured_strategy(batch, noise)
    except DataError:
        return None


@pytest.mark.parametrize(
    ("noise", "count", "tried_at_least"), [("gaussian", 8, 2), ("gaussian", 60, 15), ("laplace", 60, 15)]
)
@pytest.mark.few("gaussian-8-2")
def test_no_person_moves_more(noise: str, count: int, tried_at_least: int) -> None:
    tried = 0
    for ask, batch, _ in batches(count):
        found = planned(batch, noise)
        if found is None:
            continue
        known = sensitivity_of(noise, found.measured, found.planned.layouts)
        assert reached(found, ask, 100) <= known
        assert rough_sensitivity(noise, found.measured, found.planned.layouts) == pytest.approx(known, rel=1e-5)
        tried += 1
    assert tried >= tried_at_least


def test_one_count_of_units_is_exact() -> None:
    for ask, batch, _ in [batches(0)[number] for number in ALONE]:
        found = structured_strategy(batch, "gaussian")
        assert reached(found, ask, 10_000) == sensitivity_of("gaussian", found.measured, found.planned.layouts)
        # Groups are alike: nothing is better.
        assert found.lower_bound is not None
        assert found.expected <= found.lower_bound * 1.001


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_count_of_nobody_takes_nothing(noise: str) -> None:
    nobody = "SELECT COUNT(DISTINCT CASE WHEN ward = 'b' THEN patient END) FROM visits WHERE ward IS NULL"
    made = compiled(Ask(f"{nobody}; SELECT COUNT(*) FROM visits", MOST))
    assert made is not None
    found = structured_strategy(made[0], noise)
    assert found.expected == MOST["visits"] ** 2


POLICY = """dataset = "visits"
[budget]
epsilon = 1e6
[tables.visits]
unit = "patient"
max_rows_per_unit = 2
[tables.visits.columns]
month = { lower = 1, upper = 12 }
ward = { values = ["a", "b", "c", "d", "e"], other = true }
"""


@pytest.mark.long
def test_blocks_are_not_taken_where_a_column_becomes_worse(tmp_path: Path) -> None:
    """They have less error in all, but a third more in COUNT(*) without groups than that by itself."""
    (tmp_path / "p.toml").write_text(POLICY)
    duck = duckdb.connect()
    duck.execute("CREATE TABLE visits (patient INTEGER, month INTEGER, ward VARCHAR)")
    wanted = "COUNT(*), COUNT(DISTINCT patient) FROM visits"
    grouped = [f"SELECT {key}, {wanted} GROUP BY {key}" for key in ("month", "ward")]
    with dpsql.connect(duck, policy=str(tmp_path / "p.toml"), ledger=str(tmp_path / "l")) as con:
        plan = con.plan("; ".join([f"SELECT {wanted}", *grouped]), epsilon=1.0)
    assert (np.array(plan.errors) <= 1.02 * np.array(plan.naive_errors)).all()


@pytest.mark.parametrize("known", [1.01, 0.99])
@pytest.mark.few("1.01")
def test_one_matrix_is_searched_until_it_has_more_error_than_blocks(
    known: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks come first where it takes long: the plan is the same, and no search goes on where blocks have less."""
    (tmp_path / "p.toml").write_text(
        POLICY.replace("unit = 2", "unit = 9")
        .replace("upper = 12", "upper = 3")
        .replace("[tables.v", "delta = 1e-9\n[tables.v", 1)
    )
    duck = duckdb.connect()
    duck.execute("CREATE TABLE visits (patient INTEGER, month INTEGER, ward VARCHAR)")
    sql = "SELECT month, ward, COUNT(*), COUNT(DISTINCT patient) FROM visits GROUP BY GROUPING SETS ((month), (ward))"
    least, more = plan._strategy_value, list[bool]()
    with dpsql.connect(duck, policy=str(tmp_path / "p.toml"), ledger=str(tmp_path / "l")) as con:
        first = con.plan(sql, 1.0, 1e-9)
        one = true_error(first.strategy, first.compiled)

        def of_blocks(blocks: Any, compiled: Any, charge: Any) -> float:
            assert isinstance(blocks.compiled, Structured)
            more.append(least(blocks, compiled, charge) * compiled.units.common**2 > one)
            return one * known / compiled.units.common**2

        monkeypatch.setattr(choice, "WITH_UNITS", 0.0)
        monkeypatch.setattr(plan, "_strategy_value", of_blocks)
        again = con.plan(sql + " ", 1.0, 1e-9)
    assert more == [True]
    assert isinstance(first.compiled, Compiled)
    assert isinstance(again.compiled, Compiled) == (known > 1)


def one_group_too_few(patch: pytest.MonkeyPatch) -> None:
    def fewer(layout: Layout) -> list[ClassBound]:
        return [replace(one, rows=one.rows[:-1]) for one in rows_in_classes.class_bounds(layout)]

    patch.setattr(sensitivity, "class_bounds", fewer)


def one_group(patch: pytest.MonkeyPatch) -> None:
    def single(layout: Layout) -> list[ClassBound]:
        return [replace(one, rows=one.rows[:1]) for one in rows_in_classes.class_bounds(layout)]

    patch.setattr(sensitivity, "class_bounds", single)


@pytest.mark.parametrize("mutant", [one_group_too_few, one_group])
@pytest.mark.few("one_group_too_few")
def test_the_search_sees(monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]) -> None:
    mutant(monkeypatch)
    for ask, batch, _ in batches(0):
        found = structured_strategy(batch, "gaussian")
        if reached(found, ask, 10_000) > sensitivity_of("gaussian", found.measured, found.planned.layouts):
            return
    raise AssertionError(mutant)


def each_by_itself(ask: Ask, joint: Compiled) -> list[np.ndarray] | None:
    """Of each kind of person what it can change of each scan by itself; None where that is too much to list."""
    found: dict[str, np.ndarray] = {}
    for layout in joint.layouts:
        kinds = everything(ask, (replace(layout, tie=None),), joint.rows.shape[1], joint.common_steps, 300)
        mine = np.concatenate([np.zeros((1, joint.rows.shape[1])), *(one.floats for one in kinds)])
        held = found.get(layout.source.protects, mine[:1])
        if not all(one.whole for one in kinds) or len(held) * len(mine) > 3_000:
            return None
        found[layout.source.protects] = (held[:, None, :] + mine[None, :, :]).reshape(-1, mine.shape[1])
    return list(found.values())


@pytest.mark.long
def test_no_plan_is_better_than_the_bound() -> None:
    """The bound of errors against the least over all that a person can change of each scan by itself.

    Of each batch also the bound as where groups are very many.
    """
    tried = {False: 0, True: 0}
    for ask, batch, joint in batches(60):
        bounds: dict[bool, float] = {}
        for many in tried:
            with pytest.MonkeyPatch.context() as patch:
                if many:
                    patch.setattr(weights_under_bounds, "_MOST", 0)
                found = planned(batch, "gaussian")
            if found is not None and found.lower_bound is not None:
                bounds[many] = found.lower_bound * common_multiplicity(batch.layouts) ** 2
        kinds = each_by_itself(ask, joint) if bounds else None
        if kinds is None:
            continue
        W = joint.objective[:, None] * joint.rows.toarray() / joint.common_steps
        true = sum(least(W, vectors, 2e-3, 500).upper for vectors in kinds)
        assert max(bounds.values()) <= true * (1 + 1e-6), ask
        for many in bounds:
            tried[many] += 1
    assert min(tried.values()) >= 8
