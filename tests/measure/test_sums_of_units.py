"""Sums of what each unit adds, within bounds: the scan against plain Python, sensitivities against small worlds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, tables_of, understood
from scipy import sparse
from unit_rows import most_of_claim, policy_of, scan, sources_of

import dpsql
from dpsql.errors import PolicyError
from dpsql.measure import ConnectionEngine, unit_sums_sql
from dpsql.planning.prepare import prepare
from dpsql.policy import Policy
from dpsql.sql.caps import capped_table
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.expr.scan import Select

TABLE = """
[tables.visits]
unit = "patient"
max_rows_per_unit = {most}
at_most = [{bounds}]
[tables.visits.columns]
ward = {{ values = ["a", "b", "c"] }}
day = {{ lower = 1, upper = 6 }}
cost = {{ lower = -2, upper = 4, step = 0.5 }}
"""
SMALL = '{ sum = "cost", lower = -1, upper = 2, per = "ward" }'
WARD, ALL = '{ sum = "cost", lower = -3, upper = 5, per = "ward" }', '{ sum = "cost", lower = -6, upper = 8 }'
DAY = '{ sum = "cost", lower = -3, upper = 3, per = "day % 3" }'
PAID = '{ sum = "greatest(cost, 0)", upper = 5.5, per = "ward" }'
DAYS = '{ sum = "cost * 2", lower = -4, upper = 9, per = "day % 3" }'
BY_WARD = "SELECT ward, SUM(cost) AS s FROM visits GROUP BY ward"
COUNTS = "SELECT ward, COUNT(*) AS n, COUNT(DISTINCT patient) AS k FROM visits GROUP BY 1"
CASES = "SELECT SUM(CASE WHEN day > 2 THEN cost ELSE 0 END) AS s, SUM(cost) FILTER (WHERE day = 1) AS t FROM visits"
EXPRESSIONS = "SELECT ward, SUM(greatest(cost, 0)) AS s, SUM(cost * 2) AS t FROM visits GROUP BY 1"
FINER = "SELECT ward, day, SUM(cost) AS s FROM visits GROUP BY ward, day"
COST = "SUM(CAST(least(greatest(cost, -2), 4) AS DECIMAL(9, 1)))"
BY_BOTH = (
    f"FROM (SELECT patient, ward, {COST} AS s FROM visits WHERE day < 6 GROUP BY patient, ward HAVING COUNT(*) > 1)"
)
BY_THREE = (
    "SELECT day, COUNT(*) AS n, SUM(c) AS s FROM (SELECT patient, ward, day, COUNT(*) AS c FROM visits GROUP BY ALL) "
    "GROUP BY day"
)
TWICE = (
    "SELECT COUNT(*) AS n, SUM(GREATEST(LEAST(m, 9), -4)) AS s FROM (SELECT patient, MAX(s) AS m FROM (SELECT "
    f"patient, ward, {COST} AS s FROM visits GROUP BY patient, ward) GROUP BY patient)"
)
MULTIPLES = "SELECT ward, SUM(cost * -1.5) AS s, SUM(1.0 * cost) AS t FROM visits GROUP BY ward"
ALL_ROWS = "SELECT SUM(cost) AS s FROM visits WHERE day < 5"

Row = tuple[Any, ...]
World = tuple[int, tuple[str, ...], str]
WORLDS: dict[str, World] = {
    "by ward": (3, (WARD,), BY_WARD),
    "by ward, within a total": (9, (WARD, ALL), BY_WARD),
    "in all": (9, (ALL,), ALL_ROWS),
    "by ward, total alone": (9, (ALL,), BY_WARD),
    "of all wards": (3, (WARD,), ALL_ROWS),
    "finer than wards": (9, (SMALL,), FINER),
    "finer, few groups": (3, (WARD,), FINER),
    "expressions": (9, (PAID, DAYS), EXPRESSIONS),
    "multiples": (9, (WARD, ALL), MULTIPLES),
    "by ward, within days": (9, (SMALL, DAY), BY_WARD),
    "in all, within wards and days": (9, (SMALL, DAY), ALL_ROWS),
    "finer, within wards and days": (9, (SMALL, DAY), FINER),
    "beside counts": (4, (WARD, ALL), f"{BY_WARD}; {COUNTS}"),
    "cases": (9, (ALL,), CASES),
    "rows of units and wards": (3, (), f"SELECT ward, SUM(LEAST(s, 5)) AS s {BY_BOTH} GROUP BY ward"),
    "all rows of units and wards": (3, (), f"SELECT SUM(LEAST(s, 5)) AS s, COUNT(*) AS n {BY_BOTH} WHERE s > 0"),
    "rows of units, wards and days": (2, (), BY_THREE),
    "rows of units of these": (5, (), TWICE),
}


def policy(most: int, bounds: Sequence[str]) -> Policy:
    return policy_of(TABLE.format(most=most, bounds=", ".join(bounds)))


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect(config={"threads": 1})
    fill(found, [])
    return found


def fill(con: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> None:
    con.execute("CREATE OR REPLACE TABLE visits (patient INTEGER, ward VARCHAR, day INTEGER, cost DOUBLE)")
    if rows:
        con.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows)


def databases(count: int, seed: int) -> Iterator[list[Row]]:
    """Rows of few patients, many a ward, some outside of every declared group and bound."""
    draw = random.Random(seed)
    for number in range(count):
        costs: tuple[float | None, ...] = (4.0, 4.0, -2.0, -2.0, 1.5, 99.0, None, float("nan"))
        costs = (costs, (4.0, 99.0), (-2.0, -1.5, None))[number % 3]
        yield [
            (
                draw.choice((1, 1, 1, 2, 2, None)),
                draw.choice(("a", "a", "b", "c", "x", None)),
                draw.choice((1, 2, 3, 4, 5, 6, 9, None)),
                draw.choice(costs),
            )
            for _ in range(draw.randrange(8, 40))
        ]


def compiled(con: duckdb.DuckDBPyConnection, world: World) -> tuple[Policy, Compiled]:
    held = policy(*world[:2])
    return held, compiled_of(world[2], held, tables_of(held, ConnectionEngine(con)))


def numbers(con: duckdb.DuckDBPyConnection, held: Policy, batch: Compiled) -> list[Fraction]:
    """W x, exactly."""
    x = scan(batch, ConnectionEngine(con), sources_of(held))
    rows = sparse.csr_array(batch.rows)
    found = []
    for at in range(batch.numbers):
        held_at = slice(rows.indptr[at], rows.indptr[at + 1])
        pairs = zip(rows.indices[held_at].tolist(), rows.data[held_at].tolist(), strict=True)
        total = sum((Fraction(int(x[i])) * int(v) for i, v in pairs), Fraction(0))
        found.append(Fraction(batch.scale[at]) * total / batch.common_steps)
    return found


def worst(con: duckdb.DuckDBPyConnection, world: World, count: int = 4) -> float:
    """The largest change over its claim, for the entries themselves, their sum, and random integers over them."""
    return changed(con, *compiled(con, world), count)


def changed(con: duckdb.DuckDBPyConnection, held: Policy, batch: Compiled, count: int) -> float:
    """The same of a batch that is compiled."""
    engine, sources, moves = ConnectionEngine(con), sources_of(held), []
    for rows in databases(count, 5):
        fill(con, rows)
        whole = np.array(scan(batch, engine, sources), dtype=object)
        for unit in {row[0] for row in rows}:
            fill(con, [row for row in rows if row[0] != unit])
            moves.append(whole - np.array(scan(batch, engine, sources), dtype=object))
    return most_of_claim(batch, np.array(moves, dtype=object))


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.few(every=3)
def test_no_unit_moves_more_than_its_bounds_allow(con: duckdb.DuckDBPyConnection, name: str) -> None:
    assert 0.3 < worst(con, WORLDS[name]) <= 1.0


BESIDE_ROWS = "SELECT ward, SUM(cost) AS s, AVG(cost) AS a, 2 * SUM(cost) AS t FROM visits GROUP BY ward"


@pytest.mark.parametrize("bounds", [(WARD,), (WARD, ALL), (ALL,)])
def test_sums_of_rows_in_the_place_of_sums_of_units(con: duckdb.DuckDBPyConnection, bounds: tuple[str, ...]) -> None:
    """Beside AVG the same batch without bounds on its sums: what one unit moves, and the numbers of the rows."""
    held = policy(3, bounds)
    schemas = {name: table.schema for name, table in tables_of(held, ConnectionEngine(con)).items()}
    prepared = prepare(BESIDE_ROWS, held, schemas)
    other = prepared.without_sum_bounds()
    assert other is not None
    batch = other.compiled.matrix
    assert batch is not None
    assert prepared.compiled.matrix is not None
    assert batch.numbers == prepared.compiled.matrix.numbers
    assert not any(layout.source.added for layout in batch.layouts)
    assert 0.3 < changed(con, held, batch, 4) <= 1.0
    plain = "SELECT ward, SUM(cost) AS s, AVG(cost) AS a FROM visits GROUP BY ward"
    rows_alone = compiled_of(plain, policy(3, ()), tables_of(policy(3, ()), ConnectionEngine(con)))
    for rows in databases(4, 17):
        fill(con, rows)
        sums, counts = np.split(np.array(numbers(con, policy(3, ()), rows_alone), dtype=object), 2)
        found = np.split(np.array(numbers(con, held, batch), dtype=object), 4)
        expected = {tuple(counts), tuple(sums), tuple(2 * sums)}
        assert {tuple(one) for one in found} == expected
    assert prepare(f"{BY_WARD}; {COUNTS}", held, schemas).without_sum_bounds() is None


def added(
    rows: Sequence[Row], ends: tuple[float, float] | None, whole: tuple[float, float] | None
) -> dict[str | None, float]:
    """The sums by ward, as a person would work them out; ``ends`` of each ward, ``whole`` of all of them."""
    total = dict.fromkeys(("a", "b", "c", None), 0.0)
    for unit in {row[0] for row in rows}:
        mine = dict.fromkeys(total, 0.0)
        for _, ward, _, cost in (row for row in rows if row[0] == unit and row[1] in mine):
            mine[ward] += 0.0 if cost is None or np.isnan(cost) else min(max(-2.0, cost), 4.0)
        low, high = ends or whole or (-np.inf, np.inf)
        mine = {ward: min(max(low, s), high) for ward, s in mine.items()}
        if whole is not None:
            mine = {ward: min(max(whole[0], s), whole[1]) for ward, s in mine.items()}
            size, most = sum(map(abs, mine.values())), max(-whole[0], whole[1])
            if size > most:
                steps = {ward: abs(s) * 2 * most * 2 // (size * 2) for ward, s in mine.items()}
                mine = {ward: float(np.sign(s)) * steps[ward] / 2 for ward, s in mine.items()}
        for ward, s in mine.items():
            total[ward] += s
    return total


@pytest.mark.parametrize(
    ("bounds", "ends", "whole"),
    [((WARD,), (-3.0, 5.0), None), ((WARD, ALL), (-3.0, 5.0), (-6.0, 8.0)), ((ALL,), None, (-6.0, 8.0))],
)
@pytest.mark.parametrize(
    ("of", "times"),
    [
        ("cost", 1.0),
        ("1.0 * cost", 1.0),
        ("cost + 0", 1.0),
        ("-(-cost)", 1.0),
        ("coalesce(cost, 0)", None),
        ("-2 * cost", -2.0),
    ],
)
def test_what_a_scan_adds_up(
    con: duckdb.DuckDBPyConnection,
    bounds: tuple[str, ...],
    ends: tuple[float, float],
    whole: tuple[float, float],
    of: str,
    times: float | None,
) -> None:
    """Of multiples of a bounded column, too, within that multiple of the bound; of other values sums are of rows."""
    held, batch = compiled(con, (9, bounds, BY_WARD.replace("cost", of)))
    assert any(layout.source.added for layout in batch.layouts) == (times is not None)
    for rows in databases(6, 11) if times else ():
        fill(con, rows)
        expected = [times * s for s in added(rows, ends, whole).values()]
        assert list(map(float, numbers(con, held, batch))) == expected


def test_a_bound_on_an_expression_is_not_that_of_its_double(con: duckdb.DuckDBPyConnection) -> None:
    """Both have the same steps from their lower ends; the bound on the double is twice as large."""
    found = {}
    for of in ("cost * day", "cost * day * 2"):
        _, batch = compiled(
            con, (9, ('{ sum = "cost * day", lower = -6, upper = 9 }',), f"SELECT SUM({of}) AS s FROM visits")
        )
        (layout,) = batch.layouts
        assert layout.source.added is not None
        added_up = layout.source.added
        found[of] = [float(end * added_up.row.step * added_up.stride) for end in (added_up.lower, added_up.upper)]
    assert found == {"cost * day": [-6, 9], "cost * day * 2": [-12, 18]}


def test_small_units_lose_nothing(con: duckdb.DuckDBPyConnection) -> None:
    """Every unit within its bounds: the sums are those of the rows, however many these are."""
    rows = [(at % 50, "abc"[at % 3], 1 + at % 6, (at % 3) * 0.5) for at in range(150)]
    held, batch = compiled(con, (9, (WARD, ALL), BY_WARD))
    fill(con, rows)
    expected = [sum(row[3] for row in rows if row[1] == ward) for ward in "abc"]
    assert list(map(float, numbers(con, held, batch)))[:3] == expected


def test_sums_beyond_64_bits_are_clamped(con: duckdb.DuckDBPyConnection) -> None:
    """Whether a scan succeeds does not depend on how much one unit has."""
    bound = f'{{ sum = "cost", upper = {2.0**65:.1f} }}'
    text = TABLE.replace("lower = -2, upper = 4, step = 0.5", f"lower = {2**60}, upper = {2**60 + 2**30}")
    held = policy_of(text.format(most=100, bounds=bound))
    con.execute(f"CREATE OR REPLACE TABLE visits AS SELECT 1 AS patient, 'a' AS ward, 1 AS day, {2**60} AS cost")
    batch = compiled_of(ALL_ROWS, held, tables_of(held, ConnectionEngine(con)))
    assert numbers(con, held, batch) == [2**60]
    con.execute("INSERT INTO visits SELECT visits.* FROM visits, range(40)")
    assert numbers(con, held, batch) == [2**65]
    fill(con, [])


def test_bounds_are_used(con: duckdb.DuckDBPyConnection) -> None:
    """Of a row of up to 4 nine count, 36 in all, where a ward has at most 5 and all have 8."""

    def steps(bounds: Sequence[str]) -> float:
        _, batch = compiled(con, (9, bounds, BY_WARD))
        eye = sparse.eye_array(batch.rows.shape[1], dtype=np.int64, format="csr")
        integers = Factored(np.eye(batch.rows.shape[1], dtype=np.int64), sparse.csr_array(eye))
        return float(np.sqrt(sensitivity_of("gaussian", integers, batch.layouts))) * float(batch.scale[-1])

    assert steps([WARD]) == pytest.approx(5 * 2)  # four groups, NULL among them
    assert steps([WARD, ALL]) == pytest.approx(5 * np.sqrt(2))
    assert steps([ALL]) == pytest.approx(8)


@pytest.mark.parametrize("name", ["by ward, within a total", "in all", "finer than wards", "finer, few groups"])
@pytest.mark.parametrize("step", ["_clamped", "_scaled", "within"])
@pytest.mark.few(every=3)
def test_a_scan_that_leaves_a_step_out_is_caught(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, name: str, step: str
) -> None:
    """Each step matters to some batch: without it a unit moves more than is claimed."""
    needed = {
        "_clamped": {"in all"},
        "_scaled": {"by ward, within a total", "finer than wards"},
        "within": {"finer, few groups"},
    }

    def unclamped(rows: Select, groups: Sequence[str], added: Any) -> Select:
        loose = tuple(replace(bound, lower=-(10**6), upper=10**6) for bound in added.bounds)
        return original(rows, groups, replace(added, bounds=loose))

    original = unit_sums_sql._clamped
    faults = {"_clamped": unclamped, "_scaled": lambda rows, *_: rows, "within": lambda rows, *_: rows}
    monkeypatch.setattr(unit_sums_sql, step, faults[step])
    assert (worst(con, WORLDS[name]) > 1.0) == (name in needed[step])


BAD = {
    '{ sum = "cost", upper = 5, per = "ward" }': "lower is missing",
    '{ sum = "cost", lower = 6, upper = 5 }': "above upper",
    '{ sum = "cost", lower = 1, upper = 5 }': "leaves out 0",
    '{ sum = "cost", lower = -1, upper = inf }': "finite",
    '{ sum = "ward", upper = 5 }': "SUM needs a number",
    '{ sum = "1 / cost", lower = -1, upper = 5 }': "has no bounds",
    """{ sum = "CASE WHEN ward = 'a' THEN cost END", lower = -1, upper = 5 }""": "sums of its parts",
    '{ sum = "(cost + 1)", lower = -1, upper = 5 }': "sums of its parts",
    '{ sum = "cost", lower = -1 }': "upper is missing",
    '{ sum = "cost", lower = -1, upper = 5, rows = 1 }': "is not a setting",
    '{ sum = "cost", lower = -1, upper = 5, per = "cost" }': "needs its groups declared",
    f"{ALL}, {ALL}": "again",
    '{ sum = "cost", lower = -9, upper = 5, per = "ward" }, { sum = "cost", lower = -6, upper = 8 }': "together",
    '{ sum = "cost", lower = 0, upper = 0 }': "nothing of the sum but 0",
}


@pytest.mark.parametrize("bounds", BAD)
def test_bad_bounds_are_errors_of_the_policy(con: duckdb.DuckDBPyConnection, bounds: str) -> None:
    with pytest.raises(PolicyError, match=BAD[bounds]) as error:
        tables_of(policy(9, (bounds,)), ConnectionEngine(con))
    assert "at_most[" in str(error.value)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT ward, SUM(LEAST(s, 5)) AS s, COUNT(*) AS n {BY_BOTH} GROUP BY ward",
        "SELECT ward, COUNT(*) AS n FROM (SELECT DISTINCT patient, ward FROM visits) GROUP BY ward",
        "SELECT d, COUNT(*) AS n, SUM(c) AS s FROM (SELECT patient, day % 3 AS d, COUNT(*) AS c FROM visits GROUP BY "
        "patient, day % 3) GROUP BY d",
        "SELECT ward, COUNT(DISTINCT patient) AS n FROM (SELECT patient, ward, day, COUNT(*) AS c FROM visits GROUP BY "
        "ALL) WHERE c = 1 GROUP BY ward",
        BY_THREE,
        TWICE,
    ],
)
def test_rows_of_units_and_groups_are_those_of_duckdb(con: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Where no limit cuts: by the columns of the groups, in the order of the declared values."""
    draw = random.Random(3)
    rows = [
        (draw.choice((1, 2, 3)), draw.choice("abc"), draw.randrange(1, 7), draw.choice((4.0, -2.0, 0.5)))
        for _ in range(60)
    ]
    held, batch = compiled(con, (60, (), sql))
    fill(con, rows)
    found = {name: list(map(float, numbers(con, held, batch)))[span] for name, span in spans(batch).items()}
    for at, values in enumerate(found.values()):
        expected = con.execute(f"FROM ({sql}) ORDER BY ALL").fetchall()
        listed = [float(row[at - len(found)]) for row in expected]
        assert [value for value in values if value] == [value for value in listed if value]


def spans(batch: Compiled) -> dict[str, slice]:
    """The numbers of each column, by its name."""
    return {span.output.name or f"{at}": slice(span.start, span.stop) for at, span in enumerate(batch.spans)}


def test_ranges_are_of_rows(con: duckdb.DuckDBPyConnection) -> None:
    """Groups that overlap would count a unit's sum twice: rows are added up there, without the bound."""
    _, batch = compiled(con, (9, (SMALL,), "SELECT SUM(cost) AS s FROM visits GROUP BY dp_prefixes(day)"))
    assert all(layout.source.added is None for layout in batch.layouts)


def test_values_that_are_not_declared_are_rows_of_their_own(con: duckdb.DuckDBPyConnection) -> None:
    """Where they count as OTHER, a unit has as many rows there as values."""
    held = policy_of(
        TABLE.format(most=60, bounds="").replace('"c"] }', '"c"], other = true }').replace("at_most = []", "")
    )
    pairs = "SELECT patient, ward, COUNT(*) AS c FROM visits GROUP BY patient, ward"
    sql = f"SELECT ward, COUNT(*) AS n FROM ({pairs}) GROUP BY ward"
    batch = compiled_of(sql, held, tables_of(held, ConnectionEngine(con)))
    fill(con, [(unit, ward, 1, 0.0) for unit in (1, 2, 3) for ward in ("a", "b", "x", "y", "z", None)])
    assert sorted(map(float, numbers(con, held, batch))) == [0.0, 3.0, 3.0, 3.0, 9.0]


def test_a_plan_on_spark_says_that_a_bound_is_not_used() -> None:
    """Its scans do not add up by unit: sums are of the rows that count, at their bounds."""
    held = policy_of(TABLE.format(most=9, bounds=ALL).replace("\nunit", '\nsource = "spark:a.b.visits"\nunit'))
    schema = {"patient": "INTEGER", "ward": "VARCHAR", "day": "INTEGER", "cost": "DOUBLE"}
    tables = {"visits": capped_table(held.table("visits"), schema)}
    (note,) = understood(BY_WARD, held, tables).notes
    assert note.startswith("SUM(cost) has larger errors than at_most of visits would allow: on Spark it is the sum")
    assert all(layout.source.added is None for layout in compiled_of(BY_WARD, held, tables).layouts)
    assert understood("SELECT SUM(day) AS s FROM visits", held, tables).notes == ()


@pytest.mark.parametrize(("wards", "in_one", "in_all", "least"), [(7, 3_000, 12_000, 200_420_037), (25, 1, 5, 116.596)])
def test_sums_bounded_in_each_ward_and_in_all_are_planned_near_the_least(
    tmp_path: Any, wards: int, in_one: int, in_all: int, least: float
) -> None:
    """The least total squared error is computed by hand from the orbits of what one unit adds."""
    bounds = f'{{ sum = "cost", upper = {in_one}, per = "ward" }}, {{ sum = "cost", upper = {in_all} }}'
    text = 'dataset = "least-1"\n[budget]\nepsilon = 9.0\ndelta = 1e-6\n' + TABLE.format(most=40, bounds=bounds)
    text = text.replace('values = ["a", "b", "c"]', f"values = {list(map(str, range(wards)))}, nulls = false")
    text = text.replace("lower = -2, upper = 4, step = 0.5", f"lower = 0, upper = {in_one}, step = 1, nulls = false")
    database = duckdb.connect()
    database.execute("CREATE TABLE visits (patient INTEGER, ward VARCHAR, day INTEGER, cost INTEGER)")
    with dpsql.connect(database, policy=Policy.parse(text), ledger=tmp_path / "l") as con:
        plan = con.plan(BY_WARD, epsilon=1, delta=1e-7)
    squares = float(np.square(np.asarray(plan.errors)).sum() / plan.charge.unit_variance)
    assert least * 0.9999 <= squares <= 1.005 * least
