"""Rows that a bound keeps apart: residuals of blocks against all that a unit can do, by brute force."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import engine_of, policy_of, sources_of, tables_of, understood
from unit_worlds import least

from dpsql.linalg.blocks import AxisIntegers, Centre, Mixed, Plain, Residual
from dpsql.measure import Job, cells
from dpsql.strategy import structured_strategy
from dpsql.workloads.compile import rows_in_classes, sensitivity
from dpsql.workloads.compile.caps import regions_by_group, side_by_side
from dpsql.workloads.compile.kronecker import KroneckerIntegers
from dpsql.workloads.compile.sensitivity import rough_sensitivity, sensitivity_of
from dpsql.workloads.compile.structured import Structured, compile_structured

TABLES = """
[tables.visits]
unit = "patient"
max_rows_per_unit = {most}
at_most = [{caps}]
[tables.visits.columns]
month = {{ values = [1, 2, 3, 4], nulls = false }}
ward = {{ values = ["a", "b"], nulls = false }}
day = {{ lower = 1, upper = 2 }}
week = {{ lower = 1, upper = 3 }}
cost = {{ lower = 0, upper = 4, nulls = false }}
"""
COLUMNS = "patient INTEGER, month INTEGER, ward VARCHAR, day INTEGER, week INTEGER, cost INTEGER"
VALUES = ((1, 2, 3, 4), ("a", "b"), (1, 2, 9, None), (1, 2, 3, 7), (0, 2, 4))
CUBE = "SELECT month, ward, COUNT(*) AS n FROM visits GROUP BY CUBE (month, ward)"
SUMS = "SELECT month, ward, day, SUM(cost) AS n FROM visits GROUP BY CUBE (month, ward, day)"
PER = ("month", "month % 2", "month % 3", "ward", "day")


@functools.cache
def no_visits() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(f"CREATE TABLE visits ({COLUMNS})")
    return con


def compiled(sql: str, most: int, caps: str) -> Structured:
    policy = policy_of(TABLES.format(most=most, caps=caps))
    found = understood(sql, policy, tables_of(policy, engine_of(no_visits())))
    return compile_structured(found.queries, found.tables)


def drawn(batch: Structured, rng: np.random.Generator, *, centred: bool) -> KroneckerIntegers:
    """Random residuals of the batch's histograms; ``centred``: as marginals have them."""
    places: dict[tuple[int, tuple[int, ...]], Residual] = {}
    shared: dict[int, Mixed] = {}
    for number, held in enumerate(batch.histograms):
        for order in range(len(held.axes) + 1):
            for axes in itertools.combinations(held.axes, order):
                parts: list[AxisIntegers] = []
                for axis in axes:
                    d = batch.sizes[0][axis]
                    wanted = 0 if centred else int(rng.integers(4))
                    if wanted == 2 and axis not in shared:
                        shared[axis] = Mixed(rng.integers(-2, 3, size=(2, d)))
                    made = (Centre(d), Plain(d), shared.get(axis, Plain(d)), Mixed(rng.integers(-2, 3, size=(d, d))))
                    parts.append(made[wanted])
                if rng.random() < 0.85:
                    times = int(rng.integers(1, 7))
                    places[held.component, axes] = Residual(0, held.component, axes, number, tuple(parts), times)
    first = Residual(0, 0, (), 0, (), int(rng.integers(1, 7)))
    return KroneckerIntegers(batch.histograms, tuple(places.values()) or (first,))


def rows_of(batch: Structured) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """L x of one row of each kind (kinds x n): its regions, and its measures at both ends; and the regions."""
    sizes = batch.sizes[0]
    measures = sorted({held.component for held in batch.histograms} - {0})
    kinds, out = [], []
    for cell in itertools.product(*(range(d) for d in sizes)):
        for signs in itertools.product((-1, 1), repeat=len(measures)):
            x = np.zeros(max(held.stop for held in batch.histograms), dtype=np.int64)
            for held in batch.histograms:
                value = 1 if held.component == 0 else signs[measures.index(held.component)]
                at = np.ravel_multi_index([cell[axis] for axis in held.axes], held.sizes) if held.axes else 0
                x[held.start + int(at)] += value
            kinds.append(cell)
            out.append(x)
    return np.array(out), kinds


def reached(batch: Structured, integers: KroneckerIntegers) -> int:
    """The largest squared norm of what any multiset of rows within the bounds moves."""
    x, kinds = rows_of(batch)
    B = np.array([integers.times(row.tolist(), 8) for row in x], dtype=np.int64)
    gram = B @ B.T
    layout = batch.layouts[0]
    most = layout.multiplicity
    assert layout.every is not None
    groups = []
    for cap in layout.source.caps:
        place = [axis.name for axis in layout.every[0]].index(cap.column.removeprefix("_"))
        axis: Any = layout.every[0][place]
        label = np.full(axis.size, -1)
        classes = regions_by_group(axis, cap)
        for number, (regions, _) in enumerate(classes):
            label[regions] = number
        times = np.array([min(most, (cap.rows or most) * min(held, cap.groups or held)) for _, held in classes])
        groups.append((np.array([label[kind[place]] for kind in kinds]), times, cap.groups))
    largest = 0
    for size in range(1, most + 1):
        chosen = np.array(list(itertools.combinations_with_replacement(range(len(x)), size)))
        keep = np.ones(len(chosen), dtype=bool)
        for mine, held, allowed in groups:
            counts = np.stack([(mine[chosen] == one).sum(axis=1) for one in range(len(held))], axis=1)
            keep &= (counts <= held).all(axis=1)
            if allowed:
                keep &= (counts > 0).sum(axis=1) <= allowed
        chosen = chosen[keep]
        if len(chosen):
            largest = max(largest, int(gram[chosen[:, :, None], chosen[:, None, :]].sum(axis=(1, 2)).max()))
    return largest


def worlds(count: int, seed: int) -> Any:
    """Batches under a bound, with random measurements of them."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        sql = (CUBE, CUBE, SUMS)[number % 3]
        columns = PER[:4] if sql is CUBE else PER
        most = int(rng.integers(2, 5)) if sql is CUBE else 2
        per, rows, groups = columns[int(rng.integers(len(columns)))], int(rng.integers(1, most)), int(rng.integers(4))
        cap = f'{{ rows = {rows}, per = "{per}"' + (f", groups = {groups} }}" if 0 < groups <= most else " }")
        batch = compiled(sql, most, cap)
        yield batch, drawn(batch, rng, centred=number % 2 == 0), cap


def sweep(count: int, seed: int) -> tuple[int, int]:
    """How many sensitivities are reached, and how many are less than that of all rows in one cell."""
    equal = less = 0
    for batch, integers, cap in worlds(count, seed):
        claimed = sensitivity_of("gaussian", integers, batch.layouts)
        found = reached(batch, integers)
        assert found <= claimed, (cap, batch.layouts[0].multiplicity, found, claimed)
        assert rough_sensitivity("gaussian", integers, batch.layouts) == pytest.approx(claimed, rel=1e-5)
        whole = sum(k.multiplicity**2 * integers.norms(k.entry)[1] for k in batch.layouts)
        equal, less = equal + (found == claimed), less + (claimed < whole)
    return equal, less


def test_no_rows_apart_move_more_than_claimed() -> None:
    equal, less = sweep(8, 1)
    assert equal >= 4
    assert less >= 4


@pytest.mark.long
def test_three_hundred_worlds_of_rows_apart() -> None:
    equal, less = sweep(300, 2)
    assert equal >= 60
    assert less >= 120


def one_class_too_few(patch: pytest.MonkeyPatch) -> None:
    real = rows_in_classes._sizes
    patch.setattr(rows_in_classes, "_sizes", lambda *given: real(*given)[:-1] or real(*given))


def remainder_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = rows_in_classes._sizes
    patch.setattr(rows_in_classes, "_sizes", lambda each, limit: real(each, limit - limit % each))


def what_cancels_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Rows of one cell take back what their centres do on other axes, whatever those are."""

    def squared(self: rows_in_classes.Reach, squares: Any) -> int:
        flat = sum(k * b * n for k, b, n in zip(squares, self.level, self.norm, strict=True))
        rises = sum(k * a for k, a in zip(squares, self.linear, strict=True))
        sums = [sum(squares[i] * held[s] for i, held in self.sums.items()) for s in range(self.bound.most)]
        found = (Q * rises + R * R * flat + more for (R, Q), more in zip(self.bound.rows, sums, strict=True))
        return int(max(found))

    patch.setattr(rows_in_classes.Reach, "squared", squared)


def levels_doubled(patch: pytest.MonkeyPatch) -> None:
    real = rows_in_classes._form

    def form(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        return None if found is None else (found[0], 2 * found[1], found[2])

    patch.setattr(rows_in_classes, "_form", form)


def pairs_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Of what rows have in common on the axis only what each has with itself is counted."""
    real = rows_in_classes.largest_sums
    patch.setattr(
        rows_in_classes, "largest_sums", lambda H, *given, **more: real(np.diag(np.diagonal(H)), *given, **more)
    )


def groups_of_a_class_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows_in_classes, "rows_of_classes", lambda layout, cap, classes: [cap.rows] * len(classes))


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a class too few": one_class_too_few,
    "a remainder forgotten": remainder_forgotten,
    "what cancels counted twice": what_cancels_counted_twice,
    "levels doubled": levels_doubled,
    "pairs forgotten": pairs_forgotten,
    "groups of a class forgotten": groups_of_a_class_forgotten,
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few("a class too few", "what cancels counted twice", "levels doubled", "pairs forgotten")
def test_the_search_sees(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    MUTANTS[mutant](monkeypatch)
    # The second check is a mutant of its own: here only what is reached counts.
    for batch, integers, _ in worlds(60, 3):
        if reached(batch, integers) > sensitivity_of("gaussian", integers, batch.layouts):
            return
    if mutant == "groups of a class forgotten":
        batch = compiled("SELECT month % 2 AS m, ward, COUNT(*) FROM visits GROUP BY CUBE (m, ward)", 4, EACH)
        integers = drawn(batch, np.random.default_rng(5), centred=True)
        assert reached(batch, integers) > sensitivity_of("gaussian", integers, batch.layouts)
        return
    raise AssertionError(mutant)


EACH = '{ rows = 1, per = "month" }'


WEEKS = CUBE.replace("month", "week")


def asked(batch: Structured) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """The weighted queries over all combinations of regions, and these."""
    _, kinds = rows_of(batch)
    W = []
    for block in batch.blocks:
        for row in range(block.stop - block.start):
            wanted = np.zeros(len(kinds))
            for at, kind in enumerate(kinds):
                parts = [f.matrix.toarray()[:, [kind[f.axes[0]]]].ravel() for f in block.factors]
                wanted[at] = block.weight * block.outer(parts)[row] if parts else block.weight
            W.append(wanted)
    return np.array(W), kinds


@pytest.mark.parametrize(
    ("region", "per"), [("month > 1", "month"), ("month = 1", "month % 3"), ("month = 3", "month")]
)
def test_a_region_of_few_groups_holds_few_rows(region: str, per: str) -> None:
    """Two rows of a unit fit in most regions, and one in that of one month: no bound may have two of them there."""
    batch = compiled(
        f"SELECT {region} AS k, ward, COUNT(*) AS n FROM visits GROUP BY CUBE (k, ward)",
        *(2, f'{{ rows = 1, per = "{per}" }}'),
    )
    found = structured_strategy(batch, "gaussian")
    W, kinds = asked(batch)
    layout = batch.layouts[0]
    assert layout.every is not None
    assert rows_in_classes.rows_anywhere(layout) == 1
    place = [axis.name for axis in layout.every[0]].index("month")
    axis: Any = layout.every[0][place]
    pairs = set(zip(*(part.tolist() for part in side_by_side(axis, layout.source.caps[0].axis)), strict=True))
    groups = [{group for region, group in pairs if region == kind[place]} for kind in kinds]
    moved = [np.bincount([i], minlength=len(kinds)) for i in range(len(kinds))]
    moved += [
        np.bincount([i, j], minlength=len(kinds))
        for i, j in itertools.combinations_with_replacement(range(len(kinds)), 2)
        if len(groups[i] | groups[j]) > 1
    ]
    true = least(W, np.array(moved) / layout.multiplicity, 2e-3)
    assert found.lower_bound is not None
    assert found.lower_bound <= true.upper * (1 + 1e-9)


@pytest.mark.parametrize(
    ("sql", "most", "rows", "per", "far"),
    [
        (CUBE, 4, 1, "month", 1.06),
        (CUBE, 3, 1, "month", 1.03),
        (CUBE, 3, 2, "month", 1.03),
        (CUBE, 3, 2, "month % 2", 1.06),
        (WEEKS, 3, 1, "week", 1.3),
        (WEEKS, 3, 2, "week", 1.3),
        ("SELECT COUNT(*) AS n FROM visits WHERE ward = 'a'", 3, 1, "ward", 1.01),
    ],
)
@pytest.mark.few(every=2)
def test_plans_are_certified_for_what_units_can_do(sql: str, most: int, rows: int, per: str, far: float) -> None:
    """Error and lower bound on both sides of the least over all that a unit can change, which is solved apart.

    ``far``: how far they may be, as no b below 0 is taken and regions that nothing counts are measured, too.
    """
    batch = compiled(sql, most, f'{{ rows = {rows}, per = "{per}" }}')
    found = structured_strategy(batch, "gaussian")
    W, kinds = asked(batch)
    layout = batch.layouts[0]
    assert layout.every is not None
    place = [axis.name for axis in layout.every[0]].index(per.partition(" ")[0])
    axis: Any = layout.every[0][place]
    label = np.zeros(axis.size, dtype=np.int64)
    for number, (regions, _) in enumerate(regions_by_group(axis, layout.source.caps[0])):
        label[regions] = number
    moved = [
        np.bincount(chosen, minlength=len(kinds))
        for size in range(1, most + 1)
        for chosen in itertools.combinations_with_replacement(range(len(kinds)), size)
        if np.bincount([label[kinds[i][place]] for i in chosen]).max() <= rows
    ]
    true = least(W, np.array(moved) / layout.multiplicity, 2e-3)
    assert found.lower_bound is not None
    assert found.lower_bound <= true.upper * (1 + 1e-9)
    assert found.expected >= true.lower * (1 - 1e-9)
    assert found.expected <= far * true.upper
    assert found.lower_bound >= true.lower / far


@pytest.mark.long
def test_tables_that_break_a_bound_lose_no_more_than_claimed() -> None:
    """Histograms of one table keep the same rows of a unit, within the bound."""
    rng = np.random.default_rng(7)
    policy = policy_of(TABLES.format(most=3, caps=EACH))
    largest = 0.0
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE visits ({COLUMNS})")
        found = understood(SUMS, policy, tables_of(policy, engine_of(con)))
        strategy = structured_strategy(compile_structured(found.queries, found.tables), "gaussian")
        batch, nothing = strategy.planned, None
        job = Job(batch.layouts, strategy.measured, batch.common_steps, 1, nothing, {}, sources_of(policy), {})  # type: ignore[arg-type]
        claimed = sensitivity_of("gaussian", strategy.measured, batch.layouts) * batch.common_steps**2
        for _ in range(6):
            rows = [
                (int(rng.integers(3)), *(values[int(rng.integers(len(values)))] for values in VALUES))
                for _ in range(20)
            ]
            seen = []
            for without in (None, 0, 1, 2):
                con.execute("DELETE FROM visits")
                con.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", [r for r in rows if r[0] != without])
                seen.append(np.array(cells.observed(job, engine_of(con), [0] * strategy.shape[0]), dtype=object))
            for fewer in seen[1:]:
                moved = seen[0] - fewer
                largest = max(largest, float((moved * moved).sum() / claimed))
    assert 0.2 < largest <= 1.0


def test_a_plan_with_rows_apart_is_measured_as_it_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second check fails where the first says too little."""
    batch = compiled(CUBE, 4, EACH)
    strategy = structured_strategy(batch, "gaussian")
    claimed = sensitivity_of("gaussian", strategy.measured, batch.layouts)
    monkeypatch.setattr(rows_in_classes.Reach, "squared", lambda self, squares: claimed // 2)
    assert sensitivity.sensitivity_of("gaussian", strategy.measured, batch.layouts) < claimed
    assert rough_sensitivity("gaussian", strategy.measured, batch.layouts) == pytest.approx(claimed, rel=1e-5)


def test_bounds_that_are_not_used_leave_plans_as_they_were() -> None:
    free = structured_strategy(compiled(CUBE, 4, ""), "gaussian")
    for cap in ('{ rows = 4, per = "month" }', '{ groups = 2, per = "ward" }', '{ rows = 1, per = "day" }'):
        held = structured_strategy(compiled(CUBE, 4, cap), "gaussian")
        assert [r.multiplier for r in held.residuals] == [r.multiplier for r in free.residuals]
