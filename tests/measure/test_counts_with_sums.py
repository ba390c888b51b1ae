"""Counts of rows beside sums of persons of the same rows: what one unit adds to both, against scans of small worlds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import sqrt
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, tables_of
from scipy import sparse
from unit_rows import policy_of, scan, sources_of

from dpsql.engines.duckdb import ConnectionEngine
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile import counts_with_sums as module
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.sensitivity import sensitivity_of

TABLE = """
[tables.visits]
unit = "patient"
max_rows_per_unit = {most}
at_most = [{bounds}]
[tables.visits.columns]
ward = {{ values = ["a", "b"], nulls = false }}
day = {{ lower = 1, upper = 2, nulls = false }}
cost = {{ lower = {low}, upper = {high} }}
"""
BOTH = "SELECT COUNT({0}) AS n, SUM(cost) AS s FROM visits"
BY_WARD = f"{BOTH} GROUP BY ward"
FILTER, SUMS = "FILTER (WHERE day = 1)", "SELECT ward, SUM(cost) AS s FROM visits"
World = tuple[int, tuple[int, int], str, str]
"""The most rows, the bounds of a row, those of a sum, and a statement."""
ALL, UP = '{{ sum = "cost", lower = {0}, upper = {1} }}', '{{ sum = "cost", lower = {0}, upper = {1}, per = "ward" }}'
ALONE: dict[str, World] = {
    "no NULL": (5, (1, 10), ALL.format(0, 3), BOTH.format("cost")),
    "NULL counts": (5, (1, 10), ALL.format(0, 3), BOTH.format("*")),
    "below 0": (2, (-1, 10), ALL.format(-10, 15), BOTH.format("cost")),
    "no bend on a whole number": (4, (0, 4), ALL.format(0, 10), BOTH.format("*")),
    "fractions beyond what is written": (3, (7, 60), ALL.format(0, 101), BOTH.format("cost")),
    "the same rows by a condition": (3, (2, 4), ALL.format(0, 7), BOTH.format("cost") + " WHERE day = 1"),
    "never above 0": (3, (-5, -2), ALL.format(-9, 0), BOTH.format("cost")),
    "cut by a condition": (3, (1, 6), ALL.format(0, 8), BOTH.format("cost") + " WHERE cost > 2"),
    "another sum of the same rows": (
        3,
        (1, 4),
        f'{ALL.format(0, 6)}, {{ sum = "cost * day", upper = 9 }}',
        BOTH.format("cost").replace(" FROM", ", SUM(cost * day) AS t FROM"),
    ),
}
SEVERAL: dict[str, World] = {
    "by ward": (3, (0, 3), UP.format(0, 5), BY_WARD.format("*")),
    "by ward, below 0": (3, (-1, 4), UP.format(-2, 6), BY_WARD.format("cost")),
    "by ward, no row adds nothing": (3, (1, 3), UP.format(0, 5), BY_WARD.format("cost")),
    "one row": (1, (0, 9), UP.format(0, 4), BY_WARD.format("*")),
}
OTHERS: dict[str, World] = {
    "counts of other rows": (3, (1, 4), ALL.format(0, 8), BOTH.format("*").replace(" AS n", f" {FILTER} AS n")),
    "sums of other rows": (3, (1, 4), ALL.format(0, 8), BOTH.format("*").replace(" AS s", f" {FILTER} AS s")),
    "a total that binds": (3, (1, 4), f"{UP.format(0, 5)}, {ALL.format(0, 7)}", BY_WARD.format("*")),
    "one count, sums by ward": (3, (1, 4), UP.format(0, 5), f"{SUMS} GROUP BY ward; SELECT COUNT(*) AS n FROM visits"),
}


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def compiled(con: duckdb.DuckDBPyConnection, world: World) -> tuple[Any, Compiled]:
    most, (low, high), bounds, sql = world
    con.execute("CREATE OR REPLACE TABLE visits (patient INTEGER, ward VARCHAR, day INTEGER, cost INTEGER)")
    held = policy_of(TABLE.format(most=most, bounds=bounds, low=low, high=high))
    return held, compiled_of(sql, held, tables_of(held, ConnectionEngine(con)))


def moves(con: duckdb.DuckDBPyConnection, world: World, rows: Iterator[Sequence[tuple[Any, ...]]]) -> np.ndarray:
    """What a patient with such rows, given as ward, day and cost, adds to x beside another one, over 1/L.

    Of several patients, whose hashes keep rows in different orders.
    """
    held, batch = compiled(con, world)
    found, before = [], None
    for number, mine in enumerate([(), *rows]):
        con.execute("DELETE FROM visits")
        con.executemany(
            "INSERT INTO visits VALUES (?, ?, ?, ?)", [(0, "a", 1, 1), *((1 + number % 7, *row) for row in mine)]
        )
        x = np.array(scan(batch, ConnectionEngine(con), sources_of(held)), dtype=object)
        before = x if before is None else before
        found.append(x - before)
    return np.array(found, dtype=object)


def of_claim(batch: Compiled, changes: np.ndarray) -> tuple[float, float]:
    """The largest change of B x over the claim of it, and the least over the claim without what it is rounded up.

    In both norms, for several B.
    """
    n, L, most, least = batch.rows.shape[1], batch.common_steps, 0.0, 1.0
    rng = np.random.default_rng(2)
    for B in [np.eye(n, dtype=np.int64), *(rng.integers(-30, 31, size=(n, n)) for _ in range(12))]:
        moved = changes @ B.T.astype(object)
        integers = Factored(np.eye(n, dtype=np.int64), sparse.csr_array(B))
        for order, noise, sizes in ((1, "laplace", abs(moved)), (2, "gaussian", moved * moved)):
            largest, claim = int(sizes.sum(axis=1).max()), sensitivity_of(noise, integers, batch.layouts) * L**order
            most = max(most, float(Fraction(largest, claim)))
            least = min(least, float(Fraction(largest, max(1, claim - L**order))))
    return most, least


def one_group(world: World) -> Iterator[list[tuple[Any, ...]]]:
    """So many rows at each end of the bounds, with NULL, beyond them, or not in the sum."""
    most, (low, high), *_ = world
    for numbers in product(range(most + 2), range(most + 2), range(2)):
        costs = [cost for cost, often in zip((low, high + 5, None), numbers, strict=True) for _ in range(often)]
        days = (1, 2) if "day" in world[3] else (1,)
        yield from ([("a", day, cost) for cost in costs] for day in days)
    if "cost *" in world[3]:
        yield from ([("b", day, high) for day in days] for days in product((1, 2), repeat=most))
    if "> 2" in world[3]:
        yield from ([("b", 1, cost)] * times for cost in (3, 6) for times in range(1, 12))
    yield [("a", 1, low)] * 30
    yield [("a", 1, high)] * 30
    yield [("a", 1, None)] * 30


def any_group(world: World, count: int = 250) -> Iterator[list[tuple[Any, ...]]]:
    """A few rows of each ward, at the ends of the bounds or NULL."""
    draw = random.Random(7)
    most, (low, high), *_ = world
    for _ in range(count):
        numbers = [draw.randrange(most + 2) for _ in "ab"]
        costs = draw.choice(((low,), (high,), (None,), (low, high), (high, None)))
        rows = [
            (w, draw.choice((1, 1, 2)), draw.choice(costs))
            for w, k in zip("ab", numbers, strict=True)
            for _ in range(k)
        ]
        yield rows
    for first, second in product((low, high), repeat=2):
        for a, b in product(range(most + 1), (0, *range(10, 13))):
            yield [("a", 1, first)] * a + [("b", 1, second)] * b
            yield [("b", 1, first)] * a + [("a", 1, second)] * b


@pytest.mark.parametrize("name", ALONE)
def test_one_count_and_sums_of_its_rows(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Never more than is claimed, and as much where the plan says that C is what one unit can change."""
    world = ALONE[name]
    _, batch = compiled(con, world)
    most, least = of_claim(batch, moves(con, world, one_group(world)))
    exact = name not in ("cut by a condition", "another sum of the same rows", "fractions beyond what is written")
    assert bool(batch.units.exact) == exact
    assert most <= 1.0
    assert least >= (1.0 if exact else 0.6)


@pytest.mark.parametrize("name", [*SEVERAL, *OTHERS])
@pytest.mark.few(every=2)
def test_counts_and_sums_of_groups(con: duckdb.DuckDBPyConnection, name: str) -> None:
    world = (SEVERAL | OTHERS)[name]
    _, batch = compiled(con, world)
    exact = name in ("by ward", "by ward, below 0", "sums of other rows")
    assert bool(batch.units.exact) == exact
    most, least = of_claim(batch, moves(con, world, any_group(world)))
    assert most <= 1.0
    assert least >= (1.0 if exact else 0.4)


def test_a_strategy_for_the_polygon_of_row_bounds_is_not_private(con: duckdb.DuckDBPyConnection) -> None:
    """Rows in [1, 10], five of them, sums in [0, 3]: numbers of rows are whole, and clamps go on where they bind.

    n <= s <= 10 n has corners (0.3, 3) and (3, 3). The least error for these, of X = B'B, puts both at 1.
    """
    _, batch = compiled(con, ALONE["no NULL"])
    whole = sparse.csc_array(batch.units.columns).toarray() * float(batch.units.common)
    assert {(round(n, 9), round(3 * s, 9)) for n, s in whole.T} == {(1, 1), (1, 3), (3, 3), (5, 3)}
    M = np.array([[0.3, 3.0], [3.0, 3.0]])
    a, b = float((M * M).sum()), float(M[:, 0] @ M[:, 1])
    g = (a - sqrt(a * a - 4 * b * b)) / (2 * b)
    inverse = np.linalg.inv(M)
    X = inverse.T @ np.array([[1.0, g], [g, 1.0]]) @ inverse
    corners = whole * [[1.0], [3.0]]
    assert (corners * (X @ corners)).sum(axis=0).max() == pytest.approx(2.459, abs=5e-4)


def test_the_joint_set_has_less_error(con: duckdb.DuckDBPyConnection) -> None:
    """Than any rows beside any sum: corners (5, 0), (0, 1) and (5, 1)."""
    _, batch = compiled(con, ALONE["no NULL"])
    integers = Factored(np.eye(1, dtype=np.int64), sparse.csr_array(np.array([[4, -12]])))
    assert sensitivity_of("gaussian", integers, batch.layouts) == 8**2  # not 20^2


def any_world(draw: random.Random) -> World:
    """A batch of counts and sums by ward or in all, with conditions, within a bound by ward, in all, or both."""
    low = draw.choice((-4, -1, 0, 0, 1, 3))
    high = max(low, 0) + draw.randrange(1, 8)
    lower, upper = (0 if low >= 0 else -draw.randrange(1, 9)), draw.randrange(1, 15)
    whole = ALL.format(2 * lower, 2 * upper)
    bounds = draw.choice((ALL.format(lower, upper), UP.format(lower, upper), f"{UP.format(lower, upper)}, {whole}"))
    numbers = (
        "COUNT(*)",
        "COUNT(cost)",
        f"COUNT(*) {FILTER}",
        "COUNT(DISTINCT patient)",
        "AVG(cost)",
        f"SUM(cost) {FILTER}",
    )
    items = ", ".join(["SUM(cost)", *draw.sample(numbers, draw.choice((1, 1, 2)))])
    where = draw.choice(("", "", "WHERE day = 1 ", "WHERE cost > 0 ", "WHERE cost IS NOT NULL "))
    return (
        draw.randrange(1, 5),
        (low, high),
        bounds,
        f"SELECT {items} FROM visits {where}{draw.choice(('', 'GROUP BY ward'))}",
    )


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.few(every=6)
def test_any_batch(con: duckdb.DuckDBPyConnection, seed: int) -> None:
    """No unit moves more than is claimed, whatever is asked."""
    draw = random.Random(seed)
    world = any_world(draw)
    _, batch = compiled(con, world)
    rows = list(any_group(world, 20))
    assert of_claim(batch, moves(con, world, iter(draw.sample(rows, 40))))[0] <= 1.0


def never_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Counted rows that are NULL in the summed column are forgotten."""

    def met(*layouts: Any) -> Any:
        found = original(*layouts)
        return None if found is None else (found[0], False)

    return met


def cut_alike(original: Callable[..., Any]) -> Callable[..., Any]:
    """The sum is taken to be of the rows that count, as if one scan cut both."""
    return lambda added, m, n, zero: original(added, m + 1, n, zero=zero)


def within_polygon(original: Callable[..., Any]) -> Callable[..., Any]:
    """So many rows that the least of their sum is above the bound are taken for impossible."""
    return lambda added, m, n, zero: original(added, m, n if n * added.shift <= added.upper else 0, zero=zero)


def any_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sums of rows that no count counts are taken for sums of counted ones."""

    def met(rows: Any, layout: Any, added: Any) -> Any:
        found = original(rows, layout, added)
        return ([(int(rows.filled[0]), int(layout.filled[0]))], False) if found is None else found

    return met


def of_the_counted_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """A unit of more rows than count is taken to have them all in one group."""

    def several(groups: Any, boxes: Any, sums: Any, m: int, times: int) -> Any:
        for (count, group), box in zip(groups.items(), boxes, strict=True):
            yield from module._of_one({count: group}, [box], times)

    return several


FAULTS = {
    "NULL counts": ("_met", never_nothing),
    "below 0": ("_ends", cut_alike),
    "no NULL": ("_ends", within_polygon),
    "counts of other rows": ("_met", any_rows),
    "by ward": ("_of_several", of_the_counted_group),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_trap_matters(con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without what is done against it, a unit moves more than is claimed."""
    world = (ALONE | SEVERAL | OTHERS)[name]
    where, fault = FAULTS[name]
    monkeypatch.setattr(module, where, fault(getattr(module, where)))
    _, batch = compiled(con, world)
    rows = one_group(world) if name in ALONE else any_group(world)
    assert of_claim(batch, moves(con, world, rows))[0] > 1.0


def test_a_total_that_binds_is_left_to_each_by_itself(con: duckdb.DuckDBPyConnection) -> None:
    """Scaled sums of groups lie below what rows of one group add up to: they are not listed with the counts."""
    _, batch = compiled(con, OTHERS["a total that binds"])
    assert len(batch.units.units[0]) == 2
    assert batch.units.exact == frozenset()
