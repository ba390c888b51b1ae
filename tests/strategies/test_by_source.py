"""Plans over what one unit can change: closed forms, the listed optimum, and bounds that hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import duckdb
import numpy as np
import pytest
from scipy import linalg, sparse
from unit_worlds import least

import dpsql
from dpsql import strategy
from dpsql.errors import DataError
from dpsql.strategies.choose import by_source, task
from dpsql.strategies.core import integer
from dpsql.strategies.core.time_left import TimeLeft
from dpsql.workloads.compile import unlisted_pure
from dpsql.workloads.families import contributions
from dpsql.workloads.families.contributions import Contributions, Part, Tied
from dpsql.workloads.families.matrix import Workload


def part(entries: range, times: int, most: int, size: int) -> Part:
    """A source of counts: its corners are unit vectors."""
    held = np.arange(entries.start, entries.stop)
    ones = np.ones(held.size, dtype=np.int64)
    return Part(sparse.csc_array((ones, (held, np.arange(held.size))), shape=(size, held.size)), times, most)


def counts(*given: tuple[int, int, int]) -> Workload:
    """Every entry asked by itself, of sources given as (groups, times, most)."""
    stops = np.cumsum([groups for groups, _, _ in given]).tolist()
    parts = tuple(
        part(range(stop - groups, stop), times, most, stops[-1])
        for stop, (groups, times, most) in zip(stops, given, strict=True)
    )
    return over(np.eye(stops[-1], dtype=np.int64), parts)


def over(rows: np.ndarray, parts: tuple[Part, ...]) -> Workload:
    units = Contributions((parts,), rows.shape[1])
    return Workload.from_rows(rows, np.ones(len(rows)), contributions=units.columns, units=units)


def error(W: Workload, noise: str = "gaussian") -> float:
    """The total squared error to a whole unit, in units of 1 / mu^2 or 2 / epsilon^2."""
    assert W.units is not None
    return strategy.select(W, noise).expected * W.units.common**2


def symmetric(g: int, most: int) -> float:
    """The least of (g - 1) / a + 1 / (a + g b) with s a + s^2 b <= 1 for all s <= most, by a fine search over a."""
    a = np.linspace(1e-4, 2.0, 400_001)[:, None]
    s = np.arange(1, most + 1)[None, :]
    b = ((1.0 - s * a) / s**2).min(axis=1)
    a = a[:, 0]
    held = a + g * b > 0
    return float(((g - 1) / a[held] + 1 / (a[held] + g * b[held])).min())


@pytest.mark.parametrize(("groups", "most"), [(2, 2), (4, 4), (12, 12), (50, 10), (50, 50)])
@pytest.mark.few("2-2", "4-4", "50-10")
def test_groups_that_are_alike_have_the_closed_form(groups: int, most: int) -> None:
    W = counts((groups, 1, most))
    found = strategy.select(W, "gaussian")
    assert found.gap is not None
    assert found.gap < 2e-3
    assert found.expected == pytest.approx(symmetric(groups, most), rel=2e-3)


def test_two_tables_of_one_unit() -> None:
    assert error(counts((1, 1, 1), (1, 1, 1))) == pytest.approx(8 / 3, rel=1e-3)
    assert error(counts((1, 10, 1), (1, 1, 1))) == pytest.approx(110.51, rel=1e-3)
    # In L1 each count alone, at a sensitivity of 2 for both, has a total of 8; sum and difference have 4.
    assert error(counts((1, 1, 1), (1, 1, 1)), "laplace") == pytest.approx(4.0, rel=1e-2)


@pytest.mark.usefixtures("short_searches")
@pytest.mark.long
def test_a_source_that_weighs_more_as_a_whole_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    W, often = counts((12, 1, 12), (40, 1, 30)), list[int]()
    plan = by_source._Planner._laplace

    def counted(self: by_source._Planner, source: by_source.Source, listed: bool) -> by_source.Team:
        often.append(source.part.corners.shape[1])
        return plan(self, source, listed)

    monkeypatch.setattr(by_source._Planner, "_laplace", counted)
    first = strategy.select(W, "pure")
    assert sorted(often) == [12, 40]
    weights = np.repeat([1.0, 3.0], [12, 40])
    again = Workload.from_rows(np.eye(52, dtype=np.int64), weights, contributions=W.contributions, units=W.units)
    heavier = strategy.select(again, "pure")
    assert len(often) == 2
    assert W.units is not None
    afresh = replace(W.units, cache={})
    plain = strategy.select(replace(again, units=afresh), "pure")
    assert len(often) == 4
    assert heavier.expected == pytest.approx(plain.expected, rel=1e-6)
    assert first.expected < heavier.expected < 9 * first.expected


def test_what_p_identity_has_to_beat_is_in_its_own_units() -> None:
    moved = sparse.csc_array(np.array([[3, 0, 5], [2, 4, -9]]))
    assert task._one_sign(moved) == 5.0


CASES = {
    "alike groups beside counts": counts((4, 1, 3), (5, 3, 1)),
    "two sources of alike groups": counts((4, 1, 4), (3, 1, 3)),
    "rows in two tables": counts((4, 5, 1), (6, 2, 1)),
    "prefixes beside alike groups": over(
        linalg.block_diag(np.tri(4, dtype=np.int64), np.eye(3, dtype=np.int64)),
        (part(range(4), 2, 1, 7), part(range(4, 7), 1, 2, 7)),
    ),
    "prefixes of one row a day": over(np.tri(12, dtype=np.int64), (part(range(12), 1, 3, 12),)),
    "weights that differ": Workload.from_rows(
        np.eye(5, dtype=np.int64),
        [1.0, 2.0, 3.0, 4.0, 1.0],
        contributions=(u := Contributions(((part(range(4), 1, 3, 5), part(range(4, 5), 2, 1, 5)),), 5)).columns,
        units=u,
    ),
}


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(every=4)
def test_unlisted_plans_hold_against_the_listed_optimum(name: str, noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    W = CASES[name]
    listed = strategy.select(W, noise)
    assert W.units is not None
    columns = W.units.columns.toarray()
    monkeypatch.setattr(contributions, "MOST_LISTED", 0)
    monkeypatch.setattr(by_source, "MOST_LISTED", 8)
    apart = strategy.select(W, noise)
    assert apart.method == by_source.BY_SOURCE
    # The sensitivity holds for every contribution, and the error is that of the integers.
    moved = apart.matrix() @ columns
    true = float((moved**2).sum(axis=0).max() if noise == "gaussian" else abs(moved).sum(axis=0).max())
    claimed = apart.l2_squared if noise == "gaussian" else apart.l1
    assert claimed >= true * (1 - 1e-12)
    assert apart.error(replace(W)) == pytest.approx(apart.expected)
    if noise == "gaussian":
        assert apart.lower_bound is not None
        assert listed.lower_bound is not None
        assert apart.lower_bound <= listed.expected * (1 + 1e-9)
        assert apart.expected >= listed.lower_bound * (1 - 1e-9)
        assert apart.expected <= 1.5 * listed.expected


def grid(classes: int, corners: int, most: int, weights: tuple[float, float, float]) -> Workload:
    """Cells, classes and corners of a grid, of which a unit has one corner in each of at most ``most`` classes."""
    C, g = np.eye(classes, dtype=np.int64), np.eye(corners, dtype=np.int64)
    ones = (np.ones((1, classes), dtype=np.int64), np.ones((1, corners), dtype=np.int64))
    rows = [np.kron(C, g), np.kron(C, ones[1]), np.kron(ones[0], g)]
    size = classes * corners
    held = replace(part(range(size), 1, most, size), label=np.repeat(np.arange(classes), corners))
    units = Contributions(((held,),), size)
    scale = np.concatenate([np.full(len(r), w) for r, w in zip(rows, weights, strict=True)])
    return Workload.from_rows(np.concatenate(rows), scale, contributions=units.columns, units=units)


@pytest.mark.parametrize("most", [2, 3])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 6.0, 0.5), (1.0, 0.1, 8.0)])
@pytest.mark.parametrize("corners", [2, 4])
def test_grids_have_the_listed_optimum(
    corners: int, weights: tuple[float, float, float], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    W = grid(3, corners, most, weights)
    listed = strategy.select(W, "gaussian")
    assert W.units is not None
    columns = Contributions(W.units.units, W.shape[1]).columns.toarray()
    monkeypatch.setattr(contributions, "MOST_LISTED", 0)
    monkeypatch.setattr(by_source, "MOST_LISTED", 0)
    # Nothing else plans these.
    monkeypatch.setattr(by_source._Planner, "_classed", None)
    found = strategy.select(W, "gaussian")
    assert found.method == by_source.BY_SOURCE
    assert found.expected == pytest.approx(listed.expected, rel=3e-3)
    assert found.gap is not None
    assert found.gap < 2e-3
    longest = float(((found.matrix() @ columns) ** 2).sum(axis=0).max())
    assert longest <= found.l2_squared <= longest * (1 + 1e-3)


def test_what_is_no_grid_is_planned_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell that counts more is a class of its own."""
    W = grid(3, 2, 2, (1.0, 1.0, 1.0))
    rows = np.concatenate([W.span.toarray(), np.eye(6, dtype=np.int64)[:1]])
    assert W.units is not None
    odd = over(rows, W.units.units[0])
    listed = strategy.select(odd, "gaussian")
    monkeypatch.setattr(contributions, "MOST_LISTED", 0)
    monkeypatch.setattr(by_source, "MOST_LISTED", 0)
    found = strategy.select(odd, "gaussian")
    assert listed.lower_bound is not None
    assert found.lower_bound is not None
    assert found.expected >= listed.lower_bound
    assert found.lower_bound <= listed.expected


def test_a_bound_of_teams_uses_what_they_share() -> None:
    """Teams that are measured apart are bounded together: far above the bound of either."""
    W = counts((60, 3, 1), (120, 2, 1))
    found = strategy.select(W, "gaussian")
    assert found.method == by_source.BY_SOURCE
    assert found.gap is not None
    assert found.gap < 0.05


def test_groups_too_many_to_be_planned_alike_are_bounded_by_units_in_some_at_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of groups are measured one by one: with few of them a unit's, that is nearly the least error."""
    monkeypatch.setattr(by_source, "WRITTEN", 5)
    for groups, most in ((40, 4), (200, 3)):
        S = strategy.select(counts((groups, 1, most)))
        assert S.lower_bound is not None
        least = symmetric(groups, most)
        assert least * (1.0 - most / groups) <= S.lower_bound <= least * (1.0 + 1e-9)
        assert least <= S.expected * (1.0 + 1e-9)


@pytest.mark.parametrize(("most", "cells"), [(2, False), (3, False), (3, True)])
def test_a_class_and_a_corner_that_are_unlike_the_others(
    most: int, cells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three days and two wards; rows of no ward count by day, rows of no day by ward: as good as the listed optimum."""
    places = [(day, ward) for day in range(4) for ward in range(3) if (day, ward) != (3, 2)]
    day, ward = np.array(places).T
    rows = [(day == k).astype(int) for k in range(3)] + [(ward == k).astype(int) for k in range(2)]
    rows += [
        row for row in np.eye(len(places), dtype=int) if cells and day[row.argmax()] < 3 and ward[row.argmax()] < 2
    ]
    held = replace(part(range(len(places)), 1, most, len(places)), label=day)
    units = Contributions(((held,),), len(places))
    scale = np.repeat([1.0, 1.5, 0.8], [3, 2, len(rows) - 5])
    W = Workload.from_rows(np.array(rows), scale, contributions=units.columns, units=units)
    listed = strategy.select(W, "gaussian")
    columns = units.columns.toarray()
    monkeypatch.setattr(contributions, "MOST_LISTED", 0)
    monkeypatch.setattr(by_source, "MOST_LISTED", 0)
    apart = strategy.select(W, "gaussian")
    assert apart.method == by_source.BY_SOURCE
    assert apart.l2_squared >= int(((apart.matrix() @ columns) ** 2).sum(axis=0).max())
    assert apart.lower_bound is not None
    assert listed.lower_bound is not None
    assert listed.lower_bound * (1 - 1e-9) <= apart.expected <= listed.expected * (1.03 if cells else 1.01)
    assert apart.lower_bound <= listed.expected * (1 + 1e-9)


def filters(sources: int) -> Workload:
    """Four filters of which each cell meets its own, over every source; of the first ten rows a unit."""
    bits = (np.arange(1, 16)[None, :] >> np.arange(4)[:, None]) & 1
    rows, cells = linalg.block_diag(*[bits] * sources).astype(np.int64), sources * 15
    held = (part(range(at, at + 15), 10 if at == 0 else 1, 1, cells) for at in range(0, cells, 15))
    return over(rows, tuple(held))


@pytest.mark.long
def test_rows_in_blocks_are_turned_from_what_was_found_source_by_source(monkeypatch: pytest.MonkeyPatch) -> None:
    W = filters(2)
    whole = strategy.select(W, "pure")
    monkeypatch.setattr(task, "_MANY_CHANGES", 0)
    again = replace(W, _cache={})
    found = strategy.select(again, "pure")
    names = dict(found.considered)
    assert not {"p-identity", "union-of-parts"} & set(names)
    limits = 1e-3, TimeLeft.within(None), lambda _: None, task.WORK
    pieces, apart, _ = by_source.plan_by_source(task.Task(again, "laplace", *limits, in_blocks=True))
    assert len(pieces) == 2
    assert names["norm-blocks"] < apart * (1 - 1e-3)
    assert found.expected <= whole.expected * 1.01
    # What one unit moves, block by block.
    assert W.contributions is not None
    moved = np.abs(found.matrix() @ W.contributions.toarray())
    starts = np.concatenate([[0], np.cumsum(found.blocks or (1,) * len(moved))[:-1]])
    assert found.l1 == np.maximum.reduceat(moved, starts, axis=0).sum(axis=0).max()


def test_laplace_rows_are_turned_from_what_was_found_source_by_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no source gains by blocks there are none."""
    W = counts((6, 10, 1), (3, 1, 1))
    whole = strategy.select(W, "pure")
    monkeypatch.setattr(task, "_MANY_CHANGES", 0)
    found = strategy.select(replace(W, _cache={}), "pure")
    assert not {"norm-blocks", "p-identity", "union-of-parts"} & {name for name, _ in found.considered}
    assert found.expected <= whole.expected * (1 + 1e-6)


def test_of_pure_noise_the_other_norm_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a list only the norm that is paid for is worked out."""
    W = counts((4, 2, 3), (5, 3, 1))
    monkeypatch.setattr(contributions, "MOST_LISTED", 10)
    found = strategy.select(replace(W, _cache={}), "laplace")
    assert W.units is not None
    sums = [part.listed().toarray() * part.times for part in W.units.units[0]]
    every = np.concatenate(
        [(a[:, None] + np.column_stack([b, 0 * b[:, :1]])) for a in sums[0].T for b in [sums[1]]], axis=1
    )
    moved = found.matrix() @ every / W.units.common
    assert np.abs(moved).sum(axis=0).max() <= found.l1
    assert (moved**2).sum(axis=0).max() <= found.l2_squared == found.l1**2


def groups_of_rows(groups: int, rows: int) -> Workload:
    """COUNT(*) and COUNT(DISTINCT unit) by groups, the unit tied to its rows."""
    eye = np.eye(groups, dtype=np.int64)
    more, once = np.concatenate([eye, eye * 0]), np.concatenate([eye * 0, eye])
    tied = Tied(sparse.csc_array(more + once), sparse.csc_array(more), np.arange(groups), rows)
    parts = Part(sparse.csc_array(more), rows, 1), Part(sparse.csc_array(once), 1, min(rows, groups))
    units = Contributions((parts,), 2 * groups, {0: tied})
    n = 2 * groups
    return Workload.from_rows(np.eye(n, dtype=np.int64), [1.0] * n, contributions=units.columns, units=units)


@pytest.mark.parametrize("noise", ["laplace", "pure"])
@pytest.mark.long
def test_rows_and_units_of_groups_have_the_closed_form(noise: str) -> None:
    """Measured are units and further rows of each of 12 groups: see ``dpsql.strategies.pure.tied_groups``."""
    W = groups_of_rows(12, 12)
    found = strategy.select(W, noise)
    expected = 3 * 12 * 12**2
    assert found.method == by_source.BY_SOURCE
    assert 0.999 * expected <= found.expected <= 1.005 * expected
    assert found.l1 == sensitivity_of_integers(found, W)


def sensitivity_of_integers(found: strategy.MatrixStrategy, W: Workload) -> int:
    """The largest change by a unit with one row in each group but one, by hand."""
    assert W.units is not None
    tied = W.units.tied[0]
    B, sizes = found.matrix().astype(np.int64), found.blocks or (1,) * found.matrix().shape[0]
    first, more = tied.first.toarray(), tied.more.toarray()
    every = [more * tied.most]
    for s in range(1, tied.limit + 1):
        one = first[:, :s].sum(axis=1, keepdims=True)
        every += [one, one + (tied.most - s) * more[:, :1]]
    moved = abs(B @ np.concatenate(every, axis=1))
    return int(np.maximum.reduceat(moved, np.cumsum([0, *sizes[:-1]]), axis=0).sum(axis=0).max())


@pytest.mark.long
def test_groupings_are_planned_apart_where_rows_are() -> None:
    """Twelve rows in twelve months and any of six wards: by month in one block, by ward twelve times one of them."""
    months, wards = np.eye(12, dtype=np.int64), np.eye(6, dtype=np.int64)
    rows = np.concatenate([np.kron(months, np.ones((1, 6))), np.kron(np.ones((1, 12)), wards)]).astype(np.int64)
    held = Part(sparse.csc_array(np.eye(72, dtype=np.int64)), 1, 12, np.repeat(np.arange(12), 6))
    units = Contributions(((held,),), 72)
    groups = np.repeat([0, 1], [12, 6])
    W = Workload.from_rows(rows, [1.0] * 18, groups=groups, contributions=units.columns, units=units)
    found = strategy.select(W, "pure")
    single = strategy.select(W, "laplace")
    # Of the months alone 210 by their gauge, of the wards 6 x 12^2; at first all were counted twelve times: 9,550.
    assert found.expected <= 1.005 * (210 ** (1 / 3) + 864 ** (1 / 3)) ** 3
    assert found.expected < single.expected < 0.5 * 9_550


@pytest.mark.long
def test_groupings_of_more_parts_than_are_looked_at() -> None:
    """The rows by month are one part of eleven; those by ward, and by ward and month, are one a ward."""
    months, wards = np.eye(12, dtype=np.int64), np.eye(10, dtype=np.int64)
    by_ward = np.kron(np.ones((1, 12), dtype=np.int64), wards)
    rows = np.concatenate([np.kron(months, np.ones((1, 10), dtype=np.int64)), by_ward, np.eye(120, dtype=np.int64)])
    held = Part(sparse.csc_array(np.eye(120, dtype=np.int64)), 1, 12, np.repeat(np.arange(12), 10))
    units = Contributions(((held,),), 120)
    groups = np.repeat([0, 1, 1], [12, 10, 120])
    W = Workload.from_rows(
        rows, [30.0] * 12 + [15.0] * 10 + [1.0] * 120, groups=groups, contributions=units.columns, units=units
    )
    assert unlisted_pure.ROW_PARTS < 11
    # Counted twelve times in one cell they have 8.71e6.
    assert strategy.select(W, "pure").expected <= 3.75e6


def test_a_search_ends_where_a_known_error_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    W = counts((4, 2, 3), (5, 3, 1))
    monkeypatch.setattr(contributions, "MOST_LISTED", 10)
    found = strategy.select(replace(W, _cache={}))
    again = strategy.select(replace(W, _cache={}), known=found.expected * 1.001)
    assert again.expected == found.expected
    assert again.lower_bound == found.lower_bound
    with pytest.raises(DataError, match="less error"):
        strategy.select(replace(W, _cache={}), known=found.expected * 0.99)


@pytest.mark.parametrize(("loose", "bits", "rounds"), [(1, 3, 2), (4, 3, 2), (4, 16, 1)])
def test_rounding_ends_where_more_precise_integers_gain_nothing(
    loose: int, bits: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the error is that planned, or where sensitivities are so many times as large and it falls no more."""
    W = counts((4, 2, 3), (5, 3, 1))
    monkeypatch.setattr(contributions, "MOST_LISTED", 10)
    monkeypatch.setattr(integer, "_FIRST_BITS", bits)
    known, asked = integer.sensitivity_over, list[int]()

    def over(*given: object) -> int:
        asked.append(loose * known(*given))  # type: ignore[arg-type]
        return asked[-1]

    monkeypatch.setattr(integer, "sensitivity_over", over)
    found = strategy.select(replace(W, _cache={}))
    assert len(asked) == rounds
    assert found.expected == pytest.approx(loose * dict(found.considered)["by-source"], rel=2e-3)


@pytest.mark.long
def test_unlike_groups_have_a_bound_by_unions_that_join(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Persons by hour and in overlapping ranges of hours, none to be exchanged: against all their patterns."""
    monkeypatch.setenv("DPSQL_CACHE", "off")
    ranges = [(0, 9), (5, 14), (8, 30), (12, 21), (20, 33), (25, 39)]
    policy = dpsql.Policy.parse(
        'dataset = "units"\n[budget]\nrho = 1000.0\n[tables.visits]\nunit = "person"\nmax_rows_per_unit = 3\n'
        "[tables.visits.columns]\nhour = { lower = 0, upper = 39, nulls = false }\n"
    )
    counts = [f"COUNT(DISTINCT person) FILTER (WHERE hour BETWEEN {a} AND {b}) AS r{a}" for a, b in ranges]
    sql = "SELECT hour, COUNT(DISTINCT person) AS n FROM visits GROUP BY hour; SELECT " + ", ".join(counts)
    with duckdb.connect() as database:
        database.execute("CREATE TABLE visits (person INTEGER, hour INTEGER)")
        connection = dpsql.connect(database, policy=policy, ledger=tmp_path / "ledger")
        plan = connection.plan(sql + " FROM visits", rho=0.5, objective="total")
    patterns = []
    for chosen in (c for s in (1, 2, 3) for c in combinations(range(40), s)):
        single = np.isin(np.arange(40), chosen)
        patterns.append([*single, *(any(a <= hour <= b for hour in chosen) for a, b in ranges)])
    true = least(np.eye(46), np.array(patterns, dtype=float))
    total = float((np.asarray(plan.errors) ** 2).sum())
    assert plan.gap is not None
    assert total / (1 + plan.gap) <= true.upper * (1 + 1e-9)
    assert total / (1 + plan.gap) >= 0.96 * true.lower
    assert true.lower * (1 - 1e-9) <= total <= 1.08 * true.lower
