"""Bounds of ``at_most``: held by the scan whatever the rows are, and nothing is lost where rows keep to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import sparse
from unit_rows import Ask, compiled_of, most_of_claim, policy_of, scan, sources_of, tables_of

from dpsql.errors import PolicyError
from dpsql.measure import ConnectionEngine, from_sql, reading
from dpsql.policy import Policy
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile import caps as caps_module
from dpsql.workloads.compile import layout as layout_module
from dpsql.workloads.compile import units
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.families.contributions import Contributions

TABLE = """
[tables.visits]
unit = "patient"
max_rows_per_unit = {most}
at_most = [{caps}]
[tables.visits.columns]
ward = {{ values = ["a", "b", "c"] }}
day = {{ lower = 1, upper = 6 }}
cost = {{ lower = -2, upper = 4 }}
"""
ROWS_BY_DAY = '{ rows = 1, per = "day" }'
OTHERS = TABLE.replace('"c"] }}', '"c"], other = true }}')
WARDS = '{ groups = 2, per = "ward" }'
PAIRS = '{ rows = 2, per = "day % 3" }'
BOTH = '{ rows = 1, groups = 2, per = "ward" }'

Row = tuple[Any, ...]


def policy(most: int, *caps: str) -> Policy:
    return policy_of(TABLE.format(most=most, caps=", ".join(caps)))


BATCHES: dict[str, tuple[Policy, list[Ask]]] = {
    "counts by day": (policy(6, ROWS_BY_DAY), [Ask("visits", ("day",))]),
    "counts by day and ward": (policy(6, ROWS_BY_DAY), [Ask("visits", ("day", "ward")), Ask("visits", ("ward",))]),
    "one day and all": (policy(8, ROWS_BY_DAY), [Ask("visits WHERE day = 1", ("ward",)), Ask("visits", ("ward",))]),
    "sums by day": (policy(4, ROWS_BY_DAY), [Ask("visits", ("day",), ("cost",)), Ask("visits", (), ("cost",))]),
    "all rows": (policy(4, ROWS_BY_DAY), [Ask("visits")]),
    "units by ward": (policy(5, WARDS), [Ask("visits", ("ward",), distinct=True)]),
    "units by ward and others": (
        policy_of(OTHERS.format(most=5, caps=WARDS)),
        [Ask("visits", ("ward",), distinct=True)],
    ),
    "one ward alone": (policy(3, '{ rows = 1, per = "ward" }'), [Ask("visits WHERE ward = 'a'", ("day",))]),
    "units by day": (policy(5, ROWS_BY_DAY), [Ask("visits", ("day",), distinct=True), Ask("visits", ("day",))]),
    "units by day and ward": (policy(3, ROWS_BY_DAY), [Ask("visits", ("day", "ward"), distinct=True)]),
    "several rows a class": (policy(6, PAIRS), [Ask("visits", ("day",)), Ask("visits", ("ward",))]),
    "both bounds": (policy(9, BOTH, ROWS_BY_DAY), [Ask("visits", ("ward",)), Ask("visits", (), ("cost",))]),
}


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect(config={"threads": 1})
    fill(found, [])
    return found


def fill(con: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> None:
    con.execute("CREATE OR REPLACE TABLE visits (patient INTEGER, ward VARCHAR, day INTEGER, cost DOUBLE)")
    if rows:
        listed = ", ".join(
            str(tuple("NULL" if v is None else v for v in row)).replace("'NULL'", "NULL") for row in rows
        )
        con.execute(f"INSERT INTO visits VALUES {listed}")


def compiled(con: duckdb.DuckDBPyConnection, name: str) -> Compiled:
    held, asks = BATCHES[name]
    return compiled_of(asks, held, tables_of(held, ConnectionEngine(con)))


def databases(count: int, seed: int) -> Iterator[list[Row]]:
    """Rows of few patients, many a day, some outside every declared group."""
    draw = random.Random(seed)
    for _ in range(count):
        yield [
            (
                draw.choice((1, 1, 1, 1, 2, 2, None)),
                draw.choice(("a", "a", "b", "c", "x", None)),
                draw.choice((1, 1, 2, 3, 4, 5, 6, 9, None)),
                draw.choice((4.0, -2.0, 0.0, 99.0, None)),
            )
            for _ in range(draw.randrange(8, 40))
        ]


def changes(con: duckdb.DuckDBPyConnection, batch: Compiled, held: Policy, count: int) -> list[np.ndarray]:
    """What removing each unit of generated databases changes of x."""
    engine, sources = ConnectionEngine(con), sources_of(held)
    found = []
    for rows in databases(count, 5):
        fill(con, rows)
        whole = np.array(scan(batch, engine, sources), dtype=object)
        for unit in {row[0] for row in rows}:
            fill(con, [row for row in rows if row[0] != unit])
            found.append(whole - np.array(scan(batch, engine, sources), dtype=object))
    return found


def worst(con: duckdb.DuckDBPyConnection, name: str, count: int = 3) -> float:
    """The largest change over its claim, for the entries themselves and for random integers over them."""
    held, batch = BATCHES[name][0], compiled(con, name)
    moves = np.array(changes(con, batch, held, count), dtype=object)
    return most_of_claim(batch, moves)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few("units by day and ward", "counts by day")
def test_no_unit_moves_more_than_its_bounds_allow(con: duckdb.DuckDBPyConnection, name: str) -> None:
    assert 0.5 < worst(con, name) <= 1.0


def test_bounds_are_used(con: duckdb.DuckDBPyConnection) -> None:
    """One row a day: six days are six groups, whose squares add up, instead of six rows of one."""

    def squared(name: str) -> int:
        batch = compiled(con, name)
        n = batch.rows.shape[1]
        eye = sparse.csr_array(np.eye(n, dtype=np.int64))
        return sensitivity_of("gaussian", Factored(np.eye(n, dtype=np.int64), eye), batch.layouts)

    assert squared("counts by day") == 6
    assert squared("counts by day and ward") == 6
    # Day 1 by itself, and seven groups (five days, other days, NULL) that the batch does not tell apart.
    assert squared("one day and all") == 1 + 7**2
    assert squared("units by ward") == 2
    # What is none of the declared wards is one group and NULL another: a unit is in two of the five.
    assert squared("units by ward and others") == 2
    # Of the three rows one is in the ward that is read.
    assert squared("one ward alone") == 1
    # Two rows of each of three days' remainders; by ward alone the six could be of one ward.
    assert squared("several rows a class") == 3 * 2**2
    # Two wards, each with its count and its part of the sum.
    assert squared("both bounds") == 2 * 2


@pytest.mark.long
def test_bounds_that_leave_few_rows_need_no_truncation(con: duckdb.DuckDBPyConnection) -> None:
    """Eight groups of one row are eight rows, one group is one and two are two; others are cut."""
    few = {name for name in BATCHES if any(caps_module.leave_few(layout) for layout in compiled(con, name).layouts)}
    assert few == {"one day and all", "one ward alone", "both bounds"}
    sources = sources_of(BATCHES["one day and all"][0])
    ranked = {name: str(reading.scan_of(compiled(con, name).layouts[0], sources)).count("row_number") for name in few}
    assert ranked == {"one day and all": 1, "one ward alone": 1, "both bounds": 2}


@pytest.mark.parametrize("name", BATCHES)
def test_rows_that_keep_to_the_bounds_all_count(con: duckdb.DuckDBPyConnection, name: str) -> None:
    held, batch = BATCHES[name][0], compiled(con, name)
    rows = [(1, "a", 1, 4.0), (1, "b", 2, 0.0), (2, "a", 1, -2.0), (3, "c", 6, 1.0)]
    fill(con, rows)
    loose = policy_of((OTHERS if "others" in name else TABLE).format(most=99, caps=""))
    other = compiled_of(BATCHES[name][1], loose, tables_of(loose, ConnectionEngine(con)))
    engine, sources = ConnectionEngine(con), sources_of(held)
    assert scan(batch, engine, sources) == scan(other, engine, sources)


def caps_ignored_by_the_scan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(from_sql, "_capped", lambda rows, names, first, cap: rows)


def one_class_too_few(patch: pytest.MonkeyPatch) -> None:
    real = units._capped
    patch.setattr(units, "_capped", lambda *given: (part := real(*given)) and replace(part, most=part.most - 1))


def groups_of_a_class_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = caps_module.regions_by_group
    patch.setattr(caps_module, "regions_by_group", lambda *given: [(regions, 1) for regions, _ in real(*given)])


def groups_not_ranked(patch: pytest.MonkeyPatch) -> None:
    real = from_sql.within

    def within(rows: Any, names: Any, place: Any, most: int) -> Any:
        return real(rows, names, place, 99 if place.function == "dense_rank" else most)

    patch.setattr(from_sql, "within", within)


def no_truncation_after_caps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "leave_few", lambda layout: True)


MUTANTS = {
    "caps ignored by the scan": ("counts by day", caps_ignored_by_the_scan),
    "one class too few": ("counts by day", one_class_too_few),
    "groups of a class forgotten": ("one day and all", groups_of_a_class_forgotten),
    "no truncation after caps": ("several rows a class", no_truncation_after_caps),
    "groups not ranked": ("units by ward", groups_not_ranked),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few(every=3)
def test_the_search_sees(con: duckdb.DuckDBPyConnection, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = MUTANTS[mutant]
    monkeypatch.setattr(units, "contributions_of_unit", lambda *_: None)  # which other mutants are of
    change(monkeypatch)
    assert worst(con, name) > 1.0


def test_a_policy_with_bounds_is_written_back() -> None:
    held = policy(6, ROWS_BY_DAY, WARDS)
    assert Policy.parse(held.to_toml()) == held
    assert held.to_toml().count("at_most = [") == 1


@pytest.mark.parametrize(
    ("caps", "said"),
    [
        ('{ rows = 0, per = "day" }', "tables.visits.at_most[0].rows is out of range"),
        ('{ groups = 0, per = "day" }', "tables.visits.at_most[0].groups is out of range"),
        ('{ rows = 7, per = "day" }', "rows is 7, but at most 6 rows of a unit count"),
        ('{ groups = 7, per = "day" }', "groups is 7, but at most 6 rows of a unit count"),
        ('{ per = "day" }', "at_most[0] bounds nothing; write rows"),
        ("{ rows = 1 }", "at_most[0].per is missing"),
        ('{ rows = 1, per = "day" }, { groups = 2, per = "DAY" }', "at_most[1] bounds DAY again"),
        ('{ row = 1, per = "day" }', "at_most[0].row is not a setting; did you mean rows"),
        ("1", "at_most[0] is an integer"),
    ],
)
def test_bounds_that_contradict_are_refused(caps: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said.replace("[", r"\[").replace("]", r"\]").replace(".", r"\.")):
        policy(6, caps)


@pytest.mark.parametrize(
    ("per", "said"),
    [
        ("cost", "tables.visits.at_most[0].per is cost: GROUP BY cost needs its groups declared"),
        ("nothing", "tables.visits.at_most[0].per is nothing: visits has no column nothing"),
        ("day, ward", "per is day, ward: it is no expression"),
        ("day FROM visits", "it is no expression"),
        ("COUNT(*)", "tables.visits.at_most[0].per is COUNT(*)"),
        ("CASE WHEN day = 1 AND ward = 'a' THEN 1 ELSE 2 END", "name a column with declared values or bounds"),
        ("TRY_CAST(day + 1000 AS TINYINT)", "name a column with declared values or bounds"),
    ],
)
def test_what_has_no_groups_is_refused(con: duckdb.DuckDBPyConnection, per: str, said: str) -> None:
    held = policy(6, f'{{ rows = 1, per = "{per}" }}')
    with pytest.raises(PolicyError) as caught:
        tables_of(held, ConnectionEngine(con))
    assert said in str(caught.value)


def test_rows_of_single_units_have_no_bounds() -> None:
    with pytest.raises(PolicyError, match="at_most needs a unit column"):
        policy_of(
            '[tables.visits]\nunit = "row"\nat_most = [{ rows = 1, per = "day" }]\n[tables.visits.columns]\nday = {}'
        )


def test_contributions_of_classes_by_hand() -> None:
    """Two classes of two corners and one of one, at most two classes: 5 single corners, 2 * 2 + 2 * 1 + 2 * 1 pairs."""
    corners = sparse.csc_array(np.eye(5, dtype=np.int64))
    part = units.Part(corners, 3, 2, np.array([0, 0, 1, 1, 2]))
    held = Contributions(((part,),), 5)
    assert part.count == held.count == 5 + 8
    columns = held.columns.toarray().T
    assert held.common == 3
    assert len({tuple(column) for column in columns}) == 13
    assert all(column[:2].sum() <= 1 and column[2:4].sum() <= 1 and column.sum() <= 2 for column in columns)


@pytest.mark.parametrize("walked", [True, False])
def test_rows_that_no_query_counts_displace_none(
    walked: bool, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three rows of a unit that count and a hundred others the three are kept, by caps and by the limit alike."""
    if not walked:
        monkeypatch.setattr(layout_module, "_MOST_AXES", 0)
    for held in (policy(3), policy(3, WARDS), policy(3, ROWS_BY_DAY)):
        asks = [Ask("visits WHERE ward = 'a' AND day >= 4", ("day",)), Ask("visits WHERE ward = 'a' AND cost = 2")]
        batch = compiled_of(asks, held, tables_of(held, ConnectionEngine(con)))
        others = [(1, "b", day, 2.0) for day in (1, 2, 3, 4)] * 20 + [(1, "x", 5, 0.0), (1, "c", 5, 1.0)] * 10
        fill(con, [*others, (1, "a", 4, 0.0), (1, "a", 5, 2.0), (1, "a", 6, 0.0)])
        assert sum(scan(batch, ConnectionEngine(con), sources_of(held))) == 3


@pytest.mark.parametrize(("rows", "upper"), [(2**45, 2**21), (2**35, 2**31)])
def test_sums_of_very_many_rows_stay_whole_numbers(con: duckdb.DuckDBPyConnection, rows: int, upper: int) -> None:
    """What a unit adds may be far past 64 bits; no product of it wraps, so that none is charged as a small one."""
    many = f'[{{ rows = {rows}, per = "day" }}]'
    text = TABLE.format(most=6 * rows, caps="").replace("at_most = []", f"at_most = {many}")
    text = text.replace("lower = -2, upper = 4", f"lower = 2, upper = {upper}")
    held = policy_of(text)
    asks = [Ask("visits", ("day",), ("cost",)), Ask("visits", (), ("cost",))]
    batch = compiled_of(asks, held, tables_of(held, ConnectionEngine(con)))
    n = batch.rows.shape[1]
    part = batch.units.units[0][0]
    corners = part.corners.toarray().astype(object).T * part.times
    for B in (np.eye(n, dtype=np.int64), np.random.default_rng(3).integers(-3, 4, size=(n, n))):
        integers = Factored(np.eye(n, dtype=np.int64), sparse.csr_array(B))
        claimed = sensitivity_of("gaussian", integers, batch.layouts)
        # The longest corner in each class: a unit that the bounds allow.
        longest = [max(own.tolist(), key=lambda place: int(abs(corners[place]).sum())) for own in part.classes]
        change = B.astype(object) @ sum(corners[place] for place in longest[: part.most])
        assert claimed >= int(change @ change) > 2**64
